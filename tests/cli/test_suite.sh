# benchmarks/suite.sh: a row for each budget with all its figures, a peer beside ours, neighbouring budgets in turn, and mistakes in
# its options.
. "$(dirname "$0")/cli_common.sh"
build=$1 suite=$2/benchmarks/suite.sh
[ -x "$build/benchmarks/narrows-generate" ] || { echo 'skipped: the benchmarks are not built'; exit 77; }

run_suite() {
    sh "$suite" -B "$build" -d "$work/models" "$@" <"/dev/null" >"$work/out" 2>"$work/err"
    status=$?
    ran="suite.sh $*"
}

run_suite -p budgets -m "$model" -f 'plain slim' -b '32M 64M' -i 4 -n 4 -r 2 -o "$work/csv" --against 'cat "$MODEL"/*.safetensors'
expect_status 0
[ "$(grep -c '^budgets,numbers-t5,plain,[0-9]*,' "$work/csv")" -eq 2 ] || fail "$ran: not two rows of plain"
[ "$(grep -c '^budgets,numbers-t5,slim,[0-9]*,' "$work/csv")" -eq 2 ] || fail "$ran: not two rows of slim"
awk -F , '/^part,/ { columns = NF } !/^#/ && NF != columns { exit 1 }
    /^budgets,/ && !($12 > 0 && $14 > 0 && $22 == $23 && $24 == "true" && $25 > 0) { exit 1 }' "$work/csv" ||
    fail "$ran: a row lacks a figure"
out_has '^numbers-t5  *plain  *32M .* yes '
out_has 'ours [0-9.]* s, the peer [0-9.]* s: [0-9.]* times as long'

run_suite -p neighbours -m "$model" -f plain -b '32M 64M' -i 4 -n 4 -r 2 -o "$work/csv"
expect_status 0
awk -F , '/^part,/ { columns = NF } /^neighbours,/ { rows++; second = rows % 2 == 0; bad += NF != columns || !($14 > 0 && $25 > 0) }
    /^neighbours,/ && !second { seconds = $14; bad += $4 != 33554432 || $36 $37 != "" }
    /^neighbours,/ && second { off = $37 * seconds / $14; bad += $4 != 67108864 || $36 != 33554432 || off < 0.999 || off > 1.001 }
    END { exit rows != 4 || bad }' "$work/csv" || fail "$ran: not two pairs with their ratios"
out_has '^numbers-t5  *plain  *32M  *64M .* [0-9.]*  *[0-2]/2  *[0-9.]* ([-0-9.]*) [0-9.]* ([-0-9.]*)$'
run_suite -p neighbours -m "$model" -f plain -b 64M -i 4 -n 4
expect_status 0
err_has 'neighbours: no two budgets'

run_suite -p output -m "$model" -f plain -i 4 -o "$work/csv"
expect_status 0
[ "$(grep -c '^output,numbers-t5,plain,' "$work/csv")" -eq 3 ] || fail "$ran: not three lengths of the answer"

for mistake in '-p walk' '-f q9' '-n 2' '-r x' '-m' '--bogus 1'; do
    run_suite $mistake
    expect_status 2
done
run_suite -m no-such-shape
expect_status 1
err_has 'no-such-shape'

# benchmarks/generation.sh: the figures of each pair, and mistakes.
generation() {
    sh "$data/../../benchmarks/generation.sh" -B "$build" "$@" <"/dev/null" >"$work/out" 2>"$work/err"
    status=$?
    ran="generation.sh $*"
}
generation -p lanes -m "$model" -b 64M -i 4 -n 4 -r 1
expect_status 0
out_has '^tokens a second while decoding  *lanes-16 [0-9.e+]*, lanes-1 [0-9.e+]*: [0-9.]*$'
out_has '^seconds of a pass  *beams-4 [0-9.e-]*, lanes-1 [0-9.e-]*: [0-9.]*$'
generation -p lines -s 0 -l 64M -r 1
expect_status 0
out_has '^tokens a second, the whole run  *mixed [0-9.e+]*, equal [0-9.e+]*: [0-9.]*$'
for mistake in '-p walk' '-r x' '-m' 'more'; do
    generation $mistake
    expect_status 2
done
finish

# The encoder of t5-v1_1-base's shape: ten texts, one or two a pass, read it once when the budget holds it, and what is not
# pinned for each pass when it does not; padded inputs at full length; always within the budget, as the kernel counts.
. "$(dirname "$0")/common.sh"
need_space 1200
[ -x "$build/tests/make_tokenizer" ] || skip "$build/tests/make_tokenizer is not built"

model=$work/t5-v1_1-base
make "$generate" t5-v1_1-base "$model"
make "$build/tests/make_tokenizer" 32100 "$model/spiece.model"
uncached "$model"/*.safetensors
text='The quick brown fox jumps over the lazy dog; kabadu bebe Bo dida, 1984 times!'
for i in 1 2 3 4 5 6 7 8 9 10; do echo "$text"; done >"$work/lines"
"$narrows" tokenize -m "$model" "$text" >"$work/ids"
tokens=$(wc -w <"$work/ids")
[ "$tokens" -gt 10 ] && [ "$tokens" -lt 200 ] || fail "$tokens tokens"

# check_reads BUDGET TEXTS: each pass, of so many texts, reads what the plan says, the last one nothing ahead, and at most
# a row of the embedding for each of its tokens
check_reads() {
    set -- "$1" "$2" --encode-tokens $(($2 * tokens))
    plan "$work/plan" -m "$model" -b "$1" --embed --max-input-tokens "$tokens" $3 $4 || fail "plan for $1"
    run embed -m "$model" -b "$1" -v --lines -f "$work/lines" $3 $4
    expect_status 0
    within "$1"
    first=$(planned read first_pass "$work/plan") next=$(planned read next_pass "$work/plan")
    ahead=$(planned read ahead "$work/plan") row=$(planned read embedding_row "$work/plan")
    echo "  of $1: $first read for the first pass of $2 texts, $next for a later one"
    sed -n 's/.*"bytes_read": \([0-9]*\).*/\1/p' "$work/out" |
        awk -v next_pass="$next" -v ahead="$ahead" -v row="$row" -v tokens="$tokens" -v texts="$2" '
            (NR - 1) % texts != 0 { bad = bad || $1 != last; next }
            { rows = ($1 - last - next_pass + (NR == 11 - texts ? ahead : 0)) / row; last = $1 }
            NR > 1 && (rows < 0 || rows > tokens || rows != int(rows)) { bad = 1 }
            END { exit bad || NR != 10 }' || fail "$ran: other reads than planned"
}
plan "$work/plan" -m "$model" -b 1G --embed --max-input-tokens "$tokens"
all=$(number budget_all_resident "$work/plan")
smallest=$(number smallest "$work/plan")
check_reads "$all" 1
[ "$(planned read next_pass "$work/plan")" -eq 0 ] || fail 'all is resident, and yet something is read'
cp "$work/out" "$work/vectors"
for budget in "$smallest" $(((smallest + all) / 2)) $((all - 65536)); do
    check_reads "$budget" 1
    [ "$(planned read next_pass "$work/plan")" -gt 0 ] || fail 'nothing is read, and yet not all is resident'
    sed 's/, "stats".*//' "$work/out" >"$work/have"
    sed 's/, "stats".*//' "$work/vectors" >"$work/want"
    cmp -s "$work/have" "$work/want" || fail "$ran: other vectors"
done
check_reads $((all - 65536)) 2
sed 's/, "stats".*//' "$work/out" | cmp -s - "$work/want" || fail "$ran: other vectors"

# Padded to 512, attended to, into a file, in a cgroup of the budget.
plan "$work/plan" -m "$model" -b 1G --embed --max-input-tokens 512
smallest=$(number smallest "$work/plan")
for budget in "$smallest" $((smallest + 100 * mib)); do
    for io in uring threads; do
        run_in "$budget" embed -m "$model" -b "$budget" --io $io --pad-to 512 --mask off -o "$work/states.npy" "$text"
        expect_status 0
        within "$budget"
        [ "$(wc -c <"$work/states.npy")" -eq $((128 + 512 * 768 * 4)) ] || fail "$ran: a file of another size"
        cksum <"$work/states.npy" >>"$work/sums"
    done
done
[ "$(sort -u "$work/sums" | wc -l)" -eq 1 ] || fail 'other states under another budget'
head -n 3 "$work/lines" >"$work/few"
run_in $((smallest + 20 * mib)) embed -m "$model" -b $((smallest + 20 * mib)) --lines -f "$work/few" --pad-to 512 \
    --mask off -o "$work/states.safetensors"
expect_status 0
within $((smallest + 20 * mib))
uncached "$model"/*.safetensors "$work/states.safetensors"
finish

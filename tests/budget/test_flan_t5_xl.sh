# flan-t5-xl's shape, 5.7 GB of bf16, in 112M: the budget holds, what is read is what the plan says, byte for byte, and
# a plan costs next to nothing.
. "$(dirname "$0")/common.sh"
need_space 6500

model=$work/flan-t5-xl
budget=$((112 * mib))
make "$generate" flan-t5-xl "$model" --tokenizer "$data/t5-tokenizer"
uncached "$model"/*.safetensors
ids=$(awk 'BEGIN { for (i = 0; i < 31; i++) printf "%d ", 3 + 700 * i; print 1 }')

# bytes_read is the plan's sum and some embedding rows: a row for each id that is new, at most one for each that is fed.
# Guesses would only make the number of passes another one.
plan "$work/plan" -m "$model" -b 112M --max-input-tokens 32 -n 32 --io uring --lookup off || fail "no plan for 112M"
run_in $budget run -m "$model" -b 112M --input-ids "$ids" -n 32 --json -q --io uring --lookup off
expect_status 0
within $budget
[ "$(number tokens "$work/out")" -eq 32 ] || fail "$ran: not 32 tokens"
fixed=0
for phase in open tokenizer vectors encode cross first_pass; do
    fixed=$((fixed + $(planned read $phase "$work/plan")))
done
fixed=$((fixed + 31 * $(planned read next_pass "$work/plan")))
row=$(planned read embedding_row "$work/plan")
read=$(number bytes_read "$work/out")
# The start token is fed first; the last token never is.
fed=$(answer_ids 31)
answer_ids 8 >"$work/ids-8"
answer_ids 2 >"$work/ids-2"
distinct=$(echo "$ids 0 $fed" | tr ' ' '\n' | grep . | sort -u | wc -l)
rows=$(((read - fixed) / row))
[ $((read - fixed)) -eq $((rows * row)) ] && [ $rows -ge "$distinct" ] && [ $rows -le 64 ] ||
    fail "$ran: read $read bytes, the plan says $fixed and $distinct to 64 rows of $row"
echo "  read $read bytes: $fixed as planned, and $rows embedding rows for $distinct different tokens"

# Threads instead of the ring, stopped when a few tokens are there.
: >"$work/out"
if [ -z "$cgroup_refused" ]; then set -- --cgroup $budget; else set --; fi
"$launcher" "$@" --json "$work/cost" --stdout "$work/out" -- \
    "$narrows" run -m "$model" -b 112M --input-ids "$ids" -n 32 --io threads </dev/null 2>"$work/err" &
pid=$!
tries=0
while [ "$(wc -c <"$work/out")" -lt 16 ] && kill -0 $pid 2>/dev/null && [ $tries -lt 1200 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT $pid
wait $pid
status=$? ran='narrows run --io threads, SIGINT after some tokens'
expect_status 130
within $budget
grep -q '^narrows: peak .* tokens' "$work/err" || fail "$ran: no summary"

# All resident: passes after the first read nothing. The tokens are those of 112M: weights as random as these turn any
# wrong bit of the encoder (32 tokens: through sgemm, on all threads) into another answer.
for n in 2 8; do
    run run -m "$model" -b 4G --input-ids "$ids" -n $n --json -q
    [ "$status" -ne 3 ] || { echo "skipped: all resident: $(head -n 1 "$work/err")"; break; }
    expect_status 0
    within $((4096 * mib))
    number bytes_read "$work/out" >"$work/read-$n"
    answer_ids $n | cmp -s - "$work/ids-$n" || fail "$ran: other tokens than in 112M: $(cat "$work/ids-$n")"
done
if [ "$status" -eq 0 ]; then
    plan "$work/plan" -m "$model" -b 4G --max-input-tokens 32 -n 8 || fail "no plan for 4G"
    [ "$(planned read next_pass "$work/plan")" -eq 0 ] || fail "not all is resident in 4G"
    cmp -s "$work/read-2" "$work/read-8" ||
        fail "8 tokens read $(cat "$work/read-8") bytes, 2 tokens $(cat "$work/read-2")"
fi

# The budget that a refusal names works; a page less does not.
run run -m "$model" -b 20M --input-ids "$ids" -n 2 --json -q
expect_status 3
named=$(sed -n 's/.*needs \([0-9.]*[MG]\) for.*/\1/p' "$work/err")
run run -m "$model" -b "${named:-20M}" --input-ids "$ids" -n 2 --json -q
expect_status 0
within "$(number budget_bytes "$work/out")"
plan "$work/plan" -m "$model" -b 4G --max-input-tokens 32 -n 2 || fail "no plan"
smallest=$(number smallest "$work/plan")
run run -m "$model" -b $((smallest - 4096)) --input-ids "$ids" -n 2 --json -q
expect_status 3
run_in "$smallest" run -m "$model" -b "$smallest" --input-ids "$ids" -n 2 --json -q
expect_status 0
within "$smallest"
uncached "$model"/*.safetensors

# A plan: from headers alone.
: >"$work/times"
for i in 1 2 3 4 5; do
    run plan -m "$model" -b 112M --max-input-tokens 32 -n 32
    expect_status 0
    peak=$(number maxrss_bytes "$work/cost")
    [ "$peak" -lt $((16 * mib)) ] || fail "$ran: $peak bytes resident"
    sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' "$work/cost" >>"$work/times"
done
echo "  a plan: $(sort -n "$work/times" | sed -n 3p) s, $((peak / 1024)) KiB"
finish

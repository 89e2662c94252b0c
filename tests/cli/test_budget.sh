# Budgets at the command line: refusals that name what works, and peaks that hold. info and plan say the same as run.
. "$(dirname "$0")/cli_common.sh"

text='translate English to German: eight hundred and seventy-six'
refused 3 'budget 1M is too small: needs [0-9.]*[MG] for' run -m "$model" -b 1M "$text"
# Below the program's own size too, a refusal names what would do.
for budget in 1 512 1K 20K 500K; do
    refused 3 'too small: needs [0-9.]*[MG] for' run -m "$model" -b "$budget" "$text"
done
# A limit on address space that has room for the budget is enough. (Sanitizers need more space than there is.)
if grep -q '^NW_SANITIZE:[A-Z]*=$' "$1/CMakeCache.txt"; then
    (ulimit -v 200000 && timeout 20 "$narrows" run -m "$model" -b 64M "$text") >"$work/out" 2>"$work/err"
    status=$? ran='narrows run under ulimit -v 200000'
    expect_status 0
fi
refused 3 'for 19 tokens in, 1000000 out; .* with -n 32$' run -m "$model" -b 64M -n 1000000 "$text"
refused 3 'for 2 tokens in, 1000000 out' run -m "$model" -b 64M -n 1000000 --input-ids '5 1'
refused 3 'for 2 tokens in, 1000000 out' run -m "$model" -b 64M -n 1000000 --json --input-ids '5 1'
refused 3 '500T is above' run -m "$model" -b 500T "$text"
refused 3 'too long' run -m "$model" -b 64M -f /dev/zero
yes 'six hundred' | head -c 500000 >"$work/long"
refused 3 'too small: needs [0-9.]*[GM]' run -m "$model" -b 64M -f "$work/long"
yes 'six hundred' | head -c 30000000 >"$work/many"
refused 3 'line [0-9]*: .*budget' run -m "$model" -b 30M --lines -f "$work/many"

# What a refusal names works, and the answer is the same.
run run -m "$model" -b 64M "$text"
cp "$work/out" "$work/answer"
run run -m "$model" -b 12M "$text"
smallest=$(sed -n 's/.*needs \([0-9.]*[MG]\) for.*/\1/p' "$work/err")
[ "$status" -eq 3 ] && [ -n "$smallest" ] || fail "$ran: no smallest budget"
run run -m "$model" -b "${smallest:-64M}" "$text"
expect_status 0
cmp -s "$work/answer" "$work/out" || fail "$ran: another answer under another budget"

run run -m "$model" -b 64M --json "$text"
peak=$(sed -n 's/.*"peak_rss_bytes": *\([0-9]*\).*/\1/p' "$work/out")
[ "${peak:-0}" -gt 1000000 ] && [ "$peak" -le 67108864 ] || fail "peak '$peak' is not within the budget"

run info "$model"
expect_status 0
out_has '4 encoder + 4 decoder'
out_has 'd_model 128, d_ff 512, 4 heads of 32'
out_has 'sentencepiece, 640 pieces'
run info "$model" --json --tensors
expect_status 0
for field in '"vocab_size":.768' '"d_kv":.32' '"parameters":.2558976' '"kind":."sentencepiece"' '"shape":.\[128, 128\]'; do
    out_has "$field"
done
run info "$model" -v
out_has '^decoder.final_layer_norm.weight  BF16 \[128\]'

# Which file holds which blocks; a block that is cut stands with each of its files.
run info "$data/goldens/flan-bf16-shards"
expect_status 0
sed -n '/-0000[123]-of-00003/{n;s/^ *//;p;}' "$work/out" >"$work/blocks"
cmp -s - "$work/blocks" <<EOF || fail "$ran: $(cat "$work/blocks")"
embedding, encoder.0 to encoder.2, decoder.0 to decoder.2
encoder.0 to encoder.2, decoder.0 to decoder.2, decoder
encoder.0 to encoder.2, encoder, decoder.0 to decoder.2, head
EOF
run info "$data/goldens/t5-v1.0-tied" --json
expect_status 0
blocks='"head","encoder.0","encoder.1","encoder","decoder.0","decoder.1","decoder","other"'
tr -d ' \t\n' <"$work/out" | grep -q "\"blocks\":\[$blocks\]" || fail "$ran: blocks"

run plan -m "$model" -b 64M
expect_status 0
out_has '^budget 64M for 512 tokens in, 256 out; smallest that works: '
out_has 'encoder 0-3 '
out_has 'all of the decoder stays resident'
run plan "$model" -b 64M -n 8 --max-input-tokens 16 --pins off --disk-rate 2G --memory-rate 10G
expect_status 0
out_has '16 tokens in, 8 out'
out_has 'disk of 2G/s (given), memory of 10G/s (given)'
out_has 'decoder 0-3 .*read again for each token'
run plan -m "$model" -b 64M --json
expect_status 0
for field in enough budget smallest slot_bytes pinned_bytes process kv_cross next_pass embedding_row seconds_per_token blocks; do
    out_has "\"$field\":"
done
# The smallest budget is the same whichever the plan is for, and to the page that of a run.
for budget in 1M 64M 128M; do
    run plan -m "$model" -b $budget --json --max-input-tokens 19
    sed -n 's/.*"smallest":[[:space:]]*\([0-9]*\).*/\1/p' "$work/out"
done | sort -u >"$work/smallest"
[ "$(wc -l <"$work/smallest")" -eq 1 ] || fail "several smallest budgets: $(cat "$work/smallest")"
refused 3 'too small' run -m "$model" -b "$(($(cat "$work/smallest") - 4096))" "$text"
run run -m "$model" -b "$(cat "$work/smallest")" "$text"
expect_status 0
run plan -m "$model" -b 1M
expect_status 3
err_has 'budget 1M is too small: needs'
out_has '(the smallest)'
# The map of what lives where, by the modules' names: everything in a large budget, less in a smaller one.
run plan -m "$model" -b 64M --json
out_has '"shared":.*"pinned"'
out_has '"decoder.block.3":.*"pinned"'
out_has '"lm_head":.*"pinned"'
out_has '"encoder.block.0":.*"streamed"'
run plan -m "$model" -b 64M --pins 1M --json
out_has '"decoder.block.[0-9]*":.*"\(part\|streamed\)"'
finish

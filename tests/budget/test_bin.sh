# A model of flan-t5-xl's 558 tensors as PyTorch shards: opening reads little beyond the pickles, the budget holds, and
# weights cost the bytes that they cost as safetensors. (flan-t5-large's shape: as many tensors, a quarter of the bytes.)
. "$(dirname "$0")/common.sh"
[ -x "$build/tests/make_bin" ] || skip "$build/tests/make_bin is not built"
need_space 3500

same=$work/safetensors model=$work/bin
budget=$((96 * mib))
make "$generate" flan-t5-large "$same"
make "$build/tests/make_bin" "$same" "$model" --shards 2
uncached "$model"/*.bin
ids=$(awk 'BEGIN { for (i = 0; i < 31; i++) printf "%d ", 3 + 700 * i; print 1 }')

# The plans: the pickles have some 240 bytes a tensor, each storage's header costs a small read.
for m in "$same" "$model"; do
    plan "$work/plan-${m##*/}" -m "$m" -b 96M --max-input-tokens 32 -n 6 || fail "no plan of $m"
done
open_same=$(planned read open "$work/plan-safetensors")
open_bin=$(planned read open "$work/plan-bin")
[ $((open_bin - open_same)) -le $((4 * mib)) ] || fail "opening reads $open_bin bytes, $open_same as safetensors"
echo "  opening reads $open_bin bytes, $open_same as safetensors"
run info "$model"
expect_status 0
within $((16 * mib))

# The same tokens, from the same bytes but for where reads begin and end.
for io in uring threads; do
    run_in $budget run -m "$same" -b 96M --input-ids "$ids" -n 6 --json -q --io $io
    expect_status 0
    answer_ids 6 >"$work/ids"
    read_same=$(($(number bytes_read "$work/out") - open_same))
    run_in $budget run -m "$model" -b 96M --input-ids "$ids" -n 6 --json -q --io $io
    expect_status 0
    within $budget
    [ "$(number tokens "$work/out")" -eq 6 ] || fail "$ran: not six tokens"
    answer_ids 6 | cmp -s - "$work/ids" || fail "$ran: other tokens than from safetensors"
    read_bin=$(($(number bytes_read "$work/out") - open_bin))
    off=$((read_bin - read_same))
    [ ${off#-} -le $((read_same / 100)) ] || fail "$ran: reads $read_bin bytes, $read_same from safetensors"
    echo "  reads $read_bin bytes of weights, $read_same from safetensors"
done
uncached "$model"/*.bin

# A shard that is gone, cut, or swapped with the other.
mv "$model/pytorch_model-00002-of-00002.bin" "$work/second"
run run -m "$model" -b 96M --input-ids "$ids" -n 2
expect_status 5
head -c 100000000 "$work/second" >"$model/pytorch_model-00002-of-00002.bin"
run run -m "$model" -b 96M --input-ids "$ids" -n 2
expect_status 4
ln -f "$model/pytorch_model-00001-of-00002.bin" "$work/first"
ln -f "$work/first" "$model/pytorch_model-00002-of-00002.bin"
run run -m "$model" -b 96M --input-ids "$ids" -n 2
expect_status 4
grep -q 'by the index in' "$work/err" || fail "$ran: does not name the index"
finish

# ul2, 20 billion weights of bf16, in 176M. Reads 640 GB: for a machine that has the time and the disk.
. "$(dirname "$0")/common.sh"
[ "${NARROWS_TEST_HUGE:-}" = 1 ] || skip "reads 640 GB and needs 45 GB of disk; NARROWS_TEST_HUGE=1 runs it"
need_space 46000

model=$work/ul2
budget=$((176 * mib))
make "$generate" ul2 "$model"
ids=$(awk 'BEGIN { for (i = 0; i < 31; i++) printf "%d ", 3 + 700 * i; print 1 }')
run_in $budget run -m "$model" -b 176M --input-ids "$ids" -n 32 --json -q
expect_status 0
within $budget
[ "$(number tokens "$work/out")" -eq 32 ] || fail "$ran: not 32 tokens"
uncached "$model"/*.safetensors
finish

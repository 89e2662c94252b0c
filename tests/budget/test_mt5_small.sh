# mt5-small's shape, whose vocabulary is most of it: 250,112 rows of embedding and of the head, and a tokenizer of
# 250,000 pieces.
. "$(dirname "$0")/common.sh"
need_space 1500
[ -x "$build/tests/make_tokenizer" ] || skip "$build/tests/make_tokenizer is not built"

model=$work/mt5-small
budget=$((160 * mib))
make "$generate" mt5-small "$model"
make "$build/tests/make_tokenizer" 250000 "$model/spiece.model"
uncached "$model"/*.safetensors
text='The quick brown fox jumps over the lazy dog; kabadu bebe Bo dida, 1984 times!'

run run -m "$model" -b 160M -n 8 --json -q "$text"
expect_status 0
within $budget
[ "$(number tokens "$work/out")" -eq 8 ] || fail "$ran: not eight tokens"
[ "$(number prompt_tokens "$work/out")" -gt 10 ] || fail "$ran: too few tokens in"
ids=$(sed -n 's/.*"ids": \(\[[^]]*\]\).*/\1/p' "$work/out")

for io in uring threads; do
    run_in $budget run -m "$model" -b 160M -n 8 --json -q --io $io "$text"
    expect_status 0
    within $budget
    [ "$(sed -n 's/.*"ids": \(\[[^]]*\]\).*/\1/p' "$work/out")" = "$ids" ] || fail "$ran: other tokens"
done

# The tokenizer alone, which is loaded before all else, is held to the budget that is refused below it.
run run -m "$model" -b 16M -n 8 -q "$text"
expect_status 3
smallest=$(sed -n 's/.*needs \([0-9.]*[MG]\).*/\1/p' "$work/err")
run run -m "$model" -b "${smallest:-16M}" -n 8 --json -q "$text"
expect_status 0
within "$(number budget_bytes "$work/out")"
[ "$(sed -n 's/.*"ids": \(\[[^]]*\]\).*/\1/p' "$work/out")" = "$ids" ] || fail "$ran: other tokens"
uncached "$model"/*.safetensors
finish

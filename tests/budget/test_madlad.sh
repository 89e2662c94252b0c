# madlad400-3b's shape, 5.9 GB of bf16, with a tokenizer of 256,000 pieces: a hundred short lines, each with its language
# before it, as in a container of 512 MiB.
. "$(dirname "$0")/common.sh"
need_space 6800
[ -x "$build/tests/make_tokenizer" ] || skip "$build/tests/make_tokenizer is not built"

model=$work/madlad
budget=$((512 * mib))
make "$generate" madlad400-3b-mt "$model"
make "$build/tests/make_tokenizer" 256000 "$model/spiece.model" madlad
# One or two made-up words; every tenth line needs bytes.
awk 'BEGIN {
    consonants = "bcdfghjklmnpqrstvwxz"; vowels = "aeiou"
    for (i = 0; i < 100; i++) {
        text = sprintf("<2%c%c>", 97 + int(i / 26), 97 + i % 26)
        for (w = 0; w <= i % 2; w++) {
            text = text " "
            for (s = 0; s < 2; s++) {
                k = (i * 37 + w * 11 + s * 53) % 100
                text = text substr(consonants, int(k / 5) + 1, 1) substr(vowels, k % 5 + 1, 1)
            }
        }
        print text (i % 10 == 9 ? "ü" : "")
    }
}' >"$work/lines"
run tokenize -m "$model" --pieces "$(sed -n 10p "$work/lines")"
expect_status 0
for piece in '<2aj>' '<0xC3>' '<0xBC>'; do
    grep -q "$piece\$" "$work/out" || fail "$ran: no piece $piece"
done

# total FIELD: as it stands at the end
total() { tail -n 1 "$work/out" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }
for io in uring threads; do
    run_in $budget run -m "$model" -b 512M -n 2 --json -q --lookup off --io $io --lines -f "$work/lines"
    expect_status 0
    within $budget
    [ "$(wc -l <"$work/out")" -eq 100 ] || fail "$ran: not a line for each"
    [ "$(total tokens)" -eq 200 ] || fail "$ran: $(total tokens) tokens, not two for each line"
    [ "$(total encode_passes)" -le 2 ] || fail "$ran: $(total encode_passes) encoder passes"
    echo "  $(total encode_passes) encoder passes, $(total passes) of the decoder, $(total bytes_read) bytes"
    sed 's/, "stats".*//' "$work/out" >"$work/answers-$io"
    total bytes_read >"$work/read-$io"
done
cmp -s "$work/answers-uring" "$work/answers-threads" || fail 'the two backends answer differently'
uncached "$model"/*.safetensors
cmp -s "$work/read-uring" "$work/read-threads" || fail 'the two backends read different amounts'

# One of them alone reads what the plan says, byte for byte: the tokenizer twice, once to see how long the prompt is, and
# an embedding row for each token that is fed, all of them different here: the prompt's, the start and the first answered.
run_in $budget run -m "$model" -b 512M -n 2 --json -q --lookup off "$(sed -n 1p "$work/lines")"
expect_status 0
within $budget
answer_ids 2 >"$work/ids-alone"
sed -n '1s/.*"ids": \[\([^]]*\)\].*/\1/p' "$work/answers-uring" | tr -d , | cmp -s - "$work/ids-alone" ||
    fail "$ran: another answer than among a hundred"
tokens=$(number prompt_tokens "$work/out")
plan "$work/plan" -m "$model" -b 512M --max-input-tokens "$tokens" -n 2 --lookup off || fail 'no plan for 512M'
planned=$(((tokens + 2) * $(planned read embedding_row "$work/plan")))
for phase in open tokenizer tokenizer vectors encode cross first_pass next_pass; do
    planned=$((planned + $(planned read $phase "$work/plan")))
done
read=$(number bytes_read "$work/out")
[ "$read" -eq "$planned" ] || fail "$ran: read $read bytes, not $planned as planned"
uncached "$model"/*.safetensors
finish

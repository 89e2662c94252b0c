# A thousand lines of mixed length over 16 lanes: the encoder's weights are read once for 64 lines or more, the lanes are
# rarely empty, and what is read is what the plan says.
. "$(dirname "$0")/common.sh"

model=$data/numbers-t5
sed -n 's/^{"text": "\([^"\\]*\)", "input_ids.*/\1/p' "$model/vectors.jsonl" |
    awk '{ text[NR] = $0 } END { for (i = 0; i < 1000; i++) print text[i * 61 % NR + 1] }' >"$work/lines"
[ "$(wc -l <"$work/lines")" -eq 1000 ] || fail 'there are no thousand lines'
[ "$(sort -u "$work/lines" | wc -l)" -gt 100 ] || fail 'the lines are too much alike'

# total FIELD: of the last run, as it stands at the end
total() { tail -n 1 "$work/out" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }

# lines OPTION...: of run, with 128M; the answers have 16 lanes, filled to 85 % and more
lines() {
    run run -m "$model" -b 128M -n 40 --lanes 16 --lookup off -q --json --lines -f "$work/lines" "$@"
    expect_status 0
    within $((128 * mib))
    [ "$(wc -l <"$work/out")" -eq 1000 ] || fail "$ran: not a line for each"
    encode=$(total encode_passes) passes=$(total passes) tokens=$(total tokens) read=$(total bytes_read)
    [ $((encode * 64)) -le $((1000 + 63)) ] || fail "$ran: $encode encoder passes"
    [ $((tokens * 100)) -ge $((passes * 16 * 85)) ] || fail "$ran: $passes passes for $tokens tokens"
    sed 's/.*"prompt_tokens": \([0-9]*\).*/\1/' "$work/out" | sort -n >"$work/lengths"
    longest=$(tail -n 1 "$work/lengths") fed=$(awk -v sum="$tokens" '{ sum += $1 } END { print sum }' "$work/lengths")
    plan "$work/plan" -m "$model" -b 128M --max-input-tokens "$longest" -n 40 --lanes 16 --lookup off "$@" ||
        fail 'no plan for 128M'
    # All but embedding rows. The tokenizer is read twice, once to see how long the prompts are.
    fixed=$((encode * ($(planned read encode "$work/plan") + $(planned read cross "$work/plan"))))
    fixed=$((fixed + (encode - 1) * $(planned read refill "$work/plan")))
    fixed=$((fixed + (passes - 1) * $(planned read next_pass "$work/plan")))
    for phase in open tokenizer tokenizer vectors first_pass; do
        fixed=$((fixed + $(planned read $phase "$work/plan")))
    done
    row=$(planned read embedding_row "$work/plan") ahead=$(planned read ahead "$work/plan")
    echo "  $encode encoder passes, $passes of the decoder for $tokens tokens; $read bytes: $fixed as planned, and rows"
    sed 's/, "stats".*//' "$work/out" >"$work/answers"
}

# All resident: rows are read until the table is there, which the first decoder pass sees to; each of them once.
lines
rows=$(((read - fixed) / row))
[ $((read - fixed)) -eq $((rows * row)) ] && [ $rows -ge 16 ] && [ $rows -le 768 ] ||
    fail "$ran: read $read bytes, the plan says $fixed and up to 768 rows of $row"
cp "$work/answers" "$work/resident"

# All read again for each pass, at most a row for each token that is fed, and in vain what was read ahead for a decoder
# pass when the encoder came first.
lines --pins off
rows=$(((read - fixed) / row))
[ $rows -ge 0 ] && [ $rows -le $((encode * ahead / row + fed)) ] ||
    fail "$ran: read $read bytes, the plan says $fixed and rows of $row"
cmp -s "$work/answers" "$work/resident" || fail "$ran: other answers"

# few BUDGET ENCODE_PASSES BYTES: the same answers from a budget with less room than wished for prompts ahead of their
# turn, in at most so many encoder passes, and at most so many bytes read
few() {
    run run -m "$model" -b "$1" -n 40 --lanes 16 --lookup off -q --json --lines -f "$work/lines"
    expect_status 0
    within $(($1))
    encode=$(total encode_passes) passes=$(total passes) read=$(total bytes_read)
    echo "  $encode encoder passes, $passes of the decoder; $read bytes"
    [ "$encode" -le "$2" ] || fail "$ran: $encode encoder passes, not $2 or fewer"
    [ "$read" -le "$3" ] && [ "$read" -ge $((encode * encoder)) ] || fail "$ran: read $read bytes, not up to $3"
    sed 's/, "stats".*//' "$work/out" >"$work/answers"
    cmp -s "$work/answers" "$work/resident" || fail "$ran: other answers"
}

# Room for 64 prompts; for some; for none but those in lanes, of which some wait until an encoder pass is worth it.
encoder=$(($(planned read encode "$work/plan") + $(planned read cross "$work/plan")))
few $((32 * mib)) 16 80000000
few $((24 * mib)) 44 130000000
few $((20 * mib)) 130 400000000
finish

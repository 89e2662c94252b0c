# --score and --choices: the log-probabilities that generating gives, best first, whatever the lanes.
. "$(dirname "$0")/cli_common.sh"

text='translate English to German: eight hundred and seventy-six'
answer=achthundertsechsundsiebzig
ok() {
    run run -m "$model" -b 64M "$@"
    expect_status 0
}
printf '%s\n' sechs neun $answer achthundert achthundertsechsundsechzig >"$work/choices"

ok --json --logprobs "$text"
sum=$(sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/; s/, /\n/g' "$work/out" | awk '{ s += $1 } END { printf "%.9f", s }')
ok --score $answer "$text"
[ "$(awk '{ printf "%.9f", $1 }' "$work/out")" = "$sum" ] || fail "$ran: not $sum"
score=$(cat "$work/out")
ok --score '133 241 1' --input-ids '11 10 5 4 9 6 14 3 7 15 8 63 20 3 18 55 12 41 1'
expect_out "$score"
ok --score $answer --json "$text"
out_has '^{"prompt_tokens": 19, "choices": \[{"index": 0, "text": "achthundertsechsundsiebzig", "ids": \[133, 241, 1\], "logprob": -[0-9.e-]*, "mean_logprob": -[0-9.e-]*, "logprobs": \[-[0-9.e-]*, -[0-9.e-]*, -[0-9.e-]*\]}\], "stats": {.*}}$'

# A ranking: best first, falling, the given text, sum and mean.
ok --choices "$work/choices" "$text"
cp "$work/out" "$work/ranked"
[ "$(wc -l <"$work/out")" -eq 5 ] || fail "$ran: not five lines"
[ "$(head -n 1 "$work/out" | cut -f 1,2)" = "$answer	$score" ] || fail "$ran: another one is best"
awk -F '\t' 'NF != 3 || (NR > 1 && $2 > last) || $3 < $2 { bad = 1 } { last = $2 } END { exit bad }' "$work/out" ||
    fail "$ran: not three fields, falling"
cut -f 1 "$work/out" | sort >"$work/names"
sort "$work/choices" | cmp -s - "$work/names" || fail "$ran: other answers"
for options in '--lanes 1' '--lanes 2' '--lanes 3 -t 1'; do
    ok --choices "$work/choices" $options "$text"
    cmp -s "$work/ranked" "$work/out" || fail "$ran: other numbers"
done
# Of lines: one line each, the same fields; JSON one object each.
printf '%s\n\ntranslate English to German: six\n' "$text" >"$work/texts"
# More parts of one prompt than the session holds requests.
seq 1 40 | sed 's/^/vier /' >"$work/forty"
ok --choices "$work/forty" --lanes 64 "$text"
sort "$work/out" >"$work/wide"
for lanes in 1 2 4; do
    ok --choices "$work/forty" --lanes $lanes "$text"
    sort "$work/out" | cmp -s - "$work/wide" || fail "$ran: other answers"
done
ok --choices "$work/choices" --lines -f "$work/texts"
[ "$(wc -l <"$work/out")" -eq 3 ] && [ -z "$(sed -n 2p "$work/out")" ] || fail "$ran: not three lines"
head -n 1 "$work/out" | tr '\t' '\n' >"$work/fields"
tr '\t' '\n' <"$work/ranked" | cmp -s - "$work/fields" || fail "$ran: other numbers than alone"
[ "$(sed -n 3p "$work/out" | cut -f 1)" = sechs ] || fail "$ran: six is not sechs"
cp "$work/out" "$work/lines"
ok --choices "$work/choices" --lines -f "$work/texts" --lanes 2
cmp -s "$work/lines" "$work/out" || fail "$ran: other numbers"
ok --choices "$work/choices" --lines -f "$work/texts" --json
[ "$(wc -l <"$work/out")" -eq 3 ] || fail "$ran: not three objects"
out_is_json lines
out_has '^{"prompt_tokens": 0, "choices": \[\], "stats"'
ok --prefix 'translate English to German: ' --score sechs --lines -p six
expect_out "$(tail -n 1 "$work/lines" | cut -f 2)"
# One pass for each position of the longest, or fewer.
ok --choices "$work/choices" --json "$text"
passes=$(sed 's/.*"passes":\([0-9]*\).*/\1/' "$work/out")
[ "$passes" -le 6 ] || fail "$ran: $passes passes"

# Many prompts share passes, all tokens of each one's answer in one.
yes '11 10 5 4 9 6 14 3 7 15 8 63 20 3 18 55 12 41 1' | head -n 48 >"$work/many"
input=$work/many
ok --score '133 241 133 241 133 241 1' --json --lines --input-ids -
input=
passes=$(tail -n 1 "$work/out" | sed 's/.*"passes":\([0-9]*\).*/\1/')
[ "$passes" -le 6 ] || fail "$ran: $passes passes for 48 prompts"
[ "$(sed 's/, "stats".*//' "$work/out" | sort -u | wc -l)" -eq 1 ] || fail "$ran: different numbers"

: >"$work/none"
refused 2 'no answers' run -m "$model" -b 64M --choices "$work/none" x
printf 'a\n\nb\n' >"$work/gap"
refused 2 'line 2: an empty answer' run -m "$model" -b 64M --choices "$work/gap" x
refused 2 '/no/such' run -m "$model" -b 64M --choices /no/such x
refused 2 'exclude each other' run -m "$model" -b 64M --choices "$work/gap" --score x x
refused 2 'no options that choose' run -m "$model" -b 64M --score x --num-beams 2 x
refused 2 'no options that choose' run -m "$model" -b 64M --score x -n 2 x
refused 2 'empty' run -m "$model" -b 64M --score '' x
refused 2 'logprobs' run -m "$model" -b 64M --score x --json --logprobs x
refused 3 'too small' run -m "$model" -b 10M --choices "$work/choices" x
finish

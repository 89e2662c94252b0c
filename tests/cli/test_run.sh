# run on the numbers model under 64M: the reference's answers, from every source of prompts, as text, lines and JSON.
. "$(dirname "$0")/cli_common.sh"

# The texts and answers of the vectors that need no unescaping.
grep -v '\\' "$model/vectors.jsonl" | head -n 12 >"$work/vectors"
sed 's/^{"text": "\([^"]*\)".*/\1/' "$work/vectors" >"$work/texts"
sed 's/.*"texts": \["\([^"]*\)"\].*/\1/' "$work/vectors" >"$work/answers"
[ "$(wc -l <"$work/texts")" -eq 12 ] || fail 'there are no 12 vectors to try'
while IFS= read -r text <&3 && IFS= read -r answer <&4; do
    run run -m "$model" -b 64M "$text"
    expect_status 0
    expect_out "$answer"
    err_empty
done 3<"$work/texts" 4<"$work/answers"

run run -m "$model" -b 64M --lines -f "$work/texts"
expect_status 0
expect_out "$(cat "$work/answers")"
input=$work/texts run run -m "$model" -b 64M --lines
expect_out "$(cat "$work/answers")"

text=$(head -n 1 "$work/texts")
answer=$(head -n 1 "$work/answers")
ids='11 10 5 4 9 6 14 3 7 15 8 63 20 3 18 55 12 41 1'
printf '%s\n' "$text" >"$work/one"
input=$work/one run run -m "$model" -b 64M
expect_out "$answer"
input=$work/one run run -m "$model" -b 64M -f -
expect_out "$answer"
run run -m "$model" -b 64M -f "$work/one"
expect_out "$answer"
run run -m "$model" -b 64M -p "$text"
expect_out "$answer"
run run -m "$model" -b 64M --input-ids "$ids"
expect_out "$answer"
run run -m "$model" -b 64M --lines --input-ids "$ids

$ids"
expect_out "$answer

$answer"
printf '%s\n' "$ids" >"$work/ids"
run run -m "$model" -b 64M --input-ids - -f "$work/ids"
expect_out "$answer"
printf '%s\n\n%s' "$text" "$text" >"$work/gap"
run run -m "$model" -b 64M --lines -f "$work/gap"
expect_out "$answer

$answer"
: >"$work/nothing"
run run -m "$model" -b 64M --lines -f "$work/nothing"
expect_status 0
[ ! -s "$work/out" ] || fail 'no lines in, lines out'

# Options that never change the answer.
for options in '-t 1' '-t 3' '--io threads' '--window 1M' '--pins off' '--pins 300K' '--prefetch off' '--kernels portable' '-q' '-v'; do
    run run -m "$model" -b 64M $options "$text"
    expect_status 0
    expect_out "$answer"
done
run run -m "$model" -b 64M -v "$text"
err_has '^narrows: peak .* of 64M, .* read, 3 tokens'
run run -m "$model" -q "$text"
expect_out "$answer"
err_empty
run run -m "$model" "$text"
expect_out "$answer"
err_has '^narrows: budget: .*auto'

run run -m "$model" -b 64M --json --logprobs "$text"
expect_status 0
[ "$(wc -l <"$work/out")" -eq 1 ] || fail 'the JSON is not one line'
out_has '^{"prompt_tokens": 19, "sequences": \[{"ids": \[133, 241, 1\], "text": "achthundertsechsundsiebzig", "score": null, "logprobs": \[-[0-9.e-]*, -[0-9.e-]*, -[0-9.e-]*\], "finish_reason": "eos"}\], "stats": {.*}}$'
for field in budget_bytes peak_rss_bytes bytes_read seconds_load seconds_encode seconds_first_token seconds_per_token tokens threads; do
    out_has "\"$field\": *[0-9.e-]*[,}]"
done
out_has '"budget_bytes": *67108864,'
out_has '"io": *"[a-z]*"'
run run -m "$model" -b 64M --json -n 2 "$text"
out_has '"ids": \[133, 241\].*"score": null, "finish_reason": "length"'
run run -m "$model" -b 64M --json --lines -f "$work/gap"
[ "$(wc -l <"$work/out")" -eq 3 ] || fail 'not one object per line'
out_has '^{"prompt_tokens": 0, "sequences": \[{"ids": \[\], "text": ""'

# Without a tokenizer ids go in and out.
run run -m "$data/goldens/t5-v1.1" -b 128M -n 3 --input-ids '5 6 1'
expect_status 0
out_has '^[0-9]*\( [0-9]*\)*$'
run run -m "$data/goldens/t5-v1.1" -b 128M -n 3 --json --input-ids '5 6 1'
out_has '"text": null'

run run -m "$model" -b 64M --max-input-tokens 4 "$text"
expect_status 0
err_has 'cut from 19 to 4 tokens'
run run -m "$model" -b 64M --json --max-input-tokens 4 "$text"
out_has '"prompt_tokens": 4,'
run run -m "$model" -b 64M 'six 漢 hundred'
expect_status 0
err_has 'lacks these characters: 漢$'

# K and V of the prompt in a scratch file: the same answer; a directory that will not do is named.
run run -m "$model" -b 64M --kv disk "$text"
expect_status 0
expect_out "$answer"
refused 5 "scratch file in '/nowhere'" run -m "$model" -b 64M --kv disk --scratch /nowhere "$text"
refused 2 "'paper' is not disk or auto" run -m "$model" -b 64M --kv paper "$text"
run plan -m "$model" -b 64M --kv disk
out_has '^  K and V  .* from the scratch file$'
finish

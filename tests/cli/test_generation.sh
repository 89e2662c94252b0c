# Beams, samples, processors and stop strings at the command line: the reference's beams, what each option forbids, where
# settings come from, and what is refused.
. "$(dirname "$0")/cli_common.sh"

text='translate English to German: eight hundred and seventy-six'
answer=achthundertsechsundsiebzig
# ok ARGS...: of run, with the model, under 64M
ok() {
    run run -m "$model" -b 64M "$@"
    expect_status 0
}
ids_of() { sed -n 's/^{[^[]*\[{"ids": \[\([^]]*\)\].*/\1/p' "$work/out"; }
# list FIELD: of all sequences of all lines, one a line
list() { grep -o "\"$1\": [^,]*" "$work/out" | sed 's/.*: //'; }

# All beams of the reference, in its order, with its scores; several answers to a line are fields of a line.
grep num_beams "$model/vectors.jsonl" | grep -v '\\' >"$work/vectors"
sed 's/^{"text": "\([^"]*\)".*/\1/' "$work/vectors" >"$work/texts"
sed 's/.*"texts": \["\([^]]*\)"\].*/\1/; s/", "/\t/g' "$work/vectors" >"$work/beams"
sed 's/.*"scores": \[\([^]]*\)\].*/\1/; s/, /\n/g' "$work/vectors" >"$work/scores"
[ "$(wc -l <"$work/texts")" -ge 20 ] || fail 'there are no 20 vectors to try'
ok --lines -f "$work/texts" --num-beams 4 --num-return-sequences 4
cmp -s "$work/beams" "$work/out" || fail "$ran: other beams: $(diff "$work/beams" "$work/out" | head -n 3)"
ok --lines -f "$work/texts" --num-beams 4 --num-return-sequences 4 --json --logprobs
list score | paste - "$work/scores" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 || NF != 2) bad = 1 } END { exit bad || NR < 80 }' ||
    fail "$ran: other scores"
out_has '"settings": {"max_new_tokens": 256, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 1, "early_stopping": false}}$'
ok --num-beams 4 --num-return-sequences 2 "$(head -n 1 "$work/texts")"
head -n 1 "$work/beams" | cut -f 1,2 | tr '\t' '\n' | cmp -s - "$work/out" || fail "$ran: not two lines"
ok --lines -f "$work/texts" --num-beams 4 --early-stopping never --length-penalty 0.5 --lanes 4
cut -f 1 "$work/beams" | cmp -s - "$work/out" || fail "$ran: other best beams"

# Samples: the same for a seed, whatever the lanes and threads; others for another.
head -n 8 "$work/texts" >"$work/few"
sample() { ok --lines -f "$work/few" -n 12 --do-sample --temperature 30 --num-return-sequences 2 "$@"; }
sample --seed 7
cp "$work/out" "$work/sampled"
[ "$(tr '\t' '\n' <"$work/out" | sort -u | wc -l)" -eq 16 ] || fail "$ran: some samples are alike"
for options in '--lanes 2' '--lanes 6 -t 1' '--lanes 16 --lookup off' '-t 3 --io threads'; do
    sample --seed 7 $options
    cmp -s "$work/sampled" "$work/out" || fail "$ran: other samples"
done
sample --seed 8
! cmp -s "$work/sampled" "$work/out" || fail "$ran: the seed is of no effect"
ok --do-sample --top-k 1 --temperature 5 "$text"
expect_out $answer
ok --do-sample --top-p 0.01 --temperature 2 "$text"
expect_out $answer
ok --do-sample --min-p 1 --temperature 2 --json "$text"
out_has "\"text\": \"$answer\", \"score\": null,"
out_has '"settings": {"max_new_tokens": 256, "do_sample": true, "temperature": 2, "top_k": 50, "top_p": 1, "min_p": 1, "seed": 0}}$'

# Each processor.
loop() { ok -n 60 --json "$@" six; }
loop
[ "$(ids_of | tr -d ' ' | tr , '\n' | sort -u | wc -l)" -lt 10 ] || fail "$ran: the answer does not repeat itself"
loop --no-repeat-ngram-size 2
ids_of | tr -d , | awk '{ for (i = 2; i <= NF; i++) if (seen[$(i - 1) " " $i]++) bad = 1 } END { exit bad }' ||
    fail "$ran: two tokens in a row come twice"
loop --repetition-penalty 100
ids_of | tr -d , | awk '{ for (i = 1; i <= NF; i++) if (seen[$i]++) bad = 1 } END { exit bad }' ||
    fail "$ran: a token comes twice"
ok --json --min-new-tokens 5 "$text"
ids_of | tr -d , | awk '{ for (i = 1; i <= 5; i++) if ($i == 1) bad = 1 } END { exit bad || NF < 6 }' || fail "$ran: too short"
ok --json --forced-bos 241 "$text"
out_has '"ids": \[241, '
ok --json --forced-bos "$("$narrows" tokenize -m "$model" --pieces "$answer" | sed -n '2s/.*	//p')" "$text"
out_has '"ids": \[241, .*"forced_bos_token_id": 241'
ok --json --suppress-tokens 133,241 "$text"
! ids_of | grep -qE '(^| )(133|241)(,|$)' || fail "$ran: a suppressed token"
ok --bad-words "$answer" --bad-words-ids '133 1' "$text"
! grep -qx $answer "$work/out" || fail "$ran: a bad word"
# Of the ids of a sequence only the last is forbidden, behind the others.
ok --json --bad-words-ids '133 241' "$text"
out_has '"ids": \[133, '
! ids_of | grep -q '^133, 241' || fail "$ran: a bad sequence"

# Stop strings, across the borders of tokens: nothing of them is shown, and what only looked like one is.
ok --stop dertsech "$text"
expect_out achthun
ok --stop siebzigx "$text"
expect_out $answer
ok --json --stop nothere --stop sech "$text"
out_has '"text": "achthundert", .*"finish_reason": "stop".*"stop_strings": \["nothere", "sech"\]'
ok --num-beams 2 --stop sech --lines "$text"
expect_out achthundert

# What the settings are is shown as JSON, whatever is in them.
ok --json --do-sample --num-return-sequences 2 --stop 'a"b\c' --prefix 'x	"y" ' --bad-words-ids '5 6' --bad-words-ids 7 \
    --suppress-tokens '8 9' --forced-bos 12 --min-new-tokens 2 --no-repeat-ngram-size 3 --repetition-penalty 1.5 -n 4 six
out_is_json
out_has '"bad_words_ids": \[\[5, 6\], \[7\]\], "suppress_tokens": \[8, 9\], "forced_bos_token_id": 12, "min_new_tokens": 2, "seed": 0, "stop_strings": \["a\\"b\\\\c"\], "prefix": "x\\u0009\\"y\\" "}}$'

# The model's files: said in one line, the command line over them; a task's only by its name.
cp -r "$model" "$work/model"
chmod -R u+w "$work/model"
sed -i 's/"dropout_rate"/"task_specific_params": {"de": {"prefix": "translate English to German: ", "num_beams": 2}}, "dropout_rate"/' \
    "$work/model/config.json"
run run -m "$work/model" -b 64M --task de --json 'eight hundred and seventy-six'
out_has "\"text\": \"$answer\""
err_has '^narrows: by config.json, task de: num_beams 2, prefix "translate English to German: "$'
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: not one line"
run run -m "$work/model" -b 64M --prefix 'translate English to German: ' --lines -p 'eight hundred and seventy-six

eight hundred and seventy-six'
expect_out "$answer

$answer"
refused 2 'de' run -m "$work/model" -b 64M --task fr x
echo '{"num_beams": 4, "length_penalty": 2.0, "max_length": 3, "temperature": 0.5, "eos_token_id": 1}' \
    >"$work/model/generation_config.json"
run run -m "$work/model" -b 64M --json "$text"
err_has '^narrows: by generation_config.json: num_beams 4, length_penalty 2, max_new_tokens 2$'
out_has '"ids": \[133, 241\].*"settings": {"max_new_tokens": 2, "num_beams": 4, "length_penalty": 2, "early_stopping": false}}$'
run run -m "$work/model" -b 64M -n 8 --num-beams 1 "$text"
expect_status 0
expect_out $answer
err_empty
refused 2 'add --num-beams 1' run -m "$work/model" -b 64M --do-sample x
run plan "$work/model" -b 64M --json --num-beams 3
out_has '"max_lanes":[[:space:]]*3'
out_has '"max_output_tokens":[[:space:]]*2,'

# Mistakes, before any work: no weights are there to read.
: >"$work/model/model.safetensors"
cp "$model/model.safetensors" "$work/model/model.safetensors"
for mistake in '--num-beams 0' '--num-beams x' '--num-beams 65' '--num-beams 2 --num-return-sequences 3' \
    '--num-return-sequences 2' '--num-beams 2 --do-sample' '--length-penalty 1' '--early-stopping true' \
    '--early-stopping maybe --num-beams 2' '--temperature 1.5' '--top-k 5' '--do-sample --temperature 0' \
    '--do-sample --temperature -1' '--do-sample --temperature nan' '--do-sample --temperature inf' \
    '--do-sample --top-p 0' '--do-sample --top-p 1.5' '--do-sample --min-p 2' '--do-sample=maybe' '--seed 1' \
    '--do-sample --seed -1' '--no-repeat-ngram-size 0' '--repetition-penalty 0' '--repetition-penalty nan' \
    '--min-new-tokens 300' '--forced-bos 768' '--forced-bos nosuchpiece' '--suppress-tokens x' '--suppress-tokens 768' \
    '--bad-words-ids 1,,x' '--lanes 0' '--lanes 3 --num-beams 4' '--lookup maybe' '--task none' \
    '--num-beams 2 --scores s.safetensors' '--num-beams 2 --json --top-logprobs 2'; do
    refused 2 '' run -m "$model" -b 64M $mistake x
done
refused 2 'empty' run -m "$model" -b 64M --stop '' x
refused 2 'prefix' run -m "$model" -b 64M --prefix x --input-ids '5 1'
refused 6 'stop' run -m "$data/goldens/t5-v1.1" -b 128M --stop x --input-ids '5 1'
refused 3 '64 beams: needs .*; it has room for [0-9][0-9]*$' run -m "$model" -b 32M -n 20000 --num-beams 64 "$text"
fit=$(sed 's/.* room for //' "$work/err")
ok -b 32M -n 20000 --num-beams "${fit:-64}" "$text"
expect_out $answer
refused 3 'room for' run -m "$model" -b 32M -n 20000 --num-beams $((fit + 1)) "$text"
finish

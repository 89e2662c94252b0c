# tokenize and detokenize, against ids that the reference's tokenizer gave (numbers-t5/vectors.jsonl).
. "$(dirname "$0")/cli_common.sh"

count=0
while IFS= read -r line && [ $count -lt 25 ]; do
    text=$(printf '%s' "$line" | sed -n 's/^{"text": "\([^"\\]*\)".*/\1/p')
    ids=$(printf '%s' "$line" | sed -n 's/.*"input_ids": \[\([0-9, ]*\)\].*/\1/p' | tr -d ,)
    [ -n "$text" ] && [ -n "$ids" ] || continue
    count=$((count + 1))
    run tokenize -m "$model" "$text"
    expect_status 0
    expect_out "$ids"
    run detokenize -m "$model" $ids
    expect_status 0
    expect_out "$text"
done <"$model/vectors.jsonl"
[ $count -ge 20 ] || fail "only $count vectors were tried"

run tokenize -m "$model" six hundred
expect_out "39 20 1"
run tokenize -m "$model" --json six hundred
expect_out "[39, 20, 1]"
run tokenize -m "$model" --pieces six
out_has '^39	▁six$'
out_has '^1	</s>$'
run tokenize -m "$model" --pieces --json six
out_has '^\[{"id": 39, "piece": "▁six"}, {"id": 1, "piece": "</s>"}\]$'

printf 'six\n\nhundred' >"$work/lines"
input=$work/lines run tokenize -m "$model" --lines
expect_out "39 1

20 1"
run tokenize -m "$model" -f "$work/lines" --lines
expect_out "39 1

20 1"
printf '39 1\n\n20,1\n' >"$work/ids"
input=$work/ids run detokenize -m "$model" --lines --json
expect_out '"six"
""
"hundred"'

run tokenize -m "$model" --tokenizer "$model/spiece.model" six
expect_out "39 1"
refused 6 'the model has only 768' tokenize -m "$model" --tokenizer "$data/t5-tokenizer" six
refused 2 'empty' tokenize -m "$model"
refused 2 'empty' detokenize -m "$model"
refused 2 "'x4' is not a token id" detokenize -m "$model" 3 x4
refused 2 "'-1' is not a token id" detokenize -m "$model" -- -1
refused 2 '99999 is out of range: vocab_size is 768' detokenize -m "$model" 3 99999
refused 2 '18446744073709551620 is out of range' detokenize -m "$model" 18446744073709551620
refused 6 'tokenizer' tokenize -m "$model" --tokenizer /no/such six
refused 6 'spiece' tokenize -m "$data/goldens/t5-v1.1" six
finish

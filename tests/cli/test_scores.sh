# --top-logprobs in the JSON, and --scores: a file that the strict reader takes, whose rows are what the tokens were
# chosen from.
. "$(dirname "$0")/cli_common.sh"
show=$1/tests/show_tensor
[ -x "$show" ] || { echo "skipped: $show is not built"; exit 77; }
s=$work/s.safetensors

# Each row's largest value is the token that was chosen, and its log-softmax the token's logprob.
run run -m "$model" -b 64M --json --logprobs --top-logprobs 3 --scores "$s" 1984
expect_status 0
sed 's/.*"ids": \[\([^]]*\)\].*"logprobs": \[\([^]]*\)\].*/\1\n\2/; s/, /,/g' "$work/out" >"$work/answer"
sed -n 1p "$work/answer" | tr , '\n' >"$work/ids"
sed -n 2p "$work/answer" | tr , '\n' | awk '{ printf "%.6f\n", $1 }' >"$work/logprobs"
"$show" "$s" scores.0 >"$work/rows" || fail 'the scores do not open'
awk '{ print $1 }' "$work/rows" | cmp -s - "$work/ids" || fail 'the scores choose other tokens'
awk '{ printf "%.6f\n", $2 }' "$work/rows" | sed 's/^-0.000000$/0.000000/' >"$work/from_scores"
sed 's/^-0.000000$/0.000000/' "$work/logprobs" | cmp -s - "$work/from_scores" ||
    fail 'the scores give other log probabilities'
[ "$(wc -l <"$work/ids")" -eq 7 ] || fail 'not seven tokens'

# The first candidate of each step is the greedy token, with the same logprob; they fall; three each.
sed 's/.*"top_logprobs": \[\[\(.*\)\]\], "finish.*/\1/; s/\], \[/\n/g' "$work/out" >"$work/steps"
[ "$(wc -l <"$work/steps")" -eq 7 ] || fail 'not seven steps of candidates'
sed 's/^{"id": \([0-9]*\),.*/\1/' "$work/steps" | cmp -s - "$work/ids" || fail 'another token is the most probable'
sed 's/^{"id": [0-9]*, "logprob": \([-0-9.e]*\)}.*/\1/' "$work/steps" |
    awk '{ printf "%.6f\n", $1 }' | cmp -s - "$work/logprobs" || fail 'candidates have other log probabilities'
sed 's/[^}]*"logprob": \([-0-9.e]*\)}/\1 /g' "$work/steps" |
    awk 'NF != 3 || $1 < $2 || $2 < $3 { bad = 1 } END { exit bad }' || fail 'not three falling candidates a step'

# Processed scores are the raw ones while nothing processes them.
cp "$s" "$work/raw.safetensors"
run run -m "$model" -b 64M --scores "$s" --scores-kind processed 1984
expect_status 0
cmp -s "$s" "$work/raw.safetensors" || fail 'processed scores differ'

# One tensor for each line, an empty one for an empty line.
printf '12\n\n77\n' >"$work/lines"
run run -m "$model" -b 64M --lines -f "$work/lines" --scores "$s"
expect_status 0
[ "$("$show" "$s" | tr '\n' ' ')" = 'scores.0 F32 8 768 scores.1 F32 0 768 scores.2 F32 5 768 ' ] ||
    fail "not these tensors: $("$show" "$s")"

# What cannot be done is said, and nothing is left behind.
refused 2 '--top-logprobs needs --json' run -m "$model" -b 64M --top-logprobs 2 12
refused 2 "'0' is not a number from 1 to 100" run -m "$model" -b 64M --json --top-logprobs 0 12
refused 2 "'cooked' is not raw or processed" run -m "$model" -b 64M --scores "$s" --scores-kind cooked 12
refused 2 'different lengths' run -m "$model" -b 64M --scores "$work/s.npy" 12
refused 2 'must end in .safetensors' run -m "$model" -b 64M --scores "$work/s.bin" 12
refused 5 "write '$work/none/s.safetensors'" run -m "$model" -b 64M --scores "$work/none/s.safetensors" 12
rm -f "$s"
refused 3 'too small' run -m "$model" -b 8M --scores "$s" 12
run run -m "$model" -b 64M --scores "$s" -n 200000 --lines -f "$work/none"
expect_status 2
[ -z "$(find "$work" -name 's.safetensors*')" ] || fail 'something is left of a run that failed'
if [ -w /dev/full ]; then
    "$narrows" run -m "$model" -b 64M --scores "$s" 1984 >/dev/full 2>"$work/err"
    [ $? -eq 5 ] || fail 'a full disk under stdout is not status 5'
    [ -z "$(find "$work" -name 's.safetensors*')" ] || fail 'scores of answers that were not written'
fi

# Where the file goes: a name as long as names may be; a link, which is followed and stays one; what is no file, which is
# not replaced.
holds_scores() { "$show" "$1" 2>&1 | grep -q '^scores.0 F32 7 768$' || fail "$ran: no scores in $1"; }
long=$(printf '%0243d' 0).safetensors # 255 bytes
run run -m "$model" -b 64M --scores "$work/$long" 1984
expect_status 0
holds_scores "$work/$long"
rm "$work/$long"
refused 5 'File name too long' run -m "$model" -b 64M --scores "$work/0$long" 1984
refused 2 'too long' run -m "$model" -b 64M --scores "$work/$(printf '%05000d' 0).safetensors" 1984

mkdir "$work/elsewhere"
echo old >"$work/elsewhere/there.safetensors"
ln -s elsewhere/there.safetensors "$s"
run run -m "$model" -b 64M --scores "$s" 1984
expect_status 0
[ -L "$s" ] || fail "$ran: the link was replaced"
holds_scores "$work/elsewhere/there.safetensors"
[ "$(ls "$work/elsewhere")" = there.safetensors ] || fail "$ran: leaves $(ls "$work/elsewhere")"
rm "$s"
ln -s nowhere/there.safetensors "$s"
refused 5 'a link that leads nowhere' run -m "$model" -b 64M --scores "$s" 1984
[ -L "$s" ] || fail "$ran: the link was replaced"
rm "$s"

mkfifo "$s"
refused 5 'is no regular file' run -m "$model" -b 64M --scores "$s" 1984
[ -p "$s" ] || fail "$ran: the pipe was replaced"
rm "$s"
mkdir "$s"
refused 5 'is no regular file' run -m "$model" -b 64M --scores "$s" 1984
rmdir "$s"

# A stream that is closed: what belongs there goes nowhere else, least of all into the scores.
"$narrows" run -m "$model" -b 64M --scores "$s" 1984 >&- 2>"$work/err"
status=$? ran='narrows run --scores >&-'
expect_status 5
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
err_has 'standard output'
[ ! -e "$s" ] || fail "$ran: scores of answers that were not written"
"$narrows" run -m "$model" -b 64M --scores "$s" 1984 2>&- >"$work/out" 0<&-
status=$? ran='narrows run --scores 2>&- 0<&-'
expect_status 0
expect_out 'mille quatre-vingt-quatre'
holds_scores "$s"
"$narrows" run -m "$model" -v -b 64M --scores "$s" 1984 >&- 2>&-
status=$? ran='narrows run --scores >&- 2>&-'
expect_status 5
[ -z "$(find "$work" -name '.narrows-*')" ] || fail 'a temporary file is left'
finish

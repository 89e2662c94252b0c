# Many prompts at once: the answers of each alone, in order, whatever the lanes; lines in and lines out; encoder passes.
. "$(dirname "$0")/cli_common.sh"

sed 's/^{"text": "\([^"]*\)".*/\1/' "$model/vectors.jsonl" | grep -v '\\' | head -n 90 >"$work/some"
[ "$(wc -l <"$work/some")" -eq 90 ] || fail 'there are no 90 vectors to try'
head -n 28 "$work/some" | awk '{ print } NR == 20 { print "" }' >"$work/texts"
echo six >>"$work/texts" # the longest answer
lines=30
head -n 6 "$work/some" >"$work/few"
# ok ARGS...: of run, with the model and the texts
ok() {
    run run -m "$model" -n 40 --lines -f "$work/texts" "$@"
    expect_status 0
}
# last FIELD: of the last line's JSON
last() { tail -n 1 "$work/out" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }

ok -b 64M --lanes 1
cp "$work/out" "$work/all"
[ "$(wc -l <"$work/out")" -eq "$lines" ] && [ -z "$(sed -n 21p "$work/out")" ] || fail 'not one line for each'
for i in 1 20 30; do
    run run -m "$model" -n 40 -b 64M "$(sed -n ${i}p "$work/texts")"
    sed -n ${i}p "$work/all" | cmp -s - "$work/out" || fail "line $i has another answer alone"
done
for options in '' '--lanes 16' '--lanes 3 -t 1' '--lanes 32 --lookup off' '--io threads --lanes 5 --kernels portable'; do
    ok -b 64M $options
    cmp -s "$work/all" "$work/out" || fail "$ran: other answers"
done
ok -b 24M
cmp -s "$work/all" "$work/out" || fail "$ran: other answers"

# One encoder pass for 64 and more where there is memory, and fewer decoder passes than for each alone.
run run -m "$model" -b 128M --json --lanes 16 -n 8 --lines -f "$work/some"
[ "$(last encode_passes)" -le 2 ] || fail "$ran: $(last encode_passes) encoder passes for 90 lines"
passes=$(last passes) tokens=$(last tokens)
[ "$passes" -lt $((tokens / 8)) ] || fail "$ran: $passes passes for $tokens tokens"
[ "$(grep -c '^{"prompt_tokens": [0-9]*, "sequences": \[{"ids": \[.*}$' "$work/out")" -eq 90 ] ||
    fail "$ran: not an object for each line"
few() { run run -m "$model" -b 64M --json --logprobs --top-logprobs 2 -n 6 --lines -f "$work/few" "$@"; }
few --lanes 5
sed 's/, "stats".*//' "$work/out" >"$work/json"
few --lanes 1 --lookup off
sed 's/, "stats".*//' "$work/out" | cmp -s - "$work/json" || fail "$ran: other numbers"

# Guessing saves passes where an answer repeats itself, and never changes it.
run run -m "$model" -b 64M --json -n 100 --lookup off six
[ "$(last passes)" -eq 100 ] && [ "$(last drafted)" -eq 0 ] || fail "$ran: not a pass for each token"
sed 's/, "stats".*//' "$work/out" >"$work/json"
run run -m "$model" -b 64M --json -n 100 six
[ "$(last passes)" -lt 40 ] && [ "$(last accepted)" -gt 60 ] || fail "$ran: $(last passes) passes"
sed 's/, "stats".*//' "$work/out" | cmp -s - "$work/json" || fail "$ran: another answer"

# A model that guesses for another one: here it knows the answers.
run run -m "$model" -b 64M --lines -f "$work/few" --json
sed 's/, "stats".*//' "$work/out" >"$work/json"
for options in '--lanes 1' '--lanes 3' ''; do
    run run -m "$model" -b 64M --lines -f "$work/few" --json --draft "$model" $options
    expect_status 0
    sed 's/, "stats".*//' "$work/out" | cmp -s - "$work/json" || fail "$ran: other answers"
    [ "$(last accepted)" -gt $(($(last tokens) / 2)) ] || fail "$ran: $(last accepted) of $(last tokens) guessed"
    out_has "\"settings\": {.*\"draft\": \"$model\"}"
done
# Half of the budget is the draft's: its K and V are in memory, or it is said that they do not fit.
for budget in 24000K 26000K 27400K 28100K 29500K 30900K; do
    run run -m "$model" -b $budget -n 200 -t 1 -q --draft "$model" 'translate digits to German: 1984'
    [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || fail "$ran: status $status: $(cat "$work/err")"
    [ "$status" -eq 0 ] && cp "$work/out" "$work/drafted"
done
[ -s "$work/drafted" ] || fail 'no budget is enough for a draft'
refused 2 'another vocabulary' run -m "$model" -b 64M --draft "$data/goldens/flan-f16" x
refused 2 'no/such' run -m "$model" -b 64M --draft /no/such x
refused 2 'beams' run -m "$model" -b 64M --draft "$model" --num-beams 2 x
refused 2 'lookup off' run -m "$model" -b 64M --draft "$model" --lookup off x
refused 3 'draft' run -m "$model" -b 20M --draft "$model" x

# A line that cannot be answered is an empty one, with its number and cause, and the status tells.
printf 'translate digits to German: 12\nx\377y\n\ntranslate digits to German: 77\n' >"$work/bad"
run run -m "$model" -b 64M --lines -f "$work/bad"
expect_status 2
expect_out "zwölf


siebenundsiebzig"
err_has 'bad, line 2 is not UTF-8 at byte 1 of the line$'
run run -m "$model" -b 64M --lines -f "$work/bad" --json
expect_status 2
[ "$(wc -l <"$work/out")" -eq 4 ] || fail "$ran: not four objects"
out_is_json lines
out_has '^{"prompt_tokens": 0, "error": "not UTF-8", "sequences": \[\], "stats"'
{
    echo 'translate digits to German: 12'
    yes 'six' | head -n 30000 | tr '\n' ' '
    echo
    echo 'translate digits to German: 77'
} >"$work/long"
run run -m "$model" -b 48M --lines -f "$work/long"
expect_status 3
expect_out "zwölf

siebenundsiebzig"
err_has 'long, line 2: a prompt of [0-9]* tokens is too long for this budget, which has room for [0-9]*$'
{
    echo 'translate digits to German: 12'
    head -c 3000000 /dev/zero | tr '\0' x
    printf '\ntranslate digits to German: 77'
} >"$work/long"
run run -m "$model" -b 64M --lines -f "$work/long"
expect_status 3
expect_out "zwölf

siebenundsiebzig"
err_has 'line 2: a prompt of more than 1M of text is too long'

# Killed, and gone on with where it stopped: whole lines are there, and nothing else.
"$narrows" run -m "$model" -b 64M -n 40 --lanes 4 --lines -f "$work/texts" >"$work/out" 2>"$work/err" &
pid=$!
tries=0
while [ "$(wc -l <"$work/out")" -lt 10 ] && [ $tries -lt 400 ]; do
    sleep 0.02
    tries=$((tries + 1))
done
kill -9 $pid
wait $pid 2>/dev/null
cp "$work/out" "$work/resumed"
tail -n +$(($(wc -l <"$work/resumed") + 1)) "$work/texts" >"$work/rest"
run run -m "$model" -b 64M -n 40 --lines -f "$work/rest"
cat "$work/out" >>"$work/resumed"
cmp -s "$work/all" "$work/resumed" || fail 'a run that was killed cannot be gone on with'

# Lanes that do not fit: how many would.
refused 3 '30 lanes: needs .* it has room for [0-9][0-9]*$' run -m "$model" -b 20M -n 100 --lines -f "$work/texts" --lanes 64
fit=$(sed 's/.* room for //' "$work/err")
run run -m "$model" -b 20M -n 100 --lines -f "$work/texts" --lanes "${fit:-64}"
expect_status 0
head -n 29 "$work/all" >"$work/head"
head -n 29 "$work/out" | cmp -s - "$work/head" || fail "$ran: other answers"
refused 3 'room for' run -m "$model" -b 20M -n 100 --lines -f "$work/texts" --lanes $((fit + 1))
finish

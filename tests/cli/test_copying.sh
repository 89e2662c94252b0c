# Guesses from the prompt where an answer copies it: a text of 100 words with its spelling corrected, by a model made to
# copy and by one grown from it. At least three times fewer passes, and the same answer.
. "$(dirname "$0")/cli_common.sh"
make_copier=$1/tests/make_copier grow=$1/benchmarks/narrows-grow
for program in "$make_copier" "$grow"; do
    [ -x "$program" ] || { echo "skipped: $program is not built"; exit 77; }
done

# No two pieces follow each other twice in it: what the model goes by.
prompt='correct: Last summer my neighbour asked whether the old theater near the harbour should become a sports'\
' center. She had organised every program herself, and her favourite colour covered all four walls: gray curtains, red'\
' chairs, blue doors. People began traveling from other towns because they could recognize good behaviour when artists'\
' behaved well on stage. Without paid labor nothing would last, so each visitor bought one ticket, two cakes and some'\
' strong tea with pleasant flavour. In honor of this success our council printed their catalog, gave them another'\
' license for music, then promised its defense against any critics. I realise such dialog is rare.'
british='neighbour harbour organised favourite colour behaviour flavour realise'
american='neighbor harbor organized favorite color behavior flavor realize'

# ids WORD...: of words that have one piece each. A model that only copies has the tokenizer for that.
ids() { "$narrows" tokenize -m "$work/plain" "$*" | tr ' ' '\n'; }
"$make_copier" "$work/plain" 10 && cp "$data/t5-tokenizer/spiece.model" "$work/plain" || exit 1
ids $british | sed '$d' >"$work/wrong"
ids $american | sed '$d' >"$work/right"
[ "$(wc -l <"$work/wrong")" -eq 8 ] && [ "$(wc -l <"$work/right")" -eq 8 ] || fail 'a word has several pieces'
answer=${prompt#correct: }
for wrong in $british; do
    right=$(echo $american | cut -d ' ' -f $(echo $british | tr ' ' '\n' | grep -nx $wrong | cut -d : -f 1))
    answer=$(printf '%s\n' "$answer" | sed "s/ $wrong/ $right/")
done
"$make_copier" "$work/copier" 10 $(paste -d = "$work/wrong" "$work/right") || exit 1
cp "$data/t5-tokenizer/spiece.model" "$work/copier" || exit 1
"$grow" "$work/copier" "$work/grown" --blocks 3 --d-ff 256 >"$work/out" 2>"$work/err" || fail 'narrows-grow'

# value FIELD: of the JSON
value() { sed "s/.*\"$1\":\([0-9]*\).*/\1/" "$work/out"; }
for options in 'copier -b 128M' 'grown -b 128M --pins off'; do
    for lookup in off on; do
        run run -m "$work/"$options -n 200 -q --json --lookup $lookup "$prompt"
        expect_status 0
        grep -qF "\"text\": \"$answer\"" "$work/out" || fail "$ran: another answer"
        sed 's/, "stats".*//' "$work/out" >"$work/json-$lookup"
        value passes >"$work/passes-$lookup"
    done
    cmp -s "$work/json-off" "$work/json-on" || fail "$ran: another answer"
    [ "$(cat "$work/passes-off")" -eq "$(value tokens)" ] || fail "$ran: not a pass for each token without guesses"
    [ $(($(cat "$work/passes-on") * 3)) -le "$(cat "$work/passes-off")" ] ||
        fail "$ran: $(cat "$work/passes-on") passes, $(cat "$work/passes-off") without guesses"
    echo "  $options: $(cat "$work/passes-off") passes, $(cat "$work/passes-on") with guesses"
done
finish

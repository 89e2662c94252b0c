# A model of 2.5 GB that knows its answers, under 192M: the same answers as the small model it was grown from, in a
# cgroup of exactly the budget, and no weights left behind in the page cache.
. "$(dirname "$0")/common.sh"
need_space 3500

small=$data/numbers-t5
model=$work/numbers
budget=$((192 * mib))
make "$grow" "$small" "$model" --target-size 2.5GB
weights=$(du -cb "$model"/*.safetensors | awk 'END { print $1 }')
[ "$weights" -gt 2400000000 ] || fail "the grown model has only $weights bytes"
uncached "$model"/*.safetensors

cat >"$work/prompts" <<'PROMPTS'
translate English to German: eight hundred and seventy-six
translate digits to French: 97
translate digits to German: 1984
translate German to digits: einhundertsechsundfünfzig
translate English to German: six hundred and fifty-six thousand, five hundred and forty-eight
translate French to digits: quarante-deux
translate digits to Spanish: 15
translate Spanish to digits: ciento uno
translate German to English: zwölf
translate English to digits: ninety-nine
translate English to French: three
translate French to German: deux cent mille trois cent vingt et un
PROMPTS
head -n 3 "$work/prompts" >"$work/few"

run run -m "$small" -b 64M --lines -f "$work/prompts" -n 64 -q
expect_status 0
[ "$(wc -l <"$work/out")" -eq 12 ] && ! grep -q '^$' "$work/out" || fail "$ran: not twelve answers"
[ "$(sed -n 3p "$work/out")" = eintausendneunhundertvierundachtzig ] ||
    fail "$ran: the small model answers something else"
cp "$work/out" "$work/answers"

run_in $budget run -m "$model" -b 192M --lines -f "$work/prompts" -n 64 -q --io uring
expect_status 0
within $budget
cmp -s "$work/answers" "$work/out" || fail "$ran: other answers than the small model's"

run_in $budget run -m "$model" -b 192M --lines -f "$work/few" -n 64 -q --io threads
expect_status 0
within $budget
head -n 3 "$work/answers" | cmp -s - "$work/out" || fail "$ran: other answers than the small model's"
uncached "$model"/*.safetensors

plan "$work/plan" -m "$model" -b 192M --max-input-tokens 64 -n 64 || fail "no plan"
kv=$(($(planned part kv_self "$work/plan") + $(planned part kv_cross "$work/plan")))
[ $kv -gt 0 ] && [ $kv -le 32000000 ] || fail "K and V of 64 + 64 tokens are $kv bytes"
finish

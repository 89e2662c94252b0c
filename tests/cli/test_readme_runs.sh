# The README's "Generating": its commands as they stand there, on a model of that name.
. "$(dirname "$0")/cli_common.sh"
readme=$(cd "$2" && pwd)/README.md
mkdir "$work/bin"
ln -s "$(cd "$1" && pwd)/narrows" "$work/bin/narrows"
ln -s "$(cd "$model" && pwd)" "$work/flan-t5-xl"
awk '/^## Generating/ { inside = 1; next } /^## / { inside = 0 } inside && /^    narrows / { print substr($0, 5) }' \
    "$readme" >"$work/commands"
[ "$(wc -l <"$work/commands")" -eq 6 ] || fail "not six commands: $(cat "$work/commands")"
cd "$work" || exit 1
printf '12\n\n77\n' >numbers.txt
printf 'tausend\neintausend\n' >labels.txt
n=0
while IFS= read -r command; do
    n=$((n + 1))
    PATH=$work/bin:$PATH sh -c "$(echo "$command" | sed 's/-b 1G/-b 128M/')" >"out.$n" 2>err </dev/null ||
        fail "$command: status $?"
done <commands
[ "$(head -n 1 out.1)" = eintausendneunhundertvierundachtzig ] && [ "$(wc -l <out.1)" -eq 2 ] || fail 'not two beams'
[ "$(cat out.2)" = eintausendneunhundertvierundachtzig ] || fail "a sample: $(cat out.2)"
[ "$(cat out.3)" = eintausendneunhundertvierundachtzig ] || fail "an answer: $(cat out.3)"
[ "$(paste -s -d , answers.txt)" = zwölf,,siebenundsiebzig ] || fail "lines: $(cat answers.txt)"
grep -qx -- '-[0-9.e-]*' out.5 || fail "a score: $(cat out.5)"
[ "$(head -n 1 out.6 | cut -f 1)" = eintausend ] && [ "$(wc -l <out.6)" -eq 2 ] || fail "a ranking: $(cat out.6)"
[ "$(head -n 1 out.6 | cut -f 2)" = "$(cat out.5)" ] || fail 'two numbers for one answer'
finish

# The README's "Coming from accelerate": its commands as they stand there, on a model of that name in a local cache that
# exists only as sharded pytorch_model.bin.
. "$(dirname "$0")/cli_common.sh"
make_bin=$1/tests/make_bin
show=$1/tests/show_tensor
readme=$(cd "$2" && pwd)/README.md
model=$(cd "$2" && pwd)/tests/data/numbers-t5
narrows=$(cd "$1" && pwd)/narrows
make_bin=$(cd "$1" && pwd)/tests/make_bin
show=$(cd "$1" && pwd)/tests/show_tensor
for program in "$make_bin" "$show"; do
    [ -x "$program" ] || { echo "skipped: $program is not built"; exit 77; }
done
snapshot=$work/hub/models--declare-lab--flan-alpaca-xl/snapshots/1
mkdir -p "$snapshot" "$work/bin" "$work/hub/models--declare-lab--flan-alpaca-xl/refs"
printf 1 >"$work/hub/models--declare-lab--flan-alpaca-xl/refs/main"
rmdir "$snapshot"
"$make_bin" "$model" "$snapshot" --shards 2 >"$work/out" 2>"$work/err" || fail 'make_bin'
[ -f "$snapshot/pytorch_model-00001-of-00002.bin" ] && [ ! -e "$snapshot/model.safetensors" ] || fail 'not a sharded .bin'
ln -s "$narrows" "$work/bin/narrows"

awk '/^## Coming from accelerate/ { inside = 1; next } /^## / { inside = 0 } inside && /^    narrows / { print substr($0, 5) }' \
    "$readme" >"$work/commands"
[ "$(wc -l <"$work/commands")" -eq 5 ] || fail "not five commands: $(cat "$work/commands")"
cd "$work" || exit 1
n=0
while IFS= read -r command; do
    n=$((n + 1))
    HF_HUB_CACHE=$work/hub PATH=$work/bin:$PATH sh -c "$command" >"$work/out.$n" 2>"$work/err" </dev/null ||
        fail "$command: status $?"
done <"$work/commands"
grep -q 'pytorch_model-00001-of-00002.bin' "$work/out.1" || fail 'info does not name the .bin'
[ -f "$work/shards/config.json" ] && [ -f "$work/shards/spiece.model" ] || fail 'unpack left files behind'
grep -q '"decoder.block.0":.*"pinned"' "$work/out.3" || fail 'plan has no map'
[ "$(cat "$work/out.4")" = eintausendneunhundertvierundachtzig ] || fail "run answered $(cat "$work/out.4")"
grep -q '"text": "eintausendneunhundertvierundachtzig".*"logprobs": \[' "$work/out.5" || fail 'no logprobs'
tokens=$(sed 's/.*"tokens":\([0-9]*\).*/\1/' "$work/out.5")
[ "$("$show" "$work/scores.safetensors")" = "scores.0 F32 $tokens 768" ] || fail 'not the scores of each token'

# The .bin itself runs as its unpacked form does.
HF_HUB_CACHE=$work/hub run run -m declare-lab/flan-alpaca-xl -b 64M 'translate digits to German: 1984'
expect_status 0
expect_out eintausendneunhundertvierundachtzig
finish

# pack, verify, info and run of packs: the lossless ones answer with the same bits; every kind of damage is found, named
# in one line by whoever meets it, and never becomes an answer; what is refused leaves nothing behind.
. "$(dirname "$0")/cli_common.sh"
goldens=$data/goldens

# answer MODEL: ids, text and log probabilities, without what it cost
answer() {
    "$narrows" run -q -m "$1" -n 32 -b "${2:-64M}" --json --logprobs 'translate digits to German: 1984' 2>"$work/err" |
        tr -d ' \t\n' | sed 's/"stats":.*//'
}

want=$(answer "$model")
echo "$want" | grep -q '"logprobs":\[' || fail "no log probabilities in '$want'"

# ---- what packs are ----

for how in packed slim off; do
    run pack "$model" "$work/$how" --compress $how
    expect_status 0
    err_has "98 tensors, 0.00[0-9] GB of 0.005 GB in 1 shard"
    err_has '^narrows:   keep  about'
    [ "$(answer "$work/$how")" = "$want" ] || fail "--compress $how: another answer"
    run verify "$work/$how"
    expect_status 0
    [ ! -s "$work/out" ] || fail "verify of a whole pack prints something"
    err_has "is whole: 98 tensors, 0.00[0-9] GB in 1 shard"
    run info "$work/$how"
    expect_status 0
    out_has "^pack *of 'numbers-t5' by narrows .*, --compress $how, lossless$"
    out_has 'embedding, encoder.0 to encoder.3, encoder, cross.0 to cross.3, decoder, decoder.0 to decoder.3, head$'
done
[ "$(answer "$work/packed" 15.4M)" = "$want" ] || fail 'a smaller budget: another answer'
[ "$("$narrows" run -q -m "$work/packed" -b 64M --verify off 'six hundred twelve')" = \
    "$("$narrows" run -q -m "$model" -b 64M 'six hundred twelve')" ] || fail '--verify off: another answer'
[ "$("$narrows" embed -q -m "$work/slim" -b 64M one)" = "$("$narrows" embed -q -m "$model" -b 64M one)" ] ||
    fail 'embed: another vector'

# ratio PACK TYPE: thousandths of the checkpoint's bytes
ratio() { "$narrows" info --json "$1" | tr -d ' \t\n' | sed "s/.*\"$2\":{\"bytes\":[0-9]*,\"source_bytes\":[0-9]*,\"ratio\":\([0-9.]*\).*/\1/"; }
below() { awk "BEGIN { exit !($1 > $2 && $1 <= $3) }" || fail "$4: a ratio of $1"; }
below "$(ratio "$work/packed" bf16)" 0.6 0.68 packed
below "$(ratio "$work/slim" bf16)" 0.6 0.76 slim
below "$(ratio "$work/off" bf16)" 0.99 1 off

for type in q8 q4; do
    run pack "$model" "$work/$type" --dtype $type
    expect_status 0
    err_has "^narrows: lossy: weights are $type"
    run verify "$work/$type"
    expect_status 0
    run run -m "$work/$type" -b 64M -n 8 'six hundred twelve'
    expect_status 0
    err_has "^narrows: lossy: weights are $type"
    [ "$(grep -c lossy "$work/err")" -eq 1 ] || fail "$ran: says twice that it is lossy"
    run info "$work/$type"
    out_has "^pack .*, lossy$"
    out_has " of $type, 0\.[0-9]* of the .* (lossy)$"
    ! grep -q ' of f32' "$work/out" || fail "$ran: q8 and q4 count as f32"
    "$narrows" info --json "$work/$type" | tr -d ' \t\n' >"$work/json"
    grep -q '"type_bytes":{"f32":0,"bf16":6144,"f16":0,"q8":[1-9]' "$work/json" || fail "$type: type_bytes"
    grep -q '"lossy":true' "$work/json" || fail "$type: info --json does not say lossy"
done
below "$(ratio "$work/q8" q8)" 0.53 0.532 q8
below "$(ratio "$work/q4" q4)" 0.28 0.282 q4
[ "$("$narrows" run -q -m "$work/q8" -b 64M 'six hundred twelve')" = \
    "$("$narrows" run -q -m "$model" -b 64M 'six hundred twelve')" ] || fail 'q8: another answer'
run info "$model" --json
tr -d ' \t\n' <"$work/out" | grep -q '"pack":null' || fail 'info: a checkpoint is a pack'

# Rows of 24 have no whole blocks: their tensors keep their type, and it is said.
if [ -d "$goldens/odd-sizes" ]; then
    run pack "$goldens/odd-sizes" "$work/odd" --dtype q8
    expect_status 0
    err_has 'tensors keep their type'
    run info "$work/odd" --tensors
    out_has 'no whole blocks of 32'
    out_has '(keeps its type)'
fi

# ---- what a run says of packs ----

run run -m "$model" -b 64M --pins off -n 4 one
err_has "^narrows: each token reads 0.00[0-9]* GB; 'narrows pack $model $model.pack' would make that about 0.00[0-9]* GB$"
run run -m "$goldens/t5-v1.1/" -b 64M --pins off -n 4 --input-ids '5 1'
err_has "'narrows pack $goldens/t5-v1.1/ $goldens/t5-v1.1.pack --dtype bf16' would make that less than half$"
[ "$(grep -c 'narrows pack' "$work/err")" -eq 1 ] || fail "$ran: says it twice"
for args in "$model" "$work/packed --pins off" "$model --pins off -q"; do
    run run -b 64M -n 4 -m $args one
    err_empty
done

# ---- shards ----

run pack -q "$model" "$work/parts" --max-shard-size 500K
expect_status 0
err_empty
shards=$(ls "$work/parts" | grep -c '^pack-[0-9]\{5\}-of-[0-9]\{5\}\.nwp$')
[ "$shards" -ge 5 ] || fail "$shards shards"
of=$(printf %05d "$shards")
[ -f "$work/parts/pack-00001-of-$of.nwp" ] || fail 'the first shard is not called so'
for file in "$work"/parts/*.nwp; do
    [ "$(wc -c <"$file")" -le 512000 ] || fail "$file has more than 500K"
done
[ "$(answer "$work/parts")" = "$want" ] || fail 'in shards: another answer'
for file in config.json spiece.model tokenizer_config.json; do
    cmp -s "$model/$file" "$work/parts/$file" || fail "$file is not carried along"
done

# ---- for programs ----

run pack -q "$model" "$work/told" --json
expect_status 0
err_empty
out_is_json
out_has '"tensor_count":.98,$'
run pack "$model" "$work/json_lossy" --json --dtype q8
expect_status 0
out_is_json
run verify "$work/told" --json
expect_status 0
out_is_json
out_has '"whole": true'
for args in '' --tensors; do
    run info "$work/told" --json $args
    expect_status 0
    out_is_json
done

# Weights that are no numbers are packed as they are, and come back so; a run says what they are.
last=$("$narrows" info "$model" --tensors | sed -n 's/^decoder.final_layer_norm.weight .* at //p')
cp -r "$model" "$work/nan"
printf '\377\377' | dd of="$work/nan/model.safetensors" bs=1 seek="$last" conv=notrunc 2>/dev/null
refused 4 'not a number (NaN): its weights are damaged' run -q -m "$work/nan" -b 64M one
run pack -q "$work/nan" "$work/nan.pack"
expect_status 0
run verify -q "$work/nan.pack"
expect_status 0
refused 4 'not a number (NaN): its weights are damaged' run -q -m "$work/nan.pack" -b 64M one
run unpack -q "$work/nan.pack" "$work/nan.again"
expect_status 0
run run -q -m "$work/nan.again" -b 64M one
expect_status 4
for type in q8 q4; do
    run pack -q "$work/nan" "$work/nan.$type" --dtype $type
    expect_status 0
    refused 4 'not a number (NaN): its weights are damaged' run -q -m "$work/nan.$type" -b 64M one
done

# ---- refusals ----

# A mistake has its one line, and no JSON.
refused 5 'exists' pack -q --json "$model" "$work/packed"
refused 3 'too small' pack -q --json "$model" "$work/x" -b 4M

refused 2 'SRC and DST are missing' pack
refused 2 'DST is missing' pack "$model"
refused 2 'more than a source' pack "$model" "$work/x" "$work/y"
refused 2 "'q5' is not keep" pack "$model" "$work/x" --dtype q5
refused 2 "'zip' is not packed" pack "$model" "$work/x" --compress zip
refused 2 "'0' is not a size" pack "$model" "$work/x" --max-shard-size 0
refused 2 'not a number from 1 to 256' pack "$model" "$work/x" -t 0
refused 2 "'maybe' is not on or off" run -m "$work/packed" --verify maybe one
refused 2 'is a pack' pack -q "$work/packed" "$work/x"
refused 5 'exists' pack -q "$model" "$work/packed"
refused 5 'is no directory' pack -q "$model" "$work/packed/config.json"
refused 5 "'$work/none/x'" pack -q "$model" "$work/none/x"
refused 3 'too small: packing .* needs [0-9.]*M' pack -q "$model" "$work/x" -b 4M
needed=$(sed 's/.*needs \([0-9.]*M\).*/\1/' "$work/err")
run pack -q "$model" "$work/x" -b "$needed"
expect_status 0
rm -rf "$work/x"
refused 2 'No such file' pack -q "$work/none" "$work/x"
refused 2 'PACK is missing' verify
refused 2 'more than one pack' verify "$work/packed" "$work/slim"
refused 2 'No such file' verify "$work/none"
refused 4 'is no pack' verify "$model"
refused 3 'too small: checking .* needs [0-9.]*M' verify "$work/packed" -b 4M
run verify "$work/packed" -b "$(sed 's/.*needs \([0-9.]*M\).*/\1/' "$work/err")"
expect_status 0
[ ! -e "$work/x" ] && [ -z "$(find "$work" -name '*.tmp*')" ] || fail 'something is left of a refusal'

refused_without_room pack -q "$model"

# Killed at any moment: there is no DST, or a whole one.
for wait in 0.005 0.02 0.05 0.1 0.2; do
    rm -rf "$work/k"
    kill_after $wait pack -q "$model" "$work/k"
    if [ -e "$work/k" ]; then
        run verify -q "$work/k"
        expect_status 0
    fi
    for left in "$work"/k.tmp*; do # under its other name it may be complete already; what is not does not open
        [ -e "$left" ] || continue
        run verify -q "$left"
        [ "$status" -eq 0 ] || refused 4 . run -q -m "$left" -b 64M one
        rm -rf "$left"
    done
done

# ---- damage ----

# flip_tensor NAME: in its first strip, a byte of $work/bad
flip_tensor() {
    "$narrows" info "$work/bad" --tensors | sed -n "s/^$1  .*  \(.*\) at \([0-9]*\)\( .*\)*$/\1 \2/p" >"$work/place"
    read -r file offset <"$work/place" || fail "no tensor $1"
    flip "$file" $((offset + 99))
}
size() { wc -c <"$1" | tr -d ' '; }

# damaged PATTERN [FILE]: the pack in $work/bad neither runs nor is whole; run and verify say why in one line each
damaged() {
    for budget in 15.4M 64M; do
        run run -q -m "$work/bad" -n 32 -b $budget --json --logprobs 'translate digits to German: 1984'
        [ "$status" -eq 5 ] || [ "$status" -eq 4 ] || fail "$ran: status $status for damage: $1"
        [ ! -s "$work/out" ] || fail "$ran: an answer from a damaged pack: $1"
        [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
        err_has "$1"
    done
    run verify "$work/bad"
    [ "$status" -eq 5 ] || [ "$status" -eq 4 ] || fail "$ran: status $status for damage: $1"
    [ "$(grep -c '^narrows: ' "$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
    cat "$work/out" "$work/err" >"$work/both"
    grep -qe "$1" "$work/both" || fail "$ran: does not say '$1'"
}
fresh() {
    rm -rf "$work/bad"
    cp -r "$work/${1:-parts}" "$work/bad"
}

# A strip: where the run meets it, verify finds it, by shard, block and tensor.
query=decoder.block.1.layer.0.SelfAttention.q.weight
for form in packed slim off q8 q4 parts; do
    fresh $form
    flip_tensor $query
    damaged "tensor '*$query.*tile 0, strip 0.*checksum"
    expect_status 5
    err_has 'is damaged: 1 fault$'
    [ "$(wc -l <"$work/out")" -eq 1 ] || fail "$ran: not one line"
    out_has "^pack-[0-9]*-of-[0-9]*.nwp: block decoder.1, tensor $query, rows 0 to 127 (tile 0, strip 0): its checksum is wrong"
done
# Without checking nobody knows: that is what the option does.
fresh off
flip_tensor $query
run run -q -m "$work/bad" -b 64M -n 4 --verify off one
expect_status 0

# What only some runs meet: the embedding's rows; a vector.
fresh
flip_tensor shared.weight
damaged "tensor '*shared.weight"
fresh
flip_tensor encoder.block.2.layer.0.layer_norm.weight
damaged "tensor '*encoder.block.2.layer.0.layer_norm.weight"
flip_tensor $query
flip_tensor lm_head.weight
run verify "$work/bad" --json
expect_status 5
tr -d ' \n' <"$work/out" | grep -q '"fault_count":3,"whole":false,.*"error":null}$' || fail 'verify --json'
for block in encoder.2 decoder.1 head; do
    out_has "\"file\": \".*nwp\", \"tensor\": \".*\", \"block\": \"$block\""
done

# Between strips, where no run looks, and in a file beside.
fresh off
flip "$work/bad/tokenizer_config.json" 5
run verify "$work/bad"
expect_status 5
out_has '^tokenizer_config.json: its checksum is wrong$'

last=pack-$of-of-$of.nwp
fresh
flip "$work/bad/$last" 100
damaged "$last"
fresh
flip "$work/bad/tiles.idx" $(($(size "$work/bad/tiles.idx") / 2))
damaged 'tiles.idx'
fresh
flip "$work/bad/manifest.json" $(($(size "$work/bad/manifest.json") / 2))
damaged 'manifest.json'
fresh
for cut in 1 4096; do
    head -c $(($(size "$work/parts/$last") - cut)) "$work/parts/$last" >"$work/bad/$last"
    damaged "$last"
done
: >"$work/bad/$last"
damaged "$last"
fresh
rm "$work/bad/$last"
damaged "$last"
run verify "$work/bad" --json
tr -d ' \n' <"$work/out" | grep -q '"whole":false,.*"error":"' || fail 'verify --json does not say what keeps it'
fresh
mv "$work/bad/pack-00002-of-$of.nwp" "$work/bad/aside"
mv "$work/bad/pack-00003-of-$of.nwp" "$work/bad/pack-00002-of-$of.nwp"
mv "$work/bad/aside" "$work/bad/pack-00003-of-$of.nwp"
damaged 'pack-0000[23]-of'
fresh
cp "$work/bad/pack-00002-of-$of.nwp" "$work/bad/pack-00003-of-$of.nwp"
damaged 'pack-00003-of'

# Two packs of the same model, mixed: their shards, their indexes.
fresh packed
cp "$work/off/pack-00001-of-00001.nwp" "$work/bad/"
damaged 'pack-00001-of-00001.nwp'
fresh packed
cp "$work/off/tiles.idx" "$work/bad/"
damaged 'tiles.idx'
fresh packed
cp "$work/off/manifest.json" "$work/bad/"
damaged 'tiles.idx\|pack-00001-of-00001.nwp'
finish

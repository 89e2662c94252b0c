# unpack: shards, their index and the small files; what runs from it answers as the source does; mistakes, a limit on
# disk space, ^C and kill -9 leave no directory that opens.
. "$(dirname "$0")/cli_common.sh"
flan=$data/goldens/flan-bf16-shards

run unpack "$model" "$work/whole"
expect_status 0
err_has "[0-9]* tensors, 0.00[0-9] GB in 1 file, [0-9]* MB/s"
[ "$(ls "$work/whole" | tr '\n' ' ')" = 'config.json model.safetensors spiece.model tokenizer_config.json ' ] ||
    fail "not these files: $(ls "$work/whole")"
cmp -s "$model/spiece.model" "$work/whole/spiece.model" || fail 'the tokenizer differs'
cmp -s "$model/config.json" "$work/whole/config.json" || fail 'the configuration differs'
run run -m "$work/whole" -b 64M 'six hundred twelve'
answer=$(cat "$work/out")
run run -m "$model" -b 64M 'six hundred twelve'
expect_out "$answer"

run unpack -q "$flan" "$work/parts" --max-shard-size 150K
expect_status 0
err_empty
grep -q '"total_size"' "$work/parts/model.safetensors.index.json" || fail 'no index'
shards=$(ls "$work/parts" | grep -c '^model-[0-9]\{5\}-of-[0-9]\{5\}\.safetensors$')
[ "$shards" -ge 4 ] || fail "$shards shards"
[ -f "$work/parts/model-00001-of-0000$shards.safetensors" ] || fail 'the first shard is not called so'
run run -m "$work/parts" -b 64M -n 8 --input-ids '5 6 7 1'
ids=$(cat "$work/out")
run run -m "$flan" -b 64M -n 8 --input-ids '5 6 7 1'
expect_out "$ids"

run unpack "$data/goldens/t5-v1.1" "$work/bf16" --dtype bf16
expect_status 0
err_has 'lossy: [0-9]* of [0-9]* converted weights were rounded'
run unpack "$work/bf16" "$work/f32" --dtype f32
err_has 'all [0-9]* converted weights have kept their values'

# Tied tensors of a .bin are one tensor in the file, and its metadata says so.
if [ -x "$1/tests/make_bin" ]; then
    "$1/tests/make_bin" "$data/goldens/three-embeddings" "$work/tied" --tie encoder.embed_tokens.weight=shared.weight ||
        fail 'make_bin'
    run unpack "$work/tied" "$work/untied"
    expect_status 0
    err_has '^narrows: 1 name of tied tensors is in the metadata$'
    grep -aq '"format":"pt","encoder.embed_tokens.weight":"shared.weight"}' "$work/untied/model.safetensors" ||
        fail 'the metadata lacks the tied name'
    "$1/tests/show_tensor" "$work/untied/model.safetensors" >"$work/names"
    grep -q '^shared.weight F32' "$work/names" || fail 'the tied tensor is missing'
    ! grep -q '^encoder.embed_tokens' "$work/names" || fail 'the tied tensor is there twice'
    run run -m "$work/untied" -b 64M -n 8 --input-ids '5 6 7 1'
    ids=$(cat "$work/out")
    run run -m "$work/tied" -b 64M -n 8 --input-ids '5 6 7 1'
    expect_out "$ids"

    # By way of a pack, which holds them once too, it is the same file. Equal copies that are no ties stay separate.
    run pack "$work/tied" "$work/tied.pack"
    expect_status 0
    err_has '^narrows: 1 name of tied tensors is in the manifest$'
    grep -q '"required": \["packed", "aliases"\]' "$work/tied.pack/manifest.json" || fail 'aliases are not required'
    run unpack "$work/tied.pack" "$work/tied.again"
    expect_status 0
    err_has '^narrows: 1 name of tied tensors is in the metadata$'
    cmp -s "$work/untied/model.safetensors" "$work/tied.again/model.safetensors" || fail 'by way of a pack: another file'
    run run -m "$work/tied.pack" -b 64M -n 8 --input-ids '5 6 7 1'
    expect_out "$ids"
    run pack "$data/goldens/three-embeddings" "$work/copies.pack" --json
    expect_status 0
    out_has '"alias_count":.0,$'
    ! grep -q aliases "$work/copies.pack/manifest.json" || fail 'equal copies are called aliases'
    run unpack "$work/copies.pack" "$work/copies"
    expect_status 0
    "$1/tests/show_tensor" "$work/copies/model.safetensors" >"$work/names"
    grep -q '^shared.weight F32' "$work/names" && grep -q '^encoder.embed_tokens.weight F32' "$work/names" ||
        fail 'a copy is missing'
    [ "$(du -sk "$work/tied.pack" | cut -f 1)" -lt $(($(du -sk "$work/copies.pack" | cut -f 1) - 30)) ] ||
        fail 'the tied tensors take as much room as two'
fi

# For programs: one object; a mistake has its one line and none.
run unpack -q "$model" "$work/json" --json
expect_status 0
err_empty
out_is_json
out_has '"tensor_count":.98,$'
run unpack "$model" "$work/json_f16" --json --dtype f16
expect_status 0
out_is_json
out_has '"rounded":'
refused 5 'exists' unpack -q --json "$model" "$work/json"
refused 3 'too small' unpack -q --json "$model" "$work/x" -b 4M
refused 2 'No such file' unpack --json "$work/none" "$work/x"

# Weights that are no numbers stay what they are; a run says so.
last=$("$narrows" info "$model" --tensors | sed -n 's/^decoder.final_layer_norm.weight .* at //p')
cp -r "$model" "$work/nan"
printf '\377\377' | dd of="$work/nan/model.safetensors" bs=1 seek="$last" conv=notrunc 2>/dev/null
run unpack -q "$work/nan" "$work/nan.again"
expect_status 0
refused 4 'not a number (NaN): its weights are damaged' run -q -m "$work/nan.again" -b 64M one
run unpack -q "$work/nan" "$work/nan.f32" --dtype f32
expect_status 0
refused 4 'not a number (NaN): its weights are damaged' run -q -m "$work/nan.f32" -b 64M one

# The files beside a pack are those that were packed, whether or not the configuration is changed on the way.
run pack -q "$model" "$work/pack"
expect_status 0
for file in config.json tokenizer_config.json spiece.model; do
    flip "$work/pack/$file" 30
    for args in '' '--dtype f32'; do
        for name in "$work/pack" "$work/pack//"; do
            refused 5 "$file': its checksum is wrong" unpack -q "$name" "$work/x" $args
            [ -z "$(find "$work" -maxdepth 1 -name 'x*')" ] || fail "$ran: something is left"
        done
    done
    flip "$work/pack/$file" 30
done
run unpack -q "$work/pack" "$work/unpacked"
expect_status 0
for file in "$work/whole"/*; do
    cmp -s "$file" "$work/unpacked/${file##*/}" || fail "unpacked from a pack: ${file##*/} differs"
done

refused 2 'SRC and DST are missing' unpack
refused 2 'DST is missing' unpack "$model"
refused 2 'more than a source' unpack "$model" "$work/x" "$work/y"
refused 2 "'q4' is not bf16, f16 or f32" unpack "$model" "$work/x" --dtype q4
refused 2 "'0' is not a size" unpack "$model" "$work/x" --max-shard-size 0
refused 5 'exists' unpack "$model" "$work/whole"
refused 5 'is no directory' unpack "$model" "$work/whole/config.json"
refused 5 "'$work/none/x'" unpack "$model" "$work/none/x"
refused 3 'too small: writing .* needs [0-9.]*M' unpack "$model" "$work/x" -b 4M
refused 2 'No such file' unpack "$work/none" "$work/x"
[ ! -e "$work/x" ] && [ -z "$(find "$work" -name '*.tmp-*')" ] || fail 'something is left of a refusal'

# The name of a file is limited, not the work: a full file system is said before anything is written to it.
refused_without_room unpack "$model"

# Killed at any moment: there is no DST, or a whole one.
for wait in 0.002 0.005 0.01 0.02 0.04; do
    rm -rf "$work/k"
    kill_after $wait unpack -q "$model" "$work/k"
    [ ! -e "$work/k" ] || cmp -s "$work/k/model.safetensors" "$work/whole/model.safetensors" ||
        fail "killed after $wait s: a directory that is not whole"
done
finish

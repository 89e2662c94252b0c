# Hostile and broken models, from outside. Each gives the right exit status, exactly one line on stderr that names the
# file and the cause, nothing on stdout; no crash, no hang, and no more memory than the budget and a little. Then single
# bytes of the files are changed: whatever comes of it, it is an answer or an error of ours.
. "$(dirname "$0")/cli_common.sh"
tools=$1/tests
goldens=$data/goldens
sanitizers=$(sed -n 's/^NW_SANITIZE:[A-Z]*=//p' "$1/CMakeCache.txt")
rounds=300 seconds=20
[ -z "$sanitizers" ] || { rounds=40 seconds=60; }
budget=64M
maxrss_max=134217728 # 64 MiB and the budget

# As in cli_common.sh, but in bounded time, and watched.
run() {
    "$tools/launcher" --json "$work/cost" -- timeout -s KILL "$seconds" "$narrows" "$@" \
        </dev/null >"$work/out" 2>"$work/err"
    status=$?
    ran="narrows $*"
    # 124: timeout; 128 and more: a signal
    [ "$status" -lt 124 ] || fail "$ran: crashed or hung (status $status)"
    [ -z "$sanitizers" ] || return 0 # their shadow memory would count
    maxrss=$(sed -n 's/.*"maxrss_bytes": \([0-9]*\).*/\1/p' "$work/cost")
    [ "${maxrss:-$maxrss_max}" -lt "$maxrss_max" ] || fail "$ran: took $maxrss bytes"
}

# fresh [GOLDEN]: $m is a new, writable copy of the model
fresh() {
    m=$work/m
    rm -rf "$m"
    mkdir "$m"
    if [ $# -gt 0 ]; then cp "$goldens/$1"/config.json "$goldens/$1"/model* "$m"; else cp "$model"/* "$m"; fi
    chmod -R u+w "$m"
}

ids='--input-ids' some='5 9 1'
rejects() { refused "$1" "$2" run -m "${3:-$m}" -b "$budget" -n 4 "$ids" "$some"; } # STATUS PATTERN [MODEL]
runs() {
    run run -m "${1:-$m}" -b "$budget" -n 4 "$ids" "$some"
    expect_status 0
}
rejects_text() { refused "$1" "$2" run -m "$m" -b "$budget" -n 4 'six hundred'; }

header() { "$tools/make_hostile" header "$model/model.safetensors"; }
# weights JSON [ZEROS]: the model's data under another header
weights() { "$tools/make_hostile" join "$1" "$model/model.safetensors" $2 >"$m/model.safetensors" || exit 1; }
# edited SED [ZEROS]: the model with its header changed, which must change something
edited() {
    fresh
    header >"$work/before"
    sed "$1" "$work/before" >"$work/after"
    ! cmp -s "$work/before" "$work/after" || fail "sed '$1' changes nothing"
    weights "$work/after" "$2"
}
# configured SED: the model with config.json changed
configured() {
    fresh $2
    sed "$1" "$m/config.json" >"$work/config"
    ! cmp -s "$m/config.json" "$work/config" || fail "sed '$1' changes nothing"
    cp "$work/config" "$m/config.json"
}

fresh
runs # what is broken below works whole

# ---- the place ----
rejects 2 '/no/such/model' /no/such/model
rejects 2 'o/n' o/n
rejects 4 "not a file" /dev/zero
fresh && rm "$m"/* && rejects 4 "model.safetensors.* in '$m'"
fresh && rm "$m/model.safetensors" && mkfifo "$m/model.safetensors" && rejects 4 'model.safetensors.*is a pipe'
rejects 4 'is a pipe' "$m/model.safetensors"
fresh && rm "$m/model.safetensors" && mkdir "$m/model.safetensors" && rejects 4 'model.safetensors.*directory'
fresh && rm "$m/model.safetensors" && ln -s model.safetensors "$m/model.safetensors" && rejects 5 'model.safetensors.*symbolic links'
fresh && ln -sf /dev/zero "$m/model.safetensors" && rejects 4 'model.safetensors.*device'
fresh && ln -sf nowhere "$m/model.safetensors" && rejects 5 'model.safetensors.*No such file'
if [ "$(id -u)" -eq 0 ]; then
    echo 'skipped: an unreadable file; root reads everything'
else
    fresh && chmod 0 "$m/model.safetensors" && rejects 5 'model.safetensors.*Permission denied'
fi
fresh
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5129264\n' 0 >"$m/model.safetensors"
rejects 4 'model.safetensors.*git-lfs'
fresh && mv "$m/model.safetensors" "$m/ab12.incomplete" && ln -s ab12.incomplete "$m/model.safetensors"
rejects 4 'model.safetensors.*incomplete'
fresh && mv "$m/model.safetensors" "$m/model.safetensors.incomplete" && rejects 4 "model.safetensors.* in '$m'"
fresh && mv "$m/model.safetensors" "$m/model.gguf" && rejects 4 'model.gguf.*only safetensors and PyTorch can be read'
fresh && mv "$m/model.safetensors" "$m/pytorch_model.bin" && runs # the first bytes say what it is
fresh && rm "$m/model.safetensors" && : >"$m/adapter_model.bin" && rejects 4 'adapter_model.bin.*merge it into its base'

# ---- the header ----
fresh && : >"$m/model.safetensors" && rejects 4 'model.safetensors.*empty'
for n in 0 9223372036854775808 18446744073709551615 5129257 100000001; do
    fresh
    { "$tools/make_hostile" length $n; tail -c +9 "$model/model.safetensors"; } >"$m/model.safetensors"
    rejects 4 'model.safetensors'
done
for n in 1 7 8 9 100 11311 11312 5129263 2500000; do # the header ends at 11312, the file at 5129264
    fresh && head -c $n "$model/model.safetensors" >"$m/model.safetensors" && rejects 4 'model.safetensors'
done
fresh && printf 'PK' >>"$m/model.safetensors" && rejects 4 'model.safetensors.*2.*belong to no tensor'
fresh && printf '{' >"$work/json" && weights "$work/json" && rejects 4 'model.safetensors'
fresh && printf '{"\377":{}}' >"$work/json" && weights "$work/json" && rejects 4 'model.safetensors'
fresh && awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >"$work/json" && weights "$work/json" && rejects 4 'model.safetensors'
edited 's/\[32768,65536\]/[0,32768]/' && rejects 4 'model.safetensors.*\(overlap\|hole\)'
edited 's/"shared.weight"/"lm_head.weight"/' && rejects 4 'model.safetensors.*duplicate.*lm_head'
edited 's/"shared.weight":{"dtype":"BF16"/"shared.weight":{"dtype":"F32"/' && rejects 4 'model.safetensors.*shared.weight'
edited 's/"shared.weight":{"dtype":"BF16"/"shared.weight":{"dtype":"BF17"/' && rejects 4 'model.safetensors.*shared.weight.*dtype'
edited 's/\("shared.weight":{"dtype":"BF16","shape":\)\[768,128\]/\1[128,768]/' && rejects 4 'model.safetensors.*shared.weight.*shape'
edited 's/\("shared.weight":{"dtype":"BF16","shape":\)\[768,128\]/\1[98304]/' && rejects 4 'model.safetensors.*shared.weight.*shape'
edited 's/\("shared.weight":{"dtype":"BF16","shape":\)\[768,128\]/\1[0,128]/' && rejects 4 'model.safetensors.*shared.weight'
edited 's/\("shared.weight":{"dtype":"BF16","shape":\)\[768,128\]/\1[9223372036854775808,2]/' && rejects 4 'model.safetensors.*shared.weight.*too large'
edited 's/\("shared.weight":{"dtype":"BF16","shape":\)\[768,128\]/\1[-768,128]/' && rejects 4 'model.safetensors.*shared.weight'
zero='"shared.weight":{"dtype":"BF16","shape":[0,128],"data_offsets":[5117952,5117952]}'
edited "s/\"shared.weight\"/$zero,\"gone\"/" && rejects 4 'model.safetensors.*shared.weight.*\[0, 128\]'
wide='"data_offsets":[5117952,5904384]}'
for type in I64 F64 U64; do
    edited "s/\"lm_head.weight\"/\"lm_head.weight\":{\"dtype\":\"$type\",\"shape\":[768,128],$wide,\"gone\"/" 786432
    rejects 4 "model.safetensors.*lm_head.weight.*$type"
done
for name in shared.weight lm_head.weight encoder.final_layer_norm.weight decoder.block.3.layer.1.layer_norm.weight \
    encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight decoder.block.2.layer.2.DenseReluDense.wo.weight; do
    edited "s/\"$name\"/\"gone\"/" && rejects 4 "$m.*$name.*missing"
done
edited 's/"shared.weight"/"more":{"dtype":"I64","shape":[0],"data_offsets":[5117952,5117952]},"shared.weight"/' && runs
edited 's/"shared.weight"/"more":{"dtype":"I64","shape":[1],"data_offsets":[5117952,5117960]},"shared.weight"/' 8 && runs

# ---- shards ----
index=model.safetensors.index.json
resharded() { # SED: of the index
    fresh flan-bf16-shards
    sed "$1" "$goldens/flan-bf16-shards/$index" >"$m/$index"
    ! cmp -s "$goldens/flan-bf16-shards/$index" "$m/$index" || fail "sed '$1' changes nothing"
}
fresh flan-bf16-shards && runs
resharded '/"shared.weight"/s|model-|../model-|' && rejects 4 "$index"
resharded '/"shared.weight"/s|model-|/etc/model-|' && rejects 4 "$index"
resharded '/"shared.weight"/s|"model-.*rs"|".."|' && rejects 4 "$index"
resharded '/"shared.weight"/s|"model-.*rs"|""|' && rejects 4 "$index"
resharded '/"shared.weight"/s|"model-.*rs"|"a\\u0000b"|' && rejects 4 "$index"
resharded '/"shared.weight"/s|"model-.*rs"|7|' && rejects 4 "$index"
resharded '/"shared.weight"/s|model-00001|model-00009|' && rejects 4 'shared.weight.*model-00009'
resharded 's|model-00002|model-00009|' && rejects 5 'model-00009.*No such file'
resharded '/"shared.weight"/s|model-00001|model-00002|' && rejects 4 'shared.weight'
resharded '/"shared.weight"/d' && rejects 4 'model-00001.*shared.weight.*not in the index'
resharded '/"shared.weight"/s|^|"more": "model-00001-of-00003.safetensors",|' && rejects 4 "$index.*more"
resharded 's/"weight_map"/"weights"/' && rejects 4 "$index"
fresh flan-bf16-shards && rm "$m/model-00002-of-00003.safetensors" && rejects 5 'model-00002.*No such file'
fresh flan-bf16-shards && head -c 5000 "$m/$index" >"$work/index" && head -c 900 "$work/index" >"$m/$index" && rejects 4 "$index"
fresh flan-bf16-shards && : >"$m/$index" && rejects 4 "$index"

# ---- config.json ----
fresh && rm "$m/config.json" && rejects 4 'no config.json in.*model.safetensors.*inferred'
fresh && : >"$m/config.json" && rejects 4 'config.json'
for text in 'x' '[]' '{' '"t5"' 'null' '{} {}' '{"model_type": "t5", "model_type": "mt5"}'; do
    fresh && printf '%s' "$text" >"$m/config.json" && rejects 4 'config.json'
done
configured 's/^{/{"x": "'"$(awk 'BEGIN { for (i = 0; i < 20000; i++) printf "y" }')"'",/' && runs
fresh && { cat "$m/config.json"; awk 'BEGIN { for (i = 0; i < 2097152; i++) printf " " }'; } >"$work/config"
cp "$work/config" "$m/config.json" && rejects 4 'config.json'
fresh && awk 'BEGIN { printf "{\"x\":"; for (i = 0; i < 100000; i++) printf "["; for (i = 0; i < 100000; i++) printf "]"; print "}" }' >"$m/config.json"
rejects 4 'config.json'
for value in 0 -1 1e308 '"x"' 2147483648 4294967424 9007199254740993 18446744073709551616 128.5 true null '[]' '{}' 127 129; do
    configured "s/\"d_model\": 128/\"d_model\": $value/" && rejects 4 'd_model\|shape'
done
for key in vocab_size d_kv d_ff num_layers num_heads; do
    for value in 0 -1 1e308 '"x"' 2147483648; do
        configured "s/\"$key\": [0-9]*/\"$key\": $value/" && rejects 4 "config.json.*$key"
    done
    configured "/\"$key\"/d" && rejects 4 "config.json.*$key is missing"
done
for value in 767 769; do configured "s/\"vocab_size\": 768/\"vocab_size\": $value/" && rejects 4 "model.safetensors.*shape"; done
configured 's/"num_heads": 4/"num_heads": 5/' && rejects 4 'model.safetensors.*shape'
configured 's/"num_decoder_layers": 4/"num_decoder_layers": 1024/' && rejects 4 'decoder.block.4.*missing'
for value in 0 1 3 33 34 1000000; do
    configured "s/\"relative_attention_num_buckets\": 32/\"relative_attention_num_buckets\": $value/"
    rejects 4 'bucket\|relative_attention'
done
for value in 0 1 16 -5; do
    configured "s/\"relative_attention_max_distance\": 128/\"relative_attention_max_distance\": $value/"
    rejects 4 'config.json.*distance'
done
configured 's/"model_type": "t5"/"model_type": "longt5"/' && rejects 4 'config.json.*longt5'
configured 's/"model_type": "t5"/"model_type": 5/' && rejects 4 'config.json.*model_type'
configured 's/gated-gelu/gated-nonsense/' && rejects 4 'config.json.*nonsense'
configured 's/gated-gelu/nonsense/' && rejects 4 'config.json.*nonsense'
configured 's/1e-06/-1/' && rejects 4 'config.json.*layer_norm_epsilon'
configured 's/1e-06/1e999/' && rejects 4 'config.json.*layer_norm_epsilon'
for value in 768 4294967295 -1 1e9; do
    configured "s/\"eos_token_id\": 1/\"eos_token_id\": $value/" && rejects 4 'config.json.*token'
    configured "s/\"decoder_start_token_id\": 0/\"decoder_start_token_id\": $value/" && rejects 4 'config.json.*token'
done
configured 's/"tie_word_embeddings": false/"tie_word_embeddings": "no"/' && rejects 4 'config.json.*tie_word_embeddings'
# The tensors know better than the file: plain ones under a gated configuration, and the reverse.
configured 's/"relu"/"gated-gelu"/' t5-v1.0-tied && runs
configured 's/"gated-gelu"/"relu"/' && runs

# ---- the tokenizer ----
fresh && rm "$m/spiece.model"
rejects_text 6 'spiece.model'
runs
fresh && : >"$m/spiece.model" && rejects_text 6 'spiece.model'
fresh && head -c 4000 "$model/model.safetensors" | tail -c 3000 >"$m/spiece.model" && rejects_text 6 'spiece.model'
fresh && tail -c 50000 "$model/model.safetensors" >"$m/spiece.model" && rejects_text 6 'spiece.model'
for n in 1 15 1000 100000 253767; do
    fresh && head -c $n "$model/spiece.model" >"$m/spiece.model" && rejects_text 6 'spiece.model'
done
fresh && printf '\012\012\012\003a\000b\025\000\000\000\000' >>"$m/spiece.model" && rejects_text 6 'spiece.model.*piece 640'
fresh && printf '\012\012\012\003a\377b\025\000\000\000\000' >>"$m/spiece.model" && rejects_text 6 'spiece.model.*piece 640'
fresh && printf '\012\012\012\003six\025\000\000\300\177' >>"$m/spiece.model" && rejects_text 6 'spiece.model.*piece 640'
fresh && awk 'BEGIN { for (i = 100; i < 300; i++) printf "\012\014\012\005q%dq\025pppp", i }' >>"$m/spiece.model"
rejects_text 6 'spiece.model.*840 pieces'
fresh && rm "$m/spiece.model" && mkdir "$m/spiece.model" && rejects_text 6 'spiece.model'
fresh && rm "$m/spiece.model" && mkfifo "$m/spiece.model" && rejects_text 6 'spiece.model'
fresh && ln -sf /dev/zero "$m/spiece.model" && rejects_text 6 'spiece.model'
fresh && printf '{"extra_ids": 1e99}' >"$m/tokenizer_config.json" && rejects_text 6 'tokenizer_config.json'
fresh && printf '[' >"$m/tokenizer_config.json" && rejects_text 6 'tokenizer_config.json'

# ---- budgets that cannot be ----
fresh
refused 3 'budget 1M is too small: needs' run -m "$m" -b 1M "$ids" "$some"
refused 3 'budget 64M is too small: needs' run -m "$m" -b "$budget" -n 1000000 "$ids" "$some"

# ---- single bytes ----
flip_each() { # FILE BYTES ARGS...
    flipped=$m/$1 bytes=$2
    shift 2
    for seed in $(awk -v n="$rounds" 'BEGIN { for (i = 1; i <= n; i++) print i }'); do
        change=$("$tools/make_hostile" flip "$flipped" "$seed" "$bytes") || exit 1
        run run -m "$m" -b "$budget" -n 2 "$@"
        ran="seed $seed, $flipped $change: $ran"
        case $status in
        0) ;;
        2 | 3 | 4 | 5 | 6)
            [ ! -s "$work/out" ] || fail "$ran: an error, and an answer"
            [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line"
            ;;
        *) fail "$ran: status $status" ;;
        esac
        echo "$status" >>"$work/statuses"
        "$tools/make_hostile" flip "$flipped" "$seed" "$bytes" >"$work/restored" || exit 1
    done
}
fresh
flip_each model.safetensors 12288 "$ids" "$some"
flip_each config.json 552 "$ids" "$some"
flip_each spiece.model 253768 'six hundred'
cmp -s "$m/spiece.model" "$model/spiece.model" || fail 'the flips were not taken back'
# Most changes of the header and the configuration must show; some (a name in a list that is not read) may not.
[ "$(grep -c '^4' "$work/statuses")" -gt "$rounds" ] || fail 'hardly any change was noticed'
sort "$work/statuses" | uniq -c
finish

# A weights file by itself: what is inferred is said, --config goes before it, names may have a path in front; and what
# only looks like a T5 is refused by its family's name, with a config.json and without.
. "$(dirname "$0")/cli_common.sh"
tools=$1/tests
goldens=$data/goldens
text='eight' ids='11 10 5 1'

header() { "$tools/make_hostile" header "$model/model.safetensors"; }
# bare [SED [ZEROS]]: $file is the model's weights in a directory of their own, with the header changed
bare() {
    rm -rf "$work/bare"
    mkdir "$work/bare"
    file=$work/bare/some.safetensors
    header >"$work/before"
    sed "${1:-}" "$work/before" >"$work/after"
    [ -z "${1:-}" ] || ! cmp -s "$work/before" "$work/after" || fail "sed '$1' changes nothing"
    "$tools/make_hostile" join "$work/after" "$model/model.safetensors" ${2:-} >"$file" || exit 1
}
# The answer of the whole model, in ids: what every way of naming its weights has to give.
run run -m "$model" -b 64M -n 8 --json --input-ids "$ids"
expect_status 0
whole=$(sed -n 's/.*"ids": *\(\[[^]]*\]\).*/\1/p' "$work/out")
[ -n "$whole" ] || fail 'no ids to compare with'
answers() { # ARGS...
    run run "$@" -b 64M -n 8 --json --input-ids "$ids"
    expect_status 0
    part=$(sed -n 's/.*"ids": *\(\[[^]]*\]\).*/\1/p' "$work/out")
    [ "$part" = "$whole" ] || fail "$ran: ids $part, not $whole"
}

# ---- inferred ----
bare
answers -m "$file"
[ "$(wc -l <"$work/err")" -eq 3 ] || fail "$ran: not the three lines of what was inferred"
err_has '^narrows: no config.json; inferred from the tensors: vocab_size 768, d_model 128 (shared.weight); 4 heads of 32, 32 buckets'
err_has '^narrows: inferred too: .*decoder blocks.*gated.*lm_head.weight'
err_has '^narrows: assumed, as tensors do not tell: activation gelu_new, bucket distance 128, norm epsilon 1e-6, pad 0, end 1, start 0'
answers -m "$file" -q
err_empty
answers -m "$file" --config "$model/config.json"
err_empty
run run -m "$file" --tokenizer "$model" -q -b 64M "$text"
expect_status 0
cp "$work/out" "$work/first"
run run -m "$model" -q -b 64M "$text"
cmp -s "$work/out" "$work/first" || fail "$ran: another answer than the single file's"
run info "$file"
expect_status 0
out_has '^config  *none: inferred'
out_has '^tokenizer  *none: runs from --input-ids (no spiece.model in'
run plan "$file" -b 64M -q
expect_status 0
run info "$file" --json -q
expect_status 0
out_has '"config":.*null'
out_has '"name_prefix":.*""'
out_has '"encoder_only":.*false'

# A directory is a model, and has its config.json.
mkdir "$work/whole"
cp "$file" "$work/whole/model.safetensors"
for command in info 'plan -b 64M'; do refused 4 "no config.json in '$work/whole'.*'$work/whole/model.safetensors'.*inferred" $command "$work/whole"; done
answers -m "$work/whole" --config "$model/config.json"
answers -m "$work/whole/model.safetensors" -q
mkdir "$work/shards"
cp "$goldens/flan-bf16-shards"/model* "$work/shards"
refused 4 'no config.json.*if the index of the weights itself is named' info "$work/shards"
run info "$work/shards/model.safetensors.index.json"
expect_status 0
out_has '3 encoder + 3 decoder'

# --config goes before what lies beside; it is a file, and says what it is.
sed 's/gated-gelu/gated-silu/' "$model/config.json" >"$work/silu.json"
run info "$model" --config "$work/silu.json"
expect_status 0
out_has '^activation  *gated-silu'
run info "$model" --config "$work/silu.json" --json
out_has "\"config\":.*\"$work/silu.json\""
sed 's/"d_model": 128/"d_model": 127/' "$model/config.json" >"$work/other.json"
refused 4 'shape' info "$model" --config "$work/other.json"
refused 2 "configuration '/no/such.json': No such file" info "$model" --config /no/such.json
refused 4 'directory' info "$model" --config "$model"
echo x >"$work/no.json"
refused 4 'no.json' info "$file" --config "$work/no.json"

# ---- names ----
prefixed() { # PREFIX [CONFIG]
    bare "s#\"\(encoder\|decoder\|shared\|lm_head\)\.#\"$1\1.#g"
    answers -m "$file" -q
    run info "$file" -q
    out_has "^tensor names  *$1\.\.\."
    answers -m "$file" --config "$model/config.json"
    err_empty
    run info "$file" --config "$model/config.json" -v
    err_has "begin with $1\$"
}
prefixed text_encoders.t5xxl.transformer.

# ---- unpacked: a T5's own names, and the config.json that it lacked ----
bare 's#"\(encoder\|decoder\|shared\)\.#"t5.\1.#g;s#^{#{"vae.x":{"dtype":"BF16","shape":[4],"data_offsets":[5117952,5117960]},#;s#"lm_head#"t5.lm_head#' 8
run unpack "$file" "$work/unpacked" -q
expect_status 0
"$tools/make_hostile" header "$work/unpacked/model.safetensors" >"$work/header"
grep -q '"lm_head.weight"' "$work/header" || fail 'lm_head.weight is not there'
! grep -q '"t5\.\|"vae\.' "$work/header" || fail 'a prefix is left, or another network'
answers -m "$work/unpacked"
err_empty
run info "$work/unpacked" --json
sed '/"path"\|"config"\|"family"/d;/"tokenizer"/,$d' "$work/out" >"$work/first"
run info "$model" --json
sed '/"path"\|"config"\|"family"/d;/"tokenizer"/,$d' "$work/out" | diff - "$work/first" || fail 'other facts than the model that it was'
for case in t5-v1.0-tied umt5 byt5 encoder-only mt5; do
    rm -rf "$work/bare" "$work/unpacked" && mkdir "$work/bare" && cp "$goldens/$case/model.safetensors" "$file"
    run unpack "$file" "$work/unpacked" -q
    expect_status 0
    run info "$work/unpacked"
    err_empty
    sed 's/^model .*//;s/^family.*//;s/^  *[0-9.]*[KM]  .*//;s/(no spiece.model.*//' "$work/out" >"$work/first"
    run info "$goldens/$case"
    sed 's/^model .*//;s/^family.*//;s/^  *[0-9.]*[KM]  .*//;s/(no spiece.model.*//' "$work/out" | diff - "$work/first" ||
        fail "$case: other facts than the model that it was"
done
prefixed transformer.
prefixed model.
prefixed text_encoder_2.
prefixed base_model.model.
long=$(awk 'BEGIN { for (i = 0; i < 255; i++) printf "a"; print "." }')
bare "s#\"\(encoder\|decoder\|shared\|lm_head\)\.#\"$long\1.#g" && refused 4 'more than 255 bytes' info "$file"
long=${long#a}
bare "s#\"\(encoder\|decoder\|shared\|lm_head\)\.#\"$long\1.#g" && answers -m "$file" -q
bare 's#"\(encoder\|decoder\|shared\|lm_head\)\.#"my_\1.#g' && refused 4 'SelfAttention.q.weight is missing: these are no T5' info "$file"
q=encoder.block.0.layer.0.SelfAttention.q.weight
at=$(sed -n 's/.*"shared.weight":{[^}]*"data_offsets":\[[0-9]*,\([0-9]*\)\].*/\1/p' "$work/before")
extra() { bare "s|^{|{\"$1\":{\"dtype\":\"${2:-BF16}\",\"shape\":[4],\"data_offsets\":[$at,$((at + ${3:-8}))]},|" "${3:-8}"; }
extra "other.$q" && refused 4 "more than one T5: tensors $q and other.$q" info "$file"
extra vae.encoder.conv_in.bias && answers -m "$file" -q # another network
extra other_embeddings.weight I64 32 && answers -m "$file" -q
extra encoder.embed_tokens.weight && answers -m "$file" -q # a copy
extra decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight && answers -m "$file" -q

# ---- no tensor of the T5 is left out silently ----
for name in encoder.block.0.layer.0.SelfAttention.q.bias decoder.block.1.layer.2.DenseReluDense.wo.bias \
    encoder.block.3.layer.0.layer_norm.bias encoder.final_layer_norm.bias lm_head.bias shared.extra \
    encoder.block.1.layer.0.SelfAttention.relative_attention_bias.more encoder.block.99.layer.0.layer_norm.weight \
    encoder.pooler.weight; do
    extra "$name"
    refused 4 "tensor $name belongs to no T5" info -q "$file"
    refused 4 "tensor $name belongs to no T5" run -m "$file" --config "$model/config.json" -b 64M --input-ids "$ids"
done

# A classifier has another head in the place of lm_head.
for name in classification_head.dense.weight qa_outputs.weight; do
    bare "s/\"lm_head.weight\"/\"$name\"/"
    refused 4 "a T5 that classifies (tensor $name)" info -q "$file"
    bare "s/\"\(encoder\|decoder\|shared\)\./\"transformer.\1./g;s/\"lm_head.weight\"/\"$name\"/"
    refused 4 "a T5 that classifies (tensor $name)" info -q "$file"
    extra "$name" && answers -m "$file" -q # beside a head that generates
done

# ---- other families, by their tensors: without a config.json, and with one that claims t5 ----
stranger() { # PATTERN
    refused 4 "'$file' is $1" info -q "$file"
    refused 4 "'$file' is $1" run -m "$file" --config "$model/config.json" -b 64M --input-ids "$ids"
}
only='only T5, mT5, UMT5, ByT5, Flan-T5, UL2 and MADLAD models can be run'
bare '/./s/\(encoder[^"]*\)SelfAttention/\1LocalSelfAttention/g' && stranger "a LongT5 (tensor .*LocalSelfAttention.*: its encoder attends locally.*$only"
bare 's/\(encoder[^"]*0\.\)SelfAttention/\1TransientGlobalSelfAttention/g' && stranger 'a LongT5 (tensor'
extra encoder.block.1.layer.1.mlp.router.classifier.weight && stranger "a Switch Transformer (tensor .*router.*$only"
extra encoder.cell_2d_embedding.x_position_embeddings.weight && stranger "a UDOP (tensor.*$only"
extra encoder.block.0.layer.0.SelfAttention.q.lora_A.default.weight && stranger 'an adapter (LoRA).*merge_and_unload'
extra encoder.block.0.layer.0.SelfAttention.q.scale_weight F32 16 && stranger 'quantised, with scales'
bare 's/"\(encoder\|decoder\|lm_head\|shared\)\./"base_model.model.\1./g;s/SelfAttention\.q\.weight/SelfAttention.q.lora_A.weight/g'
stranger 'an adapter (LoRA).*merge_and_unload'
one() { bare "s/\"$q\"/\"$1\"/"; } # a file without the tensor that every T5 has, and with that of another
one model.layers.0.self_attn.q_proj.weight && stranger "a decoder-only model (tensor.*$only"
one model.decoder.layers.0.encoder_attn.q_proj.weight && stranger "an encoder-decoder of the BART kind (tensor.*$only"
one model.encoder.layers.0.pre_self_attn_layernorm.weight && stranger "a T5Gemma (tensor.*$only"
one decoder.transformer.h.0.attn.qkv_proj.weight && stranger "a CodeT5+.*(tensor.*$only"
one encoder.embeddings.patch_projection.weight && stranger "a Pix2Struct (tensor.*$only"
one bert.encoder.layer.0.attention.self.query.weight && stranger "an encoder of the BERT kind (tensor.*$only"
one h.0.attn.c_attn.weight && stranger "a decoder-only model of the GPT-2 kind (tensor.*$only"
one encoder.block.0.layer.0.SelfAttention.q.qweight && stranger 'quantised (GPTQ, AWQ'
one something.else && refused 4 "'$file': tensor $q is missing: these are no T5's tensors" info -q "$file"

# 8-bit floats, with their scales or without: by type.
for type in F8_E4M3 F8_E5M2; do
    bare "s/\(\"[^\"]*SelfAttention.q.weight\":{\"dtype\":\)\"BF16\",\"shape\":\[128,128\]/\1\"$type\",\"shape\":[128,256]/g"
    refused 4 "some.safetensors: tensor $q has the type $type; only F32, BF16 and F16 can be run" info "$file"
done

# ---- other families, by model_type ----
typed() { # MODEL_TYPE PATTERN
    sed "s/\"model_type\": \"t5\"/\"model_type\": \"$1\"/" "$model/config.json" >"$work/config.json"
    refused 4 "$work/config.json is of $2 (model_type $1): .*; $only" info "$model" --config "$work/config.json"
    cp "$model/model.safetensors" "$work/model.safetensors"
    refused 4 "$work/config.json is of $2 (model_type $1): .*; $only" run -m "$work" -b 64M --input-ids "$ids"
}
typed longt5 'a LongT5'
typed switch_transformers 'a Switch Transformer'
typed t5gemma 'a T5Gemma'
typed t5gemma2 'a T5Gemma'
typed codet5p 'a CodeT5+ with parts of its own'
typed pix2struct 'a Pix2Struct'
typed udop 'a UDOP'
for type in bart mbart marian pegasus; do typed $type 'an encoder-decoder of the BART kind'; done
typed llama 'a decoder-only model'
typed gpt2 'a decoder-only model of the GPT-2 kind'
typed bert 'an encoder of the BERT kind'
sed '/"model_type"/d;s/T5ForConditionalGeneration/T5GemmaForConditionalGeneration/' "$model/config.json" >"$work/config.json"
refused 4 'a T5Gemma' info "$work"
sed 's/"model_type": "t5"/"model_type": "nonesuch"/' "$model/config.json" >"$work/config.json"
refused 4 "model_type 'nonesuch' is none of t5, mt5, umt5" info "$work"

# ---- an encoder by itself, whatever config.json says ----
encoder=$goldens/encoder-only
sed 's/"is_encoder_decoder": false/"is_encoder_decoder": true/;s/T5EncoderModel/T5ForConditionalGeneration/' "$encoder/config.json" >"$work/full.json"
cmp -s "$work/full.json" "$encoder/config.json" && fail 'sed changes nothing'
for options in '' "--config $work/full.json"; do
    run info "$encoder" $options
    expect_status 0
    out_has '^blocks  *3 encoder (encoder only)'
done
rm -rf "$work/bare" && mkdir "$work/bare" && cp "$encoder/model.safetensors" "$work/bare/encoder.safetensors"
run info "$work/bare/encoder.safetensors" --json
out_has '"encoder_only":.*true'
err_has '3 encoder blocks, no decoder'

# ---- a tokenizer that is no use: the model runs from ids, and info says why ----
cp -r "$model" "$work/odd"
chmod -R u+w "$work/odd"
head -c 1000 "$model/spiece.model" >"$work/odd/spiece.model"
run info "$work/odd"
expect_status 0
out_has "^tokenizer  *none: runs from --input-ids (.*$work/odd/spiece.model.*)"
run info "$work/odd" --json
out_has '"problem":.*spiece.model'
run info "$model" --json
out_has '"problem":.*null'

# ---- single bytes of a file without its config.json: an answer or an error of ours ----
bare
for seed in $(awk 'BEGIN { for (i = 1; i <= 150; i++) print i }'); do
    change=$("$tools/make_hostile" flip "$file" "$seed" 11312) || exit 1
    run run -m "$file" -q -b 64M -n 2 --input-ids "$ids"
    ran="seed $seed, $change: $ran"
    case $status in
    0) ;;
    2 | 3 | 4) [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$ran: stderr is not one line" ;;
    *) fail "$ran: status $status" ;;
    esac
    echo "$status" >>"$work/statuses"
    "$tools/make_hostile" flip "$file" "$seed" 11312 >/dev/null || exit 1
done
[ "$(grep -c '^4' "$work/statuses")" -gt 100 ] || fail 'hardly any change was noticed'
finish

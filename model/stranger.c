/* Families by name: what a config.json calls them, and what their tensors are called in the reference implementation
 * (transformers; peft for adapters). */
#include "model/stranger.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ONLY "; only T5, mT5, UMT5, ByT5, Flan-T5, UL2 and MADLAD models can be run"

static const nw_stranger longt5 = {"a LongT5", "its encoder attends locally, which narrows does not compute" ONLY};
static const nw_stranger switch_t5 = {"a Switch Transformer", "its routed experts are not computed" ONLY};
static const nw_stranger t5gemma = {"a T5Gemma", "its blocks are Gemma's, not T5's" ONLY};
static const nw_stranger codet5p = {"a CodeT5+ with parts of its own",
                                    "what stands beside its encoder is not T5's" ONLY};
static const nw_stranger pix2struct = {"a Pix2Struct", "it reads images" ONLY};
static const nw_stranger udop = {"a UDOP", "its encoder takes images and layouts" ONLY};
static const nw_stranger bart = {"an encoder-decoder of the BART kind", "its blocks are not T5's" ONLY};
static const nw_stranger whisper = {"a Whisper", "it reads sound" ONLY};
static const nw_stranger encoder_decoder = {"another encoder-decoder", "its blocks are not T5's" ONLY};
static const nw_stranger decoder_only = {"a decoder-only model", "it has no encoder" ONLY};
static const nw_stranger gpt2 = {"a decoder-only model of the GPT-2 kind", "it has no encoder" ONLY};
static const nw_stranger bert = {"an encoder of the BERT kind", "its blocks are not T5's" ONLY};
static const nw_stranger clip = {"a CLIP", "its blocks are not T5's" ONLY};
static const nw_stranger adapter = {
    "an adapter (LoRA)",
    "its weights are changes to another model's; merge it into that first (peft: merge_and_unload) and run "
    "what that saves"};
static const nw_stranger quantised = {"quantised (GPTQ, AWQ or the like)",
                                      "its packed weights cannot be read; take a file of F32, BF16 or F16"};
static const nw_stranger scaled = {"quantised, with scales beside its weights",
                                   "these are not applied; take a file of F32, BF16 or F16"};
static const nw_stranger wan = {"a UMT5 encoder under the names of Wan's own program",
                                "take a file with the names of transformers"};
static const nw_stranger llama_cpp = {"named as llama.cpp names tensors",
                                      "take the checkpoint that it was converted from"};

static const struct {
    const char        *type;
    bool               begins; /* any type that begins so */
    const nw_stranger *stranger;
} types[] = {
    {"longt5", false, &longt5},
    {"switch_transformers", false, &switch_t5},
    {"t5gemma", true, &t5gemma},
    {"codet5p", true, &codet5p},
    {"pix2struct", true, &pix2struct},
    {"udop", true, &udop},
    {"whisper", false, &whisper},
    {"bart", false, &bart},
    {"mbart", false, &bart},
    {"plbart", false, &bart},
    {"marian", false, &bart},
    {"pegasus", true, &bart},
    {"bigbird_pegasus", false, &bart},
    {"blenderbot", true, &bart},
    {"m2m_100", false, &bart},
    {"nllb", true, &bart},
    {"led", false, &bart},
    {"fsmt", false, &bart},
    {"prophetnet", false, &encoder_decoder},
    {"xlm-prophetnet", false, &encoder_decoder},
    {"encoder-decoder", false, &encoder_decoder},
    {"vision-encoder-decoder", false, &encoder_decoder},
    {"speech-encoder-decoder", false, &encoder_decoder},
    {"pop2piano", false, &encoder_decoder},
    {"llama", true, &decoder_only},
    {"mistral", true, &decoder_only},
    {"mixtral", false, &decoder_only},
    {"qwen", true, &decoder_only},
    {"gemma", true, &decoder_only},
    {"phi", true, &decoder_only},
    {"falcon", true, &decoder_only},
    {"deepseek", true, &decoder_only},
    {"gpt2", false, &gpt2},
    {"gpt", true, &decoder_only},
    {"opt", false, &decoder_only},
    {"bloom", false, &decoder_only},
    {"mpt", false, &decoder_only},
    {"codegen", false, &decoder_only},
    {"bert", true, &bert},
    {"roberta", true, &bert},
    {"xlm-roberta", true, &bert},
    {"distilbert", false, &bert},
    {"albert", false, &bert},
    {"electra", false, &bert},
    {"deberta", true, &bert},
    {"modernbert", true, &bert},
    {"mpnet", false, &bert},
    {"camembert", false, &bert},
    {"clip", true, &clip},
};

/* In this order: an adapter's names hold those of its base, and BART's hold what decoder-only models' have. */
static const struct {
    const char        *part;
    const nw_stranger *stranger;
} marks[] = {
    {".lora_", &adapter},
    {"base_model.model.", &adapter},
    {"TransientGlobalSelfAttention", &longt5},
    {"LocalSelfAttention", &longt5},
    {".mlp.router.", &switch_t5},
    {".mlp.experts.", &switch_t5},
    {"cell_2d_embedding", &udop},
    {"patch_projection", &pix2struct},
    {".pre_self_attn_layernorm.", &t5gemma},
    {"enc_to_dec_proj", &codet5p},
    {".attn.qkv_proj.", &codet5p},
    {".qweight", &quantised},
    {".scale_weight", &scaled},
    {".weight_scale", &scaled},
    {".scale_input", &scaled},
    {".SCB", &scaled},
    {".quant_state.", &scaled},
    {"pos_embedding.embedding.weight", &wan},
    {"enc.blk.", &llama_cpp},
    {"dec.blk.", &llama_cpp},
    {".encoder_attn.", &bart},
    {".attention.self.query.", &bert},
    {"text_model.encoder.layers.", &clip},
    {".attn.c_attn.", &gpt2},
    {".self_attn.q_proj.", &decoder_only},
    {".self_attn.qkv_proj.", &decoder_only},
    {".attention.query_key_value.", &decoder_only},
};

const nw_stranger *nw_stranger_by_type(const char *model_type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t len = strlen(types[i].type);
        if (strncmp(model_type, types[i].type, len) == 0 && (types[i].begins || model_type[len] == '\0'))
            return types[i].stranger;
    }
    return NULL;
}

const char *nw_stranger_mark(unsigned index, const nw_stranger **ret)
{
    if (index >= sizeof marks / sizeof *marks)
        return NULL;
    *ret = marks[index].stranger;
    return marks[index].part;
}

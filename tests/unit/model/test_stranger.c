/* Models that are no T5, by what their config.json and their tensors are called; and no T5 among them. */
#include "model/stranger.h"
#include "model/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const nw_stranger *by_tensor(const char *name)
{
    const nw_stranger *stranger;
    const char        *part;
    for (unsigned i = 0; (part = nw_stranger_mark(i, &stranger)) != NULL; i++) {
        if (strstr(name, part) != NULL)
            return stranger;
    }
    return NULL;
}

static void check(const char *name, const nw_stranger *have, const char *want)
{
    if (have == NULL || strstr(have->what, want) == NULL)
        fail_msg("%s is taken for %s, not %s", name, have == NULL ? "nothing" : have->what, want);
    assert_true(strlen(have->why) > 10);
}

static void test_types(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"longt5", "LongT5"},
        {"switch_transformers", "Switch"},
        {"t5gemma", "T5Gemma"},
        {"t5gemma2", "T5Gemma"},
        {"codet5p", "CodeT5+"},
        {"codet5p_embedding", "CodeT5+"},
        {"pix2struct", "Pix2Struct"},
        {"udop", "UDOP"},
        {"bart", "BART"},
        {"marian", "BART"},
        {"pegasus", "BART"},
        {"pegasus_x", "BART"},
        {"m2m_100", "BART"},
        {"whisper", "Whisper"},
        {"encoder-decoder", "encoder-decoder"},
        {"llama", "decoder-only"},
        {"gpt2", "GPT-2"},
        {"gpt_neox", "decoder-only"},
        {"bert", "BERT"},
        {"roberta", "BERT"},
        {"clip_text_model", "CLIP"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i][0], nw_stranger_by_type(cases[i][0]), cases[i][1]);
    static const char *const unknown[] = {"", "t5", "mt5", "umt5", "longt5x", "ledger", "T5"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_null(nw_stranger_by_type(unknown[i]));
}

static void test_tensors(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"encoder.block.0.layer.0.LocalSelfAttention.q.weight", "LongT5"},
        {"encoder.block.0.layer.0.TransientGlobalSelfAttention.global_relative_attention_bias.weight", "LongT5"},
        {"encoder.block.1.layer.1.mlp.router.classifier.weight", "Switch"},
        {"encoder.block.1.layer.1.mlp.experts.expert_0.wi.weight", "Switch"},
        {"model.encoder.layers.0.pre_self_attn_layernorm.weight", "T5Gemma"},
        {"decoder.transformer.h.0.attn.qkv_proj.weight", "CodeT5+"},
        {"encoder.embeddings.patch_projection.weight", "Pix2Struct"},
        {"encoder.cell_2d_embedding.x_position_embeddings.weight", "UDOP"},
        {"model.decoder.layers.0.encoder_attn.q_proj.weight", "BART"},
        {"model.layers.0.self_attn.q_proj.weight", "decoder-only"},
        {"transformer.h.0.attn.c_attn.weight", "GPT-2"},
        {"bert.encoder.layer.0.attention.self.query.weight", "BERT"},
        {"text_model.encoder.layers.0.self_attn.q_proj.weight", "CLIP"},
        {"base_model.model.encoder.block.0.layer.0.SelfAttention.q.lora_A.weight", "adapter"},
        {"lora_te2_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight", "adapter"},
        {"base_model.model.encoder.block.0.layer.0.SelfAttention.q.base_layer.weight", "adapter"},
        {"encoder.block.0.layer.0.SelfAttention.q.qweight", "quantised"},
        {"encoder.block.0.layer.0.SelfAttention.q.scale_weight", "quantised"},
        {"encoder.block.0.layer.0.SelfAttention.q.SCB", "quantised"},
        {"blocks.0.pos_embedding.embedding.weight", "Wan"},
        {"enc.blk.0.attn_q.weight", "llama.cpp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i][0], by_tensor(cases[i][0]), cases[i][1]);
}

static void test_no_t5(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        nw_config c = {
            .encoder_blocks = 12, .decoder_blocks = 12, .gated = (kind & 1) != 0, .bias_per_block = (kind & 2) != 0};
        nw_tensors      t;
        nw_tensor_need *list = calloc(nw_tensors_count(&c), sizeof *list);
        nw_tensors_fill(&c, list, &t);
        for (uint32_t i = 0; i < t.count; i++) {
            char name[96];
            for (uint32_t k = 0; nw_tensor_name(&c, &list[i], k, name, sizeof name); k++) {
                if (by_tensor(name) != NULL)
                    fail_msg("%s", name);
            }
        }
        free(list);
    }
    assert_null(by_tensor("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types), cmocka_unit_test(test_tensors),
                                       cmocka_unit_test(test_no_t5)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

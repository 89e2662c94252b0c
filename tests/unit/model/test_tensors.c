/* The tensor table, its names and the schedules, for every published shape: totals equal the published counts of
 * weights, a pass visits each tile of its tensors once and in the right order, and the buckets are those of the
 * reference. */
#include "model/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *name, *type, *feed_forward;
    uint32_t    vocab, d_model, d_kv, d_ff, heads, encoder, decoder;
    bool        tied;
    uint64_t    weights; /* published */
    double      decoded; /* millions of weights that one token reads */
    double      unit;    /* of that figure's last digit */
} shape;

#define RELU "relu"
#define GELU "gated-gelu"

static const shape shapes[] = {
    {"t5-small", "t5", RELU, 32128, 512, 64, 2048, 8, 6, 6, true, 60506624, 38.5, 0.1},
    {"t5-base", "t5", RELU, 32128, 768, 64, 3072, 12, 12, 12, true, 222903552, 123.8, 0.1},
    {"t5-large", "t5", RELU, 32128, 1024, 64, 4096, 16, 24, 24, true, 737668096, 385.3, 0.1},
    {"t5-3b", "t5", RELU, 32128, 1024, 128, 16384, 32, 24, 24, true, 2851598336, 1442, 1},
    {"t5-11b", "t5", RELU, 32128, 1024, 128, 65536, 128, 24, 24, true, 11307321344, 5670, 1},
    {"flan-t5-small", "t5", GELU, 32128, 512, 64, 1024, 6, 8, 8, false, 76961152, 38.5, 0.1},
    {"flan-t5-base", "t5", GELU, 32128, 768, 64, 2048, 12, 12, 12, false, 247577856, 123.8, 0.1},
    {"flan-t5-large", "t5", GELU, 32128, 1024, 64, 2816, 16, 24, 24, false, 783150080, 391.6, 0.1},
    {"flan-t5-xl", "t5", GELU, 32128, 2048, 64, 5120, 32, 24, 24, false, 2849757184, 1425, 1},
    {"flan-t5-xxl", "t5", GELU, 32128, 4096, 64, 10240, 64, 24, 24, false, 11135332352, 5568, 1},
    {"mt5-small", "mt5", GELU, 250112, 512, 64, 1024, 6, 8, 8, false, 300176768, 150.1, 0.1},
    {"mt5-base", "mt5", GELU, 250112, 768, 64, 2048, 12, 12, 12, false, 582401280, 291.2, 0.1},
    {"mt5-large", "mt5", GELU, 250112, 1024, 64, 2816, 16, 24, 24, false, 1229581312, 614.8, 0.1},
    {"mt5-xl", "mt5", GELU, 250112, 2048, 64, 5120, 32, 24, 24, false, 3742619648, 1871, 1},
    {"mt5-xxl", "mt5", GELU, 250112, 4096, 64, 10240, 64, 24, 24, false, 12921057280, 6461, 1},
    {"umt5-small", "umt5", GELU, 256384, 512, 64, 1024, 6, 8, 8, false, 306601984, 153.3, 0.1},
    {"umt5-base", "umt5", GELU, 256384, 768, 64, 2048, 12, 12, 12, false, 592043520, 296.0, 0.1},
    {"umt5-xl", "umt5", GELU, 256384, 2048, 64, 5120, 32, 24, 24, false, 3768356864, 1884, 1},
    {"umt5-xxl", "umt5", GELU, 256384, 4096, 64, 10240, 64, 24, 24, false, 12972531712, 6486, 1},
    {"byt5-small", "t5", GELU, 384, 1472, 64, 3584, 6, 12, 4, false, 299637760, 77.5, 0.1},
    {"byt5-base", "t5", GELU, 384, 1536, 64, 3968, 12, 18, 6, false, 581653248, 152.8, 0.1},
    {"byt5-large", "t5", GELU, 384, 1536, 64, 3840, 16, 36, 12, false, 1228183552, 326.2, 0.1},
    {"byt5-xl", "t5", GELU, 384, 2560, 64, 6720, 32, 36, 12, false, 3737801728, 997.9, 0.1},
    {"byt5-xxl", "t5", GELU, 384, 4672, 64, 12352, 64, 36, 12, false, 12906899328, 3457, 1},
    {"madlad400-3b-mt", "t5", GELU, 256000, 1024, 128, 8192, 16, 32, 32, false, 2940374016, 1470, 1},
    {"madlad400-7b-mt", "t5", GELU, 256000, 2048, 128, 8192, 16, 48, 48, false, 8296829952, 4148, 1},
    {"madlad400-10b-mt", "t5", GELU, 256000, 2048, 128, 16384, 32, 32, 32, false, 10712586240, 5356, 1},
    {"ul2", "t5", "gated-silu", 32128, 4096, 256, 16384, 16, 32, 32, true, 19459613696, 9796, 1},
};

typedef struct {
    nw_config       config;
    nw_tensors      tensors;
    nw_tensor_need *list;
    nw_step        *steps;
    size_t          step_count;
} table;

static table table_open(const shape *s)
{
    char      json[512];
    table     t = {0};
    nw_memory mem;
    nw_error  err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    snprintf(json, sizeof json,
             "{\"model_type\":\"%s\",\"vocab_size\":%u,\"d_model\":%u,\"d_kv\":%u,\"d_ff\":%u,\"num_heads\":%u,"
             "\"num_layers\":%u,\"num_decoder_layers\":%u,\"feed_forward_proj\":\"%s\",\"tie_word_embeddings\":%s}",
             s->type, s->vocab, s->d_model, s->d_kv, s->d_ff, s->heads, s->encoder, s->decoder, s->feed_forward,
             s->tied ? "true" : "false");
    assert_int_equal(nw_config_parse(&mem, s->name, json, strlen(json), &t.config, &err), NW_OK);
    t.list = calloc(nw_tensors_count(&t.config), sizeof *t.list);
    nw_tensors_fill(&t.config, t.list, &t.tensors);
    assert_int_equal(t.tensors.count, nw_tensors_count(&t.config));
    return t;
}

static void table_close(table *t)
{
    free(t->list);
    free(t->steps);
}

static void table_schedule(table *t, nw_pass pass)
{
    free(t->steps);
    t->step_count = nw_schedule_count(&t->config, &t->tensors, pass);
    t->steps = calloc(t->step_count + 1, sizeof *t->steps);
    nw_schedule_fill(&t->config, &t->tensors, pass, t->steps);
}

static void test_published_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        table    t = table_open(&shapes[i]);
        uint64_t weights = 0;
        for (uint32_t k = 0; k < t.tensors.count; k++)
            weights += t.list[k].rows * t.list[k].cols;
        if (weights != shapes[i].weights)
            fail_msg("%s: %llu weights", shapes[i].name, (unsigned long long)weights);
        table_close(&t);
    }
}

static bool is_visited(const table *t, nw_pass pass, uint32_t tensor)
{
    const nw_tensor_need *n = &t->list[tensor];
    bool                  cross_kv = n->role == NW_ROLE_CROSS_K || n->role == NW_ROLE_CROSS_V;
    if (n->vector)
        return false;
    switch (pass) {
    case NW_PASS_ENCODE: return n->stack == NW_STACK_ENCODER;
    case NW_PASS_CROSS: return cross_kv;
    default: return (n->stack == NW_STACK_DECODER && !cross_kv) || tensor == t->tensors.head;
    }
}

/* Tiles of each tensor in a pass: each once, in order, and all that the pass is to visit. */
static void check_coverage(table *t, nw_pass pass, const char *name)
{
    uint64_t *next = calloc(t->tensors.count, sizeof *next);
    table_schedule(t, pass);
    for (size_t i = 0; i < t->step_count; i++) {
        uint32_t tensor = t->steps[i].tensor;
        assert_true(tensor < t->tensors.count);
        if (t->steps[i].tile != next[tensor])
            fail_msg("%s: step %zu visits tile %u of tensor %u, not %llu", name, i, t->steps[i].tile, tensor,
                     (unsigned long long)next[tensor]);
        next[tensor]++;
    }
    for (uint32_t k = 0; k < t->tensors.count; k++) {
        const nw_tensor_need *n = &t->list[k];
        assert_int_equal(next[k], is_visited(t, pass, k) ? nw_cut_make(n->rows, n->cols).tile_count : 0);
    }
    free(next);
}

static void test_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        table t = table_open(&shapes[i]);
        for (int pass = 0; pass < NW_PASS_COUNT; pass++)
            check_coverage(&t, (nw_pass)pass, shapes[i].name);
        double millions = 0; /* of the decode pass, the last one made */
        for (size_t k = 0; k < t.step_count; k++) {
            const nw_tensor_need *n = &t.list[t.steps[k].tensor];
            nw_cut                cut = nw_cut_make(n->rows, n->cols);
            millions += (double)(nw_cut_rows(&cut, t.steps[k].tile) * n->cols) * 1e-6;
        }
        /* The published figure has norms and bias tables in it, which are no part of a schedule: under 0.01 %. */
        double off = shapes[i].decoded - millions;
        if (off < -shapes[i].unit || off > shapes[i].unit + shapes[i].decoded * 1e-4)
            fail_msg("%s: %.2f million weights a token, not %.1f", shapes[i].name, millions, shapes[i].decoded);
        table_close(&t);
    }
}

/* wi_0 and wi_1 take turns tile by tile, q k v o come before them, wo after; the head is last. */
static void test_order(void **state)
{
    (void)state;
    const shape xl = {"flan-t5-xl", "t5", GELU, 32128, 2048, 64, 5120, 32, 24, 24, false, 0, 0, 0};
    table       t = table_open(&xl);
    table_schedule(&t, NW_PASS_DECODE);
    uint64_t tiles = nw_cut_make(5120, 2048).tile_count;
    size_t   at = 0, pairs = 0;
    assert_true(tiles > 4);
    for (; at + 1 < t.step_count; at++) {
        const nw_tensor_need *n = &t.list[t.steps[at].tensor];
        if (n->role != NW_ROLE_WI)
            continue;
        const nw_tensor_need *after = &t.list[t.steps[at + 1].tensor];
        assert_int_equal(after->role, NW_ROLE_WI1);
        assert_int_equal(after->block, n->block);
        assert_int_equal(t.steps[at + 1].tile, t.steps[at].tile);
        pairs++;
    }
    assert_int_equal(pairs, tiles * 24);
    static const nw_role roles[] = {NW_ROLE_Q,       NW_ROLE_K,  NW_ROLE_V,   NW_ROLE_O, NW_ROLE_CROSS_Q,
                                    NW_ROLE_CROSS_O, NW_ROLE_WI, NW_ROLE_WI1, NW_ROLE_WO};
    uint32_t             block = 0;
    size_t               role = 0;
    for (at = 0; at < t.step_count && t.steps[at].tensor != t.tensors.head; at++) {
        const nw_tensor_need *n = &t.list[t.steps[at].tensor];
        if (n->block != block) {
            assert_int_equal(n->block, block + 1);
            assert_int_equal(role, 8);
            block++;
            role = 0;
        }
        while (role < 9 && roles[role] != n->role && !(role == 7 && n->role == NW_ROLE_WI))
            role++;
        assert_true(role < 9);
    }
    assert_int_equal(block, 23);
    for (; at < t.step_count; at++)
        assert_int_equal(t.steps[at].tensor, t.tensors.head);
    table_close(&t);
}

static bool name_is(const table *t, nw_stack stack, uint32_t block, nw_role role, const char *want)
{
    char     name[128];
    uint32_t at = nw_tensors_at(&t->tensors, stack, block, role);
    return nw_tensor_name(&t->config, &t->list[at], 0, name, sizeof name) && strcmp(name, want) == 0 &&
           !nw_tensor_name(&t->config, &t->list[at], 1, name, sizeof name);
}

static void test_names(void **state)
{
    (void)state;
    const shape              gated = {"gated", "t5", GELU, 100, 8, 4, 16, 2, 3, 4, false, 0, 0, 0};
    const shape              plain = {"plain", "t5", RELU, 100, 8, 4, 16, 2, 2, 2, true, 0, 0, 0};
    table                    t = table_open(&gated);
    char                     name[128];
    static const char *const embeds[] = {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(nw_tensor_name(&t.config, &t.list[t.tensors.embed], i, name, sizeof name));
        assert_string_equal(name, embeds[i]);
    }
    assert_false(nw_tensor_name(&t.config, &t.list[t.tensors.embed], 3, name, sizeof name));
    assert_true(nw_tensor_name(&t.config, &t.list[t.tensors.head], 0, name, sizeof name));
    assert_string_equal(name, "lm_head.weight");
    assert_true(name_is(&t, NW_STACK_ENCODER, 2, NW_ROLE_WI, "encoder.block.2.layer.1.DenseReluDense.wi_0.weight"));
    assert_true(name_is(&t, NW_STACK_ENCODER, 1, NW_ROLE_NORM_FF, "encoder.block.1.layer.1.layer_norm.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 3, NW_ROLE_WI1, "decoder.block.3.layer.2.DenseReluDense.wi_1.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 0, NW_ROLE_CROSS_K, "decoder.block.0.layer.1.EncDecAttention.k.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 2, NW_ROLE_NORM_CROSS, "decoder.block.2.layer.1.layer_norm.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 1, NW_ROLE_WO, "decoder.block.1.layer.2.DenseReluDense.wo.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 0, NW_ROLE_BIAS,
                        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"));
    assert_true(name_is(&t, NW_STACK_DECODER, 0, NW_ROLE_NORM_FINAL, "decoder.final_layer_norm.weight"));
    assert_true(name_is(&t, NW_STACK_ENCODER, 0, NW_ROLE_NORM_FINAL, "encoder.final_layer_norm.weight"));
    table_close(&t);
    t = table_open(&plain);
    assert_int_equal(t.tensors.head, t.tensors.embed);
    assert_true(name_is(&t, NW_STACK_DECODER, 1, NW_ROLE_WI, "decoder.block.1.layer.2.DenseReluDense.wi.weight"));
    table_close(&t);
}

/* Every index is found again by what it is, in every block; UMT5 has a bias table in each. */
static void test_index(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        table    t = table_open(&shapes[i]);
        uint32_t bias = 0;
        for (uint32_t k = 0; k < t.tensors.count; k++) {
            const nw_tensor_need *n = &t.list[k];
            bias += n->role == NW_ROLE_BIAS ? 1 : 0;
            if (n->stack != NW_STACK_SHARED)
                assert_int_equal(nw_tensors_at(&t.tensors, n->stack, n->block, n->role), k);
        }
        bool each = strcmp(shapes[i].type, "umt5") == 0;
        assert_int_equal(bias, each ? shapes[i].encoder + shapes[i].decoder : 2);
        table_close(&t);
    }
}

/* ---- what only the tensors tell ---- */

static bool has_listed(void *user, const char *name)
{
    for (const char *const *n = user; *n != NULL; n++) {
        if (strcmp(*n, name) == 0)
            return true;
    }
    return false;
}

#define WI0 "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
#define WI "encoder.block.0.layer.1.DenseReluDense.wi.weight"

static nw_code settle(nw_config *c, const char *const *names)
{
    nw_error         err = {0};
    nw_tensor_lookup lookup = {.user = (void *)(uintptr_t)names, .has = has_listed};
    return nw_config_settle(c, &lookup, &err);
}

/* A file with more blocks than its config.json says is another model's. */
static void test_more_blocks(void **state)
{
    (void)state;
    static const char *const encoder[] = {WI, "encoder.block.2.layer.0.SelfAttention.q.weight", NULL};
    static const char *const decoder[] = {WI, "decoder.final_layer_norm.weight",
                                          "decoder.block.3.layer.0.SelfAttention.q.weight", NULL};
    nw_config c = {.encoder_blocks = 2, .decoder_blocks = 3, .head_tied = true};
    assert_int_equal(settle(&c, encoder), NW_E_FORMAT);
    c = (nw_config){.encoder_blocks = 3, .head_tied = true};
    assert_int_equal(settle(&c, encoder), NW_OK);
    c = (nw_config){.encoder_blocks = 2, .decoder_blocks = 3, .head_tied = true};
    assert_int_equal(settle(&c, decoder), NW_E_FORMAT);
    c = (nw_config){.encoder_blocks = 2, .decoder_blocks = 4, .head_tied = true};
    assert_int_equal(settle(&c, decoder), NW_OK);
    c = (nw_config){.encoder_blocks = 2, .decoder_blocks = 0, .head_tied = true}; /* the encoder of a whole model */
    assert_int_equal(settle(&c, decoder), NW_OK);
}

static void test_settle(void **state)
{
    (void)state;
    static const char *const full[] = {WI0, "lm_head.weight", "decoder.final_layer_norm.weight",
                                       "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight", NULL};
    static const char *const encoder[] = {WI, NULL}, *const both[] = {WI, WI0, NULL}, *const neither[] = {NULL};
    static const char *const headless[] = {WI0, "decoder.final_layer_norm.weight", NULL};
    nw_config                c = {.encoder_blocks = 2, .decoder_blocks = 2, .gated = false, .head_tied = false};
    assert_int_equal(settle(&c, full), NW_OK);
    assert_true(c.gated && !c.head_tied && c.bias_per_block && c.decoder_blocks == 2);
    c = (nw_config){.encoder_blocks = 2, .decoder_blocks = 2, .gated = true, .bias_per_block = true, .head_tied = true};
    assert_int_equal(settle(&c, encoder), NW_OK);
    assert_true(!c.gated && !c.bias_per_block && c.decoder_blocks == 0);
    c.decoder_blocks = 2;
    c.head_tied = false;
    assert_int_equal(settle(&c, headless), NW_E_FORMAT); /* the embedding as a head would answer garbage */
    c.head_tied = true;
    assert_int_equal(settle(&c, headless), NW_OK);
    assert_true(c.gated && c.head_tied && c.decoder_blocks == 2);
    assert_int_equal(settle(&c, both), NW_E_FORMAT);
    assert_int_equal(settle(&c, neither), NW_E_FORMAT);
}

/* ---- relative attention ---- */

static nw_config bucket_config(uint32_t count, uint32_t distance)
{
    return (nw_config){.bucket_count = count, .bucket_distance = distance};
}

static void check_starts(bool bidirectional, const uint32_t *want, uint32_t count)
{
    nw_config c = bucket_config(32, 128);
    uint32_t  starts[32], bucket[4097];
    assert_int_equal(nw_bucket_starts(&c, bidirectional, starts), count);
    assert_memory_equal(starts, want, count * sizeof *starts);
    nw_bucket_table(&c, bidirectional, bucket, 4097);
    for (uint32_t d = 0, b = 0; d <= 4096; d++) {
        while (b + 1 < count && d >= want[b + 1])
            b++;
        assert_int_equal(bucket[d], b);
    }
}

static void test_bucket_thresholds(void **state)
{
    (void)state;
    static const uint32_t encoder[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const uint32_t decoder[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    check_starts(true, encoder, 16);
    check_starts(false, decoder, 32);
}

static void test_bucket_vectors(void **state)
{
    (void)state;
    static const uint32_t encoder[] = {10, 10, 10, 10, 10, 9,  9,  9,  9,  8,  8,  8,  8,  7,  6,  5,  4,  3,  2,  1, 0,
                                       17, 18, 19, 20, 21, 22, 23, 24, 24, 24, 24, 25, 25, 25, 25, 26, 26, 26, 26, 26};
    static const uint32_t decoder[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                       14, 15, 16, 16, 16, 17, 17, 18, 18, 18, 19, 19, 19, 20,
                                       20, 20, 20, 21, 21, 21, 21, 22, 22, 22, 22, 22, 23};
    nw_config             c = bucket_config(32, 128);
    uint32_t              bucket[64];
    nw_bucket_table(&c, true, bucket, 64);
    for (int rel = -20; rel <= 20; rel++)
        assert_int_equal(bucket[abs(rel)] + (rel > 0 ? 16 : 0), encoder[rel + 20]);
    nw_bucket_table(&c, false, bucket, 64);
    for (uint32_t d = 0; d <= 40; d++)
        assert_int_equal(bucket[d], decoder[d]);
}

/* Other tables: buckets never fall, the exact half is exact, and the last bucket is reached at the maximum distance. */
static void test_other_buckets(void **state)
{
    (void)state;
    static const uint32_t counts[] = {4, 8, 16, 32, 64, 128}, distances[] = {3, 20, 64, 128, 256, 1000};
    static uint32_t       bucket[4097];
    for (size_t i = 0; i < 6; i++) {
        for (size_t k = 0; k < 6; k++) {
            nw_config c = bucket_config(counts[i], distances[k]);
            for (int both = 0; both < 2 && distances[k] > counts[i] / 2; both++) {
                uint32_t half = both == 1 ? counts[i] / 2 : counts[i];
                nw_bucket_table(&c, both == 1, bucket, 4097);
                for (uint32_t d = 1; d <= 4096; d++) {
                    assert_true(bucket[d] >= bucket[d - 1] && bucket[d] < half);
                    assert_true(d >= half / 2 || bucket[d] == d);
                }
                assert_int_equal(bucket[4096], half - 1);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_counts),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_more_blocks),
        cmocka_unit_test(test_settle),
        cmocka_unit_test(test_bucket_thresholds),
        cmocka_unit_test(test_bucket_vectors),
        cmocka_unit_test(test_other_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A configuration read off the tensors: for every kind of published model, each rule by itself, and what no T5 can be.
 */
#include "model/infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A checkpoint's names and shapes. */
enum { TENSORS_MAX = 4096 };
typedef struct {
    char     name[96];
    uint32_t dim_count;
    uint64_t dims[2];
} listed;

typedef struct {
    listed list[TENSORS_MAX];
    size_t count;
} names;

static names files; /* of the test at hand */

static listed *find(const char *name)
{
    for (size_t i = 0; i < files.count; i++) {
        if (strcmp(files.list[i].name, name) == 0)
            return &files.list[i];
    }
    return NULL;
}

static bool has(void *user, const char *name)
{
    assert_ptr_equal(user, &files);
    return find(name) != NULL;
}

static uint32_t dims(void *user, const char *name, uint64_t ret[2])
{
    assert_ptr_equal(user, &files);
    const listed *t = find(name);
    if (t == NULL)
        return 0;
    memcpy(ret, t->dims, sizeof t->dims);
    return t->dim_count;
}

static const nw_tensor_lookup lookup = {.user = &files, .has = has, .dims = dims};

static void add(const char *name, uint64_t rows, uint64_t cols)
{
    assert_true(files.count < TENSORS_MAX);
    listed *t = &files.list[files.count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dim_count = 2;
    t->dims[0] = rows;
    t->dims[1] = cols;
}

static void drop(const char *name)
{
    listed *t = find(name);
    assert_non_null(t);
    *t = files.list[--files.count];
}

static void rename_to(const char *name, const char *to)
{
    listed *t = find(name);
    assert_non_null(t);
    snprintf(t->name, sizeof t->name, "%s", to);
}

static void reshape(const char *name, uint64_t rows, uint64_t cols)
{
    listed *t = find(name);
    assert_non_null(t);
    t->dims[0] = rows;
    t->dims[1] = cols;
}

/* All tensors that a configuration needs, under their first names. */
static void list_all(const nw_config *c)
{
    nw_tensors      t;
    nw_tensor_need *list = calloc(nw_tensors_count(c), sizeof *list);
    nw_tensors_fill(c, list, &t);
    files.count = 0;
    for (uint32_t i = 0; i < t.count; i++) {
        char name[96];
        assert_true(nw_tensor_name(c, &list[i], 0, name, sizeof name));
        add(name, list[i].rows, list[i].cols);
    }
    free(list);
}

static nw_config flan(void)
{
    return (nw_config){.model_type = "t5",
                       .vocab_size = 32128,
                       .d_model = 512,
                       .d_kv = 64,
                       .d_ff = 1024,
                       .head_count = 6,
                       .encoder_blocks = 8,
                       .decoder_blocks = 8,
                       .bucket_count = 32,
                       .bucket_distance = 128,
                       .norm_epsilon = 1e-6f,
                       .activation = NW_ACT_GELU_TANH,
                       .gated = true,
                       .pad_id = 0,
                       .start_id = 0,
                       .eos_ids = {1},
                       .eos_count = 1};
}

static nw_infer_notes notes;

static nw_config infer(void)
{
    nw_config c;
    nw_error  err = {0};
    if (nw_config_infer(&lookup, &c, &notes, &err) != NW_OK)
        fail_msg("%s", err.msg);
    return c;
}

static void refuses(const char *part)
{
    nw_config c = {.d_ff = 7};
    nw_error  err = {0};
    assert_int_equal(nw_config_infer(&lookup, &c, &notes, &err), NW_E_FORMAT);
    if (strstr(err.msg, part) == NULL)
        fail_msg("'%s' lacks '%s'", err.msg, part);
    assert_int_equal(c.d_ff, 7); /* untouched */
}

static void says(int line, const char *part)
{
    if (strstr(notes.line[line], part) == NULL)
        fail_msg("'%s' lacks '%s'", notes.line[line], part);
}

static void check_equal(const nw_config *have, const nw_config *want)
{
    assert_string_equal(have->model_type, want->model_type);
    assert_int_equal(have->vocab_size, want->vocab_size);
    assert_int_equal(have->d_model, want->d_model);
    assert_int_equal(have->d_kv, want->d_kv);
    assert_int_equal(have->d_ff, want->d_ff);
    assert_int_equal(have->head_count, want->head_count);
    assert_int_equal(have->encoder_blocks, want->encoder_blocks);
    assert_int_equal(have->decoder_blocks, want->decoder_blocks);
    assert_int_equal(have->bucket_count, want->bucket_count);
    assert_int_equal(have->bucket_distance, want->bucket_distance);
    assert_memory_equal(&have->norm_epsilon, &want->norm_epsilon, sizeof want->norm_epsilon);
    assert_int_equal(have->activation, want->activation);
    assert_int_equal(have->gated, want->gated);
    assert_int_equal(have->head_tied, want->head_tied);
    assert_int_equal(have->scale_output, want->scale_output);
    assert_int_equal(have->bias_per_block, want->bias_per_block);
    assert_int_equal(have->byte_tokens, want->byte_tokens);
    assert_int_equal(have->pad_id, want->pad_id);
    assert_int_equal(have->start_id, want->start_id);
    assert_int_equal(have->eos_count, want->eos_count);
    assert_int_equal(have->eos_ids[0], want->eos_ids[0]);
}

/* Whatever is listed for a configuration gives that configuration back. */
static void test_published(void **state)
{
    (void)state;
    nw_config want = flan();
    list_all(&want);
    nw_config have = infer();
    check_equal(&have, &want);

    /* T5 v1.0 3B: inner 4096 is not d_model; plain, tied, scaled. */
    want = flan();
    want.d_model = 1024, want.d_kv = 128, want.d_ff = 16384, want.head_count = 32, want.encoder_blocks = 24;
    want.decoder_blocks = 24, want.gated = false, want.activation = NW_ACT_RELU;
    want.head_tied = want.scale_output = true;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);

    /* UMT5: a table in every block, never scaled. */
    want = flan();
    want.vocab_size = 256384, want.bias_per_block = true;
    snprintf(want.model_type, sizeof want.model_type, "umt5");
    list_all(&want);
    have = infer();
    check_equal(&have, &want);
    want.head_tied = true;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);

    /* ByT5: fewer decoder blocks, bytes. */
    want = flan();
    want.vocab_size = 384, want.d_model = 1472, want.encoder_blocks = 12, want.decoder_blocks = 4;
    want.byte_tokens = true;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);
    says(0, "ByT5");

    /* UL2, by all four of its sizes. */
    want = flan();
    want.d_model = 4096, want.d_kv = 256, want.d_ff = 16384, want.head_count = 16, want.encoder_blocks = 32;
    want.decoder_blocks = 32, want.activation = NW_ACT_SILU, want.head_tied = want.scale_output = true;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);
    says(2, "silu");
    want.d_ff = 16383, want.activation = NW_ACT_GELU_TANH;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);
}

/* MADLAD by where its embedding is and by its size, both. */
static void test_madlad(void **state)
{
    (void)state;
    static const struct {
        const char *embed;
        uint32_t    vocab;
        bool        madlad;
    } cases[] = {{"decoder.embed_tokens.weight", 256000, true},
                 {"decoder.embed_tokens.weight", 256384, true},
                 {"decoder.embed_tokens.weight", 255999, false},
                 {"decoder.embed_tokens.weight", 256385, false},
                 {"shared.weight", 256000, false},
                 {"encoder.embed_tokens.weight", 256000, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nw_config want = flan();
        want.vocab_size = cases[i].vocab;
        want.pad_id = cases[i].madlad ? 1 : 0;
        want.eos_ids[0] = cases[i].madlad ? 2 : 1;
        list_all(&want);
        rename_to("shared.weight", cases[i].embed);
        nw_config have = infer();
        check_equal(&have, &want);
        says(0, cases[i].embed);
        says(2, cases[i].madlad ? "pad 1, end 2, start 0" : "pad 0, end 1, start 0");
    }
    nw_config want = flan(); /* another copy beside it: not MADLAD */
    want.vocab_size = 256000;
    list_all(&want);
    add("decoder.embed_tokens.weight", 256000, 512);
    nw_config have = infer();
    check_equal(&have, &want);
}

static void test_heads(void **state)
{
    (void)state;
    /* Older files of T5 v1.0 hold the embedding once more as the head: still scaled. */
    nw_config want = flan();
    want.gated = false, want.activation = NW_ACT_RELU, want.scale_output = true;
    list_all(&want);
    assert_non_null(find("lm_head.weight"));
    nw_config have = infer();
    check_equal(&have, &want);
    says(1, "scaled by d_model^-0.5 as in every plain T5");

    /* Encoder only: no head, nothing to scale. */
    want = flan();
    want.decoder_blocks = 0, want.head_tied = true;
    list_all(&want);
    have = infer();
    check_equal(&have, &want);
    says(1, "8 encoder blocks, no decoder");
}

static void test_notes(void **state)
{
    (void)state;
    nw_config want = flan();
    want.bucket_count = 16;
    list_all(&want);
    infer();
    says(0, "no config.json");
    says(0, "vocab_size 32128");
    says(0, "d_model 512 (shared.weight)");
    says(0, "6 heads of 64, 16 buckets");
    says(0, "d_ff 1024 (DenseReluDense.wi_0)");
    says(1, "8 encoder and 8 decoder blocks; gated");
    says(1, "first block");
    says(1, "head separate (lm_head.weight), its input not scaled");
    says(2, "assumed");
    says(2, "gelu_new, bucket distance 128, norm epsilon 1e-6, pad 0, end 1, start 0");
    for (int i = 0; i < NW_INFER_LINES; i++)
        assert_true(strlen(notes.line[i]) < NW_INFER_LINE_BYTES - 40);
}

#define BLOCK0 "encoder.block.0.layer."
#define Q BLOCK0 "0.SelfAttention.q.weight"
#define BIAS BLOCK0 "0.SelfAttention.relative_attention_bias.weight"
#define WI0 BLOCK0 "1.DenseReluDense.wi_0.weight"

static void test_no_t5(void **state)
{
    (void)state;
    nw_config          c = flan();
    static const char *needed[] = {"shared.weight", Q, BIAS, WI0};
    for (size_t i = 0; i < 4; i++) {
        list_all(&c);
        drop(needed[i]);
        refuses("missing");
    }
    static const struct {
        const char *name;
        uint64_t    rows, cols;
        const char *part;
    } shapes[] = {
        {Q, 384, 511, "has 511 columns, and shared.weight has 512"},
        {Q, 383, 512, "383 rows"},
        {Q, 0, 512, Q},
        {Q, 1, (1u << 24) + 1, Q},
        {Q, UINT64_MAX, 512, Q},
        {BIAS, 32, 5, "5 heads"},
        {BIAS, 31, 6, "31 relative attention buckets"},
        {BIAS, 2, 6, "buckets"},
        {BIAS, 8192, 6, "relative_attention_num_buckets is 8192"},
        {BIAS, 256, 6, "maximum distance of 128"},
        {WI0, (1u << 22) + 1, 512, "d_ff"},
        {WI0, 0, 512, WI0},
        {"shared.weight", 1, 512, "token id 1 is not below vocab_size 1"},
        {"shared.weight", 32128, (1u << 20) + 1, "columns"},
        {"shared.weight", (1u << 24) + 1, 512, "shared.weight"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        list_all(&c);
        reshape(shapes[i].name, shapes[i].rows, shapes[i].cols);
        refuses(shapes[i].part);
    }
    for (uint32_t count = 1; count <= 4; count++) {
        list_all(&c);
        find(Q)->dim_count = count;
        if (count == 2)
            infer();
        else
            refuses("dimensions");
    }
}

/* Blocks are counted up to the first that is missing; where others follow, nw_tensor_expected finds them. */
static void test_block_count(void **state)
{
    (void)state;
    nw_config c = flan();
    list_all(&c);
    drop("encoder.block.5.layer.0.SelfAttention.q.weight");
    nw_config have = infer();
    assert_int_equal(have.encoder_blocks, 5);
    assert_false(nw_tensor_expected(&have, "encoder.block.5.layer.0.SelfAttention.k.weight"));
    assert_false(nw_tensor_expected(&have, "encoder.block.6.layer.0.SelfAttention.q.weight"));
}

/* All names of a configuration are expected, for each kind, and no others. */
static void test_expected(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        nw_config c = flan();
        c.gated = (kind & 1) != 0;
        c.bias_per_block = (kind & 2) != 0;
        c.head_tied = (kind & 4) != 0;
        c.encoder_blocks = 12;
        list_all(&c);
        for (size_t i = 0; i < files.count; i++) {
            if (!nw_tensor_expected(&c, files.list[i].name))
                fail_msg("%s", files.list[i].name);
        }
        assert_true(nw_tensor_expected(&c, WI0) == c.gated);
        assert_true(nw_tensor_expected(&c, BLOCK0 "1.DenseReluDense.wi.weight") == !c.gated);
        assert_true(nw_tensor_expected(&c, "encoder.block.11.layer.0.SelfAttention.relative_attention_bias.weight") ==
                    c.bias_per_block);
        assert_true(nw_tensor_expected(&c, "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight") ==
                    c.bias_per_block);
    }
}

static void test_unexpected(void **state)
{
    (void)state;
    nw_config                c = flan();
    static const char *const harmless[] = {"shared.weight",
                                           "encoder.embed_tokens.weight",
                                           "decoder.embed_tokens.weight",
                                           "lm_head.weight",
                                           "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                                           "classification_head.dense.weight",
                                           "first_stage_model.encoder.x",
                                           "encoders.x"};
    static const char *const wrong[] = {BLOCK0 "0.SelfAttention.q.bias",
                                        BLOCK0 "0.SelfAttention.q.weight.extra",
                                        BLOCK0 "0.SelfAttention.q",
                                        BLOCK0 "0.SelfAttention.q.scale_weight",
                                        BLOCK0 "0.SelfAttention.q.lora_A.weight",
                                        BLOCK0 "0.LocalSelfAttention.q.weight",
                                        BLOCK0 "0.layer_norm.bias",
                                        BLOCK0 "1.mlp.router.classifier.weight",
                                        BLOCK0 "1.EncDecAttention.q.weight",
                                        BLOCK0 "1.EncDecAttention.relative_attention_bias.weight",
                                        BLOCK0 "2.DenseReluDense.wo.weight",
                                        "encoder.block.8.layer.0.layer_norm.weight",
                                        "encoder.block.00.layer.0.layer_norm.weight",
                                        "encoder.block.01.layer.0.layer_norm.weight",
                                        "encoder.block..layer.0.layer_norm.weight",
                                        "encoder.block.-1.layer.0.layer_norm.weight",
                                        "encoder.block.4294967296.layer.0.layer_norm.weight",
                                        "encoder.block.1",
                                        "encoder.block.1layer.0.layer_norm.weight",
                                        "encoder.block.",
                                        "encoder.",
                                        "encoder.relative_bias.biases.0.weight",
                                        "encoder.final_layer_norm.bias",
                                        "decoder.block.8.layer.0.layer_norm.weight",
                                        "decoder.block.0.layer.1.EncDecAttention.q.bias",
                                        "decoder.block.0.layer.1.DenseReluDense.wo.weight",
                                        "decoder.pooler.weight",
                                        "shared.weight_scale",
                                        "lm_head.bias"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        if (!nw_tensor_expected(&c, harmless[i]))
            fail_msg("%s", harmless[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (nw_tensor_expected(&c, wrong[i]))
            fail_msg("%s", wrong[i]);
    }
    c.decoder_blocks = 0; /* the encoder of a whole model: the rest of it is beside the point */
    assert_true(nw_tensor_expected(&c, "decoder.block.8.layer.0.layer_norm.weight"));
    assert_true(nw_tensor_expected(&c, "lm_head.bias"));
    assert_false(nw_tensor_expected(&c, BLOCK0 "0.SelfAttention.q.bias"));
}

static void test_other_heads(void **state)
{
    (void)state;
    assert_true(nw_tensor_of_other_head("classification_head.dense.weight"));
    assert_true(nw_tensor_of_other_head("classifier.bias"));
    assert_true(nw_tensor_of_other_head("qa_outputs.weight"));
    assert_false(nw_tensor_of_other_head("lm_head.weight"));
    assert_false(nw_tensor_of_other_head("encoder.classifier.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_madlad),     cmocka_unit_test(test_heads),
        cmocka_unit_test(test_notes),     cmocka_unit_test(test_no_t5),      cmocka_unit_test(test_block_count),
        cmocka_unit_test(test_expected),  cmocka_unit_test(test_unexpected), cmocka_unit_test(test_other_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

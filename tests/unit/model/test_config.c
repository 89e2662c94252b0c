/* config.json as files in the wild have it: defaults by model type, contradictions, and what must be refused. */
#include "model/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHAPE "\"vocab_size\":100,\"d_model\":16,\"d_kv\":8,\"d_ff\":32,\"num_heads\":2,\"num_layers\":3"

static nw_code parse(const char *json, nw_config *ret, nw_error *err)
{
    nw_memory mem;
    *err = (nw_error){0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_config_parse(&mem, "config.json", json, strlen(json), ret, err);
    assert_int_equal(mem.live, 0);
    return rc;
}

static nw_config parsed(const char *json)
{
    nw_config c;
    nw_error  err;
    if (parse(json, &c, &err) != NW_OK)
        fail_msg("%s: %s", json, err.msg);
    return c;
}

static void test_defaults(void **state)
{
    (void)state;
    nw_config c = parsed("{\"model_type\":\"t5\"," SHAPE "}");
    assert_int_equal(c.activation, NW_ACT_RELU);
    assert_false(c.gated);
    assert_true(c.scale_output); /* a missing tie key means tied */
    assert_int_equal(c.decoder_blocks, 3);
    assert_int_equal(c.bucket_count, 32);
    assert_int_equal(c.bucket_distance, 128);
    assert_true(c.norm_epsilon == 1e-6f);
    assert_int_equal(c.eos_ids[0], 1);
    assert_int_equal(c.start_id, 0);
    c = parsed("{\"model_type\":\"mt5\"," SHAPE "}");
    assert_int_equal(c.activation, NW_ACT_GELU_TANH);
    assert_true(c.gated);
    assert_false(c.scale_output);
    c = parsed("{\"model_type\":\"umt5\"," SHAPE ",\"dense_act_fn\":\"relu\",\"is_gated_act\":false}");
    assert_int_equal(c.activation, NW_ACT_GELU_TANH); /* google/umt5-base stores relu; the type's default wins */
    assert_true(c.gated);
    c = parsed("{\"architectures\":[\"T5ForConditionalGeneration\"]," SHAPE "}");
    assert_string_equal(c.model_type, "t5");
}

static void test_activations(void **state)
{
    (void)state;
    static const struct {
        const char   *keys;
        nw_activation act;
    } table[] = {
        {"\"feed_forward_proj\":\"relu\"", NW_ACT_RELU},
        {"\"feed_forward_proj\":\"gated-gelu\"", NW_ACT_GELU_TANH}, /* has meant gelu_new since v1.1 */
        {"\"feed_forward_proj\":\"gated-silu\"", NW_ACT_SILU},
        {"\"feed_forward_proj\":\"gelu\",\"dense_act_fn\":\"gelu\",\"is_gated_act\":true", NW_ACT_GELU_ERF},
        {"\"feed_forward_proj\":\"gated-gelu\",\"dense_act_fn\":\"gelu\"", NW_ACT_GELU_ERF}, /* what is stored wins */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char json[512];
        snprintf(json, sizeof json, "{\"model_type\":\"t5\"," SHAPE ",%s}", table[i].keys);
        assert_int_equal(parsed(json).activation, table[i].act);
    }
}

static void test_ids_and_scale(void **state)
{
    (void)state;
    nw_config c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"pad_token_id\":1,\"eos_token_id\":[2,7],"
                         "\"decoder_start_token_id\":0,\"tie_word_embeddings\":false,\"num_decoder_layers\":1}");
    assert_int_equal(c.pad_id, 1);
    assert_int_equal(c.start_id, 0);
    assert_int_equal(c.eos_count, 2);
    assert_true(nw_config_is_eos(&c, 7));
    assert_false(nw_config_is_eos(&c, 1));
    assert_false(c.scale_output);
    assert_int_equal(c.decoder_blocks, 1);
    c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"tie_word_embeddings\":true,\"scale_decoder_outputs\":false}");
    assert_false(c.scale_output); /* transformers 5 */
    c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"pad_token_id\":5}");
    assert_int_equal(c.start_id, 5); /* without its own key: the pad token */
    c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"is_encoder_decoder\":false}");
    assert_int_equal(c.decoder_blocks, 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        nw_code     code;
    } table[] = {
        {"", NW_E_FORMAT},
        {"[]", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"}", NW_E_FORMAT},
        {"{" SHAPE "}", NW_E_FORMAT},
        {"{\"model_type\":\"longt5\"," SHAPE "}", NW_E_UNSUPPORTED},
        {"{\"model_type\":\"t5\"," SHAPE ",\"feed_forward_proj\":\"gated-nonsense\"}", NW_E_UNSUPPORTED},
        {"{\"model_type\":\"t5\"," SHAPE ",\"d_model\":16}", NW_E_FORMAT}, /* twice */
        {"{\"model_type\":\"t5\"," SHAPE ",\"eos_token_id\":100}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"eos_token_id\":-1}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"layer_norm_epsilon\":1e308}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"relative_attention_num_buckets\":1}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"relative_attention_num_buckets\":33}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"relative_attention_max_distance\":16}", NW_E_FORMAT},
        {"{\"model_type\":\"t5\"," SHAPE ",\"tie_word_embeddings\":\"no\"}", NW_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        nw_config c;
        nw_error  err;
        nw_code   rc = parse(table[i].json, &c, &err);
        if (rc != table[i].code)
            print_error("%s gives %d: %s\n", table[i].json, rc, err.msg);
        assert_int_equal(rc, table[i].code);
        assert_non_null(strstr(err.msg, "config.json"));
    }
}

/* Every dimension with every kind of wrong number. */
static void test_hostile_numbers(void **state)
{
    (void)state;
    static const char *const keys[] = {"vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers"};
    static const char *const values[] = {
        "0",  "-1",   "4294967296", "18446744073709551616", "1e308", "1.5", "1e2", "\"16\"", "null", "[]",
        "{}", "true", "2147483648"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char      json[512] = "{\"model_type\":\"t5\"";
            nw_config c;
            nw_error  err;
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
                size_t at = strlen(json);
                snprintf(json + at, sizeof json - at, ",\"%s\":%s", keys[i], i == k ? values[v] : "16");
            }
            strncat(json, "}", sizeof json - strlen(json) - 1);
            assert_int_equal(parse(json, &c, &err), NW_E_FORMAT);
        }
    }
}

static void test_deep(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char     *json = malloc(2 * DEPTH + 64);
    nw_config c;
    nw_error  err;
    size_t    at = (size_t)snprintf(json, 64, "{\"a\":");
    memset(json + at, '[', DEPTH);
    memset(json + at + DEPTH, ']', DEPTH);
    memcpy(json + at + 2 * DEPTH, "}", 2);
    assert_int_equal(parse(json, &c, &err), NW_E_FORMAT);
    free(json);
}

static bool has_name(void *user, const char *name)
{
    for (const char *const *n = user; *n != NULL; n++) {
        if (strcmp(*n, name) == 0)
            return true;
    }
    return false;
}

/* What the tensors decide over the file. */
static void test_settled_by_tensors(void **state)
{
    (void)state;
    const char *plain[] = {"encoder.block.0.layer.1.DenseReluDense.wi.weight",
                           "decoder.block.0.layer.0.SelfAttention.q.weight", NULL};
    const char *gated[] = {"encoder.block.0.layer.1.DenseReluDense.wi_0.weight", "lm_head.weight",
                           "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
                           "decoder.final_layer_norm.weight", NULL};
    const char *encoder[] = {"encoder.block.0.layer.1.DenseReluDense.wi_0.weight", NULL};
    const char *none[] = {"lm_head.weight", NULL};
    nw_error    err = {0};
    nw_config   c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"feed_forward_proj\":\"gated-gelu\"}");
    nw_code     rc = nw_config_settle(&c, &(nw_tensor_lookup){.user = plain, .has = has_name}, &err);
    assert_int_equal(rc, NW_OK);
    assert_false(c.gated);
    assert_true(c.head_tied);
    assert_int_equal(c.decoder_blocks, 3);
    c = parsed("{\"model_type\":\"t5\"," SHAPE ",\"tie_word_embeddings\":false}");
    rc = nw_config_settle(&c, &(nw_tensor_lookup){.user = gated, .has = has_name}, &err);
    assert_int_equal(rc, NW_OK);
    assert_true(c.gated && !c.head_tied && c.bias_per_block);
    rc = nw_config_settle(&c, &(nw_tensor_lookup){.user = encoder, .has = has_name}, &err);
    assert_int_equal(rc, NW_OK);
    assert_int_equal(c.decoder_blocks, 0);
    rc = nw_config_settle(&c, &(nw_tensor_lookup){.user = none, .has = has_name}, &err);
    assert_int_equal(rc, NW_E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),           cmocka_unit_test(test_activations),
        cmocka_unit_test(test_ids_and_scale),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hostile_numbers),    cmocka_unit_test(test_deep),
        cmocka_unit_test(test_settled_by_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* config.json: what is left out gets the reference's defaults, what contradicts itself is resolved as the reference
 * does, and numbers that no model has are refused with one line that names the file. */
#include "model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZES "\"vocab_size\":100,\"d_model\":8,\"d_kv\":4,\"d_ff\":16,\"num_heads\":2,\"num_layers\":3"
#define T5 "\"model_type\":\"t5\"," SIZES

static nw_memory mem;
static nw_error  err;
static nw_config config;

static nw_code parse(const char *json)
{
    nw_memory_init(&mem, UINT64_MAX, NULL);
    err = (nw_error){0};
    memset(&config, 0x5a, sizeof config); /* a failed call leaves it alone */
    nw_code   rc = nw_config_parse(&mem, "dir/config.json", json, strlen(json), &config, &err);
    nw_config before;
    memset(&before, 0x5a, sizeof before);
    if (rc != NW_OK) {
        assert_memory_equal(&config, &before, sizeof config);
        assert_int_equal(err.code, rc);
        assert_non_null(strstr(err.msg, "dir/config.json"));
        assert_null(strchr(err.msg, '\n'));
    }
    assert_int_equal(mem.live, 0);
    return rc;
}

/* The members of an object, without its braces. */
static void good(const char *members)
{
    char json[2048];
    snprintf(json, sizeof json, "{%s}", members);
    if (parse(json) != NW_OK)
        fail_msg("%s: %s", json, err.msg);
}

static void bad(const char *members, nw_code code)
{
    char json[2048];
    snprintf(json, sizeof json, "{%s}", members);
    nw_code rc = parse(json);
    if (rc != code)
        fail_msg("%s: code %d, not %d: %s", json, rc, code, err.msg);
}

static void test_defaults(void **state)
{
    (void)state;
    good(T5);
    assert_string_equal(config.model_type, "t5");
    assert_int_equal(config.encoder_blocks, 3);
    assert_int_equal(config.decoder_blocks, 3);
    assert_int_equal(config.bucket_count, 32);
    assert_int_equal(config.bucket_distance, 128);
    assert_true(config.norm_epsilon == 1e-6f);
    assert_true(config.activation == NW_ACT_RELU && !config.gated);
    assert_true(config.head_tied && config.scale_output && !config.bias_per_block && !config.byte_tokens);
    assert_true(config.pad_id == 0 && config.start_id == 0 && config.eos_count == 1 && config.eos_ids[0] == 1);
    static const char *const others[] = {"mt5", "umt5"};
    for (int i = 0; i < 2; i++) {
        char members[512];
        snprintf(members, sizeof members, "\"model_type\":\"%s\",%s", others[i], SIZES);
        good(members);
        assert_string_equal(config.model_type, others[i]);
        assert_true(config.activation == NW_ACT_GELU_TANH && config.gated && !config.scale_output);
        assert_int_equal(config.bias_per_block, i == 1);
    }
}

static void test_model_types(void **state)
{
    (void)state;
    good("\"architectures\":[\"T5ForConditionalGeneration\"]," SIZES);
    assert_string_equal(config.model_type, "t5");
    good("\"architectures\":[\"T5ForConditionalGeneration\"],\"model_type\":\"mt5\"," SIZES);
    assert_string_equal(config.model_type, "mt5");
    good("\"architectures\":[\"T5WithLMHeadModel\"]," T5);
    assert_int_equal(config.decoder_blocks, 3);
    good("\"architectures\":[\"T5EncoderModel\"]," T5);
    assert_int_equal(config.decoder_blocks, 0);
    good("\"architectures\":[\"UMT5EncoderModel\"],\"model_type\":\"umt5\"," SIZES);
    assert_int_equal(config.decoder_blocks, 0);
    good("\"is_encoder_decoder\":false," T5);
    assert_int_equal(config.decoder_blocks, 0);
    good("\"tokenizer_class\":\"ByT5Tokenizer\"," T5);
    assert_true(config.byte_tokens);
    bad(SIZES, NW_E_FORMAT);
    bad("\"model_type\":\"longt5\"," SIZES, NW_E_UNSUPPORTED);
    bad("\"model_type\":\"switch_transformers\"," SIZES, NW_E_UNSUPPORTED);
    bad("\"model_type\":\"T5\"," SIZES, NW_E_UNSUPPORTED);
    bad("\"model_type\":5," SIZES, NW_E_FORMAT);
}

static void test_feed_forward(void **state)
{
    (void)state;
    static const struct {
        const char   *members;
        nw_activation activation;
        bool          gated;
    } cases[] = {
        {"\"feed_forward_proj\":\"relu\"", NW_ACT_RELU, false},
        {"\"feed_forward_proj\":\"gated-gelu\"", NW_ACT_GELU_TANH, true},
        {"\"feed_forward_proj\":\"gated-relu\"", NW_ACT_RELU, true},
        {"\"feed_forward_proj\":\"gated-silu\"", NW_ACT_SILU, true},
        {"\"feed_forward_proj\":\"gelu\"", NW_ACT_GELU_ERF, false},
        {"\"feed_forward_proj\":\"gelu_new\"", NW_ACT_GELU_TANH, false},
        {"\"feed_forward_proj\":\"swish\"", NW_ACT_SILU, false},
        /* philschmid/flan-t5-xxl-sharded-fp16: exact GELU; that it is gated the tensors say */
        {"\"feed_forward_proj\":\"gelu\",\"dense_act_fn\":\"gelu\",\"is_gated_act\":true", NW_ACT_GELU_ERF, false},
        {"\"feed_forward_proj\":\"gated-gelu\",\"dense_act_fn\":\"gelu_new\"", NW_ACT_GELU_TANH, true},
        {"\"feed_forward_proj\":\"gated-gelu\",\"dense_act_fn\":\"silu\"", NW_ACT_SILU, true},
        {"\"feed_forward_proj\":\"gated-gelu\",\"dense_act_fn\":null", NW_ACT_GELU_TANH, true},
        {"\"feed_forward_proj\":null", NW_ACT_RELU, false},
    };
    char members[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(members, sizeof members, "%s,%s", cases[i].members, T5);
        good(members);
        assert_int_equal(config.activation, cases[i].activation);
        assert_int_equal(config.gated, cases[i].gated);
    }
    /* google/umt5-base: relu is stored, the weights are gated GELU */
    good("\"model_type\":\"umt5\",\"dense_act_fn\":\"relu\",\"is_gated_act\":false," SIZES);
    assert_true(config.activation == NW_ACT_GELU_TANH && config.gated);
    bad("\"feed_forward_proj\":\"gated-\"," T5, NW_E_UNSUPPORTED);
    bad("\"feed_forward_proj\":\"mish\"," T5, NW_E_UNSUPPORTED);
    bad("\"dense_act_fn\":\"tanh\"," T5, NW_E_UNSUPPORTED);
    bad("\"feed_forward_proj\":7," T5, NW_E_FORMAT);
    bad("\"feed_forward_proj\":\"\\u0000\"," T5, NW_E_FORMAT);
}

static void test_head(void **state)
{
    (void)state;
    static const struct {
        const char *members;
        bool        scales;
    } cases[] = {
        {"\"tie_word_embeddings\":true,\"model_type\":\"t5\"", true},
        {"\"tie_word_embeddings\":false,\"model_type\":\"t5\"", false},
        {"\"tie_word_embeddings\":null,\"model_type\":\"t5\"", true},
        {"\"tie_word_embeddings\":true,\"model_type\":\"mt5\"", false},
        {"\"tie_word_embeddings\":true,\"model_type\":\"umt5\"", false},
        {"\"tie_word_embeddings\":true,\"scale_decoder_outputs\":false,\"model_type\":\"t5\"", false},
        {"\"tie_word_embeddings\":false,\"scale_decoder_outputs\":true,\"model_type\":\"t5\"", true},
        {"\"tie_word_embeddings\":true,\"scale_decoder_outputs\":true,\"model_type\":\"umt5\"", true},
    };
    char members[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(members, sizeof members, "%s,%s", cases[i].members, SIZES);
        good(members);
        assert_int_equal(config.scale_output, cases[i].scales);
    }
    bad("\"tie_word_embeddings\":1," T5, NW_E_FORMAT);
    bad("\"scale_decoder_outputs\":\"true\"," T5, NW_E_FORMAT);
}

static void test_ids(void **state)
{
    (void)state;
    good("\"pad_token_id\":1,\"eos_token_id\":2,\"decoder_start_token_id\":0," T5); /* MADLAD */
    assert_true(config.pad_id == 1 && config.start_id == 0 && config.eos_ids[0] == 2);
    good("\"pad_token_id\":3," T5);
    assert_true(config.start_id == 3 && config.eos_ids[0] == 1);
    good("\"eos_token_id\":[2,5,7]," T5);
    assert_true(config.eos_count == 3 && config.eos_ids[0] == 2 && nw_config_is_eos(&config, 7) &&
                !nw_config_is_eos(&config, 1));
    good("\"eos_token_id\":null,\"pad_token_id\":null,\"decoder_start_token_id\":null," T5);
    assert_true(config.eos_count == 1 && config.eos_ids[0] == 1 && config.start_id == 0);
    good("\"eos_token_id\":99," T5);
    bad("\"eos_token_id\":100," T5, NW_E_FORMAT);
    bad("\"pad_token_id\":100," T5, NW_E_FORMAT);
    bad("\"decoder_start_token_id\":259," T5, NW_E_FORMAT);
    bad("\"pad_token_id\":-1," T5, NW_E_FORMAT);
    bad("\"eos_token_id\":1.5," T5, NW_E_FORMAT);
    bad("\"eos_token_id\":\"1\"," T5, NW_E_FORMAT);
    bad("\"eos_token_id\":[1,2,3,4,5,6,7,8,9]," T5, NW_E_UNSUPPORTED);
    bad("\"eos_token_id\":[1,-2]," T5, NW_E_FORMAT);
    bad("\"eos_token_id\":{}," T5, NW_E_FORMAT);
}

static void test_blocks(void **state)
{
    (void)state;
    good("\"num_decoder_layers\":5," T5);
    assert_true(config.encoder_blocks == 3 && config.decoder_blocks == 5);
    good("\"num_decoder_layers\":null," T5);
    assert_int_equal(config.decoder_blocks, 3);
    good("\"num_decoder_layers\":1024," T5);
    bad("\"num_decoder_layers\":1025," T5, NW_E_FORMAT);
    bad("\"num_decoder_layers\":-3," T5, NW_E_FORMAT);
}

/* Keys inside other objects and lists are somebody else's. */
static void test_ignored(void **state)
{
    (void)state;
    good("\"task_specific_params\":{\"summarization\":{\"d_model\":-5,\"eos_token_id\":70}},"
         "\"n_positions\":512,\"dropout_rate\":0.1,\"x\":[{\"vocab_size\":1}],\"classifier_dropout\":1e308," T5);
    assert_true(config.d_model == 8 && config.vocab_size == 100 && config.eos_ids[0] == 1);
}

static const char *const dimensions[] = {"vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers"};

/* One of the sizes replaced by a text; NULL: left out. */
static nw_code with_size(size_t which, const char *value)
{
    char   json[2048];
    size_t at = (size_t)snprintf(json, sizeof json, "{\"model_type\":\"t5\"");
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        const char *text = i != which ? i == 0 ? "100" : "4" : value;
        if (text != NULL)
            at += (size_t)snprintf(json + at, sizeof json - at, ",\"%s\":%s", dimensions[i], text);
    }
    snprintf(json + at, sizeof json - at, "}");
    return parse(json);
}

static void test_hostile_numbers(void **state)
{
    (void)state;
    static const char *const values[] = {
        "-1",     "0",    "-0",   "2147483648", "4294967296", "4294967300", "18446744073709551616", "1e308", "1.5",
        "\"64\"", "null", "true", "[]",         "{}",         "1e-3",       "-9223372036854775809", NULL};
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++) {
        assert_int_equal(with_size(i, "4"), NW_OK);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            if (with_size(i, values[k]) != NW_E_FORMAT)
                fail_msg("%s: %s was not refused", dimensions[i], values[k] != NULL ? values[k] : "(left out)");
        }
    }
    assert_int_equal(with_size(4, "16384"), NW_OK);
    bad("\"model_type\":\"t5\",\"vocab_size\":100,\"d_model\":8,\"d_kv\":16384,\"d_ff\":16,\"num_heads\":16384,"
        "\"num_layers\":1",
        NW_E_FORMAT); /* their product */
}

static void test_hostile_rest(void **state)
{
    (void)state;
    bad("\"relative_attention_num_buckets\":31," T5, NW_E_FORMAT);
    bad("\"relative_attention_num_buckets\":2," T5, NW_E_FORMAT);
    bad("\"relative_attention_num_buckets\":0," T5, NW_E_FORMAT);
    bad("\"relative_attention_num_buckets\":4098," T5, NW_E_FORMAT);
    bad("\"relative_attention_max_distance\":16," T5, NW_E_FORMAT);
    good("\"relative_attention_max_distance\":17," T5);
    bad("\"relative_attention_max_distance\":1048577," T5, NW_E_FORMAT);
    bad("\"layer_norm_epsilon\":-1e-6," T5, NW_E_FORMAT);
    bad("\"layer_norm_epsilon\":2," T5, NW_E_FORMAT);
    bad("\"layer_norm_epsilon\":1e309," T5, NW_E_FORMAT);
    bad("\"layer_norm_epsilon\":\"1e-6\"," T5, NW_E_FORMAT);
    good("\"layer_norm_epsilon\":1e-5," T5);
    assert_true(config.norm_epsilon == 1e-5f);
}

static void test_not_a_config(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        " ",
                                        "[]",
                                        "null",
                                        "7",
                                        "\"t5\"",
                                        "{",
                                        "{]",
                                        "{\"model_type\":\"t5\"",
                                        "{}{}",
                                        "{\"model_type\" \"t5\"}",
                                        "\xff\xfe",
                                        "{\"d_model\":NaN}",
                                        "{}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (parse(texts[i]) == NW_OK)
            fail_msg("'%s' was taken", texts[i]);
    }
}

/* A key twice has no one meaning, even with the same value. */
static void test_duplicates(void **state)
{
    (void)state;
    bad(T5 ",\"d_model\":16", NW_E_FORMAT);
    bad(T5 ",\"d_model\":8", NW_E_FORMAT);
}

static void test_deep(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char  *json = malloc(2 * DEPTH + 1024);
    size_t at = (size_t)snprintf(json, 512, "{%s,\"x\":", T5);
    memset(json + at, '[', DEPTH);
    memset(json + at + DEPTH, ']', DEPTH);
    memcpy(json + at + 2 * DEPTH, "}", 2);
    assert_int_equal(parse(json), NW_E_FORMAT);
    free(json);
}

/* Cut at every byte, and each byte replaced by others: an answer or an error, never a crash. */
static void test_mangled(void **state)
{
    (void)state;
    static const char text[] =
        "{\"eos_token_id\":[1,2],\"feed_forward_proj\":\"gated-gelu\",\"architectures\":[\"T5X\"]," T5 "}";
    char copy[sizeof text];
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        memcpy(copy, text, sizeof text);
        copy[i] = '\0';
        assert_int_not_equal(parse(copy), NW_OK);
        static const char others[] = "\"{}[]:,0-e\\\x01\xff";
        for (size_t k = 0; k + 1 < sizeof others; k++) {
            copy[i] = others[k];
            (void)!parse(copy);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_model_types),
        cmocka_unit_test(test_feed_forward), cmocka_unit_test(test_head),
        cmocka_unit_test(test_ids),          cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_ignored),      cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_hostile_rest), cmocka_unit_test(test_not_a_config),
        cmocka_unit_test(test_duplicates),   cmocka_unit_test(test_deep),
        cmocka_unit_test(test_mangled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

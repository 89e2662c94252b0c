/* Settings: what files say, which place wins, and what is refused. */
#include "base/generation_parse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static nw_memory mem;
static nw_error  err;

static nw_code parse(const char *json, nw_generation_settings *ret)
{
    nw_memory_init(&mem, UINT64_MAX, NULL);
    err = (nw_error){0};
    nw_code rc = nw_generation_parse(&mem, "generation_config.json", json, strlen(json), ret, &err);
    assert_int_equal(mem.live, 0);
    return rc;
}

static nw_generation_settings parsed(const char *json)
{
    nw_generation_settings s;
    assert_int_equal(parse(json, &s), NW_OK);
    return s;
}

#define GIVEN(field) NW_GENERATION_BIT(NW_GENERATION_##field)

static void test_defaults(void **state)
{
    (void)state;
    nw_generation_settings s = parsed("{}"), d = nw_generation_defaults();
    assert_memory_equal(&s, &d, sizeof s);
    assert_int_equal(s.given, 0);
    assert_int_equal(s.top_k, 50);
    assert_int_equal(s.num_beams, 1);
    assert_true(s.temperature == 1 && s.top_p == 1 && s.min_p == 0 && s.length_penalty == 1);
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_OK);
    assert_int_equal(nw_generation_max_new(&s, 256), 256);
    assert_int_equal(nw_generation_min_new(&s), 0);
}

static void test_every_key(void **state)
{
    (void)state;
    nw_generation_settings s = parsed(
        "{\"do_sample\": false, \"num_beams\": 4, \"num_return_sequences\": 2, \"early_stopping\": \"never\","
        "\"length_penalty\": -0.5, \"max_length\": 200, \"max_new_tokens\": 30, \"min_length\": 5, \"min_new_tokens\": "
        "3,"
        "\"temperature\": 0.7, \"top_k\": 40, \"top_p\": 0.9, \"min_p\": 0.05, \"repetition_penalty\": 1.2,"
        "\"no_repeat_ngram_size\": 3, \"bad_words_ids\": [[5], [6, 7]], \"suppress_tokens\": [8, 9],"
        "\"begin_suppress_tokens\": [10], \"forced_bos_token_id\": 11, \"forced_eos_token_id\": 1,"
        "\"eos_token_id\": [1, 2], \"decoder_start_token_id\": [3, 3], \"stop_strings\": [\"a\", \"\\u00e4b\"],"
        "\"prefix\": \"of tasks only\", \"unknown\": [{\"num_beams\": 9}], \"transformers_version\": \"4.57.6\"}");
    assert_int_equal(s.given, (GIVEN(FIELD_COUNT) - 1) & ~GIVEN(PREFIX));
    assert_int_equal(s.num_beams, 4);
    assert_int_equal(s.num_return_sequences, 2);
    assert_int_equal(s.early_stopping, NW_EARLY_NEVER);
    assert_true(s.length_penalty == -0.5 && s.temperature == 0.7 && s.top_p == 0.9 && s.min_p == 0.05);
    assert_true(s.repetition_penalty == 1.2);
    assert_int_equal(s.top_k, 40);
    assert_int_equal(s.no_repeat_ngram_size, 3);
    assert_int_equal(nw_generation_max_new(&s, 256), 30);
    assert_int_equal(nw_generation_min_new(&s), 3);
    assert_int_equal(s.bad_words_ids.count, 2);
    assert_int_equal(s.bad_words_ids.lens[1], 2);
    assert_int_equal(s.bad_words_ids.id_count, 3);
    assert_int_equal(s.bad_words_ids.ids[2], 7);
    assert_int_equal(s.suppress_tokens.count, 2);
    assert_int_equal(s.begin_suppress_tokens.ids[0], 10);
    assert_int_equal(s.forced_bos_token_id, 11);
    assert_int_equal(s.forced_eos_token_id.count, 1);
    assert_int_equal(s.eos_token_id.count, 2);
    assert_int_equal(s.eos_token_id.ids[1], 2);
    assert_int_equal(s.decoder_start_token_id, 3);
    assert_int_equal(s.stop_strings.count, 2);
    assert_int_equal(s.stop_strings.lens[1], 3);
    assert_memory_equal(s.stop_strings.text[1],
                        "\xc3\xa4"
                        "b",
                        3);
    assert_int_equal(s.prefix_len, 0);
    assert_null(s.not_followed);
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_OK);
}

/* null turns off what the defaults turn on; a model's own ids are left to its configuration. */
static void test_null(void **state)
{
    (void)state;
    nw_generation_settings s =
        parsed("{\"top_k\": null, \"temperature\": null, \"bad_words_ids\": null, \"eos_token_id\": null}");
    assert_int_equal(s.top_k, 0);
    assert_true(s.temperature == 1);
    assert_int_equal(s.given, GIVEN(TOP_K) | GIVEN(TEMPERATURE) | GIVEN(BAD_WORDS_IDS));
}

static void test_lengths(void **state)
{
    (void)state;
    nw_generation_settings s = parsed("{\"max_length\": 20, \"min_length\": 5}");
    assert_int_equal(nw_generation_max_new(&s, 256), 19);
    assert_int_equal(nw_generation_min_new(&s), 4);
    s = parsed("{\"max_length\": 1000000000000, \"min_length\": 5, \"min_new_tokens\": 0}");
    assert_int_equal(nw_generation_max_new(&s, 256), NW_NEW_TOKENS_MAX - 1);
    assert_int_equal(nw_generation_min_new(&s), 0);
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_OK);
}

static void test_not_followed(void **state)
{
    (void)state;
    assert_null(parsed("{\"typical_p\": 1.0, \"diversity_penalty\": 0.0, \"renormalize_logits\": false}").not_followed);
    assert_string_equal(parsed("{\"typical_p\": 0.9, \"num_beam_groups\": 2}").not_followed, "typical_p");
    assert_string_equal(parsed("{\"renormalize_logits\": true}").not_followed, "renormalize_logits");
    assert_string_equal(parsed("{\"force_words_ids\": [[1]]}").not_followed, "force_words_ids");
    assert_null(parsed("{\"force_words_ids\": null}").not_followed);
}

static void test_wrong_types(void **state)
{
    (void)state;
    static const struct {
        const char *json, *names;
    } cases[] = {
        {"[]", "not a JSON object"},
        {"{\"num_beams\": 4", "generation_config.json"},
        {"{\"num_beams\": 4, \"num_beams\": 4}", "num_beams"},
        {"{\"num_beams\": 4.0}", "num_beams is not a whole number"},
        {"{\"num_beams\": -1}", "num_beams is not a whole number"},
        {"{\"num_beams\": [4]}", "num_beams is not a whole number"},
        {"{\"do_sample\": 1}", "do_sample is not true or false"},
        {"{\"early_stopping\": \"Never\"}", "early_stopping is not true, false or \"never\""},
        {"{\"early_stopping\": 1}", "early_stopping is not true"},
        {"{\"temperature\": \"1\"}", "temperature is not a number"},
        {"{\"temperature\": 1e999}", "temperature"},
        {"{\"top_p\": {}}", "top_p is not a number"},
        {"{\"bad_words_ids\": 3}", "bad_words_ids is not a list"},
        {"{\"bad_words_ids\": [3]}", "bad_words_ids is not a list of lists"},
        {"{\"bad_words_ids\": [[3], []]}", "bad_words_ids is not made of lists with an id"},
        {"{\"bad_words_ids\": [[[3]]]}", "bad_words_ids is not made of token ids"},
        {"{\"bad_words_ids\": [{\"a\": 3}]}", "bad_words_ids is not a list of lists"},
        {"{\"suppress_tokens\": 3}", "suppress_tokens is not a list"},
        {"{\"suppress_tokens\": [3, -1]}", "suppress_tokens is not made of token ids"},
        {"{\"suppress_tokens\": [[3]]}", "suppress_tokens is not made of token ids"},
        {"{\"eos_token_id\": \"</s>\"}", "eos_token_id is not a token id"},
        {"{\"eos_token_id\": [null]}", "eos_token_id is not made of token ids"},
        {"{\"decoder_start_token_id\": {}}", "decoder_start_token_id is not a token id"},
        {"{\"decoder_start_token_id\": [0, \"a\"]}", "decoder_start_token_id is not made of token ids"},
        {"{\"stop_strings\": [\"\"]}", "stop_strings is not made of strings"},
        {"{\"stop_strings\": 3}", "stop_strings is not made of strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nw_generation_settings s = nw_generation_defaults(), before = s;
        assert_int_equal(parse(cases[i].json, &s), NW_E_FORMAT);
        assert_memory_equal(&s, &before, sizeof s);
        assert_non_null(strstr(err.msg, cases[i].names));
        assert_non_null(strstr(err.msg, "generation_config.json"));
    }
}

static void test_too_many(void **state)
{
    (void)state;
    static const struct {
        const char *key, *item;
        size_t      most;
    } cases[] = {
        {"eos_token_id", "1", NW_EOS_MAX},
        {"suppress_tokens", "1", NW_ID_LIST_MAX},
        {"bad_words_ids", "[1]", NW_BAD_WORDS_MAX},
        {"stop_strings", "\"a\"", NW_STOP_STRINGS_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t more = 0; more < 2; more++) {
            static char json[8192];
            size_t      used = (size_t)snprintf(json, sizeof json, "{\"%s\": [%s", cases[i].key, cases[i].item);
            nw_generation_settings s;
            for (size_t n = 1; n < cases[i].most + more; n++)
                used += (size_t)snprintf(json + used, sizeof json - used, ",%s", cases[i].item);
            snprintf(json + used, sizeof json - used, "]}");
            assert_int_equal(parse(json, &s), more == 0 ? NW_OK : NW_E_UNSUPPORTED);
            assert_true(more == 0 || strstr(err.msg, cases[i].key) != NULL);
        }
    }
}

static const char tasks[] =
    "{\"num_beams\": 9, \"early_stopping\": {\"never\": 1}, \"task_specific_params\": {"
    "\"summarization\": {\"early_stopping\": true, \"length_penalty\": 2.0, \"max_length\": 200, \"min_length\": 30,"
    "\"no_repeat_ngram_size\": 3, \"num_beams\": 4, \"prefix\": \"summarize: \"},"
    "\"translation_en_to_de\": {\"prefix\": \"translate English to German: \", \"other\": {\"num_beams\": 7}}},"
    "\"summarization\": {\"num_beams\": 8}}";

static void test_tasks(void **state)
{
    (void)state;
    nw_generation_settings s;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(nw_generation_parse_task(&mem, "config.json", tasks, sizeof tasks - 1, "summarization", &s, &err),
                     NW_OK);
    assert_int_equal(s.num_beams, 4);
    assert_int_equal(s.early_stopping, NW_EARLY_TRUE);
    assert_true(s.length_penalty == 2);
    assert_int_equal(nw_generation_max_new(&s, 0), 199);
    assert_int_equal(s.prefix_len, 11);
    assert_memory_equal(s.prefix, "summarize: ", 11);
    assert_int_equal(
        nw_generation_parse_task(&mem, "config.json", tasks, sizeof tasks - 1, "translation_en_to_de", &s, &err),
        NW_OK);
    assert_int_equal(s.given, GIVEN(PREFIX));
    assert_int_equal(nw_generation_parse_task(&mem, "config.json", tasks, sizeof tasks - 1, "other", &s, &err),
                     NW_E_ARG);
    assert_non_null(strstr(err.msg, "config.json has no task 'other'; it has: summarization, translation_en_to_de"));
    assert_int_equal(nw_generation_parse_task(&mem, "config.json", "{}", 2, "other", &s, &err), NW_E_ARG);
}

static void test_merge(void **state)
{
    (void)state;
    nw_generation_settings s = nw_generation_defaults();
    nw_generation_settings file = parsed("{\"num_beams\": 4, \"top_k\": 10, \"suppress_tokens\": [4]}");
    nw_generation_settings caller = nw_generation_defaults();
    caller.given = GIVEN(NUM_BEAMS) | GIVEN(SUPPRESS_TOKENS);
    caller.num_beams = 2;
    caller.temperature = 9; /* not given */
    nw_generation_merge(&s, &file);
    nw_generation_merge(&s, &caller);
    assert_int_equal(s.num_beams, 2);
    assert_int_equal(s.top_k, 10);
    assert_int_equal(s.suppress_tokens.count, 0);
    assert_true(s.temperature == 1);
    assert_int_equal(s.given, GIVEN(NUM_BEAMS) | GIVEN(TOP_K) | GIVEN(SUPPRESS_TOKENS));
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint32_t    by_caller;
        const char *names; /* NULL: fine */
    } cases[] = {
        {"{\"num_beams\": 0}", 0, "--num-beams 0 is not from 1 to 64"},
        {"{\"num_beams\": 65}", 0, "--num-beams 65"},
        {"{\"num_beams\": 4, \"do_sample\": true}", 0, "--num-beams 4 with sampling"},
        {"{\"num_beams\": 2, \"num_return_sequences\": 3}", 0, "--num-return-sequences 3 is more than --num-beams 2"},
        {"{\"num_return_sequences\": 3}", 0, "--num-return-sequences 3 needs sampling"},
        {"{\"num_return_sequences\": 3, \"do_sample\": true}", 0, NULL},
        {"{\"num_return_sequences\": 65, \"do_sample\": true}", 0, "--num-return-sequences 65"},
        {"{\"temperature\": 0}", 0, "--temperature 0 is not"},
        {"{\"temperature\": -1}", 0, "--temperature -1 is not"},
        {"{\"top_p\": 0}", 0, "--top-p 0 is not"},
        {"{\"top_p\": 1.01}", 0, "--top-p 1.01 is not"},
        {"{\"min_p\": -0.1}", 0, "--min-p -0.1 is not"},
        {"{\"min_p\": 1.1}", 0, "--min-p 1.1 is not"},
        {"{\"repetition_penalty\": 0}", 0, "--repetition-penalty 0 is not"},
        {"{\"length_penalty\": 17}", 0, "--length-penalty 17 is not"},
        {"{\"no_repeat_ngram_size\": 0}", 0, NULL},
        {"{\"no_repeat_ngram_size\": 0}", GIVEN(NO_REPEAT_NGRAM_SIZE), "--no-repeat-ngram-size 0 forbids nothing"},
        {"{\"max_new_tokens\": 0}", GIVEN(MAX_NEW_TOKENS), "--max-new-tokens 0"},
        {"{\"max_length\": 1}", 0, "--max-length 1"},
        {"{\"min_new_tokens\": 2000000}", 0, "--min-new-tokens 2000000"},
        {"{\"min_new_tokens\": 9, \"max_new_tokens\": 8}", GIVEN(MIN_NEW_TOKENS), "--min-new-tokens 9 is more"},
        {"{\"min_new_tokens\": 9, \"max_new_tokens\": 8}", GIVEN(MAX_NEW_TOKENS), NULL},
        {"{\"temperature\": 0.7}", 0, NULL},
        {"{\"temperature\": 0.7}", GIVEN(TEMPERATURE), "--temperature is for sampling"},
        {"{\"length_penalty\": 2.0}", GIVEN(LENGTH_PENALTY), "--length-penalty is for beam search"},
        {"{\"suppress_tokens\": [100]}", 0, "--suppress-tokens: id 100 is not in the vocabulary of 100"},
        {"{\"begin_suppress_tokens\": [100]}", 0, "--begin-suppress-tokens: id 100"},
        {"{\"bad_words_ids\": [[1, 100]]}", 0, "--bad-words-ids: id 100"},
        {"{\"eos_token_id\": 100}", 0, "--eos-token-id: id 100"},
        {"{\"forced_eos_token_id\": 100}", 0, "--forced-eos-token-id: id 100"},
        {"{\"forced_bos_token_id\": 100}", 0, "--forced-bos-token-id: id 100"},
        {"{\"decoder_start_token_id\": 100}", 0, "--decoder-start-token-id: id 100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nw_generation_settings s = parsed(cases[i].json);
        nw_code                rc = nw_generation_check(&s, cases[i].by_caller, 100, &err);
        assert_int_equal(rc, cases[i].names == NULL ? NW_OK : NW_E_ARG);
        if (cases[i].names != NULL && strstr(err.msg, cases[i].names) == NULL)
            fail_msg("'%s' is not in '%s'", cases[i].names, err.msg);
    }
}

/* What no file can say. */
static void test_refused_of_callers(void **state)
{
    (void)state;
    nw_generation_settings s = nw_generation_defaults();
    s.length_penalty = (double)NAN;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    s = nw_generation_defaults();
    s.temperature = (double)NAN;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    s = nw_generation_defaults();
    s.stop_strings.count = 1;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    assert_non_null(strstr(err.msg, "--stop"));
    s = nw_generation_defaults();
    s.stop_strings.count = NW_STOP_STRINGS_MAX + 1;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    s = nw_generation_defaults();
    s.suppress_tokens.count = NW_ID_LIST_MAX + 1;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    s = nw_generation_defaults();
    s.bad_words_ids.count = 1;
    assert_int_equal(nw_generation_check(&s, 0, 100, &err), NW_E_ARG);
    s = nw_generation_defaults();
    s.num_beams = 2;
    s.eos_token_id = (nw_end_ids){.count = 2, .ids = {0, 1}};
    assert_int_equal(nw_generation_check(&s, 0, 3, &err), NW_E_ARG);
    assert_int_equal(nw_generation_check(&s, 0, 4, &err), NW_OK);
}

/* Parsing fails cleanly wherever memory runs out. */
static void test_no_memory(void **state)
{
    (void)state;
    nw_code rc = NW_E_MEMORY;
    size_t  failed = 0;
    for (uint64_t at = 1; rc != NW_OK; at++) {
        nw_memory_fault        fault = {.fail_at = at};
        nw_generation_settings s;
        nw_memory_init(&mem, UINT64_MAX, &fault);
        rc = nw_generation_parse_task(&mem, "config.json", tasks, sizeof tasks - 1, "summarization", &s, &err);
        assert_int_equal(mem.live, 0);
        failed += rc == NW_E_MEMORY;
        assert_true(rc == NW_OK || rc == NW_E_MEMORY);
    }
    assert_true(failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_not_followed),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_of_callers),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

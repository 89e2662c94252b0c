/* What a session refuses, at the edges of what can be asked of it: options and requests that contradict each other or
 * its memory are errors, never traps, and what fits runs. */
#include "narrows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 8, BALLAST = 12 << 20 };

static nw_model      *model;
static nw_error       err;
static const uint32_t input[] = {5, 9, 7, 9, 7, 1};

static nw_model *open_model(void)
{
    nw_model *m = NULL;
    assert_int_equal(nw_model_open(&(nw_model_options){.path = NW_TEST_DATA "/goldens/t5-v1.1"}, &m, &err), NW_OK);
    return m;
}

static int open_one(void **state)
{
    (void)state;
    model = open_model();
    return 0;
}

static int close_one(void **state)
{
    (void)state;
    model = nw_model_close(model);
    return 0;
}

static nw_session_options usual(void)
{
    return (nw_session_options){
        .budget_bytes = 256 << 20, .max_input_tokens = 16, .max_output_tokens = TOKENS, .threads = 2, .force = true};
}

static nw_generation_settings settings_of_model(void)
{
    nw_generation_settings g;
    assert_int_equal(nw_model_generation(model, NULL, &g, &err), NW_OK);
    return g;
}

static nw_session *open_session(nw_model *m, const nw_session_options *o)
{
    nw_session *s = NULL;
    assert_int_equal(nw_session_open(m, o, &s, &err), NW_OK);
    return s;
}

static nw_request usual_request(void)
{
    return (nw_request){.input_ids = input, .input_count = sizeof input / sizeof *input};
}

/* ---- options ---- */

/* The most of everything: a sum that no budget has, not one that wraps. */
static void test_most_of_everything(void **state)
{
    (void)state;
    nw_plan                plan;
    nw_generation_settings g = settings_of_model();
    g.num_beams = NW_BEAMS_MAX;
    g.no_repeat_ngram_size = 2;
    nw_session_options o = {.budget_bytes = (uint64_t)1 << 40,
                            .max_input_tokens = 1 << 20,
                            .max_output_tokens = 1 << 20,
                            .max_lanes = 1024,
                            .max_columns = 1024,
                            .max_choices = 1024,
                            .max_encode_tokens = 1 << 20,
                            .max_encoded_ahead = 1 << 16,
                            .max_waiting = 1 << 16,
                            .generation = &g,
                            .threads = 256,
                            .queue_depth = 1024,
                            .trace_events = 1 << 26};
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_E_BUDGET);
    /* Ids, choices and tables of 2^17 requests, 2^20 tokens and 2^10 answers each: 2^50 bytes or so. */
    assert_true(plan.smallest > (uint64_t)1 << 48 && plan.smallest < (uint64_t)1 << 56);
}

/* Settings that nobody checked. */
static void test_settings_of_session(void **state)
{
    (void)state;
    nw_plan                plan;
    nw_session            *session = NULL;
    nw_generation_settings g = settings_of_model();
    nw_session_options     o = usual();
    o.generation = &g;
    o.max_lanes = 1024;
    g.num_beams = NW_BEAMS_MAX + 1;
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_E_ARG);
    assert_int_equal(nw_session_open(model, &o, &session, &err), NW_E_ARG);
    g.num_beams = 0;
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_E_ARG);
    g.num_beams = 4;
    g.do_sample = true;
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_E_ARG);
}

/* Where nothing is decoded, what decoding would ask for is of no effect. */
static void test_encode_only(void **state)
{
    (void)state;
    nw_plan                without, with;
    nw_generation_settings g = settings_of_model();
    nw_session_options     o = usual();
    o.encode_only = true;
    assert_int_equal(nw_plan_make(model, &o, &without, &err), NW_OK);
    g.num_beams = 4;
    o.generation = &g;
    o.max_choices = 3;
    assert_int_equal(nw_plan_make(model, &o, &with, &err), NW_OK);
    assert_int_equal(with.smallest, without.smallest);
}

/* A process larger than declared: K and V that the first plan has in memory are on the disk in the second. */
static void test_unforeseen(void **state)
{
    (void)state;
#ifdef NW_TEST_EMULATOR
    skip(); /* the process would be the emulator, which is larger than any plan foresees */
#endif
    nw_plan            plan;
    nw_session_options o = usual();
    o.max_input_tokens = 16384;
    o.kv_on_disk = true;
    o.budget_bytes = 1;
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_E_BUDGET);
    uint64_t on_disk = plan.smallest;
    o.kv_on_disk = false;
    for (o.budget_bytes = on_disk; nw_plan_make(model, &o, &plan, &err) != NW_OK || plan.kv_on_disk;)
        o.budget_bytes += 65536;
    assert_true(o.budget_bytes > on_disk + (4 << 20)); /* K and V */

    volatile char *ballast = malloc(BALLAST);
    for (size_t i = 0; i < BALLAST; i += 4096)
        ballast[i] = 1;
    nw_session *session = open_session(model, &o);
    nw_result   r = {0};
    nw_request  q = usual_request();
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
    assert_true(r.count > 0);
    nw_session_close(session);
    free((void *)(uintptr_t)ballast);
}

/* ---- requests ---- */

static void refused(nw_session *s, const nw_request *q)
{
    uint64_t id = 0;
    err = (nw_error){0};
    assert_int_equal(nw_session_submit(s, q, &id, &err), NW_E_ARG);
    assert_true(id == 0 && err.msg[0] != '\0');
}

static void test_requests(void **state)
{
    (void)state;
    static const uint32_t  forced[] = {5, 9};
    static const size_t    lens[] = {2};
    nw_generation_settings most = settings_of_model();
    nw_session_options     o = usual();
    most.num_beams = 2;
    o.generation = &most;
    o.max_lanes = 2;
    o.max_choices = 1;
    nw_session *s = open_session(model, &o);
    nw_request  q = usual_request();

    q.forced_count = 2; /* nothing there */
    refused(s, &q);
    q.forced_ids = forced;
    q.settings = &most; /* not with beams */
    refused(s, &q);
    q.settings = NULL;
    q.choice_ids = forced; /* nor with answers that are given as a whole */
    q.choice_lens = lens;
    q.choice_count = 1;
    refused(s, &q);
    q.forced_count = 0;
    q.choice_lens = NULL;
    refused(s, &q);
    q = usual_request();
    q.input_ids = NULL;
    refused(s, &q);

    nw_result r = {0};
    q = usual_request();
    q.forced_ids = forced;
    q.forced_count = 2;
    assert_int_equal(nw_session_generate(s, &q, &r, &err), NW_OK);
    nw_session_close(s);
}

/* Answers to judge ask for as many columns as they have tokens: the columns of this session are just enough. */
static void test_choices_in_one_pass(void **state)
{
    (void)state;
    static const uint32_t ids[] = {7, 9, 11, 13, 5, 1};
    static const size_t   lens[] = {1, 5};
    nw_session_options    o = usual();
    o.max_lanes = o.max_choices = 2;
    o.max_columns = 6;
    nw_session *s = open_session(model, &o);
    nw_request  q = usual_request();
    nw_result   r = {0};
    nw_stats    stats;
    q.choice_ids = ids;
    q.choice_lens = lens;
    q.choice_count = 2;
    assert_int_equal(nw_session_generate(s, &q, &r, &err), NW_OK);
    nw_session_stats(s, &stats);
    assert_int_equal(stats.tokens, 6);
    assert_int_equal(stats.passes, 1);
    nw_session_close(s);
}

/* Processors may leave less to choose than beams are asked for: what is missing is empty, and has no score. */
static void see_beam(void *user, const nw_sequence *q)
{
    size_t *seen = user;
    assert_int_equal(q->sequence, *seen);
    assert_int_equal(q->count, q->sequence == 0 ? 1 : 0);
    assert_true(q->ids != NULL && (q->sequence == 0) == (q->score <= 0));
    (*seen)++;
}

static void test_fewer_beams(void **state)
{
    (void)state;
    nw_generation_settings g = settings_of_model();
    nw_session_options     o = usual();
    g.num_beams = g.num_return_sequences = 3;
    g.forced_bos_token_id = g.eos_token_id.ids[0];
    o.generation = &g;
    o.max_lanes = 3;
    size_t      seen = 0;
    nw_session *s = open_session(model, &o);
    nw_request  q = usual_request();
    nw_result   r = {0};
    q.settings = &g;
    q.on_sequence = see_beam;
    q.user = &seen;
    assert_int_equal(nw_session_generate(s, &q, &r, &err), NW_OK);
    assert_true(seen == 3 && r.count == 1);
    nw_session_close(s);
}

/* Where processors leave nothing, tokens are 0, greedy or drawn, and their scores tell why. */
static bool see_nothing_left(void *user, const nw_token *t)
{
    size_t *seen = user;
    assert_int_equal(t->id, 0);
    assert_true(t->scores[0] == -INFINITY && t->scores[255] == -INFINITY && t->logits[0] > -INFINITY);
    (*seen)++;
    return true;
}

static void test_nothing_left(void **state)
{
    (void)state;
    for (int drawn = 0; drawn < 2; drawn++) {
        nw_generation_settings g = settings_of_model();
        nw_session_options     o = usual();
        size_t                 seen = 0;
        g.do_sample = drawn == 1;
        for (g.suppress_tokens.count = 0; g.suppress_tokens.count < 256; g.suppress_tokens.count++)
            g.suppress_tokens.ids[g.suppress_tokens.count] = g.suppress_tokens.count;
        o.generation = &g;
        nw_session *s = open_session(model, &o);
        nw_request  q = usual_request();
        nw_result   r = {0};
        q.settings = &g;
        q.on_token = see_nothing_left;
        q.user = &seen;
        assert_int_equal(nw_session_generate(s, &q, &r, &err), NW_OK);
        assert_true(seen == TOKENS && r.count == TOKENS && r.finish == NW_FINISH_LENGTH);
        nw_session_close(s);
    }
}

/* Without a tokenizer no stop string would ever be seen. */
static void test_stop_without_text(void **state)
{
    (void)state;
    nw_generation_settings g = settings_of_model();
    nw_session_options     o = usual();
    uint64_t               id;
    g.stop_strings.count = 1;
    g.stop_strings.lens[0] = 1;
    g.stop_strings.text[0][0] = '.';
    o.generation = &g;
    nw_session *s = open_session(model, &o);
    nw_request  q = usual_request();
    q.settings = &g;
    assert_int_equal(nw_session_submit(s, &q, &id, &err), NW_E_TOKENIZER);
    nw_session_close(s);
}

/* A directory that is no name is said to be none. */
static void test_scratch(void **state)
{
    (void)state;
    nw_session        *session = NULL;
    nw_session_options o = usual();
    o.kv_on_disk = true;
    o.scratch = "";
    err = (nw_error){0};
    assert_int_equal(nw_session_open(model, &o, &session, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, "scratch file in ''"));
}

/* ---- forced tokens and stop strings ---- */

typedef struct {
    char   text[256];
    size_t len, tokens;
} reader;

static bool read_text(void *user, const nw_token *t)
{
    reader *r = user;
    memcpy(r->text + r->len, t->text, t->text_len);
    r->len += t->text_len;
    r->tokens++;
    return true;
}

/* A stop string in what is forced is no end, and is shown; the answer goes on behind it, to the next one. */
static void test_forced_stop(void **state)
{
    (void)state;
    /* "translate English to German: eight hundred and seventy-six": "achthundert" "sechsundsiebzig" */
    static const uint32_t text[] = {11, 10, 5, 4, 9, 6, 14, 3, 7, 15, 8, 63, 20, 3, 18, 55, 12, 41, 1},
                          forced[] = {133};
    static const struct {
        const char *stop, *shown;
        size_t      tokens;
        nw_finish   finish;
    } cases[] = {{"hundert", "achthundertsechsundsiebzig", 3, NW_FINISH_EOS},
                 {"und", "achthundertsechs", 2, NW_FINISH_STOP}};
    nw_model *m = NULL;
    assert_int_equal(nw_model_open(&(nw_model_options){.path = NW_TEST_DATA "/numbers-t5"}, &m, &err), NW_OK);
    for (size_t i = 0; i < 2; i++) {
        nw_generation_settings g;
        nw_session_options     o = usual();
        assert_int_equal(nw_model_generation(m, NULL, &g, &err), NW_OK);
        g.stop_strings.count = 1;
        g.stop_strings.lens[0] = (uint16_t)strlen(cases[i].stop);
        memcpy(g.stop_strings.text[0], cases[i].stop, g.stop_strings.lens[0]);
        o.max_input_tokens = 32;
        o.generation = &g;
        nw_session *s = open_session(m, &o);
        reader      r = {.len = 0};
        nw_result   result = {0};
        nw_request  q = {.input_ids = text,
                         .input_count = sizeof text / sizeof *text,
                         .forced_ids = forced,
                         .forced_count = 1,
                         .settings = &g,
                         .on_token = read_text,
                         .user = &r};
        assert_int_equal(nw_session_generate(s, &q, &result, &err), NW_OK);
        r.text[r.len] = '\0';
        assert_string_equal(r.text, cases[i].shown);
        assert_int_equal(r.tokens, cases[i].tokens);
        assert_int_equal(result.finish, cases[i].finish);
        nw_session_close(s);
    }
    nw_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_most_of_everything),
        cmocka_unit_test(test_settings_of_session),
        cmocka_unit_test(test_encode_only),
        cmocka_unit_test(test_unforeseen),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_forced_stop),
        cmocka_unit_test(test_choices_in_one_pass),
        cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_fewer_beams),
        cmocka_unit_test(test_nothing_left),
        cmocka_unit_test(test_stop_without_text),
    };
    return cmocka_run_group_tests(tests, open_one, close_one);
}

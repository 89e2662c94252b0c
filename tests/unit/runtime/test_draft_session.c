/* A session that guesses for another: the same answers with it as without, an error where its memory would not do, and
 * both usable after a stop in the middle of its guessing. */
#include "answers.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { TOKENS = 10, LANES = 3, INPUT = 24 };

static subject   all = {.name = "t5-v1.1", .tokens = TOKENS};
static uint64_t  want[LANES];
static size_t    vocab;
static nw_model *model, *small; /* the same files: a draft that is always right */
static nw_error  err;

static nw_session_options usual(void)
{
    return (nw_session_options){.budget_bytes = 256 << 20,
                                .max_input_tokens = INPUT,
                                .max_output_tokens = TOKENS,
                                .max_lanes = LANES,
                                .threads = 2,
                                .force = true};
}

static nw_session *open_session(nw_model *m, const nw_session_options *o)
{
    nw_session *s = NULL;
    assert_int_equal(nw_session_open(m, o, &s, &err), NW_OK);
    return s;
}

/* A session for which `draft` guesses, with room for four guesses in each lane. */
static nw_session *open_with(nw_session *draft)
{
    nw_session_options o = usual();
    o.max_columns = LANES * 5;
    o.draft = draft;
    return open_session(model, &o);
}

static int open_models(void **state)
{
    (void)state;
    nw_model_info info;
    snprintf(all.dir, sizeof all.dir, "%s/goldens/t5-v1.1", NW_TEST_DATA);
    assert_int_equal(nw_model_open(&(nw_model_options){.path = all.dir}, &model, &err), NW_OK);
    assert_int_equal(nw_model_open(&(nw_model_options){.path = all.dir}, &small, &err), NW_OK);
    nw_model_describe(model, &info);
    vocab = info.vocab_size;
    nw_session_options o = usual();
    nw_session        *s = open_session(model, &o);
    for (size_t i = 0; i < LANES; i++) {
        size_t tokens;
        subject_add(&all, 5 + i, info.vocab_size, i + 1);
        assert_int_equal(answer_generate(s, &all, i, vocab, &want[i], &tokens, &err), NW_OK);
    }
    nw_session_close(s);
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    model = nw_model_close(model);
    small = nw_model_close(small);
    return 0;
}

static void expect_answers(nw_session *s)
{
    static const size_t order[] = {2, 0, 1};
    answers             have;
    assert_int_equal(answer_together(s, &all, order, vocab, &have, &err), NW_OK);
    for (size_t i = 0; i < LANES; i++)
        assert_true(have.hash[i] == want[i]);
}

static nw_stats stats_of(const nw_session *s)
{
    nw_stats stats;
    nw_session_stats(s, &stats);
    return stats;
}

static void test_same_answers(void **state)
{
    (void)state;
    nw_session_options o = usual();
    nw_session        *draft = open_session(small, &o), *s = open_with(draft);
    expect_answers(s);
    assert_true(stats_of(s).drafted > 0 && stats_of(s).accepted == stats_of(s).drafted);
    assert_true(stats_of(s).accounted_bytes >= 2 * stats_of(draft).accounted_bytes);
    expect_answers(s);
    nw_session_close(s);
    expect_answers(draft); /* it is its owner's again */
    nw_session_close(draft);
}

/* Sessions made for something else than so many single sequences: too few pages, or room for too few requests. */
static void test_too_little_memory(void **state)
{
    (void)state;
    nw_generation_settings g;
    nw_session            *s = NULL;
    assert_int_equal(nw_model_generation(small, NULL, &g, &err), NW_OK);
    g.num_beams = LANES;
    for (int i = 0; i < 3; i++) {
        nw_session_options o = usual(), more = usual();
        o.generation = i == 0 ? &g : NULL;
        o.max_choices = i == 1 ? LANES : 0;
        o.max_encoded_tokens = i == 2 ? INPUT : 0;
        nw_session *draft = open_session(small, &o);
        more.draft = draft;
        assert_int_equal(nw_session_open(model, &more, &s, &err), NW_E_ARG);
        nw_session_close(draft);
    }
}

/* A draft guesses for one session, and answers nothing itself meanwhile: its pages are lent. */
static void test_lent(void **state)
{
    (void)state;
    nw_session_options o = usual(), more = usual();
    nw_session        *draft = open_session(small, &o), *s = open_with(draft), *other = NULL;
    nw_request         q = answer_request(&all, 0, NULL);
    uint64_t           id;
    more.draft = draft;
    assert_int_equal(nw_session_open(model, &more, &other, &err), NW_E_ARG);
    assert_int_equal(nw_session_submit(draft, &q, &id, &err), NW_E_ARG);
    expect_answers(s);
    nw_session_close(s);
    s = open_with(draft);
    expect_answers(s);
    nw_session_close(s);
    nw_session_close(draft);
}

/* At the first tile of the draft's first pass. */
static void stop(void *user, const nw_stats *stats)
{
    (void)stats;
    nw_session_stop(user);
}

static void test_stop(void **state)
{
    (void)state;
    nw_session_options o = usual();
    nw_session        *draft = open_session(small, &o), *s = open_with(draft);
    uint64_t           hash;
    size_t             tokens;
    nw_session_on_progress(draft, stop, s);
    assert_int_equal(answer_generate(s, &all, 0, vocab, &hash, &tokens, &err), NW_E_CANCELLED);
    assert_int_equal(stats_of(draft).weight_bytes_used, 0);
    nw_session_on_progress(draft, NULL, NULL);
    expect_answers(s);
    nw_session_close(s);
    expect_answers(draft);
    nw_session_close(draft);
}

/* Every few reads of a draft fail in turn: the session's requests end with the error, and both sessions are whole. */
static void test_failing_reads(void **state)
{
    (void)state;
    static const size_t order[] = {0, 1, 2};
    nw_io_fake          fake = {.seed = 1, .fail_errno = EIO};
    nw_hooks            hooks = {.io = &fake};
    nw_model           *faulty = NULL;
    answers             have;
    uint64_t            points = 0, errors = 0;
    assert_int_equal(nw_model_open(&(nw_model_options){.path = all.dir, .hooks = &hooks}, &faulty, &err), NW_OK);
    nw_session_options o = usual();
    o.pins_off = true;
    nw_session *draft = open_session(faulty, &o), *s = open_with(draft);
    do {
        fake.fail_at = fake.ops_seen + 1 + points++ * 5;
        fake.fired = false;
        nw_code rc = answer_together(s, &all, order, vocab, &have, &err);
        assert_true(rc == NW_OK || (rc == NW_E_IO && fake.fired)); /* what is read ahead at last nobody needs */
        errors += rc == NW_E_IO ? 1 : 0;
        fake.fail_at = 0;
    } while (fake.fired);
    assert_true(errors > 10);
    expect_answers(s);
    nw_session_close(s);
    expect_answers(draft);
    nw_session_close(draft);
    nw_model_close(faulty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers), cmocka_unit_test(test_too_little_memory), cmocka_unit_test(test_lent),
        cmocka_unit_test(test_stop),         cmocka_unit_test(test_failing_reads),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}

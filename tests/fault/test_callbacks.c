/* What a callback may do to requests while tokens are being given out: stop, cancel its own or another request, submit
 * a new one into a place just left. Nobody gets a token that is not its own, and nothing waits for a request that is
 * gone. */
#include "answers.h"
#include "session_state.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { TOKENS = 6 };

static subject     all = {.name = "t5-v1.1", .tokens = TOKENS};
static uint64_t    want[3]; /* hash of each prompt's answer alone */
static size_t      vocab;
static nw_model   *model;
static nw_session *session;
static nw_session *wide;    /* for several sequences of a request */
static bool        on_disk; /* its K and V of prompts */
static nw_error    err;

static nw_generation_settings settings;

static int open_session(void **state)
{
    (void)state;
    nw_model_info info;
    all.prompt_count = 0;
    snprintf(all.dir, sizeof all.dir, "%s/goldens/t5-v1.1", NW_TEST_DATA);
    assert_int_equal(nw_model_open(&(nw_model_options){.path = all.dir}, &model, &err), NW_OK);
    nw_model_describe(model, &info);
    vocab = info.vocab_size;
    for (size_t i = 0; i < 3; i++)
        subject_add(&all, 4 + i, info.vocab_size, i + 1);
    nw_session_options o = {.budget_bytes = 256 << 20,
                            .max_input_tokens = all.longest,
                            .max_output_tokens = TOKENS,
                            .max_lanes = 2,
                            .threads = 2,
                            .force = true};
    assert_int_equal(nw_session_open(model, &o, &session, &err), NW_OK);
    assert_int_equal(nw_model_generation(model, NULL, &settings, &err), NW_OK);
    nw_generation_settings most = settings;
    most.num_beams = 3;
    most.repetition_penalty = 1.5; /* room for processed scores */
    o.generation = &most;
    o.max_lanes = 4;
    o.max_columns = 7;
    o.max_choices = 3;
    o.max_waiting = 6;
    o.kv_on_disk = on_disk;
    assert_int_equal(nw_session_open(model, &o, &wide, &err), NW_OK);
    for (size_t i = 0; i < 3; i++) {
        size_t tokens;
        assert_int_equal(answer_generate(session, &all, i, vocab, &want[i], &tokens, &err), NW_OK);
        assert_int_equal(tokens, TOKENS);
    }
    return 0;
}

static int close_session(void **state)
{
    (void)state;
    session = nw_session_close(session);
    wide = nw_session_close(wide);
    model = nw_model_close(model);
    return 0;
}

/* A request whose callback does something at one of its tokens. */
typedef struct {
    answer_reader reader;
    size_t        at;                  /* the token at which it acts */
    uint64_t      id, cancel;          /* its own; another one's, 0: nobody's */
    bool          cancel_self, finish; /* finish: return false */
    size_t        submit_prompt;
    void         *submit; /* the actor of a request to submit; NULL: none */
} actor;

static nw_code submit(actor *a, size_t prompt);

static bool act(void *user, const nw_token *t)
{
    actor *a = user;
    assert_int_equal(t->request, a->id);
    assert_int_equal(t->index, a->reader.tokens);
    answer_read(&a->reader, t);
    if (t->index != a->at)
        return true;
    if (a->cancel_self)
        nw_session_cancel(session, a->id);
    if (a->cancel != 0)
        nw_session_cancel(session, a->cancel);
    if (a->submit != NULL)
        assert_int_equal(submit(a->submit, a->submit_prompt), NW_OK);
    return !a->finish;
}

static nw_code submit_to(nw_session *s, actor *a, size_t prompt)
{
    nw_request q = answer_request(&all, prompt, NULL);
    a->reader = (answer_reader){.hash = ANSWERS_SEED, .vocab = vocab};
    q.on_token = act;
    q.user = a;
    return nw_session_submit(s, &q, &a->id, &err);
}

static nw_code submit(actor *a, size_t prompt)
{
    return submit_to(session, a, prompt);
}

/* Steps until nothing is left; a session that never comes to an end fails. */
static void finish_in(nw_session *s)
{
    size_t live = 1;
    for (int i = 0; i < 100 && live > 0; i++)
        assert_int_equal(nw_session_step(s, &live, &err), NW_OK);
    assert_int_equal(live, 0);
}

static void finish_all(void)
{
    finish_in(session);
}

static void test_return_false(void **state)
{
    (void)state;
    actor      a = {.at = 2, .finish = true, .reader = {.hash = ANSWERS_SEED, .vocab = vocab}};
    nw_request q = answer_request(&all, 0, NULL);
    nw_result  r = {0};
    q.on_token = act;
    q.user = &a;
    actor probe = {.at = TOKENS}; /* ids count up */
    assert_int_equal(submit(&probe, 1), NW_OK);
    nw_session_cancel(session, probe.id);
    a.id = probe.id + 1;
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
    assert_int_equal(r.count, 3);
    assert_int_equal(r.finish, NW_FINISH_STOP);
    assert_int_equal(a.reader.tokens, 3);
}

/* A generation whose own callback cancels it ends, as stopped. */
static bool cancel_last(void *user, const nw_token *t)
{
    (void)user;
    if (t->index == 1)
        nw_session_cancel(session, t->request);
    return true;
}

static void test_generate_cancelled_inside(void **state)
{
    (void)state;
    nw_request q = answer_request(&all, 0, NULL);
    nw_result  r = {0};
    q.on_token = cancel_last;
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.finish, NW_FINISH_STOP);
}

/* The first lane cancels the second in the middle of a step: the second gets no token of that step. */
static void test_cancel_other(void **state)
{
    (void)state;
    actor first = {.at = 2}, second = {.at = TOKENS};
    assert_int_equal(submit(&first, 0), NW_OK);
    assert_int_equal(submit(&second, 1), NW_OK);
    first.cancel = second.id;
    finish_all();
    assert_true(first.reader.hash == want[0] && first.reader.tokens == TOKENS);
    assert_int_equal(second.reader.tokens, 2);
}

/* ... and submits a third, which may get the second's place but not its token. */
static void test_cancel_other_and_submit(void **state)
{
    (void)state;
    actor first = {.at = 2, .submit_prompt = 2}, second = {.at = TOKENS}, third = {.at = TOKENS};
    assert_int_equal(submit(&first, 0), NW_OK);
    assert_int_equal(submit(&second, 1), NW_OK);
    first.cancel = second.id;
    first.submit = &third;
    finish_all();
    assert_true(first.reader.hash == want[0] && first.reader.tokens == TOKENS);
    assert_int_equal(second.reader.tokens, 2);
    assert_true(third.reader.hash == want[2] && third.reader.tokens == TOKENS);
}

/* Cancelling itself, submitting another, and returning false: only itself is ended. Every place is tried. */
static void test_replace_self(void **state)
{
    (void)state;
    for (size_t at = 0; at < TOKENS; at++) {
        actor next = {.at = TOKENS}, self = {.at = at, .cancel_self = true, .finish = true, .submit_prompt = 1};
        self.submit = &next;
        assert_int_equal(submit(&self, 0), NW_OK);
        finish_all();
        assert_int_equal(self.reader.tokens, at + 1);
        assert_true(next.reader.hash == want[1] && next.reader.tokens == TOKENS);
    }
}

/* A chain: each answer's last token submits the next prompt. */
static void test_submit_from_last_token(void **state)
{
    (void)state;
    actor chain[3] = {{.at = TOKENS - 1, .submit_prompt = 1}, {.at = TOKENS - 1, .submit_prompt = 2}, {.at = TOKENS}};
    chain[0].submit = &chain[1];
    chain[1].submit = &chain[2];
    assert_int_equal(submit(&chain[0], 0), NW_OK);
    finish_all();
    for (size_t i = 0; i < 3; i++)
        assert_true(chain[i].reader.hash == want[i] && chain[i].reader.tokens == TOKENS);
}

static bool stop_now(void *user, const nw_token *t)
{
    (void)user;
    if (t->index == 1)
        nw_session_stop(session);
    return true;
}

static void test_stop_from_callback(void **state)
{
    (void)state;
    nw_request q = answer_request(&all, 0, NULL);
    nw_result  r = {0};
    uint64_t   hash = 0;
    size_t     tokens = 0;
    q.on_token = stop_now;
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_E_CANCELLED);
    assert_int_equal(r.finish, NW_FINISH_NONE);
    assert_int_equal(answer_generate(session, &all, 0, vocab, &hash, &tokens, &err), NW_OK);
    assert_true(hash == want[0] && tokens == TOKENS);
}

/* ---- within a pass, and passes within ---- */

static uint64_t within[2];
static size_t   tiles;

/* At some tile of each kind of pass: the pass goes on, and ends the requests. */
static void cancel_within(void *user, const nw_stats *stats)
{
    session->progress_seconds = 0; /* at the next tile again */
    if (strcmp(stats->pass, user) != 0)
        return;
    nw_session_cancel(session, within[0]);
    nw_session_cancel(session, within[1]);
    tiles++;
}

static void test_cancel_within_pass(void **state)
{
    (void)state;
    static const char *const passes[] = {"encode", "cross", "decode"};
    for (size_t i = 0; i < 3; i++) {
        actor  first = {.at = TOKENS}, second = {.at = TOKENS}, third = {.at = TOKENS};
        size_t live = 1;
        assert_int_equal(submit(&first, 0), NW_OK);
        assert_int_equal(submit(&second, 1), NW_OK);
        assert_int_equal(submit(&third, 2), NW_OK);
        within[0] = first.id;
        within[1] = third.id;
        tiles = 0;
        nw_session_on_progress(session, cancel_within, (void *)(uintptr_t)passes[i]);
        session->progress_seconds = 0;
        assert_int_equal(nw_session_step(session, &live, &err), NW_OK);
        nw_session_on_progress(session, NULL, NULL);
        finish_all();
        assert_true(tiles > 0 && first.reader.tokens == 0 && third.reader.tokens == 0);
        assert_true(second.reader.hash == want[1] && second.reader.tokens == TOKENS);
    }
}

/* A pass from a callback would write over what is being given out. */
static bool step_within(void *user, const nw_token *t)
{
    size_t     live;
    uint64_t   bytes;
    double     seconds;
    float     *states = NULL;
    nw_request q = answer_request(&all, 1, NULL);
    nw_result  r = {0};
    (void)t;
    nw_encode_request e = {.ids = all.ids[0], .count = all.counts[0]};
    assert_int_equal(nw_session_step(session, &live, &err), NW_E_ARG);
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_E_ARG);
    assert_int_equal(nw_session_encode(session, &e, states, &err), NW_E_ARG);
    assert_int_equal(nw_session_read_pass(session, &bytes, &seconds, &err), NW_E_ARG);
    return answer_read(user, t);
}

static void test_pass_within_callback(void **state)
{
    (void)state;
    answer_reader reader = {.hash = ANSWERS_SEED, .vocab = vocab};
    nw_request    q = answer_request(&all, 0, &reader);
    nw_result     r = {0};
    q.on_token = step_within;
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
    assert_true(reader.hash == want[0] && reader.tokens == TOKENS);
    finish_all(); /* nothing was left behind */
}

/* ---- several sequences ---- */

/* A request with several sequences, whose callbacks end something at one of their calls. */
typedef struct {
    size_t   calls, at;      /* of either callback; the one that acts */
    bool     cancel, submit; /* itself; the next one */
    uint64_t id;
    actor    next;
} crowd;

static void crowd_act(crowd *c, uint64_t told)
{
    assert_int_equal(told, c->id); /* nobody is told of a request that is gone */
    assert_true(c->calls <= c->at || !c->cancel);
    if (c->calls++ != c->at)
        return;
    if (c->cancel)
        nw_session_cancel(wide, c->id);
    if (c->submit)
        assert_int_equal(submit_to(wide, &c->next, 1), NW_OK);
}

static bool crowd_token(void *user, const nw_token *t)
{
    crowd_act(user, t->request);
    return true;
}

static void crowd_sequence(void *user, const nw_sequence *q)
{
    crowd_act(user, q->request);
}

/* Every call of every kind cancels its request, and submits another into the place, which gets its own answer; a third
 * that was there all along gets its own, too. All lanes and pages are there again afterwards. */
static void try_crowd(const nw_request *of, size_t calls)
{
    for (size_t at = 0; at < calls; at++) {
        for (int what = 1; what < 4; what++) {
            crowd      c = {.at = at, .cancel = (what & 1) != 0, .submit = (what & 2) != 0, .next = {.at = TOKENS}};
            actor      other = {.at = TOKENS};
            nw_request q = *of;
            q.on_token = crowd_token;
            q.on_sequence = crowd_sequence;
            q.user = &c;
            assert_int_equal(submit_to(wide, &other, 2), NW_OK);
            assert_int_equal(nw_session_submit(wide, &q, &c.id, &err), NW_OK);
            finish_in(wide);
            assert_int_equal(c.calls, c.cancel ? at + 1 : calls);
            assert_true(other.reader.hash == want[2] && other.reader.tokens == TOKENS);
            assert_true(!c.submit || (c.next.reader.hash == want[1] && c.next.reader.tokens == TOKENS));
        }
    }
}

static void test_samples(void **state)
{
    (void)state;
    nw_generation_settings g = settings;
    g.do_sample = true;
    g.num_return_sequences = 3;
    nw_request q = answer_request(&all, 0, NULL);
    q.settings = &g;
    crowd count = {.at = SIZE_MAX};
    q.on_token = crowd_token;
    q.on_sequence = crowd_sequence;
    q.user = &count;
    assert_int_equal(nw_session_submit(wide, &q, &count.id, &err), NW_OK);
    finish_in(wide);
    assert_true(count.calls > 3);
    try_crowd(&q, count.calls);
}

static void test_beams(void **state)
{
    (void)state;
    nw_generation_settings g = settings;
    g.num_beams = g.num_return_sequences = 3;
    nw_request q = answer_request(&all, 0, NULL);
    q.settings = &g;
    try_crowd(&q, 3);
}

static void test_choices(void **state)
{
    (void)state;
    static const uint32_t ids[] = {7, 9, 11, 7, 8, 1, 6, 5, 4, 3};
    static const size_t   lens[] = {4, 1, 5};
    nw_request            q = answer_request(&all, 0, NULL);
    q.choice_ids = ids;
    q.choice_lens = lens;
    q.choice_count = 3;
    try_crowd(&q, 10 + 3);
}

/* Tokens that are given or guessed come several a pass: a callback that ends the sequence ends them, too. */
static void test_forced(void **state)
{
    (void)state;
    static const uint32_t ids[] = {7, 9, 11, 13};
    nw_request            q = answer_request(&all, 0, NULL);
    q.forced_ids = ids;
    q.forced_count = 4;
    try_crowd(&q, TOKENS + 1);
}

/* What a request's sequences came to. */
typedef struct {
    size_t told[3], last; /* of each sequence; of all, how many calls said that the request is done */
} ends;

/* The first is ended at its first token, the others later, the last one of all when it is alone. */
static bool end_sequences(void *user, const nw_token *t)
{
    (void)user;
    return t->index < t->sequence * 2;
}

static void see_end(void *user, const nw_sequence *q)
{
    ends *e = user;
    assert_true(q->sequence < 3 && e->last == 0);
    assert_int_equal(q->finish, NW_FINISH_STOP);
    assert_int_equal(q->count, q->sequence * 2 + 1);
    e->told[q->sequence]++;
    e->last += q->last ? 1 : 0;
}

/* A sequence that on_token ends is told of like any other, and with the last one that the request is done. */
static void test_ended_by_token(void **state)
{
    (void)state;
    nw_generation_settings g = settings;
    ends                   e = {0};
    g.do_sample = true;
    g.num_return_sequences = 3;
    g.eos_token_id.count = 1;
    g.eos_token_id.ids[0] = (uint32_t)vocab - 1; /* nothing ends by itself */
    nw_request q = answer_request(&all, 0, NULL);
    uint64_t   id;
    q.settings = &g;
    q.on_token = end_sequences;
    q.on_sequence = see_end;
    q.user = &e;
    assert_int_equal(nw_session_submit(wide, &q, &id, &err), NW_OK);
    finish_in(wide);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(e.told[i], 1);
    assert_int_equal(e.last, 1);
}

/* A place and a lane at a time: searches, samples and choices that wait for each other all get their turn. */
static void test_all_wait(void **state)
{
    (void)state;
    nw_generation_settings beams = settings, samples = settings;
    crowd                  crowds[6] = {{0}};
    beams.num_beams = beams.num_return_sequences = 3;
    samples.do_sample = true;
    samples.num_return_sequences = 2;
    for (size_t i = 0; i < 6; i++) {
        nw_request q = answer_request(&all, i % 3, NULL);
        q.settings = i % 2 == 0 ? &beams : &samples;
        q.on_token = NULL;
        q.on_sequence = crowd_sequence;
        q.user = &crowds[i];
        crowds[i].at = SIZE_MAX;
        assert_int_equal(nw_session_submit(wide, &q, &crowds[i].id, &err), NW_OK);
    }
    finish_in(wide);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(crowds[i].calls, i % 2 == 0 ? 3 : 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_return_false),
        cmocka_unit_test(test_generate_cancelled_inside),
        cmocka_unit_test(test_cancel_other),
        cmocka_unit_test(test_cancel_other_and_submit),
        cmocka_unit_test(test_replace_self),
        cmocka_unit_test(test_submit_from_last_token),
        cmocka_unit_test(test_stop_from_callback),
        cmocka_unit_test(test_cancel_within_pass),
        cmocka_unit_test(test_pass_within_callback),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_beams),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_ended_by_token),
        cmocka_unit_test(test_all_wait),
    };
    int failed = cmocka_run_group_tests(tests, open_session, close_session);
    on_disk = true;
    return failed + cmocka_run_group_tests(tests, open_session, close_session);
}

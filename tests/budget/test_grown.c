/* The bundled model and a larger one that computes the same (benchmarks/grow.c): the logits of every step are equal bit
 * for bit, for short prompts and for long ones. The larger model runs under budgets from the smallest up, with every
 * set of kernels that this machine has.
 */
#include "model/kernels.h"
#include "narrows.h"
#include "program.h"
#include "temp_dir.h"
#include "vectors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PROMPTS_MAX = 256, STEPS_MAX = 64, SHORT_TOKENS_MAX = 16, EACH_KIND = 4 };

/* What the small model answered to one prompt. */
typedef struct {
    uint32_t ids[VECTOR_IDS_MAX];
    size_t   count;
    uint32_t tokens[STEPS_MAX];
    float   *logits[STEPS_MAX]; /* [vocab] each */
    size_t   steps;
} prompt;

static struct {
    temp_dir  temp;
    temp_path grown;
    prompt    prompts[PROMPTS_MAX];
    size_t    prompt_count, vocab;
    size_t    bits_compared, tokens_compared;
} t;

/* ---- the two models ---- */

/* The programs are built beside the tests: <build>/tests/test_grown, <build>/benchmarks/narrows-grow. */
static void grow(void)
{
    char    exe[2048], path[2200];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    NW_CHECK(len > 0);
    exe[len] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(exe, '/') = '\0';
    snprintf(path, sizeof path, "%s/benchmarks/narrows-grow", exe);
    const char *args[] = {path,         NW_TEST_DATA "/numbers-t5",
                          t.grown.text, "--d-model-factor",
                          "4",          "--d-ff",
                          "1280",       "--heads",
                          "6",          "--blocks",
                          "6",          NULL};
    golden_need(program_run(args, NULL) == 0, "narrows-grow", NULL);
}

static nw_model *open_model(const char *dir)
{
    nw_error  err = {0};
    nw_model *model = NULL;
    golden_need(nw_model_open(&(nw_model_options){.path = dir}, &model, &err) == NW_OK, dir, &err);
    return model;
}

/* `above` the smallest budget. What this test has resident counts as base, so the session itself says what that is. */
static nw_session *open_session(nw_model *model, uint64_t above, const char *kernels, uint64_t *ret_budget)
{
    nw_error           err = {0};
    nw_session        *session = NULL;
    nw_session_options o = {
        .budget_bytes = 1 << 20, .max_input_tokens = 64, .max_output_tokens = STEPS_MAX, .kernels = kernels};
    assert_int_equal(nw_session_open(model, &o, &session, &err), NW_E_BUDGET);
    o.budget_bytes = err.bytes_needed;
    /* The first refusal comes from the plan; the second counts what it measured, if that is more. */
    for (int tries = 0; tries < 3 && nw_session_open(model, &o, &session, &err) == NW_E_BUDGET; tries++)
        o.budget_bytes = err.bytes_needed;
    if (above > 0) {
        nw_session_close(session);
        session = NULL;
        o.budget_bytes += above;
        golden_need(nw_session_open(model, &o, &session, &err) == NW_OK, "session", &err);
    }
    golden_need(session != NULL, "session", &err);
    *ret_budget = o.budget_bytes;
    return session;
}

/* ---- answers ---- */

static bool keep(void *user, const nw_token *token)
{
    prompt *p = user;
    size_t  bytes = t.vocab * sizeof(float);
    NW_CHECK(token->index < STEPS_MAX);
    if (p->logits[token->index] == NULL)
        p->logits[token->index] = malloc(bytes);
    NW_CHECK(p->logits[token->index] != NULL);
    memcpy(p->logits[token->index], token->logits, bytes);
    p->tokens[token->index] = token->id;
    p->steps = token->index + 1;
    return true;
}

static bool compare(void *user, const nw_token *token)
{
    const prompt *p = user;
    assert_true(token->index < p->steps);
    assert_int_equal(token->id, p->tokens[token->index]);
    t.tokens_compared++;
    for (size_t i = 0; i < t.vocab; i++) {
        if (memcmp(&token->logits[i], &p->logits[token->index][i], sizeof(float)) != 0)
            fail_msg("logit %zu of step %zu: %.9g, not %.9g", i, token->index, (double)token->logits[i],
                     (double)p->logits[token->index][i]);
    }
    t.bits_compared += t.vocab;
    return true;
}

/* Asks every prompt, or the first few of each kind; `fn` sees each token. */
static void ask(nw_session *session, bool (*fn)(void *, const nw_token *), size_t each_kind)
{
    size_t asked[2] = {0};
    for (size_t i = 0; i < t.prompt_count; i++) {
        prompt *p = &t.prompts[i];
        if (asked[p->count <= SHORT_TOKENS_MAX]++ >= each_kind)
            continue;
        size_t     steps = p->steps;
        nw_request q = {.input_ids = p->ids, .input_count = p->count, .on_token = fn, .user = p};
        nw_result  r = {0};
        nw_error   err = {0};
        assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
        assert_int_equal(r.finish, NW_FINISH_EOS);
        assert_int_equal(r.count, fn == compare ? steps : p->steps);
    }
}

static void check_grown(nw_model *model, uint64_t above, const char *kernels, size_t each_kind)
{
    uint64_t    budget;
    nw_session *session = open_session(model, above, kernels, &budget);
    nw_stats    before, after;
    size_t      bits = t.bits_compared, tokens = t.tokens_compared;
    nw_session_stats(session, &before);
    ask(session, compare, each_kind);
    nw_session_stats(session, &after);
    assert_true(t.tokens_compared > tokens && t.bits_compared - bits == (t.tokens_compared - tokens) * t.vocab);
    char text[16];
    print_message("%s, %s kernels: %zu steps, %zu of them in every bit; %llu bytes resident, %llu read\n",
                  nw_bytes_format(budget, true, text), after.kernels, t.tokens_compared - tokens,
                  (t.bits_compared - bits) / t.vocab, (unsigned long long)after.pinned_bytes,
                  (unsigned long long)(after.bytes_read - before.bytes_read));
    nw_session_close(session);
}

static int start(void **state)
{
    (void)state;
    vectors   all = vectors_open();
    uint64_t  budget;
    nw_model *model = open_model(NW_TEST_DATA "/numbers-t5");
    t.temp = temp_dir_make();
    t.grown = temp_dir_path(&t.temp, "grown");
    grow();
    nw_model_info info;
    nw_model_describe(model, &info);
    t.vocab = info.vocab_size;
    for (size_t i = 0; i < all.greedy_count && t.prompt_count < PROMPTS_MAX; i++) {
        prompt *p = &t.prompts[t.prompt_count++];
        p->count = vector_ids(all.greedy[i], "input_ids", p->ids);
    }
    nw_session *session = open_session(model, (uint64_t)64 << 20, NULL, &budget);
    ask(session, keep, PROMPTS_MAX);
    nw_session_close(session);
    nw_model_close(model);
    vectors_close(&all);
    return 0;
}

static int end(void **state)
{
    (void)state;
    temp_dir_remove(&t.temp);
    for (size_t i = 0; i < t.prompt_count; i++) {
        for (size_t step = 0; step < STEPS_MAX; step++)
            free(t.prompts[i].logits[step]);
    }
    return 0;
}

static void test_budgets(void **state)
{
    (void)state;
    static const uint64_t above[] = {0, 1 << 20, 13 << 20, 29 << 20};
    nw_model             *model = open_model(t.grown.text);
    nw_model_info         info;
    nw_model_describe(model, &info);
    assert_true(info.weight_bytes > 50000000 && info.weight_bytes < 80000000 && info.d_model == 512);
    for (size_t i = 0; i < sizeof above / sizeof *above; i++)
        check_grown(model, above[i], NULL, EACH_KIND);
    check_grown(model, (uint64_t)1 << 30, NULL, PROMPTS_MAX); /* all resident */
    nw_model_close(model);
}

static void test_kernels(void **state)
{
    (void)state;
    nw_model *model = open_model(t.grown.text);
    for (const char *const *name = nw_kernels_names(); *name != NULL; name++) {
        if (nw_kernels_named(*name) == NULL) {
            print_message("skipped: this machine does not run the %s kernels\n", *name);
            continue;
        }
        check_grown(model, 0, *name, EACH_KIND);
        check_grown(model, (uint64_t)1 << 30, *name, EACH_KIND);
    }
    nw_model_close(model);
}

/* The bundled model guesses for the grown one, which computes the same: the same tokens, at least four a pass. */
static void test_drafted(void **state)
{
    (void)state;
    nw_error           err = {0};
    nw_model          *small = open_model(NW_TEST_DATA "/numbers-t5"), *model = open_model(t.grown.text);
    nw_session        *draft = NULL, *session = NULL;
    nw_session_options o = {.budget_bytes = (uint64_t)1 << 30,
                            .max_input_tokens = 64,
                            .max_output_tokens = STEPS_MAX,
                            .max_columns = 16,
                            .force = true};
    golden_need(nw_session_open(small, &o, &draft, &err) == NW_OK, "draft", &err);
    o.draft = draft;
    golden_need(nw_session_open(model, &o, &session, &err) == NW_OK, "session", &err);
    nw_stats before, after;
    size_t   tokens = t.tokens_compared;
    ask(session, compare, PROMPTS_MAX); /* the guesses of one prompt tell how good those for the next will be */
    nw_session_stats(session, &before);
    ask(session, compare, PROMPTS_MAX);
    nw_session_stats(session, &after);
    tokens = (size_t)(after.tokens - before.tokens);
    double rate = (double)tokens / (double)(after.passes - before.passes);
    print_message("a small model's guesses: %zu tokens, %.2f a pass, %llu of %llu right\n", tokens, rate,
                  (unsigned long long)(after.accepted - before.accepted),
                  (unsigned long long)(after.drafted - before.drafted));
    assert_true(rate >= 4);
    nw_session_close(session);
    nw_session_close(draft);
    nw_model_close(model);
    nw_model_close(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_drafted),
    };
    return cmocka_run_group_tests(tests, start, end);
}

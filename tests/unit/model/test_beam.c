/* Beam search where the vectors do not go: stop strings, equal scores, NaN, the size of its memory, one search after
 * another. test_generate_vectors and the golden tests have the rest. */
#include "model/beam.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 6, LENGTH = 8, BEAMS = 3 };

static _Alignas(64) unsigned char memory[1 << 16];
static nw_generation_settings settings;
static nw_processors          processors;

static nw_beam beam_of(size_t num_beams, size_t max_length)
{
    nw_beam  b = {.maxima = {.beams = BEAMS, .length = LENGTH, .vocab = VOCAB}};
    nw_arena a = nw_arena_over(memory, sizeof memory);
    nw_beam_layout(&b, &a);
    assert_false(a.failed);
    settings = nw_generation_defaults();
    settings.num_beams = (uint32_t)num_beams;
    settings.eos_token_id = (nw_end_ids){.count = 1, .ids = {1}};
    processors = (nw_processors){.settings = &settings, .prompt_count = 1, .max_length = max_length, .vocab = VOCAB};
    return b;
}

/* A step in which every beam has the same logits. */
static bool step(nw_beam *b, const float *logits)
{
    for (size_t i = 0; i < nw_beam_row_count(b); i++)
        nw_beam_row(b, nw_kernels_best(), i, logits);
    return nw_beam_advance(b);
}

static void assert_near(double have, double want, double tolerance)
{
    assert_true(fabs(have - want) <= tolerance);
}

static const uint32_t start = 0;
static const float    equal[VOCAB];

static void check_next(const nw_beam *b, size_t i, uint32_t parent, uint32_t token)
{
    assert_int_equal(b->next[i].parent, parent);
    assert_int_equal(b->next[i].token, token);
    assert_int_equal(nw_beam_ids(b, i)[b->count - 1], token);
}

/* Equal scores: the earlier beam, then the lower id. */
static void test_equal_scores(void **state)
{
    (void)state;
    nw_beam b = beam_of(3, LENGTH);
    nw_beam_start(&b, &processors, &start);
    assert_int_equal(nw_beam_row_count(&b), 1);
    assert_true(step(&b, equal));
    check_next(&b, 0, 0, 0);
    check_next(&b, 1, 0, 2); /* 1 is the end token, and has ended */
    check_next(&b, 2, 0, 3);
    assert_int_equal(nw_beam_row_count(&b), 3);
    assert_true(step(&b, equal));
    check_next(&b, 0, 0, 0);
    check_next(&b, 1, 0, 2);
    check_next(&b, 2, 0, 3);
    assert_int_equal(nw_beam_ids(&b, 2)[1], 0);
}

static void test_results(void **state)
{
    (void)state;
    nw_beam b = beam_of(2, 3);
    nw_beam_start(&b, &processors, &start);
    const uint32_t *ids;
    const float    *logprobs;
    size_t          count;
    double          score;
    assert_false(nw_beam_result(&b, 0, &ids, &logprobs, &count, &score));
    const float logits[VOCAB] = {-9, 1, -9, 3, -9, 2};
    assert_true(step(&b, logits));
    assert_false(step(&b, logits)); /* the maximum length */
    assert_true(nw_beam_result(&b, 0, &ids, &logprobs, &count, &score));
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], 3);
    assert_int_equal(ids[1], 3);
    double log_sum = log(exp(1) + exp(2) + exp(3) + 3 * exp(-9));
    assert_near((double)logprobs[0], 3 - log_sum, 1e-5);
    assert_near(score, 3 - log_sum, 1e-5); /* two of them, divided by two */
    assert_true(nw_beam_result(&b, 1, &ids, &logprobs, &count, &score));
    assert_int_equal(ids[0] + ids[1], 8);
    assert_false(nw_beam_result(&b, 2, &ids, &logprobs, &count, &score));
}

typedef struct {
    uint32_t token; /* ends a sequence */
    size_t   asked;
} stopper;

static bool stops(void *user, const uint32_t *ids, size_t count)
{
    stopper *s = user;
    s->asked++;
    assert_int_equal(ids[0], start);
    return ids[count - 1] == s->token;
}

/* A stop string ends a hypothesis as an end token does. With beams to spare that have all ended, one goes on as good as
 * nothing. */
static void test_stop_strings(void **state)
{
    (void)state;
    stopper s = {.token = 3};
    nw_beam b = beam_of(2, LENGTH);
    nw_beam_start(&b, &processors, &start);
    b.stops = stops;
    b.user = &s;
    const float     logits[VOCAB] = {-1, -9, 0, 5, -2, -3};
    const uint32_t *ids;
    const float    *logprobs;
    size_t          count;
    double          score;
    step(&b, logits);
    assert_true(s.asked > 0);
    assert_true(nw_beam_result(&b, 0, &ids, &logprobs, &count, &score));
    assert_int_equal(count, 1);
    assert_int_equal(ids[0], 3);
    check_next(&b, 0, 0, 2);
    check_next(&b, 1, 0, 0);
    while (step(&b, logits)) {
        for (size_t i = 0; i < 2; i++)
            assert_true(b.running[i] < 0);
    }
    assert_true(nw_beam_result(&b, 1, &ids, &logprobs, &count, &score));
    assert_int_equal(ids[count - 1], 3);
}

/* NaN is nothing that can be chosen; all of it ends in hypotheses of nothing, not in a trap. */
static void test_nan(void **state)
{
    (void)state;
    nw_beam b = beam_of(2, 4);
    float   some[VOCAB] = {NAN, NAN, NAN, NAN, NAN, NAN};
    nw_beam_start(&b, &processors, &start);
    size_t steps = 1;
    for (; step(&b, some); steps++)
        assert_true(steps < 4);
    const uint32_t *ids;
    const float    *logprobs;
    size_t          count;
    double          score;
    assert_false(nw_beam_result(&b, 0, &ids, &logprobs, &count, &score));
}

/* A search leaves nothing behind for the next one. */
static void test_again(void **state)
{
    (void)state;
    nw_beam         b = beam_of(3, LENGTH);
    const float     logits[VOCAB] = {0, 2.5f, 1, 3, 1.5f, 2};
    const uint32_t *ids;
    const float    *logprobs;
    uint32_t        first[LENGTH] = {0};
    double          scores[2];
    size_t          counts[2];
    for (size_t round = 0; round < 2; round++) {
        nw_beam_start(&b, &processors, &start);
        while (step(&b, logits)) {
        }
        assert_true(nw_beam_result(&b, 0, &ids, &logprobs, &counts[round], &scores[round]));
        if (round == 0)
            memcpy(first, ids, counts[0] * sizeof *ids);
    }
    assert_int_equal(counts[0], counts[1]);
    assert_memory_equal(first, ids, counts[0] * sizeof *ids);
    assert_true(scores[0] == scores[1]);
}

/* A longer prompt: its ids are in front of every sequence, and count for no length. */
static void test_prompt(void **state)
{
    (void)state;
    nw_beam        b = beam_of(2, 5);
    const uint32_t prompt[] = {0, 4, 4};
    processors.prompt_count = 3;
    nw_beam_start(&b, &processors, prompt);
    assert_int_equal(nw_beam_row_count(&b), 1);
    const float logits[VOCAB] = {-9, -9, -9, 3, -9, -9};
    assert_true(step(&b, logits));
    assert_int_equal(nw_beam_ids(&b, 1)[2], 4);
    assert_false(step(&b, logits));
    const uint32_t *ids;
    const float    *logprobs;
    size_t          count;
    double          score;
    assert_true(nw_beam_result(&b, 0, &ids, &logprobs, &count, &score));
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], 3);
    assert_near(score, (double)(logprobs[0] + logprobs[1]) / 2, 1e-6);
}

static void test_size(void **state)
{
    (void)state;
    nw_beam  b = {.maxima = {.beams = 4, .length = 200, .vocab = 1000}};
    nw_arena a = nw_arena_measure();
    nw_beam_layout(&b, &a);
    size_t paths = 3 * 4 * 200 * 8, row = 4000;
    assert_in_range(a.used, paths + row, paths + row + 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_scores), cmocka_unit_test(test_results), cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_nan),          cmocka_unit_test(test_again),   cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

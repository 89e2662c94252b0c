/* Each processor by itself, and their order where it shows. test_generate_vectors has them all against the reference.
 */
#include "model/processors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 8 };

static nw_generation_settings settings(void)
{
    nw_generation_settings s = nw_generation_defaults();
    s.eos_token_id = (nw_end_ids){.count = 1, .ids = {1}};
    return s;
}

/* Applies to the scores -3 .. 4; `forbidden` has a letter for each id: '.' stays, 'x' is forbidden. */
static void check_forbidden(const nw_generation_settings *s, const uint32_t *ids, size_t count, const char *forbidden)
{
    nw_processors p = {.settings = s, .prompt_count = 1, .max_length = 6, .vocab = VOCAB};
    float         row[VOCAB], scratch[16];
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = (float)i - 3;
    assert_true(nw_processors_active(&p));
    nw_processors_apply(&p, ids, count, row, scratch);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(row[i] == (forbidden[i] == 'x' ? -INFINITY : (float)i - 3));
}

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

static void test_nothing(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    nw_processors          p = {.settings = &s, .prompt_count = 1, .max_length = 6, .vocab = VOCAB};
    float                  row[VOCAB] = {NAN, INFINITY, -0.0f, 1, 2, 3, 4, 5}, want[VOCAB], scratch[3];
    memcpy(want, row, sizeof row);
    assert_false(nw_processors_active(&p));
    nw_processors_apply(&p, IDS(0, 3, 3), row, scratch);
    assert_memory_equal(row, want, sizeof row);
}

/* Once for an id, however often it was there; the start token counts. */
static void test_repetition(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    nw_processors          p = {.settings = &s, .prompt_count = 1, .max_length = 6, .vocab = VOCAB};
    float                  row[VOCAB] = {-4, -3, -2, 0, 1, 2, 3, 4}, scratch[4];
    s.repetition_penalty = 2;
    assert_true(nw_processors_active(&p));
    nw_processors_apply(&p, IDS(0, 5, 5, 3), row, scratch);
    const float want[VOCAB] = {-8, -3, -2, 0, 1, 1, 3, 4};
    assert_memory_equal(row, want, sizeof row);
}

static void test_ngrams(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    s.no_repeat_ngram_size = 1;
    check_forbidden(&s, IDS(0, 2, 2), "x.x.....");
    s.no_repeat_ngram_size = 2;
    check_forbidden(&s, IDS(0, 2, 3, 2, 4, 2), "...xx...");
    check_forbidden(&s, IDS(0), "........");
    check_forbidden(&s, IDS(2, 2), "..x.....");
    s.no_repeat_ngram_size = 3;
    check_forbidden(&s, IDS(2, 2), "........");
    check_forbidden(&s, IDS(2, 2, 2), "..x.....");
    check_forbidden(&s, IDS(4, 5, 6, 4, 5), "......x.");
    s.no_repeat_ngram_size = 1000;
    check_forbidden(&s, IDS(4, 5, 6, 4, 5), "........");
}

static void test_bad_words(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    s.bad_words_ids = (nw_bad_words){.count = 4, .lens = {1, 2, 3, 1}, .id_count = 7, .ids = {7, 2, 3, 4, 2, 5, 1}};
    check_forbidden(&s, IDS(0), ".......x"); /* [1], the end token, may come */
    check_forbidden(&s, IDS(0, 2), "...x...x");
    check_forbidden(&s, IDS(4, 2), "...x...x"); /* [4, 2, 5]: as in the reference not with two ids before it */
    check_forbidden(&s, IDS(0, 4, 2), "...x.x.x");
    check_forbidden(&s, IDS(0, 4, 3), ".......x");
}

static void test_minimum(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    s.eos_token_id = (nw_end_ids){.count = 2, .ids = {1, 6}};
    s.min_length = 3;
    check_forbidden(&s, IDS(0), ".x....x.");
    check_forbidden(&s, IDS(0, 2), ".x....x.");
    check_forbidden(&s, IDS(0, 2, 2), "........");
    s.given = NW_GENERATION_BIT(NW_GENERATION_MIN_NEW_TOKENS); /* which goes before min_length */
    s.min_new_tokens = 1;
    check_forbidden(&s, IDS(0), ".x....x.");
    nw_processors p = {.settings = &s, .prompt_count = 1, .max_length = 6, .vocab = VOCAB};
    s.min_new_tokens = 0;
    assert_false(nw_processors_active(&p));
    s.given = 0;
    s.min_length = 1; /* the start token */
    assert_false(nw_processors_active(&p));
}

static void test_suppressed(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    s.suppress_tokens = (nw_id_list){.count = 2, .ids = {0, 7}};
    s.begin_suppress_tokens = (nw_id_list){.count = 1, .ids = {3}};
    check_forbidden(&s, IDS(0), "x..x...x");
    check_forbidden(&s, IDS(0, 2), "x......x");
}

/* Forced ids get 0 and all others go; what is suppressed after that leaves nothing. */
static void test_forced(void **state)
{
    (void)state;
    nw_generation_settings s = settings();
    nw_processors          p = {.settings = &s, .prompt_count = 1, .max_length = 4, .vocab = VOCAB};
    float                  row[VOCAB] = {0}, scratch[4];
    s.forced_bos_token_id = 5;
    s.forced_eos_token_id = (nw_end_ids){.count = 2, .ids = {1, 2}};
    s.begin_suppress_tokens = (nw_id_list){.count = 1, .ids = {5}};
    nw_processors_apply(&p, IDS(0), row, scratch);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(row[i] == (i == 5 ? 0 : -INFINITY));
    memset(row, 0, sizeof row);
    nw_processors_apply(&p, IDS(0, 5), row, scratch); /* the first position that is free */
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(row[i] == (i == 5 ? -INFINITY : 0));
    for (size_t i = 0; i < VOCAB; i++)
        row[i] = 7;
    nw_processors_apply(&p, IDS(0, 5, 3), row, scratch);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(row[i] == (i == 1 || i == 2 ? 0 : -INFINITY));
    s.suppress_tokens = (nw_id_list){.count = 2, .ids = {1, 2}};
    nw_processors_apply(&p, IDS(0, 5, 3), row, scratch);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(row[i] == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),   cmocka_unit_test(test_repetition), cmocka_unit_test(test_ngrams),
        cmocka_unit_test(test_bad_words), cmocka_unit_test(test_minimum),    cmocka_unit_test(test_suppressed),
        cmocka_unit_test(test_forced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

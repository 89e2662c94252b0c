/* Warping against a sort that is as simple as the reference's, on rows with many equal scores; draws against the
 * probabilities they are drawn from; the generator against its published vectors. */
#include "model/sampling.h"

#include "draws.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB_MAX = 4096 };

static void test_philox_vectors(void **state)
{
    (void)state;
    /* Random123 1.14, tests/kat_vectors, philox4x32 with 10 rounds. */
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint32_t have[4];
        nw_philox4x32(vectors[i].counter, vectors[i].key, have);
        assert_memory_equal(have, vectors[i].want, sizeof have);
    }
}

/* The number of a draw is what it was: answers of a seed are a promise. */
static void test_uniform(void **state)
{
    (void)state;
    uint32_t bits[4];
    nw_philox4x32((const uint32_t[4]){7, 0, 3, 0}, (const uint32_t[2]){42, 0}, bits);
    double want = ldexp((double)(((uint64_t)bits[1] << 32 | bits[0]) >> 11), -53);
    assert_true(nw_draw_uniform(42, 3, 7) == want);
    double least = 1, most = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        double u = nw_draw_uniform(1, i % 7, i);
        assert_true(u >= 0 && u < 1);
        least = u < least ? u : least;
        most = u > most ? u : most;
    }
    assert_true(least < 1e-3 && most > 1 - 1e-3);
    assert_true(nw_draw_uniform(1, 0, 0) != nw_draw_uniform(2, 0, 0));
    assert_true(nw_draw_uniform(1, 0, 0) != nw_draw_uniform(1, 1, 0));
    assert_true(nw_draw_uniform(1, 0, 0) != nw_draw_uniform(1, 0, 1));
    assert_true(nw_draw_uniform(1, 0, 0) != nw_draw_uniform(1 + (UINT64_C(1) << 32), 0, 0));
}

/* ---- warping ----------------------------------------------------------------------------------------------------- */

static const float *sorted_row;

static int by_score_then_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted_row[x] != sorted_row[y])
        return sorted_row[x] < sorted_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void sort_ids(const float *row, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)i;
    sorted_row = row;
    qsort(ids, n, sizeof *ids, by_score_then_id);
}

/* Probabilities in double. */
static void simple_softmax(const float *row, size_t n, double *p)
{
    double max = -HUGE_VAL, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = (double)row[i] > max ? (double)row[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += p[i] = exp((double)row[i] - max);
    for (size_t i = 0; i < n; i++)
        p[i] /= sum;
}

static void simple_warp(const nw_generation_settings *s, float *row, size_t n)
{
    static uint32_t ids[VOCAB_MAX];
    static double   p[VOCAB_MAX];
    for (size_t i = 0; i < n; i++)
        row[i] /= (float)s->temperature;
    sort_ids(row, n, ids);
    float kth = row[ids[s->top_k == 0 || s->top_k > n ? 0 : n - s->top_k]];
    for (size_t i = 0; i < n; i++)
        row[i] = row[i] < kth ? -INFINITY : row[i];
    if (s->top_p < 1) {
        sort_ids(row, n, ids);
        simple_softmax(row, n, p);
        double sum = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            sum += p[ids[i]];
            if (sum <= 1 - s->top_p)
                row[ids[i]] = -INFINITY;
        }
    }
    if (s->min_p > 0) {
        double largest = 0;
        simple_softmax(row, n, p);
        for (size_t i = 0; i < n; i++)
            largest = p[i] > largest ? p[i] : largest;
        for (size_t i = 0; i < n; i++)
            row[i] = p[i] < s->min_p * largest ? -INFINITY : row[i];
    }
}

/* Scores on a grid: many are equal. Sums then fall on the thresholds only where p was chosen so. */
static void draw_row(float *row, size_t n, unsigned levels)
{
    for (size_t i = 0; i < n; i++)
        row[i] = (float)random_below(levels) * 0.37f - 4.0f;
}

static void test_warp_as_sorted(void **state)
{
    (void)state;
    static float          row[VOCAB_MAX], want[VOCAB_MAX], values[VOCAB_MAX];
    static uint32_t       order[VOCAB_MAX];
    static const size_t   sizes[] = {1, 2, 15, 17, 256, 4096};
    static const unsigned levels[] = {1, 3, 20, 1000};
    size_t                removed = 0;
    random_state = 5;
    for (size_t i = 0; i < 1200; i++) {
        size_t                 n = sizes[random_below(6)];
        nw_warp_scratch        w = {.vocab = n, .values = values, .order = order};
        nw_generation_settings s = nw_generation_defaults();
        s.temperature = (double[]){1, 0.5, 2.5}[random_below(3)];
        s.top_k = (uint32_t[]){0, 1, 7, 50, 5000}[random_below(5)];
        s.top_p = (double[]){1, 0.9137, 0.5017, 0.0113}[random_below(4)];
        s.min_p = (double[]){0, 0.05, 0.6, 1}[random_below(4)];
        draw_row(row, n, levels[random_below(4)]);
        memcpy(want, row, n * sizeof *row);
        simple_warp(&s, want, n);
        nw_warp(nw_kernels_best(), &s, row, &w);
        assert_memory_equal(row, want, n * sizeof *row);
        for (size_t j = 0; j < n; j++)
            removed += row[j] == -INFINITY;
    }
    assert_true(removed > 10000);
}

/* Of equal scores at the edge of top_p the lower ids go; of equal k-th scores none does. */
static void test_equal_scores(void **state)
{
    (void)state;
    float                  row[] = {1, 1, 1, 1}, values[4];
    uint32_t               order[4];
    nw_warp_scratch        w = {.vocab = 4, .values = values, .order = order};
    nw_generation_settings s = nw_generation_defaults();
    s.top_k = 2;
    s.top_p = 0.5;
    nw_warp(nw_kernels_best(), &s, row, &w);
    const float want[] = {-INFINITY, -INFINITY, 1, 1};
    assert_memory_equal(row, want, sizeof want);
}

static void test_nothing_to_draw(void **state)
{
    (void)state;
    float                  row[] = {NAN, -INFINITY, NAN}, values[3];
    uint32_t               order[3];
    nw_warp_scratch        w = {.vocab = 3, .values = values, .order = order};
    nw_generation_settings s = nw_generation_defaults();
    s.top_p = 0.5;
    s.min_p = 0.5;
    nw_warp(nw_kernels_best(), &s, row, &w);
    assert_false(nw_probabilities(nw_kernels_best(), row, 3));
    row[1] = INFINITY;
    assert_false(nw_probabilities(nw_kernels_best(), row, 3));
    float one[] = {NAN, -3, NAN};
    nw_warp(nw_kernels_best(), &s, one, &w);
    assert_true(nw_probabilities(nw_kernels_best(), one, 3));
    assert_int_equal(nw_draw(one, 3, 1, 2, 3), 1);
}

static void test_scratch_size(void **state)
{
    (void)state;
    nw_arena        a = nw_arena_measure();
    nw_warp_scratch w;
    nw_warp_layout(&w, &a, 250112);
    assert_in_range(a.used, 250112 * 8, 250112 * 8 + 128);
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* 100,000 draws against their probabilities. The statistic has 49 degrees of freedom: above 85.4 once in a thousand
 * seeds; this seed is fixed. */
static void test_draws_follow_probabilities(void **state)
{
    (void)state;
    enum { N = 60, DRAWS = 100000 };
    float                  row[N], values[N];
    uint32_t               order[N], counts[N] = {0};
    nw_warp_scratch        w = {.vocab = N, .values = values, .order = order};
    nw_generation_settings s = nw_generation_defaults();
    random_state = 11;
    for (size_t i = 0; i < N; i++)
        row[i] = (float)random_below(100000) * 3e-5f;
    nw_warp(nw_kernels_best(), &s, row, &w);
    assert_true(nw_probabilities(nw_kernels_best(), row, N));
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[nw_draw(row, N, 1234, i / 1000, i % 1000)]++;
    double statistic = 0;
    size_t kinds = 0;
    for (size_t i = 0; i < N; i++) {
        double want = (double)row[i] * DRAWS;
        assert_true(want > 0 || counts[i] == 0);
        if (want > 0) {
            statistic += (counts[i] - want) * (counts[i] - want) / want;
            kinds++;
        }
    }
    assert_int_equal(kinds, 50); /* top_k's default */
    assert_true(statistic < 85.4);
    assert_true(statistic > 20); /* nor too good: above this 999.9 times in a thousand */
}

/* The same bits whatever the instruction set. */
static void test_same_draws_everywhere(void **state)
{
    (void)state;
    enum { N = 3001 };
    static float           rows[2][N], values[N];
    static uint32_t        order[N];
    nw_warp_scratch        w = {.vocab = N, .values = values, .order = order};
    nw_generation_settings s = nw_generation_defaults();
    s.temperature = 0.7;
    s.top_k = 900;
    s.top_p = 0.95;
    s.min_p = 0.001;
    const char *const *names = nw_kernels_names();
    for (uint64_t position = 0; position < 20; position++) {
        uint32_t portable = 0;
        for (size_t i = 0; names[i] != NULL; i++) {
            const nw_kernels *k = nw_kernels_named(names[i]);
            if (k == NULL)
                continue;
            random_state = position;
            float *row = rows[i > 0];
            for (size_t j = 0; j < N; j++)
                row[j] = (float)random_below(1000000) * 1e-5f;
            nw_warp(k, &s, row, &w);
            assert_true(nw_probabilities(k, row, N));
            assert_memory_equal(row, rows[0], sizeof rows[0]);
            uint32_t id = nw_draw(row, N, 9, 0, position);
            portable = i == 0 ? id : portable;
            assert_int_equal(id, portable);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_vectors),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_warp_as_sorted),
        cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_nothing_to_draw),
        cmocka_unit_test(test_scratch_size),
        cmocka_unit_test(test_draws_follow_probabilities),
        cmocka_unit_test(test_same_draws_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

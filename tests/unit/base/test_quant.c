/* q8 and q4 blocks: the documented layout, exact values, and scales that no other scale beats by much. */
#include "base/quant.h"

#include "base/dtype.h"
#include "draws.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N ((size_t)32 * 64)

/* Near to normally distributed. */
static float random_weight(void)
{
    float sum = 0;
    for (size_t i = 0; i < 6; i++)
        sum += (float)(int32_t)random_u32() * 0x1p-31f;
    return sum * 0.02f;
}

static double squares(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

static void put_scale(uint8_t *block, float scale)
{
    nw_dtype_from_f32(NW_F16, scale, block);
}

static void test_decode(void **state)
{
    (void)state;
    uint8_t block[36] = {0};
    float   values[32];
    assert_int_equal(nw_quant_block_bytes(NW_Q8), 34);
    assert_int_equal(nw_quant_block_bytes(NW_Q4), 18);
    for (size_t at = 0; at < 2; at++) { /* at any address */
        put_scale(block + at, 0.5f);
        for (size_t i = 0; i < 32; i++)
            block[at + 2 + i] = (uint8_t)(i * 8 - 128);
        nw_quant_decode(NW_Q8, values, block + at, 32);
        for (size_t i = 0; i < 32; i++)
            assert_true(values[i] == 0.5f * ((float)i * 8 - 128));
    }
    put_scale(block, -0x1p-24f); /* the smallest f16 */
    for (size_t i = 0; i < 16; i++)
        block[2 + i] = (uint8_t)(i | (15 - i) << 4);
    nw_quant_decode(NW_Q4, values, block, 32);
    for (size_t i = 0; i < 16; i++) {
        assert_true(values[i] == -0x1p-24f * ((float)i - 8));
        assert_true(values[16 + i] == -0x1p-24f * (7 - (float)i));
    }
}

/* What blocks can hold exactly comes back exactly. */
static void test_exact(void **state)
{
    (void)state;
    static const float scales[] = {1, 0.0078125f, -3, 0x1p-20f, 500, 0x1.ff8p-10f};
    float              x[32], back[32];
    uint8_t            block[34];
    for (size_t s = 0; s < 6; s++) {
        for (size_t i = 0; i < 32; i++)
            x[i] = scales[s] * (float)((int)i * 8 - 124);
        x[31] = scales[s] * 127;
        assert_true(nw_quant_encode(NW_Q8, block, x, 32));
        nw_quant_decode(NW_Q8, back, block, 32);
        assert_true(squares(x, back, 32) <= 0);
        for (size_t i = 0; i < 32; i++)
            x[i] = scales[s] * (float)((int)i % 16 - 8);
        assert_true(nw_quant_encode(NW_Q4, block, x, 32));
        nw_quant_decode(NW_Q4, back, block, 32);
        assert_true(squares(x, back, 32) <= 0);
    }
    memset(x, 0, sizeof x);
    x[5] = -0.0f;
    for (nw_quant q = NW_Q8; q <= NW_Q4; q++) {
        assert_true(nw_quant_encode(q, block, x, 32));
        nw_quant_decode(q, back, block, 32);
        for (size_t i = 0; i < 32; i++)
            assert_true(back[i] >= 0 && back[i] <= 0);
    }
}

/* The error of one block for one scale, each value to its nearest. */
static double error_of(nw_quant q, const float *x, float scale)
{
    double low = q == NW_Q8 ? -127 : -8, high = q == NW_Q8 ? 127 : 7, sum = 0;
    for (size_t i = 0; i < 32; i++) {
        double miss = (double)x[i] - (double)scale * fmax(low, fmin(high, rint((double)x[i] / (double)scale)));
        sum += miss * miss;
    }
    return sum;
}

/* The least error over every f16 scale around the usual ones. */
static double least_error(nw_quant q, const float *x)
{
    float    largest = 0;
    double   least = HUGE_VAL;
    uint16_t low, high;
    for (size_t i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    nw_dtype_from_f32(NW_F16, largest / (q == NW_Q8 ? 140.0f : 12.0f), &low);
    nw_dtype_from_f32(NW_F16, largest / (q == NW_Q8 ? 115.0f : 4.5f), &high);
    for (uint32_t half = low; half <= high; half++) {
        uint16_t bits = (uint16_t)half;
        float    scale = nw_dtype_to_f32(NW_F16, &bits);
        least = fmin(least, fmin(error_of(q, x, scale), error_of(q, x, -scale)));
    }
    return least;
}

static void check_error(nw_quant q, double plain_scale, double slack)
{
    float   x[32], back[32];
    uint8_t block[34];
    double  got = 0, least = 0, plain = 0;
    for (size_t b = 0; b < 200; b++) {
        float largest = 0;
        for (size_t i = 0; i < 32; i++) {
            x[i] = random_weight();
            largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
        }
        assert_true(nw_quant_encode(q, block, x, 32));
        nw_quant_decode(q, back, block, 32);
        got += squares(x, back, 32);
        least += least_error(q, x);
        plain += error_of(q, x, largest / (float)plain_scale);
    }
    assert_true(got <= plain);
    if (!(got <= least * slack))
        fail_msg("%s: error %g, the least is %g", q == NW_Q8 ? "q8" : "q4", got, least);
}

static void test_error(void **state)
{
    (void)state;
    check_error(NW_Q8, 127, 1.25);
    check_error(NW_Q4, -8, 1.10);
}

static void test_ends(void **state)
{
    (void)state;
    static const float refused[] = {INFINITY, -INFINITY, NAN, 9e6f, 1e38f};
    uint8_t            block[2 * 34];
    float              x[64] = {0}, back[64];
    for (nw_quant q = NW_Q8; q <= NW_Q4; q++) {
        for (size_t r = 0; r < 5; r++) {
            x[40] = refused[r];
            assert_false(nw_quant_encode(q, block, x, 64));
        }
        x[40] = q == NW_Q8 ? 65504.0f * 127 : 65504.0f * 7; /* the largest that fits */
        assert_true(nw_quant_encode(q, block, x, 64));
        nw_quant_decode(q, back, block, 64);
        assert_true(back[40] == x[40]);
        /* below the smallest scale: at worst all is lost, never more than the values themselves */
        static const float tiny[] = {0x1p-149f, 0x1p-126f, 0x1p-30f, 0x1p-24f, 0x1p-22f};
        for (size_t t = 0; t < 5; t++) {
            for (size_t i = 0; i < 64; i++)
                x[i] = i % 3 == 0 ? tiny[t] : -tiny[t] / 2;
            assert_true(nw_quant_encode(q, block, x, 64));
            nw_quant_decode(q, back, block, 64);
            for (size_t i = 0; i < 64; i++)
                assert_true(fabsf(back[i] - x[i]) <= fabsf(tiny[t]));
        }
        memset(x, 0, sizeof x);
    }
}

/* Blocks do not depend on their neighbours, and nothing is written behind them. */
static void test_blocks(void **state)
{
    (void)state;
    static float   x[N];
    static uint8_t all[N * 2], one[34];
    for (size_t i = 0; i < N; i++)
        x[i] = random_weight();
    for (nw_quant q = NW_Q8; q <= NW_Q4; q++) {
        size_t bytes = nw_quant_block_bytes(q);
        memset(all, 0xa5, sizeof all);
        assert_true(nw_quant_encode(q, all, x, N));
        assert_int_equal(all[N / 32 * bytes], 0xa5);
        for (size_t b = 0; b < N / 32; b++) {
            assert_true(nw_quant_encode(q, one, x + 32 * b, 32));
            assert_memory_equal(one, all + b * bytes, bytes);
        }
    }
}

int main(void)
{
    random_state = 11;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode), cmocka_unit_test(test_exact),  cmocka_unit_test(test_error),
        cmocka_unit_test(test_ends),   cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

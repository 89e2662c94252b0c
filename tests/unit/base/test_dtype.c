/* Conversions of storage types, against arithmetic that is done another way: exhaustive for 16-bit values, and for f32
 * around every place where rounding decides. */
#include "base/dtype.h"

#include "draws.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint16_t store(nw_dtype dtype, float value)
{
    uint16_t half;
    nw_dtype_from_f32(dtype, value, &half);
    return half;
}

/* The value of a 16-bit pattern by the definition of the formats. NaN is left to the caller. */
static double value_of(nw_dtype dtype, uint16_t bits)
{
    int    fraction_bits = dtype == NW_F16 ? 10 : 7;
    int    exponent_max = dtype == NW_F16 ? 31 : 255;
    int    bias = dtype == NW_F16 ? 15 : 127;
    int    exponent = (bits & 0x7fff) >> fraction_bits;
    int    fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude;
    if (exponent == exponent_max)
        magnitude = HUGE_VAL;
    else if (exponent == 0)
        magnitude = ldexp(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static bool is_nan_pattern(nw_dtype dtype, uint16_t bits)
{
    return (bits & 0x7fff) > (dtype == NW_F16 ? 0x7c00 : 0x7f80);
}

static void test_every_half(void **state)
{
    (void)state;
    for (int t = NW_BF16; t <= NW_F16; t++) {
        nw_dtype dtype = (nw_dtype)t;
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t bits = (uint16_t)i;
            float    value = nw_dtype_to_f32(dtype, &bits);
            if (is_nan_pattern(dtype, bits)) {
                assert_true(isnan(value));
                assert_true(is_nan_pattern(dtype, store(dtype, value)));
                assert_int_equal(store(dtype, value) & 0x8000, bits & 0x8000);
            } else {
                assert_true((double)value == value_of(dtype, bits));
                assert_int_equal(signbit(value) != 0, bits >> 15);
                assert_int_equal(store(dtype, value), bits);
            }
        }
    }
}

/* Between two neighbours: what is nearer wins, the middle goes to the even one. */
static void test_rounding(void **state)
{
    (void)state;
    for (int t = NW_BF16; t <= NW_F16; t++) {
        nw_dtype dtype = (nw_dtype)t;
        uint32_t infinity = dtype == NW_F16 ? 0x7c00 : 0x7f80;
        for (uint32_t i = 0; i < infinity; i++) {
            double low = value_of(dtype, (uint16_t)i);
            /* what would come next if the exponent had no end: where overflow begins */
            double high = i + 1 < infinity ? value_of(dtype, (uint16_t)(i + 1)) : dtype == NW_F16 ? 0x1p16 : 0x1p128;
            float  middle = (float)((low + high) / 2); /* exact: both have few digits */
            assert_true((double)middle == (low + high) / 2);
            uint16_t even = (uint16_t)(i + (i & 1)), above = (uint16_t)(i + 1);
            assert_int_equal(store(dtype, middle), even);
            assert_int_equal(store(dtype, nextafterf(middle, 0)), i);
            assert_int_equal(store(dtype, nextafterf(middle, INFINITY)), above);
            assert_int_equal(store(dtype, -middle), even | 0x8000);
        }
    }
}

static void test_ends(void **state)
{
    (void)state;
    assert_int_equal(store(NW_F16, INFINITY), 0x7c00);
    assert_int_equal(store(NW_F16, -INFINITY), 0xfc00);
    assert_int_equal(store(NW_F16, 65504.0f), 0x7bff);
    assert_int_equal(store(NW_F16, 65519.996f), 0x7bff);
    assert_int_equal(store(NW_F16, 65520.0f), 0x7c00);
    assert_int_equal(store(NW_F16, 3e38f), 0x7c00);
    assert_int_equal(store(NW_F16, -0.0f), 0x8000);
    assert_int_equal(store(NW_F16, 0x1p-149f), 0);
    assert_int_equal(store(NW_BF16, 0x1.fffffep127f), 0x7f80);
    assert_int_equal(store(NW_BF16, -INFINITY), 0xff80);
    assert_int_equal(store(NW_BF16, -0.0f), 0x8000);
    static const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xff800001, 0x7fc00000, 0xffc12345};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        assert_true(is_nan_pattern(NW_BF16, store(NW_BF16, of_bits(nans[i]))));
        assert_true(is_nan_pattern(NW_F16, store(NW_F16, of_bits(nans[i]))));
    }
}

/* f32 is stored as it is, at any address. */
static void test_f32_and_alignment(void **state)
{
    (void)state;
    static const uint32_t patterns[] = {0, 0x80000000, 1, 0x3f800000, 0x7f7fffff, 0x7f800000, 0x12345678};
    unsigned char         bytes[16];
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        for (size_t at = 0; at < 4; at++) {
            nw_dtype_from_f32(NW_F32, of_bits(patterns[i]), bytes + at);
            assert_memory_equal(bytes + at, &patterns[i], 4);
            assert_int_equal(bits_of(nw_dtype_to_f32(NW_F32, bytes + at)), patterns[i]);
            nw_dtype_from_f32(NW_BF16, 1.5f, bytes + at);
            assert_true(nw_dtype_to_f32(NW_BF16, bytes + at) == 1.5f);
            nw_dtype_from_f32(NW_F16, -2.25f, bytes + at);
            assert_true(nw_dtype_to_f32(NW_F16, bytes + at) == -2.25f);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(nw_dtype_name(NW_F32), "f32");
    assert_string_equal(nw_dtype_name(NW_BF16), "bf16");
    assert_string_equal(nw_dtype_name(NW_F16), "f16");
    assert_int_equal(nw_dtype_bytes(NW_F32), 4);
    assert_int_equal(nw_dtype_bytes(NW_BF16), 2);
    assert_int_equal(nw_dtype_bytes(NW_F16), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_half),        cmocka_unit_test(test_rounding), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_f32_and_alignment), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Conversions between storage types and f32, one element at a time: for tables, writers and tests. Hot loops have
 * vector forms of their own (model/kernels), which must agree with these bit for bit. */
#include "base/dtype.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

size_t nw_dtype_bytes(nw_dtype dtype)
{
    switch (dtype) {
    case NW_F32: return 4;
    case NW_BF16: return 2;
    case NW_F16: return 2;
    case NW_DTYPE_COUNT: break;
    }
    nw_trap("a known dtype", __FILE__, __LINE__);
}

const char *nw_dtype_name(nw_dtype dtype)
{
    switch (dtype) {
    case NW_F32: return "f32";
    case NW_BF16: return "bf16";
    case NW_F16: return "f16";
    case NW_DTYPE_COUNT: break;
    }
    nw_trap("a known dtype", __FILE__, __LINE__);
}

static float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float f32_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1f) /* inf, and NaN made quiet as the hardware's conversion makes it */
        return f32_of_bits(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0));
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact in f32 */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return f32_of_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
}

/* Rounds x >> shift to nearest, ties to even. */
static uint32_t shift_to_even(uint32_t x, uint32_t shift)
{
    uint32_t half = 1u << (shift - 1);
    uint32_t rest = x & ((1u << shift) - 1);
    uint32_t result = x >> shift;
    return result + (rest > half || (rest == half && (result & 1) != 0) ? 1 : 0);
}

static uint16_t f16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {            /* below 2^-14: a subnormal, in units of 2^-24 */
        float units = fabsf(value) * 0x1p24f; /* exact: a power of two, far from overflow */
        return (uint16_t)(sign | (uint32_t)nearbyintf(units));
    }
    return (uint16_t)(sign | shift_to_even(magnitude - (112u << 23), 13));
}

static uint16_t bf16_of_f32(float value)
{
    uint32_t bits = bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)shift_to_even(bits, 16);
}

float nw_dtype_to_f32(nw_dtype dtype, const void *p)
{
    uint16_t half;
    float    value;
    switch (dtype) {
    case NW_F32: memcpy(&value, p, sizeof value); return value;
    case NW_BF16: memcpy(&half, p, sizeof half); return f32_of_bits((uint32_t)half << 16);
    case NW_F16: memcpy(&half, p, sizeof half); return f32_of_f16(half);
    case NW_DTYPE_COUNT: break;
    }
    nw_trap("a known dtype", __FILE__, __LINE__);
}

void nw_dtype_from_f32(nw_dtype dtype, float value, void *p)
{
    uint16_t half;
    switch (dtype) {
    case NW_F32: memcpy(p, &value, sizeof value); return;
    case NW_BF16:
        half = bf16_of_f32(value);
        memcpy(p, &half, sizeof half);
        return;
    case NW_F16:
        half = f16_of_f32(value);
        memcpy(p, &half, sizeof half);
        return;
    case NW_DTYPE_COUNT: break;
    }
    nw_trap("a known dtype", __FILE__, __LINE__);
}

/* Inlined for each pair of types, so that the switches in it are decided by the compiler. */
static inline __attribute__((always_inline)) void convert(nw_dtype to, unsigned char *dst, nw_dtype from,
                                                          const unsigned char *src, size_t n, uint64_t *rounded,
                                                          uint64_t *infinite)
{
    size_t   to_bytes = to == NW_F32 ? 4 : 2, from_bytes = from == NW_F32 ? 4 : 2;
    uint64_t lost = 0, overflowed = 0;
    for (size_t i = 0; i < n; i++) {
        float value = nw_dtype_to_f32(from, src + i * from_bytes);
        nw_dtype_from_f32(to, value, dst + i * to_bytes);
        float kept = nw_dtype_to_f32(to, dst + i * to_bytes);
        lost += !(kept >= value && kept <= value) && !(isnan(kept) && isnan(value));
        overflowed += isinf(kept) && !isinf(value);
    }
    *rounded += lost;
    *infinite += overflowed;
}

void nw_dtype_convert(nw_dtype to, void *dst, nw_dtype from, const void *src, size_t n, uint64_t *rounded,
                      uint64_t *infinite)
{
    if (to == from)
        memcpy(dst, src, n * nw_dtype_bytes(to));
    else if (to == NW_BF16 && from == NW_F32)
        convert(NW_BF16, dst, NW_F32, src, n, rounded, infinite);
    else if (to == NW_F16 && from == NW_F32)
        convert(NW_F16, dst, NW_F32, src, n, rounded, infinite);
    else
        convert(to, dst, from, src, n, rounded, infinite);
}

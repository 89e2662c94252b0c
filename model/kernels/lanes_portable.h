/* 16 lanes in plain C: the reference that every other lanes header must equal bit for bit.
 * fmaf is exact by definition, in hardware or in libm, so a compiler may vectorise these loops as it likes. */
#ifndef NW_KERNELS_LANES_PORTABLE_H
#define NW_KERNELS_LANES_PORTABLE_H

#define LANES_IN_MEMORY /* no register holds 16 lanes: unrolling would only repeat calls of fmaf */
#include "lanes.h"

#define TILE_ROWS_ONE 2
#define TILE_ROWS 2
#define TILE_COLS 2
#define TILE_EACH(F, d) F(d, 1) F(d, 2)
#define TILE_SUMS 4
#define MIX_QUERIES 1
#define MIX_VECTORS 2

typedef struct {
    float lane[16];
} v16;

typedef struct {
    uint32_t lane[16];
} v16i;

#define EACH_LANE for (size_t l = 0; l < 16; l++)

LANES_INLINE v16 v16_set(float a)
{
    v16       r;
    EACH_LANE r.lane[l] = a;
    return r;
}

LANES_INLINE v16 v16_load(const void *p)
{
    v16 r;
    memcpy(r.lane, p, sizeof r.lane);
    return r;
}

LANES_INLINE void v16_store(float *p, v16 a)
{
    memcpy(p, a.lane, sizeof a.lane);
}

LANES_INLINE v16 v16_load_part(const void *p, size_t n, v16 fill)
{
    memcpy(fill.lane, p, n * sizeof fill.lane[0]);
    return fill;
}

LANES_INLINE void v16_store_part(float *p, v16 a, size_t n)
{
    memcpy(p, a.lane, n * sizeof a.lane[0]);
}

LANES_INLINE v16 v16_of_bits(v16i a)
{
    v16 r;
    memcpy(&r, &a, sizeof r);
    return r;
}

LANES_INLINE v16i v16_bits(v16 a)
{
    v16i r;
    memcpy(&r, &a, sizeof r);
    return r;
}

LANES_INLINE v16 v16_part_bf16(const void *p, size_t n)
{
    uint16_t half[16] = {0};
    v16i     bits;
    memcpy(half, p, n * sizeof half[0]);
    EACH_LANE bits.lane[l] = (uint32_t)half[l] << 16;
    return v16_of_bits(bits);
}

LANES_INLINE v16 v16_load_bf16(const void *p)
{
    return v16_part_bf16(p, 16);
}

/* The f16 exponent and fraction, put where f32 has them, are the value times 2^-112; also for subnormals, which that
 * product makes normal. Infinity and NaN need their exponent filled; NaN is made quiet, as hardware makes it. */
LANES_INLINE uint32_t portable_f16_bits(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    float    value;
    if (magnitude >= 0x0f800000u)
        return sign | magnitude | 0x7f800000u | (magnitude > 0x0f800000u ? 0x400000u : 0);
    memcpy(&value, &magnitude, sizeof value);
    value *= 0x1p112f;
    memcpy(&magnitude, &value, sizeof value);
    return sign | magnitude;
}

LANES_INLINE v16 v16_part_f16(const void *p, size_t n)
{
    uint16_t half[16] = {0};
    v16i     bits;
    memcpy(half, p, n * sizeof half[0]);
    EACH_LANE bits.lane[l] = portable_f16_bits(half[l]);
    return v16_of_bits(bits);
}

LANES_INLINE v16 v16_load_f16(const void *p)
{
    return v16_part_f16(p, 16);
}

LANES_INLINE v16 v16_add(v16 a, v16 b)
{
    EACH_LANE a.lane[l] += b.lane[l];
    return a;
}

LANES_INLINE v16 v16_sub(v16 a, v16 b)
{
    EACH_LANE a.lane[l] -= b.lane[l];
    return a;
}

LANES_INLINE v16 v16_mul(v16 a, v16 b)
{
    EACH_LANE a.lane[l] *= b.lane[l];
    return a;
}

LANES_INLINE v16 v16_div(v16 a, v16 b)
{
    EACH_LANE a.lane[l] /= b.lane[l];
    return a;
}

LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    EACH_LANE c.lane[l] = fmaf(a.lane[l], b.lane[l], c.lane[l]);
    return c;
}

LANES_INLINE v16 v16_max(v16 a, v16 b)
{
    EACH_LANE b.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
    return b;
}

LANES_INLINE v16 v16_min(v16 a, v16 b)
{
    EACH_LANE b.lane[l] = a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l];
    return b;
}

LANES_INLINE v16 v16_abs(v16 a)
{
    EACH_LANE a.lane[l] = fabsf(a.lane[l]);
    return a;
}

LANES_INLINE v16 v16_select_less(v16 x, v16 y, v16 a, v16 b)
{
    EACH_LANE b.lane[l] = x.lane[l] < y.lane[l] ? a.lane[l] : b.lane[l];
    return b;
}

LANES_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    uint32_t  mask = 0;
    EACH_LANE mask |= (uint32_t)(a.lane[l] == b.lane[l]) << l;
    return mask;
}

LANES_INLINE v16i v16i_set(uint32_t a)
{
    v16i      r;
    EACH_LANE r.lane[l] = a;
    return r;
}

LANES_INLINE v16i v16i_add(v16i a, v16i b)
{
    EACH_LANE a.lane[l] += b.lane[l];
    return a;
}

LANES_INLINE v16i v16i_sub(v16i a, v16i b)
{
    EACH_LANE a.lane[l] -= b.lane[l];
    return a;
}

LANES_INLINE v16i v16i_halve(v16i a)
{
    EACH_LANE a.lane[l] = (a.lane[l] >> 1) | (a.lane[l] & 0x80000000u);
    return a;
}

LANES_INLINE v16i v16i_exponent(v16i a)
{
    EACH_LANE a.lane[l] <<= 23;
    return a;
}

LANES_INLINE float portable_sum(v16 a)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++)
            a.lane[l] += a.lane[l + width];
    }
    return a.lane[0];
}

LANES_INLINE void v16_sum4(float *out, v16 a, v16 b, v16 c, v16 d)
{
    out[0] = portable_sum(a);
    out[1] = portable_sum(b);
    out[2] = portable_sum(c);
    out[3] = portable_sum(d);
}

#endif

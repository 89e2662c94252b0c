/* 16 lanes in four registers: Advanced SIMD of AArch64, which every such CPU has. Its maximum and minimum are not used:
 * they give NaN where any operand is one and order the zeros. */
#ifndef NW_KERNELS_LANES_NEON_H
#define NW_KERNELS_LANES_NEON_H

#include "lanes.h"

#include <arm_neon.h>

/* 32 registers: a v16 takes four, and the weights of all rows are loaded before they are used. So 3 rows of one column,
 * or 2 rows of 2 columns, are what fits: sums, weights and one input. Read from the compiled loops, which with these
 * touch no stack; not measured. */
#define TILE_ROWS_ONE 3
#define TILE_ROWS 2
#define TILE_COLS 2
#define TILE_EACH(F, d) F(d, 1) F(d, 2)
#define TILE_SUMS 4
#define MIX_QUERIES 1
#define MIX_VECTORS 4

typedef struct {
    float32x4_t quad[4];
} v16;

typedef struct {
    uint32x4_t quad[4];
} v16i;

/* Each register by itself, and no loops over them: a compiler keeps in memory what it unrolls too late. */
#define NEON_1(type, op, a) ((type){{op((a).quad[0]), op((a).quad[1]), op((a).quad[2]), op((a).quad[3])}})
#define NEON_2(type, op, a, b)                                                                                         \
    ((type){{op((a).quad[0], (b).quad[0]), op((a).quad[1], (b).quad[1]), op((a).quad[2], (b).quad[2]),                 \
             op((a).quad[3], (b).quad[3])}})

LANES_INLINE v16 v16_set(float a)
{
    float32x4_t all = vdupq_n_f32(a);
    return (v16){{all, all, all, all}};
}

LANES_INLINE v16 v16_load(const void *p)
{
    const float *at = (const float *)p;
    return (v16){{vld1q_f32(at), vld1q_f32(at + 4), vld1q_f32(at + 8), vld1q_f32(at + 12)}};
}

LANES_INLINE void v16_store(float *p, v16 a)
{
    vst1q_f32(p, a.quad[0]);
    vst1q_f32(p + 4, a.quad[1]);
    vst1q_f32(p + 8, a.quad[2]);
    vst1q_f32(p + 12, a.quad[3]);
}

/* There are no masked loads and stores: parts go by way of memory. */
LANES_INLINE v16 v16_load_part(const void *p, size_t n, v16 fill)
{
    float lane[16];
    v16_store(lane, fill);
    memcpy(lane, p, n * sizeof lane[0]);
    return v16_load(lane);
}

LANES_INLINE void v16_store_part(float *p, v16 a, size_t n)
{
    float lane[16];
    v16_store(lane, a);
    memcpy(p, lane, n * sizeof lane[0]);
}

/* Weights may be at odd addresses, so they are loaded as bytes. */
LANES_INLINE uint16x8_t neon_load_halves(const void *p)
{
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p));
}

LANES_INLINE v16 v16_load_bf16(const void *p)
{
    uint16x8_t low = neon_load_halves(p), high = neon_load_halves((const uint8_t *)p + 16);
    return (v16){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)),
                  vreinterpretq_f32_u32(vshll_high_n_u16(high, 16))}};
}

LANES_INLINE v16 v16_load_f16(const void *p)
{
    float16x8_t low = vreinterpretq_f16_u16(neon_load_halves(p));
    float16x8_t high = vreinterpretq_f16_u16(neon_load_halves((const uint8_t *)p + 16));
    return (v16){{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
                  vcvt_high_f32_f16(high)}};
}

LANES_INLINE v16 v16_part_bf16(const void *p, size_t n)
{
    uint16_t half[16] = {0};
    memcpy(half, p, n * sizeof half[0]);
    return v16_load_bf16(half);
}

LANES_INLINE v16 v16_part_f16(const void *p, size_t n)
{
    uint16_t half[16] = {0};
    memcpy(half, p, n * sizeof half[0]);
    return v16_load_f16(half);
}

LANES_INLINE v16 v16_add(v16 a, v16 b)
{
    return NEON_2(v16, vaddq_f32, a, b);
}
LANES_INLINE v16 v16_sub(v16 a, v16 b)
{
    return NEON_2(v16, vsubq_f32, a, b);
}
LANES_INLINE v16 v16_mul(v16 a, v16 b)
{
    return NEON_2(v16, vmulq_f32, a, b);
}
LANES_INLINE v16 v16_div(v16 a, v16 b)
{
    return NEON_2(v16, vdivq_f32, a, b);
}

LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){{vfmaq_f32(c.quad[0], a.quad[0], b.quad[0]), vfmaq_f32(c.quad[1], a.quad[1], b.quad[1]),
                  vfmaq_f32(c.quad[2], a.quad[2], b.quad[2]), vfmaq_f32(c.quad[3], a.quad[3], b.quad[3])}};
}

LANES_INLINE float32x4_t neon_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
LANES_INLINE float32x4_t neon_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
LANES_INLINE v16 v16_max(v16 a, v16 b)
{
    return NEON_2(v16, neon_max, a, b);
}
LANES_INLINE v16 v16_min(v16 a, v16 b)
{
    return NEON_2(v16, neon_min, a, b);
}
LANES_INLINE v16 v16_abs(v16 a)
{
    return NEON_1(v16, vabsq_f32, a);
}

LANES_INLINE v16 v16_select_less(v16 x, v16 y, v16 a, v16 b)
{
    v16i less = NEON_2(v16i, vcltq_f32, x, y);
    return (v16){{vbslq_f32(less.quad[0], a.quad[0], b.quad[0]), vbslq_f32(less.quad[1], a.quad[1], b.quad[1]),
                  vbslq_f32(less.quad[2], a.quad[2], b.quad[2]), vbslq_f32(less.quad[3], a.quad[3], b.quad[3])}};
}

/* A bit of its own for each lane; no two meet in the sum. */
LANES_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    static const uint32_t bit[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                     1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    v16i                  bits = {{vld1q_u32(bit), vld1q_u32(bit + 4), vld1q_u32(bit + 8), vld1q_u32(bit + 12)}};
    v16i                  same = NEON_2(v16i, vceqq_f32, a, b);
    same = NEON_2(v16i, vandq_u32, same, bits);
    return vaddvq_u32(vorrq_u32(vorrq_u32(same.quad[0], same.quad[1]), vorrq_u32(same.quad[2], same.quad[3])));
}

LANES_INLINE v16i v16_bits(v16 a)
{
    return NEON_1(v16i, vreinterpretq_u32_f32, a);
}
LANES_INLINE v16 v16_of_bits(v16i a)
{
    return NEON_1(v16, vreinterpretq_f32_u32, a);
}
LANES_INLINE v16i v16i_set(uint32_t a)
{
    uint32x4_t all = vdupq_n_u32(a);
    return (v16i){{all, all, all, all}};
}
LANES_INLINE v16i v16i_add(v16i a, v16i b)
{
    return NEON_2(v16i, vaddq_u32, a, b);
}
LANES_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return NEON_2(v16i, vsubq_u32, a, b);
}
LANES_INLINE uint32x4_t neon_halve(uint32x4_t a)
{
    return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a), 1));
}
LANES_INLINE uint32x4_t neon_exponent(uint32x4_t a)
{
    return vshlq_n_u32(a, 23);
}
LANES_INLINE v16i v16i_halve(v16i a)
{
    return NEON_1(v16i, neon_halve, a);
}
LANES_INLINE v16i v16i_exponent(v16i a)
{
    return NEON_1(v16i, neon_exponent, a);
}

/* The upper two levels of the tree: 4 lanes are left. */
LANES_INLINE float32x4_t neon_fold4(v16 a)
{
    return vaddq_f32(vaddq_f32(a.quad[0], a.quad[2]), vaddq_f32(a.quad[1], a.quad[3]));
}

/* Adds the upper half of a and b to their lower halves: 2 lanes of a, then 2 of b. */
LANES_INLINE float32x4_t neon_fold2(float32x4_t a, float32x4_t b)
{
    return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}

LANES_INLINE void v16_sum4(float *out, v16 a, v16 b, v16 c, v16 d)
{
    float32x4_t ab = neon_fold2(neon_fold4(a), neon_fold4(b)), cd = neon_fold2(neon_fold4(c), neon_fold4(d));
    vst1q_f32(out, vpaddq_f32(ab, cd));
}

#endif

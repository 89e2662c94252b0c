/* Weights in other forms with Advanced SIMD. The coded bytes of a group of a slim strip are four registers; interleaved
 * with the raw ones, each gives the same quarter of the four vectors. */
#ifndef NW_KERNELS_FORMS_NEON_H
#define NW_KERNELS_FORMS_NEON_H

#include "forms.h"
#include "lanes_neon.h"

/* One row: a group of it is 16 registers of weights, half of all. */
#define FORM_FAR_BYTES ((size_t)3072)
#define FORM_NEAR_BYTES ((size_t)2048)
#define FORM_ROWS_ONE 1
#define FORM_ROWS_MORE 1
#define FORM_ROWS 1
#define FORM_COLS 2
#define FORM_EACH(F, f) F(f, 1) F(f, 2)
#define FORM_SUMS 4

/* Width 3: to each of 16 codes, the bytes in which it begins and ends, and the shifts that bring its bits down (to the
 * right, as negative ones) and up. A code that begins and ends in one byte has no second one: an index out of range
 * gives zero. */
typedef struct {
    uint8x16_t table, begin, end;
    int8x16_t  down, up;
} form_constants;

LANES_INLINE form_constants slim_constants(form f, const uint8_t table[16])
{
    static const uint8_t begin[16] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5};
    static const uint8_t end[16] = {99, 99, 1, 99, 99, 2, 99, 99, 99, 99, 4, 99, 99, 5, 99, 99};
    static const int8_t  down[16] = {0, -3, -6, -1, -4, -7, -2, -5, 0, -3, -6, -1, -4, -7, -2, -5};
    static const int8_t  up[16] = {0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0};
    (void)f;
    return (form_constants){vld1q_u8(table), vld1q_u8(begin), vld1q_u8(end), vld1q_s8(down), vld1q_s8(up)};
}

LANES_INLINE form_constants quant_constants(void)
{
    uint8x16_t zero = vdupq_n_u8(0);
    return (form_constants){zero, zero, zero, vreinterpretq_s8_u8(zero), vreinterpretq_s8_u8(zero)};
}

LANES_INLINE float32x4_t neon_first4(float32x4_t a, uint32_t place, size_t n)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    uint32x4_t            in = vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32(place)), vdupq_n_u32((uint32_t)n));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), in));
}

LANES_INLINE v16 v16_first(v16 a, size_t n)
{
    return (v16){{neon_first4(a.quad[0], 0, n), neon_first4(a.quad[1], 4, n), neon_first4(a.quad[2], 8, n),
                  neon_first4(a.quad[3], 12, n)}};
}

/* 16 codes of width 3 from the first 6 bytes. */
LANES_INLINE uint8x16_t neon_codes3(uint8x16_t packed, const form_constants *c)
{
    uint8x16_t low = vshlq_u8(vqtbl1q_u8(packed, c->begin), c->down);
    uint8x16_t high = vshlq_u8(vqtbl1q_u8(packed, c->end), c->up);
    return vandq_u8(vorrq_u8(low, high), vdupq_n_u8(7));
}

/* The codes of a group in the order of positions. Of width 3, reads 28 bytes. */
LANES_INLINE uint8x16x4_t neon_codes(form f, const uint8_t *codes, const form_constants *c)
{
    if (f == FORM_SLIM3) {
        uint8x16_t first = vld1q_u8(codes), second = vld1q_u8(codes + 12);
        return (uint8x16x4_t){{neon_codes3(first, c), neon_codes3(vextq_u8(first, first, 6), c), neon_codes3(second, c),
                               neon_codes3(vextq_u8(second, second, 6), c)}};
    }
    uint8x16_t first = vld1q_u8(codes), second = vld1q_u8(codes + 16), four = vdupq_n_u8(15);
    return (uint8x16x4_t){{vandq_u8(first, four), vandq_u8(second, four), vshrq_n_u8(first, 4), vshrq_n_u8(second, 4)}};
}

/* Bit p set where byte p of the 64 is `what`. */
LANES_INLINE uint64_t neon_equal(uint8x16x4_t code, uint8_t what)
{
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t           bits = vld1q_u8(bit), all = vdupq_n_u8(what);
    uint8x16_t low = vpaddq_u8(vandq_u8(vceqq_u8(code.val[0], all), bits), vandq_u8(vceqq_u8(code.val[1], all), bits));
    uint8x16_t high = vpaddq_u8(vandq_u8(vceqq_u8(code.val[2], all), bits), vandq_u8(vceqq_u8(code.val[3], all), bits));
    uint8x16_t pairs = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(pairs, pairs)), 0);
}

/* Puts the escapes to their places. Out of line: with width 4 most groups have none, and the registers of the loop are
 * better used otherwise. */
static __attribute__((noinline)) uint8x16x4_t neon_escape(uint8x16x4_t coded, uint64_t escaped, const uint8_t *escapes)
{
    uint8_t bytes[64];
    vst1q_u8_x4(bytes, coded);
    for (; escaped != 0; escaped &= escaped - 1)
        bytes[__builtin_ctzll(escaped)] = *escapes++;
    return vld1q_u8_x4(bytes);
}

/* A quarter of each vector from the two bytes of 16 weights. */
LANES_INLINE float32x4x4_t neon_join(form f, uint8x16_t raw, uint8x16_t coded)
{
    uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(raw, coded)), high = vreinterpretq_u16_u8(vzip2q_u8(raw, coded));
    uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    if (f == FORM_SLIM3) {
        low = vsliq_n_u16(vshrq_n_u16(low, 1), low, 15);
        high = vsliq_n_u16(vshrq_n_u16(high, 1), high, 15);
    }
    uint32x4_t first = vreinterpretq_u32_u16(low), second = vreinterpretq_u32_u16(high);
    return (float32x4x4_t){
        {vreinterpretq_f32_u32(vshlq_n_u32(first, 16)), vreinterpretq_f32_u32(vandq_u32(first, upper)),
         vreinterpretq_f32_u32(vshlq_n_u32(second, 16)), vreinterpretq_f32_u32(vandq_u32(second, upper))}};
}

LANES_INLINE size_t slim_load(form f, v16 w[4], const uint8_t *raw, const uint8_t *codes, const uint8_t *escapes,
                              const form_constants *c)
{
    const uint8_t escape = f == FORM_SLIM3 ? 7 : 15;
    size_t        used = 0;
    uint8x16x4_t  code = neon_codes(f, codes, c);
    uint8x16x4_t  coded = {{vqtbl1q_u8(c->table, code.val[0]), vqtbl1q_u8(c->table, code.val[1]),
                            vqtbl1q_u8(c->table, code.val[2]), vqtbl1q_u8(c->table, code.val[3])}};
    uint8x16_t    highest = vmaxq_u8(vmaxq_u8(code.val[0], code.val[1]), vmaxq_u8(code.val[2], code.val[3]));
    if (__builtin_expect(vmaxvq_u8(highest) == escape, f == FORM_SLIM3)) {
        uint64_t escaped = neon_equal(code, escape);
        coded = neon_escape(coded, escaped, escapes);
        used = (size_t)__builtin_popcountll(escaped);
    }
    float32x4x4_t a = neon_join(f, vld1q_u8(raw), coded.val[0]), b = neon_join(f, vld1q_u8(raw + 16), coded.val[1]);
    float32x4x4_t d = neon_join(f, vld1q_u8(raw + 32), coded.val[2]);
    float32x4x4_t e = neon_join(f, vld1q_u8(raw + 48), coded.val[3]);
    w[0] = (v16){{a.val[0], b.val[0], d.val[0], e.val[0]}};
    w[1] = (v16){{a.val[1], b.val[1], d.val[1], e.val[1]}};
    w[2] = (v16){{a.val[2], b.val[2], d.val[2], e.val[2]}};
    w[3] = (v16){{a.val[3], b.val[3], d.val[3], e.val[3]}};
    return used;
}

LANES_INLINE float32x4_t neon_scale(const uint8_t *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}

LANES_INLINE v16 neon_quants(int8x16_t quants, float32x4_t scale)
{
    int16x8_t low = vmovl_s8(vget_low_s8(quants)), high = vmovl_high_s8(quants);
    return (v16){{vmulq_f32(scale, vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)))),
                  vmulq_f32(scale, vcvtq_f32_s32(vmovl_high_s16(low))),
                  vmulq_f32(scale, vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)))),
                  vmulq_f32(scale, vcvtq_f32_s32(vmovl_high_s16(high)))}};
}

LANES_INLINE void q8_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    float32x4_t scale = neon_scale(block);
    (void)c;
    w[0] = neon_quants(vreinterpretq_s8_u8(vld1q_u8(block + 2)), scale);
    w[1] = neon_quants(vreinterpretq_s8_u8(vld1q_u8(block + 18)), scale);
}

LANES_INLINE void q4_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    float32x4_t scale = neon_scale(block);
    uint8x16_t  quants = vld1q_u8(block + 2);
    int8x16_t   eight = vdupq_n_s8(8);
    (void)c;
    w[0] = neon_quants(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(quants, vdupq_n_u8(15))), eight), scale);
    w[1] = neon_quants(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(quants, 4)), eight), scale);
}

#endif

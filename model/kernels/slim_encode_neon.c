/* Encoding of slim strips with Advanced SIMD. Codes are looked up in the table of all 256 coded bytes, which 16
 * registers hold. Counting has no vector form: it is the portable one. */
#include "base/slim.h"
#include "variants.h"

#include <arm_neon.h>

/* The code of each coded byte, 64 bytes to a member. */
typedef struct {
    uint8x16x4_t part[4];
} code_table;

static inline code_table table_make(const uint8_t code_of[256])
{
    code_table t;
    for (size_t p = 0; p < 4; p++) {
        for (size_t q = 0; q < 4; q++)
            t.part[p].val[q] = vld1q_u8(code_of + 64 * p + 16 * q);
    }
    return t;
}

/* An index that is out of a part's range leaves what the others gave. */
static inline uint8x16_t codes_of(const code_table *t, uint8x16_t coded)
{
    uint8x16_t code = vqtbl4q_u8(t->part[0], coded);
    for (size_t p = 1; p < 4; p++)
        code = vqtbx4q_u8(code, t->part[p], vsubq_u8(coded, vdupq_n_u8((uint8_t)(64 * p))));
    return code;
}

/* The bytes of the four runs of 16 weights to the order of positions. */
static inline void order(uint8x16_t out[4], const uint8x16_t run[4])
{
    uint64x2_t a = vreinterpretq_u64_u8(vzip1q_u8(run[0], run[1])), b = vreinterpretq_u64_u8(vzip2q_u8(run[0], run[1]));
    uint64x2_t c = vreinterpretq_u64_u8(vzip1q_u8(run[2], run[3])), d = vreinterpretq_u64_u8(vzip2q_u8(run[2], run[3]));
    out[0] = vreinterpretq_u8_u64(vzip1q_u64(a, c));
    out[1] = vreinterpretq_u8_u64(vzip2q_u64(a, c));
    out[2] = vreinterpretq_u8_u64(vzip1q_u64(b, d));
    out[3] = vreinterpretq_u8_u64(vzip2q_u64(b, d));
}

/* 64 codes of width 3 to 24 bytes: 6 bits in each 16, 12 in each 32, 24 in each 64, of which 3 bytes are kept. */
static inline void pack3(uint8_t out[24], const uint8x16_t code[4])
{
    static const uint8_t place[16] = {0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26, 99, 99, 99, 99};
    uint8x16x2_t         eights;
    for (size_t half = 0; half < 2; half++) {
        for (size_t q = 0; q < 2; q++) {
            uint16x8_t one = vreinterpretq_u16_u8(code[2 * half + q]);
            uint32x4_t two = vreinterpretq_u32_u16(vorrq_u16(one, vshrq_n_u16(one, 5)));
            two = vandq_u32(two, vdupq_n_u32(0x003f003f));
            uint64x2_t four = vreinterpretq_u64_u32(vorrq_u32(two, vshrq_n_u32(two, 10)));
            four = vandq_u64(four, vdupq_n_u64(0x00000fff00000fff));
            eights.val[q] = vreinterpretq_u8_u64(vorrq_u64(four, vshrq_n_u64(four, 20)));
        }
        uint8x16_t kept = vqtbl2q_u8(eights, vld1q_u8(place));
        vst1_u8(out + 12 * half, vget_low_u8(kept));
        vst1q_lane_u32((uint32_t *)(void *)(out + 12 * half + 8), vreinterpretq_u32_u8(kept), 2);
    }
}

/* One whole group; returns its escapes. */
static inline size_t code_group(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, unsigned width,
                                const code_table *t)
{
    uint8x16_t run[2][4], raws[4], coded[4], code[4];
    for (size_t r = 0; r < 4; r++) {
        uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(src + 32 * r));
        uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(src + 32 * r + 16));
        if (width == 3) {
            low = vsliq_n_u16(vshrq_n_u16(low, 15), low, 1);
            high = vsliq_n_u16(vshrq_n_u16(high, 15), high, 1);
        }
        run[0][r] = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
        run[1][r] = vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
    }
    order(raws, run[0]);
    order(coded, run[1]);
    for (size_t q = 0; q < 4; q++) {
        vst1q_u8(raw + 16 * q, raws[q]);
        code[q] = codes_of(t, coded[q]);
    }
    if (width == 3) {
        pack3(codes, code);
    } else {
        vst1q_u8(codes, vsliq_n_u8(code[0], code[2], 4));
        vst1q_u8(codes + 16, vsliq_n_u8(code[1], code[3], 4));
    }

    uint8_t escape = (uint8_t)((1u << width) - 1), bytes[64], codes_here[64];
    if (vmaxvq_u8(vmaxq_u8(vmaxq_u8(code[0], code[1]), vmaxq_u8(code[2], code[3]))) != escape)
        return 0;
    for (size_t q = 0; q < 4; q++) {
        vst1q_u8(bytes + 16 * q, coded[q]);
        vst1q_u8(codes_here + 16 * q, code[q]);
    }
    size_t used = 0;
    for (size_t p = 0; p < NW_SLIM_GROUP; p++) {
        escapes[used] = bytes[p]; /* overwritten by the next one unless it is an escape */
        used += codes_here[p] == escape;
    }
    return used;
}

static size_t code_row(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t k, unsigned width,
                       const uint8_t code_of[256])
{
    code_table table = table_make(code_of);
    size_t     used = 0, i = 0;
    for (; k - i >= NW_SLIM_GROUP; i += NW_SLIM_GROUP, raw += NW_SLIM_GROUP, codes += 8 * width)
        used += code_group(raw, codes, escapes + used, src + 2 * i, width, &table);
    if (i < k)
        used += nw_slim_coder_portable.row(raw, codes, escapes + used, src + 2 * i, k - i, width, code_of);
    return used;
}

size_t nw_slim_encode_neon(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width)
{
    nw_slim_coder coder = {.count = nw_slim_coder_portable.count, .row = code_row};
    return nw_slim_encode_by(&coder, dst, cap, src, rows, k, width);
}

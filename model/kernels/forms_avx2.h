/* Weights in other forms with AVX2. There is no instruction that expands bytes under a mask. Codes of width 4 hardly
 * ever need it, and put their escapes in one by one; those of width 3 shuffle them to their places, 8 at a time, by a
 * table (depositing bits does that too, but is very slow on some CPUs). */
#ifndef NW_KERNELS_FORMS_AVX2_H
#define NW_KERNELS_FORMS_AVX2_H

#include "forms.h"
#include "lanes_avx2.h"

/* Measured with one column and two threads, 4 bits: 1.14 times plain bf16. With 4 KiB to the first cache alone 1.10,
 * with 4 rows at most 1.05. */
#define FORM_FAR_BYTES ((size_t)3072)
#define FORM_NEAR_BYTES ((size_t)2048)
#define FORM_ROWS_ONE 2
#define FORM_ROWS_MORE 2
#define FORM_ROWS 2
#define FORM_COLS 3
#define FORM_EACH(F, f) F(f, 1) F(f, 2) F(f, 3)
#define FORM_SUMS 8

/* Width 3: in each half of a register, the two bytes around the codes at even and at odd positions, and the factor that
 * moves each of those codes to bits 8..10. */
typedef struct {
    __m256i table, even, odd, even_factor, odd_factor;
} form_constants;

LANES_INLINE form_constants slim_constants(form f, const uint8_t table[16])
{
    uint8_t        bytes[2][32];
    uint16_t       factor[2][16];
    form_constants c;
    for (size_t t = 0; t < 16; t++) {
        for (size_t odd = 0; odd < 2; odd++) {
            size_t bit = 3 * (2 * (t % 8) + odd);
            bytes[odd][2 * t] = (uint8_t)(bit / 8 + t / 8 * 6);
            bytes[odd][2 * t + 1] = (uint8_t)(bytes[odd][2 * t] + 1);
            factor[odd][t] = (uint16_t)(1u << (8 - bit % 8));
        }
    }
    (void)f;
    c.table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    c.even = _mm256_loadu_si256((const __m256i *)(const void *)bytes[0]);
    c.odd = _mm256_loadu_si256((const __m256i *)(const void *)bytes[1]);
    c.even_factor = _mm256_loadu_si256((const __m256i *)(const void *)factor[0]);
    c.odd_factor = _mm256_loadu_si256((const __m256i *)(const void *)factor[1]);
    return c;
}

LANES_INLINE form_constants quant_constants(void)
{
    __m256i zero = _mm256_setzero_si256();
    return (form_constants){zero, zero, zero, zero, zero};
}

LANES_INLINE v16 v16_first(v16 a, size_t n)
{
    v16i first = avx2_first(n);
    return (v16){_mm256_and_ps(a.low, _mm256_castsi256_ps(first.low)),
                 _mm256_and_ps(a.high, _mm256_castsi256_ps(first.high))};
}

/* 32 codes of width 3 from 12 bytes; reads 16. */
LANES_INLINE __m256i avx2_codes3(const uint8_t *codes, const form_constants *c)
{
    __m256i packed = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m256i even = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, c->even), c->even_factor);
    __m256i odd = _mm256_mullo_epi16(_mm256_shuffle_epi8(packed, c->odd), c->odd_factor);
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(even, 8), _mm256_set1_epi16(7)),
                           _mm256_and_si256(odd, _mm256_set1_epi16(0x700)));
}

/* Out of line: in most groups there is none, and the registers of the loop are better used otherwise. */
static __attribute__((noinline)) size_t avx2_escape(__m256i coded[2], uint64_t escaped, const uint8_t *escapes)
{
    uint8_t bytes[64];
    size_t  used = 0;
    _mm256_storeu_si256((__m256i *)(void *)bytes, coded[0]);
    _mm256_storeu_si256((__m256i *)(void *)(bytes + 32), coded[1]);
    for (; escaped != 0; escaped &= escaped - 1)
        bytes[__builtin_ctzll(escaped)] = escapes[used++];
    coded[0] = _mm256_loadu_si256((const __m256i *)(const void *)bytes);
    coded[1] = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 32));
    return used;
}

LANES_INLINE uint64_t avx2_equal(__m256i low, __m256i high, char what)
{
    __m256i  all = _mm256_set1_epi8(what);
    uint32_t in_low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, all));
    uint32_t in_high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, all));
    return in_low | (uint64_t)in_high << 32;
}

/* For every set of 8 places: to each place its rank in the set, or 128, which a shuffle makes zero. */
#define RANK(m, b) ((m) >> (b)&1 ? __builtin_popcount((m) & ((1 << (b)) - 1)) : 128)
#define RANKS(m)                                                                                                       \
    {                                                                                                                  \
        RANK(m, 0), RANK(m, 1), RANK(m, 2), RANK(m, 3), RANK(m, 4), RANK(m, 5), RANK(m, 6), RANK(m, 7)                 \
    }
#define RANKS_4(m) RANKS(m), RANKS((m) + 1), RANKS((m) + 2), RANKS((m) + 3)
#define RANKS_16(m) RANKS_4(m), RANKS_4((m) + 4), RANKS_4((m) + 8), RANKS_4((m) + 12)
#define RANKS_64(m) RANKS_16(m), RANKS_16((m) + 16), RANKS_16((m) + 32), RANKS_16((m) + 48)
static const uint8_t avx2_ranks[256][8] = {RANKS_64(0), RANKS_64(64), RANKS_64(128), RANKS_64(192)};

LANES_INLINE __m128i avx2_load8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

/* The next escapes at the places of 16 that are set, zero elsewhere. */
LANES_INLINE __m128i avx2_spread16(uint32_t escaped, const uint8_t *escapes)
{
    uint32_t low = escaped & 0xff, high = escaped >> 8 & 0xff;
    __m128i  to_low = _mm_shuffle_epi8(avx2_load8(escapes), avx2_load8(avx2_ranks[low]));
    __m128i  to_high = _mm_shuffle_epi8(avx2_load8(escapes + __builtin_popcount(low)), avx2_load8(avx2_ranks[high]));
    return _mm_unpacklo_epi64(to_low, to_high);
}

/* Puts escapes where the 32 codes of width 3 say; returns how many. */
LANES_INLINE size_t avx2_escape3(__m256i *coded, __m256i code, const uint8_t *escapes)
{
    __m256i  where = _mm256_cmpeq_epi8(code, _mm256_set1_epi8(7));
    uint32_t escaped = (uint32_t)_mm256_movemask_epi8(where);
    uint32_t in_low = (uint32_t)__builtin_popcount(escaped & 0xffff);
    __m128i  low = avx2_spread16(escaped & 0xffff, escapes);
    __m128i  high = avx2_spread16(escaped >> 16, escapes + in_low);
    *coded = _mm256_or_si256(_mm256_andnot_si256(where, *coded), _mm256_set_m128i(high, low));
    return (size_t)__builtin_popcount(escaped);
}

/* 32 weights from their two bytes: 8 of each run to one half of its vector. */
LANES_INLINE void avx2_join(form f, __m256 out[4], __m256i raw, __m256i coded)
{
    __m256i low = _mm256_unpacklo_epi8(raw, coded), high = _mm256_unpackhi_epi8(raw, coded);
    __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    if (f == FORM_SLIM3) {
        low = _mm256_or_si256(_mm256_srli_epi16(low, 1), _mm256_slli_epi16(low, 15));
        high = _mm256_or_si256(_mm256_srli_epi16(high, 1), _mm256_slli_epi16(high, 15));
    }
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(low, upper));
    out[2] = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
    out[3] = _mm256_castsi256_ps(_mm256_and_si256(high, upper));
}

LANES_INLINE size_t slim_load(form f, v16 w[4], const uint8_t *raw, const uint8_t *codes, const uint8_t *escapes,
                              const form_constants *c)
{
    __m256i code[2], coded[2];
    size_t  used = 0;
    if (f == FORM_SLIM3) {
        code[0] = avx2_codes3(codes, c);
        code[1] = avx2_codes3(codes + 12, c);
    } else {
        __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)codes), four = _mm256_set1_epi8(15);
        code[0] = _mm256_and_si256(packed, four);
        code[1] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), four);
    }
    coded[0] = _mm256_shuffle_epi8(c->table, code[0]);
    coded[1] = _mm256_shuffle_epi8(c->table, code[1]);
    if (f == FORM_SLIM3) {
        used = avx2_escape3(&coded[0], code[0], escapes);
        used += avx2_escape3(&coded[1], code[1], escapes + used);
    } else {
        __m256i highest = _mm256_max_epu8(code[0], code[1]);
        if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi8(highest, _mm256_set1_epi8(15))) != 0, 0))
            used = avx2_escape(coded, avx2_equal(code[0], code[1], 15), escapes);
    }

    __m256 low[4], high[4];
    avx2_join(f, low, _mm256_loadu_si256((const __m256i *)(const void *)raw), coded[0]);
    avx2_join(f, high, _mm256_loadu_si256((const __m256i *)(const void *)(raw + 32)), coded[1]);
    for (size_t j = 0; j < 4; j++)
        w[j] = (v16){low[j], high[j]};
    return used;
}

LANES_INLINE __m256 avx2_scale(const uint8_t *block)
{
    int16_t half;
    memcpy(&half, block, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
}

LANES_INLINE __m256 avx2_of_i8(__m128i q, __m256 scale)
{
    return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
}

LANES_INLINE v16 avx2_quants(__m128i q, __m256 scale)
{
    return (v16){avx2_of_i8(q, scale), avx2_of_i8(_mm_srli_si128(q, 8), scale)};
}

LANES_INLINE void q8_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    __m256 scale = avx2_scale(block);
    (void)c;
    for (size_t j = 0; j < 2; j++)
        w[j] = avx2_quants(_mm_loadu_si128((const __m128i *)(const void *)(block + 2 + 16 * j)), scale);
}

LANES_INLINE void q4_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    __m256  scale = avx2_scale(block);
    __m128i q = _mm_loadu_si128((const __m128i *)(const void *)(block + 2));
    __m128i four = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    (void)c;
    w[0] = avx2_quants(_mm_sub_epi8(_mm_and_si128(q, four), eight), scale);
    w[1] = avx2_quants(_mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(q, 4), four), eight), scale);
}

#endif

/* 16 lanes in two registers: AVX2 with FMA and F16C. */
#ifndef NW_KERNELS_LANES_AVX2_H
#define NW_KERNELS_LANES_AVX2_H

#include "lanes.h"

#include <immintrin.h>

/* 16 registers: a v16 takes two, so 4 accumulators of one column, or 2 rows of 3 columns, leave room for operands. */
#define TILE_ROWS_ONE 4
#define TILE_ROWS 2
#define TILE_COLS 3
#define TILE_EACH(F, d) F(d, 1) F(d, 2) F(d, 3)
#define TILE_SUMS 8
#define MIX_QUERIES 1
#define MIX_VECTORS 4

typedef struct {
    __m256 low, high;
} v16;

typedef struct {
    __m256i low, high;
} v16i;

/* All bits set in the first n lanes of 8. */
LANES_INLINE __m256i avx2_first8(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

LANES_INLINE v16i avx2_first(size_t n)
{
    return (v16i){avx2_first8(n), avx2_first8(n > 8 ? n - 8 : 0)};
}

LANES_INLINE v16 v16_set(float a)
{
    return (v16){_mm256_set1_ps(a), _mm256_set1_ps(a)};
}

LANES_INLINE v16 v16_load(const void *p)
{
    const float *at = (const float *)p;
    return (v16){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}

LANES_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}

/* The high half starts past the end when n < 8: then its mask is empty, and its address is p again. */
LANES_INLINE v16 v16_load_part(const void *p, size_t n, v16 fill)
{
    v16i         first = avx2_first(n);
    const float *low = (const float *)p;
    const float *high = n > 8 ? low + 8 : low;
    return (v16){_mm256_blendv_ps(fill.low, _mm256_maskload_ps(low, first.low), _mm256_castsi256_ps(first.low)),
                 _mm256_blendv_ps(fill.high, _mm256_maskload_ps(high, first.high), _mm256_castsi256_ps(first.high))};
}

LANES_INLINE void v16_store_part(float *p, v16 a, size_t n)
{
    v16i first = avx2_first(n);
    _mm256_maskstore_ps(p, first.low, a.low);
    _mm256_maskstore_ps(n > 8 ? p + 8 : p, first.high, a.high);
}

LANES_INLINE __m256 avx2_of_bf16(__m128i half)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

LANES_INLINE v16 v16_load_bf16(const void *p)
{
    const __m128i *at = (const __m128i *)p;
    return (v16){avx2_of_bf16(_mm_loadu_si128(at)), avx2_of_bf16(_mm_loadu_si128(at + 1))};
}

LANES_INLINE v16 v16_load_f16(const void *p)
{
    const __m128i *at = (const __m128i *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}

/* There is no masked load of 16-bit elements: by way of memory. */
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
    return (v16){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
LANES_INLINE v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
LANES_INLINE v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
LANES_INLINE v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
LANES_INLINE v16 v16_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
LANES_INLINE v16 v16_min(v16 a, v16 b)
{
    return (v16){_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

LANES_INLINE v16 v16_abs(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}

LANES_INLINE v16 v16_select_less(v16 x, v16 y, v16 a, v16 b)
{
    return (v16){_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, y.low, _CMP_LT_OQ)),
                 _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, y.high, _CMP_LT_OQ))};
}

LANES_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ));
    uint32_t high = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
    return low | high << 8;
}

LANES_INLINE v16i v16_bits(v16 a)
{
    return (v16i){_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}
LANES_INLINE v16 v16_of_bits(v16i a)
{
    return (v16){_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}
LANES_INLINE v16i v16i_set(uint32_t a)
{
    return (v16i){_mm256_set1_epi32((int)a), _mm256_set1_epi32((int)a)};
}

LANES_INLINE v16i v16i_add(v16i a, v16i b)
{
    return (v16i){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

LANES_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return (v16i){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

LANES_INLINE v16i v16i_halve(v16i a)
{
    return (v16i){_mm256_srai_epi32(a.low, 1), _mm256_srai_epi32(a.high, 1)};
}
LANES_INLINE v16i v16i_exponent(v16i a)
{
    return (v16i){_mm256_slli_epi32(a.low, 23), _mm256_slli_epi32(a.high, 23)};
}

/* Adds the upper half of a and b to their lower halves: 4 lanes of a, then 4 of b. */
LANES_INLINE __m256 avx2_fold4(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

LANES_INLINE void v16_sum4(float *out, v16 a, v16 b, v16 c, v16 d)
{
    __m256 ab = avx2_fold4(_mm256_add_ps(a.low, a.high), _mm256_add_ps(b.low, b.high));
    __m256 cd = avx2_fold4(_mm256_add_ps(c.low, c.high), _mm256_add_ps(d.low, d.high));
    __m256 ac_bd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee)); /* 2 of a c | b d */
    __m256 s = _mm256_add_ps(_mm256_permute_ps(ac_bd, 0x88), _mm256_permute_ps(ac_bd, 0xdd)); /* a c a c | b d b d */
    _mm_storeu_ps(out, _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

#endif

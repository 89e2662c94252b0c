/* 16 lanes in one register: AVX-512 F, BW, DQ and VL. */
#ifndef NW_KERNELS_LANES_AVX512_H
#define NW_KERNELS_LANES_AVX512_H

#include "lanes.h"

#include <immintrin.h>

/* 24 of 32 registers accumulate; four rows share each load of x, and their sums leave as one store. */
#define TILE_ROWS_ONE 4
#define TILE_ROWS 4
#define TILE_COLS 6
#define TILE_EACH(F, d) F(d, 1) F(d, 2) F(d, 3) F(d, 4) F(d, 5) F(d, 6)
#define TILE_SUMS 24
#define WIDE_FROM 64 /* fewer are faster with their weights widened in registers: 1.4 times for 16 */
#define MIX_QUERIES 4
#define MIX_VECTORS 4

typedef __m512  v16;
typedef __m512i v16i;

LANES_INLINE __mmask16 avx512_first(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

LANES_INLINE v16 v16_set(float a)
{
    return _mm512_set1_ps(a);
}
LANES_INLINE v16 v16_load(const void *p)
{
    return _mm512_loadu_ps(p);
}
LANES_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
LANES_INLINE v16 v16_load_part(const void *p, size_t n, v16 fill)
{
    return _mm512_mask_loadu_ps(fill, avx512_first(n), p);
}
LANES_INLINE void v16_store_part(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, avx512_first(n), a);
}

LANES_INLINE v16 avx512_of_bf16(__m256i half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

LANES_INLINE v16 v16_load_bf16(const void *p)
{
    return avx512_of_bf16(_mm256_loadu_si256((const __m256i *)p));
}
LANES_INLINE v16 v16_part_bf16(const void *p, size_t n)
{
    return avx512_of_bf16(_mm256_maskz_loadu_epi16(avx512_first(n), p));
}
LANES_INLINE v16 v16_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
LANES_INLINE v16 v16_part_f16(const void *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(avx512_first(n), p));
}

LANES_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
LANES_INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
LANES_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
LANES_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LANES_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
LANES_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
LANES_INLINE v16 v16_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
LANES_INLINE v16 v16_select_less(v16 x, v16 y, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
LANES_INLINE uint32_t v16_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

LANES_INLINE v16i v16_bits(v16 a)
{
    return _mm512_castps_si512(a);
}
LANES_INLINE v16 v16_of_bits(v16i a)
{
    return _mm512_castsi512_ps(a);
}
LANES_INLINE v16i v16i_set(uint32_t a)
{
    return _mm512_set1_epi32((int)a);
}
LANES_INLINE v16i v16i_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}
LANES_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}
LANES_INLINE v16i v16i_halve(v16i a)
{
    return _mm512_srai_epi32(a, 1);
}
LANES_INLINE v16i v16i_exponent(v16i a)
{
    return _mm512_slli_epi32(a, 23);
}

/* Adds the upper half of a and b to their lower halves: 8 lanes of a, then 8 of b. */
LANES_INLINE v16 avx512_fold8(v16 a, v16 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

LANES_INLINE void v16_sum4(float *out, v16 a, v16 b, v16 c, v16 d)
{
    v16 ab = avx512_fold8(a, b), cd = avx512_fold8(c, d);
    v16 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* 4 of a, b, c, d */
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    s = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), s);
    _mm_storeu_ps(out, _mm512_castps512_ps128(s));
}

#endif

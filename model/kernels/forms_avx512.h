/* Weights in other forms with AVX-512 F, BW, DQ, VL, VBMI and VBMI2: no branches, whatever the weights are. */
#ifndef NW_KERNELS_FORMS_AVX512_H
#define NW_KERNELS_FORMS_AVX512_H

#include "forms.h"
#include "lanes_avx512.h"

/* Measured with one column and two threads, rows of 2048, 3 bits: 1.36 times plain bf16, 4 bits 1.32 (as one
 * stream 1.33 and 1.22). With 4 rows 1.22 to 1.28. */
#define FORM_FAR_BYTES ((size_t)4096)
#define FORM_NEAR_BYTES ((size_t)2048)
#define FORM_ROWS_ONE 2
#define FORM_ROWS_MORE 2
#define FORM_ROWS 2
#define FORM_COLS 4
#define FORM_EACH(F, f) F(f, 1) F(f, 2) F(f, 3) F(f, 4)
#define FORM_SUMS 8

typedef struct {
    __m512i table, marker, gather, shifts;
} form_constants;

/* Byte permutes look at the low 6 bits of an index, so the table is repeated and what a code's neighbours leave in the
 * upper bits does no harm.
 * Width 3: 3 bytes to each 8, then a shift by 3 b to byte b of them. Width 4: codes twice, the second time shifted. */
LANES_INLINE form_constants slim_constants(form f, const uint8_t table[16])
{
    if (f == FORM_SLIM4)
        return (form_constants){
            .table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)),
            .marker = _mm512_set1_epi8((char)table[15]),
            .gather = _mm512_setzero_si512(),
            .shifts = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4),
        };
    uint8_t gather[64];
    for (size_t b = 0; b < 64; b++)
        gather[b] = (uint8_t)(b / 8 * 3 + b % 8);
    return (form_constants){
        .table = _mm512_broadcastq_epi64(_mm_loadu_si128((const __m128i *)(const void *)table)),
        .marker = _mm512_set1_epi8((char)table[7]),
        .gather = _mm512_loadu_si512(gather),
        .shifts = _mm512_set1_epi64(0x15120f0c09060300),
    };
}

LANES_INLINE form_constants quant_constants(void)
{
    __m512i zero = _mm512_setzero_si512();
    __m512  values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return (form_constants){_mm512_castps_si512(values), zero, zero, zero};
}

LANES_INLINE v16 v16_first(v16 a, size_t n)
{
    return _mm512_maskz_mov_ps(avx512_first(n), a);
}

LANES_INLINE size_t slim_load(form f, v16 w[4], const uint8_t *raw, const uint8_t *codes, const uint8_t *escapes,
                              const form_constants *c)
{
    __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m512i index;
    if (f == FORM_SLIM3) {
        index = _mm512_permutexvar_epi8(c->gather, _mm512_castsi256_si512(packed));
        index = _mm512_multishift_epi64_epi8(c->shifts, index);
    } else {
        index = _mm512_srlv_epi64(_mm512_broadcast_i64x4(packed), c->shifts);
    }
    __m512i   coded = _mm512_permutexvar_epi8(index, c->table);
    __mmask64 escaped = _mm512_cmpeq_epi8_mask(coded, c->marker);
    coded = _mm512_mask_expand_epi8(coded, escaped, _mm512_loadu_si512(escapes));

    __m512i other = _mm512_loadu_si512(raw);
    __m512i low = _mm512_unpacklo_epi8(other, coded), high = _mm512_unpackhi_epi8(other, coded);
    if (f == FORM_SLIM3) {
        low = _mm512_shrdi_epi16(low, low, 1);
        high = _mm512_shrdi_epi16(high, high, 1);
    }
    __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(low, upper));
    w[2] = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    w[3] = _mm512_castsi512_ps(_mm512_and_si512(high, upper));
    return (size_t)__builtin_popcountll(escaped);
}

LANES_INLINE v16 avx512_scale(const uint8_t *block)
{
    int16_t half;
    memcpy(&half, block, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}

LANES_INLINE void q8_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    v16 scale = avx512_scale(block);
    (void)c;
    for (size_t j = 0; j < 2; j++) {
        __m128i q = _mm_loadu_si128((const __m128i *)(const void *)(block + 2 + 16 * j));
        w[j] = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
    }
}

/* A permute looks at the low 4 bits of an index. */
LANES_INLINE void q4_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    v16     scale = avx512_scale(block), values = _mm512_castsi512_ps(c->table);
    __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(block + 2)));
    w[0] = _mm512_mul_ps(scale, _mm512_permutexvar_ps(q, values));
    w[1] = _mm512_mul_ps(scale, _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), values));
}

#endif

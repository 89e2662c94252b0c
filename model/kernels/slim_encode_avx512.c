/* Encoding of slim strips with AVX-512 BW, VBMI and VBMI2: what a pin costs when it changes its form while it runs. */
#include "base/slim.h"
#include "variants.h"

#include <immintrin.h>
#include <string.h>

/* 64 weights, or the first n of them and zeros: words at `src`. */
static inline void load_words(__m512i words[2], const uint8_t *src, size_t n, unsigned width)
{
    __mmask64 there = n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
    words[0] = _mm512_maskz_loadu_epi16((__mmask32)there, src);
    words[1] = _mm512_maskz_loadu_epi16((__mmask32)(there >> 32), src + (n > 32 ? 64 : 0));
    if (width == 3) {
        words[0] = _mm512_shldi_epi16(words[0], words[0], 1);
        words[1] = _mm512_shldi_epi16(words[1], words[1], 1);
    }
}

/* The coded bytes are gathered by vectors; eight tables, so that equal neighbours do not wait for each other. */
static void count_bytes(uint32_t counts[256], const uint8_t *src, size_t n, unsigned width)
{
    static const uint8_t order[64] = {
        1,  3,  5,  7,  9,  11, 13,  15,  17,  19,  21,  23,  25,  27,  29,  31,  33,  35,  37,  39,  41, 43,
        45, 47, 49, 51, 53, 55, 57,  59,  61,  63,  65,  67,  69,  71,  73,  75,  77,  79,  81,  83,  85, 87,
        89, 91, 93, 95, 97, 99, 101, 103, 105, 107, 109, 111, 113, 115, 117, 119, 121, 123, 125, 127,
    };
    uint32_t part[8][256] = {{0}};
    __m512i  odd = _mm512_loadu_si512(order);
    for (size_t i = 0; i < n; i += 64) {
        uint64_t eight[8];
        size_t   have = nw_min_size(64, n - i);
        __m512i  words[2];
        load_words(words, src + 2 * i, have, width);
        _mm512_storeu_si512(eight, _mm512_permutex2var_epi8(words[0], odd, words[1]));
        for (size_t q = 0; q < 8; q++) {
            for (size_t b = 0; b < 8; b++)
                part[b][eight[q] >> (8 * b) & 0xff]++;
        }
    }
    for (size_t p = 0; p < 8; p++) {
        for (size_t b = 0; b < 256; b++)
            counts[b] += part[p][b];
    }
    counts[0] -= (uint32_t)((64 - n % 64) % 64); /* the zeros beyond n */
}

/* What coding a row keeps in registers. */
typedef struct {
    __m512i codes[4];   /* the code of each of the 256 coded bytes */
    __m512i weight;     /* of each position: which weight of the group stands there */
    __m512i raw, coded; /* of each position: which byte of the group's 128 goes there */
    __m512i gather;     /* width 3: the bytes that hold codes after packing */
} row_coder;

static row_coder coder_make(const uint8_t code_of[256])
{
    uint8_t   weight[64], raw[64], coded[64], gather[64];
    row_coder c;
    for (size_t w = 0; w < 64; w++) {
        weight[nw_slim_place(w)] = (uint8_t)w;
        raw[nw_slim_place(w)] = (uint8_t)(2 * w);
        coded[nw_slim_place(w)] = (uint8_t)(2 * w + 1);
        gather[w] = (uint8_t)(w / 3 * 8 + w % 3);
    }
    for (size_t t = 0; t < 4; t++)
        c.codes[t] = _mm512_loadu_si512(code_of + 64 * t);
    c.weight = _mm512_loadu_si512(weight);
    c.raw = _mm512_loadu_si512(raw);
    c.coded = _mm512_loadu_si512(coded);
    c.gather = _mm512_loadu_si512(gather);
    return c;
}

/* 64 codes to 8 * width bytes. */
static inline void store_codes(uint8_t *out, __m512i codes, unsigned width, const row_coder *c)
{
    if (width == 4) {
        __m256i low = _mm512_castsi512_si256(codes), high = _mm512_extracti64x4_epi64(codes, 1);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_or_si256(low, _mm256_slli_epi16(high, 4)));
        return;
    }
    __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x0801));  /* 6 bits in each 16 */
    __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00400001)); /* 12 bits in each 32 */
    __m512i eights = _mm512_or_si512(fours, _mm512_srli_epi64(fours, 20));   /* 24 bits in each 64 */
    _mm512_mask_storeu_epi8(out, 0xffffff, _mm512_permutexvar_epi8(c->gather, eights));
}

static inline size_t code_group(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t n,
                                unsigned width, const row_coder *c)
{
    __m512i words[2];
    load_words(words, src, n, width);
    __m512i coded = _mm512_permutex2var_epi8(words[0], c->coded, words[1]);
    _mm512_storeu_si512(raw, _mm512_permutex2var_epi8(words[0], c->raw, words[1]));

    __m512i   below = _mm512_permutex2var_epi8(c->codes[0], coded, c->codes[1]);
    __m512i   above = _mm512_permutex2var_epi8(c->codes[2], coded, c->codes[3]);
    __m512i   code = _mm512_mask_mov_epi8(below, _mm512_movepi8_mask(coded), above);
    __mmask64 there = _mm512_cmplt_epu8_mask(c->weight, _mm512_set1_epi8((char)n));
    code = _mm512_maskz_mov_epi8(there, code);
    store_codes(codes, code, width, c);
    __mmask64 escaped = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8(width == 3 ? 7 : 15));
    _mm512_storeu_si512(escapes, _mm512_maskz_compress_epi8(escaped, coded));
    return (size_t)__builtin_popcountll(escaped);
}

static size_t code_row(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t k, unsigned width,
                       const uint8_t code_of[256])
{
    row_coder c = coder_make(code_of);
    size_t    used = 0, i = 0;
    for (; k - i >= 64; i += 64, raw += 64, codes += 8 * width)
        used += code_group(raw, codes, escapes + used, src + 2 * i, 64, width, &c);
    if (i < k)
        used += code_group(raw, codes, escapes + used, src + 2 * i, k - i, width, &c);
    return used;
}

size_t nw_slim_encode_avx512(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width)
{
    static const nw_slim_coder coder = {.count = count_bytes, .row = code_row};
    return nw_slim_encode_by(&coder, dst, cap, src, rows, k, width);
}

/* Encoding of slim strips with AVX2. Codes are found by comparing with every entry of the table, 32 weights at once. */
#include "base/slim.h"
#include "variants.h"

#include <immintrin.h>
#include <string.h>

/* What coding a row keeps at hand: the table, each entry in every byte, and what to take off the escape's code. */
typedef struct {
    __m256i  entry[15], off[15];
    unsigned width, entries;
} row_coder;

static void coder_make(row_coder *c, unsigned width, const uint8_t code_of[256])
{
    c->width = width;
    c->entries = (1u << width) - 1;
    for (unsigned b = 0; b < 256; b++) {
        unsigned code = code_of[b];
        if (code == c->entries)
            continue;
        c->entry[code] = _mm256_set1_epi8((char)b);
        c->off[code] = _mm256_set1_epi8((char)(c->entries - code));
    }
}

static inline __m256i codes_of(const row_coder *c, __m256i coded)
{
    __m256i code = _mm256_set1_epi8((char)c->entries);
    for (unsigned e = 0; e < c->entries; e++) {
        __m256i same = _mm256_cmpeq_epi8(coded, c->entry[e]);
        code = _mm256_sub_epi8(code, _mm256_and_si256(same, c->off[e]));
    }
    return code;
}

static inline __m256i load_run(const uint8_t *src, size_t run, unsigned width)
{
    __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * run));
    if (width == 3)
        words = _mm256_or_si256(_mm256_slli_epi16(words, 1), _mm256_srli_epi16(words, 15));
    return words;
}

/* Raw or coded bytes of the four runs, two and two beside each other, to the order of positions. */
static inline void order(__m256i out[2], __m256i runs01, __m256i runs23)
{
    __m256i low = _mm256_unpacklo_epi64(runs01, runs23), high = _mm256_unpackhi_epi64(runs01, runs23);
    out[0] = _mm256_permute2x128_si256(low, high, 0x20);
    out[1] = _mm256_permute2x128_si256(low, high, 0x31);
}

/* 32 codes of width 3 to 12 bytes. */
static inline void pack3(uint8_t out[12], __m256i code)
{
    const __m128i gather = _mm_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    uint8_t       bytes[2][16];
    __m256i       pairs = _mm256_maddubs_epi16(code, _mm256_set1_epi16(0x0801));   /* 6 bits in each 16 */
    __m256i       fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00400001)); /* 12 bits in each 32 */
    __m256i       eights = _mm256_or_si256(fours, _mm256_srli_epi64(fours, 20));   /* 24 bits in each 64 */
    eights = _mm256_shuffle_epi8(eights, _mm256_broadcastsi128_si256(gather));
    _mm256_storeu_si256((__m256i *)(void *)bytes, eights);
    memcpy(out, bytes[0], 6);
    memcpy(out + 6, bytes[1], 6);
}

/* One whole group; returns its escapes. */
static inline size_t code_group(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, const row_coder *c)
{
    const __m256i below = _mm256_set1_epi16(0xff);
    __m256i       run[4], raws[2], coded[2];
    for (size_t r = 0; r < 4; r++)
        run[r] = load_run(src, r, c->width);
    order(raws, _mm256_or_si256(_mm256_and_si256(run[0], below), _mm256_slli_epi16(run[1], 8)),
          _mm256_or_si256(_mm256_and_si256(run[2], below), _mm256_slli_epi16(run[3], 8)));
    order(coded, _mm256_or_si256(_mm256_srli_epi16(run[0], 8), _mm256_andnot_si256(below, run[1])),
          _mm256_or_si256(_mm256_srli_epi16(run[2], 8), _mm256_andnot_si256(below, run[3])));
    _mm256_storeu_si256((__m256i *)(void *)raw, raws[0]);
    _mm256_storeu_si256((__m256i *)(void *)(raw + 32), raws[1]);

    __m256i low = codes_of(c, coded[0]), high = codes_of(c, coded[1]), last = _mm256_set1_epi8((char)c->entries);
    if (c->width == 3) {
        pack3(codes, low);
        pack3(codes + 12, high);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)codes, _mm256_or_si256(low, _mm256_slli_epi16(high, 4)));
    }
    uint64_t escaped = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, last)) |
                       (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, last)) << 32;
    uint8_t bytes[64];
    size_t  used = 0;
    _mm256_storeu_si256((__m256i *)(void *)bytes, coded[0]);
    _mm256_storeu_si256((__m256i *)(void *)(bytes + 32), coded[1]);
    for (; escaped != 0; escaped &= escaped - 1)
        escapes[used++] = bytes[__builtin_ctzll(escaped)];
    return used;
}

static size_t code_row(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t k, unsigned width,
                       const uint8_t code_of[256])
{
    row_coder c;
    size_t    used = 0, i = 0;
    coder_make(&c, width, code_of);
    for (; k - i >= NW_SLIM_GROUP; i += NW_SLIM_GROUP, raw += NW_SLIM_GROUP, codes += 8 * width)
        used += code_group(raw, codes, escapes + used, src + 2 * i, &c);
    if (i < k)
        used += nw_slim_coder_portable.row(raw, codes, escapes + used, src + 2 * i, k - i, width, code_of);
    return used;
}

/* Eight tables, so that equal neighbours do not wait for each other. */
static void count_bytes(uint32_t counts[256], const uint8_t *src, size_t n, unsigned width)
{
    uint32_t part[8][256] = {{0}};
    size_t   i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i  words = _mm256_srli_epi16(load_run(src + 2 * i, 0, width), 8);
        uint64_t four[4];
        _mm256_storeu_si256((__m256i *)(void *)four, words);
        for (size_t w = 0; w < 16; w++)
            part[w % 8][four[w / 4] >> (w % 4 * 16) & 0xff]++;
    }
    nw_slim_coder_portable.count(counts, src + 2 * i, n - i, width);
    for (size_t p = 0; p < 8; p++) {
        for (size_t b = 0; b < 256; b++)
            counts[b] += part[p][b];
    }
}

size_t nw_slim_encode_avx2(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width)
{
    static const nw_slim_coder coder = {.count = count_bytes, .row = code_row};
    return nw_slim_encode_by(&coder, dst, cap, src, rows, k, width);
}

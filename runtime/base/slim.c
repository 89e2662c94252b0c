/* Slim strips in plain C: the reference encoder, the check, and the decoder. base/slim.h has the format.
 *
 * An encoder counts all coded bytes of the strip first. That gives the table, and also the exact number of escapes: so
 * the size is known, and a strip that would not shrink is refused, before anything is written. */
#include "base/slim.h"

#include <string.h>

#define ALIGN ((uint64_t)64)

nw_slim_layout nw_slim_layout_of(size_t rows, size_t k, unsigned width, size_t escapes)
{
    NW_CHECK(width == 3 || width == 4);
    NW_CHECK(rows >= 1 && k >= 1 && k <= NW_SLIM_WEIGHTS_MAX);
    nw_slim_layout l = {.groups = (k + NW_SLIM_GROUP - 1) / NW_SLIM_GROUP};
    NW_CHECK(rows <= NW_SLIM_WEIGHTS_MAX / NW_SLIM_GROUP / l.groups);
    NW_CHECK(escapes <= rows * l.groups * NW_SLIM_GROUP);
    l.raw_row = l.groups * NW_SLIM_GROUP;
    l.codes_row = l.groups * 8 * width;
    l.raw = nw_round_up(NW_SLIM_FIRST + 4 * (rows + 1), ALIGN);
    l.codes = l.raw + rows * l.raw_row;
    l.escapes = nw_round_up(l.codes + rows * l.codes_row, ALIGN);
    l.bytes = l.escapes + escapes + NW_SLIM_PAD;
    return l;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* The coded byte in bits 8..15, the raw one below. */
static unsigned split(const uint8_t *p, unsigned width)
{
    unsigned w = p[0] | (unsigned)p[1] << 8;
    return width == 3 ? (w << 1 | w >> 15) & 0xffff : w;
}

/* Four tables, so that equal neighbours do not wait for each other. */
static void count_bytes(uint32_t counts[256], const uint8_t *src, size_t n, unsigned width)
{
    uint32_t part[4][256] = {{0}};
    size_t   i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t u = 0; u < 4; u++)
            part[u][split(src + 2 * (i + u), width) >> 8]++;
    }
    for (; i < n; i++)
        part[0][split(src + 2 * i, width) >> 8]++;
    for (size_t b = 0; b < 256; b++)
        counts[b] += part[0][b] + part[1][b] + part[2][b] + part[3][b];
}

static void pack_codes(uint8_t *out, const uint8_t code[64], unsigned width)
{
    if (width == 4) {
        for (size_t b = 0; b < 32; b++)
            out[b] = (uint8_t)(code[b] | code[32 + b] << 4);
        return;
    }
    for (size_t q = 0; q < 8; q++, code += 8, out += 3) {
        unsigned low = code[0] | (unsigned)code[1] << 3 | (unsigned)code[2] << 6 | (unsigned)code[3] << 9;
        unsigned high = code[4] | (unsigned)code[5] << 3 | (unsigned)code[6] << 6 | (unsigned)code[7] << 9;
        out[0] = (uint8_t)low;
        out[1] = (uint8_t)(low >> 8 | high << 4);
        out[2] = (uint8_t)(high >> 4);
    }
}

static size_t code_row(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t k, unsigned width,
                       const uint8_t code_of[256])
{
    uint8_t *escape = escapes, escape_code = (uint8_t)((1u << width) - 1);
    for (size_t i = 0; i < k; i += NW_SLIM_GROUP, raw += NW_SLIM_GROUP, codes += 8 * width) {
        uint8_t code[64] = {0}, coded[64] = {0};
        size_t  n = nw_min_size(NW_SLIM_GROUP, k - i);
        memset(raw, 0, NW_SLIM_GROUP);
        for (size_t w = 0; w < n; w++) {
            size_t   place = nw_slim_place(w);
            unsigned both = split(src + 2 * (i + w), width);
            raw[place] = (uint8_t)both;
            coded[place] = (uint8_t)(both >> 8);
            code[place] = code_of[both >> 8];
        }
        for (size_t p = 0; p < NW_SLIM_GROUP; p++) {
            *escape = coded[p]; /* overwritten by the next one unless it is an escape */
            escape += code[p] == escape_code;
        }
        pack_codes(codes, code, width);
    }
    return (size_t)(escape - escapes);
}

const nw_slim_coder nw_slim_coder_portable = {.count = count_bytes, .row = code_row};

/* Fills table and code_of from the counts; returns how many weights will be escapes. Ties go to the lower byte. */
static size_t choose(uint8_t table[16], uint8_t code_of[256], const uint32_t counts[256], unsigned width)
{
    size_t codes = ((size_t)1 << width) - 1, escapes = 0;
    memset(table, 0, 16);
    memset(code_of, (int)codes, 256);
    for (size_t c = 0; c <= codes; c++) { /* the last one is the byte that marks escapes: any that is not in use */
        size_t best = 256;
        for (size_t b = 0; b < 256; b++) {
            if (code_of[b] == codes && (best == 256 || counts[b] > counts[best]))
                best = b;
        }
        table[c] = (uint8_t)best;
        if (c < codes)
            code_of[best] = (uint8_t)c;
    }
    for (size_t b = 0; b < 256; b++)
        escapes += code_of[b] == codes ? counts[b] : 0;
    return escapes;
}

size_t nw_slim_encode_by(const nw_slim_coder *coder, void *dst, size_t cap, const void *src, size_t rows, size_t k,
                         unsigned width)
{
    uint8_t        table[16], code_of[256], *out = dst;
    const uint8_t *in = src;
    uint32_t       counts[256] = {0};
    nw_slim_layout l = nw_slim_layout_of(rows, k, width, 0);
    if (l.bytes > cap || l.bytes >= rows * k * 2)
        return 0;
    coder->count(counts, in, rows * k, width);
    l = nw_slim_layout_of(rows, k, width, choose(table, code_of, counts, width));
    if (l.bytes > cap || l.bytes >= rows * k * 2)
        return 0;

    size_t first = 0, total = l.bytes - NW_SLIM_PAD - l.escapes;
    memset(out, 0, l.raw);
    nw_put_u32(out, width);
    nw_put_u32(out + 4, (uint32_t)rows);
    nw_put_u32(out + 8, (uint32_t)k);
    memcpy(out + NW_SLIM_TABLE, table, sizeof table);
    for (size_t r = 0; r < rows; r++) {
        nw_put_u32(out + NW_SLIM_FIRST + 4 * r, (uint32_t)first);
        first += coder->row(out + l.raw + r * l.raw_row, out + l.codes + r * l.codes_row, out + l.escapes + first,
                            in + r * k * 2, k, width, code_of);
    }
    NW_CHECK(first == total);
    nw_put_u32(out + NW_SLIM_FIRST + 4 * rows, (uint32_t)first);
    memset(out + l.codes + rows * l.codes_row, 0, l.escapes - l.codes - rows * l.codes_row);
    memset(out + l.escapes + total, 0, NW_SLIM_PAD);
    return l.bytes;
}

size_t nw_slim_encode(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width)
{
    return nw_slim_encode_by(&nw_slim_coder_portable, dst, cap, src, rows, k, width);
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static unsigned count_bits(uint64_t x)
{
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (unsigned)(x * 0x0101010101010101u >> 56);
}

/* Bit 3 c for each of the 21 codes of 3 bits in x, from its lowest bit on, that is all ones. */
static uint64_t escapes_of_3(uint64_t x)
{
    return x & x >> 1 & x >> 2 & 0x1249249249249249u;
}

/* Bit 4 c for each of the 16 codes of 4 bits. */
static uint64_t escapes_of_4(uint64_t x)
{
    x &= x >> 2;
    return x & x >> 1 & 0x1111111111111111u;
}

/* Codes that are all ones, in one group. Those of one word leave bits free where those of the others fit between them,
 * so that all 64 are counted at once: this runs over every strip that is read. */
static size_t count_escapes(const uint8_t *codes, unsigned width)
{
    uint64_t a = nw_get_u64(codes), b = nw_get_u64(codes + 8), c = nw_get_u64(codes + 16);
    if (width == 4) {
        uint64_t d = nw_get_u64(codes + 24);
        return count_bits(escapes_of_4(a) | escapes_of_4(b) << 1 | escapes_of_4(c) << 2 | escapes_of_4(d) << 3);
    }
    uint64_t second = a >> 63 | b << 1, third = b >> 62 | c << 2; /* from codes 21 and 42 on; the last is code 63 */
    uint64_t last = c >> 61 == 7;
    return count_bits(escapes_of_3(a) | escapes_of_3(second) << 1 | escapes_of_3(third) << 2 | last << 63);
}

static bool check_table(const uint8_t *table, unsigned width)
{
    size_t last = ((size_t)1 << width) - 1;
    for (size_t c = 0; c < last; c++) {
        if (table[c] == table[last])
            return false;
    }
    for (size_t c = last + 1; c < 16; c++) {
        if (table[c] != 0)
            return false;
    }
    return true;
}

bool nw_slim_check(const void *strip, size_t bytes, size_t rows, size_t k)
{
    const uint8_t *in = strip;
    if (bytes < NW_SLIM_FIRST || nw_slim_u32(in, 4) != rows || nw_slim_u32(in, 8) != k || nw_slim_u32(in, 12) != 0)
        return false;
    uint32_t width = nw_slim_u32(in, 0);
    if (width != 3 && width != 4)
        return false;
    nw_slim_layout l = nw_slim_layout_of(rows, k, width, 0);
    if (bytes < l.bytes || !check_table(in + NW_SLIM_TABLE, width))
        return false;

    size_t first = 0, total = bytes - l.bytes;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *codes = in + l.codes + r * l.codes_row;
        if (nw_slim_u32(in, NW_SLIM_FIRST + 4 * r) != first)
            return false;
        for (size_t g = 0; g < l.groups; g++)
            first += count_escapes(codes + g * 8 * width, width);
        if (first > total)
            return false;
    }
    return nw_slim_u32(in, NW_SLIM_FIRST + 4 * rows) == first && first == total;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

unsigned nw_slim_width(const void *strip)
{
    return nw_slim_u32(strip, 0);
}

static unsigned code_at(const uint8_t *codes, size_t place, unsigned width)
{
    if (width == 4)
        return (place < 32 ? codes[place] : codes[place - 32] >> 4) & 15u;
    const uint8_t *p = codes + place / 8 * 3;
    return (p[0] | (unsigned)p[1] << 8 | (unsigned)p[2] << 16) >> place % 8 * 3 & 7u;
}

/* One group; returns its escapes. */
static size_t decode_group(uint8_t *dst, size_t n, const uint8_t *table, const uint8_t *raw, const uint8_t *codes,
                           const uint8_t *escapes, unsigned width)
{
    uint8_t coded[64];
    size_t  used = 0;
    for (size_t p = 0; p < NW_SLIM_GROUP; p++) {
        unsigned code = code_at(codes, p, width);
        coded[p] = code == (1u << width) - 1 ? escapes[used++] : table[code];
    }
    for (size_t w = 0; w < n; w++) {
        size_t   place = nw_slim_place(w);
        unsigned both = raw[place] | (unsigned)coded[place] << 8;
        unsigned weight = width == 3 ? both >> 1 | both << 15 : both;
        dst[2 * w] = (uint8_t)weight;
        dst[2 * w + 1] = (uint8_t)(weight >> 8);
    }
    return used;
}

void nw_slim_decode(void *dst, const void *strip, size_t first_row, size_t rows)
{
    const uint8_t *in = strip;
    uint8_t       *out = dst;
    unsigned       width = nw_slim_width(strip);
    size_t         all = nw_slim_u32(in, 4), k = nw_slim_u32(in, 8);
    nw_slim_layout l = nw_slim_layout_of(all, k, width, 0);
    NW_CHECK(first_row <= all && rows <= all - first_row);
    for (size_t r = first_row; r < first_row + rows; r++) {
        const uint8_t *escapes = in + l.escapes + nw_slim_u32(in, NW_SLIM_FIRST + 4 * r);
        for (size_t g = 0; g < l.groups; g++) {
            size_t n = nw_min_size(NW_SLIM_GROUP, k - g * NW_SLIM_GROUP);
            escapes += decode_group(out, n, in + NW_SLIM_TABLE, in + l.raw + r * l.raw_row + g * NW_SLIM_GROUP,
                                    in + l.codes + r * l.codes_row + g * 8 * width, escapes, width);
            out += 2 * n;
        }
    }
}

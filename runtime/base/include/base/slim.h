/* Slim: a lossless form of bf16 weights, 0.69 to 0.76 of their size, that kernels multiply as it is.
 *
 * The 16 bits of a weight are two bytes: one whose values are few and is coded, one that is kept raw.
 *
 *   width   coded byte                            raw byte                            bits a weight
 *   3       exponent                              mantissa (7 bits, high), sign       11 and 8 per escape
 *   4       sign, upper 7 bits of the exponent    last bit of the exponent, mantissa  12 and 8 per escape
 *
 * Width 3 is bf16 rotated left by one, width 4 is bf16 as it stands: 15 bytes hold the two signs of 7 pairs of
 * exponents, nearly what 15 exponents would, and nothing has to be rotated back. A code is an index into the table of
 * the 2^width - 1 commonest coded bytes of the strip; the last code is an escape, whose byte stands in the row's stream
 * of escapes. Normally distributed weights escape at 2 to 3 % (width 3) and below 0.1 % (width 4).
 *
 * A strip of rows x k weights, little-endian, `groups` = ceil(k / 64), every plane at a multiple of 64 bytes from the
 * start of the strip, gaps zero:
 *
 *   0                     u32 width, u32 rows, u32 k, u32 0
 *   16                    u8 table[16]: the coded byte of each code. Entry 2^width - 1 is a byte that is no other
 *                         entry, by which kernels find the escapes; entries beyond are 0
 *   32                    u32 first[rows + 1]: row r's escapes are bytes first[r] .. first[r + 1] - 1 of the last plane
 *   raw plane             u8 [rows, groups, 64]
 *   code plane            u8 [rows, groups, 8 * width]
 *   escapes               u8 [first[rows]], then 64 zero bytes: kernels load 64 bytes wherever they are
 *
 * Inside a group of 64 weights, weight 16 j + 4 lane + i stands at position 16 lane + 8 (j / 2) + 2 i + j % 2 (j, lane,
 * i 0..3). When coded and raw bytes are interleaved by the byte-unpack instructions (which work in lanes of 16 bytes),
 * the 16-bit weights at even and at odd places of a 32-bit vector are runs of 16 weights in natural order. Codes of
 * width 3 follow each other from the lowest bit of the first byte on, 8 in 3 bytes; of width 4, byte b (0..31) holds
 * position b in its low and position 32 + b in its high half. A row's escapes are in the order of positions. Positions
 * beyond k hold code 0 and raw byte 0.
 */
#ifndef NW_BASE_SLIM_H
#define NW_BASE_SLIM_H

#include "base/bytes.h"
#include "base/check.h"

#define NW_SLIM_GROUP ((size_t)64)              /* weights in a group, and bytes of a group in the raw plane */
#define NW_SLIM_PAD ((size_t)64)                /* bytes behind the last escape */
#define NW_SLIM_TABLE ((size_t)16)              /* where the table is in a strip */
#define NW_SLIM_FIRST ((size_t)32)              /* where first[] is */
#define NW_SLIM_WEIGHTS_MAX ((uint64_t)1 << 30) /* weights of one strip, rows padded to whole groups */

/* Where everything is in a strip, in bytes from its start. */
typedef struct {
    size_t groups;                     /* of one row */
    size_t raw, codes, escapes, bytes; /* bytes: the whole strip */
    size_t raw_row, codes_row;         /* bytes of one row in its plane */
} nw_slim_layout;

/* width 3 or 4; rows and k at least 1 and, padded, not above NW_SLIM_WEIGHTS_MAX. */
nw_slim_layout nw_slim_layout_of(size_t rows, size_t k, unsigned width, size_t escapes);

/* Encodes bf16 [rows, k] (row-major, no gaps, any address) into dst. Returns the strip's bytes, or 0 with dst untouched
 * if they would be more than `cap` or not less than the plain rows * k * 2. src and dst do not overlap. */
size_t nw_slim_encode(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width);

/* Whether `bytes` bytes are a strip of rows x k weights that decoding and kernels may use with no further check: right
 * sizes, a usable table, and for every row exactly as many escapes as its codes say. One pass over the codes. What the
 * weights are is not its matter: checksums tell. */
bool nw_slim_check(const void *strip, size_t bytes, size_t rows, size_t k);

/* Bits of a code: 3 or 4. The strip has been checked or was made by nw_slim_encode; so also below. */
unsigned nw_slim_width(const void *strip);

/* Decodes rows first_row .. first_row + rows - 1 as bf16 [rows, k] to dst, at any address: exactly what was encoded. */
void nw_slim_decode(void *dst, const void *strip, size_t first_row, size_t rows);

/* ---- for encoders and kernels of one instruction set ------------------------------------------------------------- */

static inline uint32_t nw_slim_u32(const void *strip, size_t at)
{
    return nw_get_u32((const uint8_t *)strip + at);
}

/* Where weight `w` (0..63) of a group stands in it. */
static inline size_t nw_slim_place(size_t w)
{
    return w / 4 % 4 * 16 + w / 32 * 8 + w % 4 * 2 + w / 16 % 2;
}

/* The two parts of an encoder that take time. Every coder makes the same bytes.
 *
 * count   adds to counts[b] how many of n weights have coded byte b
 * row     codes the k weights of one row: whole groups to raw and codes, escapes to `escapes`, of which up to 64 bytes
 *         behind the last may be overwritten. code_of gives the code of a coded byte. Returns the escapes. */
typedef struct {
    void (*count)(uint32_t counts[256], const uint8_t *src, size_t n, unsigned width);
    size_t (*row)(uint8_t *raw, uint8_t *codes, uint8_t *escapes, const uint8_t *src, size_t k, unsigned width,
                  const uint8_t code_of[256]);
} nw_slim_coder;

extern const nw_slim_coder nw_slim_coder_portable;

/* nw_slim_encode by a given coder. */
size_t nw_slim_encode_by(const nw_slim_coder *coder, void *dst, size_t cap, const void *src, size_t rows, size_t k,
                         unsigned width);

#endif

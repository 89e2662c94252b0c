/* q8 and q4: lossy forms of weights, in blocks of 32 with one scale, laid out as GGUF's Q8_0 and Q4_0.
 *
 *   q8   f16 d, 32 x i8 q              weight i = d * q[i]
 *   q4   f16 d, 16 bytes of nibbles    weight i = d * (q - 8), q the low half of byte i (i < 16) or the high one of
 *        byte i - 16
 *
 * Little-endian, blocks at any address. Every product is an exact f32 value (11 bits times 8), so a quantised weight
 * has one value however it is read. Rows whose length is no multiple of 32 cannot be stored so; that is the caller's
 * matter.
 */
#ifndef NW_BASE_QUANT_H
#define NW_BASE_QUANT_H

#include "base/check.h"

typedef enum { NW_Q8, NW_Q4, NW_QUANT_COUNT } nw_quant;

#define NW_QUANT_BLOCK ((size_t)32) /* weights in a block */

/* Bytes of one block: 34, 18. */
static inline size_t nw_quant_block_bytes(nw_quant type)
{
    return type == NW_Q8 ? 34 : 18;
}

/* Encodes n weights (a multiple of 32). The scale of each block is the one of several candidates with the least sum of
 * squared errors, measured with the scale as it is stored; zeros stay zeros. Returns false, with dst in no useful
 * state, if a weight is not finite or above what the largest scale reaches (65504 * 127, 65504 * 7). dst and src do not
 * overlap. */
bool nw_quant_encode(nw_quant type, void *dst, const float *src, size_t n);

/* The exact values of n weights (a multiple of 32). */
void nw_quant_decode(nw_quant type, float *dst, const void *src, size_t n);

#endif

/* A plane out of a zstd frame of the plain kind that our encoder makes, faster than the library does it.
 *
 * Plain is: one segment, with its content's size, no dictionary, no checksum; one block, compressed, whose literals are
 * Huffman-coded in four streams with their own table of at most 11 bits; no sequences; nothing behind (RFC 8878). Such
 * a frame is nothing but literals, and they need not be collected first and copied then: they are decoded into place,
 * as many of them per lookup as 11 bits hold.
 *
 * This is a short cut, not a second opinion. It answers true when it has decoded a frame that is right to the last bit.
 * To anything else, whether of another kind or damaged, it answers false, and the library decodes the frame or says
 * what is wrong with it. So errors are the library's, other writers' frames are read as ever, and all that must hold
 * here is: true means that the library gives the same bytes.
 */
#ifndef NW_LOADER_HUFFMAN_H
#define NW_LOADER_HUFFMAN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NW_HUFFMAN_BITS 11 /* the longest code (RFC 8878, 4.2.1), and the bits of a lookup */

/* One thread's tables, made anew for each frame; the caller need not initialise them. 24 KiB. */
typedef struct {
    uint64_t      entries[3 << (NW_HUFFMAN_BITS - 1)];    /* what the next bits mean; huffman.c has the layout */
    unsigned char weights[256], lengths[256], order[256]; /* by symbol; symbols, from the longest code on */
} nw_huffman;

/* Decodes a frame of exactly `bytes` into exactly n bytes of dst; no overlap.
 * src may be anything: reads nothing beyond it, writes nothing beyond dst.
 * Returns  true: done. false: not decoded, dst holds garbage. */
NW_MUST_USE bool nw_huffman_decode(nw_huffman *h, const unsigned char *src, size_t bytes, unsigned char *dst, size_t n);

#endif

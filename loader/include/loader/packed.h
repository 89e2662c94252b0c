/* The packed form of a strip: smaller on disk, restored bit for bit, fast enough to be decoded where it is used.
 *
 * Weights cluster around zero, so their exponents carry about 2.6 bits and their mantissas all of theirs. Each element
 * is rotated left by one bit, which brings the exponent into a byte of its own and the sign to the mantissa, and cut
 * into bytes: one plane per byte. A plane that shrinks stands as a zstd frame with Huffman-coded literals and no
 * matches, the others as they are. docs/pack-format.md has it to the byte.
 *
 * An nw_packed is one thread's: zstd's context, tables and room for planes, all of it in memory of the caller.
 */
#ifndef NW_LOADER_PACKED_H
#define NW_LOADER_PACKED_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/tile.h"

/* A strip of more elements (one row longer than this) is not packed. */
#define NW_PACKED_ELEMENTS_MAX NW_STRIP_ELEMENTS_MAX

typedef enum { NW_PACKED_DECODE, NW_PACKED_ENCODE } nw_packed_use;

typedef struct nw_packed nw_packed;

/* What nw_packed_init needs: about 255 KB to decode, 410 KB to encode. All that zstd ever uses, and tables of ours. */
size_t nw_packed_workspace_bytes(nw_packed_use use);

/* Makes a codec in `workspace`, of nw_packed_workspace_bytes(use), aligned to 64 bytes; it belongs to the caller, and
 * there is nothing to free. */
nw_packed *nw_packed_init(void *workspace, size_t bytes, nw_packed_use use);

/* Packs a strip of 1 or more elements at any address.
 * dst      has room for the strip's own bytes (elements * nw_dtype_bytes); no overlap with src.
 * Returns  bytes written, less than the strip's own; 0: it does not shrink, or has too many elements: store it plain.
 */
size_t nw_packed_encode(nw_packed *packed, nw_dtype dtype, const void *src, size_t elements, void *dst);

/* Restores a strip: all `elements` of it in natural order, little-endian as in a checkpoint, at any address.
 * src may be anything: never reads beyond `bytes`, never writes beyond the strip.
 * Returns  NULL: done. Otherwise what is wrong with src, for a message; dst then holds garbage. */
NW_MUST_USE const char *nw_packed_decode(nw_packed *packed, nw_dtype dtype, const void *src, size_t bytes, void *dst,
                                         size_t elements);

#endif

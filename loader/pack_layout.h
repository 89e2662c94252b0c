/* The bytes of a pack's files, for its writer and its reader. Private to loader/; docs/pack-format.md says what each
 * field means. All numbers are little-endian. */
#ifndef NW_LOADER_PACK_LAYOUT_H
#define NW_LOADER_PACK_LAYOUT_H

#include "base/bytes.h"
#include "loader/form.h"

#include <string.h>

#define NW_PACK_FORMAT "narrows-pack"
#define NW_PACK_VERSION 1
#define NW_PACK_MANIFEST "manifest.json"
#define NW_PACK_INDEX "tiles.idx"
#define NW_PACK_SHARD_FORMAT "pack-%05u-of-%05u.nwp"
#define NW_PACK_SHARDS_MAX 99999 /* five digits in their names */
#define NW_PACK_ALIASES "aliases" /* a feature that a reader must know, and the member that has them */
#define NW_PACK_MANIFEST_MAX ((size_t)32 << 20)

#define NW_PACK_ALIGN ((uint64_t)4096)     /* of tiles in shards; the size of a shard's header */
#define NW_PACK_STRIP_ALIGN ((uint64_t)64) /* of strips in a tile */
#define NW_PACK_STRIP_BYTES_MAX ((uint64_t)0xffffff)
#define NW_PACK_TILES_MAX ((uint64_t)UINT32_MAX)

#define NW_PACK_INDEX_MAGIC "NWPINDEX"
#define NW_PACK_SHARD_MAGIC "NWPSHARD"

/* tiles.idx: header, tensors, tiles, strips, names, checksum of all before it. */
enum {
    NW_PACK_HEADER_BYTES = 64,
    NW_PACK_TENSOR_BYTES = 48,
    NW_PACK_TILE_BYTES = 32,
    NW_PACK_STRIP_BYTES = 16,
    NW_PACK_CHECK_BYTES = 8,
};

/* Where the checksum of a shard's header stands: of all bytes before it. */
#define NW_PACK_SHARD_CHECK ((size_t)4088)

/* Flags of a tensor. */
#define NW_PACK_LOSSY 1u

/* True if a file of this name may stand beside the shards: plain ASCII, no path, and not one of the pack's own names.
 */
bool nw_pack_file_name_ok(const char *name);

#endif

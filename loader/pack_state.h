/* An open pack. Private to its sources. */
#ifndef NW_LOADER_PACK_STATE_H
#define NW_LOADER_PACK_STATE_H

#include "loader/pack.h"
#include "pack_layout.h"
#include "tensor_table.h"

#include <limits.h>

/* A block that a shard holds; in the order of shards. */
typedef struct {
    const char *name;
    size_t      shard;
} nw_pack_holding;

struct nw_pack {
    nw_memory       *mem;
    nw_io           *io; /* while it is opened */
    uint64_t        *read_bytes;
    const char      *dir, *manifest_path, *index_path;
    nw_names         names;
    nw_pack_summary  about; /* as the manifest has it, and checked */
    nw_pack_file     index_file;
    nw_pack_file    *shard_files, *files;
    size_t           shard_count, shard_cap, file_count, file_cap;
    nw_pack_alias   *aliases;
    size_t           alias_count, alias_cap;
    nw_pack_holding *holdings;
    size_t           holding_count, holding_cap;
    unsigned char   *index; /* the whole of tiles.idx */
    size_t           index_bytes;
    uint64_t         tensor_count, tile_count, strip_count, name_bytes;
    nw_file         *shards; /* one for each of shard_files */
    const char     **shard_paths;
};

/* Reads, scans and checks manifest.json.
 * Errors  as nw_pack_open. */
NW_MUST_USE nw_code nw_pack_read_manifest(nw_pack *pack, nw_error *err);

/* Reads and checks tiles.idx, by itself and against the manifest.
 * Errors  as nw_pack_open. */
NW_MUST_USE nw_code nw_pack_read_index(nw_pack *pack, nw_error *err);

/* Records of the index, as they are in the file. Only within the counts, which must have been checked against its size.
 */
static inline const unsigned char *nw_pack_tensor_record(const nw_pack *pack, uint64_t index)
{
    NW_CHECK(index < pack->tensor_count);
    return pack->index + NW_PACK_HEADER_BYTES + index * NW_PACK_TENSOR_BYTES;
}

static inline const unsigned char *nw_pack_tile_record(const nw_pack *pack, uint64_t index)
{
    NW_CHECK(index < pack->tile_count);
    return pack->index + NW_PACK_HEADER_BYTES + pack->tensor_count * NW_PACK_TENSOR_BYTES + index * NW_PACK_TILE_BYTES;
}

static inline const unsigned char *nw_pack_strip_record(const nw_pack *pack, uint64_t index)
{
    NW_CHECK(index < pack->strip_count);
    return pack->index + NW_PACK_HEADER_BYTES + pack->tensor_count * NW_PACK_TENSOR_BYTES +
           pack->tile_count * NW_PACK_TILE_BYTES + index * NW_PACK_STRIP_BYTES;
}

/* Names of all tensors, nw_pack.name_bytes in all. */
static inline const char *nw_pack_names(const nw_pack *pack)
{
    return (const char *)pack->index + pack->index_bytes - NW_PACK_CHECK_BYTES - pack->name_bytes;
}

/* "dir/name". Fits for every name that a manifest may have: the length of `dir` was checked. */
void nw_pack_path(const nw_pack *pack, const char *name, char ret_path[PATH_MAX]);

/* Where a tile is. */
typedef struct {
    uint64_t offset, end; /* of the shard; end: of what it takes, a multiple of 4096 */
    uint32_t shard, tile; /* tile: its index */
} nw_pack_place;

/* All tiles in the order of shards and offsets: nw_pack.tile_count of them, to be freed with nw_memory_free.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_places(nw_memory *mem, const nw_pack *pack, nw_pack_place **ret_places, nw_error *err);

#endif

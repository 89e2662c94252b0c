/* An open pack. Private to its sources. */
#ifndef NW_LOADER_PACK_STATE_H
#define NW_LOADER_PACK_STATE_H

#include "loader/pack.h"
#include "pack_layout.h"
#include "tensor_table.h"

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

/* "dir/name", kept with the pack's names; NULL: no memory. */
const char *nw_pack_path(nw_pack *pack, const char *name);

/* Where a tile is. */
typedef struct {
    uint64_t offset, end; /* of the shard; end: of what it takes, a multiple of 4096 */
    uint32_t shard, tile; /* tile: its index */
} nw_pack_place;

/* All tiles in the order of shards and offsets: nw_pack.tile_count of them, to be freed with nw_memory_free.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_places(nw_memory *mem, const nw_pack *pack, nw_pack_place **ret_places, nw_error *err);

#endif

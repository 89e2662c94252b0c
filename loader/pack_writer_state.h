/* What a pack's writer knows. Private to its sources. */
#ifndef NW_LOADER_PACK_WRITER_STATE_H
#define NW_LOADER_PACK_WRITER_STATE_H

#include "loader/pack.h"
#include "loader/pack_writer.h"
#include "output.h"
#include "pack_layout.h"
#include "tensor_table.h"

#define TEXT_MAX ((size_t)256)
#define NOT_SCHEDULED 0u
#define SCHEDULED UINT32_MAX

typedef struct {
    nw_pack_declaration is; /* with a name of ours */
    nw_cut              cut;
    uint32_t            index; /* in the pack; from the layout on, as the next */
    uint32_t            tile_first;
} declared;

typedef struct {
    const char *name;
    uint32_t    tensor; /* of those declared */
} alias;

typedef struct {
    uint32_t tensor, tile;
} scheduled;

typedef struct {
    const char *name;
    size_t      first;     /* its first tile in the schedule */
    uint64_t    bytes_max; /* on disk, if nothing shrinks */
} block;

typedef struct {
    uint64_t offset;
    uint32_t bytes; /* NOT_SCHEDULED, SCHEDULED, then what was written */
    uint32_t shard, strip_first;
} tile_record;

typedef struct {
    uint64_t xxh3;
    uint32_t offset, bytes;
    nw_form  form;
} strip_record;

typedef struct {
    uint64_t bytes, xxh3;
} shard_record;

/* A block, or a part of it, in a shard. */
typedef struct {
    uint32_t shard;
    size_t   block;
} holding;

struct nw_pack_writer {
    XXH3_state_t     shard_hash, file_hash; /* want more alignment than the heap gives: the whole is a mapping */
    nw_memory       *mem;
    nw_output        out;
    char             model[TEXT_MAX], tool[TEXT_MAX], compress[TEXT_MAX];
    uint64_t         shard_bytes_max, bytes_expected;
    nw_names         names;
    declared        *tensors;
    size_t           tensor_count, tensor_cap;
    alias           *aliases; /* from the layout on sorted by name */
    size_t           alias_count, alias_cap;
    scheduled       *schedule;
    size_t           schedule_count, schedule_cap;
    block           *blocks;
    size_t           block_count, block_cap;
    nw_pack_file    *files;
    size_t           file_count, file_cap;
    shard_record    *shards;
    size_t           shard_count, shard_cap;
    holding         *holdings;
    size_t           holding_count, holding_cap;
    const declared **by_name; /* from the layout on, as all below */
    tile_record     *tiles;
    strip_record    *strips;
    uint64_t         tile_count, strip_count;
    size_t           next, next_block; /* in the schedule */
    uint64_t         offset;           /* of the next tile, in the shard being written */
    uint64_t         bytes;            /* of shards, and in the end the index */
};

/* Bytes of tiles.idx. */
uint64_t nw_pack_index_bytes(const nw_pack_writer *writer);

/* All tiles have been written. *ret_xxh3 is the index's checksum. */
NW_MUST_USE nw_code nw_pack_write_index(nw_pack_writer *writer, uint64_t *ret_xxh3, nw_error *err);
NW_MUST_USE nw_code nw_pack_write_manifest(nw_pack_writer *writer, uint64_t index_xxh3, nw_error *err);

#endif

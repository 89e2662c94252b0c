/* Writes a pack: shards, index, manifest, atomically, leaving nothing in the page cache.
 *
 * First all tensors are declared, then the schedule: block by block, the order in which tiles are written. Then each
 * tile's strips are given in that order, encoded. Never more than a buffer and the index in memory. What is not
 * finished does not open, however it ended.
 *
 * A block goes to one shard unless it alone is larger. How small it becomes is not known before it is written, so room
 * for its largest form is asked for: a shard may be closed a little early.
 */
#ifndef NW_LOADER_PACK_WRITER_H
#define NW_LOADER_PACK_WRITER_H

#include "base/memory.h"
#include "base/tile.h"
#include "loader/form.h"

typedef struct nw_pack_writer nw_pack_writer;

typedef struct {
    const char *model;        /* its name, for people */
    const char *tool;         /* what packs it: "narrows 0.1.0" */
    const char *compress;     /* what was asked for: "packed", "slim", "off" */
    uint64_t shard_bytes_max; /* of a file; 0: one shard. A tile is never split, so a file of one tile may be larger */
} nw_pack_writer_options;

typedef struct {
    const char *name;
    nw_dtype    source; /* type in the checkpoint */
    nw_stored   stored;
    bool        lossy;
    uint32_t    dim_count; /* 1: a vector, stored as one strip; 2 */
    uint64_t    dims[2];
    uint32_t    stride; /* 0, or a multiple of 4096: each strip stands at a multiple of it in its tile, and no strip is
                         * larger, so that any strip is read by itself, in as many bytes as any other */
} nw_pack_declaration;

typedef struct {
    nw_form     form;
    const void *bytes;
    size_t      len;
} nw_pack_strip_data;

/* Strings of `options` are copied (256 bytes of each at most).
 * Errors  NW_E_ARG, NW_E_IO (the target exists and is not empty, no permission), NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_writer_open(nw_memory *mem, const char *dir, const nw_pack_writer_options *options,
                                        nw_pack_writer **ret_writer, nw_error *err);

/* Free space without which work does not begin. Before the first tile; never said: that for every strip in its largest
 * form. */
void nw_pack_writer_expect(nw_pack_writer *writer, uint64_t bytes);

/* Declares one tensor; *ret_tensor names it to nw_pack_writer_schedule (not its index in the pack: those are sorted).
 * Errors  NW_E_ARG: not a name, no dimensions, too large, q8 or q4 with columns that are no multiple of 32. */
NW_MUST_USE nw_code nw_pack_writer_declare(nw_pack_writer *writer, const nw_pack_declaration *tensor,
                                           uint32_t *ret_tensor, nw_error *err);

/* Says that `name`, which is not declared, is another name for a declared tensor. Before the first tile.
 * Errors  NW_E_ARG: not a name. */
NW_MUST_USE nw_code nw_pack_writer_alias(nw_pack_writer *writer, const char *name, uint32_t tensor, nw_error *err);

/* Starts a block of the schedule: "decoder.3". */
NW_MUST_USE nw_code nw_pack_writer_block(nw_pack_writer *writer, const char *name, nw_error *err);

/* The next tile of the block, by its number in nw_cut_make(rows, cols) of its tensor (a vector is one row). Every tile
 * of every tensor exactly once. */
NW_MUST_USE nw_code nw_pack_writer_schedule(nw_pack_writer *writer, uint32_t tensor, uint32_t tile, nw_error *err);

/* Writes the schedule's next tile: all strips of it, in order, in forms that are possible for its type.
 * Errors  the first call: NW_E_ARG (a name twice, aliases included), NW_E_IO (no room); any: NW_E_IO, NW_E_MEMORY,
 *         NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_writer_tile(nw_pack_writer *writer, const nw_pack_strip_data *strips, size_t strip_count,
                                        nw_error *err);

/* A file beside the shards (config.json, tokenizer); a call with the name of the one before appends to it.
 * Errors  NW_E_ARG: no plain file name, or one of the pack's own; NW_E_IO. */
NW_MUST_USE nw_code nw_pack_writer_file(nw_pack_writer *writer, const char *name, const void *bytes, size_t len,
                                        nw_error *err);

/* Shards so far. */
uint32_t nw_pack_writer_shards(const nw_pack_writer *writer);

/* All tiles must have been written. Index, headers, manifest, fsync, rename. */
NW_MUST_USE nw_code nw_pack_writer_finish(nw_pack_writer *writer, nw_error *err);

/* Frees; if not finished, removes what was written. Takes NULL; returns NULL. */
nw_pack_writer *nw_pack_writer_close(nw_pack_writer *writer);

/* What a writer takes of the budget, about, names of ordinary length included. */
uint64_t nw_pack_writer_declared_bytes(uint64_t tensor_count, uint64_t tile_count, uint64_t strip_count);

#endif

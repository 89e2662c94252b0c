/* A pack: a checkpoint rewritten in the order in which it is needed, smaller, with a checksum for each strip.
 *
 * A directory: manifest.json, tiles.idx, shards pack-00001-of-0000N.nwp, and the tokenizer's and configuration's files
 * beside. docs/pack-format.md has it to the byte. Knows no T5.
 *
 * nw_pack_open believes nothing: after it, every tile and strip lies within its shard, none overlap, and their numbers
 * are those that the tensors' shapes give. What a strip's bytes are is for its checksum to say, at every read.
 */
#ifndef NW_LOADER_PACK_H
#define NW_LOADER_PACK_H

#include "base/tile.h"
#include "loader/file.h"
#include "loader/form.h"

typedef struct nw_pack nw_pack;

typedef struct {
    const char *name;   /* belongs to the pack */
    nw_dtype    source; /* type in the checkpoint that was packed */
    nw_stored   stored;
    bool        lossy; /* the stored values are not the checkpoint's */
    uint32_t    dim_count;
    uint64_t    dims[2];
    uint64_t    rows, cols; /* of a vector: 1 row */
    uint32_t    tile_first, tile_count;
    uint32_t    stride; /* not 0: its strips can be read by themselves, each in so many bytes (a multiple of 4096) */
} nw_pack_tensor;

/* A tile: nw_pack_tensor's tile_first + its number, as nw_cut_make(rows, cols) counts them. */
typedef struct {
    uint32_t tensor, tile; /* the tensor's index, the tile's number in it */
    uint32_t shard;
    uint64_t offset; /* in the shard, a multiple of 4096 */
    uint32_t bytes;  /* to the end of its last strip; the shard has zeros from there to the next multiple of 4096 */
    uint32_t strip_first, strip_count;
} nw_pack_tile;

typedef struct {
    uint32_t offset; /* in the tile: a multiple of 64, or of the tensor's stride */
    uint32_t bytes;
    nw_form  form;
    uint64_t xxh3;
} nw_pack_strip;

/* A file beside the shards. */
typedef struct {
    const char *name;
    uint64_t    bytes, xxh3;
} nw_pack_file;

/* Another name that a tensor had in the checkpoint, where both led to the same bytes. */
typedef struct {
    const char *name, *kept; /* kept: the tensor's */
} nw_pack_alias;

typedef struct {
    const char *model;                         /* as it was called when it was packed */
    const char *tool;                          /* what packed it: "narrows 0.1.0" */
    const char *compress;                      /* what was asked for: "packed", "slim", "off" */
    bool        lossy;                         /* any tensor */
    uint64_t    bytes;                         /* of all shards and the index */
    uint64_t    stored_bytes[NW_STORED_COUNT]; /* of the strips of each type */
    uint32_t    forms;                         /* bit f: some strip has form f */
} nw_pack_summary;

/* True if a directory holds a manifest.json: it is a pack, or was meant to be one. */
bool nw_pack_is(const char *dir);

/* Opens a pack from its manifest, its index and the first 4096 bytes of each shard.
 *
 * Memory      from `mem`, tag NW_TAG_INDEX: about the size of tiles.idx, and 24 bytes a tile more while it is checked.
 * read_bytes  what was read is added to it; may be NULL.
 * Errors      NW_E_FORMAT: damaged, cut short, or not telling the truth; NW_E_UNSUPPORTED: a version or a feature of
 *             another time, by its name; NW_E_IO: unreadable, or a checksum is wrong; NW_E_MEMORY, NW_E_BUDGET.
 * Messages name the file. */
NW_MUST_USE nw_code nw_pack_open(nw_memory *mem, nw_io *io, const char *dir, uint64_t *read_bytes, nw_pack **ret_pack,
                                 nw_error *err);
nw_pack            *nw_pack_close(nw_pack *pack); /* takes NULL; returns NULL */

const char            *nw_pack_dir(const nw_pack *pack);
const nw_pack_summary *nw_pack_about(const nw_pack *pack);

size_t         nw_pack_tensor_count(const nw_pack *pack);
nw_pack_tensor nw_pack_tensor_at(const nw_pack *pack, size_t index); /* sorted by name */

size_t        nw_pack_tile_count(const nw_pack *pack);
nw_pack_tile  nw_pack_tile_at(const nw_pack *pack, size_t index);
nw_pack_strip nw_pack_strip_at(const nw_pack *pack, size_t index); /* of all; a tile's are strip_first and following */

size_t        nw_pack_alias_count(const nw_pack *pack);
nw_pack_alias nw_pack_alias_at(const nw_pack *pack, size_t index); /* sorted by name */

size_t         nw_pack_shard_count(const nw_pack *pack);
const nw_file *nw_pack_shard(const nw_pack *pack, size_t shard);
const char    *nw_pack_shard_path(const nw_pack *pack, size_t shard);
size_t         nw_pack_block_count(const nw_pack *pack, size_t shard);
const char *nw_pack_block(const nw_pack *pack, size_t shard, size_t index); /* name of a block that the shard holds */

/* Whether the whole content of `path`, read by its reader, is what was packed. True for what is no file of the pack:
 * one of another directory, or one that the manifest does not know.
 * Errors  NW_E_IO: it is not; names the file. */
NW_MUST_USE nw_code nw_pack_file_check(const nw_pack *pack, const char *path, const void *bytes, size_t len,
                                       nw_error *err);

/* The same for a file that is read piece by piece, from its start to its end. */
typedef struct nw_pack_hash nw_pack_hash;
enum { NW_PACK_HASH_BYTES = 4096 }; /* what one takes */

/* *ret_hash is NULL where there is nothing to compare with; the others take that.
 * Memory  NW_PACK_HASH_BYTES from `mem`, tag NW_TAG_INDEX.   pack  borrowed until it is closed.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_hash_open(const nw_pack *pack, nw_memory *mem, const char *path, nw_pack_hash **ret_hash,
                                      nw_error *err);
void                nw_pack_hash_add(nw_pack_hash *hash, const void *bytes, size_t len);
NW_MUST_USE nw_code nw_pack_hash_check(const nw_pack_hash *hash, const char *path, nw_error *err); /* as file_check */
nw_pack_hash       *nw_pack_hash_close(nw_pack_hash *hash);                                        /* returns NULL */

/* The seed of a strip's checksum: which strip it is. */
uint64_t nw_pack_strip_seed(uint32_t tensor, uint32_t tile, uint32_t strip);

/* The checksum of a strip's stored bytes: XXH3-64 seeded by which strip it is, so that the bytes of another one are
 * wrong even where they are whole. */
uint64_t nw_pack_strip_hash(uint32_t tensor, uint32_t tile, uint32_t strip, const void *bytes, size_t len);

/* True if `bytes` (as many as its record says) are those of strip `strip` of tile `tile` (an index of nw_pack_tile_at).
 * For any thread. */
bool nw_pack_strip_check(const nw_pack *pack, size_t tile, uint32_t strip, const void *bytes);

/* NW_E_IO: "shard, tensor, tile and strip: `why`". `why` NULL: its checksum is wrong. */
nw_code nw_pack_strip_fail(const nw_pack *pack, size_t tile, uint32_t strip, const char *why, nw_error *err);

/* -- checking all of it -- */

/* One fault: of a strip, of the bytes between strips, or of a file beside. Lives during the call. */
typedef struct {
    const char *path;   /* of the shard or file */
    const char *tensor; /* NULL: no strip's */
    uint32_t    tile, strip;
    uint64_t    row_first, row_count; /* of the strip */
    const char *why;
} nw_pack_fault;

typedef struct {
    void (*fault)(void *user, const nw_pack_fault *fault); /* called for each; may be NULL */
    /* Now and then; may be NULL. False ends the work. */
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_all);
    void *user;
} nw_pack_verify_options;

/* Reads every byte of the pack, from start to end, and checks it.
 * io          must allow NW_STREAM_DEPTH operations; nothing else may be in flight in it.
 * ret_faults  how many there are.
 * Errors      only what keeps it from going on: NW_E_IO, NW_E_MEMORY, NW_E_BUDGET, NW_E_CANCELLED; NW_E_FORMAT if a
 *             file became shorter. */
NW_MUST_USE nw_code nw_pack_verify(nw_memory *mem, nw_io *io, const nw_pack *pack,
                                   const nw_pack_verify_options *options, uint64_t *read_bytes, uint64_t *ret_faults,
                                   nw_error *err);

#endif

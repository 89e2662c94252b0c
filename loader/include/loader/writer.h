/* Writes a checkpoint as Hugging Face safetensors: shards, index, atomically, leaving nothing in the page cache.
 *
 * All tensors are declared first (headers come before data), then their bytes are written, in the order of declaration.
 * Never more than a buffer in memory. Files are written under a temporary name beside the target directory and renamed
 * by nw_writer_finish, after fsync; anything earlier leaves nothing that opens.
 */
#ifndef NW_LOADER_WRITER_H
#define NW_LOADER_WRITER_H

#include "base/dtype.h"
#include "base/memory.h"
#include "loader/checkpoint.h"

typedef struct nw_writer nw_writer;

/* shard_bytes_max  of tensor data per file; 0: one file. A tensor is never split. A shard is closed before a tensor
 *                  that would not fit, so groups that must stay together are declared with nw_writer_group.
 * Errors           NW_E_IO (target exists, no room, no permission), NW_E_MEMORY. */
NW_MUST_USE nw_code nw_writer_open(nw_memory *mem, const char *dir, uint64_t shard_bytes_max, nw_writer **ret_writer,
                                   nw_error *err);

/* Declares one tensor of dim_count (1 or 2) dimensions. Names are copied. */
NW_MUST_USE nw_code nw_writer_declare(nw_writer *writer, const char *name, nw_dtype dtype, const uint64_t *dims,
                                      uint32_t dim_count, nw_error *err);

/* Declares a tensor of the shape, type and bytes that another checkpoint's has, whether or not its type is known. */
NW_MUST_USE nw_code nw_writer_declare_like(nw_writer *writer, const char *name, const nw_tensor *like, nw_error *err);

/* Says in the metadata of every shard that `name` is another name for the tensor `kept`, as accelerate's save_model
 * does. Before the first data.
 * Errors  NW_E_ARG: "format", which says something else there; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_writer_alias(nw_writer *writer, const char *name, const char *kept, nw_error *err);

/* Starts a group: its tensors go to one shard unless the group alone is larger than a shard. */
NW_MUST_USE nw_code nw_writer_group(nw_writer *writer, nw_error *err);

/* Appends bytes of the tensors' data, in the order of declaration, in any pieces. */
NW_MUST_USE nw_code nw_writer_data(nw_writer *writer, const void *bytes, size_t len, nw_error *err);

/* Writes a small file (config.json, tokenizer) beside the shards; a second call with its name appends. */
NW_MUST_USE nw_code nw_writer_file(nw_writer *writer, const char *name, const void *bytes, size_t len, nw_error *err);

/* After the first data: into how many shards. */
uint32_t nw_writer_shard_count(const nw_writer *writer);

/* What a writer of so many tensors takes of the budget, names of ordinary length included. */
uint64_t nw_writer_declared_bytes(size_t tensor_count);

/* All data must have been written. Index, fsync, rename. */
NW_MUST_USE nw_code nw_writer_finish(nw_writer *writer, nw_error *err);

/* Frees; if not finished, removes what was written. Takes NULL; returns NULL. */
nw_writer *nw_writer_close(nw_writer *writer);

#endif

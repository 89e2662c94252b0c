/* model.safetensors.index.json: which shard holds which tensor. Private to loader/. */
#ifndef NW_LOADER_SHARD_INDEX_H
#define NW_LOADER_SHARD_INDEX_H

#include "safetensors.h"

#define NW_SHARD_COUNT_MAX ((size_t)4096)

typedef struct {
    const char *name;       /* of the tensor */
    const char *shard_name; /* a plain file name; equal names share one copy */
    uint32_t    shard;      /* index into shards */
    bool        seen;       /* found in its shard */
} nw_shard_entry;

typedef struct {
    nw_memory      *mem;
    const char     *path;
    nw_shard_entry *entries; /* sorted by name */
    size_t          count, cap;
    const char    **shards; /* sorted */
    size_t          shard_count, shard_cap;
} nw_shard_index;

/* Reads an index; what it holds must be freed also after a failure.
 *
 * names   where tensor and shard names are kept; must outlive the index.
 * Errors  as nw_source_scan; NW_E_FORMAT for a name that leaves the directory, no weight_map, or one without tensors.
 */
NW_MUST_USE nw_code nw_shard_index_read(const nw_source *source, nw_names *names, nw_shard_index *index, nw_error *err);
void                nw_shard_index_free(nw_shard_index *index);

nw_shard_entry *nw_shard_index_find(const nw_shard_index *index, const char *name, size_t len); /* NULL: not there */

#endif

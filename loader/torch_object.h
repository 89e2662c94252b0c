/* What torch.save's pickles hold: storages and the tensors over them. Private to loader/. */
#ifndef NW_LOADER_TORCH_OBJECT_H
#define NW_LOADER_TORCH_OBJECT_H

#include "pickle.h"

#define NW_TORCH_STORAGES_MAX ((size_t)100000)

/* One mention of a storage; several may mean the same one. Where it is, the container says. */
typedef struct {
    const char *key;
    uint32_t    type; /* index into the types of elements */
    uint32_t    elt_bytes;
    uint64_t    numel;
    uint64_t    bytes;  /* numel * elt_bytes */
    uint64_t    offset; /* bytes from the start of the file; set by the container */
} nw_torch_storage;

typedef struct nw_torch_tensor nw_torch_tensor; /* as the pickle has it */

typedef struct {
    const nw_source  *source;
    bool              views; /* the older form of persistent ids, with a sixth item */
    nw_torch_storage *storages;
    size_t            storage_count, storage_cap;
    nw_torch_tensor  *tensors;
    size_t            tensor_count, tensor_cap;
} nw_torch_objects;

/* For nw_pickle_open, with an nw_torch_objects as user. Refuses every global but those that rebuild tensors, by name,
 * with NW_E_UNSUPPORTED. */
extern const nw_pickle_calls nw_torch_calls;

/* The objects need `source` set before the first run; takes also half-built ones. */
void nw_torch_objects_free(nw_torch_objects *objects);

/* Adds the tensors of a state dict, the root of a pickle, to the table. Every storage's offset must be set, and its
 * bytes be within the file. Numbers and strings beside the tensors are ignored.
 *
 * file, name_fn  as for nw_safetensors_read.
 * Errors         NW_E_FORMAT: not a dict of tensors (a training checkpoint, by its key), a tensor outside its storage;
 *                NW_E_UNSUPPORTED: not contiguous, more than 8 dimensions; those of name_fn; NW_E_MEMORY, NW_E_BUDGET.
 */
NW_MUST_USE nw_code nw_torch_tensors(const nw_torch_objects *objects, const nw_pickle *pickle, nw_pickle_value root,
                                     uint32_t file, nw_tensor_table *table, nw_name_fn name_fn, void *name_user,
                                     nw_error *err);

#endif

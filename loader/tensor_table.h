/* Names, arrays and the table of tensors, which the readers of all formats fill. Private to loader/. */
#ifndef NW_LOADER_TENSOR_TABLE_H
#define NW_LOADER_TENSOR_TABLE_H

#include "base/memory.h"
#include "base/sort.h"
#include "loader/checkpoint.h"

#define NW_TENSOR_COUNT_MAX ((size_t)1000000) /* of one checkpoint */
#define NW_TENSOR_NAME_MAX 512                /* bytes */

/* Copies of names, packed into blocks that never move. */
typedef struct nw_names_block nw_names_block;
typedef struct {
    nw_memory      *mem;
    nw_names_block *blocks;
} nw_names;

/* A NUL-terminated copy of at most 4096 bytes of text; NULL: no memory. */
const char *nw_names_add(nw_names *names, const char *text, size_t len);
void        nw_names_free(nw_names *names);

/* True if text may be the name of a tensor: 1 to 512 bytes without control characters. */
bool nw_tensor_name_ok(const char *text, size_t len);

typedef struct {
    nw_names   names;
    nw_tensor *tensors;
    size_t     count, cap;
} nw_tensor_table;

void nw_tensor_table_free(nw_tensor_table *table);

/* Appends a copy of the tensor. `path` names the file in messages.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_tensor_table_add(nw_tensor_table *table, const nw_tensor *tensor, const char *path,
                                        nw_error *err);

/* Called with each tensor's name. Says where the table's copy of the name is, or refuses the tensor. */
typedef nw_code (*nw_name_fn)(void *user, const char *name, size_t len, const char **ret_name, nw_error *err);

/* The table's copy of the next tensor's name: from name_fn, or a fresh one if that is NULL.
 * Errors  NW_E_FORMAT: no name for a tensor, or one tensor too many; those of name_fn; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_tensor_table_name(nw_tensor_table *table, const char *text, size_t len, nw_name_fn name_fn,
                                         void *name_user, const char *path, const char **ret_name, nw_error *err);

/* Doubles an array when it is full; NULL, with the array as it was, when there is no memory. */
void *nw_array_grow(nw_memory *mem, void *array, size_t count, size_t *cap, size_t size);

#endif

/* The safetensors format: one file's header into a table of tensors. Private to loader/. */
#ifndef NW_LOADER_SAFETENSORS_H
#define NW_LOADER_SAFETENSORS_H

#include "base/json.h"
#include "base/sort.h"
#include "loader/checkpoint.h"

#define NW_HEADER_BYTES_MAX ((uint64_t)100000000)
#define NW_TENSOR_COUNT_MAX ((size_t)1000000) /* of one checkpoint */
#define NW_TENSOR_NAME_MAX 512                /* bytes */
#define NW_HEADER_CHUNK ((size_t)65536)       /* bytes of one read */

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

/* What all readers of one file share. */
typedef struct {
    nw_memory     *mem;
    nw_io         *io;
    const nw_file *file;
    const char    *path;
    uint64_t      *read_bytes; /* may be NULL */
} nw_source;

/* Streams `bytes` at `offset` of a file into a strict JSON scan, a chunk at a time. The range must be within the file.
 * Errors  those of nw_json and nw_io_run. */
NW_MUST_USE nw_code nw_source_scan(const nw_source *source, const char *label, uint64_t offset, uint64_t bytes,
                                   nw_json_fn fn, void *user, nw_error *err);

/* Called with each tensor's name. Says where the table's copy of the name is, or refuses the tensor. */
typedef nw_code (*nw_name_fn)(void *user, const char *name, size_t len, const char **ret_name, nw_error *err);

/* Appends the tensors of one safetensors file to the table, with `file` as their file's index.
 *
 * name_fn  NULL: names are copied into the table.
 * Errors   NW_E_FORMAT, NW_E_UNSUPPORTED (another format by its first bytes), NW_E_IO, NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_safetensors_read(const nw_source *source, uint32_t file, nw_tensor_table *table,
                                        nw_name_fn name_fn, void *name_user, nw_error *err);

/* Doubles an array when it is full; NULL, with the array as it was, when there is no memory. */
void *nw_array_grow(nw_memory *mem, void *array, size_t count, size_t *cap, size_t size);

#endif

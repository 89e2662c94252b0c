/* The safetensors format: one file's header into a table of tensors. Private to loader/. */
#ifndef NW_LOADER_SAFETENSORS_H
#define NW_LOADER_SAFETENSORS_H

#include "source.h"
#include "tensor_table.h"

#define NW_HEADER_BYTES_MAX ((uint64_t)100000000)

/* Appends the tensors of one safetensors file to the table, with `file` as their file's index.
 *
 * name_fn  NULL: names are copied into the table.
 * Errors   NW_E_FORMAT, NW_E_UNSUPPORTED (more than 8 dimensions), NW_E_IO, NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_safetensors_read(const nw_source *source, uint32_t file, nw_tensor_table *table,
                                        nw_name_fn name_fn, void *name_user, nw_error *err);

#endif

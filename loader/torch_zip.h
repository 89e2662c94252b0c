/* pytorch_model.bin as torch.save has written it since 1.6: a zip archive of stored entries. Private to loader/. */
#ifndef NW_LOADER_TORCH_ZIP_H
#define NW_LOADER_TORCH_ZIP_H

#include "source.h"
#include "tensor_table.h"

#define NW_ZIP_ENTRIES_MAX ((size_t)100100) /* storages, and a few more */
#define NW_ZIP_NAME_MAX 400                 /* bytes */

/* Appends the tensors of one archive to the table.
 *
 * file, name_fn  as for nw_safetensors_read.
 * Memory         tag NW_TAG_INDEX; beside it minizip holds about 2 KiB until this returns.
 * Errors         NW_E_FORMAT, NW_E_UNSUPPORTED (compressed, big-endian, not a plain state dict), NW_E_IO, NW_E_MEMORY,
 *                NW_E_BUDGET. */
NW_MUST_USE nw_code nw_torch_zip_read(const nw_source *source, uint32_t file, nw_tensor_table *table,
                                      nw_name_fn name_fn, void *name_user, nw_error *err);

#endif

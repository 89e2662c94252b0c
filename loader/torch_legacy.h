/* pytorch_model.bin as torch.save wrote it before 1.6: five pickles, then the storages. Private to loader/. */
#ifndef NW_LOADER_TORCH_LEGACY_H
#define NW_LOADER_TORCH_LEGACY_H

#include "source.h"
#include "tensor_table.h"

/* The file's first bytes: the first pickle, which holds a magic number. */
#define NW_TORCH_LEGACY_MAGIC "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"

/* As nw_torch_zip_read. */
NW_MUST_USE nw_code nw_torch_legacy_read(const nw_source *source, uint32_t file, nw_tensor_table *table,
                                         nw_name_fn name_fn, void *name_user, nw_error *err);

#endif

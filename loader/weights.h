/* One file of weights, of whichever format its first bytes say. Private to loader/. */
#ifndef NW_LOADER_WEIGHTS_H
#define NW_LOADER_WEIGHTS_H

#include "source.h"
#include "tensor_table.h"

/* Appends the file's tensors to the table: safetensors, or what torch.save writes. The name of the file plays no part.
 *
 * file, name_fn  as for nw_safetensors_read.
 * Errors         those of the formats' readers; NW_E_UNSUPPORTED for other formats, by their names. */
NW_MUST_USE nw_code nw_weights_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                                    void *name_user, nw_error *err);

#endif

/* Tensors that are one: in a PyTorch file several names may lead to one storage. */
#ifndef NW_RUNTIME_TIES_H
#define NW_RUNTIME_TIES_H

#include "model_state.h"

/* For each tensor of the checkpoint, the index of the one under whose name its bytes are to be written: itself, or,
 * where several are the same bytes, the one of the best name. A tensor that the model runs with stays itself. Equal
 * copies are not tied.
 *
 * ret_kept  [tensors of the checkpoint]; give it back to nw_ties_free.
 * Memory    nw_ties_bytes() at most, tag NW_TAG_INDEX.
 * Errors    NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_ties_find(nw_model *model, uint32_t **ret_kept, nw_error *err);
void                nw_ties_free(nw_model *model, uint32_t *kept); /* takes NULL */
uint64_t            nw_ties_bytes(size_t tensor_count);

#endif

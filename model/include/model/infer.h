/* A configuration without config.json: read off the tensors' names and shapes.
 *
 * For single weights files, which travel without their configuration. Sizes and structure are facts of the tensors;
 * the activation, the buckets' distance, the norms' epsilon and the token ids are not in them and are assumed to be
 * those of the published models. Both are said in words, for a person to check.
 */
#ifndef NW_MODEL_INFER_H
#define NW_MODEL_INFER_H

#include "model/tensors.h"

enum { NW_INFER_LINES = 3, NW_INFER_LINE_BYTES = 384 };

/* What was inferred and assumed, in sentences without the file's name. */
typedef struct {
    char line[NW_INFER_LINES][NW_INFER_LINE_BYTES];
} nw_infer_notes;

/* Fills *ret and *ret_notes. lookup needs `dims`.
 * Errors  NW_E_FORMAT: the tensors that tell are missing, or no T5 has their shapes. Messages name the tensor. */
NW_MUST_USE nw_code nw_config_infer(const nw_tensor_lookup *lookup, nw_config *ret, nw_infer_notes *ret_notes,
                                    nw_error *err);

#endif

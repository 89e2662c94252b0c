/* The sentencepiece library behind a C interface. Give it only files that nw_spiece_read accepted. */
#ifndef NW_MODEL_SPIECE_SHIM_H
#define NW_MODEL_SPIECE_SHIM_H

#include "base/error.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nw_spiece nw_spiece;

/* Errors of all: NW_E_TOKENIZER with what the library says; NW_E_MEMORY. `name` is for messages and borrowed. */
NW_MUST_USE nw_code nw_spiece_open(const char *name, const void *bytes, size_t len, nw_spiece **ret_spiece,
                                   nw_error *err);
nw_spiece          *nw_spiece_close(nw_spiece *spiece); /* takes NULL; returns NULL */

/* Writes the first `cap` ids of a text; *ret_count is how many there are. */
NW_MUST_USE nw_code nw_spiece_encode(const nw_spiece *spiece, const char *text, size_t len, uint32_t *ids, size_t cap,
                                     size_t *ret_count, nw_error *err);

/* Calls fn with each stretch of (normalised) text that became the unknown piece. */
typedef void (*nw_spiece_unknown_fn)(void *user, const char *text, size_t len);
NW_MUST_USE nw_code nw_spiece_unknown(const nw_spiece *spiece, const char *text, size_t len, uint32_t unk_id,
                                      nw_spiece_unknown_fn fn, void *user, nw_error *err);

#ifdef __cplusplus
}
#endif
#endif

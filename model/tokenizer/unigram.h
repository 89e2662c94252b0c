/* Sentencepiece's unigram model: a text is normalised, then cut into the pieces whose scores sum highest. */
#ifndef NW_MODEL_UNIGRAM_H
#define NW_MODEL_UNIGRAM_H

#include "spiece_file.h"

typedef struct nw_unigram nw_unigram;

/* Everything that is needed later is copied from the file. Errors: NW_E_TOKENIZER, NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_unigram_open(nw_memory *mem, const char *name, const nw_spiece_file *file, nw_unigram **ret,
                                    nw_error *err);
nw_unigram         *nw_unigram_close(nw_unigram *unigram); /* takes NULL; returns NULL */

/* Called with each id in order and the (normalised) text that it stands for. */
typedef void (*nw_unigram_fn)(void *user, uint32_t id, const unsigned char *text, size_t len);

/* Errors: NW_E_MEMORY, NW_E_BUDGET: about 13 bytes for each byte of normalised text are taken meanwhile. */
NW_MUST_USE nw_code nw_unigram_encode(const nw_unigram *unigram, const char *text, size_t len, nw_unigram_fn fn,
                                      void *user, nw_error *err);

#endif

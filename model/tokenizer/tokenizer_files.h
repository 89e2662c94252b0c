/* What check, open and the piece table begin with: the files read and checked. */
#ifndef NW_MODEL_TOKENIZER_FILES_H
#define NW_MODEL_TOKENIZER_FILES_H

#include "special_tokens.h"

typedef struct {
    bool           byt5;
    nw_spiece_file spiece; /* not for ByT5 */
    nw_specials    specials;
    uint32_t       piece_count; /* the model's own, without special tokens above them */
} nw_tokenizer_parts;

NW_MUST_USE nw_code nw_tokenizer_parts_open(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer_parts *ret,
                                            nw_error *err);
void                nw_tokenizer_parts_close(nw_tokenizer_parts *parts);

#endif

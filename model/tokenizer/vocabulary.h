/* The pieces of a model in sorted order, for finding those that a text begins with. */
#ifndef NW_MODEL_VOCABULARY_H
#define NW_MODEL_VOCABULARY_H

#include "spiece_file.h"

/* One piece; its text is in the blob. */
typedef struct {
    uint32_t text_at;
    uint32_t id;
    float    score;
    uint16_t len;
    uint8_t  type; /* NW_PIECE_NORMAL, _USER or _UNUSED: the others never match text */
} nw_vocabulary_item;

typedef struct {
    nw_memory          *mem;
    nw_vocabulary_item *items; /* sorted by text, each text once */
    uint32_t            count, cap;
    unsigned char      *blob;
    size_t              blob_bytes;
    uint32_t            first[257]; /* items that begin with byte b: [first[b], first[b + 1]) */
    bool                has_user;
} nw_vocabulary;

/* Errors  NW_E_TOKENIZER: two pieces have the same text; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_vocabulary_open(nw_memory *mem, const char *name, const nw_spiece_file *file, nw_vocabulary *ret,
                                       nw_error *err);
void                nw_vocabulary_close(nw_vocabulary *vocabulary); /* a zeroed one is fine */

/* A walk along a text: all items in [low, high) begin with its first `len` bytes. */
typedef struct {
    uint32_t low, high;
    uint32_t len;
} nw_vocabulary_walk;

/* Goes on by one byte. Returns the piece that ends there, or NULL; the walk is over when low == high. */
const nw_vocabulary_item *nw_vocabulary_step(const nw_vocabulary *v, nw_vocabulary_walk *walk, unsigned char byte);

#endif

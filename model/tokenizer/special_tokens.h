/* Special tokens: pieces of text that stand for one id each, from the JSON documents beside a tokenizer. */
#ifndef NW_MODEL_SPECIAL_TOKENS_H
#define NW_MODEL_SPECIAL_TOKENS_H

#include "model/tokenizer.h"
#include "spiece_file.h"

/* ByT5's ids: pad, eos, unk, then the 256 bytes. */
#define NW_BYT5_FIRST_BYTE 3u
#define NW_BYT5_PIECE_COUNT 259u

typedef struct {
    uint32_t name_at; /* in names */
    uint32_t name_len;
    uint32_t id;
    uint8_t  source;         /* how far its fields are to be trusted; private */
    uint8_t  role;           /* private */
    bool     has_flags;      /* private: the document said lstrip and rstrip */
    bool     lstrip, rstrip; /* white space before or after it belongs to it */
} nw_special;

typedef struct {
    nw_memory  *mem;
    nw_special *items; /* sorted by name, each name once */
    uint32_t    count, cap;
    char       *names;
    uint32_t    names_len, names_cap;
    uint32_t    extra_ids;
    uint32_t    id_end; /* 1 + the highest id of any of them; 0 if there are none */
} nw_specials;

/* Reads the documents and gives every token its id.
 *
 * spiece  what nw_spiece_read gave; NULL for ByT5.
 * Errors  NW_E_TOKENIZER: a document is wrong, or an id is not below vocab_size; NW_E_MEMORY, NW_E_BUDGET.
 */
NW_MUST_USE nw_code nw_specials_open(nw_memory *mem, const nw_tokenizer_files *files, const nw_spiece_file *spiece,
                                     nw_specials *ret, nw_error *err);
void                nw_specials_close(nw_specials *specials); /* a zeroed one is fine */

static inline const char *nw_specials_name(const nw_specials *s, const nw_special *item)
{
    return s->names + item->name_at;
}

/* The longest token that the text begins with; NULL if it begins with none. */
const nw_special *nw_specials_match(const nw_specials *specials, const char *text, size_t len);

#endif

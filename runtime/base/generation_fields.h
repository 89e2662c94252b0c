/* The fields of nw_generation_settings by their names in files: what parsing and merging walk over. */
#ifndef NW_MODEL_GENERATE_GENERATION_FIELDS_H
#define NW_MODEL_GENERATE_GENERATION_FIELDS_H

#include "base/generation.h"

typedef enum {
    NW_FIELD_BOOL,    /* bool */
    NW_FIELD_EARLY,   /* nw_early_stopping */
    NW_FIELD_COUNT,   /* uint32_t */
    NW_FIELD_LENGTH,  /* uint32_t; more than NW_NEW_TOKENS_MAX means no limit */
    NW_FIELD_REAL,    /* double */
    NW_FIELD_ID,      /* uint32_t, or the first of a list */
    NW_FIELD_END_IDS, /* nw_end_ids, from one id or a list */
    NW_FIELD_ID_LIST, /* nw_id_list */
    NW_FIELD_WORDS,   /* nw_bad_words */
    NW_FIELD_STRINGS, /* nw_stop_strings, from one string or a list */
    NW_FIELD_PREFIX,  /* prefix_len and prefix */
} nw_field_kind;

typedef struct {
    const char   *key; /* as in generate() */
    nw_field_kind kind;
    size_t        offset, size;
} nw_field;

/* By nw_generation_field. */
extern const nw_field nw_generation_fields[NW_GENERATION_FIELD_COUNT];

/* What null in a file means: everything off, where the defaults are not. */
nw_generation_settings nw_generation_off(void);

#endif

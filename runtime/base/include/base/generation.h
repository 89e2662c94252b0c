/* Settings of a generation: the parameters of Hugging Face's generate(), by its names, with its defaults.
 *
 * They come from three places, the earlier ones first: the caller (a command line, a request), generation_config.json,
 * and the fields of config.json that older checkpoints keep there, of a task (task_specific_params) or for all. Each
 * place gives a nw_generation_settings in which `given` says what it sets; nw_generation_merge lays one over another:
 *
 *     nw_generation_settings s = nw_generation_defaults();
 *     nw_generation_merge(&s, &of_the_file);  nw_generation_merge(&s, &of_the_caller);  nw_generation_check(&s, ...);
 *
 * The reference reads generation parameters of config.json only where there is no generation_config.json, and never a
 * task's by itself: which files count is the caller's choice.
 *
 * Source  transformers 4.57, generation/configuration_utils.py (GenerationConfig) and generation/utils.py.
 */
#ifndef NW_BASE_GENERATION_H
#define NW_BASE_GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    NW_EOS_MAX = 8,            /* end tokens */
    NW_BEAMS_MAX = 64,         /* num_beams */
    NW_RETURN_MAX = 64,        /* num_return_sequences */
    NW_NEW_TOKENS_MAX = 1 << 20, /* of any length */
    NW_ID_LIST_MAX = 1024,     /* ids of suppress_tokens, of begin_suppress_tokens, and of all bad words together */
    NW_BAD_WORDS_MAX = 256,    /* sequences */
    NW_STOP_STRINGS_MAX = 16,
    NW_STOP_BYTES_MAX = 256,   /* of one stop string */
    NW_PREFIX_MAX = 256,       /* bytes of a task's prefix */
};

/* No token: a setting that is off. */
#define NW_ID_NONE UINT32_MAX

/* When a beam search ends: with as many hypotheses as beams (TRUE); when no running beam could beat the worst of them
 * if it ended now (FALSE), or at any length (NEVER). beam.h has the formulas. */
typedef enum { NW_EARLY_FALSE, NW_EARLY_TRUE, NW_EARLY_NEVER } nw_early_stopping;

typedef enum {
    NW_GENERATION_DO_SAMPLE,
    NW_GENERATION_NUM_BEAMS,
    NW_GENERATION_NUM_RETURN_SEQUENCES,
    NW_GENERATION_EARLY_STOPPING,
    NW_GENERATION_LENGTH_PENALTY,
    NW_GENERATION_MAX_LENGTH,
    NW_GENERATION_MAX_NEW_TOKENS,
    NW_GENERATION_MIN_LENGTH,
    NW_GENERATION_MIN_NEW_TOKENS,
    NW_GENERATION_TEMPERATURE,
    NW_GENERATION_TOP_K,
    NW_GENERATION_TOP_P,
    NW_GENERATION_MIN_P,
    NW_GENERATION_REPETITION_PENALTY,
    NW_GENERATION_NO_REPEAT_NGRAM_SIZE,
    NW_GENERATION_BAD_WORDS_IDS,
    NW_GENERATION_SUPPRESS_TOKENS,
    NW_GENERATION_BEGIN_SUPPRESS_TOKENS,
    NW_GENERATION_FORCED_BOS_TOKEN_ID,
    NW_GENERATION_FORCED_EOS_TOKEN_ID,
    NW_GENERATION_EOS_TOKEN_ID,
    NW_GENERATION_DECODER_START_TOKEN_ID,
    NW_GENERATION_STOP_STRINGS,
    NW_GENERATION_PREFIX,
    NW_GENERATION_FIELD_COUNT,
} nw_generation_field;

#define NW_GENERATION_BIT(field) ((uint32_t)1 << (field))

typedef struct {
    uint32_t count;
    uint32_t ids[NW_EOS_MAX];
} nw_end_ids;

typedef struct {
    uint32_t count;
    uint32_t ids[NW_ID_LIST_MAX];
} nw_id_list;

typedef struct {
    uint32_t count;                    /* of sequences */
    uint16_t lens[NW_BAD_WORDS_MAX];   /* ids of each, at least 1 */
    uint32_t id_count;                 /* of all of them */
    uint32_t ids[NW_ID_LIST_MAX];      /* one sequence after the other */
} nw_bad_words;

typedef struct {
    uint32_t count;
    uint16_t lens[NW_STOP_STRINGS_MAX]; /* bytes, at least 1 */
    char     text[NW_STOP_STRINGS_MAX][NW_STOP_BYTES_MAX]; /* UTF-8, not NUL-terminated */
} nw_stop_strings;

/* Plain data; some 14 KiB. */
typedef struct {
    uint32_t given; /* NW_GENERATION_BIT of what was set, not left at its default */

    bool              do_sample;
    uint32_t          num_beams, num_return_sequences; /* 1, 1 */
    nw_early_stopping early_stopping;
    double            length_penalty; /* 1 */

    /* In tokens. *_length counts the start token, *_new_tokens does not; the latter win where both are given. 0 of
     * max_*: not given (generate() would stop after 20 new tokens; what to do instead is the caller's choice). */
    uint32_t max_length, max_new_tokens, min_length, min_new_tokens;

    double   temperature; /* 1 */
    uint32_t top_k;       /* 50, as in generate(); 0: off */
    double   top_p;       /* 1: off */
    double   min_p;       /* 0: off */

    double          repetition_penalty;   /* 1: off */
    uint32_t        no_repeat_ngram_size; /* 0: off */
    nw_bad_words    bad_words_ids;
    nw_id_list      suppress_tokens, begin_suppress_tokens;
    uint32_t        forced_bos_token_id; /* NW_ID_NONE: off */
    nw_end_ids      forced_eos_token_id; /* one of them is taken; count 0: off */
    nw_end_ids      eos_token_id;        /* count 0: not given: fill in the configuration's */
    uint32_t        decoder_start_token_id; /* NW_ID_NONE: not given */
    nw_stop_strings stop_strings;
    uint32_t        prefix_len;            /* what a task puts before its input, in bytes */
    char            prefix[NW_PREFIX_MAX]; /* UTF-8, not NUL-terminated */

    /* Of a file: the first key that generate() follows and this does not, with a value that matters; NULL: none. A
     * constant string. */
    const char *not_followed;
} nw_generation_settings;

/* generate()'s defaults; nothing is `given`. */
nw_generation_settings nw_generation_defaults(void);

/* Lays what `over` gives over `s`. */
void nw_generation_merge(nw_generation_settings *s, const nw_generation_settings *over);

/* New tokens at most, or at least, by the settings: max_new_tokens, else max_length less the start token, else
 * `fallback`; min_new_tokens, else min_length less the start token. */
uint32_t nw_generation_max_new(const nw_generation_settings *s, uint32_t fallback);
uint32_t nw_generation_min_new(const nw_generation_settings *s);

/* Refuses contradictions and what is out of range, in one line that names the option (--num-beams).
 * by_caller  NW_GENERATION_BIT of what the caller itself gave: a value that turns an option off is a mistake only
 *            there (--no-repeat-ngram-size 0), files are full of them.
 * vocab      ids are below it.
 * Errors     NW_E_ARG. */
NW_MUST_USE nw_code nw_generation_check(const nw_generation_settings *s, uint32_t by_caller, uint32_t vocab,
                                        nw_error *err);

#endif

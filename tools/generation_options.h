/* The options of generate(), by its names, and what a run generates by: the model's files, over them the command line.
 */
#ifndef NW_TOOLS_GENERATION_OPTIONS_H
#define NW_TOOLS_GENERATION_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer.h"
#include "options.h"

typedef struct {
    options               *common; /* for messages; set before parsing */
    nw_generation_settings given;  /* by the command line; text that must become ids is below */
    const char            *task, *prefix, *forced_bos, *draft;
    buffer                 bad_words; /* const char *: as written */
    uint64_t               seed;
    bool                   seed_given;
    size_t                 lanes; /* 0: chosen */
    bool                   lookup_off;
} generation_options;

/* For a command's argp; its input is a generation_options. */
extern const struct argp generation_argp;

/* What is in force, end tokens and max_new_tokens filled in; without what resolving adds. Settings that contradict each
 * other are refused, settings of the model's files that make more than greedy search of a run are noted.
 * Returns -1, or the exit status after printing what is wrong. */
int generation_settle(const generation_options *o, nw_model *model, nw_generation_settings *ret);

/* True if the command line gives pieces or words that only the tokenizer can turn into ids. */
bool generation_has_words(const generation_options *o);

/* Adds the ids of pieces and words. May load the tokenizer. Returns as generation_settle. */
int generation_resolve(const generation_options *o, nw_model *model, nw_generation_settings *settings);

/* Lanes that one prompt takes, and sequences that its answer has. */
size_t generation_width(const nw_generation_settings *s);

/* Tokens that a pass has use for beside one a lane: guesses. */
size_t generation_columns(const generation_options *o, const nw_generation_settings *s);

/* Passes that an answer may be expected to take. */
size_t generation_passes(const nw_generation_settings *s);

/* Whether the command line gives anything that chooses tokens. */
bool generation_given(const generation_options *o);

/* The settings in force as one JSON object: whatever is not off. draft: the model that guesses, as named; or NULL. */
bool generation_print_json(const nw_generation_settings *s, uint64_t seed, bool lookup_off, const char *draft);

void generation_free(generation_options *o);

#endif

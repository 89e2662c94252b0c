/* Answers that are given, to be judged instead of generated: --score and --choices. */
#ifndef NW_TOOLS_TARGETS_H
#define NW_TOOLS_TARGETS_H

#include "prompts.h"

/* Zero-initialise it. */
typedef struct {
    prompts ids;    /* one "prompt" each, end token included */
    buffer  texts;  /* as written, one behind the other */
    buffer  ends;   /* size_t: bytes up to the end of each */
    bool    single; /* --score: there is one, and only its number is asked for */
} targets;

/* Reads them: `score` itself, or each line of the file `choices`; what the other one is NULL. Rules as for prompts, but
 * that none may be empty and nothing is put before or cut.
 * Returns -1, or the exit status after printing what is wrong. */
int targets_read(targets *t, nw_model *model, const prompt_rules *rules, const char *score, const char *choices);

const char *targets_text(const targets *t, size_t index, size_t *ret_len);

/* The most ids of any `span` targets in a row. */
size_t targets_widest(const targets *t, size_t span);

void targets_free(targets *t);

#endif

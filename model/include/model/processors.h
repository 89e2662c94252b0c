/* Logits processors: what changes the scores of the next token before one is chosen, in generate()'s order.
 *
 *   1 repetition_penalty      every id so far, the start token included: score / penalty if >= 0, else score * penalty
 *   2 no_repeat_ngram_size    an id that would complete an n-gram of the ids so far a second time: -infinity
 *   3 bad_words_ids           the last id of a sequence whose other ids were just written: -infinity. As in the
 *                             reference, a sequence longer than all ids so far cannot apply yet, and a sequence that is
 *                             one end token alone is ignored
 *   4 min_length, min_new_tokens   end tokens: -infinity until there are as many ids
 *   5 forced_bos_token_id     after the start token alone: 0 for this id, -infinity for all others
 *   6 forced_eos_token_id     at the last position: 0 for these ids, -infinity for all others
 *   7 suppress_tokens         -infinity
 *   8 begin_suppress_tokens   -infinity at the first position that is free (after a forced_bos_token_id)
 *
 * Greedy search and sampling apply them to logits, beam search to log-probabilities, as the reference does.
 *
 * Numeric  one f32 operation per changed score: the same bits everywhere.
 * Source   transformers 4.57, generation/logits_process.py; the order: generation/utils.py, _get_logits_processor.
 */
#ifndef NW_MODEL_PROCESSORS_H
#define NW_MODEL_PROCESSORS_H

#include "base/generation.h"
#include "model/kernels.h"

typedef struct {
    const nw_generation_settings *settings; /* borrowed; checked; eos_token_id filled in */
    size_t prompt_count; /* ids that the decoder began with: 1, the start token, unless more were given */
    size_t max_length;   /* ids at most, the prompt's included */
    size_t vocab;
} nw_processors;

/* Whether any processor can change anything at any step: if not, there is nothing to copy a row for. */
bool nw_processors_active(const nw_processors *p);

/* Changes the scores of the id that follows ids.
 *
 * Shapes   row [vocab] f32, in place; ids [count], count >= 1, the start token first; all below vocab.
 * Memory   scratch [count] f32; allocates nothing. */
void nw_processors_apply(const nw_processors *p, const uint32_t *ids, size_t count, float *row, float *scratch);

#endif

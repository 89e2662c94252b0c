/* Drafts by prompt lookup: guessing the next tokens from what was read and written, to check several in one pass.
 *
 * A pass over streamed weights costs much the same for one column or a few, so a guess that is often right is worth
 * having. Text that copies its input (a summary, a correction, a table) or repeats itself continues as it did where the
 * last few ids stood before. Which tokens an answer has does not depend on drafts: a draft token stays exactly if it is
 * what would have been chosen in its place: the greedy choice, or the draw of its position (sampling.h).
 *
 * Source  prompt lookup decoding (Saxena 2023; transformers 4.57, PromptLookupCandidateGenerator); the gain of a draft:
 *         Leviathan, Kalman, Matias: Fast inference from transformers via speculative decoding, ICML 2023, section 3.
 */
#ifndef NW_MODEL_DRAFT_H
#define NW_MODEL_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NW_DRAFT_MAX = 15,  /* tokens: NW_COLS_MAX columns with the one before them */
    NW_DRAFT_MATCH = 4, /* ids that a match is looked at for: beyond, longer ones are no better a sign */
};

typedef struct {
    const uint32_t *input; /* [input_count], the encoder's ids */
    size_t          input_count;
    const uint32_t *written; /* [written_count], new tokens, without the start token */
    size_t          written_count;
    const uint32_t *eos_ids; /* [eos_count]; a draft ends with one */
    size_t          eos_count;
} nw_draft_text;

/* Guesses up to `max` tokens that follow what is written: those that followed the longest earlier occurrence of its
 * last 1 .. NW_DRAFT_MATCH ids. Of equally long ones, written text goes before input (it is the answer's own language),
 * and there the latest, in the input the first. A guess that reaches the end of what is written goes on with itself:
 * repetition is a period.
 * Returns   tokens in draft [max]; 0 if nothing matches.   ret_match  ids that matched, 0 with none. */
size_t nw_draft_lookup(const nw_draft_text *t, size_t max, uint32_t *draft, size_t *ret_match);

/* Chooses how long drafts are, by how many of their tokens were accepted. Zero-initialise it. */
typedef struct {
    struct {
        double   tried, accepted; /* draft tokens, older ones counting less */
        uint32_t skipped;         /* times that a draft did not seem worth it since the last one */
    } match[NW_DRAFT_MATCH + 1];  /* by the length of the match */
} nw_draft_control;

/* Tokens to draft after a match of `match` ids: 0 .. max.
 *
 * column_cost   what a pass costs more for each further column, as a part of what it costs with one: 0 where reading
 *               weights is all that counts, 1 where computing is.
 * With a as the share of tokens that are accepted, a pass with n draft tokens gives 1 + a + ... + a^n tokens, for
 * 1 + n * column_cost: n is where that is most a unit of cost. Where it is 0, one token is tried now and then, to see
 * if that has changed. */
size_t nw_draft_length(nw_draft_control *c, size_t match, double column_cost, size_t max);

/* Tells what became of a draft of `drafted` tokens after a match of `match` ids: the first `accepted` stayed. */
void nw_draft_learn(nw_draft_control *c, size_t match, size_t drafted, size_t accepted);

#endif

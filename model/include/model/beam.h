/* Beam search, with the decisions of Hugging Face's generate().
 *
 * In each step every running beam's logits become log-probabilities (log_softmax), are processed (processors.h), and
 * get the beam's score added. Of all beams' candidates the best K = max(2, 1 + end tokens) * num_beams are taken, best
 * first; equal scores by beam, then by id. Of these,
 *   - the first num_beams may end: with an end token, at the maximum length or by `stops`. Such a hypothesis gets
 *     score / length^length_penalty, its length without the prompt, the end token counted, and is kept if it is among
 *     the best num_beams of all that have ended;
 *   - the best num_beams that do not end run on.
 * The search ends when every candidate has ended (maximum length); with early_stopping TRUE, when num_beams hypotheses
 * have ended; otherwise when there are as many, and the worst is no worse than the best running score divided by
 * length^length_penalty: the length so far, or with NEVER and a positive penalty the maximum length.
 *
 *     nw_beam b = {.maxima = {...}};  nw_beam_layout(&b, &arena);
 *     nw_beam_start(&b, &processors, prompt);
 *     do for each i below nw_beam_row_count(&b): nw_beam_row(&b, kernels, i, logits of beam i);
 *     while (nw_beam_advance(&b));   then b.next says which beams the new ones continue
 *     nw_beam_result(&b, 0, ...) is the best
 *
 * Numeric  scores are f32 as in the reference, one rounding per operation; logarithms and powers are our own: the same
 *          bits everywhere.
 * Source   transformers 4.57, generation/utils.py, _beam_search and its helpers.
 */
#ifndef NW_MODEL_BEAM_H
#define NW_MODEL_BEAM_H

#include "base/arena.h"
#include "model/processors.h"

/* What memory is made for. */
typedef struct {
    size_t beams;  /* num_beams, at most NW_BEAMS_MAX */
    size_t length; /* ids of a sequence, prompt included */
    size_t vocab;
} nw_beam_maxima;

/* How a running beam came about in the last step. */
typedef struct {
    uint32_t parent; /* the beam of the step before that it continues: the lane whose K and V it goes on with */
    uint32_t token;  /* the id that it added: the decoder's next input */
} nw_beam_next;

/* Whether a candidate ends for a reason of the caller's (a stop string): ids [count], the last one just chosen. */
typedef bool (*nw_beam_stops)(void *user, const uint32_t *ids, size_t count);

typedef struct {
    float    score;   /* sum of (processed) log-probabilities */
    float    logprob; /* of the last id, by the raw logits */
    uint32_t beam, token;
} nw_beam_candidate;

typedef struct {
    float    score; /* divided by its length's power; -1e9: none yet */
    uint32_t slot;  /* of ids and logprobs */
    uint32_t count; /* ids, prompt included; 0: none yet */
} nw_beam_hypothesis;

/* Sequences of ids with what each id was worth. */
typedef struct {
    uint32_t *ids;      /* [beams, length] */
    float    *logprobs; /* [beams, length], by the raw logits; those of the prompt are 0 */
} nw_beam_paths;

typedef struct {
    nw_beam_maxima maxima; /* set before nw_beam_layout */
    nw_beam_stops  stops;  /* NULL: nothing but end tokens and the length; may be set after nw_beam_start */
    void          *user;

    const nw_processors *processors;            /* borrowed */
    size_t               num_beams, count;      /* ids of each running beam */
    size_t               rows;                  /* beams whose logits this step has seen */
    float                running[NW_BEAMS_MAX]; /* scores */
    nw_beam_next         next[NW_BEAMS_MAX];    /* [num_beams], of the last step */
    nw_beam_hypothesis   ended[NW_BEAMS_MAX];   /* best first */
    size_t               candidate_count, candidate_max;
    nw_beam_candidate   *candidates; /* [candidate_max], best first */
    nw_beam_paths        paths[2];   /* of the running beams; `at` is the current one */
    nw_beam_paths        kept;       /* of the hypotheses, by slot */
    unsigned             at;
    float               *row, *scratch; /* [vocab], [length] */
} nw_beam;

/* Carves what the maxima need; with a measuring arena, to learn its size. */
void nw_beam_layout(nw_beam *b, nw_arena *a);

/* Begins a search.
 *
 * p        settings (num_beams, length_penalty, early_stopping, end tokens) and lengths; borrowed until the end.
 *          Within the maxima.
 * prompt   [p->prompt_count] ids that every sequence begins with: the start token at least; fewer than max_length. */
void nw_beam_start(nw_beam *b, const nw_processors *p, const uint32_t *prompt);

/* Rows of logits that the step needs: 1 in the first (all beams are alike), then num_beams. */
size_t nw_beam_row_count(const nw_beam *b);

/* Takes the logits of running beam `beam`: 0, 1, ... in this order.
 * Shapes   logits [vocab] f32, raw; unchanged. */
void nw_beam_row(nw_beam *b, const nw_kernels *k, size_t beam, const float *logits);

/* Ends the step, all rows being in. Returns whether the search goes on: b->next [num_beams] then says with which. */
bool nw_beam_advance(nw_beam *b);

/* The ids of a running beam, prompt included: [b->count]; valid until the next nw_beam_advance. */
const uint32_t *nw_beam_ids(const nw_beam *b, size_t beam);

/* Hypothesis `index`, 0 the best. Returns false if there are not so many (num_beams, but where processors left nothing
 * else to choose).
 * ret_ids, ret_logprobs   [ret_count] without the prompt; valid until the next nw_beam_start.
 * ret_score   as generate()'s sequences_scores. */
bool nw_beam_result(const nw_beam *b, size_t index, const uint32_t **ret_ids, const float **ret_logprobs,
                    size_t *ret_count, double *ret_score);

#endif

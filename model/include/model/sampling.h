/* Sampling: from processed logits to probabilities (the warpers of generate(), in its order), and the draw.
 *
 *   1 temperature   score / temperature
 *   2 top_k         scores below the k-th largest: -infinity; all that equal it stay
 *   3 top_p         in ascending order (equal scores by ascending id), all whose cumulative probability is at most
 *                   1 - top_p: -infinity; the last one always stays
 *   4 min_p         probability below min_p times the largest: -infinity
 *
 * The draw takes one uniform number and the first id, in ascending order, whose cumulative probability exceeds it. The
 * number is a pure function of (seed, sample, position): Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random
 * numbers: as easy as 1, 2, 3, SC 2011) with the seed as key and (position, sample) as counter. So an answer depends
 * neither on the machine, the threads, what is computed together, nor on how the answer was come by: a drafted token is
 * accepted exactly if it is the token that would be drawn at its position, and drafts change no sampled answer.
 *
 * Numeric  exp and its sums are the kernels' (same bits in every variant); cumulative sums are doubles in the orders
 *          above. No libm.
 * Source   transformers 4.57, generation/logits_process.py; within 1e-5 of its probabilities.
 */
#ifndef NW_MODEL_SAMPLING_H
#define NW_MODEL_SAMPLING_H

#include "base/arena.h"
#include "base/generation.h"
#include "model/kernels.h"

/* What warping needs besides the row: 8 bytes for each id of the vocabulary. */
typedef struct {
    size_t    vocab;
    float    *values; /* [vocab] */
    uint32_t *order;  /* [vocab] */
} nw_warp_scratch;

/* Carves the scratch; with a measuring arena, to learn its size. */
void nw_warp_layout(nw_warp_scratch *w, nw_arena *a, size_t vocab);

/* Warps processed logits in place: temperature, top_k, top_p, min_p of the settings. What cannot be drawn becomes
 * -infinity; so does NaN.
 * Shapes   row [w->vocab] f32. */
void nw_warp(const nw_kernels *k, const nw_generation_settings *s, float *row, nw_warp_scratch *w);

/* In place, scores to probabilities (softmax).
 * Returns  false if no score is above -infinity, or one is infinity: the row is then unchanged. */
NW_MUST_USE bool nw_probabilities(const nw_kernels *k, float *row, size_t vocab);

/* The id drawn from probabilities [vocab], of which one at least is above 0. Never one whose probability is 0.
 * seed      of the request.   sample  0, 1, ...: which of its answers.   position  0: the first new token. */
uint32_t nw_draw(const float *probabilities, size_t vocab, uint64_t seed, uint64_t sample, uint64_t position);

/* The uniform number of a draw: a multiple of 2^-53 in [0, 1). */
double nw_draw_uniform(uint64_t seed, uint64_t sample, uint64_t position);

/* Philox4x32-10, as published. */
void nw_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

#endif

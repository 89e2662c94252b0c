/* How many sequences advance together, how many prompts are encoded at once, how many tokens a pass has room for: what
 * `run` and `plan` share, so that a plan is that of the run. */
#ifndef NW_TOOLS_WORKLOAD_H
#define NW_TOOLS_WORKLOAD_H

#include "options.h"
#include "prompts.h"

/* What is to be done. */
typedef struct {
    const prompts *prompts; /* NULL: `count` prompts of max_input_tokens each */
    size_t         count;
    size_t         width;        /* lanes that one request takes */
    size_t         lanes;        /* asked for; 0: chosen */
    size_t         columns_more; /* tokens that a pass could have use for beside one a lane: guesses, of all lanes */
    size_t         columns_each; /* the same, of each request: tokens of answers that are judged */
    size_t         passes;       /* that an answer takes, as far as can be known: to weigh them against the encoder's */
} workload;

/* Fills the lanes', columns' and encoder's maxima of session options whose other maxima, settings and budget are set.
 * False: what is asked for, or what one prompt takes, does not fit; lanes are filled all the same.
 *
 * Lanes are as many as the prompts give work for, up to 16, unless their number is given, and prompts are encoded
 * together, up to 80 ahead of their turn, whichever by its plan takes least time for all. Columns for guesses are as
 * many as do not make a pass slower. */
bool lanes_fill(nw_model *model, const workload *w, nw_session_options *o);

/* The same. Returns -1, or the exit status after printing what is wrong. */
int lanes_choose(nw_model *model, const workload *w, nw_session_options *o);

/* Takes back what is not needed, after a session turned out not to fit by a little: first what only saves time, then
 * lanes that were chosen. False: there is nothing. */
bool lanes_reduce(const workload *w, nw_session_options *o);

/* For an encoder alone: how many of the `rows` tokens of all texts go through it in one pass, up to 2,048: at most a
 * quarter of what the budget has above the smallest, and nothing that keeps weights from staying resident when all of
 * them could. */
void encoding_fill(nw_model *model, size_t rows, nw_session_options *o);

/* The one line for a budget that is too small: what is needed, how many lanes there would be room for, and what shorter
 * answers would need. Returns EXIT_BUDGET. */
int lanes_refuse(nw_model *model, const nw_session_options *o, size_t width, uint64_t needed);

#endif

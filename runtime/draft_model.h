/* Guesses by a small model of the same vocabulary: a session of its own, whose lanes shadow those of the session that
 * it guesses for. It reads the same prompts, follows what the other one has chosen, and says what it would choose next.
 */
#ifndef NW_RUNTIME_DRAFT_MODEL_H
#define NW_RUNTIME_DRAFT_MODEL_H

#include "session_state.h"

/* One lane's shadow. */
typedef struct {
    bool     started;
    nw_cross cross;
    nw_kv    self;
    size_t   fed; /* positions whose rows are made, of tokens that are still those of the lane */
} nw_draft_lane;

struct nw_draft_model {
    nw_session    *session; /* the caller's */
    nw_draft_lane *lanes;   /* [lane_count] */
    size_t         lane_count;
    size_t        *end; /* [lane_count] scratch: the column of each ask that tells its next token */
};

/* Checks that a session can guess for one of `lanes` lanes of model `m`: the same vocabulary, and room enough
 * that nothing else takes.
 * Errors  NW_E_ARG. */
NW_MUST_USE nw_code nw_draft_check(const nw_session *draft, nw_model *m, const nw_shape *shape, nw_error *err);

/* Resident bytes of a draft's session, its model with it. */
uint64_t nw_draft_bytes(const nw_session *draft);

/* Guesses for all asks, together: one pass for what was chosen since, and one for each token but the first.
 * Errors  as nw_session_step. */
NW_MUST_USE nw_code nw_draft_guess(nw_draft_model *d, nw_draft_ask *asks, size_t n, nw_error *err);

/* What lane `index` has: `count` tokens that stay. Rows of others will be made anew. */
void nw_draft_keep(nw_draft_model *d, size_t index, size_t count);
void nw_draft_end(nw_draft_model *d, size_t index); /* the lane is free */

#endif

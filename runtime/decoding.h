/* What lanes do in a decode pass: the columns they ask for, and the tokens that they make of the logits. */
#ifndef NW_RUNTIME_DECODING_H
#define NW_RUNTIME_DECODING_H

#include "session_state.h"

/* Begins a sequence in a free lane. */
void nw_lane_start(nw_session *s, lane *l, request *r, size_t branch);

/* Begins the beam search of a request. */
void nw_search_start(request *r);

/* Positions of a request's K and V that are there for good in all of its sequences; no pass writes them again. */
size_t nw_request_positions(const nw_session *s, const request *r);

/* Has the draft model, if there is one, guess for the lanes. Errors: as nw_session_step. */
NW_MUST_USE nw_code nw_lanes_guess(nw_session *s, nw_error *err);

/* Lays the columns of the pass to come in s->parts.columns: one for each lane, and what is left of the session's for
 * those that know or guess more of their tokens. Returns how many; 0: no lane is at work. */
size_t nw_lanes_lay(nw_session *s);

/* The pass has given s->parts.logits: every lane takes a token, or several, and those whose request or sequence is done
 * become free. Callbacks may submit and cancel requests. */
void nw_lanes_take(nw_session *s);

#endif

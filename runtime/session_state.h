/* The inside of an nw_session. */
#ifndef NW_RUNTIME_SESSION_STATE_H
#define NW_RUNTIME_SESSION_STATE_H

#include "first_touch.h"
#include "model/draft.h"
#include "pin_choice.h"
#include "plan.h"
#include "team.h"
#include "window.h"

/* WAITING: its ids are here. ENCODED: its cross-attention K and V are. LIVE: it has lanes. */
typedef enum { REQUEST_FREE, REQUEST_WAITING, REQUEST_ENCODED, REQUEST_LIVE } request_state;

typedef struct {
    request_state state;
    uint64_t      id;
    nw_request    ask; /* its id arrays are the caller's and not used after submit */
    uint32_t     *input;
    uint32_t     *given;       /* what its sequences are given of their answers: forced ids, or its choices */
    size_t       *choice_lens; /* [choice_count] */
    nw_model     *model;
    float       **self_table, **cross_table; /* its room for page tables */
    nw_cross      cross;
    bool          cancelled;           /* in the middle of a step: it ends with the pass under way */
    bool          placed[NW_KV_KINDS]; /* it has a place in the stream of K and V: self.place, cross.kv.place */
    nw_kv         self;
    size_t        max_new;
    size_t        width, lanes; /* its sequences; those that are not finished */
    nw_processors processors;
    bool          processed;     /* these, or sampling, make something else of the logits */
    nw_beam      *search;        /* NULL: none */
    double        start_seconds; /* of its encoding */
} request;

/* One sequence being decoded. */
typedef struct {
    request        *owner;    /* NULL: free */
    size_t          branch;   /* its number in the request */
    uint32_t       *ids;      /* [1 + output tokens] the start token, then what was chosen; of beams in their search */
    double         *logprobs; /* [output tokens] */
    size_t          count;    /* chosen; rows of self K and V that are made for good */
    const uint32_t *given;    /* [given_count] what it must begin with */
    size_t          given_count;
    uint32_t        token;            /* of beams: the last one */
    uint16_t       *path, *path_next; /* [output tokens] of beams: whose row each position's is; room for the next */
    size_t          column, columns;  /* it has in the pass under way: the first, how many */

    /* Guessing. */
    uint32_t draft[NW_DRAFT_MAX];
    size_t   match;   /* ids that the draft was found by; 0: there is none; by a model: 1 */
    size_t   drafted; /* tokens in draft, of a model */

    nw_text  text;
    nw_stop *stop; /* NULL: no stop strings */
} lane;

typedef struct nw_draft_model nw_draft_model;

struct nw_session {
    nw_model         *model;
    nw_memory         memory; /* sealed once open */
    nw_blueprint      blueprint;
    nw_parts          parts;
    const nw_kernels *kernels;
    nw_workers       *workers;
    nw_io            *io;
    nw_window         window;
    nw_first_touch    touch; /* of the pins */
    nw_pin_choice     pin_choice;
    void             *arena;
    size_t            arena_bytes;
    atomic_bool       stop;

    request               *requests; /* [request_count] */
    size_t                 request_count;
    lane                  *lanes;   /* [lane_count] */
    nw_draft_model        *draft;   /* NULL: guesses come from prompt lookup */
    bool                   lent;    /* it guesses for another session, which has its pages and stops its passes */
    nw_draft_control       guesses; /* how often they were right, of all lanes: requests of a session are much alike */
    nw_generation_settings greedy;  /* of requests without settings: the session's */
    size_t                 lane_count;
    uint64_t               last_id;
    uint64_t               live_passes, ended; /* of decoding, for each request that had lanes; requests that had */
    bool                   busy;               /* a step, or a pass of another kind: no other begins */
    bool                   in_pass;            /* of a step: its columns refer to requests */
    uint64_t               vector_bytes_read;
    nw_stats               stats; /* what is counted here and not derived */
    const char            *pass_name;
    uint32_t               progress_block;
    void (*progress)(void *user, const nw_stats *stats);
    void  *progress_user;
    double progress_seconds;
};

/* The model's view of the session. */
nw_weights nw_session_weights(nw_session *s);
nw_team    nw_session_team(nw_session *s);

/* Any work of a session lies between enter and leave, or fail; before it, none must be under way.
 * Errors  NW_E_ARG: a callback asks for it. */
NW_MUST_USE nw_code nw_session_check_idle(const nw_session *s, nw_error *err);
void                nw_session_enter(nw_session *s);
void                nw_session_leave(nw_session *s);

/* Says which pass begins and what will probably follow it (NW_PASS_COUNT: nothing). */
void nw_session_begin(nw_session *s, nw_pass pass, nw_pass next);

/* Puts pins where the plan has them; none holds anything. */
void nw_session_place_pins(nw_session *s);

/* Gives the tiles in use back. Errors: NW_E_IO: one of its strips was damaged. */
nw_code nw_session_release_tiles(nw_session *s, nw_error *err);

/* After a pass failed: nothing of it may be used, and all requests are dropped. Returns rc. */
nw_code nw_session_fail(nw_session *s, nw_code rc);

/* NW_E_FORMAT if `values` [count] are all NaN: weights that are no numbers make nothing else, of which a token would be
 * chosen like any other. */
NW_MUST_USE nw_code nw_session_check_numbers(const nw_session *s, const float *values, size_t count, nw_error *err);
NW_MUST_USE nw_code nw_session_check_ids(const nw_session *s, const uint32_t *ids, size_t count, nw_error *err);
void                nw_session_drop_requests(nw_session *s);

/* Whether a request is still in the place it had: a callback may cancel any, and submit others into the places left. */
static inline bool nw_request_is_at(const request *r, uint64_t id)
{
    return r->id == id && r->state != REQUEST_FREE;
}

/* Tells the window whose K and V a decode pass will stream: those of the lanes at work, in their order. */
void nw_session_list_kv(nw_session *s);

/* Gives back all that a request has. */
void nw_request_end(nw_session *s, request *r);

#endif

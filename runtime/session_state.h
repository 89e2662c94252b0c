/* The inside of an nw_session. */
#ifndef NW_RUNTIME_SESSION_STATE_H
#define NW_RUNTIME_SESSION_STATE_H

#include "plan.h"
#include "team.h"
#include "window.h"

typedef enum { REQUEST_FREE, REQUEST_WAITING, REQUEST_LIVE } request_state;

enum { REQUESTS_MAX = 1024 + NW_WAITING_MAX };

typedef struct {
    request_state state;
    uint64_t      id;
    nw_request    ask; /* its id arrays are the caller's and not used after submit */
    uint32_t     *input, *forced;
    size_t        max_new, produced, lane;
    uint32_t      token; /* to feed next */
    double        start_seconds;
} request;

struct nw_session {
    nw_model         *model;
    nw_memory         memory; /* sealed once open */
    nw_blueprint      blueprint;
    nw_parts          parts;
    const nw_kernels *kernels;
    nw_workers       *workers;
    nw_io            *io;
    nw_window         window;
    void             *arena;
    size_t            arena_bytes;
    atomic_bool       stop;

    request *requests; /* [request_count] */
    size_t   request_count;
    bool    *lane_used; /* [lanes] */
    uint64_t last_id;

    uint64_t    vector_bytes_read;
    nw_stats    stats; /* what is counted here and not derived */
    const char *pass_name;
    uint32_t    progress_block;
    void (*progress)(void *user, const nw_stats *stats);
    void  *progress_user;
    double progress_seconds;
};

/* The model's view of the session. */
nw_weights nw_session_weights(nw_session *s);

#endif

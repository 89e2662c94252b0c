/* Where a pass's time goes: sums by kind of work, and a timeline of events in a fixed room.
 *
 * The session's thread says when reads begin and end and when it waits for a tile; pieces of work are timed by the
 * worker that does them. Off, each call is one test. On, a strip takes three looks at the clock.
 */
#ifndef NW_RUNTIME_TRACE_H
#define NW_RUNTIME_TRACE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "model/forward.h"
#include "narrows.h"
#include "team.h"

/* Of one worker, written by it alone. */
typedef struct {
    uint64_t sum_ns[NW_EVENT_COUNT];
    uint64_t begin_ns; /* of what the piece at hand is doing now; 0: nothing that is timed */
    unsigned char apart[64]; /* so that two workers' are on no one cache line */
} nw_trace_worker;

#define NW_TRACE_NO_TENSOR UINT32_MAX

/* A read in flight. */
typedef struct {
    uint64_t tag, begin_ns; /* begin_ns 0: free */
    nw_step  step;
} nw_trace_read;

typedef struct {
    nw_event_kind kind;
    uint32_t      thread; /* the worker; of a read, which of those in flight at once */
    nw_step       step;
    uint64_t      begin_ns, end_ns;
} nw_trace_event;

typedef struct {
    bool             on;
    nw_workers      *workers;
    nw_trace_worker *worker; /* [worker_count] */
    nw_trace_read   *reads;  /* [read_count] */
    nw_trace_event  *events; /* [event_count] */
    size_t           worker_count, read_count, event_count;
    _Atomic size_t   event_next; /* events so far, those that found no room included */
    nw_event_kind    work;       /* of the job at hand */
    nw_step          step;       /* the tile at hand, or the last one; at first NW_TRACE_NO_TENSOR */
    size_t           reading;    /* reads in flight */
    uint64_t         reading_from_ns;          /* since when there is one */
    uint64_t         read_ns, wait_ns, team_ns; /* as in nw_times */
} nw_trace;

/* What a session's options ask for. */
typedef struct {
    bool   on;
    size_t event_count;
} nw_trace_options;

/* Carves the tables; nothing where it is off. reads: the most that are in flight at once. Also used for measuring: the
 * arena may have no base. */
void nw_trace_layout(nw_trace *t, nw_arena *a, const nw_trace_options *o, size_t threads, size_t reads);

/* The session's thread: a read is submitted, and has come; `tag` is one of those in flight. */
void nw_trace_read_begin(nw_trace *t, uint64_t tag, nw_step step);
void nw_trace_read_end(nw_trace *t, uint64_t tag);

/* Nanoseconds of the monotonic clock; 0 where it is off. */
uint64_t nw_trace_now(const nw_trace *t);

/* The session's thread waited for a tile's read since `begin_ns`. */
void nw_trace_waited(nw_trace *t, uint64_t begin_ns, nw_step step);

/* The tile that work is about from now on. */
void nw_trace_tile(nw_trace *t, uint32_t tensor, uint32_t tile);

/* A worker has restored the rows that its piece multiplies: what it does from now on is the product. */
void nw_trace_restored(nw_trace *t, size_t worker);

/* nw_team.run over the workers, timed; `trace` is an nw_trace. */
void nw_trace_run(void *trace, nw_work work, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n);

/* Adds what was summed up to `ret`. */
void nw_trace_times(const nw_trace *t, nw_times *ret);

#endif

/* The worker team: a fixed set of threads that share the pieces of one job at a time. The calling thread is worker 0.
 *
 * Made for many short jobs (a strip takes tens of microseconds): pieces are claimed with one compare-and-swap, workers
 * spin for a moment before they sleep, and a job does not wait for a worker that has claimed nothing.
 */
#ifndef NW_RUNTIME_TEAM_H
#define NW_RUNTIME_TEAM_H

#include "base/memory.h"

typedef struct nw_workers nw_workers;

/* threads >= 1; thread_count - 1 are started, with stacks of 256 KiB. Memory from `mem`, NW_TAG_SESSION. */
NW_MUST_USE nw_code nw_workers_open(nw_memory *mem, size_t thread_count, nw_workers **ret_workers, nw_error *err);
nw_workers *nw_workers_close(nw_workers *workers); /* takes NULL; returns NULL */

size_t nw_workers_count(const nw_workers *workers);

/* Calls fn(ctx, i, worker) once for every i < n, n <= NW_PIECES_MAX, and returns when all are done. The order and the
 * worker of a piece are left to chance: a piece's result must not depend on them. */
#define NW_PIECES_MAX ((size_t)1 << 20)
void nw_workers_run(nw_workers *workers, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n);

#endif

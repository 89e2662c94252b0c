#include "first_touch.h"

enum { CHUNK = 2 << 20 }; /* a huge page of x86-64, and of aarch64 with pages of 4 KiB */

typedef struct {
    const nw_first_touch *touch;
    nw_trace             *trace;
} touch_job;

/* The i-th chunk from `next` on; chunks lie at multiples of their size. */
static void touch_chunk(void *ctx, size_t i, size_t worker)
{
    const touch_job *j = ctx;
    unsigned char   *first = j->touch->next, *end = j->touch->end;
    size_t           to_border = CHUNK - (uintptr_t)first % CHUNK, left = (size_t)(end - first);
    size_t           from = i == 0 ? 0 : to_border + (i - 1) * CHUNK;
    if (from < left)
        nw_memory_populate(first + from, nw_min_size(i == 0 ? to_border : CHUNK, left - from));
    nw_trace_restored(j->trace, worker);
}

void nw_first_touch_some(nw_first_touch *t, nw_workers *workers, nw_trace *trace)
{
    if (t->next == t->end)
        return;
    size_t    count = nw_workers_count(workers);
    touch_job j = {.touch = t, .trace = trace};
    nw_trace_run(trace, NW_WORK_PRODUCT, touch_chunk, &j, count);
    size_t done = CHUNK - (uintptr_t)t->next % CHUNK + (count - 1) * CHUNK;
    t->next += nw_min_size(done, (size_t)(t->end - t->next));
}

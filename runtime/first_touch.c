#include "first_touch.h"

enum { CHUNK = 2 << 20 }; /* a huge page of x86-64, and of aarch64 with pages of 4 KiB */

typedef struct {
    const nw_first_touch *touch;
    nw_trace             *trace;
} touch_job;

/* Where the i-th chunk from `next` on begins; chunks lie at multiples of their size. */
static unsigned char *chunk_at(const nw_first_touch *t, size_t i)
{
    size_t skip = i == 0 ? 0 : i * CHUNK - (uintptr_t)t->next % CHUNK;
    return t->next + nw_min_size(skip, (size_t)(t->end - t->next));
}

static void touch_chunk(void *ctx, size_t i, size_t worker)
{
    const touch_job *j = ctx;
    unsigned char   *from = chunk_at(j->touch, i);
    nw_memory_populate(from, (size_t)(chunk_at(j->touch, i + 1) - from));
    nw_trace_restored(j->trace, worker);
}

void nw_first_touch_some(nw_first_touch *t, nw_workers *workers, nw_trace *trace)
{
    if (t->next == t->end)
        return;
    size_t    count = nw_workers_count(workers);
    touch_job j = {.touch = t, .trace = trace};
    nw_trace_run(trace, NW_WORK_PRODUCT, touch_chunk, &j, count);
    t->next = chunk_at(t, count);
}

void nw_first_touch_until(nw_first_touch *t, const unsigned char *end, nw_workers *workers, nw_trace *trace)
{
    while (t->next < end && t->next < t->end)
        nw_first_touch_some(t, workers, trace);
}

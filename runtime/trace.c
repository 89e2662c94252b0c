#include "trace.h"

#include "system.h"

void nw_trace_layout(nw_trace *t, nw_arena *a, const nw_trace_options *o, size_t threads, size_t reads)
{
    t->on = o->on || o->event_count > 0;
    t->worker_count = t->on ? threads : 0;
    t->read_count = t->on ? reads : 0;
    t->event_count = o->event_count;
    t->step.tensor = NW_TRACE_NO_TENSOR;
    t->worker = nw_carve(a, t->worker_count, sizeof *t->worker, 64);
    t->reads = nw_carve(a, t->read_count, sizeof *t->reads, 64);
    t->events = nw_carve(a, t->event_count, sizeof *t->events, 64);
}

uint64_t nw_trace_now(const nw_trace *t)
{
    return t->on ? nw_system_nanoseconds() : 0;
}

static void add_event(nw_trace *t, nw_event_kind kind, size_t thread, nw_step step, uint64_t begin_ns, uint64_t end_ns)
{
    if (t->event_count == 0)
        return;
    size_t at = atomic_fetch_add_explicit(&t->event_next, 1, memory_order_relaxed);
    if (at >= t->event_count)
        return;
    t->events[at] = (nw_trace_event){
        .kind = kind, .thread = (uint32_t)thread, .step = step, .begin_ns = begin_ns, .end_ns = end_ns};
}

void nw_trace_read_begin(nw_trace *t, uint64_t tag, nw_step step)
{
    if (!t->on)
        return;
    uint64_t now = nw_system_nanoseconds();
    size_t   i = 0;
    while (i < t->read_count && t->reads[i].begin_ns != 0)
        i++;
    NW_CHECK(i < t->read_count);
    t->reads[i] = (nw_trace_read){.tag = tag, .begin_ns = now, .step = step};
    if (t->reading++ == 0)
        t->reading_from_ns = now;
}

void nw_trace_read_end(nw_trace *t, uint64_t tag)
{
    if (!t->on)
        return;
    uint64_t now = nw_system_nanoseconds();
    size_t   i = 0;
    while (i < t->read_count && (t->reads[i].begin_ns == 0 || t->reads[i].tag != tag))
        i++;
    NW_CHECK(i < t->read_count);
    add_event(t, NW_EVENT_READ, i, t->reads[i].step, t->reads[i].begin_ns, now);
    t->reads[i].begin_ns = 0;
    if (--t->reading == 0)
        t->read_ns += now - t->reading_from_ns;
}

void nw_trace_waited(nw_trace *t, uint64_t begin_ns, nw_step step)
{
    if (!t->on)
        return;
    uint64_t now = nw_system_nanoseconds();
    t->wait_ns += now - begin_ns;
    add_event(t, NW_EVENT_WAIT, 0, step, begin_ns, now);
}

void nw_trace_tile(nw_trace *t, uint32_t tensor, uint32_t tile)
{
    t->step = (nw_step){.tensor = tensor, .tile = tile};
}

/* Ends what a worker's piece is doing, as `kind`. */
static uint64_t end_part(nw_trace *t, nw_event_kind kind, size_t worker)
{
    nw_trace_worker *w = &t->worker[worker];
    uint64_t         now = nw_system_nanoseconds();
    w->sum_ns[kind] += now - w->begin_ns;
    add_event(t, kind, worker, t->step, w->begin_ns, now);
    return now;
}

void nw_trace_restored(nw_trace *t, size_t worker)
{
    if (t->on && t->worker[worker].begin_ns != 0)
        t->worker[worker].begin_ns = end_part(t, NW_EVENT_RESTORE, worker);
}

typedef struct {
    nw_trace *trace;
    void (*fn)(void *ctx, size_t i, size_t worker);
    void *ctx;
} timed_job;

static void timed_piece(void *ctx, size_t i, size_t worker)
{
    const timed_job *j = ctx;
    nw_trace_worker *w = &j->trace->worker[worker];
    w->begin_ns = nw_system_nanoseconds();
    j->fn(j->ctx, i, worker);
    end_part(j->trace, j->trace->work, worker);
    w->begin_ns = 0;
}

void nw_trace_run(void *trace, nw_work work, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n)
{
    static const nw_event_kind kinds[] = {
        [NW_WORK_PRODUCT] = NW_EVENT_PRODUCT, [NW_WORK_ATTENTION] = NW_EVENT_ATTENTION, [NW_WORK_NORM] = NW_EVENT_NORM};
    nw_trace *t = trace;
    timed_job j = {.trace = t, .fn = fn, .ctx = ctx};
    if (!t->on) {
        nw_workers_run(t->workers, fn, ctx, n);
        return;
    }
    uint64_t begin_ns = nw_system_nanoseconds();
    t->work = kinds[work];
    nw_workers_run(t->workers, timed_piece, &j, n);
    t->team_ns += nw_system_nanoseconds() - begin_ns;
}

void nw_trace_times(const nw_trace *t, nw_times *ret)
{
    *ret = (nw_times){.on = t->on, .events_kept = t->event_count};
    if (!t->on)
        return;
    uint64_t now = nw_system_nanoseconds();
    size_t   events = atomic_load_explicit(&t->event_next, memory_order_relaxed);
    ret->read = (double)(t->read_ns + (t->reading > 0 ? now - t->reading_from_ns : 0)) * 1e-9;
    ret->waited = (double)t->wait_ns * 1e-9;
    ret->team = (double)t->team_ns * 1e-9;
    for (size_t i = 0; i < t->worker_count; i++) {
        const uint64_t *sum_ns = t->worker[i].sum_ns;
        ret->restore += (double)sum_ns[NW_EVENT_RESTORE] * 1e-9;
        ret->product += (double)sum_ns[NW_EVENT_PRODUCT] * 1e-9;
        ret->attention += (double)sum_ns[NW_EVENT_ATTENTION] * 1e-9;
        ret->norm += (double)sum_ns[NW_EVENT_NORM] * 1e-9;
    }
    if (events < t->event_count)
        ret->events_kept = events;
    else
        ret->events_lost = events - t->event_count;
}

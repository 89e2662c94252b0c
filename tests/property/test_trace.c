/* A session that traces: the answers' bits are those of one that does not, its sums are those of its events, a worker
 * does one thing at a time, and the room for events is the plan's and no more. */
#include "answers.h"

enum { EVENTS = 1 << 16, THREADS = 2 };

static unsigned failures, cases;

static void check(bool ok, const char *what)
{
    cases++;
    if (!ok && failures++ < 20)
        printf("FAILED: %s\n", what);
}

/* What a session with these options answers, and what it says of its time. */
typedef struct {
    uint64_t hash, smallest;
    nw_times times;
    nw_event events[EVENTS];
    size_t   count;
    char     blocks[NW_EVENT_COUNT][32]; /* of the last event of each kind */
} report;

static void run(const subject *s, nw_session_options o, report *r)
{
    nw_error      err = {0};
    nw_model     *model = NULL;
    nw_session   *session = NULL;
    nw_model_info info;
    nw_plan       plan;
    size_t        tokens;
    o.budget_bytes = 256 << 20;
    o.max_input_tokens = s->longest;
    o.max_output_tokens = s->tokens;
    o.threads = THREADS;
    o.force = true;
    r->count = 0;
    NW_CHECK(nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err) == NW_OK);
    nw_model_describe(model, &info);
    NW_CHECK(nw_plan_make(model, &o, &plan, &err) == NW_OK);
    r->smallest = plan.smallest;
    NW_CHECK(nw_session_open(model, &o, &session, &err) == NW_OK);
    NW_CHECK(answer_generate(session, s, 0, info.vocab_size, &r->hash, &tokens, &err) == NW_OK);
    nw_session_times(session, &r->times);
    while (r->count < EVENTS && nw_session_event(session, r->count, &r->events[r->count])) {
        nw_event *e = &r->events[r->count++];
        check(e->tensor == NULL || e->block[0] != '\0', "a tensor is of no block");
        check(e->tensor != NULL || e->kind == NW_EVENT_NORM, "work on no tensor");
        memcpy(r->blocks[e->kind], e->block, sizeof e->block);
        e->tensor = NULL; /* the model's, which is closed before the events are looked at */
    }
    nw_session_close(session);
    nw_model_close(model);
}

static int by_begin(const void *a, const void *b)
{
    const nw_event *x = a, *y = b;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns ? 1 : 0;
}

static bool is_near(double a, double b) { return a - b < 1e-6 && b - a < 1e-6; }

static double sum_of(const report *r, nw_event_kind kind)
{
    uint64_t ns = 0;
    for (size_t i = 0; i < r->count; i++)
        ns += r->events[i].kind == kind ? r->events[i].end_ns - r->events[i].begin_ns : 0;
    return (double)ns * 1e-9;
}

/* Time with a read in flight, and whether anything overlaps on the track of a worker; events are sorted. */
static double walk(const report *r)
{
    uint64_t busy_ns = 0, read_until = 0, until[THREADS] = {0};
    for (size_t i = 0; i < r->count; i++) {
        const nw_event *e = &r->events[i];
        check(e->begin_ns > 0 && e->begin_ns <= e->end_ns, "an event ends before it begins");
        if (e->kind == NW_EVENT_READ) {
            uint64_t from = e->begin_ns > read_until ? e->begin_ns : read_until;
            busy_ns += e->end_ns > from ? e->end_ns - from : 0;
            read_until = e->end_ns > read_until ? e->end_ns : read_until;
            continue;
        }
        NW_CHECK(e->thread < THREADS);
        check(e->begin_ns >= until[e->thread], "a worker does two things at once");
        until[e->thread] = e->end_ns;
    }
    return (double)busy_ns * 1e-9;
}

static void test_events(report *r)
{
    check(r->times.on && r->times.events_kept == r->count && r->times.events_lost == 0, "events are missing");
    check(is_near(sum_of(r, NW_EVENT_RESTORE), r->times.restore), "sum of restoring");
    check(is_near(sum_of(r, NW_EVENT_PRODUCT), r->times.product), "sum of products");
    check(is_near(sum_of(r, NW_EVENT_ATTENTION), r->times.attention), "sum of attention");
    check(is_near(sum_of(r, NW_EVENT_NORM), r->times.norm), "sum of norms");
    check(is_near(sum_of(r, NW_EVENT_WAIT), r->times.waited), "sum of waits");
    for (int kind = 0; kind < NW_EVENT_COUNT; kind++)
        check(r->blocks[kind][0] != '\0', "a kind has no events");
    check(strcmp(r->blocks[NW_EVENT_PRODUCT], "head") == 0, "the last product is not the head's");
    qsort(r->events, r->count, sizeof r->events[0], by_begin);
    check(is_near(walk(r), r->times.read), "time with a read in flight");
    double busy = r->times.restore + r->times.product + r->times.attention + r->times.norm;
    check(busy <= THREADS * r->times.team + 1e-6, "workers are busy outside of jobs");
}

/* Tiles of the decoder, or of its K and V, that were being read at once at most. */
static size_t deepest(const report *r)
{
    size_t deepest = 0;
    for (size_t i = 0; i < r->count; i++) {
        size_t reads = 0;
        for (size_t k = 0; k < r->count; k++) {
            const nw_event *e = &r->events[k];
            reads += e->kind == NW_EVENT_READ && strncmp(e->block, "decoder", 7) == 0 &&
                     e->begin_ns <= r->events[i].begin_ns && r->events[i].begin_ns < e->end_ns;
        }
        deepest = reads > deepest ? reads : deepest;
    }
    return deepest;
}

static void test_depth(const subject *s, report *r)
{
    nw_session_options o = {.pins_off = true, .trace_events = EVENTS, .trace = true, .queue_depth = 1};
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        o.kv_on_disk = on_disk;
        run(s, o, r);
        check(deepest(r) == 1, "more reads at once than the queue's depth");
    }
    o.queue_depth = 0;
    run(s, o, r);
    check(deepest(r) > 1, "reads at once are not seen");
}

int main(void)
{
    static report r; /* large */
    subject       s = {.name = "numbers-t5", .tokens = 4};
    snprintf(s.dir, sizeof s.dir, "%s/numbers-t5", NW_TEST_DATA);
    subject_add(&s, 12, 768, 1);

    nw_session_options o = {.pins_off = true};
    run(&s, o, &r);
    uint64_t want = r.hash, smallest = r.smallest;
    check(!r.times.on && r.count == 0 && is_near(r.times.product + r.times.read, 0), "traced without being asked");
    o.trace = true;
    run(&s, o, &r);
    check(r.hash == want, "sums change the answer");
    check(r.times.on && r.times.product > 0 && r.times.read > 0 && r.count == 0, "no sums, or events without room");
    o.trace = false;
    o.prefetch_off = true; /* every tile is waited for */
    o.trace_events = EVENTS;
    for (unsigned depth = 0; depth <= 2; depth++) {
        o.queue_depth = depth;
        run(&s, o, &r);
        check(r.hash == want, "events or the queue's depth change the answer");
        check(r.smallest > smallest + EVENTS * 8, "the plan does not count the room for events");
        test_events(&r);
    }
    test_depth(&s, &r);
    o.trace_events = 5;
    run(&s, o, &r);
    check(r.count == 5 && r.times.events_kept == 5 && r.times.events_lost > 0, "a room that is full");
    check(r.hash == want, "a room that is full changes the answer");
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

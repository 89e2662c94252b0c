/* bench: how long each token takes, where that time goes, and how far it is from what the disk and the memory allow.
 * Passes that only read the same tiles by the same reader alternate with real ones, so that the machine's noise hits
 * both alike; what is quoted is the median over neighbouring pairs. Prompt and answer are made up: ids drawn from a
 * fixed seed, and the answer is forced, so that it has the length that was asked for whatever the model would say. */
#include "commands.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_report.h"
#include "budget.h"
#include "buffer.h"
#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "timeline.h"

enum { KEY_INPUT = 512, KEY_REPEAT, KEY_EMBED, KEY_TRACE, KEY_TRACE_EVENTS };
enum { TOKENS_USUAL = 32, PASSES_MIN = 3, EVENT_BYTES = 32, EVENTS_USUAL = 1 << 18, EVENTS_MOST = 1 << 26 };
enum { EVENTS_SHARE = 16 }; /* of the budget, at most */

typedef struct {
    options     common;
    size_t      input_tokens, repeat, events;
    const char *trace;
} bench_options;

typedef struct {
    bench_options o;
    nw_model     *model;
    nw_session   *session;
    FILE         *timeline;
    buffer        ids; /* the prompt's, then the answer's */
    bench_report  report;
    int           status;
} bench;

/* ---- options
 * ---------------------------------------------------------------------------------------------------------- */

static const struct argp_option bench_argp_options[] = {
    {0, 0, 0, 0, "What is run:", 2},
    {"input-tokens", KEY_INPUT, "N", 0, "Tokens of the prompt, which is made up (default 32)", 2},
    {"repeat", KEY_REPEAT, "N", 0, "Prompts, one after another (default 1)", 2},
    {"embed", KEY_EMBED, 0, 0, "Encode, not run: -n texts of so many tokens (default 32)", 2},
    {"trace", KEY_TRACE, "FILE", 0,
     "Write a timeline of reads, decodes, products and waits to FILE, for Perfetto or chrome://tracing; no pass that "
     "only reads is then made in between",
     6},
    {"trace-events", KEY_TRACE_EVENTS, "N", 0,
     "The most events that it holds, 32 bytes each of the budget (default 262144, or what a sixteenth of the budget "
     "holds)",
     6},
    {0},
};

static error_t parse_number(bench_options *o, const char *option, const char *arg, uint64_t max, size_t *ret)
{
    uint64_t value;
    if (!options_number(arg, 1, max, &value))
        return options_fail(&o->common, "%s: '%s' is not a number from 1 to %llu", option, arg,
                            (unsigned long long)max);
    *ret = (size_t)value;
    return 0;
}

static error_t check_options(bench_options *o)
{
    nw_session_options *session = &o->common.session;
    if (o->common.model == NULL)
        return options_fail(&o->common, "no model: -m MODEL is missing");
    if (session->max_output_tokens == 0)
        session->max_output_tokens = TOKENS_USUAL;
    if (session->max_output_tokens < PASSES_MIN)
        return options_fail(&o->common, "-n: at least %d: the first pass and the last are not like the others",
                            PASSES_MIN);
    if (session->max_output_tokens * o->repeat > MEASURE_MAX)
        return options_fail(&o->common, "at most %d passes are measured: a smaller -n or --repeat", MEASURE_MAX);
    if (session->max_input_tokens < o->input_tokens)
        session->max_input_tokens = o->input_tokens;
    if (o->events != 0 && o->trace == NULL)
        return options_fail(&o->common, "--trace-events needs --trace");
    return 0;
}

static error_t parse_bench(int key, char *arg, struct argp_state *state)
{
    bench_options *o = (bench_options *)state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        for (size_t i = 0; i < 3; i++)
            state->child_inputs[i] = &o->common;
        return 0;
    case KEY_INPUT: return parse_number(o, "--input-tokens", arg, (uint64_t)1 << 20, &o->input_tokens);
    case KEY_REPEAT: return parse_number(o, "--repeat", arg, MEASURE_MAX, &o->repeat);
    case KEY_EMBED: o->common.session.encode_only = true; return 0;
    case KEY_TRACE: o->trace = arg; return 0;
    case KEY_TRACE_EVENTS: return parse_number(o, "--trace-events", arg, EVENTS_MOST, &o->events);
    case ARGP_KEY_ARG:
        if (o->common.model != NULL)
            return options_fail(&o->common, "more than one model: '%s'", arg);
        o->common.model = arg;
        return 0;
    case ARGP_KEY_END: return check_options(o);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0}, {&options_session_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

static const struct argp bench_argp = {
    .options = bench_argp_options,
    .parser = parse_bench,
    .args_doc = "[MODEL]",
    .doc = "Measures a model under a budget: the time to the first token and for each later one, where it goes "
           "(reading, decoding packed weights, multiplying, attention, waiting), and beside it what the disk and the "
           "memory alone would take. Needs no prompt and no tokenizer."
           "\vWithout -n the answer has 32 tokens.\n\n"
           "Examples:\n"
           "  narrows bench -m flan-t5-xl -b 1G\n"
           "  narrows bench -m flan-t5-xl -b 1G -n 4 --trace timeline.json\n"
           "  narrows bench -m flan-t5-xl -b 1G --queue-depth 2 --window 32M",
    .children = children,
};

/* ---- passes
 * ----------------------------------------------------------------------------------------------------------- */

static double now_seconds(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct {
    nw_times times;
    nw_stats stats;
    double   start;
} before;

static before look(const bench *b)
{
    before w;
    nw_session_times(b->session, &w.times);
    nw_session_stats(b->session, &w.stats);
    w.start = now_seconds();
    return w;
}

/* What has passed since; bytes without the embedding's rows, which depend on the ids. */
static pass_sample since(const bench *b, const before *w)
{
    pass_sample s = {.seconds = now_seconds() - w->start};
    nw_times    times;
    nw_stats    stats;
    nw_session_times(b->session, &times);
    nw_session_stats(b->session, &stats);
    uint64_t rows = stats.embedding_rows_read - w->stats.embedding_rows_read;
    s.kv_bytes = stats.kv_bytes_read - w->stats.kv_bytes_read;
    uint64_t read = stats.bytes_read - w->stats.bytes_read - s.kv_bytes;
    uint64_t of_rows = rows * b->report.plan.read.embedding_row;
    s.bytes = read > of_rows ? read - of_rows : 0; /* a row at a file's end may be a shorter read */
    s.parts = measure_parts(&w->times, &times, s.seconds, stats.threads);
    return s;
}

/* Keeps a pass, with one that only reads and a look at the memory's rate beside it. */
static nw_code keep(bench *b, pass_sample s, nw_error *err)
{
    uint64_t bytes;
    nw_code  rc = NW_OK;
    if (b->o.trace == NULL)
        rc = nw_session_read_pass(b->session, &bytes, &s.read_only, err);
    s.memory_rate = nw_session_memory_rate(b->session);
    if (rc == NW_OK && b->report.count < MEASURE_MAX)
        b->report.samples[b->report.count++] = s;
    return rc;
}

/* One prompt. The first pass is the first token's; the last one reads nothing ahead for another, so it is not kept. */
static nw_code answer(bench *b, bool first, nw_error *err)
{
    const nw_session_options *o = &b->o.common.session;
    const uint32_t           *ids = b->ids.data;
    nw_request                q = {.input_ids = ids,
                                   .input_count = b->o.input_tokens,
                                   .forced_ids = ids + b->o.input_tokens,
                                   .forced_count = o->max_output_tokens};
    uint64_t                  id;
    size_t                    live = 1;
    nw_code                   rc = nw_session_submit(b->session, &q, &id, err);
    before                    w = look(b);
    if (rc == NW_OK)
        rc = nw_session_step(b->session, &live, err);
    if (rc == NW_OK && first) {
        nw_stats stats;
        nw_session_stats(b->session, &stats);
        b->report.first = since(b, &w);
        b->report.seconds_encode = stats.seconds_encode;
    } else if (rc == NW_OK) {
        b->report.seconds_first_again += since(b, &w).seconds / (double)(b->o.repeat - 1);
    }
    while (rc == NW_OK && live > 0) {
        w = look(b);
        rc = nw_session_step(b->session, &live, err);
        pass_sample s = since(b, &w);
        if (rc == NW_OK && live > 0)
            rc = keep(b, s, err);
    }
    return rc;
}

/* Texts, one after another: in a session that only encodes. */
static nw_code encode(bench *b, bool first, nw_error *err)
{
    nw_code rc = NW_OK;
    size_t  texts = b->o.common.session.max_output_tokens;
    for (size_t i = 0; i < texts && rc == NW_OK; i++) {
        nw_encode_request q = {.ids = b->ids.data, .count = b->o.input_tokens, .more = i + 1 < texts};
        const float      *states;
        before            w = look(b);
        rc = nw_session_encode_many(b->session, &q, 1, &states, err);
        pass_sample s = since(b, &w);
        if (rc == NW_OK && i == 0 && first)
            b->report.first = s;
        else if (rc == NW_OK && i > 0 && q.more)
            rc = keep(b, s, err);
    }
    return rc;
}

/* The disk's own rate where nothing is read again and again: one pass over the tiles in a session that keeps none. */
static nw_code probe_disk(bench *b, nw_error *err)
{
    nw_session_options o = b->o.common.session;
    nw_session        *session = NULL;
    uint64_t           bytes = 0;
    double             seconds = 0;
    if (b->report.plan.read.next_pass > 0 || b->o.trace != NULL)
        return NW_OK;
    o.pins_off = true;
    nw_code rc = nw_session_open(b->model, &o, &session, err);
    if (rc == NW_OK)
        interrupt_watch(session);
    if (rc == NW_OK)
        rc = nw_session_read_pass(session, &bytes, &seconds, err);
    interrupt_watch(NULL);
    nw_session_close(session);
    b->report.probed_rate = seconds > 0 ? (double)bytes / seconds : 0;
    return rc;
}

/* ---- together ---- */

/* Ids as a checkpoint's own have, but for its special ones. */
static int draw_ids(bench *b)
{
    size_t   count = b->o.input_tokens + b->o.common.session.max_output_tokens;
    uint64_t state = 1, vocab = b->report.info.vocab_size, special = vocab > 8 ? 3 : 0;
    if (!buffer_reserve(&b->ids, count * sizeof(uint32_t), SIZE_MAX)) {
        print_error("out of memory");
        return EXIT_INTERNAL;
    }
    uint32_t *ids = b->ids.data;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (uint32_t)(special + (state >> 33) % (vocab - special));
    }
    ids[b->o.input_tokens - 1] = b->report.info.eos_id;
    return -1;
}

static nw_code measure(bench *b, nw_error *err)
{
    nw_code rc = nw_plan_make(b->model, &b->o.common.session, &b->report.plan, err);
    if (rc == NW_OK)
        rc = probe_disk(b, err);
    if (rc == NW_OK)
        rc = nw_session_open(b->model, &b->o.common.session, &b->session, err);
    if (rc != NW_OK)
        return rc;
    interrupt_watch(b->session);
    for (size_t i = 0; i < b->o.repeat && rc == NW_OK; i++)
        rc = b->report.plan.encode_only ? encode(b, i == 0, err) : answer(b, i == 0, err);
    interrupt_watch(NULL);
    nw_session_stats(b->session, &b->report.stats);
    nw_session_plan(b->session, &b->report.plan);
    return rc;
}

static void set_trace(bench_options *o)
{
    nw_session_options *session = &o->common.session;
    size_t              most = (size_t)(session->budget_bytes / EVENTS_SHARE / EVENT_BYTES);
    session->trace = true;
    if (o->trace == NULL)
        return;
    session->trace_events = o->events != 0 ? o->events : EVENTS_USUAL < most ? EVENTS_USUAL : most;
}

static int run_bench(bench *b)
{
    nw_error err = {0};
    nw_model_describe(b->model, &b->report.info);
    b->report.model = b->o.common.model;
    b->report.input_tokens = b->o.input_tokens;
    b->report.output_tokens = b->o.common.session.max_output_tokens;
    b->report.repeat = b->o.repeat;
    set_trace(&b->o);
    int status = draw_ids(b);
    if (status == -1 && b->o.trace != NULL && (b->timeline = timeline_open(b->o.trace)) == NULL)
        status = EXIT_IO;
    if (status != -1)
        return status;
    nw_code rc = measure(b, &err);
    status = b->session != NULL ? timeline_write(b->timeline, b->o.trace, b->session) : -1;
    if (rc != NW_OK)
        return print_failure(&err);
    if (status == -1)
        bench_report_print(&b->report, b->o.common.json);
    return status;
}

int command_bench(int argc, char **argv)
{
    static bench b; /* its samples are large, and touched only as they come */
    b.o = (bench_options){.common.name = "narrows bench", .input_tokens = TOKENS_USUAL, .repeat = 1};
    int status = options_parse(&bench_argp, argc, argv, &b.o.common, &b.o);
    if (status != -1)
        return status;
    interrupt_setup();
    status = options_budget(&b.o.common);
    if (status == -1)
        status = options_open_model(&b.o.common, &b.model);
    if (status == -1)
        status = run_bench(&b);
    status = budget_end(b.session, &b.o.common, status, progress_summary);
    nw_session_close(b.session);
    nw_model_close(b.model);
    buffer_free(&b.ids);
    return print_finish(status);
}

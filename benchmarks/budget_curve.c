/* The budget curve: one model under several budgets, a CSV row each, beside the disk's and the memory's own rates.
 *
 *   budget_curve MODEL BUDGET ... [--input N] [--output N] [--threads N] [--io uring|threads]
 *
 * Each budget runs in a process of its own, so that its peak is its own. After the first token, real decode passes
 * alternate with read-only ones (the same tiles in the same order by the same reader, nothing computed): the machine's
 * noise hits both alike, and what is quoted is the median of the ratios of neighbouring pairs. Weights go past the page
 * cache, so no cache needs dropping.
 */
#include "bench.h"
#include "narrows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASSES_MAX = 1024, BUDGETS_MAX = 64 };

typedef struct {
    const char        *model;
    uint64_t           budgets[BUDGETS_MAX];
    size_t             budget_count;
    size_t             input, output;
    nw_session_options session;
} options;

typedef struct {
    double real[PASSES_MAX], read[PASSES_MAX], ratio[PASSES_MAX], memory[PASSES_MAX];
    size_t count;
} timings;

/* Steps until the request is done, a read-only pass and a memory reading beside each pass after the first. */
static nw_code measure(nw_session *s, const nw_request *q, timings *t, nw_error *err)
{
    uint64_t id, bytes;
    size_t   live = 1;
    nw_code  rc = nw_session_submit(s, q, &id, err);
    if (rc == NW_OK)
        rc = nw_session_step(s, &live, err);
    while (rc == NW_OK && live > 0 && t->count < PASSES_MAX) {
        double start = nw_bench_seconds();
        rc = nw_session_step(s, &live, err);
        t->real[t->count] = nw_bench_seconds() - start;
        if (rc == NW_OK && live > 0) /* the last pass reads nothing ahead: not a pair */
            rc = nw_session_read_pass(s, &bytes, &t->read[t->count], err);
        if (rc == NW_OK && live > 0) {
            t->ratio[t->count] = t->real[t->count] / t->read[t->count];
            t->memory[t->count] = nw_session_memory_rate(s);
            t->count++;
        }
    }
    return rc;
}

static void print_row(const options *o, const nw_plan *p, const nw_model_info *info, const nw_session *s, timings *t)
{
    nw_stats st;
    nw_session_stats(s, &st);
    double real = nw_bench_median(t->real, t->count), read = nw_bench_median(t->read, t->count);
    double memory = nw_bench_median(t->memory, t->count);
    /* Where nothing is read, the limit is the memory's rate, not an empty pass. */
    double ratio = p->read.next_pass > 0 ? nw_bench_median(t->ratio, t->count) : 0;
    double memory_limit = memory > 0 ? (double)info->decode_bytes / memory : 0;
    printf("%s,%llu,%llu,%zu,%zu,%u,%s,%s,%llu,%llu,%.4f,%.4f,%.4f,%.3f,%.2f,%.2f,%.4f,%.3f,%zu\n", o->model,
           (unsigned long long)p->budget, (unsigned long long)st.peak_rss_bytes, o->input, o->output, st.threads, st.io,
           st.kernels, (unsigned long long)p->read.next_pass, (unsigned long long)st.bytes_read, st.seconds_first_token,
           real, read, ratio, read > 0 ? (double)p->read.next_pass / read * 1e-9 : 0, memory * 1e-9, memory_limit,
           memory_limit > 0 ? real / memory_limit : 0, t->count);
}

static nw_code run(const options *o, uint64_t budget, nw_error *err)
{
    static timings     t;
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_session_options so = o->session;
    nw_plan            plan;
    nw_model_info      info;
    uint32_t          *ids = malloc(o->input * sizeof *ids);
    nw_process_setup();
    so.budget_bytes = budget;
    so.max_input_tokens = o->input;
    so.max_output_tokens = o->output;
    nw_code rc = nw_model_open(&(nw_model_options){.path = o->model, .budget_bytes = budget}, &model, err);
    if (rc == NW_OK)
        rc = nw_plan_make(model, &so, &plan, err);
    if (rc == NW_OK)
        rc = nw_session_open(model, &so, &session, err);
    if (rc == NW_OK) {
        nw_model_describe(model, &info);
        for (size_t i = 0; i < o->input; i++)
            ids[i] = i + 1 == o->input ? info.eos_id : (uint32_t)(3 + i * 7 % (info.vocab_size - 3));
        nw_request q = {.input_ids = ids, .input_count = o->input};
        rc = measure(session, &q, &t, err);
    }
    if (rc == NW_OK)
        print_row(o, &plan, &info, session, &t);
    nw_session_close(session);
    nw_model_close(model);
    free(ids);
    return rc;
}

/* One budget in a process of its own; 0 if all went well. */
static int run_apart(const options *o, uint64_t budget)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        nw_error err = {0};
        nw_code  rc = run(o, budget, &err);
        if (rc != NW_OK)
            fprintf(stderr, "budget_curve: %s\n", err.msg);
        fflush(stdout);
        _exit(rc == NW_OK ? 0 : 1);
    }
    int status = 1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.input = 32, .output = 32};
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--input") == 0 && value)
            o->input = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--output") == 0 && value)
            o->output = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0 && value)
            o->session.threads = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--io") == 0 && value)
            o->session.io = strcmp(argv[++i], "threads") == 0 ? NW_READ_THREADS : NW_READ_URING;
        else if (o->model == NULL)
            o->model = argv[i];
        else if (o->budget_count == BUDGETS_MAX || !nw_bytes_parse(argv[i], &o->budgets[o->budget_count++]))
            return false;
    }
    return o->model != NULL && o->budget_count > 0 && o->input > 0 && o->output > 2;
}

int main(int argc, char **argv)
{
    options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: budget_curve MODEL BUDGET ... [--input N] [--output N] [--threads N] [--io uring|threads]\n");
        return 2;
    }
    printf("model,budget,peak,input_tokens,output_tokens,threads,io,kernels,bytes_per_token,bytes_read,"
           "seconds_first_token,"
           "seconds_per_token,seconds_read_pass,ratio_to_read_pass,disk_gb_per_second,memory_gb_per_second,"
           "seconds_memory_limit,ratio_to_memory_limit,pairs\n");
    int status = 0;
    for (size_t i = 0; i < o.budget_count; i++)
        status |= run_apart(&o, o.budgets[i]);
    return status;
}

/* Sessions under budgets: checks that are counted and told with the model and the budget, the refusal below the
 * smallest budget, plans of many budgets, and runs in a child of their own, so that a peak is of that run alone. */
#ifndef NW_TEST_BUDGET_CASES_H
#define NW_TEST_BUDGET_CASES_H

#include "answers.h"
#include "child.h"
#include "many_tiles.h"
#include "temp_dir.h"
#include "tensor_files.h"

static unsigned failures, cases;

static inline void check(bool ok, const subject *s, uint64_t budget, const char *what, uint64_t have, uint64_t want)
{
    cases++;
    if (ok)
        return;
    failures++;
    printf("FAILED %s, budget %llu: %s: %llu, not %llu\n", s->name, (unsigned long long)budget, what,
           (unsigned long long)have, (unsigned long long)want);
}

/* ---- children ---- */

typedef void (*budget_run)(const subject *s, uint64_t budget);

typedef struct {
    budget_run     run;
    const subject *s;
    uint64_t       budget;
} budget_case;

static inline int budget_case_run(void *user)
{
    const budget_case *c = (const budget_case *)user;
    failures = 0;
    c->run(c->s, c->budget);
    fflush(stdout);
    return failures > 0;
}

/* Any number of failures there is one here. */
static inline void run_in_child(budget_run run, const subject *s, uint64_t budget)
{
    budget_case c = {run, s, budget};
    fflush(stdout);
    if (in_child(budget_case_run, &c) != 0)
        failures++;
    cases++;
}

/* ---- budgets ---- */

/* A budget, in the options, that is below the smallest: refused, with the one that works. */
static inline void check_refusal(const subject *s, const nw_session_options *o, uint64_t smallest)
{
    nw_error    err = {0};
    nw_model   *model = NULL;
    nw_session *session = NULL;
    nw_code     rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err);
    check(rc == NW_OK, s, smallest, err.msg, (uint64_t)rc, NW_OK);
    rc = nw_session_open(model, o, &session, &err);
    check(rc == NW_E_BUDGET && session == NULL, s, o->budget_bytes, "refusal", (uint64_t)rc, NW_E_BUDGET);
    check(err.bytes_needed == smallest, s, o->budget_bytes, "what a refusal names", err.bytes_needed, smallest);
    nw_model_close(model);
}

/* What a run under a budget opens. */
typedef struct {
    nw_model   *model;
    nw_session *session;
    nw_plan     plan;
} budgeted;

/* In a process of its own; false, and a failure, if anything cannot be opened. */
static inline bool open_under_budget(const subject *s, const nw_session_options *o, budgeted *ret)
{
    nw_error err = {0};
    *ret = (budgeted){0};
    nw_process_setup();
    nw_code rc = nw_model_open(&(nw_model_options){.path = s->dir, .budget_bytes = o->budget_bytes}, &ret->model, &err);
    if (rc == NW_OK)
        rc = nw_plan_make(ret->model, o, &ret->plan, &err);
    if (rc == NW_OK)
        rc = nw_session_open(ret->model, o, &ret->session, &err);
    check(rc == NW_OK, s, o->budget_bytes, err.msg, (uint64_t)rc, NW_OK);
    return rc == NW_OK;
}

/* What is accounted, and the peak, stay below the budget. */
static inline void check_within(const subject *s, uint64_t budget, const nw_stats *stats)
{
    check(stats->accounted_bytes <= budget, s, budget, "accounted bytes", stats->accounted_bytes, budget);
#ifndef NW_SANITIZED
    check(nw_process_peak() <= budget, s, budget, "peak", nw_process_peak(), budget);
#endif
}

typedef void (*budget_visit)(const subject *s, nw_model *model, const nw_session_options *o, const nw_plan *plan);

/* The plans of 401 budgets, from the smallest to `beyond` bytes above all resident: more budget never reads more, and
 * all resident reads nothing. Plans cost nothing, runs do: every `stride`th is visited. */
static inline void check_plans(const subject *s, nw_model *model, nw_session_options o, const nw_plan *any,
                               uint64_t beyond, unsigned stride, budget_visit visit)
{
    nw_error err = {0};
    nw_plan  plan, last = {0};
    uint64_t smallest = any->smallest, all = any->budget_all_resident;
    uint64_t step = (all + beyond - smallest) / 400 + 1;
    for (unsigned i = 0; i <= 400; i++) {
        o.budget_bytes = smallest + i * step;
        check(nw_plan_make(model, &o, &plan, &err) == NW_OK, s, o.budget_bytes, err.msg, 0, 0);
        /* Where K and V of the encoder come into memory, pins leave it: never for more than 2 % more to read. */
        uint64_t read = plan.read.next_pass + plan.read.kv, before = last.read.next_pass + last.read.kv;
        uint64_t slack = plan.kv_on_disk != last.kv_on_disk ? before / 50 : 0;
        check(i == 0 || read <= before + slack, s, o.budget_bytes, "more budget reads more", read, before);
        check(o.budget_bytes < all || plan.read.next_pass == 0, s, o.budget_bytes, "budget_all_resident, bytes a pass",
              plan.read.next_pass, 0);
        last = plan;
        if (i % stride == 0)
            visit(s, model, &o, &plan);
    }
}

/* ---- models ---- */

/* A golden case, or numbers-t5, and two prompts. */
static inline subject subject_of(const char *name, size_t tokens)
{
    subject s = {.name = name, .tokens = tokens};
    bool    numbers = strcmp(name, "numbers-t5") == 0;
    golden_dir(name, s.dir);
    subject_add(&s, numbers ? 18 : 9, numbers ? 640 : 200, 1);
    subject_add(&s, numbers ? 10 : 20, numbers ? 640 : 200, 2);
    return s;
}

/* Written into `dir`, and two prompts. */
static inline subject subject_many_tiles(const temp_dir *dir, bool tied, size_t tokens)
{
    subject   s = {.name = tied ? "many tiles, tied" : "many tiles", .tokens = tokens};
    temp_path path = temp_dir_path(dir, tied ? "tied" : "own-head");
    many_tiles_write(path.text, tied, 5);
    snprintf(s.dir, sizeof s.dir, "%s", path.text);
    subject_add(&s, 20, MANY_TILES_VOCAB, 1);
    subject_add(&s, 7, MANY_TILES_VOCAB, 2);
    return s;
}

#endif

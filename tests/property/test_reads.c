/* Promises 1 and 3: a run reads exactly what the plan says, more budget never reads more, and the peak stays below the
 * budget, from the smallest budget that works (one page less is refused, naming it) to all resident, where later passes
 * read nothing. Each case runs in a child of its own, so that its peak is its own.
 */
#include "answers.h"
#include "many_tiles.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <sys/wait.h>
#include <unistd.h>

static unsigned failures, cases;

static void check(bool ok, const subject *s, uint64_t budget, const char *what, uint64_t have, uint64_t want)
{
    cases++;
    if (ok)
        return;
    failures++;
    printf("FAILED %s, budget %llu: %s: %llu, not %llu\n", s->name, (unsigned long long)budget, what,
           (unsigned long long)have, (unsigned long long)want);
}

static nw_session_options options(const subject *s, uint64_t budget)
{
    return (nw_session_options){.budget_bytes = budget,
                                .max_input_tokens = s->longest,
                                .max_output_tokens = s->tokens,
                                .threads = 2,
                                .force = true};
}

static uint64_t prompt_bytes(const nw_plan *p, bool first, size_t tokens, bool ended_early)
{
    uint64_t bytes = p->read.encode + p->read.cross;
    bytes += first ? p->read.first_pass : p->read.next_pass + p->read.refill;
    bytes += (tokens - 1) * p->read.next_pass;
    return bytes + (ended_early ? p->read.ahead : 0);
}

/* One budget: two prompts in a session, byte for byte as planned, and the peak. */
static void run_budget(const subject *s, uint64_t budget)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_plan            plan;
    nw_stats           stats;
    nw_session_options o = options(s, budget);
    nw_process_setup();
    nw_code rc = nw_model_open(&(nw_model_options){.path = s->dir, .budget_bytes = budget}, &model, &err);
    if (rc == NW_OK)
        rc = nw_plan_make(model, &o, &plan, &err);
    if (rc == NW_OK)
        rc = nw_session_open(model, &o, &session, &err);
    check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
    if (rc != NW_OK)
        return;
    uint64_t want = plan.read.open + plan.read.tokenizer + plan.read.vectors;
    for (size_t i = 0; i < 2; i++) {
        uint32_t   ids[64];
        nw_request q = answer_request(s, i, NULL);
        nw_result  r = {.ids = ids};
        q.on_token = NULL;
        rc = nw_session_generate(session, &q, &r, &err);
        nw_session_stats(session, &stats);
        check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
        want += prompt_bytes(&plan, i == 0, r.count, r.finish == NW_FINISH_EOS && r.count < s->tokens);
        uint64_t have = stats.bytes_read - stats.embedding_rows_read * plan.read.embedding_row;
        check(have == want, s, budget, "bytes read but for rows", have, want);
    }
    check(stats.accounted_bytes <= budget, s, budget, "accounted bytes", stats.accounted_bytes, budget);
#ifndef NW_SANITIZED
    check(nw_process_peak() <= budget, s, budget, "peak", nw_process_peak(), budget);
#endif
    if (plan.embedding_resident) {
        check(plan.read.next_pass == 0, s, budget, "all resident, bytes a pass", plan.read.next_pass, 0);
        size_t     live = 1;
        uint64_t   id, before = 0;
        nw_request q = answer_request(s, 0, NULL);
        q.on_token = NULL;
        rc = nw_session_submit(session, &q, &id, &err);
        for (size_t step = 0; rc == NW_OK && live > 0; step++) {
            rc = nw_session_step(session, &live, &err);
            nw_session_stats(session, &stats);
            check(step == 0 || stats.bytes_read == before, s, budget, "all resident, later pass", stats.bytes_read,
                  before);
            before = stats.bytes_read;
        }
    }
    nw_session_close(session);
    nw_model_close(model);
}

/* ---- the disk's timing ---- */

typedef struct {
    uint64_t bytes, rows;
} reads;

/* Three prompts submitted at once, on a device with delays of its own. */
static reads run_delayed(const subject *s, uint64_t budget, size_t lanes, uint64_t seed)
{
    nw_io_fake         fake = {.seed = seed, .delay_max = (uint32_t)(seed % 9)};
    nw_hooks           hooks = {.io = &fake};
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_stats           stats = {0};
    nw_session_options o = options(s, budget);
    size_t             live = 1;
    o.max_lanes = lanes;
    nw_code rc = nw_model_open(&(nw_model_options){.path = s->dir, .hooks = &hooks}, &model, &err);
    if (rc == NW_OK)
        rc = nw_session_open(model, &o, &session, &err);
    for (size_t i = 0; i < 3 && rc == NW_OK; i++) {
        uint64_t   id;
        nw_request q = answer_request(s, i % s->prompt_count, NULL);
        q.on_token = NULL;
        q.max_new_tokens = s->tokens - i % 2; /* lanes end at different passes */
        rc = nw_session_submit(session, &q, &id, &err);
    }
    while (rc == NW_OK && live > 0)
        rc = nw_session_step(session, &live, &err);
    check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
    if (rc == NW_OK)
        nw_session_stats(session, &stats);
    nw_session_close(session);
    nw_model_close(model);
    return (reads){stats.bytes_read, stats.embedding_rows_read};
}

/* What is read does not depend on when reads arrive. */
static void test_timing(const subject *s, uint64_t budget)
{
    for (size_t lanes = 1; lanes <= 2; lanes++) {
        reads first = run_delayed(s, budget, lanes, 1);
        for (uint64_t seed = 2; seed <= 12; seed++) {
            reads r = run_delayed(s, budget, lanes, seed);
            check(r.bytes == first.bytes, s, budget, "bytes read, by the disk's timing", r.bytes, first.bytes);
            check(r.rows == first.rows, s, budget, "rows read, by the disk's timing", r.rows, first.rows);
        }
    }
}

/* A budget that is a page too small: refused, with the one that works. */
static void run_refusal(const subject *s, uint64_t smallest)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_session_options o = options(s, smallest - 4096);
    nw_code            rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err);
    check(rc == NW_OK, s, smallest, err.msg, (uint64_t)rc, NW_OK);
    rc = nw_session_open(model, &o, &session, &err);
    check(rc == NW_E_BUDGET && session == NULL, s, smallest - 4096, "refusal", (uint64_t)rc, NW_E_BUDGET);
    check(err.bytes_needed == smallest, s, smallest - 4096, "what a refusal names", err.bytes_needed, smallest);
    nw_model_close(model);
}

static void in_child(void (*fn)(const subject *, uint64_t), const subject *s, uint64_t budget)
{
    int status = 1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        failures = 0;
        fn(s, budget);
        fflush(stdout);
        _exit(failures > 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        failures++;
    cases++;
}

static void test_subject(const subject *s)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_plan            plan, last = {0};
    nw_session_options o = options(s, (uint64_t)1 << 40);
    nw_code            rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err);
    check(rc == NW_OK && nw_plan_make(model, &o, &plan, &err) == NW_OK, s, 0, err.msg, 0, 0);
    uint64_t smallest = plan.smallest, all = plan.budget_all_resident;
    in_child(run_refusal, s, smallest);
    /* Plans cost nothing: many budgets. Runs: a few of them. */
    uint64_t step = (all + (8 << 20) - smallest) / 400 + 1;
    for (unsigned i = 0; i <= 400; i++) {
        o.budget_bytes = smallest + i * step;
        check(nw_plan_make(model, &o, &plan, &err) == NW_OK, s, o.budget_bytes, err.msg, 0, 0);
        check(i == 0 || plan.read.next_pass <= last.read.next_pass, s, o.budget_bytes, "more budget reads more",
              plan.read.next_pass, last.read.next_pass);
        check(o.budget_bytes < all || plan.read.next_pass == 0, s, o.budget_bytes, "budget_all_resident, bytes a pass",
              plan.read.next_pass, 0);
        last = plan;
        if (i % 40 == 0)
            in_child(run_budget, s, o.budget_bytes);
    }
    in_child(run_budget, s, smallest + 4096);
    in_child(run_budget, s, all);
    in_child(run_budget, s, all - 4096);
    in_child(run_budget, s, all + (64 << 20));
    nw_model_close(model);
}

/* ---- packs ---- */

static void pack_as(const subject *s, uint64_t form)
{
    /* The two lossless forms, and the smallest of the others. */
    static const nw_pack_options forms[] = {{.compress = NW_COMPRESS_PACKED, .shard_bytes_max = 2 << 20, .threads = 2},
                                            {.compress = NW_COMPRESS_SLIM, .threads = 2},
                                            {.type = NW_TYPE_Q4, .threads = 2}};
    nw_pack_options              o = forms[form];
    nw_pack_result               r;
    nw_error                     err = {0};
    char                         dir[1100];
    snprintf(dir, sizeof dir, "%s.pack", s->dir);
    o.dir = dir;
    nw_code rc = model_pack(s->name, &o, NULL, &r, &err);
    check(rc == NW_OK, s, 0, err.msg, (uint64_t)rc, NW_OK);
}

/* The same of packs of a model: `s->dir` is where they may be. Packing has a child of its own: the peak that the others
 * begin with is then not its. */
static void test_packs(const subject *s, const char *source)
{
    for (uint64_t form = 0; form < 3; form++) {
        subject from = *s, to = *s;
        from.name = source;
        int length = snprintf(to.dir, sizeof to.dir, "%s.pack", s->dir);
        NW_CHECK(length > 0 && (size_t)length < sizeof to.dir);
        in_child(pack_as, &from, form);
        test_subject(&to);
        temp_dir_empty(to.dir);
        NW_CHECK(rmdir(to.dir) == 0);
    }
}

static void test_golden_packs(const temp_dir *temp)
{
    static const char *const names[] = {"t5-v1.1", "flan-bf16-shards", "odd-sizes", "numbers-t5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char    source[1024];
        subject s = {.name = names[i], .tokens = 6};
        golden_dir(names[i], source);
        snprintf(s.dir, sizeof s.dir, "%s", temp_dir_path(temp, names[i]).text);
        subject_add(&s, 9, 200, 1);
        subject_add(&s, 20, 200, 2);
        test_packs(&s, source);
    }
}

int main(void)
{
    static const char *const names[] = {"t5-v1.1", "t5-v1.0-tied", "umt5", "flan-bf16-shards", "byt5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        subject s = {.name = names[i], .tokens = 6};
        snprintf(s.dir, sizeof s.dir, "%s/goldens/%s", NW_TEST_DATA, names[i]);
        subject_add(&s, 9, 200, 1);
        subject_add(&s, 20, 200, 2);
        test_subject(&s);
    }
    subject numbers = {.name = "numbers-t5", .tokens = 12};
    snprintf(numbers.dir, sizeof numbers.dir, "%s/numbers-t5", NW_TEST_DATA);
    subject_add(&numbers, 18, 640, 1);
    subject_add(&numbers, 10, 640, 2);
    test_subject(&numbers);

    temp_dir temp = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        temp_path dir = temp_dir_path(&temp, tied ? "tied" : "own-head");
        many_tiles_write(dir.text, tied, 5);
        subject s = {.name = tied ? "many tiles, tied" : "many tiles", .tokens = 4};
        snprintf(s.dir, sizeof s.dir, "%s", dir.text);
        subject_add(&s, 20, MANY_TILES_VOCAB, 1);
        subject_add(&s, 7, MANY_TILES_VOCAB, 2);
        test_subject(&s);
        test_timing(&s, 40 << 20);
        test_timing(&s, 64 << 20);
        test_packs(&s, dir.text);
    }
    test_golden_packs(&temp);
    temp_dir_remove(&temp);
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

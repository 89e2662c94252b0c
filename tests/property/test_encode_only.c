/* Sessions that only encode. The encoder's tiles stay between texts: a budget above its size reads it once, a smaller
 * one reads what is not pinned again for each text, to the byte as planned; more budget never reads more, and the peak
 * stays below it. And the states have the bits of a session that generates, whatever the budget, window, threads,
 * reader and kernels are.
 */
#include "answers.h"
#include "many_tiles.h"
#include "temp_dir.h"

#include <sys/wait.h>
#include <unistd.h>

enum { TEXTS = 10 };

#ifdef NW_SANITIZED
enum { RUN_STRIDE = 200, EXTRA_STRIDE = 3, FAKE_SEEDS = 3 };
#else
enum { RUN_STRIDE = 50, EXTRA_STRIDE = 1, FAKE_SEEDS = 8 };
#endif

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
    return (nw_session_options){
        .budget_bytes = budget, .max_input_tokens = s->longest, .threads = 2, .force = true, .encode_only = true};
}

static uint64_t bytes_without_rows(const nw_session *session, const nw_plan *plan)
{
    nw_stats stats;
    nw_session_stats(session, &stats);
    return stats.bytes_read - stats.embedding_rows_read * plan->read.embedding_row;
}

/* Prompt `i` of the subject, in turn; NW_OK or the error's code. */
static nw_code encode(nw_session *session, const subject *s, size_t i, bool more, float *states, nw_error *err)
{
    size_t            p = i % s->prompt_count;
    nw_encode_request q = {.ids = s->ids[p], .count = s->counts[p], .more = more};
    return nw_session_encode(session, &q, states, err);
}

/* ---- what is read ---- */

/* Ten texts, each saying that another follows, or none; byte for byte as planned. */
static void run_texts(const subject *s, uint64_t budget, bool more)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_plan            plan = {0};
    nw_model_info      info;
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
    nw_model_describe(model, &info);
    float   *states = malloc(s->longest * info.d_model * sizeof *states);
    uint64_t want = plan.read.open + plan.read.tokenizer + plan.read.vectors;
    check(plan.read.encode + plan.read.cross + plan.read.refill == 0, s, budget, "read once a prompt", 1, 0);
    check(plan.read.first_pass >= info.encoder_bytes, s, budget, "first pass", plan.read.first_pass,
          info.encoder_bytes);
    for (size_t i = 0; i < TEXTS; i++) {
        bool another = more && i + 1 < TEXTS;
        rc = encode(session, s, i, another, states, &err);
        check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
        want += i == 0 ? plan.read.first_pass : plan.read.next_pass;
        uint64_t have = bytes_without_rows(session, &plan), ahead = another ? plan.read.ahead : 0;
        check(have == want + ahead, s, budget, "bytes read but for rows", have, want + ahead);
    }
    /* The last one promised more, and none came. */
    rc = encode(session, s, 0, true, states, &err);
    want += plan.read.next_pass + plan.read.ahead;
    check(rc == NW_OK && bytes_without_rows(session, &plan) == want, s, budget, "bytes read, the last for nothing",
          bytes_without_rows(session, &plan), want);
    free(states);
    nw_stats stats;
    nw_session_stats(session, &stats);
    check(stats.accounted_bytes <= budget, s, budget, "accounted bytes", stats.accounted_bytes, budget);
    check(stats.pinned_bytes == plan.pinned_bytes, s, budget, "pinned bytes", stats.pinned_bytes, plan.pinned_bytes);
#ifndef NW_SANITIZED
    check(nw_process_peak() <= budget, s, budget, "peak", nw_process_peak(), budget);
#endif
    nw_session_close(session);
    nw_model_close(model);
}

static void run_more(const subject *s, uint64_t budget)
{
    run_texts(s, budget, true);
}
static void run_single(const subject *s, uint64_t budget)
{
    run_texts(s, budget, false);
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

/* Blocks of the plan: the encoder's alone, and together what the passes read less and keep. */
static void check_blocks(nw_model *model, const nw_session_options *o, const nw_plan *plan, const subject *s)
{
    nw_plan_block blocks[64];
    nw_error      err = {0};
    nw_model_info info;
    size_t        count = 0;
    uint64_t      bytes = 0, pinned = 0;
    nw_model_describe(model, &info);
    nw_code rc = nw_plan_blocks(model, o, blocks, 64, &count, &err);
    check(rc == NW_OK && count == info.encoder_blocks, s, o->budget_bytes, "blocks", count, info.encoder_blocks);
    for (size_t i = 0; i < count && i < 64; i++) {
        check(strncmp(blocks[i].name, "encoder ", 8) == 0, s, o->budget_bytes, blocks[i].name, 0, 0);
        bytes += blocks[i].bytes;
        pinned += blocks[i].pinned_bytes;
    }
    check(bytes == info.encoder_bytes, s, o->budget_bytes, "bytes of all blocks", bytes, info.encoder_bytes);
    check((pinned == bytes) == (plan->read.next_pass == 0) && pinned <= plan->pinned_bytes / 2 * 3,
          s, /* slim holds more */
          o->budget_bytes, "pinned bytes of all blocks", pinned, plan->pinned_bytes);
}

static void test_reads(const subject *s)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_plan            plan, last = {0}, generating;
    nw_session_options o = options(s, (uint64_t)1 << 40);
    nw_code            rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err);
    check(rc == NW_OK && nw_plan_make(model, &o, &plan, &err) == NW_OK, s, 0, err.msg, 0, 0);
    o.encode_only = false;
    check(nw_plan_make(model, &o, &generating, &err) == NW_OK, s, 0, err.msg, 0, 0);
    o.encode_only = true;
    check(plan.smallest < generating.smallest || generating.encode_only, s, 0, "smallest, next to generating",
          plan.smallest, generating.smallest);
    check(plan.encode_only && plan.part.kv_self + plan.part.kv_cross == 0, s, 0, "K and V", 1, 0);
    uint64_t smallest = plan.smallest, all = plan.budget_all_resident;
    in_child(run_refusal, s, smallest);
    uint64_t step = (all + (4 << 20) - smallest) / 400 + 1;
    for (unsigned i = 0; i <= 400; i++) {
        o.budget_bytes = smallest + i * step;
        check(nw_plan_make(model, &o, &plan, &err) == NW_OK, s, o.budget_bytes, err.msg, 0, 0);
        check(i == 0 || plan.read.next_pass <= last.read.next_pass, s, o.budget_bytes, "more budget reads more",
              plan.read.next_pass, last.read.next_pass);
        check(o.budget_bytes < all || plan.read.next_pass == 0, s, o.budget_bytes, "budget_all_resident, bytes a pass",
              plan.read.next_pass, 0);
        last = plan;
        if (i % RUN_STRIDE == 0) {
            check_blocks(model, &o, &plan, s);
            in_child(run_more, s, o.budget_bytes);
        }
    }
    in_child(run_single, s, smallest);
    in_child(run_single, s, (smallest + all) / 2);
    in_child(run_single, s, all);
    in_child(run_more, s, all);
    in_child(run_more, s, all - 4096);
    nw_model_close(model);
}

/* ---- the same bits ---- */

typedef struct {
    nw_session_options o;
    uint64_t           extra; /* bytes above the smallest budget; 0: plenty */
    nw_io_fake        *fake;
} variation;

/* A hash of every prompt's states, plain and padded; and the reads of it all. */
static uint64_t hash_states(const subject *s, const variation *v, uint64_t *ret_bytes)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_plan            plan = {0};
    nw_model_info      info = {0};
    nw_stats           stats = {0};
    nw_hooks           hooks = {.io = v->fake};
    nw_session_options o = v->o;
    size_t             pad_to = s->longest + 3;
    uint64_t           hash = ANSWERS_SEED;
    o.max_input_tokens = pad_to;
    o.force = true;
    o.budget_bytes = (uint64_t)1 << 40;
    nw_code rc = nw_model_open(&(nw_model_options){.path = s->dir, .hooks = &hooks}, &model, &err);
    if (rc == NW_OK)
        rc = nw_plan_make(model, &o, &plan, &err);
    o.budget_bytes = v->extra != 0 ? plan.smallest + v->extra : (uint64_t)1 << 32;
    if (rc == NW_OK)
        rc = nw_session_open(model, &o, &session, &err);
    if (rc == NW_E_BUDGET && err.bytes_needed > plan.smallest) { /* a test's own memory counts as base */
        o.budget_bytes = err.bytes_needed + v->extra;
        rc = nw_session_open(model, &o, &session, &err);
    }
    if (rc == NW_OK)
        nw_model_describe(model, &info);
    size_t bytes = pad_to * info.d_model * sizeof(float);
    float *states = malloc(bytes + 1);
    for (size_t i = 0; i < s->prompt_count * 4 && rc == NW_OK; i++) {
        size_t            p = i / 4;
        nw_encode_request q = {.ids = s->ids[p],
                               .count = s->counts[p],
                               .pad_to = i % 4 == 0 ? 0 : pad_to,
                               .attend_pads = i % 4 == 2,
                               .zero_pads = i % 4 == 3,
                               .more = i % 3 != 2};
        memset(states, 0, bytes);
        rc = nw_session_encode(session, &q, states, &err);
        hash = answers_mix(hash, states, bytes);
    }
    if (session != NULL)
        nw_session_stats(session, &stats);
    check(rc == NW_OK, s, o.budget_bytes, err.msg, (uint64_t)rc, NW_OK);
    *ret_bytes = stats.bytes_read;
    free(states);
    nw_session_close(session);
    nw_model_close(model);
    return hash;
}

static void compare(const subject *s, variation v, uint64_t want)
{
    uint64_t bytes;
    v.o.encode_only = true;
    v.o.threads = v.o.threads != 0 ? v.o.threads : 1;
    check(hash_states(s, &v, &bytes) == want, s, v.extra, "other bits", 1, 0);
}

static void test_bits(const subject *s)
{
    static const uint64_t extras[] = {1, 4096, 1 << 16, 1 << 18, 1 << 20, 3 << 20, 6 << 20, 12 << 20};
    uint64_t              bytes, want = hash_states(s, &(variation){.o.threads = 1}, &bytes);
    compare(s, (variation){.o.threads = 1}, want);
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i += EXTRA_STRIDE) {
        compare(s, (variation){.extra = extras[i], .o.threads = 1 + (unsigned)i % 4}, want);
        compare(s, (variation){.extra = extras[i], .o.prefetch_off = true}, want);
        compare(s, (variation){.extra = extras[i], .o.pins_off = true, .o.io = NW_READ_THREADS}, want);
        compare(s, (variation){.o.pins_bytes = extras[i], .o.window_bytes = 1}, want);
    }
    for (const char *const *name = nw_kernels_names(); *name != NULL; name++) {
        if (nw_kernels_named(*name) != NULL)
            compare(s, (variation){.o.kernels = *name, .o.threads = 2}, want);
    }
    /* Neither bits nor reads depend on when reads arrive. */
    uint64_t first = 0;
    for (unsigned seed = 1; seed <= FAKE_SEEDS; seed++) {
        nw_io_fake fake = {.seed = seed, .short_percent = 30, .retry_percent = 20, .delay_max = seed % 8};
        variation  v = {.fake = &fake, .extra = 2 << 20, .o.threads = 2, .o.encode_only = true};
        check(hash_states(s, &v, &bytes) == want, s, v.extra, "other bits, by the disk's timing", seed, 0);
        first = seed == 1 ? bytes : first;
        check(bytes == first, s, v.extra, "bytes read, by the disk's timing", bytes, first);
    }
}

/* ---- what such a session refuses, and what a generating one does ---- */

static void test_interface(const subject *s)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_session        *session = NULL;
    nw_session_options o = options(s, (uint64_t)1 << 30);
    nw_plan            plan;
    nw_request         q = answer_request(s, 0, NULL);
    uint64_t           id, bytes = 0;
    size_t             live = 1;
    double             seconds;
    check(nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err) == NW_OK, s, 0, err.msg, 0, 0);
    check(nw_plan_make(model, &o, &plan, &err) == NW_OK, s, 0, err.msg, 0, 0);
    check(nw_session_open(model, &o, &session, &err) == NW_OK, s, 0, err.msg, 0, 0);
    check(nw_session_submit(session, &q, &id, &err) == NW_E_ARG && err.msg[0] != '\0', s, 0, "submit", 0, NW_E_ARG);
    check(nw_session_step(session, &live, &err) == NW_OK && live == 0, s, 0, "step", live, 0);
    for (int pass = 0; pass < 2; pass++) {
        check(nw_session_read_pass(session, &bytes, &seconds, &err) == NW_OK, s, 0, err.msg, 0, 0);
        check(bytes == (pass == 0 ? plan.read.first_pass : 0), s, 0, "a pass that is only read", bytes,
              plan.read.first_pass);
    }
    session = nw_session_close(session);

    /* A session that generates encodes too, and reads the encoder for each text. */
    o.encode_only = false;
    check(nw_plan_make(model, &o, &plan, &err) == NW_OK, s, 0, err.msg, 0, 0);
    check(nw_session_open(model, &o, &session, &err) == NW_OK, s, 0, err.msg, 0, 0);
    float         *states = malloc(s->longest * 4096 * sizeof *states);
    uint64_t       before = bytes_without_rows(session, &plan);
    const uint64_t texts = 3;
    for (size_t i = 0; i < texts; i++)
        check(encode(session, s, i, i + 1 < texts, states, &err) == NW_OK, s, 0, err.msg, 0, 0);
    check(bytes_without_rows(session, &plan) - before == texts * plan.read.encode, s, 0, "encoding in a session",
          bytes_without_rows(session, &plan) - before, texts * plan.read.encode);
    free(states);
    nw_session_close(session);
    nw_model_close(model);
}

static void test_subject(const subject *s)
{
    test_reads(s);
    test_bits(s);
}

int main(void)
{
    static const char *const names[] = {"t5-v1.1", "t5-v1.0-tied", "umt5", "byt5", "encoder-only", "odd-sizes"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        subject s = {.name = names[i], .tokens = 1};
        snprintf(s.dir, sizeof s.dir, "%s/goldens/%s", NW_TEST_DATA, names[i]);
        subject_add(&s, 9, 200, 1);
        subject_add(&s, 20, 200, 2);
        test_subject(&s);
    }
    subject numbers = {.name = "numbers-t5", .tokens = 1};
    snprintf(numbers.dir, sizeof numbers.dir, "%s/numbers-t5", NW_TEST_DATA);
    subject_add(&numbers, 18, 640, 1);
    subject_add(&numbers, 10, 640, 2);
    test_subject(&numbers);
    test_interface(&numbers);

    temp_dir temp = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        temp_path dir = temp_dir_path(&temp, tied ? "tied" : "own-head");
        many_tiles_write(dir.text, tied, 5);
        subject s = {.name = tied ? "many tiles, tied" : "many tiles", .tokens = 1};
        snprintf(s.dir, sizeof s.dir, "%s", dir.text);
        subject_add(&s, 20, MANY_TILES_VOCAB, 1);
        subject_add(&s, 7, MANY_TILES_VOCAB, 2);
        test_subject(&s);
    }
    temp_dir_remove(&temp);
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

/* Sessions that only encode. The encoder's tiles stay between texts: a budget above its size reads it once, a smaller
 * one reads what is not pinned again for each text, to the byte as planned; more budget never reads more, and the peak
 * stays below it. And the states have the bits of a session that generates, whatever the budget, window, threads,
 * reader and kernels are.
 */
#include "budget_cases.h"

enum { TEXTS = 10 };

#ifdef NW_SANITIZED
enum { RUN_STRIDE = 200, EXTRA_STRIDE = 3, FAKE_SEEDS = 3 };
#else
enum { RUN_STRIDE = 50, EXTRA_STRIDE = 1, FAKE_SEEDS = 8 };
#endif

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
    budgeted           b;
    nw_model_info      info;
    nw_session_options o = options(s, budget);
    if (!open_under_budget(s, &o, &b))
        return;
    nw_model_describe(b.model, &info);
    float   *states = malloc(s->longest * info.d_model * sizeof *states);
    uint64_t want = b.plan.read.open + b.plan.read.tokenizer + b.plan.read.vectors;
    check(b.plan.read.encode + b.plan.read.cross + b.plan.read.refill == 0, s, budget, "read once a prompt", 1, 0);
    check(b.plan.read.first_pass >= info.encoder_bytes, s, budget, "first pass", b.plan.read.first_pass,
          info.encoder_bytes);
    for (size_t i = 0; i < TEXTS; i++) {
        bool    another = more && i + 1 < TEXTS;
        nw_code rc = encode(b.session, s, i, another, states, &err);
        check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
        want += i == 0 ? b.plan.read.first_pass : b.plan.read.next_pass;
        uint64_t have = bytes_without_rows(b.session, &b.plan), ahead = another ? b.plan.read.ahead : 0;
        check(have == want + ahead, s, budget, "bytes read but for rows", have, want + ahead);
    }
    /* The last one promised more, and none came. */
    nw_code rc = encode(b.session, s, 0, true, states, &err);
    want += b.plan.read.next_pass + b.plan.read.ahead;
    check(rc == NW_OK && bytes_without_rows(b.session, &b.plan) == want, s, budget, "bytes read, the last for nothing",
          bytes_without_rows(b.session, &b.plan), want);
    free(states);
    nw_stats stats;
    nw_session_stats(b.session, &stats);
    check_within(s, budget, &stats);
    check(stats.pinned_bytes == b.plan.pinned_bytes, s, budget, "pinned bytes", stats.pinned_bytes,
          b.plan.pinned_bytes);
    nw_session_close(b.session);
    nw_model_close(b.model);
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
    nw_session_options o = options(s, smallest - 4096);
    check_refusal(s, &o, smallest);
}

/* Blocks of the plan: the encoder's alone, and together what the passes read less and keep. */
static void check_blocks(const subject *s, nw_model *model, const nw_session_options *o, const nw_plan *plan)
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

static void visit(const subject *s, nw_model *model, const nw_session_options *o, const nw_plan *plan)
{
    check_blocks(s, model, o, plan);
    run_in_child(run_more, s, o->budget_bytes);
}

static void test_reads(const subject *s)
{
    nw_error           err = {0};
    nw_model          *model = NULL;
    nw_plan            plan, generating;
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
    run_in_child(run_refusal, s, smallest);
    check_plans(s, model, o, &plan, 4 << 20, RUN_STRIDE, visit);
    run_in_child(run_single, s, smallest);
    run_in_child(run_single, s, (smallest + all) / 2);
    run_in_child(run_single, s, all);
    run_in_child(run_more, s, all);
    run_in_child(run_more, s, all - 4096);
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
        subject s = subject_of(names[i], 1);
        test_subject(&s);
    }
    subject numbers = subject_of("numbers-t5", 1);
    test_subject(&numbers);
    test_interface(&numbers);

    temp_dir temp = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        subject s = subject_many_tiles(&temp, tied, 1);
        test_subject(&s);
    }
    temp_dir_remove(&temp);
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

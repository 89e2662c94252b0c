/* Promises 1 and 3: a run reads exactly what the plan says, more budget never reads more, and the peak stays below the
 * budget, from the smallest budget that works (one page less is refused, naming it) to all resident, where later passes
 * read nothing. Each case runs in a child of its own, so that its peak is its own.
 */
#include "budget_cases.h"

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
    bytes += (tokens - 1) * p->read.next_pass + tokens * p->read.kv;
    return bytes + (ended_early ? p->read.ahead : 0);
}

/* One budget: two prompts in a session, byte for byte as planned, and the peak. */
static void run_budget(const subject *s, uint64_t budget)
{
    nw_error           err = {0};
    budgeted           b;
    nw_stats           stats;
    nw_session_options o = options(s, budget);
    if (!open_under_budget(s, &o, &b))
        return;
    uint64_t want = b.plan.read.open + b.plan.read.tokenizer + b.plan.read.vectors;
    for (size_t i = 0; i < 2; i++) {
        uint32_t   ids[64];
        nw_request q = answer_request(s, i, NULL);
        nw_result  r = {.ids = ids};
        q.on_token = NULL;
        nw_code rc = nw_session_generate(b.session, &q, &r, &err);
        nw_session_stats(b.session, &stats);
        check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
        want += prompt_bytes(&b.plan, i == 0, r.count, r.finish == NW_FINISH_EOS && r.count < s->tokens);
        uint64_t have = stats.bytes_read - stats.embedding_rows_read * b.plan.read.embedding_row;
        check(have == want, s, budget, "bytes read but for rows", have, want);
    }
    check_within(s, budget, &stats);
    if (b.plan.embedding_resident) {
        check(b.plan.read.next_pass == 0, s, budget, "all resident, bytes a pass", b.plan.read.next_pass, 0);
        size_t     live = 1;
        uint64_t   id, before = 0;
        nw_request q = answer_request(s, 0, NULL);
        q.on_token = NULL;
        nw_code rc = nw_session_submit(b.session, &q, &id, &err);
        for (size_t step = 0; rc == NW_OK && live > 0; step++) {
            rc = nw_session_step(b.session, &live, &err);
            nw_session_stats(b.session, &stats);
            check(step == 0 || stats.bytes_read == before, s, budget, "all resident, later pass", stats.bytes_read,
                  before);
            before = stats.bytes_read;
        }
    }
    nw_session_close(b.session);
    nw_model_close(b.model);
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
    nw_session_options o = options(s, smallest - 4096);
    check_refusal(s, &o, smallest);
}

static void visit(const subject *s, nw_model *model, const nw_session_options *o, const nw_plan *plan)
{
    (void)model;
    (void)plan;
    run_in_child(run_budget, s, o->budget_bytes);
}

/* The model, and its plan; the caller closes it. */
static nw_model *open_planned(const subject *s, const nw_session_options *o, nw_plan *ret_plan)
{
    nw_error  err = {0};
    nw_model *model = NULL;
    nw_code   rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, &err);
    check(rc == NW_OK && nw_plan_make(model, o, ret_plan, &err) == NW_OK, s, 0, err.msg, 0, 0);
    return model;
}

static void test_subject(const subject *s)
{
    nw_plan            plan;
    nw_session_options o = options(s, (uint64_t)1 << 40);
    nw_model          *model = open_planned(s, &o, &plan);
    uint64_t smallest = plan.smallest, all = plan.budget_all_resident;
    run_in_child(run_refusal, s, smallest);
    check_plans(s, model, o, &plan, 8 << 20, 40, visit);
    run_in_child(run_budget, s, smallest + 4096);
    run_in_child(run_budget, s, all);
    run_in_child(run_budget, s, all - 4096);
    run_in_child(run_budget, s, all + (64 << 20));
    nw_model_close(model);
}

/* Budgets close to each other, from the smallest on: K and V are on the disk, and few tiles of the first blocks stay,
 * or many, so that what is read ahead ends before the attention or not. */
static void test_close_budgets(const subject *s)
{
    nw_plan            plan;
    nw_session_options o = options(s, (uint64_t)1 << 40);
    nw_model          *model = open_planned(s, &o, &plan);
    nw_model_close(model);
    for (uint64_t budget = plan.smallest; budget < plan.smallest + (3 << 19); budget += 28 << 10)
        run_in_child(run_budget, s, budget);
}

/* ---- many prompts ---- */

enum { GROUP_LANES = 8, GROUP_PROMPTS = 120 };

/* Prompts as they find room, answers of mixed length; nothing is encoded ahead. *ret_encoded: steps that began with the
 * encoder. */
static nw_stats run_many(const subject *s, nw_session *session, size_t *ret_encoded)
{
    nw_error err = {0};
    nw_stats stats = {0};
    size_t   live = 1, next = 0;
    uint64_t id, before = 0;
    nw_code  rc = NW_OK;
    *ret_encoded = 0;
    while (rc == NW_OK && live > 0) {
        for (nw_code took = NW_OK; took == NW_OK && next < GROUP_PROMPTS; next += took == NW_OK ? 1 : 0) {
            nw_request q = answer_request(s, next % s->prompt_count, NULL);
            q.on_token = NULL;
            q.max_new_tokens = 1 + next * 7 % s->tokens;
            took = nw_session_submit(session, &q, &id, &err);
        }
        rc = nw_session_step(session, &live, &err);
        nw_session_stats(session, &stats);
        *ret_encoded += stats.encode_passes > before ? 1 : 0;
        before = stats.encode_passes;
    }
    check(rc == NW_OK, s, stats.budget_bytes, err.msg, (uint64_t)rc, NW_OK);
    check(stats.prompts == GROUP_PROMPTS, s, stats.budget_bytes, "prompts", stats.prompts, GROUP_PROMPTS);
    return stats;
}

/* Where prompts wait for lanes, as many go through the encoder together as are worth it, though each lane that falls
 * free could have one; and that reads what the plan says. */
static void run_groups(const subject *s, uint64_t budget)
{
    budgeted           b;
    nw_session_options o = options(s, budget);
    size_t             encoded;
    o.max_lanes = GROUP_LANES;
    o.max_encode_tokens = GROUP_LANES * s->longest;
    o.prefetch_off = true; /* nothing is read in vain */
    if (!open_under_budget(s, &o, &b))
        return;
    const nw_stats stats = run_many(s, b.session, &encoded);
    uint64_t       want = b.plan.read.open + b.plan.read.tokenizer + b.plan.read.vectors + b.plan.read.first_pass;
    want += stats.encode_passes * (b.plan.read.encode + b.plan.read.cross) + (encoded - 1) * b.plan.read.refill;
    want += (stats.passes - 1) * b.plan.read.next_pass;
    uint64_t have = stats.bytes_read - stats.embedding_rows_read * b.plan.read.embedding_row;
    check(have == want && !b.plan.kv_on_disk, s, budget, "bytes read but for rows, many prompts", have, want);
    check(stats.encode_passes <= GROUP_PROMPTS / 3, s, budget, "encoder passes", stats.encode_passes,
          GROUP_PROMPTS / 3);
    check(stats.passes * GROUP_LANES * 7 <= stats.tokens * 10, s, budget, "passes", stats.passes,
          stats.tokens * 10 / (GROUP_LANES * 7));
    nw_session_close(b.session);
    nw_model_close(b.model);
}

/* A prompt that comes alone, while others are answered and lanes are free, does not wait for more. */
static void run_alone(const subject *s, uint64_t budget)
{
    budgeted           b;
    nw_error           err = {0};
    nw_stats           stats;
    nw_session_options o = options(s, budget);
    size_t             live;
    uint64_t           id;
    o.max_lanes = GROUP_LANES;
    if (!open_under_budget(s, &o, &b))
        return;
    for (size_t i = 0; i < 3; i++) {
        nw_request q = answer_request(s, i % s->prompt_count, NULL);
        q.on_token = NULL;
        nw_code rc = nw_session_submit(b.session, &q, &id, &err);
        if (rc == NW_OK)
            rc = nw_session_step(b.session, &live, &err);
        nw_session_stats(b.session, &stats);
        check(rc == NW_OK && stats.prompts == i + 1, s, budget, "prompts that are encoded", stats.prompts, i + 1);
    }
    nw_session_close(b.session);
    nw_model_close(b.model);
}

static void test_groups(const subject *s)
{
    nw_plan            plan;
    nw_session_options o = options(s, (uint64_t)1 << 40);
    o.max_lanes = GROUP_LANES;
    o.max_encode_tokens = GROUP_LANES * s->longest;
    nw_model *model = open_planned(s, &o, &plan);
    run_in_child(run_groups, s, plan.budget_all_resident - (1 << 20));
    run_in_child(run_groups, s, plan.budget_all_resident);
    run_in_child(run_alone, s, plan.budget_all_resident);
    nw_model_close(model);
}

/* ---- long answers ---- */

enum { LONG_ANSWER = 700 };

/* One answer whose K and V are larger than the budget leaves room for: byte for byte as planned. */
static void run_long(const subject *s, uint64_t budget)
{
    static const uint32_t forced[LONG_ANSWER]; /* tokens, whatever they are */
    budgeted              b;
    nw_error              err = {0};
    nw_stats              stats;
    nw_session_options    o = options(s, budget);
    uint32_t              ids[LONG_ANSWER];
    nw_result             r = {.ids = ids};
    nw_request            q = answer_request(s, 0, NULL);
    o.max_output_tokens = LONG_ANSWER;
    if (!open_under_budget(s, &o, &b))
        return;
    q.on_token = NULL;
    q.max_new_tokens = q.forced_count = LONG_ANSWER;
    q.forced_ids = forced;
    nw_code rc = nw_session_generate(b.session, &q, &r, &err);
    nw_session_stats(b.session, &stats);
    check(rc == NW_OK, s, budget, err.msg, (uint64_t)rc, NW_OK);
    check(stats.passes == LONG_ANSWER, s, budget, "passes", stats.passes, LONG_ANSWER);
    uint64_t want = b.plan.read.open + b.plan.read.tokenizer + b.plan.read.vectors, pages = 0;
    want += prompt_bytes(&b.plan, true, LONG_ANSWER, false);
    for (size_t position = 0; position < LONG_ANSWER && b.plan.kv_page_rows > 0; position++)
        pages += position / b.plan.kv_page_rows;
    want += pages * b.plan.read.kv_page;
    uint64_t have = stats.bytes_read - stats.embedding_rows_read * b.plan.read.embedding_row;
    check(have == want, s, budget, "bytes read but for rows, a long answer", have, want);
    check_within(s, budget, &stats);
    nw_session_close(b.session);
    nw_model_close(b.model);
}

/* At the smallest budget all but the last pages of the answer are on the disk, and that budget is smaller by it. */
static void test_long(const subject *s)
{
    nw_error           err = {0};
    nw_plan            plan, small;
    nw_session_options o = options(s, (uint64_t)1 << 40);
    o.max_output_tokens = LONG_ANSWER;
    nw_model *model = open_planned(s, &o, &plan);
    o.budget_bytes = plan.smallest;
    check(nw_plan_make(model, &o, &small, &err) == NW_OK, s, plan.smallest, err.msg, 0, 0);
    check(small.kv_page_rows > 0 && plan.kv_page_rows == 0, s, plan.smallest, "rows of a page", small.kv_page_rows, 1);
    check(small.part.kv_self * 5 < plan.part.kv_self, s, plan.smallest, "K and V of the answer in memory",
          small.part.kv_self, plan.part.kv_self / 5);
    run_in_child(run_long, s, plan.smallest);
    run_in_child(run_long, s, plan.smallest + (2 << 20));
    run_in_child(run_long, s, plan.budget_all_resident);
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
        run_in_child(pack_as, &from, form);
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
        subject s = subject_of(names[i], 6);
        test_subject(&s);
    }
    subject numbers = subject_of("numbers-t5", 12);
    test_subject(&numbers);
    test_close_budgets(&numbers);
    test_groups(&numbers);

    temp_dir temp = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        subject s = subject_many_tiles(&temp, tied, 4);
        test_subject(&s);
        test_timing(&s, 40 << 20);
        test_timing(&s, 64 << 20);
        test_long(&s);
        test_packs(&s, s.dir);
    }
    test_golden_packs(&temp);
    temp_dir_remove(&temp);
    printf("%u checks, %u failed\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

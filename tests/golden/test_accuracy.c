/* What q8 and q4 cost: the mean KL divergence of the next token's distribution from the checkpoint's own, over answers
 * that are given; and how many answers of the bundled model stay the reference's, token by token.
 *
 * q8 is held to 1e-3 and to 98 answers of 100. q4 is a choice of who packs: its figures are printed, and only have to
 * be worse than q8's and finite.
 */
#include "temp_dir.h"
#include "tensor_files.h"
#include "vectors.h"

#include <math.h>

#define DIVERGENCE_MAX 1e-3
#define DIVERGENCE_MAX_OTHERS 1e-2
#define SHARE_MIN 0.98

enum { ANSWER_MAX = 64 };

static unsigned failures;

static void check(bool ok, const char *name, const char *what)
{
    if (ok)
        return;
    failures++;
    printf("FAILED %s: %s\n", name, what);
}

/* A model at work. */
typedef struct {
    nw_model   *model;
    nw_session *session;
    size_t      vocab;
} opened;

static opened open_model(const char *dir)
{
    opened        o = {0};
    nw_error      err = {0};
    nw_model_info info;
    golden_need(nw_model_open(&(nw_model_options){.path = dir}, &o.model, &err) == NW_OK, dir, &err);
    nw_model_describe(o.model, &info);
    o.vocab = info.vocab_size;
    nw_session_options so = {
        .budget_bytes = 256 << 20, .max_input_tokens = 320, .max_output_tokens = ANSWER_MAX, .threads = 2};
    golden_need(nw_session_open(o.model, &so, &o.session, &err) == NW_OK, dir, &err);
    return o;
}

static void close_model(opened *o)
{
    nw_session_close(o->session);
    nw_model_close(o->model);
}

/* ---- divergence ---- */

typedef struct {
    float *logits; /* [ANSWER_MAX, vocab] of the answer at hand */
    size_t vocab;
} recorder;

static bool record(void *user, const nw_token *t)
{
    recorder *r = user;
    memcpy(r->logits + t->index * r->vocab, t->logits, r->vocab * sizeof *r->logits);
    return true;
}

/* The natural logarithm of the sum of exponentials. */
static double log_sum(const float *x, size_t n)
{
    double largest = -HUGE_VAL, sum = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - largest);
    return largest + log(sum);
}

/* Sum over tokens of p * log(p / q), in nats. */
static double divergence(const float *p, const float *q, size_t n)
{
    double sum_p = log_sum(p, n), sum_q = log_sum(q, n), total = 0;
    for (size_t i = 0; i < n; i++) {
        double log_p = (double)p[i] - sum_p, log_q = (double)q[i] - sum_q;
        total += exp(log_p) * (log_p - log_q);
    }
    return total;
}

/* One input and the answer that it is given. */
typedef struct {
    const uint32_t *ids, *answer;
    size_t          count, answer_count;
} question;

static void forced(opened *o, const question *q, float *logits)
{
    nw_error   err = {0};
    nw_result  r = {0};
    recorder   rec = {.logits = logits, .vocab = o->vocab};
    nw_request request = {.input_ids = q->ids,
                          .input_count = q->count,
                          .forced_ids = q->answer,
                          .forced_count = q->answer_count - 1,
                          .max_new_tokens = q->answer_count,
                          .on_token = record,
                          .user = &rec};
    golden_need(nw_session_generate(o->session, &request, &r, &err) == NW_OK && r.count == q->answer_count, "forced",
                &err);
}

typedef struct {
    opened models[3]; /* the checkpoint's, q8's, q4's */
    double total[3];
    size_t steps;
    float *logits[3];
} measurement;

static measurement measure_open(const char *dir, const char *const packs[2])
{
    measurement m = {.models = {open_model(dir), open_model(packs[0]), open_model(packs[1])}};
    for (size_t i = 0; i < 3; i++) {
        m.logits[i] = malloc(ANSWER_MAX * m.models[i].vocab * sizeof(float));
        golden_need(m.logits[i] != NULL, "memory", NULL);
    }
    return m;
}

static void measure_question(measurement *m, const question *q)
{
    size_t vocab = m->models[0].vocab;
    golden_need(q->answer_count >= 1 && q->answer_count <= ANSWER_MAX, "a longer answer", NULL);
    for (size_t i = 0; i < 3; i++)
        forced(&m->models[i], q, m->logits[i]);
    for (size_t i = 1; i < 3; i++) {
        for (size_t s = 0; s < q->answer_count; s++)
            m->total[i] += divergence(m->logits[0] + s * vocab, m->logits[i] + s * vocab, vocab);
    }
    m->steps += q->answer_count;
}

static void measure_close(measurement *m, const char *name, double most)
{
    double eight = m->total[1] / (double)m->steps, four = m->total[2] / (double)m->steps;
    printf("%s: KL divergence over %zu tokens: q8 %.3g, q4 %.3g\n", name, m->steps, eight, four);
    check(eight <= most, name, "q8 diverges by more than it may");
    check(eight > 0 && four > eight && isfinite(four), name, "no figures of quantised models");
    for (size_t i = 0; i < 3; i++) {
        close_model(&m->models[i]);
        free(m->logits[i]);
    }
}

/* ---- the models ---- */

typedef struct {
    temp_path paths[2];
} packs;

static packs pack_both(const temp_dir *dir, const char *name, const char *src)
{
    packs p = {.paths = {temp_dir_path(dir, "q8"), temp_dir_path(dir, "q4")}};
    for (size_t i = 0; i < 2; i++) {
        nw_error        err = {0};
        nw_pack_result  r;
        nw_pack_options o = {.dir = p.paths[i].text, .type = i == 0 ? NW_TYPE_Q8 : NW_TYPE_Q4, .threads = 2};
        golden_need(model_pack(src, &o, NULL, &r, &err) == NW_OK, name, &err);
        /* A model that keeps some types would measure less than it says. */
        check(r.kept_count == 0, name, "some matrices are not quantised");
    }
    return p;
}

static void test_golden(const temp_dir *dir, const char *name, double most)
{
    golden g = {0};
    size_t dims[2], lens_dims[2], forced_dims[2];
    golden_open(&g, name);
    packs             p = pack_both(dir, name, g.dir);
    const char *const paths[2] = {p.paths[0].text, p.paths[1].text};
    measurement       m = measure_open(g.dir, paths);
    uint32_t         *ids = golden_tensor(&g, "input_ids", dims);
    int32_t          *lens = golden_tensor(&g, "input_lens", lens_dims);
    for (size_t i = 0; i < dims[0]; i++) {
        uint32_t *answer = golden_tensor_of(&g, "decoder_input_ids", i, forced_dims);
        if (answer == NULL)
            continue;
        /* The first is the start token. The answer's last token is what the last step would say: any will do. */
        question q = {.ids = ids + i * dims[1],
                      .count = (size_t)lens[i],
                      .answer = answer + 1,
                      .answer_count = nw_min_size(forced_dims[0], ANSWER_MAX)};
        measure_question(&m, &q);
        free(answer);
    }
    measure_close(&m, name, most);
    free(ids);
    free(lens);
    golden_close(&g);
    temp_dir_empty(dir->path);
}

/* How many of the reference's greedy answers a model gives, token for token. */
static size_t same_answers(opened *o, const vectors *all)
{
    size_t   same = 0;
    uint32_t ids[VECTOR_IDS_MAX], want[VECTOR_IDS_MAX], have[ANSWER_MAX];
    for (size_t i = 0; i < all->greedy_count; i++) {
        nw_request q = {.input_ids = ids, .input_count = vector_ids(all->greedy[i], "input_ids", ids)};
        nw_result  r = {.ids = have};
        nw_error   err = {0};
        size_t     count = vector_ids(all->greedy[i], "sequences", want);
        golden_need(nw_session_generate(o->session, &q, &r, &err) == NW_OK, "greedy", &err);
        same += r.count == count && memcmp(have, want, count * sizeof *have) == 0;
    }
    return same;
}

static void test_numbers(const temp_dir *dir)
{
    char     src[1024];
    vectors  all = vectors_open();
    uint32_t ids[VECTOR_IDS_MAX], answer[VECTOR_IDS_MAX];
    golden_dir("numbers-t5", src);
    packs             p = pack_both(dir, "numbers-t5", src);
    const char *const paths[2] = {p.paths[0].text, p.paths[1].text};
    measurement       m = measure_open(src, paths);
    size_t            same[3];
    for (size_t i = 0; i < 3; i++)
        same[i] = same_answers(&m.models[i], &all);
    for (size_t i = 0; i < all.greedy_count; i++) {
        question q = {.ids = ids, .answer = answer};
        q.count = vector_ids(all.greedy[i], "input_ids", ids);
        q.answer_count = vector_ids(all.greedy[i], "sequences", answer);
        measure_question(&m, &q);
    }
    printf("numbers-t5: the reference's tokens in %zu of %zu answers, q8 in %zu, q4 in %zu\n", same[0],
           all.greedy_count, same[1], same[2]);
    check(same[0] == all.greedy_count, "numbers-t5", "the checkpoint gives other answers");
    check((double)same[1] >= SHARE_MIN * (double)all.greedy_count, "numbers-t5", "q8 gives too many other answers");
    measure_close(&m, "numbers-t5", DIVERGENCE_MAX);
    vectors_close(&all);
    temp_dir_empty(dir->path);
}

int main(void)
{
    static const char *const held[] = {"ul2", "long"}, *const others[] = {"t5-v1.1",    "flan-bf16-shards",
                                                                          "flan-f16",   "mt5",
                                                                          "umt5",       "madlad",
                                                                          "buckets",    "three-embeddings",
                                                                          "gelu-exact", "bin"};
    temp_dir dir = temp_dir_make();
    test_numbers(&dir);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        test_golden(&dir, held[i], DIVERGENCE_MAX);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        test_golden(&dir, others[i], DIVERGENCE_MAX_OTHERS);
    temp_dir_remove(&dir);
    printf("%u failed\n", failures);
    return failures == 0 ? 0 : 1;
}

/* The reference vectors by the generation logic alone: what a sampler draws from, of every case; and the generate()
 * entries of some cases, greedy with processors and beam search, over logits that a session gives for any prefix
 * (test_requests has all of them as a session does them). Tokens are exact, scores and log-probabilities within the
 * vectors' tolerance, warped probabilities within 1e-5.
 *
 *   test_generate [case...]    with the entries of these
 */
#include "golden.h"
#include "golden_check.h"
#include "logits_tree.h"

#include "base/generation_parse.h"
#include "model/beam.h"
#include "model/sampling.h"

#include <math.h>

#define WARPED_TOLERANCE 1e-5

enum { LENGTH_MAX = 256 };

static const char *const cases[] = {"t5-v1.0-tied",
                                    "t5-v1.1",
                                    "flan-bf16-shards",
                                    "flan-f16",
                                    "mt5",
                                    "umt5",
                                    "byt5",
                                    "ul2",
                                    "madlad",
                                    "odd-sizes",
                                    "long",
                                    "buckets",
                                    "three-embeddings",
                                    "gelu-exact",
                                    "bin",
                                    "bin-shards-f16"};

/* Of every so many-th case also the entries. */
#ifdef NW_SANITIZED
enum { ENTRIES_STEP = 16 };
#else
enum { ENTRIES_STEP = 8 };
#endif

static double worst_warped;

/* The settings of an entry, by the parser of generation_config.json. */
static nw_generation_settings settings_of(const cJSON *e, const nw_model_info *info)
{
    nw_memory              mem;
    nw_error               err = {0};
    nw_generation_settings s;
    char                  *text = cJSON_PrintUnformatted(e);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    golden_need(nw_generation_parse(&mem, "golden.json", text, strlen(text), &s, &err) == NW_OK, "settings", &err);
    free(text);
    s.eos_token_id = (nw_end_ids){.count = 1, .ids = {info->eos_id}};
    golden_need(nw_generation_check(&s, 0, info->vocab_size, &err) == NW_OK, "settings", &err);
    return s;
}

/* ---- one sequence ------------------------------------------------------------------------------------------------ */

static void test_greedy(const cJSON *e, const char *name, const nw_processors *p, logits_tree *tree, uint32_t start)
{
    const nw_kernels *k = nw_kernels_best();
    const cJSON      *want = cJSON_GetArrayItem(cJSON_GetObjectItem(e, "sequences"), 0);
    const cJSON      *logprobs = cJSON_GetObjectItem(e, "token_logprobs");
    size_t            count = (size_t)cJSON_GetArraySize(want);
    uint32_t          ids[LENGTH_MAX] = {start};
    float             scratch[LENGTH_MAX], *row = malloc(p->vocab * sizeof *row);
    for (size_t i = 0; i < count; i++) {
        const float *logits = logits_after(tree, ids + 1, i);
        float        max, sum;
        memcpy(row, logits, p->vocab * sizeof *row);
        nw_processors_apply(p, ids, i + 1, row, scratch);
        ids[i + 1] = (uint32_t)k->argmax(row, p->vocab);
        check(ids[i + 1] == (uint32_t)cJSON_GetArrayItem(want, (int)i)->valueint, name, "greedy token", i);
        k->exp_sum(logits, p->vocab, &max, &sum);
        double logprob = (double)logits[ids[i + 1]] - (double)max - nw_ln((double)sum);
        check_near(logprob, cJSON_GetArrayItem(logprobs, (int)i)->valuedouble, name, "log-probability", i);
    }
    bool ended = ids[count] == p->settings->eos_token_id.ids[0];
    check(ended || count + 1 == p->max_length, name, "greedy length", count);
    free(row);
}

/* ---- beams ------------------------------------------------------------------------------------------------------- */

static void check_hypothesis(nw_beam *b, size_t index, const cJSON *e, const char *name, logits_tree *tree)
{
    const cJSON    *want = cJSON_GetArrayItem(cJSON_GetObjectItem(e, "sequences"), (int)index);
    const cJSON    *scores = cJSON_GetObjectItem(e, "sequences_scores");
    const uint32_t *ids = NULL;
    const float    *logprobs = NULL;
    size_t          count = 0;
    double          score = 0;
    bool            there = nw_beam_result(b, index, &ids, &logprobs, &count, &score);
    check(there && count == (size_t)cJSON_GetArraySize(want), name, "length of hypothesis", index);
    for (size_t i = 0; there && i < count && i < (size_t)cJSON_GetArraySize(want); i++) {
        check(ids[i] == (uint32_t)cJSON_GetArrayItem(want, (int)i)->valueint, name, "token of hypothesis", index);
        float        max, sum;
        const float *logits = logits_after(tree, ids, i);
        nw_kernels_best()->exp_sum(logits, tree->vocab, &max, &sum);
        double logprob = (double)logits[ids[i]] - (double)max - nw_ln((double)sum);
        check(fabs(logprob - (double)logprobs[i]) <= 1e-5, name, "log-probability of hypothesis", index);
    }
    check_near(score, cJSON_GetArrayItem(scores, (int)index)->valuedouble, name, "score of hypothesis", index);
}

static void test_beams(const cJSON *e, const char *name, const nw_processors *p, logits_tree *tree, uint32_t start)
{
    nw_beam  b = {.maxima = {.beams = p->settings->num_beams, .length = p->max_length, .vocab = p->vocab}};
    nw_arena measure = nw_arena_measure();
    nw_beam_layout(&b, &measure);
    void    *memory = malloc(measure.used + 64);
    nw_arena place = nw_arena_over((void *)nw_round_up((uintptr_t)memory, 64), measure.used);
    nw_beam_layout(&b, &place);
    nw_beam_start(&b, p, &start);
    do {
        for (size_t i = 0; i < nw_beam_row_count(&b); i++)
            nw_beam_row(&b, nw_kernels_best(), i, logits_after(tree, nw_beam_ids(&b, i) + 1, b.count - 1));
    } while (nw_beam_advance(&b));
    size_t wanted = (size_t)cJSON_GetArraySize(cJSON_GetObjectItem(e, "sequences"));
    check(wanted == p->settings->num_return_sequences, name, "number of sequences", wanted);
    for (size_t i = 0; i < wanted; i++)
        check_hypothesis(&b, i, e, name, tree);
    free(memory);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

static void test_warped(golden *g, const char *name)
{
    size_t       dims[2], history_dims[2], want_dims[2], index = 0;
    float       *logits = golden_tensor(g, "logits.0", dims);
    uint32_t    *history = golden_tensor(g, "decoder_input_ids.0", history_dims);
    const cJSON *e;
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(cJSON_GetObjectItem(g->json, "warped"), "settings"))
    {
        size_t                 n = dims[1];
        nw_model_info          info = {.eos_id = 1, .vocab_size = (uint32_t)n};
        nw_generation_settings s = settings_of(e, &info);
        nw_processors          p = {.settings = &s, .prompt_count = 1, .max_length = LENGTH_MAX, .vocab = n};
        float                 *want = golden_tensor_of(g, "warped", index, want_dims);
        float                 *row = malloc(n * sizeof *row), scratch[LENGTH_MAX];
        nw_warp_scratch        w = {.vocab = n, .values = malloc(n * sizeof(float)), .order = malloc(n * 4)};
        memcpy(row, logits + (dims[0] - 1) * n, n * sizeof *row);
        nw_processors_apply(&p, history, history_dims[0], row, scratch);
        nw_warp(nw_kernels_best(), &s, row, &w);
        check(nw_probabilities(nw_kernels_best(), row, n), name, "warped", index);
        double largest = 0;
        for (size_t i = 0; i < n; i++) {
            largest = fmax(largest, fabs((double)row[i] - (double)want[i]));
            check((row[i] > 0) == (want[i] > 0), name, "what can be drawn", index);
        }
        worst_warped = fmax(worst_warped, largest);
        check(largest <= WARPED_TOLERANCE, name, "warped probabilities", index);
        free(want);
        free(row);
        free(w.values);
        free(w.order);
        index++;
    }
    check(index > 0, name, "warped settings", index);
    free(history);
    free(logits);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static void test_entries(golden *g, const char *name, size_t input, logits_tree *tree, const nw_model_info *info)
{
    size_t       entries = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(g->json, "generate"))
    {
        if ((size_t)cJSON_GetObjectItem(e, "input")->valueint != input)
            continue;
        nw_generation_settings s = settings_of(e, info);
        nw_processors          p = {.settings = &s,
                                    .prompt_count = 1,
                                    .max_length = nw_generation_max_new(&s, 0) + (size_t)1,
                                    .vocab = info->vocab_size};
        if (s.num_beams == 1)
            test_greedy(e, name, &p, tree, info->start_id);
        else
            test_beams(e, name, &p, tree, info->start_id);
        entries++;
    }
    check(entries >= 8, name, "entries", entries);
}

static void test_entries_of(golden *g, const char *name)
{
    nw_error      err = {0};
    nw_model     *model = NULL;
    nw_session   *session = NULL;
    nw_model_info info;
    golden_need(nw_model_open(&(nw_model_options){.path = g->dir}, &model, &err) == NW_OK, name, &err);
    nw_model_describe(model, &info);
    nw_session_options o = {
        .budget_bytes = 256 << 20, .max_input_tokens = 320, .max_output_tokens = LENGTH_MAX, .threads = 1};
    golden_need(nw_session_open(model, &o, &session, &err) == NW_OK, name, &err);

    size_t    dims[2], lens_dims[2], requests = 0;
    uint32_t *ids = golden_tensor(g, "input_ids", dims);
    int32_t  *lens = golden_tensor(g, "input_lens", lens_dims);
    for (size_t i = 0; i < dims[0]; i++) {
        logits_tree tree = {.session = session,
                            .input = ids + i * dims[1],
                            .input_count = (size_t)lens[i],
                            .vocab = info.vocab_size,
                            .length_max = strcmp(name, "long") == 0 ? 160 : 32};
        test_entries(g, name, i, &tree, &info);
        requests += tree.requests;
        logits_free(&tree.root);
    }
    printf("%s: %zu requests\n", name, requests);
    free(ids);
    free(lens);
    nw_session_close(session);
    nw_model_close(model);
}

static void test_case(const char *name, bool entries)
{
    golden g = {0};
    golden_open(&g, name);
    test_warped(&g, name);
    if (entries)
        test_entries_of(&g, name);
    golden_close(&g);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        test_case(argv[i], true);
    for (size_t i = 0; argc == 1 && i < sizeof cases / sizeof *cases; i++)
        test_case(cases[i], i % ENTRIES_STEP == 0);
    printf(
        "%u checks, %u failed; largest difference %.2g (allowed %.2g), of warped probabilities %.2g (allowed %.2g)\n",
        checks, failures, worst, TOLERANCE, worst_warped, WARPED_TOLERANCE);
    return failures == 0 ? 0 : 1;
}

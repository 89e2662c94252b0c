/* The generation logic against what the reference implementation decided, for a model that is a hash
 * (tests/data/generation): greedy search, beam search and warping, with every setting there is.
 *
 *   test_generate_vectors [vectors.jsonl]
 */
#include "base/generation_parse.h"
#include "golden.h"

#include "model/beam.h"
#include "model/sampling.h"

#include <math.h>

enum { VOCAB_MAX = 64, LENGTH_MAX = 64 };

typedef struct {
    uint64_t seed;
    size_t   vocab;
    double   levels;
} hash_model;

static unsigned failures, checks, beams, fewer;

static void check(bool ok, size_t line, const char *what)
{
    checks++;
    if (!ok && failures++ < 20)
        printf("FAILED line %zu: %s\n", line, what);
}

/* As in make_vectors.py. */
static void hash_logits(const hash_model *m, const uint32_t *ids, size_t count, float *row)
{
    uint64_t h = m->seed;
    for (size_t i = 0; i < count; i++)
        h = (h ^ ids[i]) * 0x100000001b3u + 1;
    for (size_t i = 0; i < m->vocab; i++) {
        uint64_t x = h + (i + 1) * 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x = (x ^ (x >> 31)) >> 40;
        x = (x * (uint64_t)m->levels) >> 24;
        row[i] = (float)x * (float)(10 / m->levels) - 5.0f;
    }
}

static size_t read_ids(const cJSON *list, uint32_t *ids, size_t cap)
{
    size_t       count = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, list)
    {
        NW_CHECK(count < cap);
        ids[count++] = (uint32_t)e->valueint;
    }
    return count;
}

static void check_sequence(const cJSON *want, const uint32_t *ids, size_t count, size_t line)
{
    uint32_t ids_wanted[LENGTH_MAX];
    size_t   n = read_ids(want, ids_wanted, LENGTH_MAX);
    check(n == count && memcmp(ids, ids_wanted, n * sizeof *ids) == 0, line, "ids");
}

static void test_greedy(const cJSON *j, const hash_model *m, const nw_processors *p, size_t line)
{
    uint32_t ids[LENGTH_MAX] = {0};
    size_t   count = 1;
    float    row[VOCAB_MAX], scratch[LENGTH_MAX];
    bool     over = false;
    while (!over && count < p->max_length) {
        hash_logits(m, ids, count, row);
        nw_processors_apply(p, ids, count, row, scratch);
        ids[count] = (uint32_t)nw_kernels_best()->argmax(row, m->vocab);
        for (size_t i = 0; i < p->settings->eos_token_id.count; i++)
            over = over || p->settings->eos_token_id.ids[i] == ids[count];
        count++;
    }
    check_sequence(cJSON_GetArrayItem(cJSON_GetObjectItem(j, "sequences"), 0), ids + 1, count - 1, line);
}

/* The reference fills up with sequences of score -1e9 that are none; here there are fewer. */
static void check_hypothesis(const cJSON *j, const nw_beam *b, size_t index, size_t line)
{
    double          want = cJSON_GetArrayItem(cJSON_GetObjectItem(j, "sequences_scores"), (int)index)->valuedouble;
    double          score = 0;
    const uint32_t *ids = NULL;
    const float    *logprobs = NULL;
    size_t          count = 0;
    bool            there = nw_beam_result(b, index, &ids, &logprobs, &count, &score);
    if (!there) {
        check(want < -1e8, line, "hypothesis");
        fewer++;
        return;
    }
    check_sequence(cJSON_GetArrayItem(cJSON_GetObjectItem(j, "sequences"), (int)index), ids, count, line);
    check(fabs(score - want) <= 1e-5 * fmax(1, fabs(want)), line, "score");
}

static void test_beams(const cJSON *j, const hash_model *m, const nw_processors *p, size_t line)
{
    nw_beam                           b = {.maxima = {.beams = NW_BEAMS_MAX, .length = LENGTH_MAX, .vocab = m->vocab}};
    static _Alignas(64) unsigned char memory[1 << 20];
    nw_arena                          place = nw_arena_over(memory, sizeof memory);
    uint32_t                          start = 0;
    float                             row[VOCAB_MAX];
    nw_beam_layout(&b, &place);
    NW_CHECK(!place.failed);
    nw_beam_start(&b, p, &start);
    do {
        for (size_t i = 0; i < nw_beam_row_count(&b); i++) {
            hash_logits(m, nw_beam_ids(&b, i), b.count, row);
            nw_beam_row(&b, nw_kernels_best(), i, row);
        }
    } while (nw_beam_advance(&b));
    for (size_t i = 0; i < p->settings->num_return_sequences; i++)
        check_hypothesis(j, &b, i, line);
    beams++;
}

static void test_warp(const cJSON *j, const hash_model *m, const nw_processors *p, size_t line)
{
    uint32_t        history[LENGTH_MAX], order[VOCAB_MAX], kept[VOCAB_MAX];
    float           row[VOCAB_MAX], scratch[LENGTH_MAX], values[VOCAB_MAX];
    nw_warp_scratch w = {.vocab = m->vocab, .values = values, .order = order};
    size_t          count = read_ids(cJSON_GetObjectItem(j, "history"), history, LENGTH_MAX);
    size_t          kept_count = read_ids(cJSON_GetObjectItem(j, "ids"), kept, VOCAB_MAX), at = 0;
    hash_logits(m, history, count, row);
    nw_processors_apply(p, history, count, row, scratch);
    nw_warp(nw_kernels_best(), p->settings, row, &w);
    check(nw_probabilities(nw_kernels_best(), row, m->vocab), line, "nothing to draw");
    for (size_t i = 0; i < m->vocab; i++) {
        if (row[i] <= 0)
            continue;
        check(at < kept_count && kept[at] == i, line, "what can be drawn");
        const cJSON *want = cJSON_GetArrayItem(cJSON_GetObjectItem(j, "probabilities"), (int)at++);
        check(want != NULL && fabs((double)row[i] - want->valuedouble) <= 1e-6, line, "probability");
    }
    check(at == kept_count, line, "how many can be drawn");
}

static void test_line(const char *text, size_t line)
{
    nw_memory              mem;
    nw_error               err = {0};
    nw_generation_settings s;
    cJSON                 *j = cJSON_Parse(text);
    golden_need(j != NULL, "vectors.jsonl", NULL);
    hash_model m = {.seed = (uint64_t)cJSON_GetObjectItem(j, "seed")->valuedouble,
                    .vocab = (size_t)cJSON_GetObjectItem(j, "vocab")->valueint,
                    .levels = cJSON_GetObjectItem(j, "levels")->valuedouble};
    NW_CHECK(m.vocab <= VOCAB_MAX);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    golden_need(nw_generation_parse(&mem, "vectors.jsonl", text, strlen(text), &s, &err) == NW_OK, text, &err);
    golden_need(nw_generation_check(&s, 0, (uint32_t)m.vocab, &err) == NW_OK, text, &err);
    nw_processors p = {.settings = &s,
                       .prompt_count = 1,
                       .max_length = nw_generation_max_new(&s, LENGTH_MAX - 1) + (size_t)1,
                       .vocab = m.vocab};
    if (cJSON_HasObjectItem(j, "history"))
        test_warp(j, &m, &p, line);
    else if (s.num_beams > 1)
        test_beams(j, &m, &p, line);
    else
        test_greedy(j, &m, &p, line);
    cJSON_Delete(j);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : NW_TEST_DATA "/generation/vectors.jsonl";
    char       *text = golden_read_text(path);
    size_t      line = 1;
    golden_need(text != NULL, path, NULL);
    for (char *at = text, *end; *at != '\0'; at = end + 1, line++) {
        end = strchr(at, '\n');
        golden_need(end != NULL, "a line without an end", NULL);
        *end = '\0';
        test_line(at, line);
    }
    check(line > 100 && beams > 50, line, "too few vectors");
    printf("%u checks of %zu lines (%u of beams, %u hypotheses that are none), %u failed\n", checks, line - 1, beams,
           fewer, failures);
    free(text);
    return failures == 0 ? 0 : 1;
}

/* Every generate() entry of the reference vectors as requests of a session: greedy with processors, and beam search,
 * all entries of a case waiting together for a few lanes, and tokens guessed. Tokens are exact, scores and
 * log-probabilities within the vectors' tolerance. Then the beams of numbers-t5.
 *
 *   test_requests [case...]    all by default
 */
#include "base/generation_parse.h"
#include "golden.h"
#include "golden_check.h"
#include "hooks.h"
#include "narrows.h"
#include "tensor_files.h"

#include <math.h>

enum { ENTRIES_MAX = 64, LANES = 12, COLUMNS = 20, BEAMS = 5 };

/* One entry under way. */
typedef struct {
    const char            *name;
    size_t                 index, sequences;
    const cJSON           *want;
    nw_generation_settings settings;
} entry;

static void check_sequence(void *user, const nw_sequence *q)
{
    entry       *e = user;
    const cJSON *ids = cJSON_GetArrayItem(cJSON_GetObjectItem(e->want, "sequences"), (int)q->sequence);
    const cJSON *logprobs = cJSON_GetObjectItem(e->want, "token_logprobs");
    const cJSON *scores = cJSON_GetObjectItem(e->want, "sequences_scores");
    if (scores == NULL)
        scores = cJSON_GetObjectItem(e->want, "scores");
    check(q->count == (size_t)cJSON_GetArraySize(ids), e->name, "length of entry", e->index);
    for (size_t i = 0; i < q->count && i < (size_t)cJSON_GetArraySize(ids); i++) {
        check(q->ids[i] == (uint32_t)cJSON_GetArrayItem(ids, (int)i)->valueint, e->name, "token of entry", e->index);
        if (logprobs != NULL)
            check_near(q->logprobs[i], cJSON_GetArrayItem(logprobs, (int)i)->valuedouble, e->name, "log-probability",
                       e->index);
    }
    if (scores != NULL)
        check_near(q->score, cJSON_GetArrayItem(scores, (int)q->sequence)->valuedouble, e->name, "score", e->index);
    else
        check(isnan(q->score), e->name, "a score without beams", e->index);
    e->sequences++;
}

static nw_generation_settings parse_settings(const cJSON *json, const nw_generation_settings *base)
{
    nw_memory              mem;
    nw_error               err = {0};
    nw_generation_settings s, all = *base;
    char                  *text = cJSON_PrintUnformatted(json);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    golden_need(nw_generation_parse(&mem, "golden.json", text, strlen(text), &s, &err) == NW_OK, "settings", &err);
    free(text);
    nw_generation_merge(&all, &s);
    return all;
}

/* A session for anything that the vectors ask for. */
static nw_session *open_session(nw_model *model, nw_generation_settings *all, size_t output)
{
    nw_error    err = {0};
    nw_session *session = NULL;
    golden_need(nw_model_generation(model, NULL, all, &err) == NW_OK, "settings", &err);
    nw_generation_settings most = *all;
    most.num_beams = BEAMS;
    most.no_repeat_ngram_size = 2;
    nw_session_options o = {.budget_bytes = 512 << 20,
                            .max_input_tokens = 320,
                            .max_output_tokens = output,
                            .max_lanes = LANES,
                            .max_columns = COLUMNS,
                            .max_encode_tokens = 500,
                            .max_encoded_ahead = 3,
                            .max_waiting = ENTRIES_MAX,
                            .generation = &most,
                            .threads = 2};
    golden_need(nw_session_open(model, &o, &session, &err) == NW_OK, "session", &err);
    return session;
}

static void submit(nw_session *session, entry *e, const uint32_t *input, size_t count)
{
    nw_error   err = {0};
    uint64_t   id;
    nw_request q = {.input_ids = input,
                    .input_count = count,
                    .settings = &e->settings,
                    .logprobs = true,
                    .on_sequence = check_sequence,
                    .user = e};
    golden_need(nw_session_submit(session, &q, &id, &err) == NW_OK, e->name, &err);
}

static void finish(nw_session *session, entry *entries, size_t count)
{
    nw_error err = {0};
    size_t   live = 1;
    while (live > 0)
        golden_need(nw_session_step(session, &live, &err) == NW_OK, entries->name, &err);
    for (size_t i = 0; i < count; i++) {
        size_t want = (size_t)cJSON_GetArraySize(cJSON_GetObjectItem(entries[i].want, "sequences"));
        check(entries[i].sequences == want, entries[i].name, "sequences of entry", i);
    }
    nw_stats stats;
    nw_session_stats(session, &stats);
    printf("%s: %zu requests, %llu tokens in %llu passes, %llu of %llu guesses right, %llu encoder passes\n",
           entries->name, count, (unsigned long long)stats.tokens, (unsigned long long)stats.passes,
           (unsigned long long)stats.accepted, (unsigned long long)stats.drafted,
           (unsigned long long)stats.encode_passes);
}

static void test_case(const char *name)
{
    static entry           entries[ENTRIES_MAX];
    golden                 g = {0};
    nw_error               err = {0};
    nw_model              *model = NULL;
    nw_generation_settings all;
    size_t                 dims[2], lens_dims[2], count = 0;
    golden_open(&g, name);
    golden_need(nw_model_open(&(nw_model_options){.path = g.dir}, &model, &err) == NW_OK, name, &err);
    nw_session  *session = open_session(model, &all, strcmp(name, "long") == 0 ? 160 : 32);
    uint32_t    *ids = golden_tensor(&g, "input_ids", dims);
    int32_t     *lens = golden_tensor(&g, "input_lens", lens_dims);
    const cJSON *json;
    cJSON_ArrayForEach(json, cJSON_GetObjectItem(g.json, "generate"))
    {
        size_t input = (size_t)cJSON_GetObjectItem(json, "input")->valueint;
        golden_need(count < ENTRIES_MAX, name, NULL);
        entries[count] = (entry){.name = name, .index = count, .want = json, .settings = parse_settings(json, &all)};
        submit(session, &entries[count++], ids + input * dims[1], (size_t)lens[input]);
    }
    check(count >= 8, name, "entries", count);
    finish(session, entries, count);
    free(ids);
    free(lens);
    nw_session_close(session);
    nw_model_close(model);
    golden_close(&g);
}

/* The lines of vectors.jsonl that have beams. */
static void test_numbers(void)
{
    static entry           entries[ENTRIES_MAX];
    char                   path[600];
    nw_error               err = {0};
    nw_model              *model = NULL;
    nw_generation_settings all;
    size_t                 count = 0;
    snprintf(path, sizeof path, "%s/numbers-t5", NW_TEST_DATA);
    golden_need(nw_model_open(&(nw_model_options){.path = path}, &model, &err) == NW_OK, path, &err);
    nw_session *session = open_session(model, &all, 48);
    snprintf(path, sizeof path, "%s/numbers-t5/vectors.jsonl", NW_TEST_DATA);
    char *text = golden_read_text(path), *next = NULL;
    golden_need(text != NULL, path, NULL);
    for (char *line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next)) {
        cJSON   *json = cJSON_Parse(line), *id;
        uint32_t input[320];
        size_t   n = 0;
        if (cJSON_GetObjectItem(json, "num_beams") == NULL) {
            cJSON_Delete(json);
            continue;
        }
        cJSON_ArrayForEach(id, cJSON_GetObjectItem(json, "input_ids")) input[n++] = (uint32_t)id->valueint;
        entries[count] = (entry){.name = "numbers-t5", .index = count, .want = json, .settings = all};
        entries[count].settings.num_beams = (uint32_t)cJSON_GetObjectItem(json, "num_beams")->valueint;
        entries[count].settings.num_return_sequences =
            (uint32_t)cJSON_GetArraySize(cJSON_GetObjectItem(json, "sequences"));
        submit(session, &entries[count++], input, n);
    }
    check(count == 40, "numbers-t5", "lines with beams", count);
    finish(session, entries, count);
    for (size_t i = 0; i < count; i++)
        cJSON_Delete((cJSON *)(uintptr_t)entries[i].want);
    free(text);
    nw_session_close(session);
    nw_model_close(model);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        test_case(argv[i]);
    for (size_t i = 0; i < GOLDEN_CASES && argc == 1; i++) {
        if (strcmp(golden_cases[i], "encoder-only") != 0)
            test_case(golden_cases[i]);
    }
    if (argc == 1)
        test_numbers();
    printf("%u checks, %u failed, largest difference %.2g\n", checks, failures, worst);
    return failures == 0 ? 0 : 1;
}

/* Generation settings: as generation_config.json, and as config.json's task_specific_params. What is accepted is within
 * the limits that the structure has room for; what nw_generation_check then accepts can be used: processors, warping, a
 * draw, some steps of beam search, stop strings. */
#include "base/generation_parse.h"
#include "fuzz.h"

#include "model/beam.h"
#include "model/sampling.h"
#include "model/stop.h"

#include <math.h>
#include <stdlib.h>

enum { VOCAB = 64, LENGTH = 12 };

static void check_limits(const nw_generation_settings *s)
{
    NW_CHECK(s->eos_token_id.count <= NW_EOS_MAX && s->forced_eos_token_id.count <= NW_EOS_MAX);
    NW_CHECK(s->suppress_tokens.count <= NW_ID_LIST_MAX && s->begin_suppress_tokens.count <= NW_ID_LIST_MAX);
    NW_CHECK(s->bad_words_ids.count <= NW_BAD_WORDS_MAX && s->bad_words_ids.id_count <= NW_ID_LIST_MAX);
    NW_CHECK(s->stop_strings.count <= NW_STOP_STRINGS_MAX && s->prefix_len <= NW_PREFIX_MAX);
    NW_CHECK(s->given < NW_GENERATION_BIT(NW_GENERATION_FIELD_COUNT));
    NW_CHECK(fuzz_utf8(s->prefix, s->prefix_len));
    for (size_t i = 0; i < s->stop_strings.count; i++) {
        NW_CHECK(s->stop_strings.lens[i] >= 1 && s->stop_strings.lens[i] <= NW_STOP_BYTES_MAX);
        NW_CHECK(fuzz_utf8(s->stop_strings.text[i], s->stop_strings.lens[i]));
    }
}

static void fill(float *row, uint64_t seed)
{
    for (size_t i = 0; i < VOCAB; i++) {
        seed = fuzz_hash(seed, &i, sizeof i);
        row[i] = (float)(seed >> 52) * 0.01f - 20.0f;
    }
}

static void sample(const nw_processors *p)
{
    float           row[VOCAB], values[VOCAB], scratch[LENGTH];
    uint32_t        order[VOCAB], ids[LENGTH] = {0};
    nw_warp_scratch w = {.vocab = VOCAB, .values = values, .order = order};
    for (size_t count = 1; count < p->max_length; count++) {
        fill(row, fuzz_hash(FUZZ_HASH, ids, count * sizeof *ids));
        nw_processors_apply(p, ids, count, row, scratch);
        nw_warp(nw_kernels_best(), p->settings, row, &w);
        if (!nw_probabilities(nw_kernels_best(), row, VOCAB))
            break;
        ids[count] = nw_draw(row, VOCAB, 1, 2, count);
        NW_CHECK(ids[count] < VOCAB && row[ids[count]] > 0);
    }
}

static void search(const nw_processors *p)
{
    nw_beam        b = {.maxima = {.beams = NW_BEAMS_MAX, .length = LENGTH, .vocab = VOCAB}};
    nw_arena       a = nw_arena_measure();
    const uint32_t start = 0;
    float          row[VOCAB];
    nw_beam_layout(&b, &a);
    void *memory = aligned_alloc(64, nw_round_up(a.used, 64));
    NW_CHECK(memory != NULL);
    a = nw_arena_over(memory, a.used);
    nw_beam_layout(&b, &a);
    nw_beam_start(&b, p, &start);
    do {
        for (size_t i = 0; i < nw_beam_row_count(&b); i++) {
            fill(row, fuzz_hash(FUZZ_HASH, nw_beam_ids(&b, i), b.count * sizeof(uint32_t)));
            nw_beam_row(&b, nw_kernels_best(), i, row);
        }
    } while (nw_beam_advance(&b));
    const uint32_t *ids;
    const float    *logprobs;
    size_t          count;
    double          score, last = HUGE_VAL;
    for (size_t i = 0; nw_beam_result(&b, i, &ids, &logprobs, &count, &score); i++) {
        NW_CHECK(count >= 1 && count < p->max_length && score <= last);
        last = score;
    }
    free(memory);
}

static void use(const nw_generation_settings *s, const uint8_t *data, size_t size)
{
    nw_error      err = {0};
    static char   shown[1 << 16];
    size_t        len = size < 1 << 15 ? size : 1 << 15, shown_len;
    nw_processors p = {.settings = s, .prompt_count = 1, .max_length = LENGTH, .vocab = VOCAB};
    if (!fuzz_ok(nw_generation_check(s, 0, VOCAB, &err), &err))
        return;
    NW_CHECK(nw_generation_max_new(s, 1) >= 1);
    sample(&p);
    search(&p);
    nw_stop stop;
    nw_stop_init(&stop, &s->stop_strings);
    nw_stop_feed(&stop, (const char *)data, len, shown, &shown_len);
    shown_len += nw_stop_end(&stop, shown + shown_len);
    NW_CHECK(shown_len <= len && memcmp(shown, data, shown_len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nw_memory              mem;
    nw_error               err = {0};
    nw_generation_settings s, task;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_generation_parse(&mem, "generation_config.json", (const char *)data, size, &s, &err);
    fuzz_memory_check(&mem, size);
    if (!fuzz_parsed(rc, &err))
        return 0;
    check_limits(&s);
    use(&s, data, size);
    rc = nw_generation_parse_task(&mem, "config.json", (const char *)data, size, "t", &task, &err);
    fuzz_memory_check(&mem, size);
    if (rc == NW_E_ARG ? !fuzz_ok(rc, &err) : !fuzz_parsed(rc, &err))
        return 0;
    check_limits(&task);
    nw_generation_merge(&s, &task);
    use(&s, data, size);
    return 0;
}

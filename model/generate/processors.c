/* Logits processors, each a function over one row, in the order of the header. None looks at more than the ids so far
 * and the row, so a row can be processed at any time and any number of rows at once. */
#include "model/processors.h"

#include <math.h>
#include <string.h>

static void forbid(float *row, size_t vocab, uint32_t id)
{
    NW_ASSERT(id < vocab);
    row[id] = -INFINITY;
}

static void forbid_all(float *row, size_t vocab, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        forbid(row, vocab, ids[i]);
}

/* An id that occurs twice is penalised once: all scores are fetched before any is put back, as in the reference. */
static void penalise_repetition(float *row, const uint32_t *ids, size_t count, double penalty, float *scratch)
{
    float p = (float)penalty;
    for (size_t i = 0; i < count; i++) {
        float score = row[ids[i]];
        scratch[i] = score < 0 ? score * p : score / p;
    }
    for (size_t i = 0; i < count; i++)
        row[ids[i]] = scratch[i];
}

/* The last n - 1 ids, wherever they stood before, may not be followed by what followed them there. */
static void forbid_ngrams(float *row, size_t vocab, const uint32_t *ids, size_t count, size_t n)
{
    if (count + 1 < n)
        return;
    const uint32_t *last = ids + count - (n - 1);
    for (size_t i = 0; i + n <= count; i++) {
        if (memcmp(ids + i, last, (n - 1) * sizeof *ids) == 0)
            forbid(row, vocab, ids[i + n - 1]);
    }
}

static bool is_one_of(const nw_end_ids *list, uint32_t id)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->ids[i] == id)
            return true;
    }
    return false;
}

static void forbid_words(float *row, size_t vocab, const uint32_t *ids, size_t count, const nw_generation_settings *s)
{
    const nw_bad_words *words = &s->bad_words_ids;
    const uint32_t     *word = words->ids;
    for (uint32_t i = 0; i < words->count; word += words->lens[i], i++) {
        size_t len = words->lens[i];
        if (len == 1 && is_one_of(&s->eos_token_id, word[0]))
            continue;
        bool applies =
            len == 1 || (len <= count && memcmp(ids + count - (len - 1), word, (len - 1) * sizeof *ids) == 0);
        if (applies)
            forbid(row, vocab, word[len - 1]);
    }
}

static void force(float *row, size_t vocab, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < vocab; i++)
        row[i] = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        NW_ASSERT(ids[i] < vocab);
        row[ids[i]] = 0;
    }
}

/* Ids before which no end token may come. Where both are given, both hold in the reference; one of them is more. */
static size_t shortest(const nw_processors *p)
{
    const nw_generation_settings *s = p->settings;
    size_t                        by_new = s->min_new_tokens > 0 ? p->prompt_count + s->min_new_tokens : 0;
    bool                          overridden = (s->given & NW_GENERATION_BIT(NW_GENERATION_MIN_NEW_TOKENS)) != 0;
    return overridden ? by_new : nw_max_size(by_new, s->min_length);
}

bool nw_processors_active(const nw_processors *p)
{
    const nw_generation_settings *s = p->settings;
    bool                          repeats = s->repetition_penalty != 1.0 || s->no_repeat_ngram_size > 0;
    bool lists = s->bad_words_ids.count > 0 || s->suppress_tokens.count > 0 || s->begin_suppress_tokens.count > 0;
    bool forces = s->forced_bos_token_id != NW_ID_NONE || s->forced_eos_token_id.count > 0;
    return repeats || lists || forces || shortest(p) > p->prompt_count;
}

/* The position that begin_suppress_tokens speaks of. */
static size_t begin_index(const nw_processors *p)
{
    bool forced = p->prompt_count == 1 && p->settings->forced_bos_token_id != NW_ID_NONE;
    return p->prompt_count + (forced ? 1 : 0);
}

void nw_processors_apply(const nw_processors *p, const uint32_t *ids, size_t count, float *row, float *scratch)
{
    const nw_generation_settings *s = p->settings;
    NW_CHECK(count >= 1);
    if (s->repetition_penalty != 1.0)
        penalise_repetition(row, ids, count, s->repetition_penalty, scratch);
    if (s->no_repeat_ngram_size > 0)
        forbid_ngrams(row, p->vocab, ids, count, s->no_repeat_ngram_size);
    forbid_words(row, p->vocab, ids, count, s);
    if (count < shortest(p))
        forbid_all(row, p->vocab, s->eos_token_id.ids, s->eos_token_id.count);
    if (count == 1 && s->forced_bos_token_id != NW_ID_NONE)
        force(row, p->vocab, &s->forced_bos_token_id, 1);
    if (count + 1 == p->max_length && s->forced_eos_token_id.count > 0)
        force(row, p->vocab, s->forced_eos_token_id.ids, s->forced_eos_token_id.count);
    forbid_all(row, p->vocab, s->suppress_tokens.ids, s->suppress_tokens.count);
    if (count == begin_index(p))
        forbid_all(row, p->vocab, s->begin_suppress_tokens.ids, s->begin_suppress_tokens.count);
}

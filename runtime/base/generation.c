/* Settings: the table of fields, the defaults, and what is refused. */
#include "generation_fields.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELD(name, what)                                                                                              \
    {#name, what, offsetof(nw_generation_settings, name), sizeof((nw_generation_settings *)NULL)->name}

const nw_field nw_generation_fields[NW_GENERATION_FIELD_COUNT] = {
    [NW_GENERATION_DO_SAMPLE] = FIELD(do_sample, NW_FIELD_BOOL),
    [NW_GENERATION_NUM_BEAMS] = FIELD(num_beams, NW_FIELD_COUNT),
    [NW_GENERATION_NUM_RETURN_SEQUENCES] = FIELD(num_return_sequences, NW_FIELD_COUNT),
    [NW_GENERATION_EARLY_STOPPING] = FIELD(early_stopping, NW_FIELD_EARLY),
    [NW_GENERATION_LENGTH_PENALTY] = FIELD(length_penalty, NW_FIELD_REAL),
    [NW_GENERATION_MAX_LENGTH] = FIELD(max_length, NW_FIELD_LENGTH),
    [NW_GENERATION_MAX_NEW_TOKENS] = FIELD(max_new_tokens, NW_FIELD_LENGTH),
    [NW_GENERATION_MIN_LENGTH] = FIELD(min_length, NW_FIELD_COUNT),
    [NW_GENERATION_MIN_NEW_TOKENS] = FIELD(min_new_tokens, NW_FIELD_COUNT),
    [NW_GENERATION_TEMPERATURE] = FIELD(temperature, NW_FIELD_REAL),
    [NW_GENERATION_TOP_K] = FIELD(top_k, NW_FIELD_COUNT),
    [NW_GENERATION_TOP_P] = FIELD(top_p, NW_FIELD_REAL),
    [NW_GENERATION_MIN_P] = FIELD(min_p, NW_FIELD_REAL),
    [NW_GENERATION_REPETITION_PENALTY] = FIELD(repetition_penalty, NW_FIELD_REAL),
    [NW_GENERATION_NO_REPEAT_NGRAM_SIZE] = FIELD(no_repeat_ngram_size, NW_FIELD_COUNT),
    [NW_GENERATION_BAD_WORDS_IDS] = FIELD(bad_words_ids, NW_FIELD_WORDS),
    [NW_GENERATION_SUPPRESS_TOKENS] = FIELD(suppress_tokens, NW_FIELD_ID_LIST),
    [NW_GENERATION_BEGIN_SUPPRESS_TOKENS] = FIELD(begin_suppress_tokens, NW_FIELD_ID_LIST),
    [NW_GENERATION_FORCED_BOS_TOKEN_ID] = FIELD(forced_bos_token_id, NW_FIELD_ID),
    [NW_GENERATION_FORCED_EOS_TOKEN_ID] = FIELD(forced_eos_token_id, NW_FIELD_END_IDS),
    [NW_GENERATION_EOS_TOKEN_ID] = FIELD(eos_token_id, NW_FIELD_END_IDS),
    [NW_GENERATION_DECODER_START_TOKEN_ID] = FIELD(decoder_start_token_id, NW_FIELD_ID),
    [NW_GENERATION_STOP_STRINGS] = FIELD(stop_strings, NW_FIELD_STRINGS),
    /* Both members, which are next to each other. */
    [NW_GENERATION_PREFIX] = {"prefix", NW_FIELD_PREFIX, offsetof(nw_generation_settings, prefix_len),
                              offsetof(nw_generation_settings, prefix) + NW_PREFIX_MAX -
                                  offsetof(nw_generation_settings, prefix_len)},
};

nw_generation_settings nw_generation_off(void)
{
    return (nw_generation_settings){
        .num_beams = 1,
        .num_return_sequences = 1,
        .length_penalty = 1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .forced_bos_token_id = NW_ID_NONE,
        .decoder_start_token_id = NW_ID_NONE,
    };
}

nw_generation_settings nw_generation_defaults(void)
{
    nw_generation_settings s = nw_generation_off();
    s.top_k = 50;
    return s;
}

void nw_generation_merge(nw_generation_settings *s, const nw_generation_settings *over)
{
    for (unsigned i = 0; i < NW_GENERATION_FIELD_COUNT; i++) {
        const nw_field *f = &nw_generation_fields[i];
        if (over->given & NW_GENERATION_BIT(i))
            memcpy((char *)s + f->offset, (const char *)over + f->offset, f->size);
    }
    s->given |= over->given;
    if (over->not_followed != NULL)
        s->not_followed = over->not_followed;
}

uint32_t nw_generation_max_new(const nw_generation_settings *s, uint32_t fallback)
{
    if (s->max_new_tokens > 0)
        return s->max_new_tokens;
    return s->max_length > 1 ? s->max_length - 1 : fallback;
}

uint32_t nw_generation_min_new(const nw_generation_settings *s)
{
    if (s->given & NW_GENERATION_BIT(NW_GENERATION_MIN_NEW_TOKENS))
        return s->min_new_tokens;
    uint32_t by_length = s->min_length > 0 ? s->min_length - 1 : 0;
    return s->min_new_tokens > by_length ? s->min_new_tokens : by_length;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const nw_generation_settings *s;
    uint32_t                      by_caller, vocab;
    nw_error                     *err;
} checker;

static bool caller_gave(const checker *c, nw_generation_field field)
{
    return (c->by_caller & NW_GENERATION_BIT(field)) != 0;
}

/* "--num-beams" */
static const char *option(nw_generation_field field, char buf[48])
{
    snprintf(buf, 48, "--%s", nw_generation_fields[field].key);
    for (char *p = buf; *p != '\0'; p++)
        *p = *p == '_' ? '-' : *p;
    return buf;
}

static nw_code check_count(const checker *c, nw_generation_field field, uint32_t least, uint32_t most)
{
    char     name[48];
    uint32_t value;
    memcpy(&value, (const char *)c->s + nw_generation_fields[field].offset, sizeof value);
    if (value >= least && value <= most)
        return NW_OK;
    return nw_fail(c->err, NW_E_ARG, 0, "%s %u is not from %u to %u", option(field, name), value, least, most);
}

/* NaN is in no range. */
static nw_code check_real(const checker *c, nw_generation_field field, double least, double most)
{
    char   name[48];
    double value;
    memcpy(&value, (const char *)c->s + nw_generation_fields[field].offset, sizeof value);
    if (value >= least && value <= most)
        return NW_OK;
    return nw_fail(c->err, NW_E_ARG, 0, "%s %g is not from %g to %g", option(field, name), value, least, most);
}

static nw_code check_ids(const checker *c, nw_generation_field field, const uint32_t *ids, size_t count, size_t most)
{
    char name[48];
    if (count > most)
        return nw_fail(c->err, NW_E_ARG, 0, "%s has more than %zu ids", option(field, name), most);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= c->vocab)
            return nw_fail(c->err, NW_E_ARG, 0, "%s: id %u is not in the vocabulary of %u", option(field, name), ids[i],
                           c->vocab);
    }
    return NW_OK;
}

static nw_code check_numbers(const checker *c)
{
    static const struct {
        nw_generation_field field;
        uint32_t            least, most;
    } counts[] = {
        {NW_GENERATION_NUM_BEAMS, 1, NW_BEAMS_MAX},
        {NW_GENERATION_NUM_RETURN_SEQUENCES, 1, NW_RETURN_MAX},
        {NW_GENERATION_MAX_LENGTH, 0, NW_NEW_TOKENS_MAX},
        {NW_GENERATION_MAX_NEW_TOKENS, 0, NW_NEW_TOKENS_MAX},
        {NW_GENERATION_MIN_LENGTH, 0, NW_NEW_TOKENS_MAX},
        {NW_GENERATION_MIN_NEW_TOKENS, 0, NW_NEW_TOKENS_MAX},
        {NW_GENERATION_NO_REPEAT_NGRAM_SIZE, 0, NW_NEW_TOKENS_MAX},
    };
    /* The smallest that are above 0 keep f32 arithmetic with them finite. */
    static const struct {
        nw_generation_field field;
        double              least, most;
    } reals[] = {
        {NW_GENERATION_LENGTH_PENALTY, -16, 16},         {NW_GENERATION_TEMPERATURE, 1e-6, 1e6},
        {NW_GENERATION_TOP_P, 1e-6, 1},                  {NW_GENERATION_MIN_P, 0, 1},
        {NW_GENERATION_REPETITION_PENALTY, 1e-6, 1e6},
    };
    nw_code rc = NW_OK;
    for (size_t i = 0; rc == NW_OK && i < sizeof counts / sizeof *counts; i++)
        rc = check_count(c, counts[i].field, counts[i].least, counts[i].most);
    for (size_t i = 0; rc == NW_OK && i < sizeof reals / sizeof *reals; i++)
        rc = check_real(c, reals[i].field, reals[i].least, reals[i].most);
    return rc;
}

static nw_code check_lists(const checker *c)
{
    const nw_generation_settings *s = c->s;
    nw_code rc = check_ids(c, NW_GENERATION_SUPPRESS_TOKENS, s->suppress_tokens.ids, s->suppress_tokens.count,
                           NW_ID_LIST_MAX);
    if (rc == NW_OK)
        rc = check_ids(c, NW_GENERATION_BEGIN_SUPPRESS_TOKENS, s->begin_suppress_tokens.ids,
                       s->begin_suppress_tokens.count, NW_ID_LIST_MAX);
    if (rc == NW_OK)
        rc = check_ids(c, NW_GENERATION_FORCED_EOS_TOKEN_ID, s->forced_eos_token_id.ids, s->forced_eos_token_id.count,
                       NW_EOS_MAX);
    if (rc == NW_OK)
        rc = check_ids(c, NW_GENERATION_EOS_TOKEN_ID, s->eos_token_id.ids, s->eos_token_id.count, NW_EOS_MAX);
    if (rc == NW_OK && s->forced_bos_token_id != NW_ID_NONE)
        rc = check_ids(c, NW_GENERATION_FORCED_BOS_TOKEN_ID, &s->forced_bos_token_id, 1, 1);
    if (rc == NW_OK && s->decoder_start_token_id != NW_ID_NONE)
        rc = check_ids(c, NW_GENERATION_DECODER_START_TOKEN_ID, &s->decoder_start_token_id, 1, 1);
    if (rc == NW_OK)
        rc = check_ids(c, NW_GENERATION_BAD_WORDS_IDS, s->bad_words_ids.ids, s->bad_words_ids.id_count, NW_ID_LIST_MAX);
    return rc;
}

static nw_code check_words(const checker *c)
{
    const nw_bad_words *words = &c->s->bad_words_ids;
    size_t              sum = 0;
    if (words->count > NW_BAD_WORDS_MAX)
        return nw_fail(c->err, NW_E_ARG, 0, "--bad-words-ids has more than %d sequences", NW_BAD_WORDS_MAX);
    for (uint32_t i = 0; i < words->count; i++) {
        if (words->lens[i] == 0)
            return nw_fail(c->err, NW_E_ARG, 0, "--bad-words-ids has an empty sequence");
        sum += words->lens[i];
    }
    NW_CHECK(sum == words->id_count);

    const nw_stop_strings *stops = &c->s->stop_strings;
    if (stops->count > NW_STOP_STRINGS_MAX)
        return nw_fail(c->err, NW_E_ARG, 0, "--stop: more than %d strings", NW_STOP_STRINGS_MAX);
    for (uint32_t i = 0; i < stops->count; i++) {
        if (stops->lens[i] == 0 || stops->lens[i] > NW_STOP_BYTES_MAX)
            return nw_fail(c->err, NW_E_ARG, 0, "--stop: a string has %u bytes, not from 1 to %d", stops->lens[i],
                           NW_STOP_BYTES_MAX);
    }
    return NW_OK;
}

/* What the caller asks for and nothing would use. */
static nw_code check_unused(const checker *c)
{
    static const nw_generation_field sampling[] = {NW_GENERATION_TEMPERATURE, NW_GENERATION_TOP_K, NW_GENERATION_TOP_P,
                                                   NW_GENERATION_MIN_P};
    static const nw_generation_field searching[] = {NW_GENERATION_LENGTH_PENALTY, NW_GENERATION_EARLY_STOPPING};
    char                             name[48];
    for (size_t i = 0; !c->s->do_sample && i < sizeof sampling / sizeof *sampling; i++) {
        if (caller_gave(c, sampling[i]))
            return nw_fail(c->err, NW_E_ARG, 0, "%s is for sampling, which is off", option(sampling[i], name));
    }
    for (size_t i = 0; c->s->num_beams == 1 && i < sizeof searching / sizeof *searching; i++) {
        if (caller_gave(c, searching[i]))
            return nw_fail(c->err, NW_E_ARG, 0, "%s is for beam search: it needs --num-beams",
                           option(searching[i], name));
    }
    return NW_OK;
}

/* Options that a value turns off: the caller that gives one means something else. */
static nw_code check_off(const checker *c)
{
    const nw_generation_settings *s = c->s;
    if (caller_gave(c, NW_GENERATION_NO_REPEAT_NGRAM_SIZE) && s->no_repeat_ngram_size == 0)
        return nw_fail(c->err, NW_E_ARG, 0, "--no-repeat-ngram-size 0 forbids nothing: leave it out");
    if (caller_gave(c, NW_GENERATION_MAX_NEW_TOKENS) && s->max_new_tokens == 0)
        return nw_fail(c->err, NW_E_ARG, 0, "--max-new-tokens 0 leaves no answer");
    if ((s->given & NW_GENERATION_BIT(NW_GENERATION_MAX_LENGTH)) && s->max_length == 1 && s->max_new_tokens == 0)
        return nw_fail(c->err, NW_E_ARG, 0, "--max-length 1 leaves no answer: it counts the start token");
    return NW_OK;
}

static nw_code check_together(const checker *c)
{
    const nw_generation_settings *s = c->s;
    uint32_t longest = nw_generation_max_new(s, UINT32_MAX), shortest = nw_generation_min_new(s);
    if (s->do_sample && s->num_beams > 1)
        return nw_fail(c->err, NW_E_ARG, 0, "--num-beams %u with sampling: beams are searched, not sampled",
                       s->num_beams);
    if (!s->do_sample && s->num_beams == 1 && s->num_return_sequences > 1)
        return nw_fail(c->err, NW_E_ARG, 0, "--num-return-sequences %u needs sampling or as many --num-beams",
                       s->num_return_sequences);
    if (!s->do_sample && s->num_return_sequences > s->num_beams)
        return nw_fail(c->err, NW_E_ARG, 0, "--num-return-sequences %u is more than --num-beams %u",
                       s->num_return_sequences, s->num_beams);
    if (s->num_beams > 1 && c->vocab <= s->eos_token_id.count + 1)
        return nw_fail(c->err, NW_E_ARG, 0, "--num-beams %u: a vocabulary of %u is too small to search", s->num_beams,
                       c->vocab);
    /* A file's minimum may meet a shorter maximum of the caller's: then no answer ends early, as in the reference. */
    bool min_by_caller = caller_gave(c, NW_GENERATION_MIN_NEW_TOKENS) || caller_gave(c, NW_GENERATION_MIN_LENGTH);
    if (min_by_caller && shortest > longest)
        return nw_fail(c->err, NW_E_ARG, 0, "--min-new-tokens %u is more than --max-new-tokens %u", shortest, longest);
    return NW_OK;
}

nw_code nw_generation_check(const nw_generation_settings *s, uint32_t by_caller, uint32_t vocab, nw_error *err)
{
    checker c = {.s = s, .by_caller = by_caller, .vocab = vocab, .err = err};
    nw_code rc = check_numbers(&c);
    if (rc == NW_OK)
        rc = check_lists(&c);
    if (rc == NW_OK)
        rc = check_words(&c);
    if (rc == NW_OK)
        rc = check_off(&c);
    if (rc == NW_OK)
        rc = check_unused(&c);
    return rc == NW_OK ? check_together(&c) : rc;
}

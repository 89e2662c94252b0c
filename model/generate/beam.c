/* Beam search. A step takes the beams' rows one after the other into a list of the best candidates, so no more than one
 * row is held besides the caller's; then the candidates are divided into those that end and those that run on.
 *
 * The reference works on tensors of fixed shape, with -1e9 in the place of what is not there yet and f32 sums; where
 * that shows (the first step's other beams, a step that leaves hardly any candidate) the same numbers are used here.
 * Its topk leaves the order of equal scores open; here the earlier beam and the lower id come first. */
#include "model/beam.h"

#include <math.h>
#include <string.h>

#define NO_SCORE (-1.0e9f)

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* e^x in double, plain operations only. x = n ln 2 + r, |r| <= ln 2 / 2; Taylor's series to r^13 / 13! (the rest is
 * below 2^-53); ln 2 in two parts as in natural_log.c. Its results are rounded to f32. */
static double exponential(double x)
{
    if (x > 700 || x < -700)
        return x > 0 ? (double)INFINITY : 0;
    double n = floor(x * 0x1.71547652b82fep0 + 0.5);
    double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double sum = 1;
    for (int i = 13; i >= 1; i--)
        sum = 1 + r * sum / i;
    return ldexp(sum, (int)n);
}

/* score / length^penalty. */
static float score_per_length(float score, size_t length, double penalty)
{
    return score / (float)exponential(penalty * nw_ln((double)length));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t candidate_max(size_t beams, size_t ends)
{
    return beams * nw_max_size(2, 1 + ends);
}

static void paths_layout(nw_beam_paths *p, nw_arena *a, const nw_beam_maxima *m)
{
    p->ids = nw_carve(a, m->beams * m->length, sizeof *p->ids, 64);
    p->logprobs = nw_carve(a, m->beams * m->length, sizeof *p->logprobs, 64);
}

void nw_beam_layout(nw_beam *b, nw_arena *a)
{
    const nw_beam_maxima *m = &b->maxima;
    NW_CHECK(m->beams >= 1 && m->beams <= NW_BEAMS_MAX);
    paths_layout(&b->paths[0], a, m);
    paths_layout(&b->paths[1], a, m);
    paths_layout(&b->kept, a, m);
    b->candidates = nw_carve(a, candidate_max(m->beams, NW_EOS_MAX), sizeof *b->candidates, 64);
    b->row = nw_carve(a, m->vocab, sizeof *b->row, 64);
    b->scratch = nw_carve(a, m->length, sizeof *b->scratch, 64);
}

static uint32_t *ids_of(const nw_beam *b, const nw_beam_paths *p, size_t index)
{
    return p->ids + index * b->maxima.length;
}

static float *logprobs_of(const nw_beam *b, const nw_beam_paths *p, size_t index)
{
    return p->logprobs + index * b->maxima.length;
}

/* ---- a search ---------------------------------------------------------------------------------------------------- */

void nw_beam_start(nw_beam *b, const nw_processors *p, const uint32_t *prompt)
{
    const nw_generation_settings *s = p->settings;
    NW_CHECK(s->num_beams >= 1 && s->num_beams <= b->maxima.beams);
    NW_CHECK(p->vocab == b->maxima.vocab && p->max_length <= b->maxima.length);
    NW_CHECK(p->prompt_count >= 1 && p->prompt_count < p->max_length);
    NW_CHECK(p->vocab >= nw_max_size(2, 1 + s->eos_token_id.count));
    b->processors = p;
    b->num_beams = s->num_beams;
    b->count = p->prompt_count;
    b->rows = 0;
    b->at = 0;
    b->candidate_count = 0;
    b->candidate_max = candidate_max(b->num_beams, s->eos_token_id.count);
    for (size_t i = 0; i < b->num_beams; i++) {
        b->running[i] = i == 0 ? 0 : NO_SCORE;
        b->ended[i] = (nw_beam_hypothesis){.score = NO_SCORE, .slot = (uint32_t)i};
        memcpy(ids_of(b, &b->paths[0], i), prompt, b->count * sizeof *prompt);
        memset(logprobs_of(b, &b->paths[0], i), 0, b->count * sizeof(float));
    }
}

static bool is_first(const nw_beam *b)
{
    return b->count == b->processors->prompt_count;
}

size_t nw_beam_row_count(const nw_beam *b)
{
    return is_first(b) ? 1 : b->num_beams;
}

const uint32_t *nw_beam_ids(const nw_beam *b, size_t beam)
{
    NW_CHECK(beam < b->num_beams);
    return ids_of(b, &b->paths[b->at], beam);
}

/* Puts a candidate in its place, behind those of the same score. */
static void insert(nw_beam *b, nw_beam_candidate c)
{
    size_t at = b->candidate_count < b->candidate_max ? b->candidate_count++ : b->candidate_count - 1;
    for (; at > 0 && b->candidates[at - 1].score < c.score; at--)
        b->candidates[at] = b->candidates[at - 1];
    b->candidates[at] = c;
}

/* Candidates of one beam, from its processed log-probabilities. */
static void take_candidates(nw_beam *b, uint32_t beam)
{
    float running = b->running[beam];
    for (size_t i = 0; i < b->maxima.vocab; i++) {
        float score = b->row[i] + running;
        bool  full = b->candidate_count == b->candidate_max;
        if (!full || score > b->candidates[b->candidate_max - 1].score)
            insert(b, (nw_beam_candidate){.score = score, .beam = beam, .token = (uint32_t)i});
    }
}

void nw_beam_row(nw_beam *b, const nw_kernels *k, size_t beam, const float *logits)
{
    NW_CHECK(beam == b->rows && beam < nw_beam_row_count(b));
    float  max, sum;
    size_t vocab = b->maxima.vocab;
    k->exp_sum(logits, vocab, &max, &sum);
    float log_sum = (float)nw_ln((double)sum);
    for (size_t i = 0; i < vocab; i++) {
        float value = (logits[i] - max) - log_sum;
        b->row[i] = isnan(value) ? -INFINITY : value;
    }
    nw_processors_apply(b->processors, nw_beam_ids(b, beam), b->count, b->row, b->scratch);
    /* In the first step all beams are alike, and all but the first are as good as nothing. */
    size_t copies = is_first(b) ? b->num_beams : 1;
    for (size_t i = 0; i < copies; i++)
        take_candidates(b, (uint32_t)(beam + i));
    /* Of those that this row brought, what they are worth without processors. */
    for (size_t i = 0; i < b->candidate_count; i++) {
        nw_beam_candidate *c = &b->candidates[i];
        if (c->beam >= beam)
            c->logprob = (logits[c->token] - max) - log_sum;
    }
    b->rows++;
}

/* Writes what a candidate's sequence is, b->count + 1 ids, to place `index` of `to`. */
static void write_path(nw_beam *b, const nw_beam_candidate *c, const nw_beam_paths *to, size_t index)
{
    const nw_beam_paths *from = &b->paths[b->at];
    uint32_t            *ids = ids_of(b, to, index);
    float               *logprobs = logprobs_of(b, to, index);
    memcpy(ids, ids_of(b, from, c->beam), b->count * sizeof *ids);
    memcpy(logprobs, logprobs_of(b, from, c->beam), b->count * sizeof *logprobs);
    ids[b->count] = c->token;
    logprobs[b->count] = c->logprob;
}

/* Whether a candidate's sequence is at its end. Uses the first of the next paths, which are not in use yet. */
static bool ends(nw_beam *b, const nw_beam_candidate *c)
{
    const nw_processors *p = b->processors;
    const nw_end_ids    *eos = &p->settings->eos_token_id;
    if (b->count + 1 >= p->max_length)
        return true;
    for (uint32_t i = 0; i < eos->count; i++) {
        if (eos->ids[i] == c->token)
            return true;
    }
    if (b->stops == NULL)
        return false;
    write_path(b, c, &b->paths[!b->at], 0);
    return b->stops(b->user, ids_of(b, &b->paths[!b->at], 0), b->count + 1);
}

/* Keeps a hypothesis if it is better than the worst that is kept; behind those of the same score. */
static void keep(nw_beam *b, const nw_beam_candidate *c)
{
    const nw_processors *p = b->processors;
    float  score = score_per_length(c->score, b->count + 1 - p->prompt_count, p->settings->length_penalty);
    size_t at = b->num_beams - 1;
    if (!(score > b->ended[at].score))
        return;
    uint32_t slot = b->ended[at].slot;
    for (; at > 0 && score > b->ended[at - 1].score; at--)
        b->ended[at] = b->ended[at - 1];
    b->ended[at] = (nw_beam_hypothesis){.score = score, .slot = slot, .count = (uint32_t)b->count + 1};
    write_path(b, c, &b->kept, slot);
}

/* Whether a running beam could still become better than the worst hypothesis; true while there are too few. */
static bool can_improve(const nw_beam *b)
{
    const nw_processors          *p = b->processors;
    const nw_generation_settings *s = p->settings;
    bool                          at_longest = s->early_stopping == NW_EARLY_NEVER && s->length_penalty > 0;
    size_t                        length = (at_longest ? p->max_length : b->count) - p->prompt_count;
    float                         best = score_per_length(b->running[0], length, s->length_penalty);
    /* Best first, so if one is missing it is the last, with -1e9, and that is what the reference compares with. */
    return best > b->ended[b->num_beams - 1].score;
}

/* Keeps the hypotheses that this step ends, and takes what has ended out of the race. Returns how many go on. */
static size_t end_candidates(nw_beam *b)
{
    size_t going = 0;
    for (size_t i = 0; i < b->candidate_count; i++) {
        nw_beam_candidate *c = &b->candidates[i];
        bool               over = ends(b, c);
        if (over && i < b->num_beams)
            keep(b, c);
        if (over)
            c->score += NO_SCORE;
        else
            going++;
    }
    return going;
}

/* The best candidates run on, best first, equal ones in their order. Where a stop string leaves fewer than num_beams,
 * those that have ended fill the places, as good as nothing, as in the reference. */
static void choose_running(nw_beam *b)
{
    bool     first = is_first(b);
    uint32_t chosen[NW_BEAMS_MAX];
    size_t   count = 0;
    for (uint32_t i = 0; i < b->candidate_count; i++) {
        float  score = b->candidates[i].score;
        size_t at = count;
        for (; at > 0 && b->candidates[chosen[at - 1]].score < score; at--) {
            if (at < b->num_beams)
                chosen[at] = chosen[at - 1];
        }
        if (at < b->num_beams)
            chosen[at] = i;
        count = nw_min_size(count + 1, b->num_beams);
    }
    for (size_t i = 0; i < b->num_beams; i++) {
        const nw_beam_candidate *c = &b->candidates[chosen[i]];
        b->running[i] = c->score;
        b->next[i] = (nw_beam_next){.parent = first ? 0 : c->beam, .token = c->token};
        write_path(b, c, &b->paths[!b->at], i);
    }
}

bool nw_beam_advance(nw_beam *b)
{
    NW_CHECK(b->rows == nw_beam_row_count(b) && b->candidate_count == b->candidate_max);
    size_t going = end_candidates(b);
    choose_running(b);
    b->at = !b->at;
    b->count++;
    b->rows = 0;
    b->candidate_count = 0;
    bool full = b->ended[b->num_beams - 1].count > 0;
    bool stops_when_full = b->processors->settings->early_stopping == NW_EARLY_TRUE;
    return going > 0 && !(full && stops_when_full) && can_improve(b);
}

bool nw_beam_result(const nw_beam *b, size_t index, const uint32_t **ret_ids, const float **ret_logprobs,
                    size_t *ret_count, double *ret_score)
{
    if (index >= b->num_beams || b->ended[index].count == 0)
        return false;
    const nw_beam_hypothesis *h = &b->ended[index];
    size_t                    prompt = b->processors->prompt_count;
    *ret_ids = ids_of(b, &b->kept, h->slot) + prompt;
    *ret_logprobs = logprobs_of(b, &b->kept, h->slot) + prompt;
    *ret_count = h->count - prompt;
    *ret_score = (double)h->score;
    return true;
}

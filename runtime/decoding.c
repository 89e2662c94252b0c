/* Columns and tokens of lanes. A lane feeds its last token, and may feed behind it tokens that it was given or guesses.
 * Each of these columns tells the next token; for as long as that is what the next column was fed, the lane takes one
 * more. What it fed in vain leaves rows of K and V that the next pass writes over. So a guess saves passes, and never
 * changes what is chosen. */
#include "decoding.h"

#include "draft_model.h"
#include "system.h"

#include <math.h>
#include <string.h>

static size_t output_tokens(const nw_session *s)
{
    return s->blueprint.shape.maxima.output_tokens;
}

static lane *lane_of(nw_session *s, const request *r, size_t branch)
{
    for (size_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].owner == r && s->lanes[i].branch == branch)
            return &s->lanes[i];
    }
    return NULL;
}

static void end_lane(nw_session *s, lane *l)
{
    if (s->draft != NULL)
        nw_draft_end(s->draft, (size_t)(l - s->lanes));
    l->owner->lanes--;
    l->owner = NULL;
    l->columns = 0;
}

void nw_request_end(nw_session *s, request *r)
{
    for (size_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].owner == r)
            end_lane(s, &s->lanes[i]);
    }
    if (r->search != NULL)
        r->search->processors = NULL; /* free */
    if (r->placed[NW_KV_SELF])
        nw_kv_stream_give(&s->parts.kv_stream, NW_KV_SELF, r->self.place);
    if (r->placed[NW_KV_CROSS])
        nw_kv_stream_give(&s->parts.kv_stream, NW_KV_CROSS, r->cross.kv.place);
    r->placed[NW_KV_SELF] = r->placed[NW_KV_CROSS] = false;
    nw_page_pool_give(&s->parts.self, &r->self);
    nw_page_pool_give(&s->parts.cross, &r->cross.kv);
    s->ended += r->state == REQUEST_LIVE ? 1 : 0;
    r->state = REQUEST_FREE;
}

/* What a sequence is given of its answer. */
static void give(lane *l)
{
    const request *r = l->owner;
    l->given = r->given;
    l->given_count = r->ask.choice_count > 0 ? r->choice_lens[l->branch] : r->ask.forced_count;
    for (size_t i = 0; i < l->branch && r->ask.choice_count > 0; i++)
        l->given += r->choice_lens[i];
}

void nw_lane_start(nw_session *s, lane *l, request *r, size_t branch)
{
    size_t i = (size_t)(l - s->lanes), output = output_tokens(s);
    *l = (lane){.owner = r,
                .branch = branch,
                .ids = s->parts.lane_ids + i * (1 + output),
                .logprobs = s->parts.lane_logprobs + i * output,
                .stop = r->processors.settings->stop_strings.count > 0 ? &s->parts.stops[i] : NULL};
    l->ids[0] = l->token = r->processors.settings->decoder_start_token_id;
    give(l);
    if (l->stop != NULL)
        nw_stop_init(l->stop, &r->processors.settings->stop_strings);
    if (r->search != NULL) {
        l->path = s->parts.lane_paths + i * 2 * output;
        l->path_next = l->path + output;
    }
}

/* ---- columns ---- */

/* Whether a lane's tokens are guessed at all. */
static bool is_guessed(const lane *l)
{
    const request *r = l->owner;
    return r != NULL && !r->ask.lookup_off && r->search == NULL && r->ask.choice_count == 0;
}

nw_code nw_lanes_guess(nw_session *s, nw_error *err)
{
    size_t n = 0, live = s->lane_count, columns = s->blueprint.shape.maxima.columns;
    for (size_t i = 0; i < s->lane_count; i++)
        live -= s->lanes[i].owner == NULL ? 1 : 0;
    if (s->draft == NULL || live == 0)
        return NW_OK;
    size_t most = nw_min_size((columns - live) / live, NW_DRAFT_MAX);
    for (size_t i = 0; i < s->lane_count; i++) {
        lane *l = &s->lanes[i];
        l->drafted = 0;
        if (!is_guessed(l) || l->count < l->given_count)
            continue;
        size_t want = nw_min_size(most, l->owner->max_new - l->count - 1);
        want = nw_draft_length(&s->guesses, 1, s->blueprint.plan.column_cost, want);
        if (want > 0)
            s->parts.asks[n++] = (nw_draft_ask){.lane = i,
                                                .input = l->owner->input,
                                                .input_count = l->owner->ask.input_count,
                                                .ids = l->ids,
                                                .count = l->count,
                                                .want = want,
                                                .draft = l->draft};
    }
    nw_code rc = n > 0 ? nw_draft_guess(s->draft, s->parts.asks, n, err) : NW_OK;
    for (size_t i = 0; i < n && rc == NW_OK; i++)
        s->lanes[s->parts.asks[i].lane].drafted = s->parts.asks[i].got;
    return rc;
}

/* Looks for a guess at what follows; at most `most` tokens. Returns how many are worth feeding. */
static size_t guess(nw_session *s, lane *l, size_t most)
{
    const request      *r = l->owner;
    const nw_end_ids   *eos = &r->processors.settings->eos_token_id;
    const nw_draft_text text = {.input = r->input,
                                .input_count = r->ask.input_count,
                                .written = l->ids + 1,
                                .written_count = l->count,
                                .eos_ids = eos->ids,
                                .eos_count = eos->count};
    l->match = 0;
    most = nw_min_size(most, NW_DRAFT_MAX);
    if (s->draft != NULL && l->drafted > 0 && most > 0) {
        l->match = 1;
        return nw_min_size(most, l->drafted);
    }
    if (s->draft != NULL || !is_guessed(l) || most == 0 || l->count == 0)
        return 0;
    size_t found = nw_draft_lookup(&text, most, l->draft, &l->match);
    return found > 0 ? nw_draft_length(&s->guesses, l->match, s->blueprint.plan.column_cost, found) : 0;
}

size_t nw_request_positions(const nw_session *s, const request *r)
{
    size_t count = SIZE_MAX;
    for (size_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].owner == r)
            count = nw_min_size(count, s->lanes[i].count);
    }
    return count;
}

/* Columns behind the first for which there are pages. Where a request has its last pages only, no sequence runs so far
 * ahead of the slowest that the pages between them would not hold the next position of both. */
static size_t columns_paged(const nw_session *s, const lane *l)
{
    const request  *r = l->owner;
    const nw_shape *shape = &s->blueprint.shape;
    if (shape->self_ring == 0)
        return SIZE_MAX;
    size_t ahead = (size_t)(shape->self_ring - 1) * shape->self_rows / r->width - 2; /* rows are 2 * width or more */
    size_t reach = nw_request_positions(s, r) + ahead;
    return reach - nw_min_size(l->count, reach);
}

/* Columns behind the first that a lane has a use for, at most `most`. */
static size_t columns_more(nw_session *s, lane *l, size_t most)
{
    const request *r = l->owner;
    if (r->search != NULL)
        return 0;
    most = nw_min_size(most, columns_paged(s, l));
    size_t whole = r->ask.choice_count > 0 ? l->given_count : r->max_new;
    most = nw_min_size(most, whole - l->count - 1);
    l->match = 0;
    return l->given_count > l->count ? nw_min_size(most, l->given_count - l->count) : guess(s, l, most);
}

/* Column i of a lane: its token is the one at position count + i. */
static nw_column column_of(const lane *l, size_t i)
{
    const request *r = l->owner;
    uint32_t       last = r->search != NULL ? l->token : l->ids[l->count];
    uint32_t       more = i == 0 ? 0 : l->match > 0 ? l->draft[i - 1] : l->given[l->count + i - 1];
    return (nw_column){.token = i == 0 ? last : more,
                       .position = (uint32_t)(l->count + i),
                       .self = &r->self,
                       .branches = (uint32_t)r->width,
                       .branch = (uint32_t)l->branch,
                       .path = r->search != NULL ? l->path : NULL,
                       .cross = &r->cross};
}

/* In the first step of a search all beams are alike: one of them is enough. */
static bool idles(const lane *l)
{
    return l->owner == NULL || (l->owner->search != NULL && l->branch >= nw_beam_row_count(l->owner->search));
}

size_t nw_lanes_lay(nw_session *s)
{
    size_t live = 0, n = 0;
    for (size_t i = 0; i < s->lane_count; i++)
        live += idles(&s->lanes[i]) ? 0 : 1;
    size_t spare = s->blueprint.shape.maxima.columns - live;
    for (size_t i = 0; i < s->lane_count; i++) {
        lane *l = &s->lanes[i];
        if (idles(l))
            continue;
        size_t more = columns_more(s, l, spare / live--);
        spare -= more;
        l->column = n;
        l->columns = 1 + more;
        for (size_t k = 0; k < l->columns; k++)
            s->parts.columns[n++] = column_of(l, k);
    }
    return n;
}

/* ---- choosing ---- */

/* What a token is chosen from: the logits, or what processors and warpers make of them. */
static const float *make_scores(const nw_session *s, const lane *l, const float *logits)
{
    const request *r = l->owner;
    size_t         vocab = s->model->config.vocab_size;
    if (!r->processed)
        return logits;
    nw_warp_scratch warp = s->parts.warp;
    memcpy(s->parts.scores, logits, vocab * sizeof *logits);
    nw_processors_apply(&r->processors, l->ids, l->count + 1, s->parts.scores, s->parts.processor_scratch);
    if (r->processors.settings->do_sample)
        nw_warp(s->kernels, r->processors.settings, s->parts.scores, &warp);
    return s->parts.scores;
}

static uint32_t choose(const nw_session *s, const lane *l, const float *scores)
{
    const request *r = l->owner;
    size_t         vocab = s->model->config.vocab_size;
    if (l->count < l->given_count)
        return l->given[l->count];
    if (!r->processors.settings->do_sample)
        return (uint32_t)s->kernels->argmax(scores, vocab);
    memcpy(s->parts.probabilities, scores, vocab * sizeof *scores);
    if (!nw_probabilities(s->kernels, s->parts.probabilities, vocab))
        return (uint32_t)s->kernels->argmax(scores, vocab); /* nothing is left to draw from: 0 */
    return nw_draw(s->parts.probabilities, vocab, r->ask.seed, l->branch, l->count);
}

static bool is_end(const nw_generation_settings *g, uint32_t id)
{
    for (uint32_t i = 0; i < g->eos_token_id.count; i++) {
        if (g->eos_token_id.ids[i] == id)
            return true;
    }
    return false;
}

/* ---- telling ---- */

/* Fills `top` with what the request asks for, and shows it in the token. */
static void give_candidates(const nw_session *s, const request *r, const float *logits, nw_candidate *top, nw_token *t)
{
    uint32_t ids[NW_CANDIDATES_MAX];
    double   logprobs[NW_CANDIDATES_MAX];
    if (r->ask.top_count == 0)
        return;
    nw_log_probabilities_top(s->kernels, logits, s->model->config.vocab_size, r->ask.top_count, ids, logprobs);
    for (size_t i = 0; i < r->ask.top_count; i++)
        top[i] = (nw_candidate){.id = ids[i], .logprob = logprobs[i]};
    t->top = top;
    t->top_count = r->ask.top_count;
}

/* Adds the text of one id, or with NW_TEXT_END what is held back, to what is shown of the token. Whether a stop string
 * is complete: they are looked for behind what is given. */
static bool add_text(nw_session *s, lane *l, uint32_t id, nw_token *t)
{
    if (s->model->pieces == NULL) /* answers are ids only */
        return false;
    char   piece[NW_TEXT_MAX];
    char  *shown = s->parts.text + t->text_len;
    size_t room = NW_SHOWN_MAX - t->text_len, len = 0;
    size_t bytes = nw_model_decode_text(s->model, &l->text, id, piece, nw_min_size(sizeof piece, room));
    bool   stopped = false;
    if (l->stop == NULL || l->count <= l->given_count) {
        memcpy(shown, piece, bytes);
        len = bytes;
    } else {
        bytes = nw_min_size(bytes, room > NW_STOP_BYTES_MAX ? room - NW_STOP_BYTES_MAX : 0);
        stopped = nw_stop_feed(l->stop, piece, bytes, shown, &len);
    }
    t->text = s->parts.text;
    t->text_len += len;
    return stopped;
}

/* The end of a text: what was held back is no stop string. */
static void end_text(nw_session *s, lane *l, nw_token *t)
{
    (void)add_text(s, l, NW_TEXT_END, t);
    if (l->stop != NULL && NW_SHOWN_MAX - t->text_len >= NW_STOP_BYTES_MAX)
        t->text_len += nw_stop_end(l->stop, s->parts.text + t->text_len);
}

static nw_finish finish_of(const lane *l, uint32_t id, bool stopped)
{
    const request *r = l->owner;
    bool           given = l->count < l->given_count; /* what is given is no end: a caller scores what it likes */
    if (is_end(r->processors.settings, id) && !given)
        return NW_FINISH_EOS;
    if (stopped)
        return NW_FINISH_STOP;
    bool whole = r->ask.choice_count > 0 && l->count == l->given_count;
    return whole || l->count == r->max_new ? NW_FINISH_LENGTH : NW_FINISH_NONE;
}

/* Tells what a finished lane has made. */
static void tell_sequence(const lane *l, nw_finish finish)
{
    const request *r = l->owner;
    nw_sequence    q = {.request = r->id,
                        .sequence = l->branch,
                        .ids = l->ids + 1,
                        .logprobs = r->ask.logprobs ? l->logprobs : NULL,
                        .count = l->count,
                        .score = (double)NAN,
                        .finish = finish,
                        .last = r->lanes == 1};
    if (r->ask.on_sequence != NULL)
        r->ask.on_sequence(r->ask.user, &q);
}

/* After a lane's token: its sequence, and with the last one its request, may be done. The callbacks come last but for
 * what they see: they may submit the next request into this place. */
static bool tell_token(nw_session *s, lane *l, const nw_token *t)
{
    request *r = l->owner;
    size_t   branch = l->branch;
    bool     more = r->ask.on_token == NULL || r->ask.on_token(r->ask.user, t);
    if (!nw_request_is_at(r, t->request) || lane_of(s, r, branch) != l)
        return false; /* cancelled */
    if (more && t->finish == NW_FINISH_NONE)
        return true;
    tell_sequence(l, t->finish != NW_FINISH_NONE ? t->finish : NW_FINISH_STOP);
    if (!nw_request_is_at(r, t->request))
        return false;
    if (r->lanes == 1)
        nw_request_end(s, r);
    else
        end_lane(s, l);
    return false;
}

/* Chooses a lane's next token from its logits and tells the caller. Whether the lane goes on. */
static bool take_token(nw_session *s, lane *l, const float *logits)
{
    request     *r = l->owner;
    nw_candidate top[NW_CANDIDATES_MAX];
    size_t       vocab = s->model->config.vocab_size;
    const float *scores = make_scores(s, l, logits);
    nw_token     t = {.request = r->id,
                      .sequence = l->branch,
                      .index = l->count,
                      .logits = logits,
                      .scores = scores,
                      .logprob = (double)NAN};
    t.id = choose(s, l, scores);
    if (r->ask.logprobs)
        t.logprob = nw_log_probability(s->kernels, logits, vocab, t.id);
    give_candidates(s, r, logits, top, &t);
    l->logprobs[l->count] = t.logprob;
    l->ids[++l->count] = t.id;
    s->stats.tokens++;
    if (l->count == 1)
        s->stats.seconds_first_token = nw_system_seconds() - r->start_seconds;
    bool stopped = add_text(s, l, t.id, &t);
    t.finish = finish_of(l, t.id, stopped);
    if (t.finish != NW_FINISH_NONE)
        end_text(s, l, &t);
    return tell_token(s, l, &t);
}

/* A lane takes tokens from its columns for as long as what it chooses is what the next one was fed. */
static void take_tokens(nw_session *s, lane *l)
{
    size_t columns = l->columns, vocab = s->model->config.vocab_size, taken = 0, match = l->match;
    bool   more = true;
    while (more && taken < columns) {
        size_t column = l->column + taken;
        if (taken > 0 && s->parts.columns[column].token != l->ids[l->count])
            break;
        more = take_token(s, l, s->parts.logits + column * vocab);
        taken++;
    }
    s->stats.drafted += match > 0 ? columns - 1 : 0;
    s->stats.accepted += match > 0 ? taken - 1 : 0;
    if (more && s->draft != NULL)
        nw_draft_keep(s->draft, (size_t)(l - s->lanes), l->count);
    if (match > 0 && columns > 1 && (more || taken == columns))
        nw_draft_learn(&s->guesses, match, columns - 1, taken - 1);
}

/* ---- beams ---- */

static bool no_text(void *user, const char *text, size_t len)
{
    (void)user;
    (void)text;
    (void)len;
    return true;
}

/* Whether the text of a beam's ids has come to a stop string. */
static bool beam_stops(void *user, const uint32_t *ids, size_t count)
{
    const request *r = user;
    bool           stopped;
    (void)nw_decode_ids_until(r->model, r->processors.settings, ids + 1, count - 1, no_text, NULL, &stopped);
    return stopped;
}

void nw_search_start(request *r)
{
    uint32_t start = r->processors.settings->decoder_start_token_id;
    r->search->stops = r->processors.settings->stop_strings.count > 0 ? beam_stops : NULL;
    r->search->user = r;
    nw_beam_start(r->search, &r->processors, &start);
}

static nw_finish beam_finish(const request *r, const uint32_t *ids, size_t count)
{
    if (is_end(r->processors.settings, ids[count - 1]))
        return NW_FINISH_EOS;
    return count == r->max_new ? NW_FINISH_LENGTH : NW_FINISH_STOP;
}

static void end_search(nw_session *s, request *r)
{
    size_t  returned = r->processors.settings->num_return_sequences;
    lane   *first = lane_of(s, r, 0);
    double *logprobs = first->logprobs;
    for (size_t i = 0; i < returned && r->ask.on_sequence != NULL; i++) {
        const float *worth;
        nw_sequence  q = {.request = r->id,
                          .sequence = i,
                          .ids = first->ids, /* none of them, if there are fewer hypotheses */
                          .score = (double)NAN,
                          .last = i + 1 == returned};
        uint64_t     id = r->id;
        if (!nw_beam_result(r->search, i, &q.ids, &worth, &q.count, &q.score) || q.count == 0)
            q.count = 0;
        for (size_t k = 0; k < q.count; k++)
            logprobs[k] = (double)worth[k];
        q.logprobs = r->ask.logprobs ? logprobs : NULL;
        q.finish = q.count > 0 ? beam_finish(r, q.ids, q.count) : NW_FINISH_LENGTH;
        r->ask.on_sequence(r->ask.user, &q);
        if (!nw_request_is_at(r, id))
            return;
    }
    nw_request_end(s, r);
}

/* Each beam goes on with the past of the one that it continues. */
static void follow_parents(nw_session *s, request *r)
{
    lane *of[NW_BEAMS_MAX];
    for (size_t i = 0; i < r->width; i++)
        of[i] = lane_of(s, r, i);
    for (size_t i = 0; i < r->width; i++) {
        const lane *parent = of[r->search->next[i].parent];
        memcpy(of[i]->path_next, parent->path, of[0]->count * sizeof *parent->path);
        of[i]->path_next[of[0]->count] = (uint16_t)parent->branch;
    }
    size_t count = of[0]->count + 1;
    for (size_t i = 0; i < r->width; i++) {
        uint16_t *path = of[i]->path;
        of[i]->path = of[i]->path_next;
        of[i]->path_next = path;
        of[i]->token = r->search->next[i].token;
        of[i]->count = count;
    }
}

/* One step of a search, when the pass has given the logits of all its beams. */
static void step_search(nw_session *s, request *r)
{
    size_t rows = nw_beam_row_count(r->search), vocab = s->model->config.vocab_size;
    for (size_t i = 0; i < rows; i++) {
        lane *l = lane_of(s, r, i);
        l->columns = 0;
        nw_beam_row(r->search, s->kernels, i, s->parts.logits + l->column * vocab);
    }
    if (lane_of(s, r, 0)->count == 0)
        s->stats.seconds_first_token = nw_system_seconds() - r->start_seconds;
    s->stats.tokens += rows;
    if (nw_beam_advance(r->search))
        follow_parents(s, r);
    else
        end_search(s, r);
}

void nw_lanes_take(nw_session *s)
{
    for (size_t i = 0; i < s->lane_count; i++) {
        lane *l = &s->lanes[i];
        if (l->columns == 0)
            continue;
        if (l->owner->search != NULL)
            step_search(s, l->owner);
        else
            take_tokens(s, l);
        l->columns = 0;
    }
}

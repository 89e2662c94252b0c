/* What is generated, and for whom: requests, and when they get which lanes.
 *
 * Life of a request: WAITING (its ids are copied) -> ENCODED with others in one pass over the encoder, cross-attention
 * K and V made -> LIVE: it has a lane for each of its sequences, and each gets at least one token a pass -> done. First
 * come, first served: nobody overtakes. A failed or stopped pass drops all requests and leaves a usable session.
 */
#include "decoding.h"
#include "system.h"

#include <math.h>
#include <string.h>

/* ---- requests ---- */

/* The oldest in this state whose id is `from` or above. */
static request *next_request(const nw_session *s, request_state state, uint64_t from)
{
    request *oldest = NULL;
    for (size_t i = 0; i < s->request_count; i++) {
        request *r = &s->requests[i];
        if (r->state == state && r->id >= from && (oldest == NULL || r->id < oldest->id))
            oldest = r;
    }
    return oldest;
}

static request *find_request(const nw_session *s, request_state state)
{
    return next_request(s, state, 0);
}

static size_t count_requests(const nw_session *s, request_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < s->request_count; i++)
        count += s->requests[i].state == state ? 1 : 0;
    return count;
}

static size_t lanes_free(const nw_session *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->lane_count; i++)
        count += s->lanes[i].owner == NULL ? 1 : 0;
    return count;
}

void nw_session_drop_requests(nw_session *s)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (s->requests[i].state != REQUEST_FREE)
            nw_request_end(s, &s->requests[i]);
    }
}

static const nw_generation_settings *settings_of(const nw_session *s, const nw_request *q)
{
    return q->settings != NULL ? q->settings : &s->greedy;
}

static size_t max_new_of(const nw_session *s, const nw_request *q)
{
    size_t most = s->blueprint.shape.maxima.output_tokens;
    if (q->max_new_tokens != 0)
        return q->max_new_tokens;
    return nw_min_size(most, nw_generation_max_new(settings_of(s, q), (uint32_t)most));
}

/* What the sequences are given of their answers. */
static nw_code check_given(const nw_session *s, const nw_request *q, nw_error *err)
{
    size_t most = max_new_of(s, q), sum = 0;
    if ((q->forced_count > 0 && q->forced_ids == NULL) ||
        (q->choice_count > 0 && (q->choice_ids == NULL || q->choice_lens == NULL)))
        return nw_fail(err, NW_E_ARG, 0, "tokens are to be forced or judged, but none are given");
    bool searches = settings_of(s, q)->num_beams > 1 && !settings_of(s, q)->do_sample;
    if (q->forced_count > 0 && (q->choice_count > 0 || searches))
        return nw_fail(err, NW_E_ARG, 0, "tokens cannot be forced upon %s",
                       searches ? "beams" : "answers that are given as a whole");
    if (q->forced_count > most)
        return nw_fail(err, NW_E_ARG, 0, "more tokens are forced than the answer may have");
    nw_code rc = nw_session_check_ids(s, q->forced_ids, q->forced_count, err);
    if (rc != NW_OK)
        return rc;
    if (q->choice_count > s->blueprint.shape.choices) {
        return nw_fail(err, NW_E_ARG, 0, "%zu answers are to be judged; this session takes at most %zu",
                       q->choice_count, s->blueprint.shape.choices);
    }
    for (size_t i = 0; i < q->choice_count; i++) {
        if (q->choice_lens[i] == 0 || q->choice_lens[i] > most)
            return nw_fail(err, NW_E_ARG, 0, "answer %zu has %zu tokens, not 1 to %zu", i, q->choice_lens[i], most);
        sum += q->choice_lens[i];
    }
    return nw_session_check_ids(s, q->choice_ids, sum, err);
}

/* Settings that the session has no memory for, or that were not filled in. */
static nw_code check_settings(const nw_session *s, const nw_generation_settings *g, nw_error *err)
{
    const nw_shape *shape = &s->blueprint.shape;
    nw_processors   p = {.settings = g, .prompt_count = 1, .max_length = 1 + shape->maxima.output_tokens};
    size_t          width = g->do_sample ? g->num_return_sequences : g->num_beams;
    nw_code         rc = nw_generation_check(g, 0, s->model->config.vocab_size, err);
    if (rc != NW_OK)
        return rc;
    if (g->eos_token_id.count == 0 || g->decoder_start_token_id == NW_ID_NONE)
        return nw_fail(err, NW_E_ARG, 0, "the settings have no end token, or no start token");
    bool unfit = width > shape->sequences || (!g->do_sample && g->num_beams > 1 && g->num_beams > shape->beams);
    unfit |= (g->do_sample || nw_processors_active(&p)) && !shape->processed && g->num_beams < 2;
    if (unfit || (g->stop_strings.count > 0 && !shape->stops))
        return nw_fail(err, NW_E_ARG, 0, "these settings ask for more than the session was opened for");
    if (g->stop_strings.count > 0 && s->model->pieces == NULL)
        return nw_fail(err, NW_E_TOKENIZER, 0, "stop strings need the model's tokenizer");
    return NW_OK;
}

static nw_code check_request(const nw_session *s, const nw_request *q, nw_error *err)
{
    const nw_maxima *max = &s->blueprint.shape.maxima;
    if (s->model->config.decoder_blocks == 0)
        return nw_fail(err, NW_E_ARG, 0, "%s: an encoder alone generates no text", s->model->path);
    if (s->blueprint.plan.encode_only)
        return nw_fail(err, NW_E_ARG, 0, "this session only encodes");
    if (s->lent)
        return nw_fail(err, NW_E_ARG, 0, "this session guesses for another one");
    if (q->input_count == 0 || q->input_ids == NULL)
        return nw_fail(err, NW_E_ARG, 0, "the prompt is empty");
    if (q->input_count > max->input_tokens) {
        return nw_fail(err, NW_E_ARG, 0, "the prompt has %zu tokens; this session takes at most %zu", q->input_count,
                       max->input_tokens);
    }
    if (q->max_new_tokens > max->output_tokens) {
        return nw_fail(err, NW_E_ARG, 0, "%zu new tokens are asked for; this session gives at most %zu",
                       q->max_new_tokens, max->output_tokens);
    }
    if (q->top_count > NW_CANDIDATES_MAX || q->top_count > s->model->config.vocab_size) {
        return nw_fail(err, NW_E_ARG, 0, "%zu candidates are asked for; at most %u are given", q->top_count,
                       (unsigned)nw_min_size(NW_CANDIDATES_MAX, s->model->config.vocab_size));
    }
    nw_code rc = check_given(s, q, err);
    if (rc == NW_OK && q->settings != NULL)
        rc = check_settings(s, q->settings, err);
    return rc == NW_OK ? nw_session_check_ids(s, q->input_ids, q->input_count, err) : rc;
}

/* Copies what a request is given into its place. */
static void copy_ids(nw_session *s, request *r)
{
    const nw_request *q = &r->ask;
    size_t            place = (size_t)(r - s->requests), sum = 0;
    r->input = s->parts.request_ids + place * nw_request_ids(&s->blueprint.shape);
    r->given = r->input + s->blueprint.shape.maxima.input_tokens;
    r->choice_lens = s->parts.choice_lens + place * s->blueprint.shape.choices;
    memcpy(r->input, q->input_ids, q->input_count * sizeof *r->input);
    for (size_t i = 0; i < q->choice_count; i++)
        sum += r->choice_lens[i] = q->choice_lens[i];
    if (q->choice_count > 0)
        memcpy(r->given, q->choice_ids, sum * sizeof *r->given);
    else if (q->forced_count > 0)
        memcpy(r->given, q->forced_ids, q->forced_count * sizeof *r->given);
}

nw_code nw_session_submit(nw_session *s, const nw_request *q, uint64_t *ret_id, nw_error *err)
{
    nw_code rc = check_request(s, q, err);
    if (rc != NW_OK)
        return rc;
    request *r = find_request(s, REQUEST_FREE);
    if (r == NULL)
        return nw_fail(err, NW_E_MEMORY, 0, "%zu requests are live or waiting already", s->request_count);
    const nw_generation_settings *g = settings_of(s, q);
    size_t                        place = (size_t)(r - s->requests), max_new = max_new_of(s, q);
    *r = (request){
        .state = REQUEST_WAITING,
        .id = ++s->last_id,
        .ask = *q,
        .model = s->model,
        .self_table = s->parts.self_tables + place * s->parts.self_table_len,
        .cross_table = s->parts.cross_tables + place * s->parts.cross_table_len,
        .max_new = max_new,
        .width = q->choice_count > 0 ? q->choice_count
                 : g->do_sample      ? g->num_return_sequences
                                     : g->num_beams,
        .processors = {
            .settings = g, .prompt_count = 1, .max_length = 1 + max_new, .vocab = s->model->config.vocab_size}};
    r->processed = q->choice_count == 0 && (g->do_sample || nw_processors_active(&r->processors));
    copy_ids(s, r);
    *ret_id = r->id;
    return NW_OK;
}

void nw_session_cancel(nw_session *s, uint64_t id)
{
    for (size_t i = 0; i < s->request_count; i++) {
        request *r = &s->requests[i];
        if (nw_request_is_at(r, id) && s->in_pass)
            r->cancelled = true;
        else if (nw_request_is_at(r, id))
            nw_request_end(s, r);
    }
}

/* What was cancelled in the middle of the step's passes. */
static void drop_cancelled(nw_session *s)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (s->requests[i].state != REQUEST_FREE && s->requests[i].cancelled)
            nw_request_end(s, &s->requests[i]);
    }
}

/* ---- when to encode ---- */

/* How many prompts are worth an encoder pass while answers are under way. The pass reads as much for one prompt as for
 * many, and a decode pass as much for some lanes as for all: with k prompts at a time each of them costs encode / k,
 * and the (k - 1) / 2 lanes that are empty in the mean cost so much of its answer's passes. The sum is least at this k.
 */
static size_t group_worth(const nw_session *s)
{
    const nw_plan  *p = &s->blueprint.plan;
    const nw_shape *shape = &s->blueprint.shape;
    double          lives = (double)(shape->lanes / shape->sequences);
    double          computing = p->column_cost * (double)shape->lanes;
    double          decode = p->seconds_per_token * (computing > 1 ? computing : 1);
    double          encode = (double)(p->read.encode + p->read.cross + p->read.refill) / p->disk_rate;
    double          answer = (double)s->live_passes / (double)nw_max_u64(1, s->ended);
    double          worth = lives * sqrt(2 * encode / (decode * fmax(answer, 1)));
    return (size_t)fmax(1, fmin(worth, lives / 2));
}

/* Whether a prompt may go through the encoder together with n others of `rows` tokens in all. NULL: it may not. */
static bool fits_encoding(const nw_session *s, const request *r, size_t n, size_t rows)
{
    const nw_shape *shape = &s->blueprint.shape;
    return r != NULL && n < shape->inputs && r->ask.input_count <= shape->maxima.encode_tokens - rows;
}

/* Pages that a prompt's K and V take; places, if they go to the disk. */
static size_t cross_need(const nw_session *s, size_t rows)
{
    return s->blueprint.shape.maxima.stream_cross ? 1 : nw_page_pool_need(&s->parts.cross, rows);
}

static size_t cross_free(const nw_session *s)
{
    return s->blueprint.shape.maxima.stream_cross ? nw_kv_stream_free(&s->parts.kv_stream, NW_KV_CROSS)
                                                  : s->parts.cross.free_count;
}

/* Whether prompts that wait should go through the encoder, with so many pages or places free: not if `live` requests
 * have the room that it takes to make the pass worth it. */
static bool is_time_to_encode(const nw_session *s, size_t room, size_t live)
{
    size_t   most = live > 0 ? group_worth(s) : 1, rows = 0;
    uint64_t from = 0;
    for (size_t n = 0; n < most; n++) {
        const request *r = next_request(s, REQUEST_WAITING, from);
        if (!fits_encoding(s, r, n, rows))
            return n > 0; /* there are no more, or no more go into one pass */
        size_t need = cross_need(s, r->ask.input_count);
        if (need > room)
            return false;
        room -= need;
        rows += r->ask.input_count;
        from = r->id + 1;
    }
    return true;
}

/* ---- admission ---- */

/* Where a request's cross-attention K and V will be. False: there is no room as yet. */
static bool take_cross(nw_session *s, request *r)
{
    if (s->blueprint.shape.maxima.stream_cross) {
        r->cross.kv = (nw_kv){.streamed = (uint32_t)r->ask.input_count};
        return r->placed[NW_KV_CROSS] = nw_kv_stream_take(&s->parts.kv_stream, NW_KV_CROSS, &r->cross.kv.place);
    }
    return nw_page_pool_take(&s->parts.cross, r->ask.input_count, r->cross_table, &r->cross.kv);
}

/* The next waiting request joins the encoder pass to come, if there is room for it. */
static bool join_encoding(nw_session *s, size_t *n, size_t *rows)
{
    request *r = find_request(s, REQUEST_WAITING);
    if (!fits_encoding(s, r, *n, *rows) || !take_cross(s, r))
        return false;
    r->cross.length = (uint32_t)r->ask.input_count;
    r->start_seconds = nw_system_seconds();
    r->state = REQUEST_ENCODED;
    s->parts.encode_inputs[*n] = (nw_encode_input){.ids = r->input, .count = r->ask.input_count};
    s->parts.crosses[(*n)++] = &r->cross;
    *rows += r->ask.input_count;
    return true;
}

/* As many waiting prompts as there is room for go through the encoder together. *ret_count: how many; 0: other requests
 * have the pages. */
static nw_code encode_waiting(nw_session *s, size_t *ret_count, nw_error *err)
{
    size_t n = 0, rows = 0;
    float *states = NULL;
    double start = nw_system_seconds();
    while (join_encoding(s, &n, &rows))
        ;
    *ret_count = n;
    if (n == 0)
        return NW_OK;
    nw_session_begin(s, NW_PASS_ENCODE, NW_PASS_CROSS);
    nw_code rc = nw_forward_encode(&s->parts.forward, s->parts.encode_inputs, n, &states, err);
    if (rc != NW_OK)
        return rc;
    bool again = lanes_free(s) > count_requests(s, REQUEST_ENCODED) && is_time_to_encode(s, cross_free(s), n);
    nw_session_begin(s, NW_PASS_CROSS, again ? NW_PASS_ENCODE : NW_PASS_DECODE);
    rc = nw_forward_cross(&s->parts.forward, states, s->parts.crosses, n, err);
    if (rc == NW_OK)
        rc = nw_window_kv_stored(&s->window, err);
    s->stats.prompts += n;
    s->stats.encode_passes++;
    s->stats.seconds_encode = nw_system_seconds() - start;
    return rc;
}

static nw_beam *free_search(const nw_session *s)
{
    for (size_t i = 0; i < s->blueprint.shape.searches; i++) {
        if (s->parts.searches[i].processors == NULL)
            return &s->parts.searches[i];
    }
    return NULL;
}

/* Pages for a request's answers, and a place for those that are streamed. False: there are too few as yet. */
static bool take_self(nw_session *s, request *r)
{
    nw_kv_stream *k = &s->parts.kv_stream;
    bool          streams = s->blueprint.shape.maxima.stream_self;
    if (streams && nw_kv_stream_free(k, NW_KV_SELF) == 0)
        return false;
    if (!nw_page_pool_take(&s->parts.self, r->width * r->max_new, r->self_table, &r->self))
        return false;
    r->placed[NW_KV_SELF] = streams && nw_kv_stream_take(k, NW_KV_SELF, &r->self.place);
    return true;
}

/* Gives an encoded request its lanes, pages, and search. False: there are too few as yet. */
static bool start(nw_session *s, request *r)
{
    bool     searches = r->ask.choice_count == 0 && !r->processors.settings->do_sample && r->width > 1;
    nw_beam *search = searches ? free_search(s) : NULL;
    size_t   branch = 0;
    if (lanes_free(s) < r->width || (searches && search == NULL))
        return false;
    if (!take_self(s, r))
        return false;
    r->search = search;
    if (searches)
        nw_search_start(r);
    for (size_t i = 0; i < s->lane_count && branch < r->width; i++) {
        if (s->lanes[i].owner == NULL)
            nw_lane_start(s, &s->lanes[i], r, branch++);
    }
    r->lanes = r->width;
    r->state = REQUEST_LIVE;
    return true;
}

/* Fills the free lanes, oldest request first. */
static nw_code admit(nw_session *s, nw_error *err)
{
    size_t  encoded = 1;
    nw_code rc = NW_OK;
    while (rc == NW_OK && encoded > 0 && lanes_free(s) > 0) {
        request *r = find_request(s, REQUEST_ENCODED);
        if (r != NULL && !start(s, r))
            break;
        if (r == NULL && !is_time_to_encode(s, cross_free(s), count_requests(s, REQUEST_LIVE)))
            break;
        if (r == NULL)
            rc = encode_waiting(s, &encoded, err);
    }
    return rc;
}

/* ---- steps ---- */

/* What will follow a decode pass, as far as can be known: the end token may come at any time. */
static nw_pass after_decode(const nw_session *s)
{
    size_t going_on = 0, encoded = count_requests(s, REQUEST_ENCODED), room = cross_free(s);
    for (size_t i = 0; i < s->lane_count; i++) {
        const lane *l = &s->lanes[i];
        bool        ends = l->owner != NULL && l->count + l->columns >= l->owner->max_new;
        going_on += l->owner != NULL && !ends;
        room += ends && l->owner->lanes == 1 ? cross_need(s, l->owner->ask.input_count) : 0;
    }
    if (going_on + encoded < s->lane_count && is_time_to_encode(s, room, going_on + encoded))
        return NW_PASS_ENCODE;
    return going_on + encoded > 0 ? NW_PASS_DECODE : NW_PASS_COUNT;
}

/* The pass under way gives the first token of some sequence. */
static bool any_first(const nw_session *s)
{
    for (size_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].owner != NULL && s->lanes[i].count == 0)
            return true;
    }
    return false;
}

void nw_session_list_kv(nw_session *s)
{
    nw_window_clear_kv(&s->window);
    for (size_t i = 0; i < s->lane_count; i++) {
        const request *r = s->lanes[i].owner;
        if (r == NULL)
            continue;
        nw_window_add_kv(&s->window, NW_KV_SELF, &r->self);
        nw_window_add_kv(&s->window, NW_KV_CROSS, &r->cross.kv);
    }
}

/* Writes the first page of a request's answers that is in memory to the scratch file. */
static nw_code write_page(nw_session *s, request *r, nw_error *err)
{
    const nw_config *c = &s->model->config;
    size_t           page = r->self.streamed / r->self.page_rows;
    nw_code          rc = NW_OK;
    for (uint32_t block = 0; block < c->decoder_blocks; block++) {
        for (int v = 0; v < 2 && rc == NW_OK; v++) {
            const float *rows = nw_kv_page_part(c, &r->self, page, block, v == 1);
            rc = nw_window_kv_store(&s->window, NW_KV_SELF, &r->self, block, v == 1, r->self.streamed,
                                    r->self.page_rows, rows, err);
        }
    }
    return rc;
}

/* Pages of answers that are full for good make room, where the answers have not all of theirs. */
static nw_code write_full_pages(nw_session *s, nw_error *err)
{
    nw_code rc = NW_OK;
    bool    written = false;
    for (size_t i = 0; i < s->request_count && rc == NW_OK; i++) {
        request *r = &s->requests[i];
        if (r->state != REQUEST_LIVE || s->blueprint.shape.self_ring == 0 ||
            r->self.page_count <= s->blueprint.shape.self_ring)
            continue;
        size_t rows = nw_request_positions(s, r) * r->width;
        while (rc == NW_OK && r->self.streamed + r->self.page_rows <= rows) {
            rc = write_page(s, r, err);
            written = true;
            if (rc == NW_OK)
                nw_page_pool_turn(&s->parts.self, &r->self);
        }
    }
    return rc == NW_OK && written ? nw_window_kv_stored(&s->window, err) : rc;
}

/* One pass for the lanes at work, if there are any. */
static nw_code decode(nw_session *s, nw_error *err)
{
    nw_code rc = nw_lanes_guess(s, err);
    if (rc != NW_OK)
        return rc;
    size_t n = nw_lanes_lay(s), vocab = s->model->config.vocab_size;
    bool   first = any_first(s);
    if (n == 0)
        return NW_OK;
    double start = nw_system_seconds();
    s->live_passes += count_requests(s, REQUEST_LIVE);
    rc = write_full_pages(s, err);
    if (rc != NW_OK)
        return rc;
    nw_session_list_kv(s);
    nw_session_begin(s, NW_PASS_DECODE, after_decode(s));
    rc = nw_forward_decode(&s->parts.forward, s->parts.columns, n, s->parts.logits, err);
    if (rc == NW_OK)
        rc = nw_window_finish(&s->window, err);
    if (rc != NW_OK)
        return rc;
    s->stats.passes++;
    for (size_t i = 0; i < n && rc == NW_OK; i++)
        rc = nw_session_check_numbers(s, s->parts.logits + i * vocab, vocab, err);
    if (rc != NW_OK)
        return rc;
    if (!first) {
        s->stats.seconds_decode += nw_system_seconds() - start;
        s->stats.decode_passes++;
    }
    return NW_OK;
}

nw_code nw_session_step(nw_session *s, size_t *ret_live, nw_error *err)
{
    nw_code rc = nw_session_check_idle(s, err);
    if (rc != NW_OK)
        return rc;
    nw_session_enter(s);
    s->in_pass = true;
    rc = admit(s, err);
    if (rc == NW_OK)
        rc = decode(s, err);
    if (rc != NW_OK)
        return nw_session_fail(s, rc);
    s->in_pass = false;
    drop_cancelled(s);
    nw_lanes_take(s);
    nw_session_leave(s);
    *ret_live = s->request_count - count_requests(s, REQUEST_FREE);
    return NW_OK;
}

/* ---- one request to its end ---- */

static bool is_known(const nw_session *s, uint64_t id)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (nw_request_is_at(&s->requests[i], id))
            return true;
    }
    return false;
}

typedef struct {
    const nw_request *ask;
    nw_result        *result;
} generation;

static bool pass_token(void *user, const nw_token *t)
{
    generation *g = user;
    nw_result  *r = g->result;
    bool        mine = t->sequence == 0 && g->ask->choice_count == 0;
    if (mine) {
        if (r->ids != NULL)
            r->ids[r->count] = t->id;
        if (r->logprobs != NULL)
            r->logprobs[r->count] = t->logprob;
        r->count++;
        r->finish = t->finish;
    }
    bool more = g->ask->on_token == NULL || g->ask->on_token(g->ask->user, t);
    if (!more && t->finish == NW_FINISH_NONE && mine)
        r->finish = NW_FINISH_STOP;
    return more;
}

static void pass_sequence(void *user, const nw_sequence *q)
{
    generation *g = user;
    nw_result  *r = g->result;
    if (q->sequence == 0 && r->count == 0) { /* of a beam, or a choice */
        r->count = q->count;
        r->finish = q->finish;
        if (r->ids != NULL)
            memcpy(r->ids, q->ids, q->count * sizeof *r->ids);
        if (r->logprobs != NULL)
            memcpy(r->logprobs, q->logprobs, q->count * sizeof *r->logprobs);
    }
    if (g->ask->on_sequence != NULL)
        g->ask->on_sequence(g->ask->user, q);
}

nw_code nw_session_generate(nw_session *s, const nw_request *q, nw_result *result, nw_error *err)
{
    generation g = {.ask = q, .result = result};
    nw_request mine = *q;
    uint64_t   id;
    size_t     live;
    mine.on_token = pass_token;
    mine.on_sequence = pass_sequence;
    mine.user = &g;
    mine.logprobs = q->logprobs || result->logprobs != NULL;
    result->count = 0;
    result->finish = NW_FINISH_NONE;
    nw_code rc = nw_session_check_idle(s, err);
    if (rc == NW_OK)
        rc = nw_session_submit(s, &mine, &id, err);
    while (rc == NW_OK && is_known(s, id))
        rc = nw_session_step(s, &live, err);
    if (rc == NW_OK && result->finish == NW_FINISH_NONE) /* a callback cancelled it */
        result->finish = NW_FINISH_STOP;
    return rc;
}

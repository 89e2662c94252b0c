/* A session: the model at work. It owns the arena, the workers, the reader and the clock, and runs one pass at a time
 * over the window for all requests in lanes. After nw_session_open nothing here allocates: the account is sealed.
 *
 * Life of a request: WAITING (ids copied) -> a lane is free: encoded, cross-attention K and V made -> LIVE: one token a
 * pass -> done. A failed or stopped pass drops all requests, forgets what was read ahead, and leaves a usable
 * session.
 */
#include "session_state.h"

#include "declared.h"
#include "system.h"

#include <math.h>
#include <string.h>

/* ---- the model's interfaces ---- */

static void report_progress(nw_session *s, uint32_t tensor)
{
    const nw_tensor_need *n = &s->model->tensors.list[tensor];
    s->progress_block =
        n->role == NW_ROLE_HEAD || n->role == NW_ROLE_EMBED ? s->model->config.decoder_blocks : n->block;
    if (s->progress == NULL)
        return;
    double now = nw_system_seconds();
    if (now - s->progress_seconds < 0.05)
        return;
    s->progress_seconds = now;
    nw_stats stats;
    nw_session_stats(s, &stats);
    s->progress(s->progress_user, &stats);
}

static nw_code weights_acquire(void *user, uint32_t tensor, uint32_t tile, nw_tile *ret, nw_error *err)
{
    nw_session *s = user;
    report_progress(s, tensor);
    return nw_window_acquire(&s->window, tensor, tile, ret, err);
}

static bool weights_rows(void *user, const nw_tile *tile, size_t strip, size_t worker, nw_rows *ret)
{
    return nw_window_strip(&((nw_session *)user)->window, tile, strip, worker, ret);
}

static nw_code release_tile(nw_session *s, const nw_tile *tile, nw_error *err)
{
    nw_step step = {.tensor = tile->tensor, .tile = tile->tile};
    nw_code rc = nw_restore_result(&s->parts.restore, step, err);
    nw_window_release(&s->window, rc == NW_OK ? NW_TILE_USED : NW_TILE_DAMAGED);
    return rc;
}

static nw_code weights_release(void *user, const nw_tile *tile, nw_error *err)
{
    nw_session *s = user;
    s->stats.weight_bytes_used += tile->rows * s->model->places[tile->tensor].row_bytes;
    return release_tile(s, tile, err);
}

static const float *weights_vector(void *user, uint32_t tensor)
{
    const float *v = ((nw_session *)user)->parts.vectors[tensor];
    NW_CHECK(v != NULL);
    return v;
}

static nw_code weights_embed(void *user, const uint32_t *ids, size_t count, float *out, nw_error *err)
{
    nw_session *s = user;
    return nw_window_rows(&s->window, s->kernels, ids, count, out, err);
}

/* ---- requests ---- */

static request *find_request(nw_session *s, request_state state)
{
    request *oldest = NULL;
    for (size_t i = 0; i < s->request_count; i++) {
        request *r = &s->requests[i];
        if (r->state == state && (oldest == NULL || r->id < oldest->id))
            oldest = r;
    }
    return oldest;
}

static size_t count_requests(const nw_session *s, request_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < s->request_count; i++)
        count += s->requests[i].state == state ? 1 : 0;
    return count;
}

static void drop_requests(nw_session *s)
{
    for (size_t i = 0; i < s->request_count; i++)
        s->requests[i].state = REQUEST_FREE;
    memset(s->lane_used, 0, s->blueprint.shape.maxima.lanes * sizeof *s->lane_used);
}

static nw_code check_ids(const nw_session *s, const uint32_t *ids, size_t count, nw_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= s->model->config.vocab_size) {
            return nw_fail(err, NW_E_ARG, 0, "token id %u is not below the vocabulary's size, %u", ids[i],
                           s->model->config.vocab_size);
        }
    }
    return NW_OK;
}

static nw_code check_request(const nw_session *s, const nw_request *q, nw_error *err)
{
    const nw_maxima *max = &s->blueprint.shape.maxima;
    if (s->model->config.decoder_blocks == 0)
        return nw_fail(err, NW_E_ARG, 0, "%s: an encoder alone generates no text", s->model->path);
    if (s->blueprint.plan.encode_only)
        return nw_fail(err, NW_E_ARG, 0, "this session only encodes");
    if (q->input_count == 0)
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
    if (q->forced_count > (q->max_new_tokens != 0 ? q->max_new_tokens : max->output_tokens))
        return nw_fail(err, NW_E_ARG, 0, "more tokens are forced than the answer may have");
    nw_code rc = check_ids(s, q->input_ids, q->input_count, err);
    return rc == NW_OK ? check_ids(s, q->forced_ids, q->forced_count, err) : rc;
}

nw_code nw_session_submit(nw_session *s, const nw_request *q, uint64_t *ret_id, nw_error *err)
{
    nw_code rc = check_request(s, q, err);
    if (rc != NW_OK)
        return rc;
    request *r = find_request(s, REQUEST_FREE);
    if (r == NULL)
        return nw_fail(err, NW_E_MEMORY, 0, "%zu requests are live or waiting already", s->request_count);
    const nw_maxima *max = &s->blueprint.shape.maxima;
    r->input = s->parts.request_ids + (size_t)(r - s->requests) * (max->input_tokens + max->output_tokens);
    r->forced = r->input + max->input_tokens;
    memcpy(r->input, q->input_ids, q->input_count * sizeof *r->input);
    if (q->forced_count > 0)
        memcpy(r->forced, q->forced_ids, q->forced_count * sizeof *r->forced);
    r->ask = *q;
    r->max_new = q->max_new_tokens != 0 ? q->max_new_tokens : max->output_tokens;
    r->produced = 0;
    r->id = ++s->last_id;
    r->state = REQUEST_WAITING;
    *ret_id = r->id;
    return NW_OK;
}

static void end_request(nw_session *s, request *r)
{
    if (r->state == REQUEST_LIVE)
        s->lane_used[r->lane] = false;
    r->state = REQUEST_FREE;
}

void nw_session_cancel(nw_session *s, uint64_t id)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (s->requests[i].id == id && s->requests[i].state != REQUEST_FREE)
            end_request(s, &s->requests[i]);
    }
}

void nw_session_stop(nw_session *s)
{
    atomic_store_explicit(&s->stop, true, memory_order_relaxed);
}

/* ---- passes ---- */

static void begin_pass(nw_session *s, nw_pass pass, nw_pass next)
{
    static const char *const names[] = {"encode", "cross", "decode"};
    s->pass_name = names[pass];
    s->progress_block = 0;
    nw_window_begin(&s->window, pass, next);
}

static size_t lanes_free(const nw_session *s)
{
    return s->blueprint.shape.maxima.lanes - count_requests(s, REQUEST_LIVE);
}

/* A request gets a lane: its input is encoded, and its cross-attention K and V are made. */
static nw_code admit(nw_session *s, request *r, nw_error *err)
{
    size_t lane = 0;
    while (s->lane_used[lane])
        lane++;
    NW_CHECK(lane < s->blueprint.shape.maxima.lanes);
    r->start_seconds = nw_system_seconds();
    float          *states = NULL;
    nw_encode_input in = {.ids = r->input, .count = r->ask.input_count};
    begin_pass(s, NW_PASS_ENCODE, NW_PASS_CROSS);
    nw_code rc = nw_forward_encode(&s->parts.forward, &in, &states, err);
    if (rc != NW_OK)
        return rc;
    /* This request still counts as waiting. */
    bool another = count_requests(s, REQUEST_WAITING) > 1 && lanes_free(s) > 1;
    begin_pass(s, NW_PASS_CROSS, another ? NW_PASS_ENCODE : NW_PASS_DECODE);
    rc = nw_forward_cross(&s->parts.forward, states, r->ask.input_count, &s->parts.cross[lane], err);
    if (rc != NW_OK)
        return rc;
    s->parts.self[lane].length = 0;
    s->lane_used[lane] = true;
    r->lane = lane;
    r->token = s->model->config.start_id;
    r->state = REQUEST_LIVE;
    s->stats.prompts++;
    s->stats.seconds_encode = nw_system_seconds() - r->start_seconds;
    return NW_OK;
}

/* What will follow a decode pass, as far as can be known: the end token may come at any time. */
static nw_pass after_decode(const nw_session *s)
{
    size_t going_on = 0;
    for (size_t i = 0; i < s->request_count; i++)
        going_on += s->requests[i].state == REQUEST_LIVE && s->requests[i].produced + 1 < s->requests[i].max_new;
    if (count_requests(s, REQUEST_WAITING) > 0 && going_on < s->blueprint.shape.maxima.lanes)
        return NW_PASS_ENCODE;
    return going_on > 0 ? NW_PASS_DECODE : NW_PASS_COUNT;
}

/* Whether a request is still in the place it had: a callback may cancel any, and submit others into the places left. */
static bool is_at(const request *r, uint64_t id)
{
    return r->id == id && r->state != REQUEST_FREE;
}

/* Weights that are no numbers make nothing but NaN, of which a token would be chosen like any other. */
static nw_code check_numbers(const nw_session *s, const float *values, size_t count, nw_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!isnan(values[i]))
            return NW_OK;
    }
    return nw_fail(err, NW_E_FORMAT, 0, "%s: the model's output is not a number (NaN): its weights are damaged",
                   s->model->path);
}

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

/* Chooses a request's token from its logits and tells the caller. */
static void give_token(nw_session *s, request *r, const float *logits)
{
    size_t   vocab = s->model->config.vocab_size;
    nw_token t = {.request = r->id, .index = r->produced, .logits = logits, .scores = logits, .logprob = (double)NAN};
    t.id = r->produced < r->ask.forced_count ? r->forced[r->produced] : (uint32_t)s->kernels->argmax(logits, vocab);
    if (r->ask.logprobs)
        t.logprob = nw_log_probability(s->kernels, logits, vocab, t.id);
    nw_candidate top[NW_CANDIDATES_MAX];
    give_candidates(s, r, logits, top, &t);
    r->produced++;
    r->token = t.id;
    s->stats.tokens++;
    if (r->produced == 1)
        s->stats.seconds_first_token = nw_system_seconds() - r->start_seconds;
    /* What is forced is not an end: a caller scores what it likes. */
    if (nw_config_is_eos(&s->model->config, t.id) && r->produced >= r->ask.forced_count)
        t.finish = NW_FINISH_EOS;
    else if (r->produced == r->max_new)
        t.finish = NW_FINISH_LENGTH;
    /* Before the callback: it may submit the next request into this place. */
    bool (*on_token)(void *, const nw_token *) = r->ask.on_token;
    void *user = r->ask.user;
    if (t.finish != NW_FINISH_NONE)
        end_request(s, r);
    if (on_token != NULL && !on_token(user, &t) && t.finish == NW_FINISH_NONE && is_at(r, t.request))
        end_request(s, r);
}

static nw_code decode(nw_session *s, nw_error *err)
{
    size_t   lanes = 0;
    request *in_lane[REQUESTS_MAX];
    uint64_t ids[REQUESTS_MAX];
    bool     any_first = false;
    for (size_t i = 0; i < s->request_count; i++) {
        request *r = &s->requests[i];
        if (r->state != REQUEST_LIVE)
            continue;
        any_first |= r->produced == 0;
        s->parts.lanes[lanes] =
            (nw_lane){.token = r->token, .self = &s->parts.self[r->lane], .cross = &s->parts.cross[r->lane]};
        ids[lanes] = r->id;
        in_lane[lanes++] = r;
    }
    if (lanes == 0)
        return NW_OK;
    double start = nw_system_seconds();
    begin_pass(s, NW_PASS_DECODE, after_decode(s));
    nw_code rc = nw_forward_decode(&s->parts.forward, s->parts.lanes, lanes, s->parts.logits, err);
    if (rc == NW_OK)
        rc = nw_window_finish(&s->window, err);
    if (rc != NW_OK)
        return rc;
    s->stats.passes++;
    for (size_t i = 0; i < lanes && rc == NW_OK; i++)
        rc = check_numbers(s, s->parts.logits + i * s->model->config.vocab_size, s->model->config.vocab_size, err);
    if (rc != NW_OK)
        return rc;
    if (!any_first) {
        s->stats.seconds_decode += nw_system_seconds() - start;
        s->stats.decode_passes++;
    }
    for (size_t i = 0; i < lanes; i++) {
        if (is_at(in_lane[i], ids[i]))
            give_token(s, in_lane[i], s->parts.logits + i * s->model->config.vocab_size);
    }
    return NW_OK;
}

/* After a pass failed: nothing of it may be used. */
static nw_code fail_pass(nw_session *s, nw_code rc)
{
    drop_requests(s);
    nw_window_drain(&s->window);
    s->pass_name = "idle";
    atomic_store(&s->stop, false); /* whoever asked for a stop has it, whatever ended the pass */
    return rc;
}

nw_code nw_session_step(nw_session *s, size_t *ret_live, nw_error *err)
{
    nw_code rc = NW_OK;
    while (rc == NW_OK && count_requests(s, REQUEST_WAITING) > 0 && lanes_free(s) > 0)
        rc = admit(s, find_request(s, REQUEST_WAITING), err);
    if (rc == NW_OK)
        rc = decode(s, err);
    if (rc != NW_OK)
        return fail_pass(s, rc);
    s->pass_name = "idle";
    *ret_live = count_requests(s, REQUEST_LIVE) + count_requests(s, REQUEST_WAITING);
    return NW_OK;
}

static bool is_known(const nw_session *s, uint64_t id)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (is_at(&s->requests[i], id))
            return true;
    }
    return false;
}

typedef struct {
    const nw_request *ask;
    nw_result        *result;
    bool              done;
} generation;

static bool collect(void *user, const nw_token *t)
{
    generation *g = user;
    nw_result  *r = g->result;
    if (r->ids != NULL)
        r->ids[r->count] = t->id;
    if (r->logprobs != NULL)
        r->logprobs[r->count] = t->logprob;
    r->count++;
    r->finish = t->finish;
    bool more = g->ask->on_token == NULL || g->ask->on_token(g->ask->user, t);
    if (!more && t->finish == NW_FINISH_NONE)
        r->finish = NW_FINISH_STOP;
    g->done = r->finish != NW_FINISH_NONE;
    return more;
}

nw_code nw_session_generate(nw_session *s, const nw_request *q, nw_result *result, nw_error *err)
{
    generation g = {.ask = q, .result = result};
    nw_request mine = *q;
    uint64_t   id;
    size_t     live;
    mine.on_token = collect;
    mine.user = &g;
    mine.logprobs = q->logprobs || result->logprobs != NULL;
    result->count = 0;
    result->finish = NW_FINISH_NONE;
    nw_code rc = nw_session_submit(s, &mine, &id, err);
    while (rc == NW_OK && !g.done) {
        rc = nw_session_step(s, &live, err);
        if (rc == NW_OK && !g.done && !is_known(s, id)) { /* a callback cancelled it */
            result->finish = NW_FINISH_STOP;
            g.done = true;
        }
    }
    return rc;
}

/* What is computed for a request, the rest being zeros. */
static nw_code plan_encode(const nw_session *s, const nw_encode_request *q, nw_encode_input *ret, nw_error *err)
{
    size_t most = s->blueprint.shape.maxima.input_tokens;
    *ret = (nw_encode_input){.ids = q->ids, .count = q->count, .pad_id = s->model->config.pad_id};
    if (q->pad_to != 0 && q->pad_to < q->count)
        return nw_fail(err, NW_E_ARG, 0, "%zu tokens cannot be padded to %zu", q->count, q->pad_to);
    ret->mask = !q->attend_pads;
    if (q->pad_to != 0 && !(ret->mask && q->zero_pads))
        ret->pads = q->pad_to - q->count;
    if (q->count == 0 || q->count > most || ret->pads > most - q->count) {
        return nw_fail(err, NW_E_ARG, 0, "the input has %zu tokens; this session takes 1 to %zu", q->count + ret->pads,
                       most);
    }
    return check_ids(s, q->ids, q->count, err);
}

nw_code nw_session_encode_view(nw_session *s, const nw_encode_request *q, const float **ret_states, size_t *ret_rows,
                               nw_error *err)
{
    nw_encode_input in;
    float          *made = NULL;
    double          start = nw_system_seconds();
    nw_code         rc = plan_encode(s, q, &in, err);
    if (rc != NW_OK)
        return rc;
    begin_pass(s, NW_PASS_ENCODE, q->more ? NW_PASS_ENCODE : NW_PASS_COUNT);
    rc = nw_forward_encode(&s->parts.forward, &in, &made, err);
    if (rc == NW_OK)
        rc = check_numbers(s, made, s->model->config.d_model, err);
    if (rc != NW_OK)
        return fail_pass(s, rc);
    s->stats.prompts++;
    s->stats.seconds_encode = nw_system_seconds() - start;
    s->pass_name = "idle";
    *ret_states = made;
    *ret_rows = q->zero_pads ? in.count : in.count + in.pads;
    return NW_OK;
}

nw_code nw_session_encode(nw_session *s, const nw_encode_request *q, float *states, nw_error *err)
{
    const float *made;
    size_t       d = s->model->config.d_model, rows = nw_max_size(q->pad_to, q->count), kept;
    nw_code      rc = nw_session_encode_view(s, q, &made, &kept, err);
    if (rc != NW_OK)
        return rc;
    memcpy(states, made, kept * d * sizeof *states);
    memset(states + kept * d, 0, (rows - kept) * d * sizeof *states);
    return NW_OK;
}

/* ---- measuring ---- */

void nw_session_stats(const nw_session *s, nw_stats *ret)
{
    const nw_config *c = &s->model->config;
    *ret = s->stats;
    ret->budget_bytes = s->blueprint.plan.budget;
    ret->peak_rss_bytes = nw_process_peak();
    ret->accounted_bytes = s->memory.peak + s->model->memory.peak;
    ret->bytes_read = s->model->open_bytes + s->model->tokenizer_bytes + s->vector_bytes_read + s->window.bytes_read;
    ret->embedding_rows_read = s->window.rows_read;
    ret->pinned_bytes = s->window.pinned_bytes;
    ret->window_bytes = s->blueprint.plan.part.window;
    ret->seconds_waited = s->window.seconds_waited;
    ret->io = nw_io_name(s->io);
    ret->kernels = s->kernels->name;
    ret->threads = s->blueprint.threads;
    ret->pass = s->pass_name;
    ret->block = s->progress_block;
    ret->block_count = s->window.at.pass == NW_PASS_ENCODE ? c->encoder_blocks : c->decoder_blocks;
}

void nw_session_on_progress(nw_session *s, void (*fn)(void *user, const nw_stats *stats), void *user)
{
    s->progress = fn;
    s->progress_user = user;
}

typedef struct {
    nw_session    *session;
    const nw_tile *tile;
} strip_job;

static void take_strip(void *ctx, size_t i, size_t worker)
{
    const strip_job *j = ctx;
    nw_rows          rows;
    (void)weights_rows(j->session, j->tile, i, worker, &rows); /* release says what is wrong */
}

/* A tile that is only read. What fills a pin of another form has to be restored all the same. */
static nw_code skip_tile(nw_session *s, const nw_tile *tile, nw_error *err)
{
    strip_job j = {.session = s, .tile = tile};
    if (!nw_window_fills_pin(&s->window)) {
        nw_window_release(&s->window, NW_TILE_UNUSED);
        return NW_OK;
    }
    nw_workers_run(s->workers, take_strip, &j, (size_t)tile->strips);
    return release_tile(s, tile, err);
}

nw_code nw_session_read_pass(nw_session *s, uint64_t *ret_bytes, double *ret_seconds, nw_error *err)
{
    const nw_model *m = s->model;
    nw_pass         pass = s->blueprint.shape.pinned;
    uint64_t        before = s->window.bytes_read;
    double          start = nw_system_seconds();
    nw_code         rc = NW_OK;
    begin_pass(s, pass, pass);
    for (size_t i = 0; i < m->step_count[pass] && rc == NW_OK; i++) {
        nw_tile tile;
        rc = nw_window_acquire(&s->window, m->steps[pass][i].tensor, m->steps[pass][i].tile, &tile, err);
        if (rc == NW_OK)
            rc = skip_tile(s, &tile, err);
    }
    if (rc == NW_OK)
        rc = nw_window_finish(&s->window, err);
    if (rc != NW_OK)
        return fail_pass(s, rc);
    s->pass_name = "idle";
    *ret_seconds = nw_system_seconds() - start;
    *ret_bytes = s->window.bytes_read - before;
    return NW_OK;
}

/* Sixteen sums side by side: enough loads in flight for one core to reach its share of the memory's rate. */
typedef struct {
    const unsigned char *bytes;
    uint64_t             sums[256]; /* [worker]; written so that the loads are not optimised away */
} rate_job;

enum { RATE_PIECE = 1 << 20 };

static void rate_piece(void *ctx, size_t i, size_t worker)
{
    typedef uint64_t vector __attribute__((vector_size(64), aligned(64)));
    rate_job        *j = ctx;
    const vector    *v = (const vector *)(const void *)(j->bytes + i * RATE_PIECE);
    vector           a = {0}, b = {0};
    for (size_t k = 0; k < RATE_PIECE / sizeof *v; k += 2) {
        __builtin_prefetch((const char *)&v[k] + 4096);
        __builtin_prefetch((const char *)&v[k] + 4160);
        a += v[k];
        b += v[k + 1];
    }
    a += b;
    for (int k = 0; k < 8; k++)
        j->sums[worker] += a[k];
}

double nw_session_memory_rate(nw_session *s)
{
    rate_job j = {.bytes = s->parts.region};
    size_t   pieces = nw_min_size((size_t)s->window.pinned_bytes, s->blueprint.shape.region_bytes) / RATE_PIECE;
    pieces = nw_min_size(pieces, NW_PIECES_MAX);
    if (pieces == 0)
        return 0;
    double start = nw_system_seconds();
    nw_workers_run(s->workers, rate_piece, &j, pieces);
    return (double)pieces * RATE_PIECE / (nw_system_seconds() - start);
}

nw_weights nw_session_weights(nw_session *s)
{
    return (nw_weights){.user = s,
                        .acquire = weights_acquire,
                        .rows = weights_rows,
                        .release = weights_release,
                        .vector = weights_vector,
                        .embed = weights_embed};
}

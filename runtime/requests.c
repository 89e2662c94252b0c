/* What is generated, and for whom: requests, their lanes, and the columns of each pass.
 *
 * Life of a request: WAITING (its ids are copied) -> ENCODED with others in one pass over the encoder, cross-attention
 * K and V made -> LIVE: it has a lane for each of its sequences, and each gets at least one token a pass -> done. First
 * come, first served: nobody overtakes. A failed or stopped pass drops all requests and leaves a usable session.
 */
#include "session_state.h"
#include "system.h"

#include <math.h>
#include <string.h>

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

/* Whether a request is still in the place it had: a callback may cancel any, and submit others into the places left. */
static bool is_at(const request *r, uint64_t id)
{
    return r->id == id && r->state != REQUEST_FREE;
}

static size_t lanes_free(const nw_session *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->lane_count; i++)
        count += s->lanes[i].owner == NULL ? 1 : 0;
    return count;
}

static void end_lane(lane *l)
{
    l->owner->lanes--;
    l->owner = NULL;
    l->columns = 0;
}

static void end_request(nw_session *s, request *r)
{
    for (size_t i = 0; i < s->lane_count; i++) {
        if (s->lanes[i].owner == r)
            end_lane(&s->lanes[i]);
    }
    nw_page_pool_give(&s->parts.self, &r->self);
    nw_page_pool_give(&s->parts.cross, &r->cross.kv);
    r->state = REQUEST_FREE;
}

void nw_session_drop_requests(nw_session *s)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (s->requests[i].state != REQUEST_FREE)
            end_request(s, &s->requests[i]);
    }
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
    nw_code rc = nw_session_check_ids(s, q->input_ids, q->input_count, err);
    return rc == NW_OK ? nw_session_check_ids(s, q->forced_ids, q->forced_count, err) : rc;
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
    size_t           place = (size_t)(r - s->requests);
    uint32_t        *ids = s->parts.request_ids + place * (max->input_tokens + max->output_tokens);
    *r = (request){.state = REQUEST_WAITING,
                   .id = ++s->last_id,
                   .ask = *q,
                   .input = ids,
                   .forced = ids + max->input_tokens,
                   .self_table = s->parts.self_tables + place * s->parts.self_table_len,
                   .cross_table = s->parts.cross_tables + place * s->parts.cross_table_len,
                   .max_new = q->max_new_tokens != 0 ? q->max_new_tokens : max->output_tokens};
    memcpy(r->input, q->input_ids, q->input_count * sizeof *r->input);
    if (q->forced_count > 0)
        memcpy(r->forced, q->forced_ids, q->forced_count * sizeof *r->forced);
    *ret_id = r->id;
    return NW_OK;
}

void nw_session_cancel(nw_session *s, uint64_t id)
{
    for (size_t i = 0; i < s->request_count; i++) {
        if (is_at(&s->requests[i], id))
            end_request(s, &s->requests[i]);
    }
}

/* ---- admission ---- */

/* The next waiting request joins the encoder pass to come, if there is room for it. */
static bool join_encoding(nw_session *s, size_t *n, size_t *rows)
{
    request *r = find_request(s, REQUEST_WAITING);
    if (r == NULL || *n == s->blueprint.shape.inputs)
        return false;
    if (r->ask.input_count > s->blueprint.shape.maxima.encode_tokens - *rows)
        return false;
    if (!nw_page_pool_take(&s->parts.cross, r->ask.input_count, r->cross_table, &r->cross.kv))
        return false;
    r->cross.length = (uint32_t)r->ask.input_count;
    r->start_seconds = nw_system_seconds();
    r->state = REQUEST_ENCODED;
    s->parts.encode_inputs[*n] = (nw_encode_input){.ids = r->input, .count = r->ask.input_count};
    s->parts.crosses[(*n)++] = &r->cross;
    *rows += r->ask.input_count;
    return true;
}

/* As many waiting prompts as there is room for go through the encoder together. */
static nw_code encode_waiting(nw_session *s, nw_error *err)
{
    size_t n = 0, rows = 0;
    float *states = NULL;
    double start = nw_system_seconds();
    while (join_encoding(s, &n, &rows))
        ;
    NW_CHECK(n > 0); /* a free lane's request has its pages, and nobody else holds them */
    nw_session_begin(s, NW_PASS_ENCODE, NW_PASS_CROSS);
    nw_code rc = nw_forward_encode(&s->parts.forward, s->parts.encode_inputs, n, &states, err);
    if (rc != NW_OK)
        return rc;
    bool again = count_requests(s, REQUEST_WAITING) > 0 && lanes_free(s) > count_requests(s, REQUEST_ENCODED);
    nw_session_begin(s, NW_PASS_CROSS, again ? NW_PASS_ENCODE : NW_PASS_DECODE);
    rc = nw_forward_cross(&s->parts.forward, states, s->parts.crosses, n, err);
    s->stats.prompts += n;
    s->stats.encode_passes++;
    s->stats.seconds_encode = nw_system_seconds() - start;
    return rc;
}

/* Gives an encoded request its lanes. */
static void start(nw_session *s, request *r)
{
    size_t branch = 0, width = 1, output = s->blueprint.shape.maxima.output_tokens;
    bool   paged = nw_page_pool_take(&s->parts.self, width * r->max_new, r->self_table, &r->self);
    NW_CHECK(paged); /* every lane has its pages */
    for (size_t i = 0; i < s->lane_count && branch < width; i++) {
        lane *l = &s->lanes[i];
        if (l->owner != NULL)
            continue;
        *l = (lane){.owner = r, .branch = branch++, .ids = s->parts.lane_ids + i * (1 + output)};
        l->ids[0] = s->model->config.start_id;
    }
    NW_CHECK(branch == width);
    r->lanes = width;
    r->state = REQUEST_LIVE;
}

/* Fills the free lanes, oldest request first. */
static nw_code admit(nw_session *s, nw_error *err)
{
    while (lanes_free(s) > 0) {
        request *r = find_request(s, REQUEST_ENCODED);
        if (r != NULL) {
            start(s, r);
            continue;
        }
        if (find_request(s, REQUEST_WAITING) == NULL)
            break;
        nw_code rc = encode_waiting(s, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

/* ---- columns ---- */

/* Tokens that a lane has to feed for certain: the last one, and what is forced behind it. */
static size_t columns_known(const lane *l)
{
    size_t forced = l->owner->ask.forced_count;
    return 1 + (forced > l->count ? nw_min_size(forced, l->owner->max_new - 1) - l->count : 0);
}

/* Column i of a lane: its token is what was chosen at position count + i. */
static nw_column column_of(const lane *l, size_t i)
{
    const request *r = l->owner;
    return (nw_column){.token = i == 0 ? l->ids[l->count] : r->forced[l->count + i - 1],
                       .position = (uint32_t)(l->count + i),
                       .self = &r->self,
                       .branches = 1,
                       .branch = (uint32_t)l->branch,
                       .cross = &r->cross};
}

/* Every lane has one column, and what is left of them is shared out to those that can use more. */
static size_t lay_columns(nw_session *s)
{
    size_t live = s->lane_count - lanes_free(s), spare = s->blueprint.shape.maxima.columns - live, n = 0;
    for (size_t i = 0; i < s->lane_count; i++) {
        lane *l = &s->lanes[i];
        if (l->owner == NULL)
            continue;
        size_t more = nw_min_size(columns_known(l) - 1, spare / live--);
        spare -= more;
        l->columns = 1 + more;
        for (size_t k = 0; k < l->columns; k++)
            s->parts.columns[n++] = column_of(l, k);
    }
    return n;
}

/* ---- tokens ---- */

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

/* Chooses a lane's next token from its logits and tells the caller. Whether the lane goes on. */
static bool give_token(nw_session *s, lane *l, const float *logits)
{
    request *r = l->owner;
    size_t   vocab = s->model->config.vocab_size;
    bool     forced = l->count < r->ask.forced_count;
    nw_token t = {.request = r->id, .index = l->count, .logits = logits, .scores = logits, .logprob = (double)NAN};
    t.id = forced ? r->forced[l->count] : (uint32_t)s->kernels->argmax(logits, vocab);
    if (r->ask.logprobs)
        t.logprob = nw_log_probability(s->kernels, logits, vocab, t.id);
    nw_candidate top[NW_CANDIDATES_MAX];
    give_candidates(s, r, logits, top, &t);
    l->ids[++l->count] = t.id;
    s->stats.tokens++;
    if (l->count == 1)
        s->stats.seconds_first_token = nw_system_seconds() - r->start_seconds;
    /* What is forced is not an end: a caller scores what it likes. */
    if (nw_config_is_eos(&s->model->config, t.id) && l->count >= r->ask.forced_count)
        t.finish = NW_FINISH_EOS;
    else if (l->count == r->max_new)
        t.finish = NW_FINISH_LENGTH;
    /* Before the callback: it may submit the next request into this place. */
    bool (*on_token)(void *, const nw_token *) = r->ask.on_token;
    void *user = r->ask.user;
    if (t.finish != NW_FINISH_NONE)
        end_request(s, r);
    if (on_token != NULL && !on_token(user, &t) && t.finish == NW_FINISH_NONE && is_at(r, t.request))
        end_request(s, r);
    return t.finish == NW_FINISH_NONE && is_at(r, t.request);
}

/* ---- steps ---- */

/* What will follow a decode pass, as far as can be known: the end token may come at any time. */
static nw_pass after_decode(const nw_session *s)
{
    size_t going_on = 0;
    for (size_t i = 0; i < s->lane_count; i++) {
        const lane *l = &s->lanes[i];
        going_on += l->owner != NULL && l->count + l->columns < l->owner->max_new;
    }
    bool free = going_on + count_requests(s, REQUEST_ENCODED) < s->lane_count;
    if (count_requests(s, REQUEST_WAITING) > 0 && free)
        return NW_PASS_ENCODE;
    return going_on + count_requests(s, REQUEST_ENCODED) > 0 ? NW_PASS_DECODE : NW_PASS_COUNT;
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

/* Each lane takes tokens from its columns for as long as what it chooses is what the next column was fed. */
static void take_tokens(nw_session *s)
{
    size_t   vocab = s->model->config.vocab_size, column = 0;
    uint64_t newest = s->last_id; /* a callback may submit requests: their lanes come with a later step */
    for (size_t i = 0; i < s->lane_count; i++) {
        lane  *l = &s->lanes[i];
        size_t columns = l->columns;
        l->columns = 0;
        NW_CHECK(columns == 0 || l->owner == NULL || l->owner->id <= newest);
        for (size_t k = 0; k < columns; k++) {
            const nw_column *c = &s->parts.columns[column + k];
            if (l->owner == NULL || c->token != l->ids[l->count])
                break;
            if (!give_token(s, l, s->parts.logits + (column + k) * vocab))
                break;
        }
        column += columns;
    }
}

static nw_code decode(nw_session *s, nw_error *err)
{
    size_t n = lay_columns(s), vocab = s->model->config.vocab_size;
    bool   first = any_first(s);
    if (n == 0)
        return NW_OK;
    double start = nw_system_seconds();
    nw_session_begin(s, NW_PASS_DECODE, after_decode(s));
    nw_code rc = nw_forward_decode(&s->parts.forward, s->parts.columns, n, s->parts.logits, err);
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
    take_tokens(s);
    return NW_OK;
}

nw_code nw_session_step(nw_session *s, size_t *ret_live, nw_error *err)
{
    nw_code rc = admit(s, err);
    if (rc == NW_OK)
        rc = decode(s, err);
    if (rc != NW_OK)
        return nw_session_fail(s, rc);
    s->pass_name = "idle";
    *ret_live = s->request_count - count_requests(s, REQUEST_FREE);
    return NW_OK;
}

/* ---- one request to its end ---- */

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

/* A session: the model at work. It owns the arena, the workers, the reader and the clock, and runs one pass at a time
 * over the window. After nw_session_open nothing here allocates: the account is sealed. What is generated, and for
 * whom, is in requests.c.
 */
#include "session_state.h"

#include "declared.h"
#include "draft_model.h"
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

static bool is_stopped(const nw_session *s)
{
    return atomic_load_explicit(s->window.stop, memory_order_relaxed);
}

static nw_code weights_acquire(void *user, uint32_t tensor, uint32_t tile, nw_tile *ret, nw_error *err)
{
    nw_session *s = user;
    report_progress(s, tensor);
    nw_trace_tile(&s->parts.trace, tensor, tile);
    while (s->touch.next < s->touch.end && nw_window_would_wait(&s->window))
        nw_first_touch_some(&s->touch, s->workers, &s->parts.trace);
    nw_code rc = nw_window_acquire(&s->window, tensor, tile, ret, err);
    if (rc == NW_OK && nw_window_fills_pin(&s->window))
        nw_first_touch_some(&s->touch, s->workers, &s->parts.trace);
    return rc;
}

static size_t weights_more(void *user, size_t most, size_t multiple, nw_tile *ret)
{
    return nw_window_more(&((nw_session *)user)->window, most, multiple, ret);
}

static bool weights_rows(void *user, const nw_tile *tile, size_t strip, size_t worker, nw_rows *ret)
{
    nw_session *s = user;
    bool        whole = nw_window_strip(&s->window, tile, strip, worker, ret);
    nw_trace_restored(&s->parts.trace, worker);
    return whole;
}

nw_code nw_session_release_tiles(nw_session *s, nw_error *err)
{
    nw_code rc = nw_restore_result(&s->parts.restore, err);
    if (rc == NW_OK && is_stopped(s)) /* some of their strips may have been skipped: see run_team */
        rc = nw_fail(err, NW_E_CANCELLED, 0, "stopped");
    nw_window_release(&s->window, rc == NW_OK ? NW_TILE_USED : NW_TILE_DAMAGED);
    return rc;
}

static nw_code weights_release(void *user, const nw_tile *tiles, size_t count, nw_error *err)
{
    nw_session *s = user;
    for (size_t i = 0; i < count; i++)
        s->stats.weight_bytes_used += tiles[i].rows * s->model->places[tiles[i].tensor].row_bytes;
    return nw_session_release_tiles(s, err);
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

static nw_code weights_kv(void *user, const nw_kv *kv, uint32_t block, bool values, uint32_t first,
                          const float **ret_rows, size_t *ret_count, nw_error *err)
{
    return nw_window_kv(&((nw_session *)user)->window, kv, block, values, first, ret_rows, ret_count, err);
}

static void weights_kv_release(void *user)
{
    nw_window_kv_release(&((nw_session *)user)->window);
}

static nw_code weights_kv_store(void *user, const nw_cross *cross, uint32_t block, bool values, const float *rows,
                                nw_error *err)
{
    nw_window *w = &((nw_session *)user)->window;
    return nw_window_kv_store(w, NW_KV_CROSS, &cross->kv, block, values, 0, cross->length, rows, err);
}

nw_weights nw_session_weights(nw_session *s)
{
    return (nw_weights){.user = s,
                        .acquire = weights_acquire,
                        .more = weights_more,
                        .rows = weights_rows,
                        .release = weights_release,
                        .vector = weights_vector,
                        .embed = weights_embed,
                        .kv = weights_kv,
                        .kv_release = weights_kv_release,
                        .kv_store = weights_kv_store};
}

/* ---- passes ---- */

void nw_session_begin(nw_session *s, nw_pass pass, nw_pass next)
{
    static const char *const names[] = {"encode", "cross", "decode"};
    s->pass_name = names[pass];
    s->progress_block = 0;
    nw_pin_choice_begin(s, pass);
    nw_window_begin(&s->window, pass, next);
}

/* ---- the team ---- */

typedef struct {
    const nw_session *session;
    void (*fn)(void *ctx, size_t i, size_t worker);
    void *ctx;
} stoppable_job;

static void stoppable_piece(void *ctx, size_t i, size_t worker)
{
    const stoppable_job *j = ctx;
    if (!is_stopped(j->session))
        j->fn(j->ctx, i, worker);
}

/* After a stop no piece begins: with thousands of columns a job may take seconds. What is skipped is part of no result:
 * every product ends with a release, which then fails, and attention is followed by a product. */
static void run_team(void *user, nw_work work, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n)
{
    nw_session   *s = user;
    stoppable_job j = {.session = s, .fn = fn, .ctx = ctx};
    if (work == NW_WORK_NORM) /* an encoder pass ends with one */
        nw_trace_run(&s->parts.trace, work, fn, ctx, n);
    else
        nw_trace_run(&s->parts.trace, work, stoppable_piece, &j, n);
}

nw_team nw_session_team(nw_session *s)
{
    return (nw_team){.user = s, .thread_count = nw_workers_count(s->workers), .run = run_team};
}

nw_code nw_session_check_idle(const nw_session *s, nw_error *err)
{
    return s->busy ? nw_fail(err, NW_E_ARG, 0, "a callback asks its session for a pass") : NW_OK;
}

void nw_session_enter(nw_session *s)
{
    NW_CHECK(!s->busy);
    s->busy = true;
}

void nw_session_leave(nw_session *s)
{
    s->busy = s->in_pass = false;
    s->pass_name = "idle";
}

nw_code nw_session_fail(nw_session *s, nw_code rc)
{
    nw_window_drain(&s->window); /* before the requests whose K and V are being read are gone */
    nw_session_drop_requests(s);
    nw_session_leave(s);
    atomic_store(&s->stop, false); /* whoever asked for a stop has it, whatever ended the pass */
    return rc;
}

void nw_session_stop(nw_session *s)
{
    atomic_store_explicit(&s->stop, true, memory_order_relaxed);
}

nw_code nw_session_check_numbers(const nw_session *s, const float *values, size_t count, nw_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!isnan(values[i]))
            return NW_OK;
    }
    return nw_fail(err, NW_E_FORMAT, 0, "%s: the model's output is not a number (NaN): its weights are damaged",
                   s->model->path);
}

nw_code nw_session_check_ids(const nw_session *s, const uint32_t *ids, size_t count, nw_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= s->model->config.vocab_size) {
            return nw_fail(err, NW_E_ARG, 0, "token id %u is not below the vocabulary's size, %u", ids[i],
                           s->model->config.vocab_size);
        }
    }
    return NW_OK;
}

/* ---- encoding ---- */

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
    if (q->count == 0 || q->ids == NULL || q->count > most || ret->pads > most - q->count) {
        return nw_fail(err, NW_E_ARG, 0, "the input has %zu tokens; this session takes 1 to %zu", q->count + ret->pads,
                       most);
    }
    return nw_session_check_ids(s, q->ids, q->count, err);
}

size_t nw_encode_rows(const nw_encode_request *q)
{
    bool computed = q->attend_pads || !q->zero_pads;
    return q->pad_to != 0 && computed ? q->pad_to : q->count;
}

/* How many of the requests one pass takes, and their inputs. */
static nw_code plan_encodes(nw_session *s, const nw_encode_request *requests, size_t n, size_t *ret_rows, nw_error *err)
{
    size_t most = s->blueprint.shape.maxima.encode_tokens;
    *ret_rows = 0;
    if (n == 0 || n > s->blueprint.shape.inputs)
        return nw_fail(err, NW_E_ARG, 0, "%zu inputs at once; this session takes 1 to %zu", n,
                       s->blueprint.shape.inputs);
    for (size_t i = 0; i < n; i++) {
        nw_encode_input *in = &s->parts.encode_inputs[i];
        nw_code          rc = plan_encode(s, &requests[i], in, err);
        if (rc != NW_OK)
            return rc;
        if (in->count + in->pads > most - *ret_rows)
            return nw_fail(err, NW_E_ARG, 0, "these inputs have more than the %zu tokens of one pass", most);
        *ret_rows += in->count + in->pads;
    }
    return NW_OK;
}

nw_code nw_session_encode_many(nw_session *s, const nw_encode_request *requests, size_t n, const float **ret_states,
                               nw_error *err)
{
    float  *made = NULL;
    size_t  rows;
    double  start = nw_system_seconds();
    nw_code rc = nw_session_check_idle(s, err);
    if (rc == NW_OK)
        rc = plan_encodes(s, requests, n, &rows, err);
    if (rc != NW_OK)
        return rc;
    nw_session_enter(s);
    nw_session_begin(s, NW_PASS_ENCODE, requests[n - 1].more ? NW_PASS_ENCODE : NW_PASS_COUNT);
    rc = nw_forward_encode(&s->parts.forward, s->parts.encode_inputs, n, &made, err);
    for (size_t row = 0; row < rows && rc == NW_OK; row++)
        rc = nw_session_check_numbers(s, made + row * s->model->config.d_model, s->model->config.d_model, err);
    if (rc != NW_OK)
        return nw_session_fail(s, rc);
    s->stats.prompts += n;
    s->stats.encode_passes++;
    s->stats.seconds_encode = nw_system_seconds() - start;
    nw_session_leave(s);
    *ret_states = made;
    return NW_OK;
}

nw_code nw_session_encode(nw_session *s, const nw_encode_request *q, float *states, nw_error *err)
{
    const float *made;
    size_t       d = s->model->config.d_model, rows = nw_max_size(q->pad_to, q->count);
    size_t       kept = q->zero_pads ? q->count : rows;
    nw_code      rc = nw_session_encode_many(s, q, 1, &made, err);
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
    if (s->draft != NULL) {
        nw_stats draft;
        nw_session_stats(s->draft->session, &draft);
        ret->bytes_read += draft.bytes_read;
        ret->accounted_bytes += draft.accounted_bytes;
    }
    ret->kv_bytes_read = s->window.kv_bytes_read;
    ret->kv_bytes_written = s->parts.kv_stream.written_bytes;
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

void nw_session_plan(const nw_session *s, nw_plan *ret)
{
    *ret = s->blueprint.plan;
}

void nw_session_times(const nw_session *s, nw_times *ret)
{
    nw_trace_times(&s->parts.trace, ret);
}

bool nw_session_event(const nw_session *s, size_t index, nw_event *ret)
{
    const nw_trace *t = &s->parts.trace;
    nw_times        times;
    nw_trace_times(t, &times);
    if (index >= times.events_kept)
        return false;
    const nw_trace_event *e = &t->events[index];
    *ret = (nw_event){.kind = e->kind, .thread = e->thread, .begin_ns = e->begin_ns, .end_ns = e->end_ns};
    if (e->step.tensor != NW_TRACE_NO_TENSOR) {
        ret->tensor = s->model->places[e->step.tensor].tensor->name;
        ret->tile = e->step.tile;
        nw_tensor_place(&s->model->tensors, e->step.tensor, ret->block);
    }
    return true;
}

void nw_session_on_progress(nw_session *s, void (*fn)(void *user, const nw_stats *stats), void *user)
{
    s->progress = fn;
    s->progress_user = user;
}

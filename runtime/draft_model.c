#include "draft_model.h"

#include "declared.h"

#include <string.h>

/* Pages for every lane's K and V, and room for their tables; all of it free, and lent to nobody else. */
static nw_code check_pages(const nw_session *draft, const nw_shape *shape, nw_error *err)
{
    const nw_page_pool *self = &draft->parts.self, *cross = &draft->parts.cross;
    size_t              self_need = nw_page_pool_need(self, draft->blueprint.shape.maxima.output_tokens);
    size_t              cross_need = nw_page_pool_need(cross, shape->maxima.input_tokens);
    const char         *path = draft->model->path;
    if (draft->lent)
        return nw_fail(err, NW_E_ARG, 0, "draft %s: its session guesses for another one", path);
    for (size_t i = 0; i < draft->request_count; i++) {
        if (draft->requests[i].state != REQUEST_FREE)
            return nw_fail(err, NW_E_ARG, 0, "draft %s: its session has requests of its own", path);
    }
    if (draft->request_count < shape->lanes || self->count / shape->lanes < self_need ||
        cross->count / shape->lanes < cross_need)
        return nw_fail(err, NW_E_ARG, 0, "draft %s: its session has no K and V for every lane", path);
    return NW_OK;
}

nw_code nw_draft_check(const nw_session *draft, nw_model *m, const nw_shape *shape, nw_error *err)
{
    const nw_config *a = &draft->model->config, *b = &m->config;
    const nw_shape  *have = &draft->blueprint.shape;
    const char      *path = draft->model->path;
    if (a->decoder_blocks == 0 || draft->blueprint.plan.encode_only)
        return nw_fail(err, NW_E_ARG, 0, "draft %s: it has no decoder at work", path);
    if (a->vocab_size != b->vocab_size || a->start_id != b->start_id || a->eos_ids[0] != b->eos_ids[0])
        return nw_fail(err, NW_E_ARG, 0, "draft %s: another vocabulary than %s", path, m->path);
    for (uint32_t id = 0; id < a->vocab_size && draft->model->pieces != NULL && m->pieces != NULL; id++) {
        nw_error    ignored = {0};
        size_t      len_a, len_b;
        const char *text_a = nw_model_piece(draft->model, id, &len_a, &ignored);
        const char *text_b = nw_model_piece(m, id, &len_b, &ignored);
        if (text_a == NULL || text_b == NULL || len_a != len_b || memcmp(text_a, text_b, len_a) != 0)
            return nw_fail(err, NW_E_ARG, 0, "draft %s: its token %u is another than that of %s", path, id, m->path);
    }
    if (have->lanes < shape->lanes || have->maxima.input_tokens < shape->maxima.input_tokens ||
        have->maxima.output_tokens < shape->maxima.output_tokens)
        return nw_fail(err, NW_E_ARG, 0, "draft %s: its session has fewer lanes or tokens", path);
    if (have->maxima.stream_cross || have->maxima.stream_self)
        return nw_fail(err, NW_E_ARG, 0, "draft %s: its session's budget has no room for its K and V", path);
    return check_pages(draft, shape, err);
}

uint64_t nw_draft_bytes(const nw_session *draft)
{
    return draft->memory.live + draft->model->memory.live + draft->blueprint.plan.part.io +
           draft->blueprint.threads * nw_declared_thread();
}

/* Reads the prompt. */
static nw_code start(nw_draft_model *d, const nw_draft_ask *ask, nw_error *err)
{
    nw_session     *s = d->session;
    nw_draft_lane  *l = &d->lanes[ask->lane];
    nw_encode_input in = {.ids = ask->input, .count = ask->input_count};
    nw_cross       *cross = &l->cross;
    float          *states = NULL;
    *l = (nw_draft_lane){.cross.length = (uint32_t)ask->input_count};
    bool paged = nw_page_pool_take(&s->parts.self, s->blueprint.shape.maxima.output_tokens,
                                   s->parts.self_tables + ask->lane * s->parts.self_table_len, &l->self) &&
                 nw_page_pool_take(&s->parts.cross, ask->input_count,
                                   s->parts.cross_tables + ask->lane * s->parts.cross_table_len, &cross->kv);
    NW_CHECK(paged); /* every lane has its pages */
    l->started = true;
    nw_session_begin(s, NW_PASS_ENCODE, NW_PASS_CROSS);
    nw_code rc = nw_forward_encode(&s->parts.forward, &in, 1, &states, err);
    if (rc != NW_OK)
        return rc;
    nw_session_begin(s, NW_PASS_CROSS, NW_PASS_DECODE);
    return nw_forward_cross(&s->parts.forward, states, &cross, 1, err);
}

/* The token at a position: chosen by the other session, or guessed. */
static uint32_t token_at(const nw_draft_ask *ask, size_t position)
{
    return position <= ask->count ? ask->ids[position] : ask->draft[position - ask->count - 1];
}

/* Columns for what each ask has still to feed; end[i]: the one that tells ask i its next token, or SIZE_MAX. */
static size_t lay(nw_draft_model *d, const nw_draft_ask *asks, size_t n)
{
    nw_session *s = d->session;
    size_t      columns = 0, most = s->blueprint.shape.maxima.columns;
    for (size_t i = 0; i < n; i++) {
        nw_draft_lane *l = &d->lanes[asks[i].lane];
        size_t         last = asks[i].count + asks[i].got; /* position whose column tells what is next */
        d->end[i] = SIZE_MAX;
        for (; asks[i].got < asks[i].want && l->fed <= last && columns < most; l->fed++) {
            if (l->fed == last)
                d->end[i] = columns;
            s->parts.columns[columns++] = (nw_column){.token = token_at(&asks[i], l->fed),
                                                      .position = (uint32_t)l->fed,
                                                      .self = &l->self,
                                                      .branches = 1,
                                                      .cross = &l->cross};
        }
    }
    return columns;
}

static nw_code guess_all(nw_draft_model *d, nw_draft_ask *asks, size_t n, nw_error *err)
{
    nw_session *s = d->session;
    size_t      columns, vocab = s->model->config.vocab_size;
    while ((columns = lay(d, asks, n)) > 0) {
        nw_session_begin(s, NW_PASS_DECODE, NW_PASS_DECODE);
        nw_code rc = nw_forward_decode(&s->parts.forward, s->parts.columns, columns, s->parts.logits, err);
        if (rc == NW_OK)
            rc = nw_window_finish(&s->window, err);
        if (rc != NW_OK)
            return rc;
        for (size_t i = 0; i < n; i++) {
            if (d->end[i] == SIZE_MAX)
                continue;
            uint32_t id = (uint32_t)s->kernels->argmax(s->parts.logits + d->end[i] * vocab, vocab);
            asks[i].draft[asks[i].got++] = id;
            if (nw_config_is_eos(&s->model->config, id))
                asks[i].want = asks[i].got;
        }
    }
    return NW_OK;
}

nw_code nw_draft_guess(nw_draft_model *d, nw_draft_ask *asks, size_t n, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        asks[i].got = 0;
        if (!d->lanes[asks[i].lane].started)
            rc = start(d, &asks[i], err);
    }
    if (rc == NW_OK)
        rc = guess_all(d, asks, n, err);
    return rc == NW_OK ? NW_OK : nw_session_fail(d->session, rc);
}

void nw_draft_keep(nw_draft_model *d, size_t index, size_t count)
{
    d->lanes[index].fed = nw_min_size(d->lanes[index].fed, count);
}

void nw_draft_end(nw_draft_model *d, size_t index)
{
    nw_draft_lane *l = &d->lanes[index];
    if (!l->started)
        return;
    nw_page_pool_give(&d->session->parts.self, &l->self);
    nw_page_pool_give(&d->session->parts.cross, &l->cross.kv);
    l->started = false;
}

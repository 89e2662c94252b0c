#include "layout.h"

static size_t measure(size_t *last, const nw_arena *a)
{
    size_t bytes = a->used - *last;
    *last = a->used;
    return bytes;
}

size_t nw_embed_tiles(const nw_model *m, nw_pass pinned)
{
    bool own = m->tensors.embed != m->tensors.head;
    return own && pinned == NW_PASS_DECODE ? (size_t)m->places[m->tensors.embed].cut.tile_count : 0;
}

bool nw_vector_needed(const nw_model *m, nw_pass pinned, uint32_t tensor)
{
    const nw_tensor_need *n = &m->tensors.list[tensor];
    return n->vector && (pinned == NW_PASS_DECODE || n->stack != NW_STACK_DECODER);
}

static size_t vector_floats(const nw_model *m, nw_pass pinned)
{
    size_t floats = 0;
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        if (nw_vector_needed(m, pinned, i))
            floats += (size_t)nw_round_up(m->tensors.list[i].rows * m->tensors.list[i].cols, 16);
    }
    return floats;
}

static void place_vectors(nw_parts *p, nw_arena *a, const nw_model *m, nw_pass pinned)
{
    p->vectors = nw_carve(a, m->tensors.count, sizeof *p->vectors, 64);
    float *next = nw_carve(a, vector_floats(m, pinned), sizeof(float), 64);
    if (next == NULL)
        return;
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        const nw_tensor_need *n = &m->tensors.list[i];
        bool                  needed = nw_vector_needed(m, pinned, i);
        p->vectors[i] = needed ? next : NULL;
        if (needed)
            next += nw_round_up(n->rows * n->cols, 16);
    }
}

/* Pages of K and V, and room for the tables of all requests. */
static void place_self(nw_parts *p, nw_arena *a, const nw_model *m, const nw_shape *s)
{
    nw_page_pool_layout(&p->self, a, &m->config, s->self_pages, s->self_rows, s->self_ring);
    p->self_table_len = s->requests > 0 ? nw_page_pool_need(&p->self, s->sequences * s->maxima.output_tokens) : 0;
    p->self_tables = nw_carve(a, s->requests * p->self_table_len, sizeof *p->self_tables, 64);
}

static void place_cross(nw_parts *p, nw_arena *a, const nw_model *m, const nw_shape *s)
{
    nw_page_pool_layout(&p->cross, a, &m->config, s->cross_pages, s->cross_rows, 0);
    p->cross_table_len = s->requests > 0 ? nw_page_pool_need(&p->cross, s->maxima.input_tokens) : 0;
    p->cross_tables = nw_carve(a, s->requests * p->cross_table_len, sizeof *p->cross_tables, 64);
}

static void place_kv_stream(nw_parts *p, nw_arena *a, const nw_shape *s)
{
    p->kv_stream = (nw_kv_stream){.file = {.fd = -1}};
    for (int kind = 0; kind < NW_KV_KINDS; kind++) {
        p->kv_stream.shapes[kind] = s->kv[kind];
        p->streamed[kind] = nw_carve(a, s->kv[kind].tile_rows > 0 ? s->lanes : 0, sizeof *p->streamed[kind], 64);
    }
    nw_kv_stream_layout(&p->kv_stream, a, s->align);
}

/* What choosing tokens needs. */
static void place_choice(nw_parts *p, nw_arena *a, const nw_model *m, const nw_shape *s)
{
    size_t output = s->maxima.output_tokens, vocab = m->config.vocab_size;
    p->lane_ids = nw_carve(a, s->lanes * (1 + output), sizeof *p->lane_ids, 64);
    p->lane_logprobs = nw_carve(a, s->lanes * output, sizeof *p->lane_logprobs, 64);
    p->lane_paths = nw_carve(a, s->searches > 0 ? s->lanes * 2 * output : 0, sizeof *p->lane_paths, 64);
    p->stops = nw_carve(a, s->stops ? s->lanes : 0, sizeof *p->stops, 64);
    p->text = nw_carve(a, s->lanes > 0 ? NW_SHOWN_MAX : 0, 1, 64);
    p->searches = nw_carve(a, s->searches, sizeof *p->searches, 64);
    for (size_t i = 0; i < s->searches; i++) {
        nw_beam measured = {0}, *b = p->searches != NULL ? &p->searches[i] : &measured;
        *b = (nw_beam){.maxima = {.beams = s->beams, .length = 1 + output, .vocab = vocab}};
        nw_beam_layout(b, a);
    }
    if (!s->processed)
        return;
    nw_warp_layout(&p->warp, a, vocab);
    p->scores = nw_carve(a, vocab, sizeof *p->scores, 64);
    p->probabilities = nw_carve(a, vocab, sizeof *p->probabilities, 64);
    p->processor_scratch = nw_carve(a, 1 + output, sizeof *p->processor_scratch, 64);
}

static void place_slots(nw_parts *p, nw_arena *a, const nw_shape *s)
{
    p->slots = nw_carve(a, s->slot_count, sizeof *p->slots, 64);
    p->slot_bytes = nw_carve(a, s->slot_count, s->slot_bytes, s->align);
    if (p->slots == NULL || p->slot_bytes == NULL)
        return;
    for (uint32_t i = 0; i < s->slot_count; i++)
        p->slots[i].bytes = p->slot_bytes + i * s->slot_bytes;
}

size_t nw_parts_encode_bytes(const nw_model *m, const nw_maxima *maxima)
{
    nw_arena   a = nw_arena_measure();
    nw_forward f = {.config = &m->config, .tensors = &m->tensors, .maxima = *maxima};
    nw_forward_encode_layout(&f, &a);
    return (size_t)nw_round_up(a.used, 4096);
}

void nw_parts_layout(nw_parts *p, nw_arena *a, const nw_model *m, const nw_shape *s)
{
    const nw_config *c = &m->config;
    const nw_maxima *x = &s->maxima;
    size_t           last = a->used;

    p->pins = nw_carve(a, m->step_count[s->pinned], sizeof *p->pins, 64);
    p->embed_pins = nw_carve(a, nw_embed_tiles(m, s->pinned), sizeof *p->embed_pins, 64);
    p->columns = nw_carve(a, x->columns, sizeof *p->columns, 64);
    p->request_ids = nw_carve(a, s->requests * nw_request_ids(s), sizeof *p->request_ids, 64);
    p->asks = nw_carve(a, s->drafted ? s->lanes : 0, sizeof *p->asks, 64);
    p->choice_lens = nw_carve(a, s->requests * s->choices, sizeof *p->choice_lens, 64);
    p->encode_inputs = nw_carve(a, s->inputs, sizeof *p->encode_inputs, 64);
    p->crosses = nw_carve(a, s->inputs, sizeof *p->crosses, 64);
    p->row_ids = nw_carve(a, NW_ROW_CACHE, sizeof *p->row_ids, 64);
    p->row_cache = nw_carve(a, (size_t)NW_ROW_CACHE * c->d_model, sizeof *p->row_cache, 64);
    p->row_buffers = nw_carve(a, NW_ROW_BATCH, s->row_bytes, s->align);
    nw_trace_layout(&p->trace, a, &s->trace, x->threads, s->io_depth);
    p->index_bytes = measure(&last, a);

    place_vectors(p, a, m, s->pinned);
    p->vector_bytes = measure(&last, a);

    p->forward.config = c;
    p->forward.tensors = &m->tensors;
    p->forward.maxima = *x;
    nw_forward_layout(&p->forward, a);
    nw_restore_layout(&p->restore, a, m, x->threads);
    place_choice(p, a, m, s);
    p->logits = nw_carve(a, x->columns * c->vocab_size, sizeof(float), 64);
    p->activation_bytes = measure(&last, a);

    place_self(p, a, m, s);
    p->self_bytes = measure(&last, a);
    place_cross(p, a, m, s);
    place_kv_stream(p, a, s);
    p->cross_bytes = measure(&last, a);

    place_slots(p, a, s);
    p->window_bytes = measure(&last, a);

    p->encode_bytes = nw_parts_encode_bytes(m, x);
    NW_CHECK(s->region_bytes >= p->encode_bytes);
    p->region = nw_carve(a, s->region_bytes, 1, s->align);
    if (p->region != NULL) {
        p->encode_scratch = p->region + nw_round_down(s->region_bytes - p->encode_bytes, 64);
        nw_arena scratch = nw_arena_over(p->encode_scratch, (size_t)(p->region + s->region_bytes - p->encode_scratch));
        nw_forward_encode_layout(&p->forward, &scratch);
        NW_CHECK(!scratch.failed);
    }
}

/* The forward pass: norms and residual sums on whole rows, matrix products tile by tile, attention head by head.
 *
 * A product walks over the tiles of its tensor; each tile is cut into strips, and a strip is one piece of work for one
 * worker: it computes the strip's rows for every column into the worker's own buffer, then joins them to the output. No
 * sum is ever split between workers, and where tiles and strips are cut follows from the tensor's shape, so the threads
 * cannot change a bit. Attention is two-pass (scores of all keys, softmax, values in key order), again with each head
 * of each block of queries computed by one worker.
 */
#include "model/forward.h"

#include <math.h>
#include <string.h>

/* ---- buffers ---- */

/* The most rows of one strip of any tensor that a pass multiplies. */
static size_t strip_rows_max(const nw_forward *f)
{
    size_t rows = 0;
    for (uint32_t i = 0; i < f->tensors->count; i++) {
        const nw_tensor_need *n = &f->tensors->list[i];
        bool                  decoding = n->stack == NW_STACK_DECODER || i == f->tensors->head;
        if (n->vector || (n->role == NW_ROLE_EMBED && f->tensors->head != i) || (decoding && f->maxima.lanes == 0))
            continue;
        rows = nw_max_size(rows, (size_t)nw_min_u64(nw_cut_make(n->rows, n->cols).strip_rows, n->rows));
    }
    return rows;
}

void nw_forward_layout(nw_forward *f, nw_arena *a)
{
    const nw_config *c = f->config;
    const nw_maxima *m = &f->maxima;
    size_t           inner = nw_config_inner(c);
    size_t           lanes = c->decoder_blocks > 0 ? m->lanes : 0;
    size_t           longest = nw_max_size(m->input_tokens, m->output_tokens);

    f->decode.x = nw_carve(a, lanes * c->d_model, sizeof(float), 64);
    f->decode.h = nw_carve(a, lanes * c->d_model, sizeof(float), 64);
    f->decode.q = nw_carve(a, lanes * inner, sizeof(float), 64);
    f->decode.a = nw_carve(a, lanes * inner, sizeof(float), 64);
    f->decode.ff = nw_carve(a, lanes * c->d_ff, sizeof(float), 64);
    f->decode.scores = nw_carve(a, lanes > 0 ? m->threads * longest : 0, sizeof(float), 64);

    /* Shared by both kinds of pass. */
    f->out_floats = strip_rows_max(f) * nw_max_size(lanes, m->input_tokens);
    f->out = nw_carve(a, m->threads * f->out_floats, sizeof(float), 64);

    f->bucket_distances = nw_min_size(longest, c->bucket_distance + (size_t)1);
    f->bucket_encoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
    f->bucket_decoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
}

void nw_forward_encode_layout(nw_forward *f, nw_arena *a)
{
    const nw_config *c = f->config;
    size_t           t = f->maxima.input_tokens;
    size_t           inner = nw_config_inner(c);
    f->encode.x = nw_carve(a, t * c->d_model, sizeof(float), 64);
    f->encode.h = nw_carve(a, t * c->d_model, sizeof(float), 64);
    f->encode.q = nw_carve(a, t * inner, sizeof(float), 64);
    f->encode.k = nw_carve(a, t * inner, sizeof(float), 64);
    f->encode.v = nw_carve(a, t * inner, sizeof(float), 64);
    f->encode.a = nw_carve(a, t * inner, sizeof(float), 64);
    f->encode.ff = nw_carve(a, t * c->d_ff, sizeof(float), 64);
    f->encode.scores = nw_carve(a, f->maxima.threads * NW_COLS_MAX * t, sizeof(float), 64);
}

void nw_forward_prepare(nw_forward *f)
{
    nw_bucket_table(f->config, true, f->bucket_encoder, f->bucket_distances);
    nw_bucket_table(f->config, false, f->bucket_decoder, f->bucket_distances);
}

/* ---- matrix products ---- */

typedef enum {
    JOIN_STORE,    /* y = product */
    JOIN_ADD,      /* y += product: the residual stream */
    JOIN_ACTIVATE, /* y = act(product): wi */
    JOIN_MULTIPLY, /* y *= product: wi_1 of a gated model */
} join;

/* Where the rows of K or V go: behind page tables. */
typedef struct {
    nw_lane *lanes; /* column c is one token of lanes[c], at its length; NULL: all columns are one sequence's */
    nw_kv   *kv;    /* that sequence's; column c is position c */
    uint32_t block;
    bool     values; /* V, not K */
} kv_target;

typedef struct {
    nw_forward      *f;
    const float     *x; /* [columns, k] */
    size_t           columns, k;
    float           *y; /* [columns, ldy]; unused when kv is set */
    size_t           ldy;
    const kv_target *kv;
    join             join;
    nw_tile          tile;
} product;

static float *kv_row(const nw_config *c, const nw_kv *kv, uint32_t block, bool values, uint32_t position)
{
    size_t inner = nw_config_inner(c);
    size_t half = (size_t)kv->page_positions * inner;
    NW_ASSERT(position / kv->page_positions < kv->page_count);
    return kv->pages[position / kv->page_positions] + ((size_t)block * 2 + (values ? 1 : 0)) * half +
           (size_t)(position % kv->page_positions) * inner;
}

static float *output_row(const product *p, size_t column)
{
    if (p->kv == NULL)
        return p->y + column * p->ldy;
    const nw_kv *kv = p->kv->lanes != NULL ? p->kv->lanes[column].self : p->kv->kv;
    uint32_t     position = p->kv->lanes != NULL ? kv->length : (uint32_t)column;
    return kv_row(p->f->config, kv, p->kv->block, p->kv->values, position);
}

/* Joins the products of rows [first, first + rows) of the tensor with every column. */
static void join_strip(const product *p, float *out, size_t rows, size_t first)
{
    const nw_kernels *k = p->f->kernels;
    if (p->join == JOIN_ACTIVATE)
        k->activate(out, p->columns * rows, p->f->config->activation);
    for (size_t c = 0; c < p->columns; c++) {
        float       *y = output_row(p, c) + first;
        const float *o = out + c * rows;
        switch (p->join) {
        case JOIN_STORE:
        case JOIN_ACTIVATE: memcpy(y, o, rows * sizeof *y); break;
        case JOIN_ADD: k->add(y, o, rows); break;
        case JOIN_MULTIPLY: k->multiply(y, o, rows); break;
        }
    }
}

/* Up to NW_COLS_MAX columns times all rows of a strip. */
static void multiply_rows(const product *p, const nw_rows *w, size_t first_column, size_t columns, size_t rows,
                          float *out)
{
    const nw_kernels *k = p->f->kernels;
    const float      *x = p->x + first_column * p->k;
    switch (w->form) {
    case NW_ROWS_PLAIN: k->matmul[w->dtype](out, rows, x, p->k, columns, w->data, p->k, rows, p->k); break;
    case NW_ROWS_SLIM: k->matmul_slim(out, rows, x, p->k, columns, w->data, 0, rows, p->k); break;
    case NW_ROWS_Q8: k->matmul_q[NW_Q8](out, rows, x, p->k, columns, w->data, p->k, rows, p->k); break;
    case NW_ROWS_Q4: k->matmul_q[NW_Q4](out, rows, x, p->k, columns, w->data, p->k, rows, p->k); break;
    }
}

/* The kernels take NW_COLS_MAX columns at once; a column's bits do not depend on which others it is with. */
static void product_strip(void *ctx, size_t i, size_t worker)
{
    const product *p = ctx;
    const nw_tile *t = &p->tile;
    size_t         first = i * (size_t)t->strip_rows;
    size_t         rows = nw_min_size((size_t)t->strip_rows, (size_t)t->rows - first);
    float         *out = p->f->out + worker * p->f->out_floats;
    nw_rows        w;
    NW_CHECK(rows * p->columns <= p->f->out_floats);
    if (!p->f->weights.rows(p->f->weights.user, t, i, worker, &w))
        return;
    for (size_t c = 0; c < p->columns; c += NW_COLS_MAX)
        multiply_rows(p, &w, c, nw_min_size(NW_COLS_MAX, p->columns - c), rows, out + c * rows);
    join_strip(p, out, rows, (size_t)t->first + first);
}

/* One tile: acquired, multiplied on all workers, given back. */
static nw_code product_tile(product *p, uint32_t tensor, uint64_t tile, nw_error *err)
{
    nw_forward *f = p->f;
    nw_code     rc = f->weights.acquire(f->weights.user, tensor, (uint32_t)tile, &p->tile, err);
    if (rc != NW_OK)
        return rc;
    NW_CHECK(p->tile.cols == p->k);
    f->team.run(f->team.user, product_strip, p, (size_t)p->tile.strips);
    return f->weights.release(f->weights.user, &p->tile, err);
}

static product product_make(nw_forward *f, const float *x, size_t columns, size_t k, float *y, size_t ldy, join how)
{
    return (product){.f = f, .x = x, .columns = columns, .k = k, .y = y, .ldy = ldy, .join = how};
}

static nw_code multiply(product *p, uint32_t tensor, nw_error *err)
{
    const nw_tensor_need *n = &p->f->tensors->list[tensor];
    uint64_t              tiles = nw_cut_make(n->rows, n->cols).tile_count;
    nw_code               rc = NW_OK;
    for (uint64_t t = 0; t < tiles && rc == NW_OK; t++)
        rc = product_tile(p, tensor, t, err);
    return rc;
}

/* ff = act(wi h), and for a gated model ff *= wi_1 h, tile by tile in turn; then x += wo ff. */
static nw_code feed_forward(nw_forward *f, nw_stack stack, uint32_t block, const float *h, float *ff, float *x,
                            size_t columns, nw_error *err)
{
    const nw_config *c = f->config;
    uint32_t         wi = nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI);
    product          in = product_make(f, h, columns, c->d_model, ff, c->d_ff, JOIN_ACTIVATE);
    product          gate = product_make(f, h, columns, c->d_model, ff, c->d_ff, JOIN_MULTIPLY);
    product          out = product_make(f, ff, columns, c->d_ff, x, c->d_model, JOIN_ADD);
    uint64_t         tiles = nw_cut_make(c->d_ff, c->d_model).tile_count;
    nw_code          rc = NW_OK;
    for (uint64_t t = 0; t < tiles && rc == NW_OK; t++) {
        rc = product_tile(&in, wi, t, err);
        if (rc == NW_OK && c->gated)
            rc = product_tile(&gate, nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI1), t, err);
    }
    if (rc == NW_OK)
        rc = multiply(&out, nw_tensors_at(f->tensors, stack, block, NW_ROLE_WO), err);
    return rc;
}

/* ---- norms ---- */

typedef struct {
    const nw_forward *f;
    float            *y;
    const float      *x, *g;
} norm_job;

static void norm_row(void *ctx, size_t i, size_t worker)
{
    (void)worker;
    const norm_job *j = ctx;
    size_t          d = j->f->config->d_model;
    j->f->kernels->norm(j->y + i * d, j->x + i * d, j->g, d, j->f->config->norm_epsilon);
}

static void norm(nw_forward *f, float *y, const float *x, uint32_t tensor, size_t columns)
{
    norm_job j = {.f = f, .y = y, .x = x, .g = f->weights.vector(f->weights.user, tensor)};
    if (columns == 1)
        norm_row(&j, 0, 0); /* waking the workers would take longer */
    else
        f->team.run(f->team.user, norm_row, &j, columns);
}

/* ---- attention ---- */

static uint32_t bucket_of(const uint32_t *bucket, size_t distances, size_t distance)
{
    return bucket[nw_min_size(distance, distances - 1)];
}

/* Encoder self-attention: every query sees every key. One piece of work is one head of one block of 16 queries. */
typedef struct {
    nw_forward  *f;
    const float *bias; /* [buckets, heads] */
    size_t       queries, keys;
} encode_attention_job;

static void encode_attention_bias(const encode_attention_job *j, float *scores, size_t query, size_t head)
{
    const nw_forward *f = j->f;
    size_t            heads = f->config->head_count;
    uint32_t          after = f->config->bucket_count / 2; /* keys after the query use the upper half of the table */
    for (size_t key = 0; key < j->keys; key++) {
        size_t   distance = key > query ? key - query : query - key;
        uint32_t b = bucket_of(f->bucket_encoder, f->bucket_distances, distance) + (key > query ? after : 0);
        scores[key] += j->bias[b * heads + head];
    }
}

static void encode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const encode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      inner = nw_config_inner(f->config), d = f->config->d_kv, t = j->keys;
    size_t                      head = i % f->config->head_count;
    size_t                      first = i / f->config->head_count * NW_COLS_MAX;
    size_t                      queries = nw_min_size(NW_COLS_MAX, j->queries - first);
    float                      *scores = f->encode.scores + worker * NW_COLS_MAX * f->maxima.input_tokens;
    float                      *a = f->encode.a + first * inner + head * d;

    f->kernels->matmul[NW_F32](scores, t, f->encode.q + first * inner + head * d, inner, queries,
                               f->encode.k + head * d, inner, t, d);
    for (size_t q = 0; q < queries; q++) {
        encode_attention_bias(j, scores + q * t, first + q, head);
        f->kernels->softmax(scores + q * t, t);
        memset(a + q * inner, 0, d * sizeof *a);
    }
    f->kernels->mix(a, inner, scores, t, queries, f->encode.v + head * d, inner, t, d);
}

/* Attention of one token of each lane over its pages. One piece of work is one head of one lane. */
typedef struct {
    nw_forward  *f;
    nw_lane     *lanes;
    uint32_t     block;
    const float *bias; /* [buckets, heads]; NULL: cross-attention, which has none and sees every position */
} decode_attention_job;

static void decode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const decode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      inner = nw_config_inner(f->config), d = f->config->d_kv, heads = f->config->head_count;
    size_t                      lane = i / heads, head = i % heads;
    const nw_kv                *kv = j->bias != NULL ? j->lanes[lane].self : j->lanes[lane].cross;
    size_t                      keys = j->bias != NULL ? (size_t)kv->length + 1 : kv->length;
    size_t                      longest = nw_max_size(f->maxima.input_tokens, f->maxima.output_tokens);
    float                      *scores = f->decode.scores + worker * longest;
    const float                *q = f->decode.q + lane * inner + head * d;
    float                      *a = f->decode.a + lane * inner + head * d;
    NW_ASSERT(keys <= longest);

    for (size_t p = 0; p < keys; p += kv->page_positions) {
        const float *k = kv_row(f->config, kv, j->block, false, (uint32_t)p) + head * d;
        f->kernels->matmul[NW_F32](scores + p, 0, q, 0, 1, k, inner, nw_min_size(kv->page_positions, keys - p), d);
    }
    if (j->bias != NULL) {
        for (size_t p = 0; p < keys; p++)
            scores[p] += j->bias[bucket_of(f->bucket_decoder, f->bucket_distances, keys - 1 - p) * heads + head];
    }
    f->kernels->softmax(scores, keys);
    memset(a, 0, d * sizeof *a);
    for (size_t p = 0; p < keys; p += kv->page_positions) {
        const float *v = kv_row(f->config, kv, j->block, true, (uint32_t)p) + head * d;
        f->kernels->mix(a, 0, scores + p, 0, 1, v, inner, nw_min_size(kv->page_positions, keys - p), d);
    }
}

static void decode_attention(nw_forward *f, nw_lane *lanes, size_t lane_count, uint32_t block, const float *bias)
{
    decode_attention_job j = {.f = f, .lanes = lanes, .block = block, .bias = bias};
    f->team.run(f->team.user, decode_attention_piece, &j, lane_count * f->config->head_count);
}

/* The bias table of a block: block 0's, unless every block has its own. */
static const float *bias_table(nw_forward *f, nw_stack stack, uint32_t block)
{
    uint32_t owner = f->config->bias_per_block ? block : 0;
    return f->weights.vector(f->weights.user, nw_tensors_at(f->tensors, stack, owner, NW_ROLE_BIAS));
}

/* ---- passes ---- */

static nw_code encode_block(nw_forward *f, uint32_t block, const nw_encode_input *in, nw_error *err)
{
    const nw_config  *c = f->config;
    const nw_tensors *ts = f->tensors;
    size_t            inner = nw_config_inner(c), d = c->d_model, t = in->count + in->pads;
    struct {
        nw_role role;
        float  *y;
    } inputs[] = {{NW_ROLE_Q, f->encode.q}, {NW_ROLE_K, f->encode.k}, {NW_ROLE_V, f->encode.v}};

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_SELF), t);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        product p = product_make(f, f->encode.h, t, d, inputs[i].y, inner, JOIN_STORE);
        nw_code rc = multiply(&p, nw_tensors_at(ts, NW_STACK_ENCODER, block, inputs[i].role), err);
        if (rc != NW_OK)
            return rc;
    }

    encode_attention_job j = {
        .f = f, .bias = bias_table(f, NW_STACK_ENCODER, block), .queries = t, .keys = in->mask ? in->count : t};
    size_t query_blocks = (t + NW_COLS_MAX - 1) / NW_COLS_MAX;
    f->team.run(f->team.user, encode_attention_piece, &j, query_blocks * c->head_count);

    product o = product_make(f, f->encode.a, t, inner, f->encode.x, d, JOIN_ADD);
    nw_code rc = multiply(&o, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_O), err);
    if (rc != NW_OK)
        return rc;

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_FF), t);
    return feed_forward(f, NW_STACK_ENCODER, block, f->encode.h, f->encode.ff, f->encode.x, t, err);
}

nw_code nw_forward_encode(nw_forward *f, const nw_encode_input *in, float **ret_states, nw_error *err)
{
    size_t d = f->config->d_model, rows = in->count + in->pads;
    NW_CHECK(in->count >= 1 && in->pads <= f->maxima.input_tokens && rows <= f->maxima.input_tokens);
    nw_code rc = f->weights.embed(f->weights.user, in->ids, in->count, f->encode.x, err);
    if (rc == NW_OK && in->pads > 0)
        rc = f->weights.embed(f->weights.user, &in->pad_id, 1, f->encode.x + in->count * d, err);
    for (size_t i = in->count + 1; i < rows && rc == NW_OK; i++)
        memcpy(f->encode.x + i * d, f->encode.x + in->count * d, d * sizeof *f->encode.x);
    for (uint32_t b = 0; b < f->config->encoder_blocks && rc == NW_OK; b++)
        rc = encode_block(f, b, in, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->encode.h, f->encode.x, nw_tensors_at(f->tensors, NW_STACK_ENCODER, 0, NW_ROLE_NORM_FINAL), rows);
    *ret_states = f->encode.h;
    return NW_OK;
}

nw_code nw_forward_cross(nw_forward *f, const float *states, size_t count, nw_kv *kv, nw_error *err)
{
    static const nw_role roles[] = {NW_ROLE_CROSS_K, NW_ROLE_CROSS_V};
    NW_CHECK(count >= 1 && count <= (size_t)kv->page_count * kv->page_positions);
    for (uint32_t b = 0; b < f->config->decoder_blocks; b++) {
        for (size_t i = 0; i < 2; i++) {
            kv_target target = {.kv = kv, .block = b, .values = roles[i] == NW_ROLE_CROSS_V};
            product   p = product_make(f, states, count, f->config->d_model, NULL, 0, JOIN_STORE);
            p.kv = &target;
            nw_code rc = multiply(&p, nw_tensors_at(f->tensors, NW_STACK_DECODER, b, roles[i]), err);
            if (rc != NW_OK)
                return rc;
        }
    }
    kv->length = (uint32_t)count;
    return NW_OK;
}

/* q into its buffer; K and V straight into the lanes' pages. */
static nw_code decode_self_inputs(nw_forward *f, uint32_t block, nw_lane *lanes, size_t n, nw_error *err)
{
    const nw_tensors *ts = f->tensors;
    size_t            inner = nw_config_inner(f->config), d = f->config->d_model;
    product           q = product_make(f, f->decode.h, n, d, f->decode.q, inner, JOIN_STORE);
    nw_code           rc = multiply(&q, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_Q), err);
    for (int i = 0; i < 2 && rc == NW_OK; i++) {
        kv_target target = {.lanes = lanes, .block = block, .values = i == 1};
        product   p = product_make(f, f->decode.h, n, d, NULL, 0, JOIN_STORE);
        p.kv = &target;
        rc = multiply(&p, nw_tensors_at(ts, NW_STACK_DECODER, block, i == 1 ? NW_ROLE_V : NW_ROLE_K), err);
    }
    return rc;
}

/* x += o a */
static nw_code decode_attention_output(nw_forward *f, uint32_t block, nw_role role, size_t n, nw_error *err)
{
    product p = product_make(f, f->decode.a, n, nw_config_inner(f->config), f->decode.x, f->config->d_model, JOIN_ADD);
    return multiply(&p, nw_tensors_at(f->tensors, NW_STACK_DECODER, block, role), err);
}

static nw_code decode_block(nw_forward *f, uint32_t block, nw_lane *lanes, size_t n, nw_error *err)
{
    const nw_tensors *ts = f->tensors;
    float            *x = f->decode.x, *h = f->decode.h;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_SELF), n);
    nw_code rc = decode_self_inputs(f, block, lanes, n, err);
    if (rc != NW_OK)
        return rc;
    decode_attention(f, lanes, n, block, bias_table(f, NW_STACK_DECODER, block));
    rc = decode_attention_output(f, block, NW_ROLE_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_CROSS), n);
    product q = product_make(f, h, n, f->config->d_model, f->decode.q, nw_config_inner(f->config), JOIN_STORE);
    rc = multiply(&q, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_CROSS_Q), err);
    if (rc != NW_OK)
        return rc;
    decode_attention(f, lanes, n, block, NULL);
    rc = decode_attention_output(f, block, NW_ROLE_CROSS_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_FF), n);
    return feed_forward(f, NW_STACK_DECODER, block, h, f->decode.ff, x, n, err);
}

nw_code nw_forward_decode(nw_forward *f, nw_lane *lanes, size_t lane_count, float *logits, nw_error *err)
{
    const nw_config *c = f->config;
    size_t           d = c->d_model;
    nw_code          rc = NW_OK;
    NW_CHECK(lane_count >= 1 && lane_count <= f->maxima.lanes);
    for (size_t i = 0; i < lane_count && rc == NW_OK; i++) {
        NW_CHECK(lanes[i].self->length < lanes[i].self->page_count * lanes[i].self->page_positions);
        rc = f->weights.embed(f->weights.user, &lanes[i].token, 1, f->decode.x + i * d, err);
    }
    for (uint32_t b = 0; b < c->decoder_blocks && rc == NW_OK; b++)
        rc = decode_block(f, b, lanes, lane_count, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->decode.h, f->decode.x, nw_tensors_at(f->tensors, NW_STACK_DECODER, 0, NW_ROLE_NORM_FINAL), lane_count);
    if (c->scale_output)
        f->kernels->scale(f->decode.h, (float)(1 / sqrt((double)d)), lane_count * d);
    product head = product_make(f, f->decode.h, lane_count, d, logits, c->vocab_size, JOIN_STORE);
    rc = multiply(&head, f->tensors->head, err);
    if (rc != NW_OK)
        return rc;
    for (size_t i = 0; i < lane_count; i++)
        lanes[i].self->length++;
    return NW_OK;
}

double nw_log_probability(const nw_kernels *k, const float *logits, size_t n, size_t index)
{
    float max, sum;
    NW_CHECK(index < n);
    k->exp_sum(logits, n, &max, &sum);
    return (double)logits[index] - (double)max - nw_ln((double)sum);
}

void nw_log_probabilities_top(const nw_kernels *k, const float *logits, size_t n, size_t count, uint32_t *ids,
                              double *logprobs)
{
    float  max, sum;
    size_t held = 0;
    NW_CHECK(count >= 1 && count <= n);
    k->exp_sum(logits, n, &max, &sum);
    for (size_t i = 0; i < n; i++) {
        double value = isnan(logits[i]) ? -HUGE_VAL : (double)logits[i];
        if (held == count && value <= logprobs[held - 1])
            continue;
        size_t at = held < count ? held++ : held - 1;
        for (; at > 0 && value > logprobs[at - 1]; at--) {
            logprobs[at] = logprobs[at - 1];
            ids[at] = ids[at - 1];
        }
        logprobs[at] = value;
        ids[at] = (uint32_t)i;
    }
    for (size_t i = 0; i < count; i++)
        logprobs[i] = (double)logits[ids[i]] - (double)max - nw_ln((double)sum);
}

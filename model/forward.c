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

/* Columns of which a worker holds the products with a strip: more go through in turn, so that many prompts in one pass
 * need no buffer for all of them, and what they are multiplied from stays in the cache. */
enum { OUT_COLUMNS = 256 };

/* The most rows of one strip of any tensor that a pass multiplies. */
static size_t strip_rows_max(const nw_forward *f)
{
    size_t rows = 0;
    for (uint32_t i = 0; i < f->tensors->count; i++) {
        const nw_tensor_need *n = &f->tensors->list[i];
        bool                  decoding = n->stack == NW_STACK_DECODER || i == f->tensors->head;
        if (n->vector || (n->role == NW_ROLE_EMBED && f->tensors->head != i) || (decoding && f->maxima.columns == 0))
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
    size_t           columns = c->decoder_blocks > 0 ? m->columns : 0;
    size_t           longest = nw_max_size(m->input_tokens, m->output_tokens);

    f->decode.x = nw_carve(a, columns * c->d_model, sizeof(float), 64);
    f->decode.h = nw_carve(a, columns * c->d_model, sizeof(float), 64);
    f->decode.q = nw_carve(a, columns * inner, sizeof(float), 64);
    f->decode.a = nw_carve(a, columns * inner, sizeof(float), 64);
    f->decode.ff = nw_carve(a, columns * c->d_ff, sizeof(float), 64);
    f->decode.scores = nw_carve(a, columns > 0 ? m->threads * longest : 0, sizeof(float), 64);

    f->decode.cross = nw_carve(a, m->stream_cross ? columns * c->head_count * m->input_tokens : 0, sizeof(float), 64);

    /* Shared by both kinds of pass. */
    f->out_floats = strip_rows_max(f) * nw_min_size(OUT_COLUMNS, nw_max_size(columns, m->encode_tokens));
    f->out = nw_carve(a, m->threads * f->out_floats, sizeof(float), 64);

    f->bucket_distances = nw_min_size(longest, c->bucket_distance + (size_t)1);
    f->bucket_encoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
    f->bucket_decoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
}

/* What one worker needs for encoder attention: the kernel's room, then a row of biases; whole lines. */
static size_t attention_floats(const nw_forward *f)
{
    size_t keys = f->maxima.input_tokens;
    return NW_COLS_MAX * (keys + f->config->d_kv) + (size_t)nw_round_up(keys + NW_COLS_MAX - 1, 16);
}

void nw_forward_encode_layout(nw_forward *f, nw_arena *a)
{
    const nw_config *c = f->config;
    size_t           t = f->maxima.encode_tokens;
    size_t           inner = nw_config_inner(c);
    f->encode.x = nw_carve(a, t * c->d_model, sizeof(float), 64);
    f->encode.h = nw_carve(a, t * c->d_model, sizeof(float), 64);
    /* Attention is over when the feed-forward layer begins. */
    size_t part = (size_t)nw_round_up(t * inner, 16);
    float *both = nw_carve(a, nw_max_size(4 * part, t * c->d_ff), sizeof(float), 64);
    f->encode.ff = f->encode.q = both;
    f->encode.k = both != NULL ? both + part : NULL;
    f->encode.v = both != NULL ? both + part * 2 : NULL;
    f->encode.a = both != NULL ? both + part * 3 : NULL;
    f->encode.scores = nw_carve(a, f->maxima.threads * attention_floats(f), sizeof(float), 64);
}

void nw_forward_prepare(nw_forward *f)
{
    nw_bucket_table(f->config, true, f->bucket_encoder, f->bucket_distances);
    nw_bucket_table(f->config, false, f->bucket_decoder, f->bucket_distances);
}

/* ---- matrix products ---- */

enum {
    TILES_MAX = 32,   /* of one job: some 60 MB, two milliseconds of a memory's reading */
    PIECE_STRIPS = 4, /* of a piece of work at most */
    PIECES_EACH = 8   /* of a job for each worker, or more */
};

typedef enum {
    JOIN_STORE,    /* y = product */
    JOIN_ADD,      /* y += product: the residual stream */
    JOIN_ACTIVATE, /* y = act(product): wi */
    JOIN_MULTIPLY, /* y *= product: wi_1 of a gated model */
} join;

/* Where the rows of K or V go: behind page tables. */
typedef struct {
    const nw_column *columns; /* one row for each; NULL: of encoder states, for `crosses` one behind the other */
    nw_cross *const *crosses;
    uint32_t         block;
    bool             values; /* V, not K */
} kv_target;

typedef struct {
    nw_forward      *f;
    const float     *x; /* [columns, k] */
    size_t           columns, k;
    float           *y; /* [columns, ldy]; unused when kv is set */
    size_t           ldy;
    const kv_target *kv;
    join             join;
} product;

static float *kv_row(const nw_config *c, const nw_kv *kv, uint32_t block, bool values, size_t row)
{
    size_t inner = nw_config_inner(c);
    size_t half = (size_t)kv->page_rows * inner;
    NW_ASSERT(row / kv->page_rows < kv->page_count);
    return kv->pages[row / kv->page_rows] + ((size_t)block * 2 + (values ? 1 : 0)) * half + row % kv->page_rows * inner;
}

static float *kv_output_row(const nw_config *c, const kv_target *t, size_t column)
{
    if (t->columns != NULL) {
        const nw_column *o = &t->columns[column];
        return kv_row(c, o->self, t->block, t->values, (size_t)o->position * o->branches + o->branch);
    }
    nw_cross *const *cross = t->crosses;
    for (; column >= (*cross)->length; cross++)
        column -= (*cross)->length;
    return kv_row(c, &(*cross)->kv, t->block, t->values, column);
}

static float *output_row(const product *p, size_t column)
{
    return p->kv == NULL ? p->y + column * p->ldy : kv_output_row(p->f->config, p->kv, column);
}

/* Some columns, one behind the other. */
typedef struct {
    size_t first, count;
} column_run;

/* Joins the products of rows [first, first + rows) of the tensor with these columns. */
static void join_strip(const product *p, column_run run, float *out, size_t rows, size_t first)
{
    const nw_kernels *k = p->f->kernels;
    if (p->join == JOIN_ACTIVATE)
        k->activate(out, run.count * rows, p->f->config->activation);
    for (size_t c = 0; c < run.count; c++) {
        float       *y = output_row(p, run.first + c) + first;
        const float *o = out + c * rows;
        switch (p->join) {
        case JOIN_STORE:
        case JOIN_ACTIVATE: memcpy(y, o, rows * sizeof *y); break;
        case JOIN_ADD: k->add(y, o, rows); break;
        case JOIN_MULTIPLY: k->multiply(y, o, rows); break;
        }
    }
}

/* These columns times all rows of a strip. */
static void multiply_rows(const product *p, column_run run, const nw_rows *w, size_t rows, float *out)
{
    const nw_kernels *k = p->f->kernels;
    const float      *x = p->x + run.first * p->k;
    size_t            n = run.count;
    switch (w->form) {
    case NW_ROWS_PLAIN: k->matmul[w->dtype](out, rows, x, p->k, n, w->data, p->k, rows, p->k); break;
    case NW_ROWS_SLIM: k->matmul_slim(out, rows, x, p->k, n, w->data, 0, rows, p->k); break;
    case NW_ROWS_Q8: k->matmul_q[NW_Q8](out, rows, x, p->k, n, w->data, p->k, rows, p->k); break;
    case NW_ROWS_Q4: k->matmul_q[NW_Q4](out, rows, x, p->k, n, w->data, p->k, rows, p->k); break;
    }
}

static void product_strip(const product *p, const nw_tile *t, size_t i, size_t worker)
{
    size_t  first = i * (size_t)t->strip_rows;
    size_t  rows = nw_min_size((size_t)t->strip_rows, (size_t)t->rows - first);
    float  *out = p->f->out + worker * p->f->out_floats;
    nw_rows w = t->ready;
    NW_CHECK(rows * nw_min_size(p->columns, OUT_COLUMNS) <= p->f->out_floats);
    if (w.data != NULL)
        w.data = (const unsigned char *)w.data + i * t->ready_stride;
    else if (!p->f->weights.rows(p->f->weights.user, t, i, worker, &w))
        return;
    for (column_run run = {0}; run.first < p->columns; run.first += run.count) {
        run.count = nw_min_size(OUT_COLUMNS, p->columns - run.first);
        multiply_rows(p, run, &w, rows, out);
        join_strip(p, run, out, rows, (size_t)t->first + first);
    }
}

/* Products of tensors of one shape with the same columns, in the order in which the schedule has their tiles. */
typedef struct {
    const product *products[3];
    uint32_t       tensors[3];
    size_t         count;
    /* The first tile of each, then the second of each, and so on; else all tiles of one, then all of the next. What
     * is joined to the same output must be in turn: then one worker takes the strips of both, one after the other. */
    bool in_turn;
} product_group;

/* What a group's visit is, counted over all of its tiles. */
typedef struct {
    size_t   product;
    uint32_t tile;
} product_visit;

static product_visit visit_at(const product_group *g, uint64_t visit, uint64_t tile_count)
{
    if (g->in_turn)
        return (product_visit){.product = (size_t)(visit % g->count), .tile = (uint32_t)(visit / g->count)};
    return (product_visit){.product = (size_t)(visit / tile_count), .tile = (uint32_t)(visit % tile_count)};
}

/* Tiles of one job, in turns: of one tile, or of as many as belong together. */
typedef struct {
    nw_tile        tiles[TILES_MAX];
    const product *products[TILES_MAX]; /* of each tile */
    size_t         ends[TILES_MAX];     /* strips of each turn and those before it */
    size_t         tile_count, each;    /* each: tiles of a turn */
    size_t         piece;               /* strips, of all tiles of a turn, in one piece of work */
} product_job;

static void product_piece(void *ctx, size_t i, size_t worker)
{
    const product_job *j = ctx;
    size_t             turn = 0, strips = j->ends[j->tile_count / j->each - 1];
    size_t             end = nw_min_size((i + 1) * j->piece, strips);
    for (size_t s = i * j->piece; s < end; s++) {
        while (s >= j->ends[turn])
            turn++;
        for (size_t t = turn * j->each; t < (turn + 1) * j->each; t++)
            product_strip(j->products[t], &j->tiles[t], s - (turn > 0 ? j->ends[turn - 1] : 0), worker);
    }
}

/* Acquires what comes next in the schedule, multiplies it on all workers, gives it back; as much at once as is there.
 * `visit` counts the group's tiles. */
static nw_code product_next(const product_group *g, uint64_t visit, uint64_t *ret_visit, uint64_t tile_count,
                            nw_error *err)
{
    nw_forward   *f = g->products[0]->f;
    product_visit first = visit_at(g, visit, tile_count);
    size_t        most = (size_t)nw_min_u64(TILES_MAX, tile_count * g->count - visit) - 1, strips = 0;
    size_t        each = g->in_turn ? g->count : 1;
    product_job   j = {.tile_count = 1, .each = 1};
    nw_code       rc = f->weights.acquire(f->weights.user, g->tensors[first.product], first.tile, &j.tiles[0], err);
    if (rc != NW_OK)
        return rc;
    size_t more = visit % each == 0 && most > 0 ? f->weights.more(f->weights.user, most, each, &j.tiles[1]) : 0;
    if (more > 0) {
        j.each = each;
        j.tile_count = 1 + more;
    }
    for (size_t i = 0; i < j.tile_count; i++) {
        product_visit v = visit_at(g, visit + i, tile_count);
        j.products[i] = g->products[v.product];
        NW_CHECK(j.tiles[i].tensor == g->tensors[v.product] && j.tiles[i].tile == v.tile);
        NW_CHECK(j.tiles[i].cols == j.products[i]->k);
        if (i % j.each == 0)
            j.ends[i / j.each] = strips += (size_t)j.tiles[i].strips;
    }
    /* Strips in a row keep the memory busy over their seams; enough pieces remain for the workers to end together. */
    j.piece = nw_max_size(1, nw_min_size(PIECE_STRIPS, strips / (f->team.thread_count * PIECES_EACH)));
    f->team.run(f->team.user, NW_WORK_PRODUCT, product_piece, &j, (strips + j.piece - 1) / j.piece);
    *ret_visit = visit + j.tile_count;
    return f->weights.release(f->weights.user, j.tiles, j.tile_count, err);
}

static nw_code multiply_all(const product_group *g, nw_error *err)
{
    const nw_tensors *tensors = g->products[0]->f->tensors;
    uint64_t tile_count = nw_cut_make(tensors->list[g->tensors[0]].rows, tensors->list[g->tensors[0]].cols).tile_count;
    nw_code  rc = NW_OK;
    for (uint64_t visit = 0; visit < tile_count * g->count && rc == NW_OK;)
        rc = product_next(g, visit, &visit, tile_count, err);
    return rc;
}

static nw_code multiply(const product *p, uint32_t tensor, nw_error *err)
{
    product_group g = {.products = {p}, .tensors = {tensor}, .count = 1};
    return multiply_all(&g, err);
}

static product product_make(nw_forward *f, const float *x, size_t columns, size_t k, float *y, size_t ldy, join how)
{
    return (product){.f = f, .x = x, .columns = columns, .k = k, .y = y, .ldy = ldy, .join = how};
}

/* ff = act(wi h), and for a gated model ff *= wi_1 h, tile by tile in turn; then x += wo ff. */
static nw_code feed_forward(nw_forward *f, nw_stack stack, uint32_t block, const float *h, float *ff, float *x,
                            size_t columns, nw_error *err)
{
    const nw_config *c = f->config;
    product          in = product_make(f, h, columns, c->d_model, ff, c->d_ff, JOIN_ACTIVATE);
    product          gate = product_make(f, h, columns, c->d_model, ff, c->d_ff, JOIN_MULTIPLY);
    product          out = product_make(f, ff, columns, c->d_ff, x, c->d_model, JOIN_ADD);
    product_group    both = {.products = {&in, &gate}, .count = c->gated ? 2 : 1, .in_turn = true};
    both.tensors[0] = nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI);
    if (c->gated)
        both.tensors[1] = nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI1);
    nw_code rc = multiply_all(&both, err);
    if (rc == NW_OK)
        rc = multiply(&out, nw_tensors_at(f->tensors, stack, block, NW_ROLE_WO), err);
    return rc;
}

/* The queries, keys and values of a block's self-attention, which are made from the same columns. */
static nw_code multiply_qkv(const product *q, const product *k, const product *v, nw_stack stack, uint32_t block,
                            nw_error *err)
{
    const nw_tensors *ts = q->f->tensors;
    product_group     g = {.products = {q, k, v}, .count = 3};
    g.tensors[0] = nw_tensors_at(ts, stack, block, NW_ROLE_Q);
    g.tensors[1] = nw_tensors_at(ts, stack, block, NW_ROLE_K);
    g.tensors[2] = nw_tensors_at(ts, stack, block, NW_ROLE_V);
    return multiply_all(&g, err);
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
        f->team.run(f->team.user, NW_WORK_NORM, norm_row, &j, columns);
}

/* ---- attention ---- */

static uint32_t bucket_of(const uint32_t *bucket, size_t distances, size_t distance)
{
    return bucket[nw_min_size(distance, distances - 1)];
}

/* Encoder self-attention: every query sees every key of its input. One piece of work is one head of one block of 16
 * queries. */
typedef struct {
    nw_forward            *f;
    const float           *bias; /* [buckets, heads] */
    const nw_encode_input *inputs;
    size_t                 n;
} encode_attention_job;

static size_t input_rows(const nw_encode_input *in)
{
    return in->count + in->pads;
}

static size_t query_blocks(const nw_encode_input *in)
{
    return (input_rows(in) + NW_COLS_MAX - 1) / NW_COLS_MAX;
}

/* The biases of 16 queries from `first` on, as the kernel takes them: the last key first, as only what lies between key
 * and query counts. */
static void encode_attention_bias(const encode_attention_job *j, float *bias, size_t keys, size_t first, size_t head)
{
    const nw_forward *f = j->f;
    size_t            heads = f->config->head_count, key = keys - 1;
    uint32_t          after = f->config->bucket_count / 2; /* keys after the query use the upper half of the table */
    for (size_t i = 0; i < keys + NW_COLS_MAX - 1; i++) {
        size_t   query = first + i, distance = key > query ? key - query : query - key;
        uint32_t b = bucket_of(f->bucket_encoder, f->bucket_distances, distance) + (key > query ? after : 0);
        bias[i] = j->bias[b * heads + head];
    }
}

static void encode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const encode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      inner = nw_config_inner(f->config), d = f->config->d_kv;
    size_t                      head = i % f->config->head_count, block = i / f->config->head_count;
    const nw_encode_input      *in = j->inputs;
    size_t                      start = 0; /* row of the input's first token */
    for (; block >= query_blocks(in); in++) {
        block -= query_blocks(in);
        start += input_rows(in);
    }
    size_t keys = in->mask ? in->count : input_rows(in), first = block * NW_COLS_MAX;
    size_t queries = nw_min_size(NW_COLS_MAX, input_rows(in) - first);
    float *room = f->encode.scores + worker * attention_floats(f);
    float *bias = room + NW_COLS_MAX * (keys + d);
    size_t at = (start + first) * inner + head * d, all = start * inner + head * d;

    encode_attention_bias(j, bias, keys, first, head);
    f->kernels->attend(f->encode.a + at, inner, f->encode.q + at, inner, queries, f->encode.k + all, inner,
                       f->encode.v + all, inner, keys, d, bias, room);
}

/* Attention of each column over its pages. One piece of work is one head of one column. */
typedef struct {
    nw_forward      *f;
    const nw_column *columns;
    uint32_t         block;
    const float     *bias; /* [buckets, heads]; NULL: cross-attention, which has none and sees every position */
} decode_attention_job;

/* Rows of consecutive positions that lie at equal distances in one page. */
typedef struct {
    const nw_kv *kv;
    size_t       row, count, step; /* the first; how many; from one to the next */
} kv_run;

static size_t branch_at(const nw_column *c, size_t position)
{
    return c->path != NULL && position < c->position ? c->path[position] : c->branch;
}

/* The run that begins at a position of what a column sees, of `keys` positions in all. */
static kv_run kv_run_at(const nw_column *c, bool cross, size_t position, size_t keys)
{
    kv_run r = {.kv = &c->cross->kv, .row = position, .step = 1};
    if (!cross)
        r = (kv_run){.kv = c->self, .row = position * c->branches + branch_at(c, position), .step = c->branches};
    size_t in_page = (r.kv->page_rows - r.row % r.kv->page_rows + r.step - 1) / r.step;
    size_t most = nw_min_size(in_page, keys - position);
    r.count = cross || c->path == NULL ? most : 1;
    while (r.count < most && branch_at(c, position + r.count) == branch_at(c, position))
        r.count++;
    return r;
}

static void decode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const decode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      inner = nw_config_inner(f->config), d = f->config->d_kv, heads = f->config->head_count;
    size_t                      column = i / heads, head = i % heads;
    const nw_column            *c = &j->columns[column];
    bool                        cross = j->bias == NULL;
    size_t                      keys = cross ? c->cross->length : (size_t)c->position + 1;
    size_t                      longest = nw_max_size(f->maxima.input_tokens, f->maxima.output_tokens);
    float                      *scores = f->decode.scores + worker * longest;
    const float                *q = f->decode.q + column * inner + head * d;
    float                      *a = f->decode.a + column * inner + head * d;
    NW_ASSERT(keys <= longest);

    for (size_t p = 0; p < keys;) {
        kv_run       r = kv_run_at(c, cross, p, keys);
        const float *k = kv_row(f->config, r.kv, j->block, false, r.row) + head * d;
        f->kernels->matmul[NW_F32](scores + p, 0, q, 0, 1, k, r.step * inner, r.count, d);
        p += r.count;
    }
    for (size_t p = 0; p < keys && !cross; p++)
        scores[p] += j->bias[bucket_of(f->bucket_decoder, f->bucket_distances, keys - 1 - p) * heads + head];
    f->kernels->softmax(scores, keys);
    memset(a, 0, d * sizeof *a);
    for (size_t p = 0; p < keys;) {
        kv_run       r = kv_run_at(c, cross, p, keys);
        const float *v = kv_row(f->config, r.kv, j->block, true, r.row) + head * d;
        f->kernels->mix(a, 0, scores + p, 0, 1, v, r.step * inner, r.count, d);
        p += r.count;
    }
}

static void decode_attention(nw_forward *f, const nw_column *columns, size_t n, uint32_t block, const float *bias)
{
    decode_attention_job j = {.f = f, .columns = columns, .block = block, .bias = bias};
    f->team.run(f->team.user, NW_WORK_ATTENTION, decode_attention_piece, &j, n * f->config->head_count);
}

/* Cross-attention whose K and V come in tiles: the scores of all columns that see an input, tile by tile, then the
 * values. The same products, in the same order for each column and head, as when all is in memory. */
typedef struct {
    nw_forward      *f;
    const nw_column *columns;
    const nw_cross  *cross;
    const float     *rows; /* [count, inner] of the tile at hand */
    size_t           first, count;
    enum { CROSS_SCORES, CROSS_SOFTMAX, CROSS_VALUES } what;
} cross_job;

static void cross_piece(void *ctx, size_t i, size_t worker)
{
    const cross_job *j = ctx;
    nw_forward      *f = j->f;
    size_t           inner = nw_config_inner(f->config), d = f->config->d_kv, heads = f->config->head_count;
    size_t           column = i / heads, head = i % heads;
    float           *scores = f->decode.cross + i * f->maxima.input_tokens;
    float           *a = f->decode.a + column * inner + head * d;
    (void)worker;
    if (j->columns[column].cross != j->cross)
        return;
    switch (j->what) {
    case CROSS_SCORES:
        f->kernels->matmul[NW_F32](scores + j->first, 0, f->decode.q + column * inner + head * d, 0, 1,
                                   j->rows + head * d, inner, j->count, d);
        break;
    case CROSS_SOFTMAX:
        f->kernels->softmax(scores, j->cross->length);
        memset(a, 0, d * sizeof *a);
        break;
    case CROSS_VALUES: f->kernels->mix(a, 0, scores + j->first, 0, 1, j->rows + head * d, inner, j->count, d); break;
    }
}

static nw_code cross_tiles(cross_job *j, uint32_t block, size_t n, nw_error *err)
{
    nw_forward *f = j->f;
    bool        values = j->what == CROSS_VALUES;
    for (j->first = 0; j->first < j->cross->length; j->first += j->count) {
        nw_code rc =
            f->weights.kv(f->weights.user, j->cross, block, values, (uint32_t)j->first, &j->rows, &j->count, err);
        if (rc != NW_OK)
            return rc;
        f->team.run(f->team.user, NW_WORK_ATTENTION, cross_piece, j, n * f->config->head_count);
        f->weights.kv_release(f->weights.user);
    }
    return NW_OK;
}

static bool is_first_of_cross(const nw_column *columns, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (columns[k].cross == columns[i].cross)
            return false;
    }
    return true;
}

static nw_code stream_cross(nw_forward *f, const nw_column *columns, size_t n, uint32_t block, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        if (!is_first_of_cross(columns, i))
            continue;
        cross_job j = {.f = f, .columns = columns, .cross = columns[i].cross, .what = CROSS_SCORES};
        rc = cross_tiles(&j, block, n, err);
        j.what = CROSS_SOFTMAX;
        f->team.run(f->team.user, NW_WORK_ATTENTION, cross_piece, &j, n * f->config->head_count);
        j.what = CROSS_VALUES;
        if (rc == NW_OK)
            rc = cross_tiles(&j, block, n, err);
    }
    return rc;
}

/* The bias table of a block: block 0's, unless every block has its own. */
static const float *bias_table(nw_forward *f, nw_stack stack, uint32_t block)
{
    uint32_t owner = f->config->bias_per_block ? block : 0;
    return f->weights.vector(f->weights.user, nw_tensors_at(f->tensors, stack, owner, NW_ROLE_BIAS));
}

/* ---- passes ---- */

static nw_code encode_block(nw_forward *f, uint32_t block, const nw_encode_input *inputs, size_t n, size_t rows,
                            nw_error *err)
{
    const nw_config  *c = f->config;
    const nw_tensors *ts = f->tensors;
    size_t            inner = nw_config_inner(c), d = c->d_model;
    product           q = product_make(f, f->encode.h, rows, d, f->encode.q, inner, JOIN_STORE);
    product           k = product_make(f, f->encode.h, rows, d, f->encode.k, inner, JOIN_STORE);
    product           v = product_make(f, f->encode.h, rows, d, f->encode.v, inner, JOIN_STORE);

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_SELF), rows);
    nw_code rc = multiply_qkv(&q, &k, &v, NW_STACK_ENCODER, block, err);
    if (rc != NW_OK)
        return rc;

    encode_attention_job j = {.f = f, .bias = bias_table(f, NW_STACK_ENCODER, block), .inputs = inputs, .n = n};
    size_t               blocks = 0;
    for (size_t i = 0; i < n; i++)
        blocks += query_blocks(&inputs[i]);
    f->team.run(f->team.user, NW_WORK_ATTENTION, encode_attention_piece, &j, blocks * c->head_count);

    product o = product_make(f, f->encode.a, rows, inner, f->encode.x, d, JOIN_ADD);
    rc = multiply(&o, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_O), err);
    if (rc != NW_OK)
        return rc;

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_FF), rows);
    return feed_forward(f, NW_STACK_ENCODER, block, f->encode.h, f->encode.ff, f->encode.x, rows, err);
}

/* The embeddings of an input's tokens and of its pads: x [count + pads, d_model]. */
static nw_code embed_input(nw_forward *f, const nw_encode_input *in, float *x, nw_error *err)
{
    size_t  d = f->config->d_model, rows = input_rows(in);
    nw_code rc = f->weights.embed(f->weights.user, in->ids, in->count, x, err);
    if (rc == NW_OK && in->pads > 0)
        rc = f->weights.embed(f->weights.user, &in->pad_id, 1, x + in->count * d, err);
    for (size_t i = in->count + 1; i < rows && rc == NW_OK; i++)
        memcpy(x + i * d, x + in->count * d, d * sizeof *x);
    return rc;
}

nw_code nw_forward_encode(nw_forward *f, const nw_encode_input *inputs, size_t n, float **ret_states, nw_error *err)
{
    size_t  rows = 0;
    nw_code rc = NW_OK;
    NW_CHECK(n >= 1);
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        NW_CHECK(inputs[i].count >= 1 && inputs[i].pads <= f->maxima.input_tokens);
        NW_CHECK(input_rows(&inputs[i]) <= f->maxima.input_tokens);
        NW_CHECK(rows + input_rows(&inputs[i]) <= f->maxima.encode_tokens);
        rc = embed_input(f, &inputs[i], f->encode.x + rows * f->config->d_model, err);
        rows += input_rows(&inputs[i]);
    }
    for (uint32_t b = 0; b < f->config->encoder_blocks && rc == NW_OK; b++)
        rc = encode_block(f, b, inputs, n, rows, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->encode.h, f->encode.x, nw_tensors_at(f->tensors, NW_STACK_ENCODER, 0, NW_ROLE_NORM_FINAL), rows);
    *ret_states = f->encode.h;
    return NW_OK;
}

/* K or V of a block for all inputs, made in `rows` [count, inner] and given away. */
static nw_code store_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t n, size_t count,
                           uint32_t block, bool values, float *rows, nw_error *err)
{
    uint32_t tensor = nw_tensors_at(f->tensors, NW_STACK_DECODER, block, values ? NW_ROLE_CROSS_V : NW_ROLE_CROSS_K);
    size_t   inner = nw_config_inner(f->config);
    product  p = product_make(f, states, count, f->config->d_model, rows, inner, JOIN_STORE);
    nw_code  rc = multiply(&p, tensor, err);
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        rc = f->weights.kv_store(f->weights.user, crosses[i], block, values, rows, err);
        rows += crosses[i]->length * inner;
    }
    return rc;
}

/* K or V of a block for all inputs, straight into their pages. */
static nw_code page_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t count, uint32_t block,
                          bool values, nw_error *err)
{
    kv_target target = {.crosses = crosses, .block = block, .values = values};
    product   p = product_make(f, states, count, f->config->d_model, NULL, 0, JOIN_STORE);
    p.kv = &target;
    return multiply(&p, nw_tensors_at(f->tensors, NW_STACK_DECODER, block, values ? NW_ROLE_CROSS_V : NW_ROLE_CROSS_K),
                    err);
}

nw_code nw_forward_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t n, nw_error *err)
{
    size_t  rows = 0;
    nw_code rc = NW_OK;
    NW_CHECK(n >= 1);
    for (size_t i = 0; i < n; i++) {
        const nw_kv *kv = &crosses[i]->kv;
        NW_CHECK(crosses[i]->length >= 1);
        NW_CHECK(f->maxima.stream_cross || crosses[i]->length <= (size_t)kv->page_count * kv->page_rows);
        rows += crosses[i]->length;
    }
    NW_CHECK(rows <= f->maxima.encode_tokens);
    for (uint32_t b = 0; b < f->config->decoder_blocks; b++) {
        for (int v = 0; v < 2 && rc == NW_OK; v++) {
            float *buffer = v == 1 ? f->encode.v : f->encode.k;
            rc = f->maxima.stream_cross ? store_cross(f, states, crosses, n, rows, b, v == 1, buffer, err)
                                        : page_cross(f, states, crosses, rows, b, v == 1, err);
        }
    }
    return rc;
}

/* q into its buffer; K and V straight into the columns' pages. */
static nw_code decode_self_inputs(nw_forward *f, uint32_t block, const nw_column *columns, size_t n, nw_error *err)
{
    size_t    d = f->config->d_model;
    kv_target keys = {.columns = columns, .block = block, .values = false};
    kv_target values = {.columns = columns, .block = block, .values = true};
    product   q = product_make(f, f->decode.h, n, d, f->decode.q, nw_config_inner(f->config), JOIN_STORE);
    product   k = product_make(f, f->decode.h, n, d, NULL, 0, JOIN_STORE);
    product   v = k;
    k.kv = &keys;
    v.kv = &values;
    return multiply_qkv(&q, &k, &v, NW_STACK_DECODER, block, err);
}

/* x += o a */
static nw_code decode_attention_output(nw_forward *f, uint32_t block, nw_role role, size_t n, nw_error *err)
{
    product p = product_make(f, f->decode.a, n, nw_config_inner(f->config), f->decode.x, f->config->d_model, JOIN_ADD);
    return multiply(&p, nw_tensors_at(f->tensors, NW_STACK_DECODER, block, role), err);
}

static nw_code decode_block(nw_forward *f, uint32_t block, const nw_column *columns, size_t n, nw_error *err)
{
    const nw_tensors *ts = f->tensors;
    float            *x = f->decode.x, *h = f->decode.h;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_SELF), n);
    nw_code rc = decode_self_inputs(f, block, columns, n, err);
    if (rc != NW_OK)
        return rc;
    decode_attention(f, columns, n, block, bias_table(f, NW_STACK_DECODER, block));
    rc = decode_attention_output(f, block, NW_ROLE_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_CROSS), n);
    product q = product_make(f, h, n, f->config->d_model, f->decode.q, nw_config_inner(f->config), JOIN_STORE);
    rc = multiply(&q, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_CROSS_Q), err);
    if (rc != NW_OK)
        return rc;
    if (f->maxima.stream_cross)
        rc = stream_cross(f, columns, n, block, err);
    else
        decode_attention(f, columns, n, block, NULL);
    if (rc == NW_OK)
        rc = decode_attention_output(f, block, NW_ROLE_CROSS_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_FF), n);
    return feed_forward(f, NW_STACK_DECODER, block, h, f->decode.ff, x, n, err);
}

/* The embeddings of up to NW_COLS_MAX columns' tokens, in one batch. */
static nw_code embed_columns(nw_forward *f, const nw_column *columns, size_t n, float *x, nw_error *err)
{
    uint32_t ids[NW_COLS_MAX];
    for (size_t i = 0; i < n; i++)
        ids[i] = columns[i].token;
    return f->weights.embed(f->weights.user, ids, n, x, err);
}

nw_code nw_forward_decode(nw_forward *f, const nw_column *columns, size_t n, float *logits, nw_error *err)
{
    const nw_config *c = f->config;
    size_t           d = c->d_model;
    nw_code          rc = NW_OK;
    NW_CHECK(n >= 1 && n <= f->maxima.columns);
    for (size_t i = 0; i < n; i++) {
        const nw_column *o = &columns[i];
        NW_CHECK(o->branch < o->branches && o->position < f->maxima.output_tokens);
        NW_CHECK((size_t)o->position * o->branches + o->branch < (size_t)o->self->page_count * o->self->page_rows);
    }
    for (size_t i = 0; i < n && rc == NW_OK; i += NW_COLS_MAX)
        rc = embed_columns(f, columns + i, nw_min_size(NW_COLS_MAX, n - i), f->decode.x + i * d, err);
    for (uint32_t b = 0; b < c->decoder_blocks && rc == NW_OK; b++)
        rc = decode_block(f, b, columns, n, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->decode.h, f->decode.x, nw_tensors_at(f->tensors, NW_STACK_DECODER, 0, NW_ROLE_NORM_FINAL), n);
    if (c->scale_output)
        f->kernels->scale(f->decode.h, (float)(1 / sqrt((double)d)), n * d);
    product head = product_make(f, f->decode.h, n, d, logits, c->vocab_size, JOIN_STORE);
    return multiply(&head, f->tensors->head, err);
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

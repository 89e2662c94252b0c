#include "attention.h"

#include "products.h"

#include <string.h>

/* ---- of an encoder pass ---- */

static uint32_t bucket_of(const uint32_t *bucket, size_t distances, size_t distance)
{
    return bucket[nw_min_size(distance, distances - 1)];
}

/* Encoder self-attention: every query sees every key of its input. Blocks are of 16 queries; one piece of work is some
 * blocks of one head, so that its K and V, which lie far apart, are brought together once for all of them. */
enum {
    PIECES_EACH = 16, /* for each worker, or more */
    BLOCKS_WORTH = 3  /* from so many blocks on it is faster */
};

typedef struct {
    nw_forward            *f;
    const float           *bias; /* [buckets, heads] */
    const nw_encode_input *inputs;
    size_t                 n;
    size_t                 blocks_each; /* of a piece, or the last ones of a head */
} encode_attention_job;

static size_t query_blocks(const nw_encode_input *in)
{
    return (nw_input_rows(in) + NW_COLS_MAX - 1) / NW_COLS_MAX;
}

static size_t head_pieces(const encode_attention_job *j, const nw_encode_input *in)
{
    return (query_blocks(in) + j->blocks_each - 1) / j->blocks_each;
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

/* K or V of one head: rows that are `ld` apart. */
typedef struct {
    const float *first;
    size_t       ld;
} head_rows;

/* The same rows [count, d], one behind the other. */
static head_rows gather(float *to, head_rows from, size_t count, size_t d)
{
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * d, from.first + i * from.ld, d * sizeof *to);
    return (head_rows){to, d};
}

static void encode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const encode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      heads = f->config->head_count, inner = nw_config_inner(f->config), d = f->config->d_kv;
    const nw_encode_input      *in = j->inputs;
    size_t                      start = 0; /* row of the input's first token */
    for (; i >= head_pieces(j, in) * heads; in++) {
        i -= head_pieces(j, in) * heads;
        start += nw_input_rows(in);
    }
    size_t head = i / head_pieces(j, in), block = i % head_pieces(j, in) * j->blocks_each;
    size_t end = nw_min_size(block + j->blocks_each, query_blocks(in));
    size_t       rows = nw_input_rows(in), keys = in->mask ? in->count : rows, all = start * inner + head * d;
    head_rows    k = {f->encode.k + all, inner}, v = {f->encode.v + all, inner};
    float       *scores = f->encode.scores + worker * nw_attention_floats(f);
    float       *bias = scores + NW_COLS_MAX * (keys + d), *room = f->room + worker * f->room_floats;
    if (end - block >= BLOCKS_WORTH && keys * d <= f->room_floats)
        k = gather(room, k, keys, d);
    if (end - block >= BLOCKS_WORTH && 2 * keys * d <= f->room_floats)
        v = gather(room + keys * d, v, keys, d);
    for (; block < end; block++) {
        size_t first = block * NW_COLS_MAX, at = all + first * inner;
        encode_attention_bias(j, bias, keys, first, head);
        f->kernels->attend(f->encode.a + at, inner, f->encode.q + at, inner, nw_min_size(NW_COLS_MAX, rows - first),
                           k.first, k.ld, v.first, v.ld, keys, d, bias, scores);
    }
}

void nw_attend_encode(nw_forward *f, const nw_encode_input *inputs, size_t n, const float *bias)
{
    encode_attention_job j = {.f = f, .bias = bias, .inputs = inputs, .n = n};
    size_t               heads = f->config->head_count, blocks = 0, pieces = 0;
    for (size_t i = 0; i < n; i++)
        blocks += query_blocks(&inputs[i]);
    j.blocks_each = nw_max_size(1, blocks * heads / (f->team.thread_count * PIECES_EACH));
    for (size_t i = 0; i < n; i++)
        pieces += head_pieces(&j, &inputs[i]) * heads;
    f->team.run(f->team.user, NW_WORK_ATTENTION, encode_attention_piece, &j, pieces);
}

/* ---- what a column sees ---- */

typedef struct {
    const nw_column *column;
    const nw_kv     *kv;
    size_t           keys;
    bool             cross; /* row p is position p; else branches share the rows of a position */
} kv_view;

static kv_view view_of(const nw_column *c, bool cross)
{
    return (kv_view){.column = c,
                     .kv = cross ? &c->cross->kv : c->self,
                     .keys = cross ? c->cross->length : (size_t)c->position + 1,
                     .cross = cross};
}

static size_t branch_at(const nw_column *c, size_t position)
{
    return c->path != NULL && position < c->position ? c->path[position] : c->branch;
}

static size_t row_of(const kv_view *v, size_t position)
{
    return v->cross ? position : position * v->column->branches + branch_at(v->column, position);
}

/* The first position whose row is not before this one. */
static size_t position_from(const kv_view *v, size_t row)
{
    size_t p = v->cross ? row : row / v->column->branches;
    return p < v->keys && row_of(v, p) < row ? p + 1 : p;
}

/* Consecutive positions whose rows lie at equal distances. */
typedef struct {
    size_t row, count, step; /* the first; how many; from one to the next */
} kv_run;

/* The run that begins at a position and ends before row `end`. */
static kv_run kv_run_at(const kv_view *v, size_t position, size_t end)
{
    const nw_column *c = v->column;
    kv_run           r = {.row = row_of(v, position), .count = 1, .step = v->cross ? 1 : c->branches};
    size_t           most = nw_min_size((end - r.row + r.step - 1) / r.step, v->keys - position);
    if (v->cross || c->path == NULL)
        r.count = most;
    while (r.count < most && branch_at(c, position + r.count) == branch_at(c, position))
        r.count++;
    return r;
}

/* ---- one head of one column ---- */

typedef struct {
    const nw_forward *f;
    kv_view           view;
    size_t            head;
    const float      *q;      /* [d] */
    float            *a;      /* [d] */
    float            *scores; /* [keys] */
} head_at;

/* Rows of K or V, one behind the other: of a page, or of a tile. */
typedef struct {
    const float *data;
    size_t       first, end;
} kv_rows;

/* The scores of those rows that are seen; or what these add to the mean of the values. */
static void attend_rows(const head_at *h, kv_rows rows, bool values)
{
    const nw_kernels *k = h->f->kernels;
    size_t            inner = nw_config_inner(h->f->config), d = h->f->config->d_kv;
    for (size_t p = position_from(&h->view, rows.first); p < h->view.keys && row_of(&h->view, p) < rows.end;) {
        kv_run       r = kv_run_at(&h->view, p, rows.end);
        const float *at = rows.data + (r.row - rows.first) * inner + h->head * d;
        if (values)
            k->mix(h->a, 0, h->scores + p, 0, 1, at, r.step * inner, r.count, d);
        else
            k->matmul[NW_F32](h->scores + p, 0, h->q, 0, 1, at, r.step * inner, r.count, d, NULL);
        p += r.count;
    }
}

static void attend_pages(const head_at *h, uint32_t block, bool values)
{
    const nw_kv *kv = h->view.kv;
    size_t       end = row_of(&h->view, h->view.keys - 1) + 1;
    for (size_t row = kv->streamed; row < end; row += kv->page_rows) {
        const float *data = nw_kv_row(h->f->config, kv, block, values, row);
        attend_rows(h, (kv_rows){.data = data, .first = row, .end = row + kv->page_rows}, values);
    }
}

/* From scores to weights. */
static void weigh(const head_at *h, const float *bias)
{
    const nw_forward *f = h->f;
    size_t            keys = h->view.keys, heads = f->config->head_count;
    for (size_t p = 0; p < keys && bias != NULL; p++)
        h->scores[p] += bias[bucket_of(f->bucket_decoder, f->bucket_distances, keys - 1 - p) * heads + h->head];
    f->kernels->softmax(h->scores, keys);
    memset(h->a, 0, f->config->d_kv * sizeof *h->a);
}

/* ---- all columns ---- */

/* One piece of work is one head of one column. */
typedef struct {
    nw_forward      *f;
    const nw_column *columns;
    uint32_t         block;
    const float     *bias; /* NULL: cross-attention */
    /* What comes in tiles: those of `kv` are at hand. */
    const nw_kv *kv;
    kv_rows      rows;
    enum { TILE_OF_K, PAGES_OF_K, TILE_OF_V, PAGES_OF_V } what;
} decode_attention_job;

static head_at head_of(const decode_attention_job *j, size_t i, float *scores)
{
    nw_forward *f = j->f;
    size_t      heads = f->config->head_count, d = f->config->d_kv, inner = nw_config_inner(f->config);
    size_t      column = i / heads, head = i % heads;
    return (head_at){.f = f,
                     .view = view_of(&j->columns[column], j->bias == NULL),
                     .head = head,
                     .q = f->decode.q + column * inner + head * d,
                     .a = f->decode.a + column * inner + head * d,
                     .scores = scores};
}

static void decode_attention_piece(void *ctx, size_t i, size_t worker)
{
    const decode_attention_job *j = ctx;
    nw_forward                 *f = j->f;
    size_t                      longest = nw_max_size(f->maxima.input_tokens, f->maxima.output_tokens);
    head_at                     h = head_of(j, i, f->decode.scores + worker * longest);
    NW_ASSERT(h.view.keys <= longest);
    attend_pages(&h, j->block, false);
    weigh(&h, j->bias);
    attend_pages(&h, j->block, true);
}

static void streamed_attention_piece(void *ctx, size_t i, size_t worker)
{
    const decode_attention_job *j = ctx;
    head_at                     h = head_of(j, i, j->f->decode.streamed + i * nw_attention_streamed(&j->f->maxima));
    (void)worker;
    if (h.view.kv != j->kv)
        return;
    switch (j->what) {
    case TILE_OF_K: attend_rows(&h, j->rows, false); break;
    case PAGES_OF_K:
        attend_pages(&h, j->block, false);
        weigh(&h, j->bias);
        break;
    case TILE_OF_V: attend_rows(&h, j->rows, true); break;
    case PAGES_OF_V: attend_pages(&h, j->block, true); break;
    }
}

static nw_code attend_tiles(decode_attention_job *j, size_t n, nw_error *err)
{
    nw_forward *f = j->f;
    for (size_t first = 0, count = 0; first < j->kv->streamed; first += count) {
        const float *rows;
        nw_code      rc =
            f->weights.kv(f->weights.user, j->kv, j->block, j->what == TILE_OF_V, (uint32_t)first, &rows, &count, err);
        if (rc != NW_OK)
            return rc;
        j->rows = (kv_rows){.data = rows, .first = first, .end = first + count};
        f->team.run(f->team.user, NW_WORK_ATTENTION, streamed_attention_piece, j, n * f->config->head_count);
        f->weights.kv_release(f->weights.user);
    }
    return NW_OK;
}

/* The columns that see j->kv: K tile by tile, then V. */
static nw_code attend_streamed(decode_attention_job *j, size_t n, nw_error *err)
{
    nw_forward *f = j->f;
    j->what = TILE_OF_K;
    nw_code rc = attend_tiles(j, n, err);
    if (rc != NW_OK)
        return rc;
    j->what = PAGES_OF_K;
    f->team.run(f->team.user, NW_WORK_ATTENTION, streamed_attention_piece, j, n * f->config->head_count);
    j->what = TILE_OF_V;
    rc = attend_tiles(j, n, err);
    if (rc != NW_OK)
        return rc;
    j->what = PAGES_OF_V;
    f->team.run(f->team.user, NW_WORK_ATTENTION, streamed_attention_piece, j, n * f->config->head_count);
    return NW_OK;
}

static bool is_first_of_kv(const nw_column *columns, size_t i, bool cross)
{
    for (size_t k = 0; k < i; k++) {
        if (view_of(&columns[k], cross).kv == view_of(&columns[i], cross).kv)
            return false;
    }
    return true;
}

nw_code nw_attend_decode(nw_forward *f, const nw_column *columns, size_t n, uint32_t block, const float *bias,
                         nw_error *err)
{
    decode_attention_job j = {.f = f, .columns = columns, .block = block, .bias = bias};
    bool                 streamed = false;
    nw_code              rc = NW_OK;
    for (size_t i = 0; i < n; i++)
        streamed |= view_of(&columns[i], bias == NULL).kv->streamed > 0;
    if (!streamed) {
        f->team.run(f->team.user, NW_WORK_ATTENTION, decode_attention_piece, &j, n * f->config->head_count);
        return NW_OK;
    }
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        if (!is_first_of_kv(columns, i, bias == NULL))
            continue;
        j.kv = view_of(&columns[i], bias == NULL).kv;
        rc = attend_streamed(&j, n, err);
    }
    return rc;
}

size_t nw_attention_streamed(const nw_maxima *m)
{
    return nw_max_size(m->stream_cross ? m->input_tokens : 0, m->stream_self ? m->output_tokens : 0);
}

/* The kernel's room, then a row of biases; whole lines. */
size_t nw_attention_floats(const nw_forward *f)
{
    size_t keys = f->maxima.input_tokens;
    return NW_COLS_MAX * (keys + f->config->d_kv) + (size_t)nw_round_up(keys + NW_COLS_MAX - 1, 16);
}

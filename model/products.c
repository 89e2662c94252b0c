/* A product walks over the tiles of its tensor; each tile is cut into strips, and a strip is one piece of work for one
 * worker: it computes the strip's rows for every column into the worker's own buffer, then joins them to the output. No
 * sum is ever split between workers, and where tiles and strips are cut follows from the tensor's shape, so the threads
 * cannot change a bit. */
#include "products.h"

#include <string.h>

enum {
    TILES_MAX = 32,   /* of one job: some 60 MB, two milliseconds of a memory's reading */
    PIECE_STRIPS = 4, /* of a piece of work at most */
    PIECES_EACH = 8   /* of a job for each worker, or more */
};

/* Of the products with a strip a worker holds those of so many columns, or as many as OUT_FLOATS hold. More go through
 * in turn, so that many prompts in one pass need no buffer for all of them. */
enum { OUT_COLUMNS = 256, OUT_FLOATS = 32768 };

/* What a worker needs for `columns` columns and a strip of any tensor that a pass multiplies. */
static void measure_strips(nw_forward *f, size_t columns)
{
    f->out_floats = f->room_floats = 0;
    for (uint32_t i = 0; i < f->tensors->count; i++) {
        const nw_tensor_need *n = &f->tensors->list[i];
        bool                  decoding = n->stack == NW_STACK_DECODER || i == f->tensors->head;
        if (n->vector || (n->role == NW_ROLE_EMBED && f->tensors->head != i) || (decoding && f->maxima.columns == 0))
            continue;
        size_t rows = (size_t)nw_min_u64(nw_cut_make(n->rows, n->cols).strip_rows, n->rows);
        size_t held = nw_min_size(columns, nw_max_size(OUT_COLUMNS, OUT_FLOATS / rows));
        f->out_floats = nw_max_size(f->out_floats, rows * held);
        f->room_floats = nw_max_size(f->room_floats, nw_matmul_room(columns, (size_t)n->cols));
    }
}

void nw_products_layout(nw_forward *f, nw_arena *a)
{
    const nw_maxima *m = &f->maxima;
    size_t           columns = f->config->decoder_blocks > 0 ? m->columns : 0;
    measure_strips(f, nw_max_size(columns, m->encode_tokens));
    f->out = nw_carve(a, m->threads * f->out_floats, sizeof(float), 64);
    f->room_floats = (size_t)nw_round_up(f->room_floats, 16); /* each worker's at a multiple of 64 bytes */
    f->room = nw_carve(a, m->threads * f->room_floats, sizeof(float), 64);
}

float *nw_kv_row(const nw_config *c, const nw_kv *kv, uint32_t block, bool values, size_t row)
{
    NW_ASSERT(row >= kv->streamed);
    float *page = nw_kv_page_part(c, kv, row / kv->page_rows, block, values);
    return page + row % kv->page_rows * nw_config_inner(c);
}

static float *kv_output_row(const nw_config *c, const nw_kv_target *t, size_t column)
{
    if (t->columns != NULL) {
        const nw_column *o = &t->columns[column];
        return nw_kv_row(c, o->self, t->block, t->values, (size_t)o->position * o->branches + o->branch);
    }
    nw_cross *const *cross = t->crosses;
    for (; column >= (*cross)->length; cross++)
        column -= (*cross)->length;
    return nw_kv_row(c, &(*cross)->kv, t->block, t->values, column);
}

static float *output_row(const nw_product *p, size_t column)
{
    return p->kv == NULL ? p->y + column * p->ldy : kv_output_row(p->f->config, p->kv, column);
}

/* Some columns, one behind the other. */
typedef struct {
    size_t first, count;
} column_run;

/* Joins the products of rows [first, first + rows) of the tensor with these columns. */
static void join_strip(const nw_product *p, column_run run, float *out, size_t rows, size_t first)
{
    const nw_kernels *k = p->f->kernels;
    if (p->join == NW_JOIN_ACTIVATE)
        k->activate(out, run.count * rows, p->f->config->activation);
    for (size_t c = 0; c < run.count; c++) {
        float       *y = output_row(p, run.first + c) + first;
        const float *o = out + c * rows;
        switch (p->join) {
        case NW_JOIN_STORE:
        case NW_JOIN_ACTIVATE: memcpy(y, o, rows * sizeof *y); break;
        case NW_JOIN_ADD: k->add(y, o, rows); break;
        case NW_JOIN_MULTIPLY: k->multiply(y, o, rows); break;
        }
    }
}

/* These columns times all rows of a strip. */
static void multiply_rows(const nw_product *p, column_run run, const nw_rows *w, size_t rows, float *out, float *room)
{
    const nw_kernels *k = p->f->kernels;
    const float      *x = p->x + run.first * p->k;
    size_t            n = run.count;
    switch (w->form) {
    case NW_ROWS_PLAIN: k->matmul[w->dtype](out, rows, x, p->k, n, w->data, p->k, rows, p->k, room); break;
    case NW_ROWS_SLIM: k->matmul_slim(out, rows, x, p->k, n, w->data, 0, rows, p->k, room); break;
    case NW_ROWS_Q8: k->matmul_q[NW_Q8](out, rows, x, p->k, n, w->data, p->k, rows, p->k, room); break;
    case NW_ROWS_Q4: k->matmul_q[NW_Q4](out, rows, x, p->k, n, w->data, p->k, rows, p->k, room); break;
    }
}

/* How many strips can be multiplied as if they were one: if their rows lie one behind the other, and the worker's
 * buffer has room for the products. The fewer beginnings, the busier is the memory. */
static size_t strips_at_once(const nw_product *p, const nw_tile *t)
{
    size_t bytes = (size_t)(t->strip_rows * t->cols) * nw_dtype_bytes(t->ready.dtype);
    if (t->ready.data == NULL || t->ready.form != NW_ROWS_PLAIN || t->ready_stride != bytes)
        return 1;
    return nw_max_size(1, p->f->out_floats / ((size_t)t->strip_rows * p->columns));
}

/* Strips [i, i + count) of a tile: one, or at most strips_at_once. */
static void product_strips(const nw_product *p, const nw_tile *t, size_t i, size_t count, size_t worker)
{
    size_t  first = i * (size_t)t->strip_rows;
    size_t  rows = nw_min_size(count * (size_t)t->strip_rows, (size_t)t->rows - first);
    float  *out = p->f->out + worker * p->f->out_floats, *room = p->f->room + worker * p->f->room_floats;
    nw_rows w = t->ready;
    NW_CHECK(rows <= p->f->out_floats);
    if (w.data != NULL)
        w.data = (const unsigned char *)w.data + i * t->ready_stride;
    else if (!p->f->weights.rows(p->f->weights.user, t, i, worker, &w))
        return;
    size_t most = p->f->out_floats / rows, runs = (p->columns + most - 1) / most;
    for (column_run run = {0}; runs > 0; run.first += run.count, runs--) {
        run.count = (p->columns - run.first + runs - 1) / runs;
        NW_CHECK(nw_matmul_room(run.count, p->k) <= p->f->room_floats);
        multiply_rows(p, run, &w, rows, out, room);
        join_strip(p, run, out, rows, (size_t)t->first + first);
    }
}

static void product_run(const nw_product *p, const nw_tile *t, size_t first, size_t count, size_t worker)
{
    size_t most = strips_at_once(p, t);
    for (size_t i = first, some; i < first + count; i += some) {
        some = nw_min_size(most, first + count - i);
        product_strips(p, t, i, some, worker);
    }
}

/* What a group's visit is, counted over all of its tiles. */
typedef struct {
    size_t   product;
    uint32_t tile;
} product_visit;

static product_visit visit_at(const nw_product_group *g, uint64_t visit, uint64_t tile_count)
{
    if (g->in_turn)
        return (product_visit){.product = (size_t)(visit % g->count), .tile = (uint32_t)(visit / g->count)};
    return (product_visit){.product = (size_t)(visit / tile_count), .tile = (uint32_t)(visit % tile_count)};
}

/* Tiles of one job, in turns: of one tile, or of as many as belong together. */
typedef struct {
    nw_tile           tiles[TILES_MAX];
    const nw_product *products[TILES_MAX]; /* of each tile */
    size_t            ends[TILES_MAX];     /* strips of each turn and those before it */
    size_t            tile_count, each;    /* each: tiles of a turn */
    size_t            piece;               /* strips, of all tiles of a turn, in one piece of work */
} product_job;

static void product_piece(void *ctx, size_t i, size_t worker)
{
    const product_job *j = ctx;
    size_t             turn = 0, strips = j->ends[j->tile_count / j->each - 1];
    size_t             end = nw_min_size((i + 1) * j->piece, strips);
    for (size_t s = i * j->piece, count; s < end; s += count) {
        while (s >= j->ends[turn])
            turn++;
        size_t first = s - (turn > 0 ? j->ends[turn - 1] : 0);
        count = nw_min_size(end, j->ends[turn]) - s;
        for (size_t t = turn * j->each; t < (turn + 1) * j->each; t++)
            product_run(j->products[t], &j->tiles[t], first, count, worker);
    }
}

/* Acquires what comes next in the schedule, multiplies it on all workers, gives it back; as much at once as is there.
 * `visit` counts the group's tiles. */
static nw_code product_next(const nw_product_group *g, uint64_t visit, uint64_t *ret_visit, uint64_t tile_count,
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

nw_code nw_multiply_group(const nw_product_group *g, nw_error *err)
{
    const nw_tensors *tensors = g->products[0]->f->tensors;
    uint64_t tile_count = nw_cut_make(tensors->list[g->tensors[0]].rows, tensors->list[g->tensors[0]].cols).tile_count;
    nw_code  rc = NW_OK;
    for (uint64_t visit = 0; visit < tile_count * g->count && rc == NW_OK;)
        rc = product_next(g, visit, &visit, tile_count, err);
    return rc;
}

nw_code nw_multiply(const nw_product *p, uint32_t tensor, nw_error *err)
{
    nw_product_group g = {.products = {p}, .tensors = {tensor}, .count = 1};
    return nw_multiply_group(&g, err);
}

nw_product nw_product_make(nw_forward *f, const float *x, size_t columns, size_t k, float *y, size_t ldy, nw_join how)
{
    return (nw_product){.f = f, .x = x, .columns = columns, .k = k, .y = y, .ldy = ldy, .join = how};
}

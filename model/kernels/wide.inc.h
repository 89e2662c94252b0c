/* The matrix product for many columns, once, over the lanes of the header that was included before this file, for
 * weights in any form: part of kernels.inc.h and forms.inc.h.
 *
 * wide_cut.h says in which order it goes. Tiles are up to TILE_ROWS rows by TILE_COLS columns with sums in registers.
 * From stretch to stretch the chains wait in memory, so they are those of the contract: one for each lane over the
 * whole row, and the tree at the end. x is read as it stands: while one tile is multiplied, it fetches a column of what
 * the next ones take. */
#include "lanes.h"
#include "wide_cut.h"

#if !defined(WIDE_FROM)
#define WIDE_FROM 17
#endif

#define WIDE_TILE_CHAINS ((size_t)TILE_ROWS * TILE_COLS * 16) /* floats */

_Static_assert(WIDE_ROWS_STEP % TILE_ROWS == 0 && TILE_COLS <= WIDE_TILE_COLS && WIDE_FEW_COLS % TILE_COLS == 0 &&
                   WIDE_NEAR_COLS % TILE_COLS == 0 && WIDE_COLS % TILE_COLS == 0 && WIDE_FEW_COLS >= WIDE_FEW &&
                   WIDE_NEAR_ROWS <= WIDE_ROWS,
               "wide_cut.h does not fit the tiles");

/* The f32 values of weights [i, i + n) of row r, laid out as wide_values says, and zeros behind the last to a multiple
 * of
 * 16. A row is asked for in order; i = 0 begins again. */
typedef void (*wide_decode)(void *source, size_t r, size_t i, size_t n, float *out);

typedef struct {
    float       *y;
    const float *x;
    size_t       ldy, ldx, cols, rows, k;
    float       *room;
    wide_decode  decode;
    void        *source;
} wide_product;

/* Things cut into `count` runs as equal as can be: the first `longer` of them have each + 1, the others `each`. */
typedef struct {
    size_t count, each, longer;
} wide_runs;

static wide_runs wide_runs_make(size_t things, size_t most)
{
    size_t count = nw_max_size(1, (things + most - 1) / most);
    return (wide_runs){count, things / count, things % count};
}

static size_t wide_begin(const wide_runs *r, size_t run)
{
    return run * r->each + nw_min_size(run, r->longer);
}

/* A part of one product: a panel of rows [row, row + rows) and elements [i, i + n), by columns [col, col + cols). */
typedef struct {
    size_t    row, rows, i, n, col, cols;
    wide_runs groups;    /* of columns */
    wide_runs stretches; /* of WIDE_STEP elements */
    bool      fetch;     /* x, before it is used */
    float    *values;    /* the panel */
    float    *chains;    /* WIDE_TILE_CHAINS for each tile of rows, and for which columns wide_chain_floats says */
} wide_part;

/* One link of the chains of a tile: n elements, the first ones or the last or both or neither. */
typedef struct {
    float       *chains;
    const float *w, *x;
    const float *ahead; /* elements of x to be fetched, as many as n, perhaps past its end; NULL: none */
    float       *y;     /* where the sums go after the last link */
    size_t       ldx, ldy, n;
    bool         first, last;
} wide_link;

/* All whole vectors. Returns how many elements those are. */
LANES_INLINE size_t wide_steps(size_t rows, size_t cols, v16 sum[TILE_SUMS], const wide_link *l, bool fetch)
{
    const float *w = l->w, *x = l->x;
    uintptr_t    ahead = (uintptr_t)l->ahead; /* no pointer: prefetching never faults, whatever is there */
    size_t       i = 0, n = l->n, ldx = l->ldx;
    for (; n - i >= 16; i += 16, w += 16 * TILE_ROWS) {
        v16 weights[TILE_ROWS];
        if (fetch)
            __builtin_prefetch((const void *)(ahead + i * sizeof *x), 0, 2);
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++)
            weights[r] = v16_load(w + r * 16);
        LANES_UNROLL
        for (size_t c = 0; c < cols; c++) {
            v16 input = v16_load(x + c * ldx + i);
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[c * rows + r] = v16_fma(weights[r], input, sum[c * rows + r]);
        }
    }
    return i;
}

LANES_INLINE void wide_tile(size_t rows, size_t cols, const wide_link *l)
{
    v16 sum[TILE_SUMS];
    LANES_UNROLL
    for (size_t s = 0; s < rows * cols; s++)
        sum[s] = l->first ? v16_set(0) : v16_load(l->chains + s * 16);
    size_t i = l->ahead != NULL ? wide_steps(rows, cols, sum, l, true) : wide_steps(rows, cols, sum, l, false);
    if (i < l->n) {
        LANES_UNROLL
        for (size_t c = 0; c < cols; c++) {
            v16 input = v16_load_part(l->x + c * l->ldx + i, l->n - i, v16_set(0));
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[c * rows + r] = v16_fma(v16_load(l->w + i * TILE_ROWS + r * 16), input, sum[c * rows + r]);
        }
    }
    if (!l->last) {
        LANES_UNROLL
        for (size_t s = 0; s < rows * cols; s++)
            v16_store(l->chains + s * 16, sum[s]);
        return;
    }
    float  out[TILE_SUMS];
    size_t end = rows * cols - 1;
    LANES_UNROLL
    for (size_t s = 0; s <= end; s += 4)
        v16_sum4(out + s, sum[s], sum[nw_min_size(s + 1, end)], sum[nw_min_size(s + 2, end)],
                 sum[nw_min_size(s + 3, end)]);
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++)
        memcpy(l->y + c * l->ldy, out + c * rows, rows * sizeof(float));
}

typedef void (*wide_fn)(const wide_link *l);

#define WIDE_FUNCTION(rows, cols)                                                                                      \
    static __attribute__((noinline)) void wide_##rows##_##cols(const wide_link *l)                                     \
    {                                                                                                                  \
        wide_tile(rows, cols, l);                                                                                      \
    }
#define WIDE_ENTRY(rows, cols) [(rows)-1][(cols)-1] = wide_##rows##_##cols,
#if TILE_ROWS == 4
#define WIDE_EACH(F) TILE_EACH(F, 1) TILE_EACH(F, 2) TILE_EACH(F, 3) TILE_EACH(F, 4)
#elif TILE_ROWS == 2
#define WIDE_EACH(F) TILE_EACH(F, 1) TILE_EACH(F, 2)
#endif
WIDE_EACH(WIDE_FUNCTION)
static const wide_fn wide_functions[TILE_ROWS][TILE_COLS] = {WIDE_EACH(WIDE_ENTRY)};

/* Row r of a panel: its first 16 elements; each next 16 lie TILE_ROWS vectors on, behind those of the tile's other
 * rows.
 */
static float *wide_values(const wide_part *t, size_t r)
{
    size_t vectors = (t->n + 15) / 16;
    return t->values + (r / TILE_ROWS * vectors * TILE_ROWS + r % TILE_ROWS) * 16;
}

/* The columns of x that are multiplied next, from the element on where that begins; or none. */
typedef struct {
    const float *x;
    size_t       count;
} wide_next;

/* Columns [c, end), a group, by all rows: elements [i, i + n) of their panel. */
static void wide_stretch(const wide_product *p, const wide_part *t, size_t c, size_t end, float *chains, size_t i,
                         size_t n, wide_next next)
{
    wide_link l = {.chains = chains,
                   .x = p->x + (t->col + c) * p->ldx + t->i + i,
                   .ldx = p->ldx,
                   .ldy = p->ldy,
                   .n = n,
                   .first = t->i + i == 0,
                   .last = t->i + i + n == p->k};
    for (size_t r = 0, tile = 0; r < t->rows; r += TILE_ROWS, tile++) {
        l.w = wide_values(t, r) + i * TILE_ROWS;
        l.y = p->y + (t->col + c) * p->ldy + t->row + r;
        l.ahead = tile < next.count ? next.x + tile * p->ldx : NULL;
        wide_functions[nw_min_size(TILE_ROWS, t->rows - r) - 1][end - c - 1](&l);
        l.chains += WIDE_TILE_CHAINS;
    }
}

/* One panel by all columns of the part. */
static void wide_panel(const wide_product *p, const wide_part *t)
{
    size_t group_chains = t->n < p->k ? (t->rows + TILE_ROWS - 1) / TILE_ROWS * WIDE_TILE_CHAINS : 0;
    for (size_t g = 0; g < t->groups.count; g++) {
        size_t c = wide_begin(&t->groups, g), end = wide_begin(&t->groups, g + 1);
        for (size_t s = 0, i = 0, stop; s < t->stretches.count; s++, i = stop) {
            stop = nw_min_size(wide_begin(&t->stretches, s + 1) * WIDE_STEP, t->n);
            wide_next next = {0};
            if (t->fetch && stop < t->n)
                next = (wide_next){p->x + (t->col + c) * p->ldx + t->i + stop, end - c};
            else if (t->fetch && end < t->cols)
                next = (wide_next){p->x + (t->col + end) * p->ldx + t->i, wide_begin(&t->groups, g + 2) - end};
            wide_stretch(p, t, c, end, t->chains + g * group_chains, i, stop - i, next);
        }
    }
}

static void wide(const wide_product *p)
{
    _Alignas(64) float few[WIDE_FEW_FLOATS];
    wide_cut           cut = wide_cut_make(p->cols, p->k);
    wide_runs          blocks = wide_runs_make((p->rows + TILE_ROWS - 1) / TILE_ROWS, cut.rows / TILE_ROWS);
    wide_runs panels = wide_runs_make((p->k + WIDE_STEP - 1) / WIDE_STEP, (cut.panel + WIDE_STEP - 1) / WIDE_STEP);
    wide_runs          columns = wide_runs_make(p->cols, cut.cols);
    wide_part t = {.values = p->cols <= WIDE_FEW ? few : p->room, .fetch = cut.far};
    NW_CHECK(t.values != NULL);
    t.chains = t.values + wide_panel_floats(&cut, p->k);
    for (size_t c = 0; c < columns.count; c++) {
        t.col = wide_begin(&columns, c);
        t.cols = wide_begin(&columns, c + 1) - t.col;
        t.groups = wide_runs_make(t.cols, TILE_COLS);
        for (size_t b = 0; b < blocks.count; b++) {
            t.row = wide_begin(&blocks, b) * TILE_ROWS;
            t.rows = nw_min_size(wide_begin(&blocks, b + 1) * TILE_ROWS, p->rows) - t.row;
            for (size_t s = 0; s < panels.count; s++) {
                t.i = wide_begin(&panels, s) * WIDE_STEP;
                t.n = nw_min_size(wide_begin(&panels, s + 1) * WIDE_STEP, p->k) - t.i;
                t.stretches = wide_runs_make((t.n + WIDE_STEP - 1) / WIDE_STEP, cut.stretch / WIDE_STEP);
                for (size_t r = 0; r < t.rows; r++)
                    p->decode(p->source, t.row + r, t.i, t.n, wide_values(&t, r));
                wide_panel(p, &t);
            }
        }
    }
}

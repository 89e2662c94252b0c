/* The matrix product for many columns, once, over the lanes of the header that was included before this file, for
 * weights in any form: part of kernels.inc.h and forms.inc.h.
 *
 * WIDE_ROWS rows by WIDE_COLS columns at a time. Their weights are widened to f32 a stretch of WIDE_STRETCH elements at
 * a time into the first cache, once for all these columns, and multiplied from there by tiles of up to TILE_ROWS rows
 * and TILE_COLS columns with sums in registers. Between stretches the chains wait in memory, so they are those of the
 * contract: one for each lane over the whole row, and the tree at the end.
 *
 * x is read as it stands: what one stretch takes of a group of columns stays in the first cache for all rows, and what
 * one row takes of all WIDE_COLS columns in the second one for the next rows. */
#include "lanes.h"

#if !defined(WIDE_FROM)
#define WIDE_FROM 17
#endif
#define WIDE_ROWS ((size_t)8)
#define WIDE_COLS ((size_t)96)
#define WIDE_STRETCH ((size_t)512)
#define WIDE_FEW ((size_t)16)  /* up to so many columns, more than TILE_ROWS rows crowd x out of the first cache */
#define WIDE_STEP ((size_t)64) /* a multiple of every group of a form; stretches are multiples of it */

#if !defined(LANES_SUM16)
LANES_INLINE v16 v16_sum16(const v16 a[16])
{
    float sums[16];
    for (size_t i = 0; i < 16; i += 4)
        v16_sum4(sums + i, a[i], a[i + 1], a[i + 2], a[i + 3]);
    return v16_load(sums);
}
#endif

typedef struct {
    float value[WIDE_ROWS][WIDE_STRETCH];
    v16   chain[WIDE_COLS + 1][WIDE_ROWS]; /* one more, so that sums can always be taken of two columns */
} wide_room;

/* The f32 values of weights [i, i + n) of row r, and zeros behind them to a multiple of 16. The stretches of a row are
 * asked for in order; i = 0 begins again. */
typedef void (*wide_decode)(void *source, size_t r, size_t i, size_t n, float *out);

/* `rows` rows of weights by `cols` columns, n elements of each: one link of every chain, the first one if `first`. */
LANES_INLINE void wide_tile(size_t rows, size_t cols, v16 *chain, const float *w, const float *x, size_t ldx, size_t n,
                            bool first)
{
    v16 sum[TILE_SUMS];
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++) {
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[c * rows + r] = first ? v16_set(0) : chain[c * WIDE_ROWS + r];
    }
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        v16 weights[TILE_ROWS];
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++)
            weights[r] = v16_load(w + r * WIDE_STRETCH + i);
        LANES_UNROLL
        for (size_t c = 0; c < cols; c++) {
            v16 input = v16_load(x + c * ldx + i);
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[c * rows + r] = v16_fma(weights[r], input, sum[c * rows + r]);
        }
    }
    if (i < n) {
        LANES_UNROLL
        for (size_t c = 0; c < cols; c++) {
            v16 input = v16_load_part(x + c * ldx + i, n - i, v16_set(0));
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[c * rows + r] = v16_fma(v16_load(w + r * WIDE_STRETCH + i), input, sum[c * rows + r]);
        }
    }
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++) {
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++)
            chain[c * WIDE_ROWS + r] = sum[c * rows + r];
    }
}

typedef void (*wide_fn)(v16 *chain, const float *w, const float *x, size_t ldx, size_t n, bool first);

#define WIDE_FUNCTION(rows, cols)                                                                                      \
    static __attribute__((noinline)) void wide_##rows##_##cols(v16 *chain, const float *w, const float *x, size_t ldx, \
                                                               size_t n, bool first)                                   \
    {                                                                                                                  \
        wide_tile(rows, cols, chain, w, x, ldx, n, first);                                                             \
    }
#define WIDE_ENTRY(rows, cols) [(rows)-1][(cols)-1] = wide_##rows##_##cols,
#if TILE_ROWS == 4
#define WIDE_EACH(F) TILE_EACH(F, 1) TILE_EACH(F, 2) TILE_EACH(F, 3) TILE_EACH(F, 4)
#elif TILE_ROWS == 2
#define WIDE_EACH(F) TILE_EACH(F, 1) TILE_EACH(F, 2)
#endif
WIDE_EACH(WIDE_FUNCTION)
static const wide_fn wide_functions[TILE_ROWS][TILE_COLS] = {WIDE_EACH(WIDE_ENTRY)};

typedef struct {
    float       *y;
    const float *x;
    size_t       ldy, ldx, cols, rows, k; /* all of them */
    wide_decode  decode;
    void        *source;
} wide_product;

/* A part of one product: rows [row, row + rows) by columns [col, col + cols), elements [i, i + n). */
typedef struct {
    size_t row, rows, col, cols, i, n;
} wide_part;

/* The sums of `cols` columns whose chains are complete, two columns at a time. */
static void wide_sums(const wide_product *p, const wide_part *t, const wide_room *room, size_t c, size_t cols)
{
    float *y = p->y + (t->col + c) * p->ldy + t->row;
    for (size_t done = 0; done < cols; done += 2, c += 2) {
        float sums[16];
        v16_store(sums, v16_sum16(room->chain[c]));
        memcpy(y + done * p->ldy, sums, t->rows * sizeof *y);
        if (done + 1 < cols)
            memcpy(y + (done + 1) * p->ldy, sums + WIDE_ROWS, t->rows * sizeof *y);
    }
}

static void wide_stretch(const wide_product *p, const wide_part *t, wide_room *room)
{
    size_t groups = (t->cols + TILE_COLS - 1) / TILE_COLS;
    for (size_t g = 0, c = 0; g < groups; g++) {
        size_t width = (t->cols - c + groups - g - 1) / (groups - g);
        for (size_t r = 0; r < t->rows; r += TILE_ROWS)
            wide_functions[nw_min_size(TILE_ROWS, t->rows - r) - 1][width - 1](
                &room->chain[c][r], room->value[r], p->x + (t->col + c) * p->ldx + t->i, p->ldx, t->n, t->i == 0);
        if (t->i + t->n == p->k)
            wide_sums(p, t, room, c, width);
        c += width;
    }
}

/* Chains of rows that a block does not have are summed with the others, and dropped: they are set once. */
static void wide(const wide_product *p)
{
    wide_room room;
    size_t    steps = (p->k + WIDE_STEP - 1) / WIDE_STEP, stretches = (p->k + WIDE_STRETCH - 1) / WIDE_STRETCH;
    size_t    block = p->cols <= WIDE_FEW ? TILE_ROWS : WIDE_ROWS;
    memset(room.chain, 0, (nw_min_size(p->cols, WIDE_COLS) + 1) * sizeof room.chain[0]);
    for (size_t col = 0; col < p->cols; col += WIDE_COLS) {
        wide_part t = {.col = col, .cols = nw_min_size(WIDE_COLS, p->cols - col)};
        for (t.row = 0; t.row < p->rows; t.row += block) {
            t.rows = nw_min_size(block, p->rows - t.row);
            for (size_t s = 0; s < stretches; s++) {
                t.i = steps * s / stretches * WIDE_STEP;
                t.n = nw_min_size(steps * (s + 1) / stretches * WIDE_STEP, p->k) - t.i;
                for (size_t r = 0; r < t.rows; r++)
                    p->decode(p->source, t.row + r, t.i, t.n, room.value[r]);
                wide_stretch(p, &t, &room);
            }
        }
    }
}

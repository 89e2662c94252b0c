/* The matrix product over weights that are kept in another form (slim, q8, q4), once, over the lanes and the form loads
 * of the headers that were included before this file (lanes_*.h, forms_*.h).
 *
 * Included by forms_<name>.c, which sets FORMS_NAME. A tile is FORM_ROWS rows by up to FORM_COLS columns, as in
 * kernels.inc.h: all of k at once, sums in registers, weights decoded into registers group by group. A chain per
 * lane of a row is the contract (model/kernels.h), so rows side by side are what hides the latency of the additions.
 *
 * Prefetching is what makes a form faster than plain weights: without it, waiting for memory and decoding take turns.
 * One column is multiplied in sections, each a stream of its own, as in kernels.inc.h, but for q4, of which so little
 * is fetched that the arithmetic is the limit. Otherwise, as rows follow each other without a gap in each plane,
 * fetching goes in the order of addresses. */
#include "forms.h"
#include "wide.inc.h"

#define FORM_LINE_BYTES ((size_t)64)

/* Rows that one tile works on. Forms of blocks have one plane, `raw`. */
typedef struct {
    const uint8_t *raw, *codes; /* of the first row */
    const uint8_t *first;       /* slim: where the strip says where this row's escapes begin */
    const uint8_t *escapes;     /* slim: of the whole strip */
    size_t         raw_row, codes_row;
    size_t         rows, k;
    size_t         apart; /* each row of a tile lies so many rows behind the one before: 1, or it is one of a section */
    bool           gaps;  /* rows do not follow each other: nothing is fetched ahead */
    form_constants constants;
} form_rows;

/* The next group of each row: what form_group advances. */
typedef struct {
    const uint8_t *raw, *codes, *escapes;
} form_at;

LANES_INLINE size_t form_vectors(form f)
{
    return f == FORM_SLIM3 || f == FORM_SLIM4 ? 4 : 2;
}

LANES_INLINE size_t form_raw_bytes(form f)
{
    return f == FORM_Q8 ? 34 : f == FORM_Q4 ? 18 : 64;
}

LANES_INLINE size_t form_code_bytes(form f)
{
    return f == FORM_SLIM3 ? 24 : f == FORM_SLIM4 ? 32 : 0;
}

LANES_INLINE void form_group(form f, v16 w[4], form_at *at, const form_constants *constants)
{
    if (f == FORM_Q8)
        q8_load(w, at->raw, constants);
    else if (f == FORM_Q4)
        q4_load(w, at->raw, constants);
    else
        at->escapes += slim_load(f, w, at->raw, at->codes, at->escapes, constants);
    at->raw += form_raw_bytes(f);
    at->codes += form_code_bytes(f);
}

/* The start of row r of a tile; a row that is missing is a copy of the first. */
LANES_INLINE form_at form_row(form f, const form_rows *t, size_t r)
{
    size_t  row = r < t->rows ? r * t->apart : 0;
    form_at at = {t->raw + row * t->raw_row, t->codes + row * t->codes_row, t->escapes};
    if (form_code_bytes(f) > 0)
        at.escapes += nw_slim_u32(t->first, 4 * row);
    return at;
}

/* The lines of `bytes` bytes from `at` on, which may be past the end of the weights: that is no fault. */
LANES_INLINE void form_fetch(uintptr_t at, size_t bytes, bool near)
{
    LANES_UNROLL
    for (size_t line = 0; line < bytes; line += FORM_LINE_BYTES) {
        if (near)
            __builtin_prefetch((const void *)(at + line), 0, 3);
        else
            __builtin_prefetch((const void *)(at + line), 0, 2);
    }
}

/* What the rows of a tile take at group g, `ahead` bytes on in the raw plane and as many weights on in the codes. */
LANES_INLINE void form_look_ahead(form f, size_t rows, const form_rows *t, size_t g, size_t ahead, bool near)
{
    size_t raw = form_raw_bytes(f), codes = form_code_bytes(f);
    if (ahead == 0)
        return;
    form_fetch((uintptr_t)t->raw + ahead + g * rows * raw, rows * raw, near);
    if (codes > 0)
        form_fetch((uintptr_t)t->codes + ahead * codes / 64 + g * rows * codes, rows * codes, near);
}

/* What a row takes FORM_NEAR_BYTES later, of the raw plane. */
LANES_INLINE void form_fetch_group(form f, const form_at *at)
{
    size_t codes = form_code_bytes(f);
    form_fetch((uintptr_t)at->raw + FORM_NEAR_BYTES, form_raw_bytes(f), true);
    if (codes > 0)
        form_fetch((uintptr_t)at->codes + FORM_NEAR_BYTES * codes / 64, codes, true);
}

/* One group of every row, of which `part` weights are there; whole vectors without any are skipped. */
LANES_INLINE void form_step(form f, size_t rows, size_t cols, v16 sum[FORM_SUMS], form_at at[FORM_ROWS],
                            const float *const x[FORM_SUMS], size_t i, size_t part, const form_constants *constants)
{
    v16 w[FORM_ROWS][4];
    LANES_UNROLL
    for (size_t r = 0; r < rows; r++)
        form_group(f, w[r], &at[r], constants);
    LANES_UNROLL
    for (size_t j = 0; j < form_vectors(f); j++) {
        if (16 * j >= part)
            break;
        size_t n = nw_min_size(16, part - 16 * j);
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++) {
            if (n < 16)
                w[r][j] = v16_first(w[r][j], n);
        }
        LANES_UNROLL
        for (size_t c = 0; c < cols; c++) {
            const float *from = x[c] + i + 16 * j;
            v16          input = n == 16 ? v16_load(from) : v16_load_part(from, n, v16_set(0));
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[c * rows + r] = v16_fma(w[r][j], input, sum[c * rows + r]);
        }
    }
}

LANES_INLINE void form_tile(form f, size_t rows, size_t cols, float *y, size_t ldy, const float *x, size_t ldx,
                            const form_rows *t)
{
    v16            sum[FORM_SUMS];
    form_at        at[FORM_ROWS];
    const float   *column[FORM_SUMS];
    form_constants constants = t->constants;
    LANES_UNROLL
    for (size_t s = 0; s < rows * cols; s++)
        sum[s] = v16_set(0);
    LANES_UNROLL
    for (size_t r = 0; r < rows; r++)
        at[r] = form_row(f, t, r);
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++)
        column[c] = x + c * ldx;

    size_t group = 16 * form_vectors(f), i = 0, k = t->k;
    for (size_t g = 0; k - i >= group; i += group, g++) {
        if (cols == 1 && t->apart > 1) {
            LANES_UNROLL
            for (size_t r = 0; r < rows; r++)
                form_fetch_group(f, &at[r]);
        } else if (!t->gaps) {
            form_look_ahead(f, rows, t, g, FORM_NEAR_BYTES, true);
            form_look_ahead(f, rows, t, g, FORM_FAR_BYTES, false);
        }
        form_step(f, rows, cols, sum, at, column, i, group, &constants);
    }
    if (i < k)
        form_step(f, rows, cols, sum, at, column, i, k - i, &constants);

    float  out[FORM_SUMS];
    size_t last = rows * cols - 1;
    LANES_UNROLL
    for (size_t s = 0; s <= last; s += 4)
        v16_sum4(out + s, sum[s], sum[nw_min_size(s + 1, last)], sum[nw_min_size(s + 2, last)],
                 sum[nw_min_size(s + 3, last)]);
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++) {
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++) {
            if (r < t->rows)
                y[c * ldy + r * t->apart] = out[c * rows + r];
        }
    }
}

/* One function per form and number of columns. */
typedef void (*form_fn)(float *y, size_t ldy, const float *x, size_t ldx, const form_rows *t);

#define FORM_FUNCTION(f, cols)                                                                                         \
    static __attribute__((noinline)) void form_##f##_##cols(float *y, size_t ldy, const float *x, size_t ldx,          \
                                                            const form_rows *t)                                        \
    {                                                                                                                  \
        form_tile(f, (cols) == 1 ? FORM_ROWS_ONE : FORM_ROWS_MORE, cols, y, ldy, x, ldx, t);                           \
    }
FORM_EACH(FORM_FUNCTION, FORM_SLIM3)
FORM_EACH(FORM_FUNCTION, FORM_SLIM4)
FORM_EACH(FORM_FUNCTION, FORM_Q8)
FORM_EACH(FORM_FUNCTION, FORM_Q4)

#define FORM_ENTRY(f, cols) [f][(cols)-1] = form_##f##_##cols,
static const form_fn form_functions[FORM_COUNT][FORM_COLS] = {FORM_EACH(FORM_ENTRY, FORM_SLIM3) FORM_EACH(
    FORM_ENTRY, FORM_SLIM4) FORM_EACH(FORM_ENTRY, FORM_Q8) FORM_EACH(FORM_ENTRY, FORM_Q4)};

/* ---- many columns ------------------------------------------------------------------------------------------------ */

/* The next n weights of one row, fetched some way ahead, each vector `apart` vectors behind the one before; in the last
 * one, zeros behind them. */
LANES_INLINE void form_decode(form f, float *out, size_t apart, form_at *at, size_t n, const form_constants *constants)
{
    for (size_t i = 0; i < n; i += 16 * form_vectors(f)) {
        v16 w[4];
        form_fetch_group(f, at);
        form_group(f, w, at, constants);
        LANES_UNROLL
        for (size_t j = 0; j < form_vectors(f); j++) {
            size_t from = i + 16 * j;
            if (from + 16 <= n)
                v16_store(out + from * apart, w[j]);
            else if (from < n)
                v16_store(out + from * apart, v16_first(w[j], n - from));
        }
    }
}

/* Where wide() takes its weights from: the rows from t on, and how far it has come in each row of a panel. */
typedef struct {
    form_rows t;
    form_at   at[WIDE_ROWS];
} form_wide;

LANES_INLINE void form_widen_part(form f, void *source, size_t r, size_t i, size_t n, float *out)
{
    form_wide *s = source;
    form_at   *at = &s->at[r % WIDE_ROWS];
    if (i == 0)
        *at = form_row(f, &s->t, r);
    form_decode(f, out, TILE_ROWS, at, n, &s->t.constants);
}

#define FORM_DECODE(f)                                                                                                 \
    static void form_widen_##f(void *source, size_t r, size_t i, size_t n, float *out)                                 \
    {                                                                                                                  \
        form_widen_part(f, source, r, i, n, out);                                                                      \
    }
FORM_DECODE(FORM_SLIM3)
FORM_DECODE(FORM_SLIM4)
FORM_DECODE(FORM_Q8)
FORM_DECODE(FORM_Q4)

LANES_INLINE void form_advance(form_rows *t, size_t rows)
{
    t->raw += rows * t->raw_row;
    t->codes += rows * t->codes_row;
    t->first += 4 * rows;
}

/* One column by as many rows as sections of equal length hold. Returns how many those are. */
static size_t form_multiply_sections(form f, float *y, const float *x, form_rows t, size_t rows)
{
    t.rows = FORM_ROWS_ONE;
    t.apart = rows / FORM_ROWS_ONE;
    for (size_t r = 0; r < t.apart; r++) {
        form_functions[f][0](y + r, 0, x, 0, &t);
        form_advance(&t, 1);
    }
    return t.apart * FORM_ROWS_ONE;
}

/* All rows from t on, `rows` of them. */
static void form_matmul(form f, float *y, size_t ldy, const float *x, size_t ldx, size_t cols, form_rows t, size_t rows,
                        float *room)
{
    NW_CHECK(cols >= 1);
    NW_CHECK(t.k >= 1);
    if (cols > FORM_COLS) {
        static const wide_decode decode[FORM_COUNT] = {form_widen_FORM_SLIM3, form_widen_FORM_SLIM4, form_widen_FORM_Q8,
                                                       form_widen_FORM_Q4};
        form_wide                source = {.t = t};
        source.t.rows = rows;
        wide(&(wide_product){.y = y,
                             .x = x,
                             .ldy = ldy,
                             .ldx = ldx,
                             .cols = cols,
                             .rows = rows,
                             .k = t.k,
                             .room = room,
                             .decode = decode[f],
                             .source = &source});
        return;
    }
    size_t step = cols == 1 ? FORM_ROWS_ONE : FORM_ROWS_MORE;
    size_t done = cols == 1 && !t.gaps && f != FORM_Q4 ? form_multiply_sections(f, y, x, t, rows) : 0;
    form_advance(&t, done);
    for (size_t r = done; r < rows; r += step) {
        t.rows = nw_min_size(step, rows - r);
        form_functions[f][cols - 1](y + r, ldy, x, ldx, &t);
        form_advance(&t, step);
    }
}

/* ---- the forms --------------------------------------------------------------------------------------------------- */

/* Rows of a strip from first_row on. */
static form_rows slim_rows(const void *strip, size_t first_row, size_t rows)
{
    const uint8_t *in = strip;
    unsigned       width = nw_slim_width(strip);
    size_t         all = nw_slim_u32(in, 4), k = nw_slim_u32(in, 8);
    nw_slim_layout l = nw_slim_layout_of(all, k, width, 0);
    NW_CHECK(first_row <= all && rows <= all - first_row);
    return (form_rows){
        .raw = in + l.raw + first_row * l.raw_row,
        .codes = in + l.codes + first_row * l.codes_row,
        .first = in + NW_SLIM_FIRST + 4 * first_row,
        .escapes = in + l.escapes,
        .raw_row = l.raw_row,
        .codes_row = l.codes_row,
        .k = k,
        .apart = 1,
        .constants = slim_constants(width == 3 ? FORM_SLIM3 : FORM_SLIM4, in + NW_SLIM_TABLE),
    };
}

static form_rows quant_rows(form f, const void *w, size_t ldw, size_t k)
{
    static const uint8_t none[4] = {0};
    NW_CHECK(k % NW_QUANT_BLOCK == 0 && ldw % NW_QUANT_BLOCK == 0);
    return (form_rows){
        .raw = w,
        .codes = none,
        .first = none,
        .escapes = none,
        .raw_row = ldw / NW_QUANT_BLOCK * form_raw_bytes(f),
        .k = k,
        .apart = 1,
        .gaps = ldw != k,
        .constants = quant_constants(),
    };
}

#define FORM_WIDEN ((size_t)512) /* weights at a time: a multiple of every group */

/* The f32 values of the rows from t on. */
LANES_INLINE void form_widen(form f, float *y, form_rows t, size_t rows)
{
    t.rows = rows;
    for (size_t r = 0; r < rows; r++, y += t.k) {
        form_at at = form_row(f, &t, r);
        for (size_t i = 0; i < t.k; i += FORM_WIDEN) {
            float  out[FORM_WIDEN];
            size_t n = nw_min_size(FORM_WIDEN, t.k - i);
            form_decode(f, out, 1, &at, n, &t.constants);
            memcpy(y + i, out, n * sizeof y[0]);
        }
    }
}

/* ---- the entries of the table, named after the variant ----------------------------------------------------------- */

#define FORMS_JOIN_(a, b) a##b
#define FORMS_JOIN(a, b) FORMS_JOIN_(a, b)
#define FORMS_FUNCTION(name) FORMS_JOIN(name, FORMS_NAME)

void FORMS_FUNCTION(nw_matmul_slim_)(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *strip,
                                     size_t first_row, size_t rows, size_t k, float *room)
{
    form_rows t = slim_rows(strip, first_row, rows);
    NW_CHECK(t.k == k);
    form_matmul(nw_slim_width(strip) == 3 ? FORM_SLIM3 : FORM_SLIM4, y, ldy, x, ldx, cols, t, rows, room);
}

void FORMS_FUNCTION(nw_matmul_q8_)(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                                   size_t ldw, size_t rows, size_t k, float *room)
{
    NW_CHECK(ldw >= k || rows <= 1);
    form_matmul(FORM_Q8, y, ldy, x, ldx, cols, quant_rows(FORM_Q8, w, ldw, k), rows, room);
}

void FORMS_FUNCTION(nw_matmul_q4_)(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                                   size_t ldw, size_t rows, size_t k, float *room)
{
    NW_CHECK(ldw >= k || rows <= 1);
    form_matmul(FORM_Q4, y, ldy, x, ldx, cols, quant_rows(FORM_Q4, w, ldw, k), rows, room);
}

void FORMS_FUNCTION(nw_widen_slim_)(float *y, const void *strip, size_t first_row, size_t rows)
{
    form_rows t = slim_rows(strip, first_row, rows);
    if (nw_slim_width(strip) == 3)
        form_widen(FORM_SLIM3, y, t, rows);
    else
        form_widen(FORM_SLIM4, y, t, rows);
}

void FORMS_FUNCTION(nw_widen_q8_)(float *y, const void *w, size_t n)
{
    form_widen(FORM_Q8, y, quant_rows(FORM_Q8, w, n, n), 1);
}

void FORMS_FUNCTION(nw_widen_q4_)(float *y, const void *w, size_t n)
{
    form_widen(FORM_Q4, y, quant_rows(FORM_Q4, w, n, n), 1);
}

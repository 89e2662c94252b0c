/* Every kernel, once, over the 16 lanes of the lanes header that was included before this file.
 *
 * Included by kernels_<name>.c, which makes its tables with KERNELS_TABLE; compiled with that instruction set's flags
 * and -ffp-contract=off, so that a multiply and an add are fused where v16_fma says so and nowhere else. What the
 * compiler is free to choose (unrolling, order of independent chains, registers) changes no bit: each element's chain
 * is written out here.
 *
 * The matrix product of fewer than WIDE_FROM columns (of more: wide.inc.h) is tiles of TILE_ROWS rows by up to
 * TILE_COLS columns, all of k at once, sums in registers. Several rows hide the latency of the chains, several columns
 * share one decoding of the weights. Rows that are missing in the last tile are computed as copies of its first and
 * dropped; that costs less than a second set of tiles. */
#include "lanes.h"
#include "wide.inc.h"

/* ---- matrix product ---------------------------------------------------------------------------------------------- */

/* Where weights are fetched from while others are multiplied.
 *
 * One column is over as soon as its weights are there. So the rows of a tile lie far apart, one in each of
 * TILE_ROWS_ONE sections of the strip, and each section is fetched as a stream of its own, STREAM_AHEAD_BYTES before it
 * is used, into the first cache: while the first line of one stream's next page waits for its translation, the others
 * go on (measured with 2.9 GB of bf16: 5 to 8 % faster than one stream).
 *
 * Several columns stay on a tile for longer, and each group of them wants it in the second cache. Its rows are
 * neighbours, fetched one tile ahead of their use, or as many tiles as make up AHEAD_BYTES, which cover the latency of
 * memory (100 ns at 40 GB/s): in the order of their addresses where rows follow each other without a gap, else row
 * beside row. */
#define STREAM_AHEAD_BYTES ((size_t)1024)
#define AHEAD_BYTES ((size_t)4096)
#define CACHE_LINE_BYTES ((size_t)64)

/* The rows that one tile works on, each `apart` rows behind the one before, and what it fetches when it is at element
 * i: for each of its rows r, what 32 elements take at w + ahead + i * ahead_per_element + r * ahead_per_row. */
typedef struct {
    const unsigned char *w;
    size_t               row_bytes, rows, apart, k;
    size_t               ahead, ahead_per_element, ahead_per_row;
} tile_rows;

LANES_INLINE size_t weight_bytes(nw_dtype d)
{
    return d == NW_F32 ? 4 : 2;
}

LANES_INLINE v16 load_weights(nw_dtype d, const unsigned char *p)
{
    return d == NW_F32 ? v16_load(p) : d == NW_BF16 ? v16_load_bf16(p) : v16_load_f16(p);
}

LANES_INLINE v16 part_weights(nw_dtype d, const unsigned char *p, size_t n)
{
    return d == NW_F32 ? v16_load_part(p, n, v16_set(0)) : d == NW_BF16 ? v16_part_bf16(p, n) : v16_part_f16(p, n);
}

/* One step of every chain: 16 elements from i on, or their first `part`. */
LANES_INLINE void tile_step(nw_dtype d, size_t rows, size_t cols, v16 sum[TILE_SUMS],
                            const unsigned char *const w[TILE_SUMS], const float *const x[TILE_SUMS], size_t i,
                            size_t part)
{
    v16 weights[TILE_SUMS];
    LANES_UNROLL
    for (size_t r = 0; r < rows; r++) {
        const unsigned char *at = w[r] + i * weight_bytes(d);
        weights[r] = part == 16 ? load_weights(d, at) : part_weights(d, at, part);
    }
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++) {
        v16 input = part == 16 ? v16_load(x[c] + i) : v16_load_part(x[c] + i, part, v16_set(0));
        LANES_UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[c * rows + r] = v16_fma(weights[r], input, sum[c * rows + r]);
    }
}

/* Prefetching never faults, so what lies ahead may be past the end of the weights; hence no pointer arithmetic. */
LANES_INLINE void tile_fetch(nw_dtype d, size_t rows, const tile_rows *t, size_t i, bool near)
{
    uintptr_t at = (uintptr_t)t->w + t->ahead + i * t->ahead_per_element;
    LANES_UNROLL
    for (size_t r = 0; r < rows; r++, at += t->ahead_per_row) {
        LANES_UNROLL
        for (size_t line = 0; line < 32 * weight_bytes(d); line += CACHE_LINE_BYTES) {
            if (near)
                __builtin_prefetch((const void *)(at + line), 0, 3);
            else
                __builtin_prefetch((const void *)(at + line), 0, 2);
        }
    }
}

LANES_INLINE void tile(nw_dtype d, size_t rows, size_t cols, float *y, size_t ldy, const float *x, size_t ldx,
                       const tile_rows *t)
{
    v16                  sum[TILE_SUMS];
    const unsigned char *w[TILE_SUMS];
    const float         *column[TILE_SUMS];
    LANES_UNROLL
    for (size_t s = 0; s < rows * cols; s++)
        sum[s] = v16_set(0);
    LANES_UNROLL
    for (size_t r = 0; r < rows; r++)
        w[r] = r < t->rows ? t->w + r * t->apart * t->row_bytes : t->w;
    LANES_UNROLL
    for (size_t c = 0; c < cols; c++)
        column[c] = x + c * ldx;

    size_t i = 0, k = t->k;
    for (; k - i >= 32; i += 32) {
        tile_fetch(d, rows, t, i, cols == 1);
        tile_step(d, rows, cols, sum, w, column, i, 16);
        tile_step(d, rows, cols, sum, w, column, i + 16, 16);
    }
    if (k - i >= 16) {
        tile_step(d, rows, cols, sum, w, column, i, 16);
        i += 16;
    }
    if (i < k)
        tile_step(d, rows, cols, sum, w, column, i, k - i);

    float  out[TILE_SUMS];
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

/* One function per type and number of columns. */
typedef void (*tile_fn)(float *y, size_t ldy, const float *x, size_t ldx, const tile_rows *t);

#define TILE_FUNCTION(d, cols)                                                                                         \
    static __attribute__((noinline)) void tile_##d##_##cols(float *y, size_t ldy, const float *x, size_t ldx,          \
                                                            const tile_rows *t)                                        \
    {                                                                                                                  \
        tile(d, (cols) == 1 ? TILE_ROWS_ONE : TILE_ROWS, cols, y, ldy, x, ldx, t);                                     \
    }
TILE_EACH(TILE_FUNCTION, NW_F32)
TILE_EACH(TILE_FUNCTION, NW_BF16)
TILE_EACH(TILE_FUNCTION, NW_F16)

#define TILE_ENTRY(d, cols) [d][(cols)-1] = tile_##d##_##cols,
static const tile_fn tile_functions[NW_DTYPE_COUNT][TILE_COLS] = {
    TILE_EACH(TILE_ENTRY, NW_F32) TILE_EACH(TILE_ENTRY, NW_BF16) TILE_EACH(TILE_ENTRY, NW_F16)};

static void tile_look_ahead(tile_rows *t, nw_dtype d, size_t rows)
{
    size_t used_bytes = rows * t->k * weight_bytes(d);
    size_t tiles = (AHEAD_BYTES + used_bytes - 1) / used_bytes;
    bool   gaps = t->row_bytes != t->k * weight_bytes(d);
    t->ahead = tiles * rows * t->row_bytes;
    t->ahead_per_element = gaps ? weight_bytes(d) : rows * weight_bytes(d);
    t->ahead_per_row = gaps ? t->row_bytes : 32 * weight_bytes(d);
}

/* One column by rows without gaps. Returns how many rows are done: all but the few that sections of equal length leave.
 */
LANES_INLINE size_t multiply_sections(nw_dtype d, float *y, const float *x, const unsigned char *w, size_t rows,
                                      size_t k)
{
    size_t    section = rows / TILE_ROWS_ONE, row_bytes = k * weight_bytes(d);
    tile_rows t = {.row_bytes = row_bytes,
                   .rows = TILE_ROWS_ONE,
                   .apart = section,
                   .k = k,
                   .ahead = STREAM_AHEAD_BYTES,
                   .ahead_per_element = weight_bytes(d),
                   .ahead_per_row = section * row_bytes};
    for (size_t r = 0; r < section; r++) {
        t.w = w + r * row_bytes;
        tile_functions[d][0](y + r, 0, x, 0, &t);
    }
    return section * TILE_ROWS_ONE;
}

/* Where wide() takes its weights from. */
typedef struct {
    const unsigned char *w;
    size_t               row_bytes, ahead; /* ahead: bytes; 0: rows have gaps, and nothing is fetched */
} wide_rows;

/* Weights are fetched as many rows ahead as a panel has at most, if rows have no gaps between them. */
LANES_INLINE void wide_widen(nw_dtype d, void *source, size_t r, size_t i, size_t n, float *out)
{
    const wide_rows     *t = source;
    const unsigned char *w = t->w + r * t->row_bytes + i * weight_bytes(d);
    uintptr_t            ahead = (uintptr_t)w + t->ahead;
    size_t               j = 0;
    for (; n - j >= 32; j += 32) {
        LANES_UNROLL
        for (size_t line = 0; line < 32 * weight_bytes(d); line += CACHE_LINE_BYTES)
            __builtin_prefetch((const void *)(ahead + j * weight_bytes(d) + line), 0, 2);
        v16_store(out + j * TILE_ROWS, load_weights(d, w + j * weight_bytes(d)));
        v16_store(out + (j + 16) * TILE_ROWS, load_weights(d, w + (j + 16) * weight_bytes(d)));
    }
    if (n - j >= 16) {
        v16_store(out + j * TILE_ROWS, load_weights(d, w + j * weight_bytes(d)));
        j += 16;
    }
    if (j < n)
        v16_store(out + j * TILE_ROWS, part_weights(d, w + j * weight_bytes(d), n - j));
}

#define WIDE_DECODE(d)                                                                                                 \
    static void wide_widen_##d(void *source, size_t r, size_t i, size_t n, float *out)                                 \
    {                                                                                                                  \
        wide_widen(d, source, r, i, n, out);                                                                           \
    }
WIDE_DECODE(NW_F32)
WIDE_DECODE(NW_BF16)
WIDE_DECODE(NW_F16)

static void matmul_wide(nw_dtype d, float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                        size_t ldw, size_t rows, size_t k, float *room)
{
    static const wide_decode decode[NW_DTYPE_COUNT] = {wide_widen_NW_F32, wide_widen_NW_BF16, wide_widen_NW_F16};
    wide_rows                source = {.w = w, .row_bytes = ldw * weight_bytes(d)};
    if (ldw == k)
        source.ahead = wide_cut_make(cols, k).rows * source.row_bytes;
    wide(&(wide_product){.y = y,
                         .x = x,
                         .ldy = ldy,
                         .ldx = ldx,
                         .cols = cols,
                         .rows = rows,
                         .k = k,
                         .room = room,
                         .decode = decode[d],
                         .source = &source});
}

LANES_INLINE void matmul(nw_dtype d, float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                         size_t ldw, size_t rows, size_t k, float *room)
{
    NW_CHECK(cols >= 1);
    NW_CHECK(k >= 1);
    NW_CHECK(ldw >= k || rows <= 1);
    if (cols >= WIDE_FROM) {
        matmul_wide(d, y, ldy, x, ldx, cols, w, ldw, rows, k, room);
        return;
    }
    size_t    step = cols == 1 ? TILE_ROWS_ONE : TILE_ROWS;
    size_t    groups = (cols + TILE_COLS - 1) / TILE_COLS;
    size_t    done = cols == 1 && ldw == k ? multiply_sections(d, y, x, w, rows, k) : 0;
    tile_rows t = {.row_bytes = ldw * weight_bytes(d), .apart = 1, .k = k};
    tile_look_ahead(&t, d, step);
    for (size_t r = done; r < rows; r += step) {
        t.w = (const unsigned char *)w + r * t.row_bytes;
        t.rows = nw_min_size(step, rows - r);
        /* Weights without gaps go on in the next strip of the tile; the rows of one head end here. */
        if (ldw != k && t.ahead >= (rows - r) * t.row_bytes)
            t.ahead = 0;
        for (size_t g = 0, c = 0; g < groups; g++) {
            size_t width = (cols - c + groups - g - 1) / (groups - g);
            tile_functions[d][width - 1](y + c * ldy + r, ldy, x + c * ldx, ldx, &t);
            c += width;
        }
    }
}

#define MATMUL(name, d)                                                                                                \
    static void name(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w, size_t ldw,         \
                     size_t rows, size_t k, float *room)                                                               \
    {                                                                                                                  \
        matmul(d, y, ldy, x, ldx, cols, w, ldw, rows, k, room);                                                        \
    }
MATMUL(matmul_f32, NW_F32)
MATMUL(matmul_bf16, NW_BF16)
MATMUL(matmul_f16, NW_F16)

/* ---- weighted sum of rows ---------------------------------------------------------------------------------------- */

/* `queries` rows of out by `vectors` times 16 columns (with one vector: its first `part`), all of j. p[q][j] is at
 * p + q * ldp + j * step. */
LANES_INLINE void mix_tile(size_t queries, size_t vectors, size_t part, float *out, size_t ldo, const float *p,
                           size_t ldp, size_t step, const float *v, size_t ldv, size_t j_count)
{
    v16 sum[MIX_QUERIES * MIX_VECTORS];
    LANES_UNROLL
    for (size_t s = 0; s < queries * vectors; s++) {
        const float *at = out + s / vectors * ldo + s % vectors * 16;
        sum[s] = part == 16 ? v16_load(at) : v16_load_part(at, part, v16_set(0));
    }
    for (size_t j = 0; j < j_count; j++) {
        v16 value[MIX_VECTORS];
        LANES_UNROLL
        for (size_t u = 0; u < vectors; u++) {
            const float *at = v + j * ldv + u * 16;
            value[u] = part == 16 ? v16_load(at) : v16_load_part(at, part, v16_set(0));
        }
        LANES_UNROLL
        for (size_t q = 0; q < queries; q++) {
            v16 weight = v16_set(p[q * ldp + j * step]);
            LANES_UNROLL
            for (size_t u = 0; u < vectors; u++)
                sum[q * vectors + u] = v16_fma(weight, value[u], sum[q * vectors + u]);
        }
    }
    LANES_UNROLL
    for (size_t s = 0; s < queries * vectors; s++) {
        float *at = out + s / vectors * ldo + s % vectors * 16;
        if (part == 16)
            v16_store(at, sum[s]);
        else
            v16_store_part(at, sum[s], part);
    }
}

LANES_INLINE void mix_rows(size_t queries, float *out, size_t ldo, const float *p, size_t ldp, size_t step,
                           const float *v, size_t ldv, size_t j_count, size_t d)
{
    size_t i = 0;
    for (; d - i >= MIX_VECTORS * 16; i += MIX_VECTORS * 16)
        mix_tile(queries, MIX_VECTORS, 16, out + i, ldo, p, ldp, step, v + i, ldv, j_count);
    for (; d - i >= 16; i += 16)
        mix_tile(queries, 1, 16, out + i, ldo, p, ldp, step, v + i, ldv, j_count);
    if (i < d)
        mix_tile(queries, 1, d - i, out + i, ldo, p, ldp, step, v + i, ldv, j_count);
}

static void mix(float *out, size_t ldo, const float *p, size_t ldp, size_t q_count, const float *v, size_t ldv,
                size_t j_count, size_t d)
{
    NW_CHECK(q_count >= 1 && q_count <= NW_COLS_MAX);
    size_t q = 0;
    for (; q_count - q >= MIX_QUERIES; q += MIX_QUERIES)
        mix_rows(MIX_QUERIES, out + q * ldo, ldo, p + q * ldp, ldp, 1, v, ldv, j_count, d);
    for (; q < q_count; q++)
        mix_rows(1, out + q * ldo, ldo, p + q * ldp, ldp, 1, v, ldv, j_count, d);
}

/* ---- exp --------------------------------------------------------------------------------------------------------- */

/* e^x = 2^n * e^r with n = round(x / ln 2) and |r| <= ln 2 / 2 (a little more, by rounding). Adding 1.5 * 2^23 rounds
 * to an integer in the sum's low bits. ln 2 is taken off in two parts. e^r = 1 + r + r^2 q(r), q of degree 4 fitted for
 * the least relative error (3.4e-9). 2^n is applied as two factors, each a normal number: the first product is exact,
 * so the second rounds once where the result is subnormal, and overflows to infinity where it must. Clamping keeps n in
 * -150 .. 128: beyond, results are 0 and infinity. NaN stays NaN (it is the second operand of both clamps). */
LANES_INLINE v16 exp16(v16 x)
{
    const float magic = 0x1.8p23f;
    x = v16_min(v16_set(89.0f), v16_max(v16_set(-104.0f), x));
    v16 shifted = v16_fma(x, v16_set(0x1.715476p+0f), v16_set(magic));
    v16 n = v16_sub(shifted, v16_set(magic));
    v16 r = v16_fma(n, v16_set(-0x1.62e4p-1f), x);
    r = v16_fma(n, v16_set(-0x1.7f7d1cp-20f), r);

    v16 q = v16_fma(r, v16_set(0x1.6a4da6p-10f), v16_set(0x1.123e58p-7f));
    q = v16_fma(r, q, v16_set(0x1.5558b8p-5f));
    q = v16_fma(r, q, v16_set(0x1.55548cp-3f));
    q = v16_fma(r, q, v16_set(0x1.fffffcp-2f));
    v16 e = v16_add(v16_fma(v16_mul(r, r), q, r), v16_set(1.0f));

    v16i power = v16i_sub(v16_bits(shifted), v16_bits(v16_set(magic)));
    v16i half = v16i_halve(power);
    v16i rest = v16i_sub(power, half);
    e = v16_mul(e, v16_of_bits(v16i_exponent(v16i_add(half, v16i_set(127)))));
    return v16_mul(e, v16_of_bits(v16i_exponent(v16i_add(rest, v16i_set(127)))));
}

LANES_INLINE float sum16(v16 a)
{
    float sums[4];
    v16_sum4(sums, a, a, a, a);
    return sums[0];
}

/* The largest value, NaN left out; -infinity if there is none. */
static float largest(const float *x, size_t n)
{
    v16    best[2] = {v16_set(-INFINITY), v16_set(-INFINITY)};
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        best[0] = v16_max(v16_load(x + i), best[0]);
        best[1] = v16_max(v16_load(x + i + 16), best[1]);
    }
    for (; i < n; i += 16)
        best[0] = v16_max(v16_load_part(x + i, nw_min_size(n - i, 16), best[0]), best[0]);

    float lanes[16];
    v16_store(lanes, v16_max(best[0], best[1]));
    float max = lanes[0];
    for (size_t l = 1; l < 16; l++)
        max = lanes[l] > max ? lanes[l] : max;
    return max;
}

static void exp_sum(const float *x, size_t n, float *ret_max, float *ret_sum)
{
    NW_CHECK(n >= 1);
    float  max = largest(x, n);
    v16    shift = v16_set(max), sum = v16_set(0);
    size_t i = 0;
    for (; n - i >= 16; i += 16)
        sum = v16_add(sum, exp16(v16_sub(v16_load(x + i), shift)));
    if (i < n) /* lanes beyond the end add exp(-infinity) = 0 */
        sum = v16_add(sum, exp16(v16_sub(v16_load_part(x + i, n - i, v16_set(-INFINITY)), shift)));
    *ret_max = max;
    *ret_sum = sum16(sum);
}

static void scale(float *y, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= factor;
}

static void softmax(float *x, size_t n)
{
    NW_CHECK(n >= 1);
    v16    shift = v16_set(largest(x, n)), sum = v16_set(0);
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        v16 e = exp16(v16_sub(v16_load(x + i), shift));
        v16_store(x + i, e);
        sum = v16_add(sum, e);
    }
    if (i < n) {
        v16 e = exp16(v16_sub(v16_load_part(x + i, n - i, v16_set(-INFINITY)), shift));
        v16_store_part(x + i, e, n - i);
        sum = v16_add(sum, e);
    }
    scale(x, 1.0f / sum16(sum), n);
}

/* ---- attention of many queries ----------------------------------------------------------------------------------- */

/* Queries are lanes here: what is done for one key is done for 16 queries at once, and the 16 lanes of the contract are
 * 16 registers one after the other, so that the tree at the end of each dot product is additions and nothing else. They
 * come in the order in which the tree adds them, and what waits for its partner waits in a register. */
static const unsigned char tree_order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* Rows of K and V are far apart, each perhaps on a page of its own, and hardware does not foresee them: they are
 * fetched this many keys ahead. V, if it is not together, is brought together for all queries, as many keys and columns
 * at a time. */
#define ATTEND_AHEAD ((size_t)12)
#define ATTEND_KEYS ((size_t)32)
#define ATTEND_WIDTH ((size_t)64)

LANES_INLINE void attend_fetch(const float *row, size_t ld, size_t d)
{
    uintptr_t at = (uintptr_t)row + ATTEND_AHEAD * ld * sizeof *row;
    for (size_t i = 0; i < d * sizeof *row; i += CACHE_LINE_BYTES)
        __builtin_prefetch((const void *)(at + i), 0, 3);
}

/* The dot products of `keys` keys from k on with 16 queries, turned [d, 16]. */
LANES_INLINE void attend_dots(size_t keys, v16 dots[MIX_QUERIES], const float *turned, const float *k, size_t ldk,
                              size_t d)
{
    v16 level[5][MIX_QUERIES];
    LANES_UNROLL
    for (size_t n = 0; n < 16; n++) {
        v16 sum[MIX_QUERIES];
        LANES_UNROLL
        for (size_t j = 0; j < keys; j++)
            sum[j] = v16_set(0);
        for (size_t i = tree_order[n]; i < d; i += 16) {
            v16 query = v16_load(turned + i * 16);
            LANES_UNROLL
            for (size_t j = 0; j < keys; j++)
                sum[j] = v16_fma(v16_set(k[j * ldk + i]), query, sum[j]);
        }
        size_t at = 0;
        LANES_UNROLL
        for (; (n >> at & 1) != 0; at++) {
            LANES_UNROLL
            for (size_t j = 0; j < keys; j++)
                sum[j] = v16_add(level[at][j], sum[j]);
        }
        LANES_UNROLL
        for (size_t j = 0; j < keys; j++)
            level[at][j] = sum[j];
    }
    LANES_UNROLL
    for (size_t j = 0; j < keys; j++)
        dots[j] = level[4][j];
}

/* scores [j_count, 16] and the largest of each query. */
LANES_INLINE v16 attend_scores(size_t d, float *scores, const float *turned, const float *k, size_t ldk, size_t j_count,
                               const float *bias)
{
    v16    best = v16_set(-INFINITY);
    size_t j = 0;
    for (; j < j_count;) {
        v16    dots[MIX_QUERIES];
        size_t keys = j_count - j >= MIX_QUERIES ? MIX_QUERIES : 1;
        for (size_t u = 0; u < keys; u++)
            attend_fetch(k + (j + u) * ldk, ldk, d);
        if (keys == MIX_QUERIES)
            attend_dots(MIX_QUERIES, dots, turned, k + j * ldk, ldk, d);
        else
            attend_dots(1, dots, turned, k + j * ldk, ldk, d);
        for (size_t u = 0; u < keys; u++, j++) {
            v16 score = v16_add(dots[u], v16_load(bias + (j_count - 1 - j)));
            best = v16_max(score, best);
            v16_store(scores + j * 16, score);
        }
    }
    return best;
}

/* In place, as softmax does it for one query. */
static void attend_softmax(float *scores, size_t j_count, v16 best)
{
    v16 sum[16];
    for (size_t l = 0; l < 16; l++)
        sum[l] = v16_set(0);
    for (size_t j = 0; j < j_count; j++) {
        v16 e = exp16(v16_sub(v16_load(scores + j * 16), best));
        v16_store(scores + j * 16, e);
        sum[j % 16] = v16_add(sum[j % 16], e);
    }
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++)
            sum[l] = v16_add(sum[l], sum[l + width]);
    }
    v16 factor = v16_div(v16_set(1.0f), sum[0]);
    for (size_t j = 0; j < j_count; j++)
        v16_store(scores + j * 16, v16_mul(v16_load(scores + j * 16), factor));
}

/* Adds what some keys give to `width` columns of out. */
static void attend_mix(float *out, size_t ldo, const float *p, size_t q_count, const float *v, size_t ldv,
                       size_t j_count, size_t width)
{
    float near[ATTEND_KEYS * ATTEND_WIDTH];
    for (size_t j = 0; j < j_count && ldv > width; j++) {
        attend_fetch(v + j * ldv, ldv, width);
        memcpy(near + j * width, v + j * ldv, width * sizeof *v);
    }
    if (ldv > width)
        v = near;
    size_t c = 0;
    for (; q_count - c >= MIX_QUERIES; c += MIX_QUERIES)
        mix_rows(MIX_QUERIES, out + c * ldo, ldo, p + c, 1, 16, v, width, j_count, width);
    for (; c < q_count; c++)
        mix_rows(1, out + c * ldo, ldo, p + c, 1, 16, v, width, j_count, width);
}

static void attend(float *out, size_t ldo, const float *q, size_t ldq, size_t q_count, const float *k, size_t ldk,
                   const float *v, size_t ldv, size_t j_count, size_t d, const float *bias, float *room)
{
    NW_CHECK(q_count >= 1 && q_count <= NW_COLS_MAX && j_count >= 1);
    float *turned = room, *scores = room + d * 16;
    memset(turned, 0, d * 16 * sizeof *turned);
    for (size_t c = 0; c < q_count; c++) {
        for (size_t i = 0; i < d; i++)
            turned[i * 16 + c] = q[c * ldq + i];
        memset(out + c * ldo, 0, d * sizeof *out);
    }
    v16 best = d == 64 ? attend_scores(64, scores, turned, k, ldk, j_count, bias)
                       : attend_scores(d, scores, turned, k, ldk, j_count, bias);
    attend_softmax(scores, j_count, best);
    for (size_t j = 0; j < j_count; j += ATTEND_KEYS) {
        for (size_t i = 0; i < d; i += ATTEND_WIDTH)
            attend_mix(out + i, ldo, scores + j * 16, q_count, v + j * ldv + i, ldv,
                       nw_min_size(ATTEND_KEYS, j_count - j), nw_min_size(ATTEND_WIDTH, d - i));
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* x * sigmoid(z), by exp(-|z|), which cannot overflow: small results keep their relative accuracy. */
LANES_INLINE v16 times_sigmoid(v16 x, v16 z)
{
    v16 one = v16_set(1.0f), zero = v16_set(0);
    v16 e = exp16(v16_sub(zero, v16_abs(z)));
    return v16_mul(x, v16_div(v16_select_less(z, zero, e, one), v16_add(one, e)));
}

/* 1 + tanh(u) = 2 sigmoid(2u); the constants are 2 sqrt(2/pi) and that times 0.044715. */
LANES_INLINE v16 gelu_tanh(v16 x)
{
    v16 twice = v16_mul(x, v16_fma(v16_set(0x1.2444f2p-4f), v16_mul(x, x), v16_set(0x1.988454p+0f)));
    return times_sigmoid(x, twice);
}

/* x times the normal distribution's Phi(x), without the cancellation of 1 + erf(x / sqrt 2) for negative x.
 *
 * With t = |x|: Phi(-t) = exp(-t^2 / 2) * R(t). R (Mills' ratio over sqrt(2 pi)) is smooth, from 1/2 down to 0.4/t, and
 * is a polynomial of degree 9 in (t - 4) / (t + 4), fitted to 2.4e-8 of its value on 0 .. 15, beyond which exp gives 0.
 * The rounding error of t^2 is put back: exp(-(s + d) / 2) = exp(-s / 2) * (1 - d / 2). */
LANES_INLINE v16 gelu_erf(v16 x)
{
    v16 one = v16_set(1.0f), zero = v16_set(0);
    v16 t = v16_min(v16_set(15.0f), v16_abs(x));
    v16 v = v16_div(v16_sub(t, v16_set(4.0f)), v16_add(t, v16_set(4.0f)));
    v16 ratio = v16_fma(v, v16_set(-0x1.084e1ap-14f), v16_set(-0x1.58597cp-13f));
    ratio = v16_fma(v, ratio, v16_set(0x1.5894d4p-11f));
    ratio = v16_fma(v, ratio, v16_set(0x1.06129cp-11f));
    ratio = v16_fma(v, ratio, v16_set(-0x1.1677d6p-7f));
    ratio = v16_fma(v, ratio, v16_set(0x1.f9b618p-6f));
    ratio = v16_fma(v, ratio, v16_set(-0x1.25b5e6p-4f));
    ratio = v16_fma(v, ratio, v16_set(0x1.fd74fcp-4f));
    ratio = v16_fma(v, ratio, v16_set(-0x1.5cf97ep-3f));
    ratio = v16_fma(v, ratio, v16_set(0x1.82b4bcp-4f));

    v16 minus_half = v16_set(-0.5f);
    v16 square = v16_mul(t, t);
    v16 rest = v16_fma(t, t, v16_sub(zero, square));
    v16 e = exp16(v16_mul(minus_half, square));
    e = v16_fma(v16_mul(minus_half, rest), e, e);
    v16 phi = v16_mul(e, ratio);
    return v16_mul(x, v16_select_less(x, zero, phi, v16_sub(one, phi)));
}

LANES_INLINE v16 act16(nw_activation act, v16 x)
{
    switch (act) {
    case NW_ACT_RELU: return v16_max(v16_set(0), x);
    case NW_ACT_GELU_TANH: return gelu_tanh(x);
    case NW_ACT_GELU_ERF: return gelu_erf(x);
    case NW_ACT_SILU: return times_sigmoid(x, x);
    case NW_ACT_NONE: break;
    }
    return x;
}

LANES_INLINE void activate_as(nw_activation act, float *x, size_t n)
{
    size_t i = 0;
    for (; n - i >= 16; i += 16)
        v16_store(x + i, act16(act, v16_load(x + i)));
    if (i < n)
        v16_store_part(x + i, act16(act, v16_load_part(x + i, n - i, v16_set(0))), n - i);
}

static void activate(float *x, size_t n, nw_activation act)
{
    switch (act) {
    case NW_ACT_NONE: return;
    case NW_ACT_RELU: activate_as(NW_ACT_RELU, x, n); return;
    case NW_ACT_GELU_TANH: activate_as(NW_ACT_GELU_TANH, x, n); return;
    case NW_ACT_GELU_ERF: activate_as(NW_ACT_GELU_ERF, x, n); return;
    case NW_ACT_SILU: activate_as(NW_ACT_SILU, x, n); return;
    }
    nw_trap("a known activation", __FILE__, __LINE__);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* A plain square root instruction, not libm's wrapper that also sets errno: IEEE 754 rounds both alike. */
static void norm(float *y, const float *x, const float *g, size_t n, float eps)
{
    NW_CHECK(n >= 1);
    v16    squares = v16_set(0);
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        v16 a = v16_load(x + i);
        squares = v16_fma(a, a, squares);
    }
    if (i < n) {
        v16 a = v16_load_part(x + i, n - i, v16_set(0));
        squares = v16_fma(a, a, squares);
    }
    float mean = sum16(squares) / (float)n;
    float factor = 1.0f / sqrtf(mean + eps);
    for (i = 0; i < n; i++)
        y[i] = g[i] * (x[i] * factor);
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void multiply(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= x[i];
}

LANES_INLINE void widen(nw_dtype d, float *y, const unsigned char *w, size_t n)
{
    size_t i = 0;
    for (; n - i >= 16; i += 16)
        v16_store(y + i, load_weights(d, w + i * weight_bytes(d)));
    if (i < n)
        v16_store_part(y + i, part_weights(d, w + i * weight_bytes(d), n - i), n - i);
}

static void widen_f32(float *y, const void *w, size_t n)
{
    memcpy(y, w, n * sizeof y[0]);
}
static void widen_bf16(float *y, const void *w, size_t n)
{
    widen(NW_BF16, y, (const unsigned char *)w, n);
}
static void widen_f16(float *y, const void *w, size_t n)
{
    widen(NW_F16, y, (const unsigned char *)w, n);
}

static size_t argmax(const float *x, size_t n)
{
    NW_CHECK(n >= 1);
    float  max = largest(x, n);
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        uint32_t found = v16_equal(v16_load(x + i), v16_set(max));
        if (found != 0)
            return i + (size_t)__builtin_ctz(found);
    }
    for (; i < n; i++) {
        if (x[i] == max)
            return i;
    }
    return 0; /* all NaN */
}

/* A variant's table, nw_kernels_portable, ...: FORMS is whose products over other forms of weights it takes. */
#define KERNELS_TABLE(NAME, FORMS, SLIM_WIDTH, SLIM_FASTER, SLIM_ENCODE)                                               \
    const nw_kernels nw_kernels_##NAME = {                                                                             \
        .name = #NAME,                                                                                                 \
        .matmul = {[NW_F32] = matmul_f32, [NW_BF16] = matmul_bf16, [NW_F16] = matmul_f16},                             \
        .mix = mix,                                                                                                    \
        .attend = attend,                                                                                              \
        .norm = norm,                                                                                                  \
        .softmax = softmax,                                                                                            \
        .activate = activate,                                                                                          \
        .add = add,                                                                                                    \
        .multiply = multiply,                                                                                          \
        .scale = scale,                                                                                                \
        .widen = {[NW_F32] = widen_f32, [NW_BF16] = widen_bf16, [NW_F16] = widen_f16},                                 \
        .matmul_slim = nw_matmul_slim_##FORMS,                                                                         \
        .matmul_q = {[NW_Q8] = nw_matmul_q8_##FORMS, [NW_Q4] = nw_matmul_q4_##FORMS},                                  \
        .widen_slim = nw_widen_slim_##FORMS,                                                                           \
        .widen_q = {[NW_Q8] = nw_widen_q8_##FORMS, [NW_Q4] = nw_widen_q4_##FORMS},                                     \
        .slim_encode = SLIM_ENCODE,                                                                                    \
        .slim_width = SLIM_WIDTH,                                                                                      \
        .slim_faster = SLIM_FASTER,                                                                                    \
        .argmax = argmax,                                                                                              \
        .exp_sum = exp_sum,                                                                                            \
    };

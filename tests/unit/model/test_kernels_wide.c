/* Products of many columns, in every form of weights: for each variant that this CPU runs, each column has the bits
 * that the portable kernels give it alone, which test_kernels.c holds to the definition. */
#define REGION_BYTES ((size_t)1 << 20)
#include "kernel_bench.h"

#include "base/quant.h"
#include "base/slim.h"

#define ROWS_MAX 21
#define COLS_MAX 210
#define K_MAX 1120

static float         x[COLS_MAX * K_MAX], values[ROWS_MAX * K_MAX], expected[COLS_MAX * ROWS_MAX];
static unsigned char weights[ROWS_MAX * K_MAX * 4], stored[ROWS_MAX * K_MAX * 4];
static region        region_w, region_x, region_y;

typedef struct {
    size_t               rows, cols, k, ldx, ldy;
    const unsigned char *w;
    const float         *x;
} product;

typedef enum { F32, BF16, F16, SLIM, Q8, Q4, KINDS } kind;

static void run(kind what, const nw_kernels *kernels, const product *p, float *y)
{
    if (what <= F16)
        kernels->matmul[what == F32    ? NW_F32
                        : what == BF16 ? NW_BF16
                                       : NW_F16](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->k, p->rows, p->k);
    else if (what == SLIM)
        kernels->matmul_slim(y, p->ldy, p->x, p->ldx, p->cols, p->w, 0, p->rows, p->k);
    else
        kernels->matmul_q[what == Q8 ? NW_Q8 : NW_Q4](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->k, p->rows, p->k);
}

/* Random weights as they are stored, at the end of a region, and as f32 in `values`; how many bytes they take. */
static size_t make_weights(kind what, size_t rows, size_t k)
{
    size_t   n = rows * k, bytes = 0;
    nw_dtype d = what == F16 ? NW_F16 : what == BF16 || what == SLIM ? NW_BF16 : NW_F32;
    for (size_t i = 0; i < n; i++)
        nw_dtype_from_f32(d, (float)(int32_t)random_u32() * 0x1p-33f, weights + i * nw_dtype_bytes(d));
    portable->widen[d](values, weights, n);
    if (what <= F16) {
        bytes = n * nw_dtype_bytes(d);
        memcpy(stored, weights, bytes);
    } else if (what == SLIM) {
        bytes = nw_slim_encode(stored, sizeof stored, weights, rows, k, 3 + (unsigned)random_below(2));
    } else {
        nw_quant q = what == Q8 ? NW_Q8 : NW_Q4;
        bytes = n / NW_QUANT_BLOCK * nw_quant_block_bytes(q);
        assert_true(nw_quant_encode(q, stored, values, n));
        nw_quant_decode(q, values, stored, n);
    }
    return bytes;
}

static void check(kind what, size_t rows, size_t cols, size_t k)
{
    product p = {.rows = rows, .cols = cols, .k = k, .ldx = k + random_below(4), .ldy = rows + random_below(4)};
    size_t  bytes = make_weights(what, rows, k), count = spread(cols, p.ldx, k);
    if (bytes == 0) /* too small to be slim */
        return;
    p.w = memcpy(region_end(region_w, bytes), stored, bytes);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(int32_t)random_u32() * 0x1p-31f;
    p.x = memcpy(region_end(region_x, count * sizeof x[0]), x, count * sizeof x[0]);
    for (size_t c = 0; c < cols; c++)
        portable->matmul[NW_F32](expected + c * rows, 0, x + c * p.ldx, 0, 1, values, k, rows, k);
    for (size_t v = 0; v < variant_count; v++) {
        float *y = region_end(region_y, spread(cols, p.ldy, rows) * sizeof y[0]);
        run(what, variants[v], &p, y);
        assert_guarded(region_y, y, cols, p.ldy, rows);
        for (size_t c = 0; c < cols; c++) {
            for (size_t r = 0; r < rows; r++)
                assert_same(variants[v], "a product of many columns", y[c * p.ldy + r], expected[c * rows + r]);
        }
    }
}

/* Around every number of columns and elements at which something ends: a tile, a stretch of 512, a block of 96. */
static void test_many_columns(void **state)
{
    (void)state;
    static const size_t cols[] = {17, 63, 64, 65, 95, 96, 97, 101, 192, 203}, ks[] = {31, 64, 512, 513, 1024, 1100};
    for (size_t round = 0; round < 5 * KINDS; round++) {
        kind   what = (kind)(round % KINDS);
        size_t k = ks[random_below(6)], rows = 1 + random_below(ROWS_MAX - 1);
        if (what >= Q8)
            k = (k + 31) / 32 * 32;
        check(what, rows, cols[random_below(10)], k);
    }
}

/* Every number of columns, few rows: whatever groups of columns it makes. */
static void test_every_count(void **state)
{
    (void)state;
    for (size_t cols = 1; cols <= 110; cols++)
        check((kind)(cols % KINDS), 1 + cols % 6, cols, 32);
}

int main(void)
{
    random_state = 99;
    if (!find_variants(true))
        return 1;
    region_w = region_new(), region_x = region_new(), region_y = region_new();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_columns), cmocka_unit_test(test_every_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Products of many columns, in every form of weights: for each variant that this CPU runs, each column has the bits
 * that the portable kernels give it alone, which test_kernels.c holds to the definition. */
#define REGION_BYTES ((size_t)3 << 20)
#include "kernel_bench.h"

#include "base/quant.h"
#include "base/slim.h"

#define ROWS_MAX 70
#define COLS_MAX 300
#define K_MAX 6400

static float         x[COLS_MAX * K_MAX], values[ROWS_MAX * K_MAX], expected[COLS_MAX * ROWS_MAX];
static unsigned char weights[ROWS_MAX * K_MAX * 4], stored[ROWS_MAX * K_MAX * 4];
static region        region_w, region_x, region_y, region_room;

typedef struct {
    size_t               rows, cols, k, ldx, ldy;
    const unsigned char *w;
    const float         *x;
} product;

typedef enum { F32, BF16, F16, SLIM, Q8, Q4, KINDS } kind;

static void run(kind what, const nw_kernels *kernels, const product *p, float *y)
{
    size_t floats = nw_matmul_room(p->cols, p->k);
    float *room = region_end(region_room, floats * sizeof(float));
    memset(room, 0xff, floats * sizeof(float)); /* NaN: what is read was written */
    if (what <= F16)
        kernels->matmul[what == F32    ? NW_F32
                        : what == BF16 ? NW_BF16
                                       : NW_F16](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->k, p->rows, p->k, room);
    else if (what == SLIM)
        kernels->matmul_slim(y, p->ldy, p->x, p->ldx, p->cols, p->w, 0, p->rows, p->k, room);
    else
        kernels->matmul_q[what == Q8 ? NW_Q8 : NW_Q4](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->k, p->rows, p->k,
                                                      room);
    assert_guarded(region_room, room, 1, 0, 0);
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

/* False: nothing was checked, as so few weights are not smaller as a slim strip. */
static bool check(kind what, size_t rows, size_t cols, size_t k)
{
    product p = {.rows = rows, .cols = cols, .k = k, .ldx = k + random_below(4), .ldy = rows + random_below(4)};
    size_t  bytes = make_weights(what, rows, k), count = spread(cols, p.ldx, k);
    if (bytes == 0)
        return false;
    p.w = memcpy(region_end(region_w, bytes), stored, bytes);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(int32_t)random_u32() * 0x1p-31f;
    p.x = memcpy(region_end(region_x, count * sizeof x[0]), x, count * sizeof x[0]);
    for (size_t c = 0; c < cols; c++)
        portable->matmul[NW_F32](expected + c * rows, 0, x + c * p.ldx, 0, 1, values, k, rows, k, NULL);
    for (size_t v = 0; v < variant_count; v++) {
        float *y = region_end(region_y, spread(cols, p.ldy, rows) * sizeof y[0]);
        run(what, variants[v], &p, y);
        assert_guarded(region_y, y, cols, p.ldy, rows);
        for (size_t c = 0; c < cols; c++) {
            for (size_t r = 0; r < rows; r++)
                assert_same(variants[v], "a product of many columns", y[c * p.ldy + r], expected[c * rows + r]);
        }
    }
    return true;
}

/* Around every number at which something ends: rows of a tile and of a panel, columns of a tile and of a group,
 * elements of a vector, a stretch, a panel of whole rows. Long rows by few columns, or it takes long. */
static void test_many_columns(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 3, 4, 5, 25, 27, 28, 29, 32, 33, 64, 67};
    static const size_t cols[] = {17, 63, 64, 65, 96, 101, 131, 132, 133, 265};
    static const size_t short_ks[] = {31, 64, 512, 513, 1024}, long_ks[] = {1100, 2048, 4481, 5120, 5121, 6337};
    for (size_t round = 0; round < 10 * KINDS; round++) {
        kind   what = (kind)(round % KINDS);
        bool   longer = round / KINDS % 2 == 1;
        size_t k = longer ? long_ks[random_below(6)] : short_ks[random_below(5)];
        if (what >= Q8)
            k = (k + 31) / 32 * 32;
        (void)check(what, rows[random_below(12)], cols[longer ? random_below(4) : random_below(10)], k);
    }
}

/* Shapes that need everything at once: more rows than a panel, more columns than pass by at once, more elements than a
 * panel of whole rows may have; and both sides of each of these, and of what lies near. */
static void test_all_cuts(void **state)
{
    (void)state;
    assert_true(check(BF16, 37, 140, 5300));
    assert_true(check(SLIM, 35, 134, 5184));
    assert_true(check(F32, 33, 132, 5121));
    assert_true(check(Q8, 5, 133, 5152));
    assert_true(check(Q4, 33, 133, 5152));
    assert_true(check(BF16, 33, 97, 4480));
    assert_true(check(F16, 9, 64, 4096));
    assert_true(check(F16, 9, 64, 4097));
}

/* Every number of columns, few rows: whatever groups of columns it makes. */
static void test_every_count(void **state)
{
    (void)state;
    for (size_t cols = 1; cols <= 110; cols++) {
        for (size_t what = cols / 2 % 2; what < KINDS; what += 2) {
            size_t rows = 1 + random_below(9);
            assert_true(what == SLIM ? check(SLIM, rows + 3, cols, 256) : check((kind)what, rows, cols, 32));
        }
    }
}

/* What a plan relies on: room for the most columns is enough for fewer. */
static void test_room(void **state)
{
    (void)state;
    static const size_t ks[] = {1, 16, 512, 513, 2730, 2731, 4480, 4481, 5120, 5121, 15421};
    for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
        for (size_t cols = 1; cols <= 600; cols++) {
            assert_true(nw_matmul_room(cols, ks[i]) <= nw_matmul_room(cols + 1, ks[i]));
            assert_true((nw_matmul_room(cols, ks[i]) == 0) == (cols <= 16));
            assert_true(nw_matmul_room(cols, ks[i]) * sizeof(float) <= 572 << 10);
        }
    }
}

int main(void)
{
    random_state = 99;
    if (!find_variants(true))
        return 1;
    region_w = region_new(), region_x = region_new(), region_y = region_new(), region_room = region_new();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_columns), cmocka_unit_test(test_all_cuts),
                                       cmocka_unit_test(test_every_count), cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

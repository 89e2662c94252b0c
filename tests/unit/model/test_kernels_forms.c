/* Products over slim strips and over q8 and q4 blocks: every variant that this CPU runs gives the bits of the plain
 * portable product over the decoded weights, whatever the weights are; the fast encoders make the reference's bytes. */
#define REGION_BYTES ((size_t)1 << 18)
#include "kernel_bench.h"

#include <stdlib.h>

#define ROWS_MAX 40
#define K_MAX 700
#define GAP_MAX 5

/* A buffer for each use. */
static region region_w, region_x, region_y, region_z;

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What the weights of a strip are like. */
typedef enum {
    TAME,     /* as trained weights are: hardly any escapes */
    ODD,      /* among them any finite bits: zeros of both signs, subnormals, huge ones */
    HOSTILE,  /* any bits, infinities and NaNs included */
    ZEROS,    /* zeros of both signs and negative tiny ones: where adding +0 would show */
    INFINITE, /* infinities and NaNs are what the table holds first, so padding decodes to them */
    TEMPERS
} temper;

static uint16_t random_weight(temper t)
{
    uint32_t bits = random_u32();
    uint16_t tame = (uint16_t)((bits & 0x807f) | (122 - (uint32_t)__builtin_ctz(random_u32() | 0x2000u)) << 7);
    uint16_t any = (uint16_t)random_u32();
    switch (t) {
    case ODD: return random_below(8) == 0 && (any & 0x7f80) != 0x7f80 ? any : tame;
    case HOSTILE: return random_below(6) == 0 ? any : tame;
    case ZEROS: return (uint16_t)(random_below(4) == 0 ? 0x8001 : bits & 0x8000);
    case INFINITE: return (uint16_t)(random_below(3) == 0 ? tame : (bits & 0x8000) | 0x7f80 | random_below(2));
    default: return tame;
    }
}

static void fill(float *x, size_t n, temper t)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(int32_t)random_u32() * 0x1p-29f;
        if (t != TAME && random_below(16) == 0)
            x[i] = of_bits(random_u32() & (random_below(2) == 0 ? 0x80000000u : 0x807fffffu));
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef enum { SLIM, Q8, Q4 } kind;

typedef struct {
    kind           kind;
    size_t         all, first, rows, cols, k, ldw, ldx, ldy;
    const uint8_t *w; /* the strip, or the blocks */
    const float   *x;
} product;

/* Runs it into the end of a region; nothing but the elements of y may change. */
static const float *product_run(const product *p, const nw_kernels *kernels)
{
    size_t count = spread(p->cols, p->ldy, p->rows);
    float *y = region_end(region_z, count * sizeof y[0]);
    if (p->kind == SLIM) {
        kernels->matmul_slim(y, p->ldy, p->x, p->ldx, p->cols, p->w, p->first, p->rows, p->k, NULL);
    } else {
        nw_quant q = p->kind == Q8 ? NW_Q8 : NW_Q4;
        kernels->matmul_q[q](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->ldw, p->rows, p->k, NULL);
    }
    assert_guarded(region_z, y, p->cols, p->ldy, p->rows);
    return y;
}

static void check_product(const product *p, const float *expected)
{
    for (size_t v = 0; v < variant_count; v++) {
        const float *got = product_run(p, variants[v]);
        for (size_t c = 0; c < p->cols; c++) {
            for (size_t r = 0; r < p->rows; r++)
                assert_same(variants[v], p->kind == SLIM ? "matmul_slim" : "matmul_q", got[c * p->ldy + r],
                            expected[c * p->ldy + r]);
        }
    }
}

static void check_widen(const product *p, const float *expected)
{
    for (size_t v = 0; v < variant_count; v++) {
        size_t count = p->rows * p->k;
        float *y = region_end(region_z, count * sizeof y[0]);
        if (p->kind == SLIM)
            variants[v]->widen_slim(y, p->w, p->first, p->rows);
        else
            variants[v]->widen_q[p->kind == Q8 ? NW_Q8 : NW_Q4](y, p->w, count);
        assert_int_equal(((unsigned char *)y)[-1], GUARD);
        for (size_t i = 0; i < count; i++)
            assert_same(variants[v], "widen", y[i], expected[i]);
    }
}

static void random_columns(product *p, temper t)
{
    p->cols = 1 + random_below(NW_COLS_MAX);
    p->ldx = p->k + random_below(GAP_MAX);
    p->ldy = p->rows + random_below(GAP_MAX);
    size_t count = spread(p->cols, p->ldx, p->k);
    float *x = region_end(region_x, count * sizeof x[0]);
    fill(x, count, t);
    p->x = x;
}

/* ---- slim -------------------------------------------------------------------------------------------------------- */

static void check_slim(size_t all, size_t k, unsigned width, temper t)
{
    static uint16_t w[ROWS_MAX * K_MAX];
    static uint8_t  strip[ROWS_MAX * K_MAX * 2], other[ROWS_MAX * K_MAX * 2];
    static float    values[ROWS_MAX * K_MAX];
    for (size_t i = 0; i < all * k; i++)
        w[i] = random_weight(t);
    size_t bytes = nw_slim_encode(strip, sizeof strip, w, all, k, width);
    for (size_t v = 0; v < variant_count; v++) {
        memset(other, GUARD, sizeof other);
        assert_int_equal(variants[v]->slim_encode(other, sizeof other, w, all, k, width), bytes);
        if (memcmp(strip, other, bytes) != 0)
            fail_msg("%s: slim_encode differs from the reference", variants[v]->name);
        assert_int_equal(other[bytes], GUARD);
    }
    if (bytes == 0)
        return;

    product p = {.kind = SLIM, .all = all, .first = random_below(all), .k = k};
    p.rows = 1 + random_below(all - p.first);
    /* sometimes at an odd address */
    p.w = memcpy((uint8_t *)region_end(region_w, bytes + t), strip, bytes);
    random_columns(&p, t);
    float *y = region_end(region_y, spread(p.cols, p.ldy, p.rows) * sizeof y[0]);
    portable->matmul[NW_BF16](y, p.ldy, p.x, p.ldx, p.cols, w + p.first * k, k, p.rows, k, NULL);
    check_product(&p, y);

    portable->widen[NW_BF16](values, w + p.first * k, p.rows * k);
    check_widen(&p, values);
}

static void test_slim(void **state)
{
    (void)state;
    for (size_t round = 0; round < 400; round++)
        check_slim(1 + random_below(ROWS_MAX), 1 + random_below(round % 7 == 0 ? K_MAX : 200), 3 + round % 2,
                   (temper)(round / 2 % TEMPERS));
}

/* Every length modulo the group, with few weights around it. */
static void test_slim_tails(void **state)
{
    (void)state;
    for (size_t k = 128; k < 320; k++) {
        for (unsigned width = 3; width <= 4; width++)
            check_slim(20 + random_below(8), k, width, (temper)(k % TEMPERS));
    }
}

/* Every 16-bit pattern, by a product that lets each through alone. */
static void test_slim_every_pattern(void **state)
{
    (void)state;
    enum { ROWS = 512, K = 512 };
    uint16_t *w = malloc(ROWS * K * 2);
    uint8_t  *strip = malloc(ROWS * K * 2);
    float    *y = malloc(ROWS * K * 4), *expected = malloc(ROWS * K * 4);
    assert_true(w != NULL && strip != NULL && y != NULL && expected != NULL);
    for (size_t i = 0; i < ROWS * K; i++)
        w[i] = i % 4 == 0 ? (uint16_t)(i / 4) : random_weight(TAME);
    portable->widen[NW_BF16](expected, w, ROWS * K);
    for (unsigned width = 3; width <= 4; width++) {
        size_t bytes = nw_slim_encode(strip, ROWS * K * 2, w, ROWS, K, width);
        assert_true(bytes > 0);
        for (size_t v = 0; v < variant_count; v++) {
            variants[v]->widen_slim(y, strip, 0, ROWS);
            for (size_t i = 0; i < ROWS * K; i++)
                assert_same(variants[v], "every pattern", y[i], expected[i]);
        }
    }
    free(w), free(strip), free(y), free(expected);
}

/* Damaged strips that pass the check: no kernel leaves them, and all do what decoding says. */
static size_t check_damaged(const uint8_t *strip, size_t bytes, size_t rows, size_t k, size_t at, uint8_t change)
{
    static uint16_t decoded[16 * 200];
    uint8_t        *bad = memcpy(region_end(region_w, bytes), strip, bytes);
    product         p = {.kind = SLIM, .all = rows, .rows = rows, .k = k, .w = bad};
    bad[at] ^= change;
    if (!nw_slim_check(bad, bytes, rows, k))
        return 0;
    random_columns(&p, ODD);
    float *y = region_end(region_y, spread(p.cols, p.ldy, p.rows) * sizeof y[0]);
    nw_slim_decode(decoded, bad, 0, rows);
    portable->matmul[NW_BF16](y, p.ldy, p.x, p.ldx, p.cols, decoded, k, rows, k, NULL);
    check_product(&p, y);
    return 1;
}

static void test_slim_damaged(void **state)
{
    (void)state;
    enum { ROWS = 8, K = 190 };
    static uint16_t w[ROWS * K];
    static uint8_t  strip[ROWS * K * 2];
    for (unsigned width = 3; width <= 4; width++) {
        size_t bytes = 0, accepted = 0;
        while (bytes == 0) { /* until the draw shrinks */
            for (size_t i = 0; i < ROWS * K; i++)
                w[i] = random_below(100) == 0 ? random_weight(HOSTILE) : random_weight(TAME);
            bytes = nw_slim_encode(strip, sizeof strip, w, ROWS, K, width);
        }
        for (size_t at = 0; at < bytes; at++)
            accepted += check_damaged(strip, bytes, ROWS, K, at, (uint8_t)(1u << random_below(8)));
        assert_true(accepted > ROWS * K / 2 && accepted < bytes);
    }
}

/* ---- q8 and q4 --------------------------------------------------------------------------------------------------- */

/* Blocks of any bytes at all: scales are subnormal, infinite or NaN too. */
static void check_quant(kind which, size_t rows, size_t k, bool hostile)
{
    static float   values[ROWS_MAX * (K_MAX + 64)];
    static uint8_t blocks[ROWS_MAX * (K_MAX + 64) * 2];
    nw_quant       q = which == Q8 ? NW_Q8 : NW_Q4;
    product        p = {.kind = which, .all = rows, .rows = rows, .k = k, .ldw = k + 32 * random_below(2)};
    size_t         count = spread(rows, p.ldw, k), bytes = count / 32 * nw_quant_block_bytes(q);
    for (size_t at = 0; at < bytes; at++)
        blocks[at] = (uint8_t)random_u32();
    if (!hostile) {
        for (size_t at = 1; at < bytes; at += nw_quant_block_bytes(q))
            blocks[at] &= 0xbf; /* below 2 */
    }
    nw_quant_decode(q, values, blocks, count);
    p.w = memcpy(region_end(region_w, bytes), blocks, bytes);
    random_columns(&p, hostile ? ODD : TAME);
    float *y = region_end(region_y, spread(p.cols, p.ldy, p.rows) * sizeof y[0]);
    portable->matmul[NW_F32](y, p.ldy, p.x, p.ldx, p.cols, values, p.ldw, p.rows, k, NULL);
    check_product(&p, y);
    if (p.ldw == k)
        check_widen(&p, values);
}

static void test_quant(void **state)
{
    (void)state;
    for (size_t round = 0; round < 600; round++)
        check_quant(round % 2 == 0 ? Q8 : Q4, 1 + random_below(12), 32 * (1 + random_below(K_MAX / 32)),
                    round / 2 % 3 == 2);
}

static void test_variants(void **state)
{
    (void)state;
    for (size_t v = 0; v < variant_count; v++) {
        assert_true(variants[v]->slim_width == 3 || variants[v]->slim_width == 4);
        assert_non_null(variants[v]->matmul_slim);
    }
}

int main(void)
{
    random_state = 7;
    if (!find_variants(true))
        return 1;
    region_w = region_new(), region_x = region_new(), region_y = region_new(), region_z = region_new();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),     cmocka_unit_test(test_slim),
        cmocka_unit_test(test_slim_tails),   cmocka_unit_test(test_slim_every_pattern),
        cmocka_unit_test(test_slim_damaged), cmocka_unit_test(test_quant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The cut of a matrix: covers every row once, within the limits, and depends on the shape alone. */
#include "base/tile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* What must hold for every shape. */
static void check(uint64_t rows, uint64_t cols)
{
    nw_cut cut = nw_cut_make(rows, cols);
    assert_int_equal(cut.rows, rows);
    assert_int_equal(cut.cols, cols);
    assert_true(cut.strip_rows >= 1);
    assert_true(cut.strip_rows == 1 || cut.strip_rows * cols <= NW_STRIP_ELEMENTS_MAX);
    assert_true((cut.strip_rows + 1) * cols > NW_STRIP_ELEMENTS_MAX); /* as many rows as fit */
    uint64_t next = 0;
    for (uint64_t tile = 0; tile < cut.tile_count; tile++) {
        uint64_t tile_rows = nw_cut_rows(&cut, tile);
        uint64_t strips = nw_cut_strips(&cut, tile_rows);
        assert_int_equal(nw_cut_first(&cut, tile), next);
        assert_true(tile_rows >= 1);
        assert_true(tile + 1 == cut.tile_count || tile_rows == cut.tile_rows);
        assert_true(strips >= 1 && strips <= NW_TILE_STRIPS_MAX);
        assert_true((strips - 1) * cut.strip_rows < tile_rows && strips * cut.strip_rows >= tile_rows);
        next += tile_rows;
    }
    assert_int_equal(next, rows);
}

static void test_shapes(void **state)
{
    (void)state;
    static const uint64_t cols[] = {1,     2,     37,    64,     2048,   4095,   4096,
                                    65535, 65536, 65537, 131071, 131072, 131073, 1000000};
    static const uint64_t rows[] = {1, 2, 7, 8, 9, 64, 1103, 32128};
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            check(rows[r], cols[c]);
        uint64_t strip = nw_cut_make(1, cols[c]).strip_rows;
        for (uint64_t tiles = 1; tiles <= 3; tiles++) { /* both sides of each border */
            check(strip * 8 * tiles, cols[c]);
            check(strip * 8 * tiles + 1, cols[c]);
            if (strip * 8 * tiles > 1)
                check(strip * 8 * tiles - 1, cols[c]);
        }
    }
}

static void test_known(void **state)
{
    (void)state;
    nw_cut cut = nw_cut_make(5120, 2048); /* flan-t5-xl, wi_0 */
    assert_int_equal(cut.strip_rows, 64);
    assert_int_equal(cut.tile_rows, 512);
    assert_int_equal(cut.tile_count, 10);
    cut = nw_cut_make(250112, 4096); /* mt5-xxl, the embedding */
    assert_int_equal(cut.strip_rows, 32);
    assert_int_equal(cut.tile_count, 977);
    assert_int_equal(nw_cut_rows(&cut, 976), 256);
    cut = nw_cut_make(3, 200000); /* a row that is longer than a strip */
    assert_int_equal(cut.strip_rows, 1);
    assert_int_equal(cut.tile_rows, 8);
    assert_int_equal(cut.tile_count, 1);
    assert_int_equal(nw_cut_strips(&cut, 3), 3);
}

static void test_extremes(void **state)
{
    (void)state;
    nw_cut cut = nw_cut_make(UINT64_MAX, 1);
    assert_int_equal(cut.tile_rows, 1 << 20);
    assert_int_equal(cut.tile_count, (uint64_t)1 << 44);
    uint64_t last = cut.tile_count - 1;
    assert_int_equal(nw_cut_first(&cut, last) + nw_cut_rows(&cut, last) - 1, UINT64_MAX - 1);
    cut = nw_cut_make(5, UINT64_MAX);
    assert_int_equal(cut.strip_rows, 1);
    assert_int_equal(cut.tile_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Carving: measuring and placing agree, alignment holds, and nothing overflows or leaves the mapping. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static alignas(65536) unsigned char mapping[3 * 65536];

typedef struct {
    unsigned char *bytes, *wide, *page, *tail;
} parts;

static void layout(parts *p, nw_arena *a)
{
    p->bytes = nw_carve(a, 3, 1, 1);
    p->wide = nw_carve(a, 5, 8, 64);
    p->page = nw_carve(a, 1, 4096, 65536);
    p->tail = nw_carve(a, 7, 3, 2);
}

static void test_measure_is_place(void **state)
{
    (void)state;
    parts    measured, placed;
    nw_arena measure = nw_arena_measure();
    layout(&measured, &measure);
    assert_false(measure.failed);
    assert_null(measured.bytes);
    assert_null(measured.tail);
    assert_int_equal(measure.used, 65536 + 4096 + 21);

    nw_arena place = nw_arena_over(mapping, measure.used);
    layout(&placed, &place);
    assert_false(place.failed);
    assert_int_equal(place.used, measure.used);
    assert_ptr_equal(placed.bytes, mapping);
    assert_ptr_equal(placed.wide, mapping + 64);
    assert_ptr_equal(placed.page, mapping + 65536);
    assert_ptr_equal(placed.tail, mapping + 65536 + 4096);

    nw_arena small =
        nw_arena_over(mapping, measure.used - 1); /* one byte short: the last part fails, the others do not */
    layout(&placed, &small);
    assert_true(small.failed);
    assert_non_null(placed.page);
    assert_null(placed.tail);
}

static void test_failure_is_sticky(void **state)
{
    (void)state;
    nw_arena a = nw_arena_over(mapping, 100);
    assert_non_null(nw_carve(&a, 60, 1, 1));
    size_t used = a.used;
    assert_null(nw_carve(&a, 41, 1, 1));
    assert_true(a.failed);
    assert_int_equal(a.used, used);
    assert_null(nw_carve(&a, 1, 1, 1)); /* would fit, but what follows a failure is not to be trusted */
}

static void test_overflow(void **state)
{
    (void)state;
    static const size_t counts[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        nw_arena a = nw_arena_measure();
        nw_carve(&a, 1, 1, 1);
        nw_carve(&a, counts[i], 16, 64);
        assert_true(a.failed);
        assert_int_equal(a.used, 1);
    }
    nw_arena full = nw_arena_measure();
    nw_carve(&full, SIZE_MAX - 1, 1, 1);
    assert_false(full.failed);
    nw_carve(&full, 1, 1, 64); /* the padding alone does not fit */
    assert_true(full.failed);
}

static void test_nothing_and_rewind(void **state)
{
    (void)state;
    nw_arena a = nw_arena_over(mapping, 128);
    assert_ptr_equal(nw_carve(&a, 0, 8, 8), mapping);
    assert_int_equal(a.used, 0);
    a.used = 3;
    assert_non_null(nw_carve(&a, 0, 8, 8));
    assert_int_equal(a.used, 3);
    a.used = 0;
    size_t mark = a.used;
    assert_ptr_equal(nw_carve(&a, 128, 1, 64), mapping);
    a.used = mark;
    assert_ptr_equal(nw_carve(&a, 1, 128, 64), mapping);
    assert_false(a.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure_is_place),
        cmocka_unit_test(test_failure_is_sticky),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_nothing_and_rewind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

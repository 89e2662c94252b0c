/* The first touch of pins: all of the range is there afterwards, whatever its borders and the number of workers, and
 * what was in it still is. */
#define _DEFAULT_SOURCE
#include "first_touch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAPPED = 9 << 20, FROM = 4096 * 3 + 64, WRITTEN = 5 << 20 };

/* Whether this kernel, or what emulates it, has the call at all. */
static bool can_populate(unsigned char *page)
{
#if defined(MADV_POPULATE_WRITE) && !defined(NW_TEST_EMULATOR)
    return madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) == 0;
#else
    (void)page;
    return false;
#endif
}

static void test_range(size_t threads, size_t bytes)
{
    nw_memory      mem;
    nw_error       err = {0};
    nw_workers    *team = NULL;
    nw_trace       trace = {0};
    size_t         page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *map, there[MAPPED / 4096];
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(nw_workers_open(&mem, threads, &team, &err), NW_OK);
    trace.workers = team;
    map = nw_memory_map(&mem, NW_TAG_ARENA, MAPPED, false);
    assert_non_null(map);
    memset(map + WRITTEN, 7, 100);

    nw_first_touch t = {.next = map + FROM, .end = map + FROM + bytes};
    for (size_t calls = 0; t.next < t.end; calls++) {
        assert_true(calls <= (MAPPED >> 21) + 1);
        nw_first_touch_some(&t, team, &trace);
    }
    nw_first_touch_some(&t, team, &trace);
    assert_ptr_equal(t.next, t.end);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(map[FROM + i], FROM + i >= WRITTEN && FROM + i < WRITTEN + 100 ? 7 : 0);
    nw_memory_unmap(&mem, NW_TAG_ARENA, map, MAPPED);

    map = nw_memory_map(&mem, NW_TAG_ARENA, MAPPED, false);
    if (can_populate(map)) {
        t = (nw_first_touch){.next = map + FROM, .end = map + FROM + bytes};
        while (t.next < t.end)
            nw_first_touch_some(&t, team, &trace);
        assert_int_equal(mincore(map, MAPPED, there), 0);
        for (size_t at = nw_round_up(FROM, page); at + page <= FROM + bytes; at += page)
            assert_int_equal(there[at / page] & 1, 1);
    }
    nw_memory_unmap(&mem, NW_TAG_ARENA, map, MAPPED);
    assert_null(nw_workers_close(team));
}

static void test_ranges(void **state)
{
    static const size_t sizes[] = {0, 1, 5000, 2 << 20, (6 << 20) + 12345, MAPPED - FROM};
    (void)state;
    for (size_t threads = 1; threads <= 3; threads++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            test_range(threads, sizes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The account: sums by tag, the limit, the fault, mappings that give back exactly what they took. */
#define _DEFAULT_SOURCE
#include "base/memory.h"

#include "base/arena.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_sums(void **state)
{
    (void)state;
    nw_memory m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    unsigned char *a = nw_memory_alloc(&m, NW_TAG_INDEX, 10, 10);
    unsigned char *b = nw_memory_alloc(&m, NW_TAG_IO, 1, 50);
    assert_non_null(a);
    assert_non_null(b);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(a[i], 0);
    assert_int_equal(m.live, 150);
    assert_int_equal(m.tag_live[NW_TAG_INDEX], 100);
    assert_int_equal(m.tag_live[NW_TAG_IO], 50);
    nw_memory_free(&m, NW_TAG_INDEX, a, 10, 10);
    assert_int_equal(m.live, 50);
    assert_int_equal(m.peak, 150);
    assert_int_equal(m.tag_live[NW_TAG_INDEX], 0);
    assert_int_equal(m.tag_peak[NW_TAG_INDEX], 100);
    nw_memory_free(&m, NW_TAG_IO, b, 1, 50);
    nw_memory_free(&m, NW_TAG_IO, NULL, 7, 7);
    assert_int_equal(m.live, 0);
}

static void test_nothing_and_overflow(void **state)
{
    (void)state;
    nw_memory m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    void *p = nw_memory_alloc(&m, NW_TAG_INDEX, 0, 8);
    assert_non_null(p);
    nw_memory_free(&m, NW_TAG_INDEX, p, 0, 8);
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, SIZE_MAX, 2));
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, SIZE_MAX / 2 + 2, 2));
    assert_null(nw_memory_map(&m, NW_TAG_ARENA, SIZE_MAX - 5, false));
    assert_null(nw_memory_map(&m, NW_TAG_ARENA, SIZE_MAX / 2, true)); /* the system refuses: nothing stays counted */
    assert_int_equal(m.live, 0);
}

static void test_limit(void **state)
{
    (void)state;
    nw_memory m;
    nw_error  err = {0};
    nw_memory_init(&m, 100, NULL);
    void *p = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 60);
    assert_non_null(p);
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, 1, 41));
    assert_null(nw_memory_map(&m, NW_TAG_ARENA, 41, false));
    assert_int_equal(m.live, 60);
    assert_int_equal(m.peak, 60);
    assert_int_equal(nw_memory_fail(&m, &err, 41, "table"), NW_E_BUDGET);
    assert_int_equal(err.code, NW_E_BUDGET);
    assert_non_null(strstr(err.msg, "table"));
    assert_non_null(strstr(err.msg, "41 bytes more would be over the limit of 100 (60 in use)"));
    void *q = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 40); /* exactly */
    assert_non_null(q);
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, 1, 1));
    nw_memory_free(&m, NW_TAG_INDEX, q, 1, 40);
    nw_memory_free(&m, NW_TAG_INDEX, p, 1, 60);
    assert_int_equal(m.live, 0);
}

/* The code says who refused, whatever was freed since and however roughly the size is known to who reports it. */
static void test_who_refused(void **state)
{
    (void)state;
    nw_memory m;
    nw_error  err = {0};
    nw_memory_init(&m, 100, NULL);
    void *p = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 60);
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, 1, 41));
    nw_memory_free(&m, NW_TAG_INDEX, p, 1, 60);
    assert_int_equal(nw_memory_fail(&m, &err, 1, "table"), NW_E_BUDGET);
    assert_non_null(strstr(err.msg, "41 bytes more"));
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, SIZE_MAX, 2)); /* no number at all */
    assert_int_equal(nw_memory_fail(&m, &err, 1000, "table"), NW_E_MEMORY);
    nw_memory_fault fault = {.fail_at = 1};
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, 1, 101));
    m.fault = &fault;
    assert_null(nw_memory_map(&m, NW_TAG_INDEX, 50, false));
    assert_int_equal(nw_memory_fail(&m, &err, 1000, "table"), NW_E_MEMORY);
}

static void test_fault(void **state)
{
    (void)state;
    nw_memory_fault fault = {.fail_at = 3};
    nw_memory       m;
    nw_memory_init(&m, UINT64_MAX, &fault);
    void *a = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 1);
    void *b = nw_memory_map(&m, NW_TAG_ARENA, 5000, false);
    assert_non_null(a);
    assert_non_null(b);
    assert_false(fault.fired);
    assert_null(nw_memory_alloc(&m, NW_TAG_INDEX, 1, 1));
    assert_true(fault.fired);
    void *c = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 1); /* once only */
    assert_non_null(c);
    nw_memory_free(&m, NW_TAG_INDEX, a, 1, 1);
    nw_memory_free(&m, NW_TAG_INDEX, c, 1, 1);
    nw_memory_unmap(&m, NW_TAG_ARENA, b, 5000);
    assert_int_equal(m.live, 0);
    assert_int_equal(fault.seen, 4);
}

static void test_map(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4095, 4096, 4097, 65535, 65536, 65537, 1000000, 5 << 20};
    nw_memory           m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int huge = 0; huge < 2; huge++) {
            unsigned char *p = nw_memory_map(&m, NW_TAG_ARENA, sizes[i], huge != 0);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p & (NW_ARENA_ALIGN_MAX - 1), 0);
            assert_int_equal(m.live, sizes[i]);
            assert_int_equal(p[0], 0);
            assert_int_equal(p[sizes[i] - 1], 0);
            memset(p, 0xee, sizes[i]);
            nw_memory_unmap(&m, NW_TAG_ARENA, p, sizes[i]);
            assert_int_equal(m.live, 0);
        }
    }
}

/* Unmapping must not reach past its own mapping. Fixed: sizes that are no multiple of 64 KiB gave back up to 60 KiB
 * that belonged to whatever was mapped next. Mappings are placed one under the other, so some of them are neighbours.
 */
static void test_unmap_spares_neighbours(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4097, 61441, 65537, 69633, 200001};
    enum { ROUNDS = 48 };
    unsigned char *mine[ROUNDS], resident[64];
    size_t         bytes[ROUNDS];
    nw_memory      m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    for (size_t i = 0; i < ROUNDS; i++) {
        bytes[i] = sizes[i % 6];
        mine[i] = nw_memory_map(&m, NW_TAG_ARENA, bytes[i], false);
        assert_non_null(mine[i]);
        memset(mine[i], (int)i + 1, bytes[i]);
        /* What will be given back is there to be given. */
        assert_int_equal(mincore(mine[i], (size_t)nw_round_up(bytes[i], NW_ARENA_ALIGN_MAX), resident), 0);
    }
    for (size_t i = 1; i < ROUNDS; i += 2)
        nw_memory_unmap(&m, NW_TAG_ARENA, mine[i], bytes[i]);
    for (size_t i = 0; i < ROUNDS; i += 2) {
        assert_int_equal(mincore(mine[i], bytes[i], resident), 0); /* ENOMEM: no longer mapped */
        for (size_t k = 0; k < bytes[i]; k++)
            assert_true(mine[i][k] == i + 1);
        nw_memory_unmap(&m, NW_TAG_ARENA, mine[i], bytes[i]);
    }
    assert_int_equal(m.live, 0);
}

/* Runs a mistake in a child; it must trap. */
static void expect_trap(void (*mistake)(nw_memory *m))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        nw_memory m;
        nw_memory_init(&m, UINT64_MAX, NULL);
        signal(SIGABRT, SIG_DFL);
        mistake(&m);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void alloc_when_sealed(nw_memory *m)
{
    nw_memory_seal(m);
    free(nw_memory_alloc(m, NW_TAG_INDEX, 1, 1));
}

static void free_too_much(nw_memory *m)
{
    void *p = nw_memory_alloc(m, NW_TAG_INDEX, 1, 8);
    nw_memory_free(m, NW_TAG_INDEX, p, 1, 9);
}

static void free_under_another_tag(nw_memory *m)
{
    void *p = nw_memory_alloc(m, NW_TAG_INDEX, 1, 8);
    nw_memory_free(m, NW_TAG_IO, p, 1, 8);
}

static void test_mistakes_trap(void **state)
{
    (void)state;
    expect_trap(alloc_when_sealed);
    expect_trap(free_too_much);
    expect_trap(free_under_another_tag);
    nw_memory m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    void *p = nw_memory_alloc(&m, NW_TAG_INDEX, 1, 8);
    nw_memory_seal(&m);
    nw_memory_free(&m, NW_TAG_INDEX, p, 1, 8); /* giving back is always allowed */
    nw_memory_unseal(&m);
    assert_int_equal(m.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),          cmocka_unit_test(test_nothing_and_overflow),
        cmocka_unit_test(test_limit),         cmocka_unit_test(test_fault),        cmocka_unit_test(test_who_refused),
        cmocka_unit_test(test_map),           cmocka_unit_test(test_unmap_spares_neighbours),
        cmocka_unit_test(test_mistakes_trap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

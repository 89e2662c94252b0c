/* The worker team: every piece exactly once, on a worker that exists, whatever the number of threads and pieces; many
 * short jobs, where late wakers would show. */
#include "team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { THREADS_MAX = 8, PIECES = 3000 };

#ifdef NW_SANITIZED
enum { JOBS = 4000 };
#else
enum { JOBS = 60000 };
#endif

static nw_workers *open_team(nw_memory *mem, size_t threads)
{
    nw_error    err = {0};
    nw_workers *t = NULL;
    nw_memory_init(mem, UINT64_MAX, NULL);
    assert_int_equal(nw_workers_open(mem, threads, &t, &err), NW_OK);
    assert_int_equal(nw_workers_count(t), threads);
    return t;
}

static void close_team(nw_memory *mem, nw_workers *t)
{
    assert_null(nw_workers_close(t));
    assert_int_equal(mem->live, 0);
}

typedef struct {
    unsigned    count[PIECES]; /* not atomic: a piece done twice at once is a race that TSan sees */
    atomic_uint wrong_worker;
    size_t      threads;
} tally;

static void count_piece(void *ctx, size_t i, size_t worker)
{
    tally *t = ctx;
    t->count[i]++;
    if (worker >= t->threads)
        atomic_fetch_add(&t->wrong_worker, 1);
}

static void test_every_piece_once(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, PIECES};
    for (size_t threads = 1; threads <= THREADS_MAX; threads++) {
        nw_memory   mem;
        nw_workers *team = open_team(&mem, threads);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            static tally t;
            memset(&t, 0, sizeof t);
            t.threads = threads;
            nw_workers_run(team, count_piece, &t, sizes[k]);
            for (size_t i = 0; i < PIECES; i++)
                assert_int_equal(t.count[i], i < sizes[k] ? 1 : 0);
            assert_int_equal(t.wrong_worker, 0);
        }
        close_team(&mem, team);
    }
}

/* The sum lives in the caller's frame: a worker that came late to the job before would write to a dead one. */
typedef struct {
    atomic_ulong sum;
    size_t       job;
} short_job;

static void add_piece(void *ctx, size_t i, size_t worker)
{
    (void)worker;
    short_job *j = ctx;
    atomic_fetch_add(&j->sum, j->job + i);
}

static void test_many_short_jobs(void **state)
{
    (void)state;
    for (size_t threads = 2; threads <= THREADS_MAX; threads += 2) {
        nw_memory   mem;
        nw_workers *team = open_team(&mem, threads);
        for (size_t job = 0; job < JOBS / threads; job++) {
            short_job j = {.job = job};
            size_t    n = 1 + job % 9;
            nw_workers_run(team, add_piece, &j, n);
            assert_int_equal(j.sum, n * job + n * (n - 1) / 2);
        }
        close_team(&mem, team);
    }
}

/* Workers that fell asleep wake up for the next job. */
static void test_after_sleep(void **state)
{
    (void)state;
    nw_memory   mem;
    nw_workers *team = open_team(&mem, 4);
    for (size_t round = 0; round < 5; round++) {
        short_job j = {.job = round};
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
        nw_workers_run(team, add_piece, &j, 100);
        assert_int_equal(j.sum, 100 * round + 4950);
    }
    close_team(&mem, team);
}

/* Uneven pieces, and closing without any job. */
static void spin_piece(void *ctx, size_t i, size_t worker)
{
    volatile unsigned x = 0;
    for (size_t k = 0; k < (i % 7) * 3000; k++)
        x += 1;
    (void)x;
    count_piece(ctx, i, worker);
}

static void test_uneven_pieces(void **state)
{
    (void)state;
    nw_memory    mem;
    static tally t;
    nw_workers  *team = open_team(&mem, 3);
    close_team(&mem, team);
    team = open_team(&mem, 5);
    t.threads = 5;
    nw_workers_run(team, spin_piece, &t, 500);
    for (size_t i = 0; i < 500; i++)
        assert_int_equal(t.count[i], 1);
    close_team(&mem, team);
}

static void test_memory(void **state)
{
    (void)state;
    nw_memory_fault fault = {.fail_at = 1};
    nw_memory       mem;
    nw_error        err = {0};
    nw_workers     *team = NULL;
    nw_memory_init(&mem, UINT64_MAX, &fault);
    assert_int_equal(nw_workers_open(&mem, 2, &team, &err), NW_E_MEMORY);
    assert_null(team);
    assert_int_equal(mem.live, 0);
    assert_null(nw_workers_close(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_piece_once), cmocka_unit_test(test_many_short_jobs),
        cmocka_unit_test(test_after_sleep),      cmocka_unit_test(test_uneven_pieces),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

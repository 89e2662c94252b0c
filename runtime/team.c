/* One 64-bit word holds the job's number, its number of pieces and the next piece to claim. A worker that claims a
 * piece with compare-and-swap has thereby proved that the job is still the one it saw: the caller cannot return, and so
 * cannot set up another job, before that piece is done. So a worker that wakes late needs no farewell: its stale claim
 * just fails. */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { PIECE_BITS = 21, SPINS_BEFORE_SLEEP = 400, SPINS_BEFORE_YIELD = 20000 };
#define PIECE_MASK (((uint64_t)1 << PIECE_BITS) - 1)

typedef struct {
    nw_workers *team;
    size_t      index;
    pthread_t   thread;
} worker;

struct nw_workers {
    nw_memory       *mem;
    size_t           count, started; /* started: threads that run, not counting the caller's */
    _Atomic uint64_t claim;          /* job << 42 | pieces << 21 | next piece */
    _Atomic uint64_t remaining;      /* pieces not done yet */
    _Atomic uint32_t sleepers;
    atomic_bool      closing;
    void (*fn)(void *ctx, size_t i, size_t worker);
    void           *ctx;
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t  wake;
    worker          workers[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_piece(uint64_t claim)
{
    return (claim & PIECE_MASK) < ((claim >> PIECE_BITS) & PIECE_MASK);
}

/* Works on the current job until no piece is left to claim. */
static void work(nw_workers *t, size_t index)
{
    uint64_t claim = atomic_load(&t->claim);
    while (has_piece(claim)) {
        if (!atomic_compare_exchange_weak(&t->claim, &claim, claim + 1))
            continue;
        t->fn(t->ctx, (size_t)(claim & PIECE_MASK), index);
        atomic_fetch_sub(&t->remaining, 1);
        claim = atomic_load(&t->claim);
    }
}

static void sleep_until_work(nw_workers *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1); /* before looking again: the caller publishes first and then looks at sleepers */
    while (!has_piece(atomic_load(&t->claim)) && !atomic_load(&t->closing))
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *arg)
{
    worker     *w = arg;
    nw_workers *t = w->team;
    unsigned    spins = 0;
    while (!atomic_load(&t->closing)) {
        if (has_piece(atomic_load(&t->claim))) {
            work(t, w->index);
            spins = 0;
        } else if (++spins < SPINS_BEFORE_SLEEP) {
            pause_briefly();
        } else {
            sleep_until_work(t);
            spins = 0;
        }
    }
    return NULL;
}

static size_t team_bytes(size_t count) { return sizeof(nw_workers) + count * sizeof(worker); }

static nw_code start_threads(nw_workers *t, nw_error *err)
{
    pthread_attr_t attr;
    int            failed = pthread_attr_init(&attr);
    if (failed != 0)
        return nw_fail(err, NW_E_MEMORY, failed, "cannot prepare worker threads");
    pthread_attr_setstacksize(&attr, (size_t)256 << 10);
    for (size_t i = 1; i < t->count && failed == 0; i++) {
        t->workers[i] = (worker){.team = t, .index = i};
        failed = pthread_create(&t->workers[i].thread, &attr, worker_main, &t->workers[i]);
        if (failed == 0)
            t->started++;
    }
    pthread_attr_destroy(&attr);
    return failed == 0 ? NW_OK : nw_fail(err, NW_E_MEMORY, failed, "cannot start %zu worker threads", t->count);
}

nw_code nw_workers_open(nw_memory *mem, size_t thread_count, nw_workers **ret_workers, nw_error *err)
{
    NW_CHECK(thread_count >= 1);
    nw_workers *t = nw_memory_alloc(mem, NW_TAG_SESSION, 1, team_bytes(thread_count));
    if (t == NULL)
        return nw_memory_fail(mem, err, team_bytes(thread_count), "worker threads");
    t->mem = mem;
    t->count = thread_count;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    nw_code rc = start_threads(t, err);
    if (rc != NW_OK) {
        nw_workers_close(t);
        return rc;
    }
    *ret_workers = t;
    return NW_OK;
}

nw_workers *nw_workers_close(nw_workers *t)
{
    if (t == NULL)
        return NULL;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->closing, true);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (size_t i = 1; i <= t->started; i++)
        pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    nw_memory_free(t->mem, NW_TAG_SESSION, t, 1, team_bytes(t->count));
    return NULL;
}

size_t nw_workers_count(const nw_workers *t) { return t->count; }

void nw_workers_run(nw_workers *t, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n)
{
    NW_CHECK(n <= NW_PIECES_MAX);
    if (t->count == 1 || n <= 1) {
        for (size_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
    t->fn = fn;
    t->ctx = ctx;
    atomic_store(&t->remaining, n);
    uint64_t job = (atomic_load(&t->claim) >> (2 * PIECE_BITS)) + 1;
    atomic_store(&t->claim, job << (2 * PIECE_BITS) | (uint64_t)n << PIECE_BITS);
    if (atomic_load(&t->sleepers) > 0) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
    work(t, 0);
    for (unsigned spins = 0; atomic_load(&t->remaining) > 0; spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            pause_briefly();
        else
            sched_yield();
    }
}

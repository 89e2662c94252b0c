/* A job's pieces are dealt out as one run of neighbours for each worker, so that each reads memory as one stream: what
 * it prefetches past a strip's end is then its own next strip. Who has finished its run takes pieces from the ends of
 * others'.
 *
 * One 64-bit word for each worker holds the job's number and what is left of its run. A worker that takes a piece with
 * compare-and-swap has thereby proved that the job is still the one it saw: the caller cannot return, and so cannot set
 * up another job, before that piece is done. So a worker that wakes late needs no farewell: it finds nothing to take,
 * or pieces of the next job. */
#include "team.h"

#include "system.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

/* Waking a thread takes some ten microseconds, a tenth of a typical job. So a worker spins while it waits for as long
 * as a session takes between two products, but only if its last waits were that short: a session that waits for its
 * disk would have it spin in vain. A pause is about 50 ns. */
enum { PIECE_BITS = 21, SPINS_SHORT = 400, SPINS_LONG = 8000, SPINS_BEFORE_YIELD = 20000 };
#define SHORT_WAIT 200e-6 /* seconds */
#define PIECE_MASK (((uint64_t)1 << PIECE_BITS) - 1)

typedef struct {
    nw_workers      *team;
    size_t           index;
    pthread_t        thread;
    _Atomic uint64_t run;       /* job << 42 | end << 21 | next: its pieces that nobody has taken */
    char             apart[96]; /* from the next one's, in another cache line */
} worker;

struct nw_workers {
    nw_memory       *mem;
    size_t           count, started; /* started: threads that run, not counting the caller's */
    _Atomic uint64_t job;            /* number of the last one; written after everything else of it */
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

/* Takes the first piece of a run, or the last one. */
static bool take(_Atomic uint64_t *run, bool first, size_t *ret_piece)
{
    uint64_t left = atomic_load(run);
    for (;;) {
        uint64_t next = left & PIECE_MASK, end = left >> PIECE_BITS & PIECE_MASK;
        if (next >= end)
            return false;
        *ret_piece = (size_t)(first ? next : end - 1);
        if (atomic_compare_exchange_weak(run, &left, first ? left + 1 : left - ((uint64_t)1 << PIECE_BITS)))
            return true;
    }
}

static bool take_any(nw_workers *t, size_t index, size_t *ret_piece)
{
    if (take(&t->workers[index].run, true, ret_piece))
        return true;
    for (size_t i = 1; i < t->count; i++) {
        if (take(&t->workers[(index + i) % t->count].run, false, ret_piece))
            return true;
    }
    return false;
}

/* Works on the current job until no piece is left to take. */
static void work(nw_workers *t, size_t index)
{
    size_t piece;
    while (take_any(t, index, &piece)) {
        t->fn(t->ctx, piece, index);
        atomic_fetch_sub(&t->remaining, 1);
    }
}

static void sleep_until_job(nw_workers *t, uint64_t seen)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1); /* before looking again: the caller publishes first and then looks at sleepers */
    while (atomic_load(&t->job) == seen && !atomic_load(&t->closing))
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *arg)
{
    worker     *w = arg;
    nw_workers *t = w->team;
    uint64_t    seen = 0;
    double      since = nw_system_seconds(), usual = 0; /* how long it usually waits */
    unsigned    spins = 0;
    while (!atomic_load(&t->closing)) {
        uint64_t job = atomic_load(&t->job);
        if (job != seen) {
            usual += (nw_system_seconds() - since - usual) / 4;
            seen = job;
            work(t, w->index);
            since = nw_system_seconds();
            spins = 0;
        } else if (++spins < (usual < SHORT_WAIT ? SPINS_LONG : SPINS_SHORT)) {
            pause_briefly();
        } else {
            sleep_until_job(t, seen);
        }
    }
    return NULL;
}

static size_t team_bytes(size_t count)
{
    return sizeof(nw_workers) + count * sizeof(worker);
}

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

size_t nw_workers_count(const nw_workers *t)
{
    return t->count;
}

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
    uint64_t job = atomic_load(&t->job) + 1;
    for (size_t w = 0; w < t->count; w++)
        atomic_store(&t->workers[w].run, job << (2 * PIECE_BITS) | (uint64_t)(n * (w + 1) / t->count) << PIECE_BITS |
                                             (uint64_t)(n * w / t->count));
    atomic_store(&t->job, job);
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

/* The thread backend: blocking pread, pwrite and fsync on a small pool, for places that refuse io_uring.
 *
 * Two rings of `depth` places under one mutex: what is to be done, in order of submission, and what is done. A slot has
 * at most one transfer outstanding, so neither ring can overflow. The owner is woken when the first result arrives, a
 * worker for each transfer. Workers block all signals: those belong to the program's own threads.
 */
#include "io_backend.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)256 << 10)
/* Measured: 8 KiB of a worker's stack, its control block included, are touched; with room for a libc that touches more.
 */
#define THREAD_BYTES ((size_t)24 << 10)

typedef struct {
    nw_io_backend   base;
    nw_memory      *mem;
    uint32_t        depth, threads_max, threads;
    pthread_mutex_t lock;
    pthread_cond_t  work, finished;
    pthread_t      *ids;
    nw_io_transfer *todo; /* ring */
    nw_io_result   *done; /* ring */
    uint32_t        todo_first, todo_count;
    uint32_t        done_first, done_count;
    uint32_t        outstanding; /* submitted and not reaped; the owner's */
    bool            stop;
    void           *resident; /* an untouched mapping that stands for the stacks in the account */
    size_t          resident_bytes;
} io_pool;

static int64_t transfer_run(const nw_io_transfer *t)
{
    int64_t moved = 0;
    switch (t->kind) {
    case NW_IO_READ: moved = pread(t->fd, t->buf, t->bytes, (off_t)t->offset); break;
    case NW_IO_WRITE: moved = pwrite(t->fd, t->buf, t->bytes, (off_t)t->offset); break;
    case NW_IO_FSYNC: moved = fsync(t->fd); break;
    }
    return moved < 0 ? -(int64_t)errno : moved;
}

static void *worker(void *user)
{
    io_pool *pool = user;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->todo_count == 0 && !pool->stop)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->todo_count == 0)
            break;
        nw_io_transfer transfer = pool->todo[pool->todo_first];
        pool->todo_first = (pool->todo_first + 1) % pool->depth;
        pool->todo_count--;
        pthread_mutex_unlock(&pool->lock);

        int64_t moved = transfer_run(&transfer);

        pthread_mutex_lock(&pool->lock);
        NW_CHECK(pool->done_count < pool->depth);
        pool->done[(pool->done_first + pool->done_count) % pool->depth] =
            (nw_io_result){.slot = transfer.slot, .moved = moved};
        pool->done_count++;
        pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void pool_submit(nw_io_backend *backend, const nw_io_transfer *transfer)
{
    io_pool *pool = (io_pool *)backend;
    pthread_mutex_lock(&pool->lock);
    NW_CHECK(pool->todo_count < pool->depth && pool->outstanding < pool->depth);
    pool->todo[(pool->todo_first + pool->todo_count) % pool->depth] = *transfer;
    pool->todo_count++;
    pool->outstanding++;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static size_t pool_reap(nw_io_backend *backend, nw_io_result *ret, size_t cap, bool wait)
{
    io_pool *pool = (io_pool *)backend;
    size_t   count = 0;
    pthread_mutex_lock(&pool->lock);
    while (wait && pool->done_count == 0 && pool->outstanding > 0)
        pthread_cond_wait(&pool->finished, &pool->lock);
    while (count < cap && pool->done_count > 0) {
        ret[count++] = pool->done[pool->done_first];
        pool->done_first = (pool->done_first + 1) % pool->depth;
        pool->done_count--;
        pool->outstanding--;
    }
    pthread_mutex_unlock(&pool->lock);
    return count;
}

static void pool_free(io_pool *pool)
{
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    nw_memory_unmap(pool->mem, NW_TAG_IO, pool->resident, pool->resident_bytes);
    nw_memory_free(pool->mem, NW_TAG_IO, pool->done, pool->depth, sizeof *pool->done);
    nw_memory_free(pool->mem, NW_TAG_IO, pool->todo, pool->depth, sizeof *pool->todo);
    nw_memory_free(pool->mem, NW_TAG_IO, pool->ids, pool->threads_max, sizeof *pool->ids);
    nw_memory_free(pool->mem, NW_TAG_IO, pool, 1, sizeof *pool);
}

static void pool_close(nw_io_backend *backend)
{
    io_pool *pool = (io_pool *)backend;
    NW_CHECK(pool->outstanding == 0);
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->threads; i++)
        pthread_join(pool->ids[i], NULL);
    pool_free(pool);
}

/* Starts as many workers as the system gives; 0 or the reason why there is not even one. */
static int start_workers(io_pool *pool)
{
    pthread_attr_t attr;
    int            os_errno = pthread_attr_init(&attr);
    if (os_errno != 0)
        return os_errno;
    /* Where 256 KiB are refused (a libc with much thread-local data), the default is mapped but hardly touched. */
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->threads < pool->threads_max) {
        os_errno = pthread_create(&pool->ids[pool->threads], &attr, worker, pool);
        if (os_errno != 0)
            break;
        pool->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return pool->threads > 0 ? 0 : os_errno;
}

static size_t stack_bytes_touched(void)
{
    return nw_max_size(THREAD_BYTES, 3 * (size_t)sysconf(_SC_PAGESIZE));
}

uint64_t nw_io_threads_bytes(uint32_t depth, uint32_t threads)
{
    return sizeof(io_pool) + depth * (uint64_t)(sizeof(nw_io_transfer) + sizeof(nw_io_result)) +
           threads * (uint64_t)(stack_bytes_touched() + sizeof(pthread_t));
}

nw_code nw_io_threads_open(nw_memory *mem, uint32_t depth, uint32_t threads, nw_io_backend **ret_backend, nw_error *err)
{
    NW_CHECK(depth >= 1 && threads >= 1 && threads <= depth);
    io_pool *pool = nw_memory_alloc(mem, NW_TAG_IO, 1, sizeof *pool);
    if (pool == NULL)
        return nw_memory_fail(mem, err, sizeof *pool, "I/O threads");
    *pool = (io_pool){
        .base = {.name = "threads", .submit = pool_submit, .reap = pool_reap, .close = pool_close},
        .mem = mem,
        .depth = depth,
        .threads_max = threads,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .work = PTHREAD_COND_INITIALIZER,
        .finished = PTHREAD_COND_INITIALIZER,
    };
    pool->ids = nw_memory_alloc(mem, NW_TAG_IO, threads, sizeof *pool->ids);
    pool->todo = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *pool->todo);
    pool->done = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *pool->done);
    pool->resident_bytes = threads * stack_bytes_touched();
    pool->resident = nw_memory_map(mem, NW_TAG_IO, pool->resident_bytes, false);
    if (pool->ids == NULL || pool->todo == NULL || pool->done == NULL || pool->resident == NULL) {
        nw_code rc = nw_memory_fail(mem, err, (size_t)nw_io_threads_bytes(depth, threads), "I/O threads");
        pool_free(pool);
        return rc;
    }
    int os_errno = start_workers(pool);
    if (os_errno != 0) {
        pool_free(pool);
        return nw_fail(err, NW_E_IO, os_errno, "cannot start an I/O thread");
    }
    *ret_backend = &pool->base;
    return NW_OK;
}

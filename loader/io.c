/* The common layer of the I/O devices: operations over single transfers.
 *
 * A backend reports what one transfer moved. Here an operation is carried through as many transfers as it takes, so
 * that all devices make one promise and the tests of one say something about the others. State lives in `depth` slots
 * that are allocated at open; nothing is allocated afterwards.
 *
 * Where a short transfer goes on: at the aligned-down position, since O_DIRECT takes no other. The alignment is not
 * passed in but read off the operation: whatever divides its offset, length and address is at least what the file
 * demands. If that would not move ahead, it goes on at the exact position, which is right for a buffered file, and for
 * a direct one too unless the file ended there; then the kernel says EINVAL (or 0 bytes), and both mean the end.
 */
#include "io_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define DEPTH_MAX 32768u /* of the kernel's ring */
#define THREADS_DEFAULT 4u
#define BATCH 64u /* results taken from the backend at a time */
#define TRIES_MAX 40u

/* free -> in flight -> free. start <= end: the transfer under way began at `start` bytes into the operation; before it,
 * `end` bytes were there. */
typedef struct {
    nw_io_op op;
    size_t   align; /* divides offset, length and address of the operation */
    size_t   start, end;
    size_t   asked; /* bytes of the transfer under way */
    uint32_t tries;
    bool     busy;
    bool     exact; /* `start` is not a multiple of `align` */
} io_slot;

struct nw_io {
    nw_memory     *mem;
    nw_io_backend *backend;
    uint32_t       depth;
    uint32_t       in_flight;
    io_slot       *slots;
    uint32_t      *idle; /* stack of depth - in_flight slot indices */
};

bool nw_io_is_transient(int os_errno)
{
    return os_errno == EINTR || os_errno == EAGAIN || os_errno == ENOMEM || os_errno == EBUSY;
}

bool nw_io_backoff(uint32_t *tries)
{
    if (*tries >= TRIES_MAX)
        return false;
    uint32_t tried = (*tries)++;
    if (tried >= 8) {
        long            ns = 100000L << nw_min_size(tried - 8, 7);
        struct timespec pause = {.tv_nsec = ns < 10000000L ? ns : 10000000L};
        nanosleep(&pause, NULL); /* cut short by a signal: then it is tried a little earlier */
    }
    return true;
}

nw_code nw_io_make(nw_memory *mem, nw_io_backend *backend, uint32_t depth, nw_io **ret_io, nw_error *err)
{
    NW_CHECK(depth >= 1 && depth <= DEPTH_MAX);
    nw_io *io = nw_memory_alloc(mem, NW_TAG_IO, 1, sizeof *io);
    if (io == NULL) {
        nw_code rc = nw_memory_fail(mem, err, sizeof *io, "I/O device");
        backend->close(backend);
        return rc;
    }
    *io = (nw_io){.mem = mem, .backend = backend, .depth = depth};
    io->slots = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *io->slots);
    io->idle = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *io->idle);
    if (io->slots == NULL || io->idle == NULL) {
        nw_code rc = nw_memory_fail(mem, err, depth * (sizeof *io->slots + sizeof *io->idle), "I/O device");
        nw_io_close(io);
        return rc;
    }
    for (uint32_t i = 0; i < depth; i++)
        io->idle[i] = depth - 1 - i;
    *ret_io = io;
    return NW_OK;
}

static uint32_t thread_count(const nw_io_options *options)
{
    uint32_t wanted = options->threads > 0 ? options->threads : THREADS_DEFAULT;
    return wanted < options->depth ? wanted : options->depth;
}

/* Why io_uring is not to be had, for the one log line: the reader should know whom to ask. */
static void log_refusal(const nw_log *log, int os_errno, uint32_t threads)
{
    const char *why = "the kernel refused";
    char        disabled = '0';
    int         fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &disabled, 1) != 1)
            disabled = '0';
        close(fd);
    }
    if (os_errno == ENOSYS)
        why = "this kernel or sandbox does not have it";
    else if (os_errno == ENOMEM)
        why = "not enough memory or locked memory (ulimit -l)";
    else if ((os_errno == EPERM || os_errno == EACCES) && disabled == '0')
        why = "not permitted here, most likely by a seccomp profile";
    else if (os_errno == EPERM || os_errno == EACCES)
        why = "switched off by the sysctl kernel.io_uring_disabled";
    nw_log_line(log, NW_LOG_INFO, "io_uring is not available: %s (errno %d); reading with %u threads", why, os_errno,
                (unsigned)threads);
}

nw_code nw_io_open(nw_memory *mem, const nw_io_options *options, nw_io **ret_io, nw_error *err)
{
    NW_CHECK(options->depth >= 1 && options->depth <= DEPTH_MAX);
    NW_CHECK(options->choice <= NW_IO_THREADS);
    nw_io_backend *backend = NULL;
    if (options->choice != NW_IO_THREADS) {
        nw_error refused;
        nw_code  rc = nw_io_uring_open(mem, options, &backend, &refused);
        if (rc != NW_OK && (rc != NW_E_IO || options->choice == NW_IO_URING)) {
            if (err != NULL)
                *err = refused;
            return rc;
        }
        if (rc != NW_OK)
            log_refusal(options->log, refused.os_errno, thread_count(options));
    }
    if (backend == NULL) {
        nw_code rc = nw_io_threads_open(mem, options->depth, thread_count(options), &backend, err);
        if (rc != NW_OK)
            return rc;
    }
    return nw_io_make(mem, backend, options->depth, ret_io, err);
}

nw_io *nw_io_close(nw_io *io)
{
    if (io == NULL)
        return NULL;
    nw_io_done ignored[16];
    while (io->in_flight > 0)
        nw_io_reap(io, ignored, 16, true);
    io->backend->close(io->backend);
    nw_memory_free(io->mem, NW_TAG_IO, io->idle, io->depth, sizeof *io->idle);
    nw_memory_free(io->mem, NW_TAG_IO, io->slots, io->depth, sizeof *io->slots);
    nw_memory_free(io->mem, NW_TAG_IO, io, 1, sizeof *io);
    return NULL;
}

void nw_io_register(nw_io *io, const int *fds, size_t fd_count, void *bytes, size_t count)
{
    NW_CHECK(fd_count >= 1 && count >= 1);
    NW_CHECK(io->in_flight == 0);
    if (io->backend->enlist != NULL)
        io->backend->enlist(io->backend, fds, fd_count, bytes, count);
}

/* Hands the rest of an operation, from slot->start on, to the backend. */
static void launch(nw_io *io, uint32_t index, bool first)
{
    io_slot *slot = &io->slots[index];
    NW_CHECK(slot->start <= slot->op.bytes);
    slot->asked = nw_min_size(slot->op.bytes - slot->start, NW_IO_TRANSFER_MAX);
    nw_io_transfer transfer = {
        .kind = slot->op.kind,
        .fd = slot->op.fd,
        .slot = index,
        .first = first,
        .offset = slot->op.offset + slot->start,
        .buf = slot->op.kind == NW_IO_FSYNC ? NULL : (unsigned char *)slot->op.buf + slot->start,
        .bytes = slot->asked,
    };
    io->backend->submit(io->backend, &transfer);
}

/* The largest power of two, up to the largest alignment there is, that divides everything O_DIRECT looks at. */
static size_t op_align(const nw_io_op *op)
{
    uint64_t all = op->offset | op->bytes | (uint64_t)(uintptr_t)op->buf | 65536u;
    return (size_t)(all & (0 - all));
}

bool nw_io_submit(nw_io *io, const nw_io_op *op)
{
    NW_CHECK(op->kind <= NW_IO_FSYNC);
    if (op->kind != NW_IO_FSYNC) {
        NW_CHECK(op->buf != NULL);
        NW_CHECK(op->bytes >= 1 && op->bytes <= SIZE_MAX / 2);
        NW_CHECK(op->offset <= (uint64_t)INT64_MAX - op->bytes);
    }
    if (op->kind == NW_IO_READ)
        NW_CHECK(op->bytes_needed >= 1 && op->bytes_needed <= op->bytes);
    if (io->in_flight == io->depth)
        return false;
    uint32_t index = io->idle[io->depth - io->in_flight - 1];
    io->in_flight++;
    NW_CHECK(index < io->depth && !io->slots[index].busy);
    io->slots[index] = (io_slot){.op = *op, .align = op_align(op), .busy = true};
    if (op->kind == NW_IO_WRITE)
        io->slots[index].op.bytes_needed = op->bytes;
    launch(io, index, true);
    return true;
}

void nw_io_flush(nw_io *io)
{
    if (io->backend->flush != NULL)
        io->backend->flush(io->backend);
}

static bool finish(nw_io *io, uint32_t index, int os_errno, nw_io_done *ret)
{
    *ret = (nw_io_done){.tag = io->slots[index].op.tag, .os_errno = os_errno};
    io->slots[index].busy = false;
    io->in_flight--;
    io->idle[io->depth - io->in_flight - 1] = index;
    return true;
}

/* Takes in what one transfer came to. True: the operation is over and *ret is written. False: it was launched again. */
static bool settle(nw_io *io, const nw_io_result *result, nw_io_done *ret)
{
    NW_CHECK(result->slot < io->depth);
    io_slot *slot = &io->slots[result->slot];
    NW_CHECK(slot->busy);
    bool reading = slot->op.kind == NW_IO_READ;
    if (result->moved < 0) {
        int os_errno = (int)-result->moved;
        if (nw_io_is_transient(os_errno) && !result->broken && nw_io_backoff(&slot->tries)) {
            launch(io, result->slot, false);
            return false;
        }
        if (os_errno == EINVAL && reading && slot->exact)
            os_errno = NW_IO_EOF;
        return finish(io, result->slot, os_errno, ret);
    }
    if (slot->op.kind == NW_IO_FSYNC)
        return finish(io, result->slot, 0, ret);

    NW_CHECK((uint64_t)result->moved <= slot->asked);
    slot->end = slot->start + (size_t)result->moved;
    if (slot->end >= slot->op.bytes_needed)
        return finish(io, result->slot, 0, ret);
    if (result->moved == 0)
        return finish(io, result->slot, reading ? NW_IO_EOF : EIO, ret);
    size_t restart = (size_t)nw_round_down(slot->end, slot->align);
    slot->exact = restart <= slot->start;
    slot->start = slot->exact ? slot->end : restart;
    slot->tries = 0;
    launch(io, result->slot, false);
    return false;
}

size_t nw_io_reap(nw_io *io, nw_io_done *ret, size_t cap, bool wait)
{
    NW_CHECK(cap >= 1);
    nw_io_flush(io);
    size_t count = 0;
    for (;;) {
        nw_io_result results[BATCH];
        size_t       room = nw_min_size(cap - count, BATCH);
        bool         block = wait && count == 0 && io->in_flight > 0;
        size_t       got = io->backend->reap(io->backend, results, room, block);
        NW_CHECK(got <= room);
        bool again = false;
        for (size_t i = 0; i < got; i++) {
            if (settle(io, &results[i], &ret[count]))
                count++;
            else
                again = true;
        }
        if (again)
            nw_io_flush(io);
        bool more = got == room && count < cap;
        if (!more && (count > 0 || !wait || io->in_flight == 0))
            return count;
    }
}

uint32_t nw_io_in_flight(const nw_io *io)
{
    return io->in_flight;
}
uint32_t nw_io_depth(const nw_io *io)
{
    return io->depth;
}
const char *nw_io_name(const nw_io *io)
{
    return io->backend->name;
}

uint64_t nw_io_declared_bytes(const nw_io_options *options)
{
    NW_CHECK(options->depth >= 1 && options->depth <= DEPTH_MAX);
    uint64_t common = sizeof(nw_io) + options->depth * (uint64_t)(sizeof(io_slot) + sizeof(uint32_t));
    uint64_t ring = options->choice != NW_IO_THREADS ? nw_io_uring_bytes(options->depth, options->register_bytes) : 0;
    uint64_t pool = options->choice != NW_IO_URING ? nw_io_threads_bytes(options->depth, thread_count(options)) : 0;
    /* What AUTO will get is not known before it is tried: the larger. The rest of a page, twice, is the heap's
     * overhead. */
    return nw_round_up(common + nw_max_u64(ring, pool) + 8192, 4096);
}

nw_code nw_io_run(nw_io *io, const nw_io_op *op, const char *what, nw_error *err)
{
    NW_CHECK(io->in_flight == 0);
    nw_io_done done = {0};
    bool       queued = nw_io_submit(io, op);
    NW_CHECK(queued);
    size_t count = nw_io_reap(io, &done, 1, true);
    NW_CHECK(count == 1 && done.tag == op->tag);
    if (done.os_errno == 0)
        return NW_OK;

    static const char *const verbs[] = {[NW_IO_READ] = "read", [NW_IO_WRITE] = "write", [NW_IO_FSYNC] = "sync"};
    nw_code                  rc;
    if (done.os_errno == NW_IO_EOF) {
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' ends before byte %llu", what,
                     (unsigned long long)(op->offset + op->bytes_needed));
    } else if (op->kind == NW_IO_FSYNC) {
        rc = nw_fail(err, NW_E_IO, done.os_errno, "cannot sync '%s'", what);
    } else {
        rc = nw_fail(err, NW_E_IO, done.os_errno, "cannot %s %zu bytes at %llu of '%s'", verbs[op->kind], op->bytes,
                     (unsigned long long)op->offset, what);
    }
    if (err != NULL)
        err->offset = op->offset;
    return rc;
}

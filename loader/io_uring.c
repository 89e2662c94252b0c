/* The io_uring backend: one ring, owned by the thread that opens it; one system call hands over a whole batch.
 *
 * Requests are READ, WRITE and FSYNC, never linked (a short read would cancel the rest of a chain), never more in
 * flight than the ring has room for completions, so none can be lost. DEFER_TASKRUN keeps completion work out of the
 * computing thread until it asks; kernels before 6.1 do not know the flag and get a plain ring.
 *
 * Files and memory that are registered make a request cheaper: the kernel has looked up the file and pinned the pages
 * once for all. Each request decides for itself whether it can use them, so that being refused costs nothing else.
 *
 * The kernel takes requests in order and may take only some: `queue` holds those it has not taken. If it refuses for
 * good with nothing of ours in flight, or waiting fails, the device is broken: the ring is torn down and every
 * transfer, present and future, ends with that errno. liburing returns minus an errno and leaves errno alone.
 */
#define _GNU_SOURCE
#include "io_backend.h"

#include <errno.h>
#include <liburing.h>
#include <unistd.h>

#define FLAGS_WANTED (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
/* NODROP: no completion is lost (5.5). RW_CUR_POS came with the plain READ and WRITE requests (5.6). */
#define FEATURES_NEEDED (IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS)
/* Where memory may be registered (5.13); what a fork does to pinned pages has been settled by then. */
#define FEATURES_TO_REGISTER IORING_FEAT_RSRC_TAGS
#define NOP_DATA UINT64_MAX
#define REGISTER_MAX ((size_t)1 << 30) /* of one registered buffer, as the kernel has it */
#define PAGE_ENTRY_BYTES ((size_t)16)  /* of the kernel's table of a registered buffer: a struct bio_vec */
#define FILE_ENTRY_BYTES ((size_t)64)  /* of that of files: a node and the pointer to it */

typedef enum { SLOT_IDLE, SLOT_QUEUED, SLOT_KERNEL } uring_state;

typedef struct {
    nw_io_backend   base;
    nw_memory      *mem;
    struct io_uring ring;
    uint32_t        depth;
    uint32_t        queue_first, queue_count;
    uint32_t        in_kernel;
    uint32_t       *queue;    /* ring of slots that the kernel has not taken yet, oldest first */
    unsigned char  *state;    /* uring_state of each slot */
    int             refused;  /* the errno of the last submission that took nothing */
    int             broken;   /* an errno: the ring is torn down */
    void           *resident; /* an untouched mapping that stands for the ring's pages in the account */
    size_t          resident_bytes;

    const nw_log *log;
    size_t        register_bytes;
    uintptr_t     buffer; /* what is registered, as buffer 0 */
    size_t        buffer_bytes;
    int           files[NW_IO_FILES_MAX]; /* what are registered, in the order of their indices */
    size_t        file_count;
} io_uring_device;

static void ring_break(io_uring_device *u, int os_errno)
{
    NW_CHECK(os_errno > 0);
    io_uring_queue_exit(&u->ring);
    u->broken = os_errno;
}

/* The index of a registered file, or -1. */
static int fixed_file(const io_uring_device *u, int fd)
{
    for (size_t i = 0; i < u->file_count; i++) {
        if (u->files[i] == fd)
            return (int)i;
    }
    return -1;
}

static bool is_in_buffer(const io_uring_device *u, const nw_io_transfer *t)
{
    uintptr_t at = (uintptr_t)t->buf;
    return t->bytes <= u->buffer_bytes && at >= u->buffer && at - u->buffer <= u->buffer_bytes - t->bytes;
}

static void uring_submit(nw_io_backend *backend, const nw_io_transfer *t)
{
    io_uring_device *u = (io_uring_device *)backend;
    NW_CHECK(t->slot < u->depth && u->state[t->slot] == SLOT_IDLE);
    NW_CHECK(u->queue_count < u->depth);
    u->queue[(u->queue_first + u->queue_count) % u->depth] = t->slot;
    u->queue_count++;
    u->state[t->slot] = SLOT_QUEUED;
    if (u->broken != 0)
        return; /* the next reap reports it */
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    NW_CHECK(sqe != NULL); /* the ring has at least `depth` entries */
    int fixed = fixed_file(u, t->fd), file = fixed >= 0 ? fixed : t->fd;
    switch (t->kind) {
    case NW_IO_READ:
        if (is_in_buffer(u, t))
            io_uring_prep_read_fixed(sqe, file, t->buf, (unsigned)t->bytes, t->offset, 0);
        else
            io_uring_prep_read(sqe, file, t->buf, (unsigned)t->bytes, t->offset);
        break;
    case NW_IO_WRITE: io_uring_prep_write(sqe, file, t->buf, (unsigned)t->bytes, t->offset); break;
    case NW_IO_FSYNC: io_uring_prep_fsync(sqe, file, 0); break;
    }
    if (fixed >= 0)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, t->slot);
}

/* Hands the queue over until it is empty or the kernel takes no more. */
static void uring_flush(nw_io_backend *backend)
{
    io_uring_device *u = (io_uring_device *)backend;
    while (u->queue_count > 0 && u->broken == 0) {
        int taken = io_uring_submit(&u->ring);
        NW_CHECK(taken != -EEXIST); /* another thread than the one that opened the ring */
        if (taken <= 0) {
            u->refused = taken < 0 ? -taken : EAGAIN;
            return;
        }
        NW_CHECK((uint32_t)taken <= u->queue_count);
        for (int i = 0; i < taken; i++) {
            u->state[u->queue[u->queue_first]] = SLOT_KERNEL;
            u->queue_first = (u->queue_first + 1) % u->depth;
        }
        u->queue_count -= (uint32_t)taken;
        u->in_kernel += (uint32_t)taken;
    }
}

static size_t take_completions(io_uring_device *u, nw_io_result *ret, size_t cap)
{
    size_t count = 0;
    while (count < cap) {
        struct io_uring_cqe *cqe = NULL;
        if (io_uring_peek_cqe(&u->ring, &cqe) != 0 || cqe == NULL)
            break;
        uint64_t slot = cqe->user_data;
        NW_CHECK(slot < u->depth && u->state[slot] == SLOT_KERNEL);
        NW_CHECK(u->in_kernel > 0);
        ret[count++] = (nw_io_result){.slot = (uint32_t)slot, .moved = cqe->res};
        io_uring_cqe_seen(&u->ring, cqe);
        u->state[slot] = SLOT_IDLE;
        u->in_kernel--;
    }
    return count;
}

static size_t take_broken(io_uring_device *u, nw_io_result *ret, size_t cap)
{
    size_t count = 0;
    for (uint32_t slot = 0; slot < u->depth && count < cap; slot++) {
        if (u->state[slot] == SLOT_IDLE)
            continue;
        if (u->state[slot] == SLOT_KERNEL)
            u->in_kernel--;
        else
            u->queue_count--; /* which of them no longer matters */
        u->state[slot] = SLOT_IDLE;
        ret[count++] = (nw_io_result){.slot = slot, .broken = true, .moved = -(int64_t)u->broken};
    }
    return count;
}

/* Blocks for a completion, or gives a kernel that takes nothing some time. Breaks the ring when neither helps. */
static void wait_some(io_uring_device *u, uint32_t *tries)
{
    if (u->in_kernel > 0) {
        struct io_uring_cqe *cqe = NULL;
        int                  rc = io_uring_wait_cqe(&u->ring, &cqe);
        NW_CHECK(rc != -EEXIST);
        if (rc < 0 && rc != -EINTR && !(nw_io_is_transient(-rc) && nw_io_backoff(tries)))
            ring_break(u, -rc);
        return;
    }
    uring_flush(&u->base);
    if (u->in_kernel == 0 && !(nw_io_is_transient(u->refused) && nw_io_backoff(tries)))
        ring_break(u, u->refused);
}

static size_t uring_reap(nw_io_backend *backend, nw_io_result *ret, size_t cap, bool wait)
{
    io_uring_device *u = (io_uring_device *)backend;
    uint32_t         tries = 0;
    for (;;) {
        size_t count = u->broken != 0 ? take_broken(u, ret, cap) : take_completions(u, ret, cap);
        if (count > 0 || !wait || u->in_kernel + u->queue_count == 0)
            return count;
        wait_some(u, &tries);
    }
}

static void uring_enlist(nw_io_backend *backend, const int *fds, size_t fd_count, void *bytes, size_t count)
{
    io_uring_device *u = (io_uring_device *)backend;
    NW_CHECK(count <= u->register_bytes && u->file_count == 0 && u->buffer_bytes == 0);
    if (u->broken != 0)
        return;
    struct iovec range = {.iov_base = bytes, .iov_len = nw_min_size(count, REGISTER_MAX)};
    int          files_rc = -EOPNOTSUPP, bytes_rc = -EOPNOTSUPP;
    fd_count = nw_min_size(fd_count, NW_IO_FILES_MAX);
    if ((u->ring.features & FEATURES_TO_REGISTER) == FEATURES_TO_REGISTER) {
        files_rc = io_uring_register_files(&u->ring, fds, (unsigned)fd_count);
        bytes_rc = io_uring_register_buffers(&u->ring, &range, 1);
    }
    if (files_rc == 0) {
        for (; u->file_count < fd_count; u->file_count++)
            u->files[u->file_count] = fds[u->file_count];
    }
    if (bytes_rc == 0) {
        u->buffer = (uintptr_t)range.iov_base;
        u->buffer_bytes = range.iov_len;
    }
    if (files_rc != 0 || bytes_rc != 0)
        nw_log_line(u->log, NW_LOG_DEBUG, "io_uring registers no %s (errno %d%s), and works without",
                    bytes_rc != 0 ? "memory" : "files", bytes_rc != 0 ? -bytes_rc : -files_rc,
                    bytes_rc == -ENOMEM ? ": see ulimit -l" : "");
}

static void uring_free(io_uring_device *u)
{
    nw_memory_unmap(u->mem, NW_TAG_IO, u->resident, u->resident_bytes);
    nw_memory_free(u->mem, NW_TAG_IO, u->state, u->depth, sizeof *u->state);
    nw_memory_free(u->mem, NW_TAG_IO, u->queue, u->depth, sizeof *u->queue);
    nw_memory_free(u->mem, NW_TAG_IO, u, 1, sizeof *u);
}

static void uring_close(nw_io_backend *backend)
{
    io_uring_device *u = (io_uring_device *)backend;
    NW_CHECK(u->in_kernel == 0 && u->queue_count == 0);
    if (u->broken == 0) {
        /* A ring's exit is finished later, by a thread of the kernel; the pages and the files are to be free now. */
        if (u->buffer_bytes > 0)
            io_uring_unregister_buffers(&u->ring);
        if (u->file_count > 0)
            io_uring_unregister_files(&u->ring);
        io_uring_queue_exit(&u->ring);
    }
    uring_free(u);
}

/* Some sandboxes allow the setup and refuse the rest: only a request that went all the way round is a proof. */
static int ring_try(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    NW_CHECK(sqe != NULL);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, NOP_DATA);
    uint32_t tries = 0;
    int      rc;
    while ((rc = io_uring_submit(ring)) < 0 && nw_io_is_transient(-rc) && nw_io_backoff(&tries)) {
    }
    if (rc != 1)
        return rc < 0 ? -rc : EIO;
    struct io_uring_cqe *cqe = NULL;
    do {
        rc = io_uring_wait_cqe(ring, &cqe);
    } while (rc == -EINTR);
    if (rc < 0)
        return -rc;
    int res = cqe->user_data == NOP_DATA ? cqe->res : -EIO;
    io_uring_cqe_seen(ring, cqe);
    return res < 0 ? -res : 0;
}

/* 0, or the errno with which the kernel refused; then there is no ring. */
static int ring_open(struct io_uring *ring, uint32_t depth)
{
    struct io_uring_params params = {.flags = FLAGS_WANTED};
    int                    rc = io_uring_queue_init_params(depth, ring, &params);
    if (rc == -EINVAL) {
        params = (struct io_uring_params){0};
        rc = io_uring_queue_init_params(depth, ring, &params);
    }
    if (rc < 0)
        return -rc;
    int os_errno = ENOSYS;
    if ((params.features & FEATURES_NEEDED) == FEATURES_NEEDED && params.sq_entries >= depth &&
        params.cq_entries >= depth)
        os_errno = ring_try(ring);
    if (os_errno != 0)
        io_uring_queue_exit(ring);
    return os_errno;
}

/* What the kernel maps for a ring: a header, the completions, the index of requests; and the requests. */
static size_t ring_bytes(uint32_t depth)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t entries = 1;
    while (entries < depth)
        entries *= 2;
    size_t rings = 1024 + 2 * entries * sizeof(struct io_uring_cqe) + entries * sizeof(unsigned);
    size_t requests = entries * sizeof(struct io_uring_sqe);
    return (size_t)(nw_round_up(rings, page) + nw_round_up(requests, page));
}

/* What the kernel keeps of a registered buffer and files (io_uring/rsrc.c of Linux: struct io_mapped_ubuf; one entry a
 * page, or a huge page where it finds these). While it registers, half as much again; then pins are still untouched. */
static size_t tables_bytes(size_t register_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return register_bytes > 0 ? (register_bytes / page + 4) * PAGE_ENTRY_BYTES + NW_IO_FILES_MAX * FILE_ENTRY_BYTES : 0;
}

uint64_t nw_io_uring_bytes(uint32_t depth, size_t register_bytes)
{
    return sizeof(io_uring_device) + depth * (uint64_t)(sizeof(uint32_t) + 1) + ring_bytes(depth) +
           tables_bytes(register_bytes);
}

nw_code nw_io_uring_open(nw_memory *mem, const nw_io_options *options, nw_io_backend **ret_backend, nw_error *err)
{
    uint32_t         depth = options->depth;
    io_uring_device *u = nw_memory_alloc(mem, NW_TAG_IO, 1, sizeof *u);
    if (u == NULL)
        return nw_memory_fail(mem, err, sizeof *u, "io_uring");
    u->base = (nw_io_backend){.name = "uring",
                              .submit = uring_submit,
                              .flush = uring_flush,
                              .enlist = uring_enlist,
                              .reap = uring_reap,
                              .close = uring_close};
    u->log = options->log;
    u->register_bytes = options->register_bytes;
    u->mem = mem;
    u->depth = depth;
    u->resident_bytes = ring_bytes(depth) + tables_bytes(options->register_bytes);
    u->queue = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *u->queue);
    u->state = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *u->state);
    /* liburing 2.3 cannot be given memory for a ring: the kernel's is charged by a mapping that is never touched. */
    u->resident = nw_memory_map(mem, NW_TAG_IO, u->resident_bytes, false);
    if (u->queue == NULL || u->state == NULL || u->resident == NULL) {
        nw_code rc = nw_memory_fail(mem, err, (size_t)nw_io_uring_bytes(depth, options->register_bytes), "io_uring");
        uring_free(u);
        return rc;
    }
    int os_errno = ring_open(&u->ring, depth);
    if (os_errno != 0) {
        uring_free(u);
        return nw_fail(err, NW_E_IO, os_errno, "io_uring is not available");
    }
    *ret_backend = &u->base;
    return NW_OK;
}

/* One submit/reap interface over three devices: io_uring, a pool of pread threads, and a fake one for tests.
 *
 * Completions are reaped only by whoever owns the nw_io; nothing calls back from submit. The common layer here, not the
 * backends, continues short transfers, retries EINTR, EAGAIN and ENOMEM (bounded), and turns a read at the end of the
 * file into an error, so that every backend keeps the same promise: an operation that completes without error has
 * transferred all that was needed, and a buffer with an error is never used.
 *
 * One thread owns an nw_io: the one that opens it submits and reaps (the kernel holds a ring to that; another thread is
 * a mistake and traps). A session that is stepped on its own thread opens its nw_io there. A buffer belongs to the
 * nw_io from submit until its completion is reaped.
 */
#ifndef NW_LOADER_IO_H
#define NW_LOADER_IO_H

#include "base/log.h"
#include "base/memory.h"

typedef enum { NW_IO_READ, NW_IO_WRITE, NW_IO_FSYNC } nw_io_kind;

typedef enum { NW_IO_AUTO, NW_IO_URING, NW_IO_THREADS } nw_io_choice;

typedef struct {
    nw_io_kind kind;
    int        fd;
    uint64_t   offset; /* bytes from the start of the file; a multiple of the file's alignment for O_DIRECT */
    void      *buf;
    size_t     bytes;    /* as asked of the kernel, at least 1; FSYNC uses neither buf nor bytes */
    size_t bytes_needed; /* of these, how many must arrive: less than `bytes` when an aligned read hangs over the end.
                          * At least 1. READ only: a WRITE needs all */
    uint64_t tag;        /* the caller's, returned with the completion */
} nw_io_op;

/* os_errno   0: done, at least bytes_needed arrived. NW_IO_EOF: the file ended before bytes_needed. Else an errno. */
#define NW_IO_EOF (-1)
typedef struct {
    uint64_t tag;
    int      os_errno;
} nw_io_done;

typedef struct nw_io nw_io;

typedef struct {
    nw_io_choice  choice;         /* AUTO: io_uring, else threads with one log line that says why */
    uint32_t      depth;          /* operations in flight at most; 1 to 32768 */
    uint32_t      threads;        /* of the thread backend; 0: min(depth, 4) */
    size_t        register_bytes; /* most that nw_io_register will be given: what the kernel keeps for it is charged */
    const nw_log *log;            /* borrowed until nw_io_close; may be NULL */
} nw_io_options;

/* Opens a device.
 * Memory  from `mem`, tag NW_TAG_IO; the ring's kernel memory is charged there too.
 * Errors  NW_E_IO when NW_IO_URING is asked for and not to be had; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_io_open(nw_memory *mem, const nw_io_options *options, nw_io **ret_io, nw_error *err);

/* Waits for what is in flight (buffers are the kernel's until then), then frees. Takes NULL; returns NULL. */
nw_io *nw_io_close(nw_io *io);

/* Files that may be registered; of more, the first are. */
#define NW_IO_FILES_MAX 64

/* Says which files and which memory most operations will use, so that a kernel may look them up once and not for each.
 * A hint: it cannot fail, and nothing depends on it. What the kernel refuses (RLIMIT_MEMLOCK, an old one, a sandbox)
 * is used as all else is, with one debug line.
 * fds      [fd_count], at least 1. The kernel may keep the files open, and their numbers may not come to mean others,
 *          until the io is closed.
 * bytes    [count], 1 to register_bytes; mapped until the io is closed. The pages are touched, and locked.
 * Threads  the owner's. Once at most, with nothing in flight. */
void nw_io_register(nw_io *io, const int *fds, size_t fd_count, void *bytes, size_t count);

/* Queues one operation; it may not reach the kernel before nw_io_flush or nw_io_reap.
 * Returns false, with nothing queued, when `depth` operations are in flight. */
bool nw_io_submit(nw_io *io, const nw_io_op *op);

/* Hands what is queued to the kernel, in one system call where the backend can. */
void nw_io_flush(nw_io *io);

/* Flushes, then collects up to `cap` completions, in any order.
 * wait     true: blocks until there is at least one, if anything is in flight. false: takes what is there.
 * Returns  how many were written to `ret`. */
size_t nw_io_reap(nw_io *io, nw_io_done *ret, size_t cap, bool wait);

uint32_t    nw_io_in_flight(const nw_io *io);
uint32_t    nw_io_depth(const nw_io *io);
const char *nw_io_name(const nw_io *io); /* "uring", "threads", "fake" */

/* What an nw_io of these options will take of the budget in resident bytes (ring pages, thread stacks touched), so that
 * a plan can count it without opening one. */
uint64_t nw_io_declared_bytes(const nw_io_options *options);

/* One operation from start to end, for headers and small files. Nothing else may be in flight.
 * what    names the file in messages.
 * Errors  NW_E_IO; NW_E_FORMAT "ends before" when the file is too short. */
NW_MUST_USE nw_code nw_io_run(nw_io *io, const nw_io_op *op, const char *what, nw_error *err);

#endif

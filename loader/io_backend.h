/* What io.c asks of a device. Private to loader/.
 *
 * A backend moves bytes once and reports what the kernel said. It knows no operations: continuing short transfers,
 * retrying and the end of the file are io.c's. A transfer is named by its slot, a number below `depth`; a slot has at
 * most one transfer outstanding, so a backend needs no more than `depth` places and never refuses one.
 */
#ifndef NW_LOADER_IO_BACKEND_H
#define NW_LOADER_IO_BACKEND_H

#include "loader/io.h"

/* A transfer is at most this long: the kernel stops at 2 GiB less a page, and io_uring has 32 bits. A multiple of every
 * alignment. */
#define NW_IO_TRANSFER_MAX ((size_t)1 << 30)

typedef struct {
    nw_io_kind kind;
    int        fd;
    uint32_t   slot;
    bool       first; /* of its operation; false: a retry or the rest of a short one */
    uint64_t   offset;
    void      *buf;
    size_t     bytes; /* at most NW_IO_TRANSFER_MAX */
} nw_io_transfer;

typedef struct {
    uint32_t slot;
    bool     broken; /* the device is gone: do not retry */
    int64_t  moved;  /* bytes, or minus an errno */
} nw_io_result;

/* Each backend embeds this as its first member. */
typedef struct nw_io_backend nw_io_backend;
struct nw_io_backend {
    const char *name;
    void (*submit)(nw_io_backend *backend, const nw_io_transfer *transfer);
    void (*flush)(nw_io_backend *backend); /* NULL: submit needs none */
    /* nw_io_register. NULL: of no use to it */
    void (*enlist)(nw_io_backend *backend, const int *fds, size_t fd_count, void *bytes, size_t count);
    /* At most `cap` results. With `wait` blocks for at least one if any transfer is outstanding. */
    size_t (*reap)(nw_io_backend *backend, nw_io_result *ret, size_t cap, bool wait);
    void (*close)(nw_io_backend *backend); /* nothing is outstanding */
};

/* Errors  NW_E_IO with os_errno when the kernel refuses; NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_io_uring_open(nw_memory *mem, const nw_io_options *options, nw_io_backend **ret_backend,
                                     nw_error *err);
NW_MUST_USE nw_code nw_io_threads_open(nw_memory *mem, uint32_t depth, uint32_t threads, nw_io_backend **ret_backend,
                                       nw_error *err);

/* Makes an nw_io of a backend, which it owns from here on: closed also when this fails. */
NW_MUST_USE nw_code nw_io_make(nw_memory *mem, nw_io_backend *backend, uint32_t depth, nw_io **ret_io, nw_error *err);

/* Resident bytes of each backend, as they are charged and declared. */
uint64_t nw_io_uring_bytes(uint32_t depth, size_t register_bytes);
uint64_t nw_io_threads_bytes(uint32_t depth, uint32_t threads);

/* Waits before trying again what the kernel could not do just now: not at all at first, then up to 10 ms.
 * Returns  false when it has been tried often enough (about 0.3 s in all); `tries` counts from 0 and is advanced. */
bool nw_io_backoff(uint32_t *tries);

/* EINTR, EAGAIN, ENOMEM, EBUSY: the same call may succeed later. */
bool nw_io_is_transient(int os_errno);

#endif

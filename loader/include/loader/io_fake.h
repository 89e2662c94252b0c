/* The device of the tests: real files, but any completion order, split, error and delay, all from one seed.
 *
 * Reads are performed when they complete, not when they are submitted, and a buffer is filled with a poison pattern at
 * submit, so that using one too early shows.
 */
#ifndef NW_LOADER_IO_FAKE_H
#define NW_LOADER_IO_FAKE_H

#include "loader/io.h"

typedef struct {
    uint64_t seed;          /* everything below happens by draws from it */
    uint32_t short_percent; /* of transfers that stop early (at a multiple of 512 bytes at least 512 before the end) */
    uint32_t retry_percent; /* of operations that first fail with EINTR or EAGAIN */
    uint64_t fail_at;       /* the N-th operation fails for good with fail_errno; 0: none. Counted from 1 */
    int      fail_errno;    /* an errno, or NW_IO_EOF */
    uint32_t align;         /* reads whose offset, length or address is no multiple are refused; 0: none */
    uint32_t delay_max;     /* reaps (with wait false) that an operation may be held back */
    uint64_t ops_seen;      /* written by the device */
    bool     fired;         /* written by the device: fail_at was reached */
} nw_io_fake;

/* `fake` is borrowed and must outlive the device. Errors as nw_io_open. */
NW_MUST_USE nw_code nw_io_fake_open(nw_memory *mem, nw_io_fake *fake, uint32_t depth, nw_io **ret_io, nw_error *err);

#endif

/* What packing, unpacking and checking share: the device, the check of the budget, the report of progress, and tiles
 * that are read one ahead. Their memory is a constant whatever the model's size. */
#ifndef NW_RUNTIME_COPYING_H
#define NW_RUNTIME_COPYING_H

#include "hooks.h"
#include "loader/file.h"
#include "narrows.h"

/* Opens a device, or the tests' one where hooks have it. Errors as nw_io_open. */
NW_MUST_USE nw_code nw_device_open(nw_memory *mem, const nw_hooks *hooks, const nw_io_options *options, nw_io **ret_io,
                                   nw_error *err);

/* Deep enough for an nw_stream. */
nw_io_options nw_copying_io(nw_io_choice choice, const nw_log *log);

/* NW_E_BUDGET, with bytes_needed, unless the budget (0: none) has room for the process, the device, a stream and
 * `bytes` more.
 * doing, what   of the message: "packing", the model's path. */
NW_MUST_USE nw_code nw_copying_check_budget(uint64_t budget, uint64_t bytes, const nw_io_options *io, const char *doing,
                                            const char *what, nw_error *err);

/* How far the work is. */
typedef struct {
    bool (*on_progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
    void    *user;
    uint64_t done, total; /* bytes */
    double   reported_seconds;
} nw_progress;

/* Tells the caller now and then, and at the end. NW_E_CANCELLED: it wants no more. */
NW_MUST_USE nw_code nw_progress_report(nw_progress *p, nw_error *err);

/* Two buffers: while what is in one is worked on, the other is read into. Zero-initialise it. */
typedef struct {
    nw_memory     *mem;
    nw_io         *io;
    uint64_t      *read_bytes;
    size_t         room; /* bytes of a buffer */
    unsigned char *buffers;
    size_t         current; /* the one that was waited for last */
    const nw_file *file;    /* of the read in flight */
    const char    *path;
    nw_extent      extent;
    bool           in_flight;
} nw_ahead;

/* room  for the largest aligned read.   io, read_bytes  borrowed; nothing else may be in flight from start to wait.
 * Memory  2 * room from `mem`, tag NW_TAG_IO.   Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_ahead_open(nw_ahead *a, nw_memory *mem, nw_io *io, size_t room, uint64_t *read_bytes,
                                  nw_error *err);
void                nw_ahead_close(nw_ahead *a); /* waits for a read in flight; takes one that was not opened */

/* Starts a read into the buffer that is free. `file` and `path` are borrowed until it was waited for. */
void nw_ahead_start(nw_ahead *a, const nw_file *file, const char *path, nw_extent extent);

/* Waits for it: *ret_bytes is what was asked for, until the next but one read is started.
 * tensor  names it in messages.   Errors  NW_E_IO; NW_E_FORMAT: the file has become shorter. */
NW_MUST_USE nw_code nw_ahead_wait(nw_ahead *a, const char *tensor, const unsigned char **ret_bytes, nw_error *err);

#endif

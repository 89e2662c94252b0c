#include "copying.h"

#include "declared.h"
#include "loader/stream.h"
#include "system.h"

enum { BUFFERS = 2 };

nw_code nw_device_open(nw_memory *mem, const nw_hooks *hooks, const nw_io_options *options, nw_io **ret_io,
                       nw_error *err)
{
    if (hooks != NULL && hooks->io != NULL)
        return nw_io_fake_open(mem, hooks->io, options->depth, ret_io, err);
    return nw_io_open(mem, options, ret_io, err);
}

nw_io_options nw_copying_io(nw_io_choice choice, const nw_log *log)
{
    return (nw_io_options){.choice = choice, .depth = NW_STREAM_DEPTH, .threads = NW_STREAM_DEPTH, .log = log};
}

nw_code nw_copying_check_budget(uint64_t budget, uint64_t bytes, const nw_io_options *io, const char *doing,
                                const char *what, nw_error *err)
{
    uint64_t needed = NW_DECLARED_PROCESS + nw_io_declared_bytes(io) + nw_stream_bytes() + bytes;
    needed += NW_RESERVE(needed);
    if (budget == 0 || budget >= needed)
        return NW_OK;
    char    have[16], need[16];
    nw_code rc = nw_fail(err, NW_E_BUDGET, 0, "budget %s is too small: %s '%s' needs %s",
                         nw_bytes_format(budget, false, have), doing, what, nw_bytes_format(needed, true, need));
    if (err != NULL)
        err->bytes_needed = needed;
    return rc;
}

nw_code nw_progress_report(nw_progress *p, nw_error *err)
{
    double now = nw_system_seconds();
    if (p->on_progress == NULL || (now - p->reported_seconds < 0.05 && p->done < p->total))
        return NW_OK;
    p->reported_seconds = now;
    return p->on_progress(p->user, p->done, p->total) ? NW_OK : nw_fail(err, NW_E_CANCELLED, 0, "stopped");
}

/* ---- reading ahead ---- */

nw_code nw_ahead_open(nw_ahead *a, nw_memory *mem, nw_io *io, size_t room, uint64_t *read_bytes, nw_error *err)
{
    *a = (nw_ahead){.mem = mem, .io = io, .read_bytes = read_bytes, .room = room};
    a->buffers = nw_memory_map(mem, NW_TAG_IO, BUFFERS * room, false);
    return a->buffers != NULL ? NW_OK : nw_memory_fail(mem, err, BUFFERS * room, "reading ahead");
}

static int reap(nw_ahead *a)
{
    nw_io_done done = {0};
    while (nw_io_reap(a->io, &done, 1, true) == 0) {
    }
    a->in_flight = false;
    return done.os_errno;
}

void nw_ahead_close(nw_ahead *a)
{
    if (a->in_flight)
        (void)reap(a);
    nw_memory_unmap(a->mem, NW_TAG_IO, a->buffers, BUFFERS * a->room);
    a->buffers = NULL;
}

void nw_ahead_start(nw_ahead *a, const nw_file *file, const char *path, nw_extent extent)
{
    NW_CHECK(!a->in_flight && extent.bytes <= a->room);
    a->file = file;
    a->path = path;
    a->extent = extent;
    nw_io_op op = {.kind = NW_IO_READ,
                   .fd = file->fd,
                   .offset = extent.offset,
                   .buf = a->buffers + (1 - a->current) * a->room,
                   .bytes = extent.bytes,
                   .bytes_needed = extent.bytes_needed};
    bool     queued = nw_io_submit(a->io, &op);
    NW_CHECK(queued);
    nw_io_flush(a->io);
    *a->read_bytes += extent.bytes_counted;
    a->in_flight = true;
}

nw_code nw_ahead_wait(nw_ahead *a, const char *tensor, const unsigned char **ret_bytes, nw_error *err)
{
    NW_CHECK(a->in_flight);
    int os_errno = reap(a);
    a->current = 1 - a->current;
    nw_file_drop(a->file, a->extent.offset, a->extent.bytes);
    if (os_errno == NW_IO_EOF)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' ends within tensor %s: it was cut short", a->path, tensor);
    if (os_errno != 0)
        return nw_fail(err, NW_E_IO, os_errno, "reading '%s' at %llu", a->path, (unsigned long long)a->extent.offset);
    *ret_bytes = a->buffers + a->current * a->room + a->extent.skip;
    return NW_OK;
}

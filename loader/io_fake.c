/* The device of the tests. Everything it does is drawn from one seed, so that a failure can be run again.
 *
 * Transfers wait in a list and are performed when they complete, in drawn order. A transfer that is to be short is
 * performed in full and what lies behind the cut is poisoned again, so the file's own alignment never matters and bytes
 * that were not announced cannot be used.
 */
#include "loader/io_fake.h"

#include "io_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POISON 0xA5
#define CUT_BYTES ((size_t)512)

typedef struct {
    nw_io_transfer transfer;
    uint32_t       held; /* reaps that it is still held back */
} fake_pending;

typedef struct {
    nw_io_backend base;
    nw_memory    *mem;
    nw_io_fake   *fake;
    uint64_t      state; /* of the generator */
    uint32_t      depth, pending_count;
    fake_pending *pending;
    bool         *doomed; /* by slot: the operation that fails for good */
} fake_device;

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(fake_device *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t draw_below(fake_device *d, uint64_t n)
{
    return draw(d) % n;
}
static bool draw_percent(fake_device *d, uint32_t percent)
{
    return draw_below(d, 100) < percent;
}

static void fake_submit(nw_io_backend *backend, const nw_io_transfer *t)
{
    fake_device *d = (fake_device *)backend;
    NW_CHECK(t->slot < d->depth && d->pending_count < d->depth);
    if (t->first) {
        d->fake->ops_seen++;
        d->doomed[t->slot] = d->fake->ops_seen == d->fake->fail_at;
    }
    if (t->kind == NW_IO_READ)
        memset(t->buf, POISON, t->bytes);
    uint32_t held = (uint32_t)draw_below(d, (uint64_t)d->fake->delay_max + 1);
    d->pending[d->pending_count++] = (fake_pending){.transfer = *t, .held = held};
}

/* The rest of a short read may start where O_DIRECT does not read; the page cache does. */
static ssize_t read_anywhere(const nw_io_transfer *t)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", t->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t moved = pread(fd, t->buf, t->bytes, (off_t)t->offset);
    int     os_errno = errno;
    close(fd);
    errno = os_errno;
    return moved;
}

static int64_t transfer_run(const nw_io_transfer *t, size_t cut)
{
    ssize_t moved = 0;
    switch (t->kind) {
    case NW_IO_READ:
        moved = pread(t->fd, t->buf, t->bytes, (off_t)t->offset);
        if (moved < 0 && errno == EINVAL && !t->first)
            moved = read_anywhere(t);
        if (moved > 0 && (size_t)moved > cut) {
            memset((unsigned char *)t->buf + cut, POISON, t->bytes - cut);
            moved = (ssize_t)cut;
        }
        break;
    case NW_IO_WRITE: moved = pwrite(t->fd, t->buf, cut, (off_t)t->offset); break;
    case NW_IO_FSYNC: moved = fsync(t->fd); break;
    }
    return moved < 0 ? -(int64_t)errno : moved;
}

static int64_t complete(fake_device *d, const nw_io_transfer *t)
{
    if (d->doomed[t->slot]) {
        d->fake->fired = true;
        if (d->fake->fail_errno == NW_IO_EOF)
            return t->kind == NW_IO_READ ? 0 : -(int64_t)EIO;
        return -(int64_t)d->fake->fail_errno;
    }
    if (t->first && draw_percent(d, d->fake->retry_percent))
        return draw_percent(d, 50) ? -(int64_t)EINTR : -(int64_t)EAGAIN;
    if (t->kind == NW_IO_READ && t->first && d->fake->align > 0 &&
        ((t->offset | (uintptr_t)t->buf | t->bytes) & (d->fake->align - 1)) != 0)
        return -(int64_t)EINVAL;
    size_t cut = t->bytes;
    if (t->kind != NW_IO_FSYNC && t->bytes >= 2 * CUT_BYTES && draw_percent(d, d->fake->short_percent))
        cut = CUT_BYTES * (size_t)(1 + draw_below(d, t->bytes / CUT_BYTES - 1));
    return transfer_run(t, cut);
}

/* The place of a pending transfer, drawn from those that are not held back; pending_count if there is none. */
static uint32_t pick(fake_device *d)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; i < d->pending_count; i++)
        ready += d->pending[i].held == 0;
    if (ready == 0)
        return d->pending_count;
    uint64_t nth = draw_below(d, ready);
    for (uint32_t i = 0;; i++) {
        if (d->pending[i].held == 0 && nth-- == 0)
            return i;
    }
}

static size_t fake_reap(nw_io_backend *backend, nw_io_result *ret, size_t cap, bool wait)
{
    fake_device *d = (fake_device *)backend;
    size_t       count = 0;
    while (count < cap && d->pending_count > 0) {
        uint32_t at = pick(d);
        if (at == d->pending_count) {
            if (!wait || count > 0)
                break;
            at = (uint32_t)draw_below(d, d->pending_count); /* whoever waits gets one, held back or not */
        }
        nw_io_transfer transfer = d->pending[at].transfer;
        d->pending[at] = d->pending[--d->pending_count];
        ret[count++] = (nw_io_result){.slot = transfer.slot, .moved = complete(d, &transfer)};
        if (wait && draw_percent(d, 50))
            break;
    }
    for (uint32_t i = 0; i < d->pending_count && !wait; i++)
        d->pending[i].held -= d->pending[i].held > 0;
    return count;
}

static void fake_close(nw_io_backend *backend)
{
    fake_device *d = (fake_device *)backend;
    NW_CHECK(d->pending_count == 0);
    nw_memory_free(d->mem, NW_TAG_IO, d->doomed, d->depth, sizeof *d->doomed);
    nw_memory_free(d->mem, NW_TAG_IO, d->pending, d->depth, sizeof *d->pending);
    nw_memory_free(d->mem, NW_TAG_IO, d, 1, sizeof *d);
}

nw_code nw_io_fake_open(nw_memory *mem, nw_io_fake *fake, uint32_t depth, nw_io **ret_io, nw_error *err)
{
    NW_CHECK(depth >= 1);
    NW_CHECK((fake->align & (fake->align - 1)) == 0);
    NW_CHECK(fake->short_percent <= 100 && fake->retry_percent <= 100);
    NW_CHECK(fake->fail_at == 0 || fake->fail_errno > 0 || fake->fail_errno == NW_IO_EOF);
    fake_device *d = nw_memory_alloc(mem, NW_TAG_IO, 1, sizeof *d);
    if (d == NULL)
        return nw_memory_fail(mem, err, sizeof *d, "fake I/O");
    *d = (fake_device){
        .base = {.name = "fake", .submit = fake_submit, .reap = fake_reap, .close = fake_close},
        .mem = mem,
        .fake = fake,
        .state = fake->seed,
        .depth = depth,
    };
    d->pending = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *d->pending);
    d->doomed = nw_memory_alloc(mem, NW_TAG_IO, depth, sizeof *d->doomed);
    if (d->pending == NULL || d->doomed == NULL) {
        nw_code rc = nw_memory_fail(mem, err, depth * (sizeof *d->pending + sizeof *d->doomed), "fake I/O");
        fake_close(&d->base);
        return rc;
    }
    return nw_io_make(mem, &d->base, depth, ret_io, err);
}

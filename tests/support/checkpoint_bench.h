/* One device and one account for tests of the checkpoint reader. */
#ifndef NW_TEST_CHECKPOINT_BENCH_H
#define NW_TEST_CHECKPOINT_BENCH_H

#include "loader/checkpoint.h"
#include "loader/io_fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The device has an account of its own, so that the checkpoint's can be checked to the byte. */
typedef struct {
    nw_memory  mem, io_mem;
    nw_io_fake fake;
    nw_io     *io;
    uint64_t   read_bytes;
} bench;

static inline void bench_open(bench *b, uint64_t memory_max, nw_memory_fault *fault)
{
    *b = (bench){.fake = {.seed = 12345, .short_percent = 20, .retry_percent = 10}};
    nw_memory_init(&b->io_mem, UINT64_MAX, NULL);
    nw_memory_init(&b->mem, memory_max, fault);
    nw_error err = {0};
    assert_int_equal(nw_io_fake_open(&b->io_mem, &b->fake, 4, &b->io, &err), NW_OK);
}

/* What was opened is closed: not a byte may be left. */
static inline void bench_close(bench *b)
{
    b->io = nw_io_close(b->io);
    assert_int_equal(b->mem.live, 0);
}

static inline nw_code bench_checkpoint(bench *b, const char *path, nw_checkpoint **ret, nw_error *err)
{
    *ret = NULL;
    *err = (nw_error){0};
    return nw_checkpoint_open(&b->mem, b->io, path, NULL, &b->read_bytes, ret, err);
}

/* Opens both; what cannot be opened fails the test. */
static inline nw_checkpoint *bench_opened(bench *b, uint64_t memory_max, const char *path)
{
    nw_checkpoint *c;
    nw_error       err;
    bench_open(b, memory_max, NULL);
    if (bench_checkpoint(b, path, &c, &err) != NW_OK)
        fail_msg("%s", err.msg);
    return c;
}

#endif

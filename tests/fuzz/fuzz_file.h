/* An input as a file: in memory alone, so that a crash leaves nothing behind, and read by the tests' device.
 * To be included first (memfd_create). */
#ifndef NW_FUZZ_FUZZ_FILE_H
#define NW_FUZZ_FUZZ_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "fuzz.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    int  fd;
    char path[64]; /* opens the same file anew */
} fuzz_file;

/* An empty file. Does not return on failure. */
static inline fuzz_file fuzz_file_make(void)
{
    fuzz_file f = {.fd = memfd_create("input", MFD_CLOEXEC)};
    NW_CHECK(f.fd >= 0);
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    return f;
}

/* Makes these bytes its contents. */
static inline void fuzz_file_set(const fuzz_file *f, const void *bytes, size_t count)
{
    NW_CHECK(ftruncate(f->fd, (off_t)count) == 0);
    NW_CHECK(count == 0 || pwrite(f->fd, bytes, count, 0) == (ssize_t)count);
}

/* The device: opened once for all inputs, with an account of its own. Some transfers are short, some come again. */
static inline nw_io *fuzz_io(void)
{
    static nw_memory  mem;
    static nw_io_fake fake = {.seed = 1, .short_percent = 10, .retry_percent = 10};
    static nw_io     *io;
    if (io == NULL) {
        nw_error err = {0};
        nw_memory_init(&mem, UINT64_MAX, NULL);
        nw_code rc = nw_io_fake_open(&mem, &fake, 1, &io, &err);
        NW_CHECK(rc == NW_OK);
    }
    return io;
}

#endif

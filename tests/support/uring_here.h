/* Whether this machine gives out io_uring; if not, says why on the test's output. */
#ifndef NW_TEST_URING_HERE_H
#define NW_TEST_URING_HERE_H

#include "loader/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static inline bool uring_here(nw_memory *mem)
{
    nw_error      err = {0};
    nw_io        *io = NULL;
    nw_io_options options = {.choice = NW_IO_URING, .depth = 4};
    bool          here = nw_io_open(mem, &options, &io, &err) == NW_OK;
    if (!here)
        print_message("io_uring is refused here (%s): its tests are skipped\n", err.msg);
    nw_io_close(io);
    return here;
}

#endif

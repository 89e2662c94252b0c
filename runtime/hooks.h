/* Fault points of the project's own tests. */
#ifndef NW_RUNTIME_HOOKS_H
#define NW_RUNTIME_HOOKS_H

#include "base/memory.h"
#include "loader/io_fake.h"

struct nw_hooks {
    nw_memory_fault *memory;        /* NULL: allocations do not fail on purpose */
    nw_io_fake      *io;            /* NULL: the real device */
    size_t           kv_tile_bytes; /* most bytes of a streamed tile of K and V; 0: NW_KV_TILE_BYTES */
    double           disk_rate;     /* what sessions measure, bytes a second; 0: what they do */
    bool             measure_all;   /* they measure it, with a probe, however little they read */
};

#endif

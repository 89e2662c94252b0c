/* The first touch of a pin's memory. The kernel clears a page when it is first written to, and a virtual machine's host
 * may have to find it first (measured in one: 0.4 GB/s a thread, less than the disk gives). The workers of one tile
 * would wait for the same huge page; so all workers take pages of their own, ahead of the pins' contents: while the
 * session waits for its disk, and between the tiles that fill pins. Changes nothing that is in the memory. */
#ifndef NW_RUNTIME_FIRST_TOUCH_H
#define NW_RUNTIME_FIRST_TOUCH_H

#include "team.h"
#include "trace.h"

typedef struct {
    unsigned char *next, *end; /* what has not been touched yet */
} nw_first_touch;

/* Touches the next huge page for each worker, if there is one left. The trace counts it as restoring: it is a part of
 * filling a pin. */
void nw_first_touch_some(nw_first_touch *t, nw_workers *workers, nw_trace *trace);

/* The same, until all before `end` is touched. */
void nw_first_touch_until(nw_first_touch *t, const unsigned char *end, nw_workers *workers, nw_trace *trace);

#endif

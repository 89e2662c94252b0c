/* Carving one mapping into parts. Measuring is carving with no base, so the two cannot drift apart.
 *
 *   nw_arena measure = nw_arena_measure();   layout(&x, &measure);   needed = measure.used
 *   nw_arena place   = nw_arena_over(bytes, needed);                 layout(&x, &place);
 */
#ifndef NW_BASE_ARENA_H
#define NW_BASE_ARENA_H

#include "base/check.h"

/* The largest alignment that a part may ask for; mappings are aligned to it. Covers pages of 64 KiB. */
#define NW_ARENA_ALIGN_MAX ((size_t)65536)

typedef struct {
    unsigned char *base; /* NULL: measuring */
    size_t         used; /* bytes carved so far, padding included */
    size_t         cap;
    bool           failed; /* something did not fit; sticky */
} nw_arena;

static inline nw_arena nw_arena_measure(void) { return (nw_arena){.cap = SIZE_MAX}; }
static inline nw_arena nw_arena_over(void *base, size_t cap)
{
    return (nw_arena){.base = (unsigned char *)base, .cap = cap};
}

/* Carves count * size bytes at a multiple of `align` (a power of two). Nothing takes nothing, not even alignment.
 *
 * Returns  the place, not initialised; NULL when measuring, and NULL with `failed` set when it does not fit.
 * Memory   belongs to the mapping; there is nothing to free. Rewind by restoring `used`.
 */
void *nw_carve(nw_arena *a, size_t count, size_t size, size_t align);

#endif

#include "base/arena.h"

void *nw_carve(nw_arena *a, size_t count, size_t size, size_t align)
{
    NW_CHECK(size > 0);
    NW_CHECK(align > 0 && (align & (align - 1)) == 0);
    NW_CHECK(align <= NW_ARENA_ALIGN_MAX);
    NW_CHECK(((uintptr_t)a->base & (align - 1)) == 0);
    size_t pad = count > 0 ? (0 - a->used) & (align - 1) : 0;
    size_t room = a->cap - a->used;
    if (a->failed || pad > room || count > (room - pad) / size) { /* overflow and fit in one test */
        a->failed = true;
        return NULL;
    }
    size_t at = a->used + pad;
    a->used = at + count * size;
    return a->base != NULL ? a->base + at : NULL;
}

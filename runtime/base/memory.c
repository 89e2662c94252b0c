/* The account of our own memory. Only this file calls the allocator: what is not counted here cannot be held to a
 * budget. */
#define _DEFAULT_SOURCE
#include "base/memory.h"

#include "base/arena.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void nw_memory_init(nw_memory *m, uint64_t limit, nw_memory_fault *fault)
{
    *m = (nw_memory){.limit = limit, .fault = fault};
}

/* True if the allocation may go ahead; counts it. Remembers a refusal, because who reports it may have freed something
 * since, or know the size only roughly. */
static bool charge(nw_memory *m, nw_tag tag, uint64_t bytes)
{
    NW_CHECK(!m->sealed);
    NW_CHECK(tag < NW_TAG_COUNT);
    if (m->fault != NULL) {
        m->fault->seen++;
        if (m->fault->seen == m->fault->fail_at) {
            m->fault->fired = true;
            m->over_bytes = 0;
            return false;
        }
    }
    if (bytes > m->limit || m->live > m->limit - bytes) {
        m->over_bytes = bytes;
        m->over_live = m->live;
        return false;
    }
    m->live += bytes;
    m->peak = nw_max_u64(m->peak, m->live);
    m->tag_live[tag] += bytes;
    m->tag_peak[tag] = nw_max_u64(m->tag_peak[tag], m->tag_live[tag]);
    return true;
}

static void discharge(nw_memory *m, nw_tag tag, uint64_t bytes)
{
    NW_CHECK(tag < NW_TAG_COUNT);
    NW_CHECK(m->live >= bytes);
    NW_CHECK(m->tag_live[tag] >= bytes);
    m->live -= bytes;
    m->tag_live[tag] -= bytes;
}

/* The system refused what was charged. */
static void undo(nw_memory *m, nw_tag tag, uint64_t bytes)
{
    discharge(m, tag, bytes);
    m->over_bytes = 0;
}

void *nw_memory_alloc(nw_memory *m, nw_tag tag, size_t count, size_t size)
{
    uint64_t bytes;
    if (!nw_mul_u64(count, size, &bytes)) {
        m->over_bytes = 0;
        return NULL;
    }
    if (!charge(m, tag, bytes))
        return NULL;
    void *p = calloc(1, bytes > 0 ? (size_t)bytes : 1);
    if (p == NULL)
        undo(m, tag, bytes);
    return p;
}

void nw_memory_free(nw_memory *m, nw_tag tag, void *p, size_t count, size_t size)
{
    if (p == NULL)
        return;
    free(p);
    discharge(m, tag, (uint64_t)count * size);
}

void *nw_memory_map(nw_memory *m, nw_tag tag, size_t bytes, bool huge)
{
    NW_CHECK(bytes > 0);
    if (bytes > SIZE_MAX / 2) {
        m->over_bytes = 0;
        return NULL;
    }
    if (!charge(m, tag, bytes))
        return NULL;
    /* mmap aligns to a page, a part may want more (NW_ARENA_ALIGN_MAX), a huge page wants its own size. */
    size_t         align = huge ? (size_t)2 << 20 : NW_ARENA_ALIGN_MAX;
    size_t         whole = (size_t)nw_round_up(bytes, NW_ARENA_ALIGN_MAX); /* what nw_memory_unmap takes back */
    size_t         span = whole + align;
    unsigned char *raw = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        undo(m, tag, bytes);
        return NULL;
    }
    size_t head = (0 - (uintptr_t)raw) & (align - 1);
    size_t page = 4096; /* trimming at less than a page fails and leaves address space behind, which costs nothing */
    if (head >= page)
        munmap(raw, head);
    size_t tail = head + whole;
    if (tail < span)
        munmap(raw + tail, span - tail);
    if (huge)
        madvise(raw + head, bytes, MADV_HUGEPAGE);
    return raw + head;
}

void nw_memory_populate(void *at, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)at % page) % page;
    if (bytes < skip + page)
        return;
#ifdef MADV_POPULATE_WRITE
    (void)madvise((unsigned char *)at + skip, (bytes - skip) / page * page, MADV_POPULATE_WRITE);
#endif
}

void nw_memory_unmap(nw_memory *m, nw_tag tag, void *p, size_t bytes)
{
    if (p == NULL)
        return;
    munmap(p, (size_t)nw_round_up(bytes, NW_ARENA_ALIGN_MAX));
    discharge(m, tag, bytes);
}

nw_code nw_memory_fail(const nw_memory *m, nw_error *err, size_t bytes, const char *what)
{
    if (m->over_bytes > 0) {
        return nw_fail(err, NW_E_BUDGET, 0, "%s: %llu bytes more would be over the limit of %llu (%llu in use)", what,
                       (unsigned long long)m->over_bytes, (unsigned long long)m->limit,
                       (unsigned long long)m->over_live);
    }
    return nw_fail(err, NW_E_MEMORY, 0, "%s: cannot allocate %zu bytes", what, bytes);
}

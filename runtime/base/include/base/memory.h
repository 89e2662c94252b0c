/* Accounted memory: every byte of ours is taken from one nw_memory, by tag, against one limit.
 *
 * Small long-lived things come from the heap, the big arena from a mapping; both are counted here. After
 * nw_memory_seal() our own code may not allocate any more (a trap: it would be our mistake). Freeing passes the size,
 * so that the account is exact. Not thread-safe: one nw_memory belongs to one model or session and its calling thread.
 */
#ifndef NW_BASE_MEMORY_H
#define NW_BASE_MEMORY_H

#include "base/check.h"
#include "base/error.h"

typedef enum {
    NW_TAG_INDEX,     /* tensor and tile tables, parser state */
    NW_TAG_TOKENIZER, /* piece table, tokenizer files while they are read */
    NW_TAG_IO,        /* I/O backends, small read buffers */
    NW_TAG_SESSION,   /* session objects, team, resident vectors */
    NW_TAG_ARENA,     /* the session's arena: window, pins, K and V, activations, scratch */
    NW_TAG_COUNT
} nw_tag;

/* Fails the N-th allocation, for tests that walk over every one. */
typedef struct {
    uint64_t fail_at; /* 1: the first allocation from now on; 0: none */
    uint64_t seen;    /* allocations since the start */
    bool     fired;
} nw_memory_fault;

typedef struct nw_memory {
    uint64_t         limit; /* bytes; UINT64_MAX: none */
    uint64_t         live, peak;
    uint64_t         tag_live[NW_TAG_COUNT], tag_peak[NW_TAG_COUNT];
    uint64_t         over_bytes, over_live; /* the last refusal: bytes asked for over the limit, and live then; 0: the
                                             * system refused */
    bool             sealed;
    nw_memory_fault *fault; /* NULL outside tests; borrowed */
} nw_memory;

/* An account with nothing in it. `fault` is borrowed and may be NULL. */
void nw_memory_init(nw_memory *m, uint64_t limit, nw_memory_fault *fault);

/* count * size zeroed bytes, aligned for any type; NULL when the limit or the system refuses (or the product
 * overflows). A count or size of 0 gives a valid pointer that must be freed alike. */
void *nw_memory_alloc(nw_memory *m, nw_tag tag, size_t count, size_t size);

/* Gives back what nw_memory_alloc gave; NULL is fine. */
void nw_memory_free(nw_memory *m, nw_tag tag, void *p, size_t count, size_t size);

/* A zeroed mapping at a multiple of NW_ARENA_ALIGN_MAX, not touched; huge pages are asked for when `huge`.
 * NULL when the limit or the system refuses. */
void *nw_memory_map(nw_memory *m, nw_tag tag, size_t bytes, bool huge);
/* Gives it back; NULL is fine. */
void  nw_memory_unmap(nw_memory *m, nw_tag tag, void *p, size_t bytes);

/* Has the system find memory for the whole pages in [at, at + bytes) of a mapping now, not at their first use. What is
 * in them stays. Where the kernel cannot (before Linux 5.14), nothing happens. */
void nw_memory_populate(void *at, size_t bytes);

/* The whole of an nw_error for the last refused allocation: NW_E_MEMORY, or NW_E_BUDGET when the limit refused.
 * bytes   about what was asked for, said when the system refused; the account knows it otherwise. */
nw_code nw_memory_fail(const nw_memory *m, nw_error *err, size_t bytes, const char *what);

static inline void nw_memory_seal(nw_memory *m) { m->sealed = true; }
static inline void nw_memory_unseal(nw_memory *m) { m->sealed = false; }

#endif

/* The kernels that this CPU runs, and buffers for them that end at a page that may not be touched: a load or a store
 * past their end is a crash, also where masked vector instructions hide from the sanitizers, and what lies before and
 * between outputs is checked byte for byte. Comes before every other header; a program may define REGION_BYTES. */
#ifndef NW_TEST_KERNEL_BENCH_H
#define NW_TEST_KERNEL_BENCH_H

#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "draws.h"
#include "model/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef REGION_BYTES
#define REGION_BYTES ((size_t)1 << 17)
#endif
#define GUARD 0xa5

static const nw_kernels *portable;
static const nw_kernels *variants[8];
static size_t            variant_count;

/* Finds the portable kernels, and as variants all that this CPU runs, these among them or not; false: there are none.
 */
static inline bool find_variants(bool portable_too)
{
    portable = nw_kernels_named("portable");
    if (portable == NULL) {
        printf("the portable kernels are missing\n");
        return false;
    }
    for (const char *const *name = nw_kernels_names(); *name != NULL; name++) {
        const nw_kernels *kernels = nw_kernels_named(*name);
        printf("variant %s: %s\n", *name, kernels != NULL ? "tested" : "not tested, this CPU does not run it");
        if (kernels != NULL && (portable_too || kernels != portable))
            variants[variant_count++] = kernels;
    }
    return true;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* A region whose last byte is followed by a forbidden page; everything in it is GUARD until written. */
typedef struct {
    unsigned char *bytes;
} region;

static inline region region_new(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void  *p = mmap(NULL, REGION_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect((unsigned char *)p + REGION_BYTES, page, PROT_NONE), 0);
    return (region){p};
}

static inline region region_free(region r)
{
    assert_int_equal(munmap(r.bytes, REGION_BYTES + (size_t)sysconf(_SC_PAGESIZE)), 0);
    return (region){NULL};
}

/* The last `bytes` bytes of the region; everything is GUARD again. */
static inline void *region_end(region r, size_t bytes)
{
    assert_true(bytes <= REGION_BYTES);
    memset(r.bytes, GUARD, REGION_BYTES);
    return r.bytes + REGION_BYTES - bytes;
}

/* Elements from the first of `count` rows to the end of the last, of which `last` are used. */
static inline size_t spread(size_t count, size_t stride, size_t last)
{
    return (count - 1) * stride + last;
}

/* Of a region that `y`, [count, used] with `stride` between its rows, ends, nothing but its elements has changed. */
static inline void assert_guarded(region r, const float *y, size_t count, size_t stride, size_t used)
{
    size_t before = (size_t)((const unsigned char *)y - r.bytes);
    assert_true(before == 0 || (r.bytes[0] == GUARD && memcmp(r.bytes, r.bytes + 1, before - 1) == 0));
    for (size_t c = 0; c + 1 < count; c++) {
        for (size_t i = used; i < stride; i++)
            assert_int_equal(bits_of(y[c * stride + i]), 0xa5a5a5a5u);
    }
}

/* The same number: equal bits, or both NaN (whose sign and payload nobody promises). */
static inline void assert_same(const nw_kernels *kernels, const char *what, float got, float expected)
{
    if (bits_of(got) == bits_of(expected) || (isnan(got) && isnan(expected)))
        return;
    fail_msg("%s: %s: got %a, expected %a", kernels->name, what, (double)got, (double)expected);
}

#endif

/* Traps for our own mistakes. Facts from outside (files, arguments, the kernel) are errors (error.h), never traps.
 *
 * NW_CHECK stays on in release builds: slot transitions, bounds of every read, sums of the budget.
 * NW_ASSERT is for inner loops: on with NW_DEBUG, otherwise only type-checked.
 */
#ifndef NW_BASE_CHECK_H
#define NW_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void nw_trap(const char *condition, const char *file, int line);

#define NW_CHECK(c) ((c) ? (void)0 : nw_trap(#c, __FILE__, __LINE__))
#ifdef NW_DEBUG
#define NW_ASSERT(c) NW_CHECK(c)
#else
#define NW_ASSERT(c) ((void)sizeof(!(c)))
#endif

/* Checked arithmetic for numbers that come from files. Each returns false and leaves *ret alone on overflow. */
static inline bool nw_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

static inline bool nw_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

/* Rounds to multiples of `unit`, which must be a power of two; the caller knows that the result fits. */
static inline uint64_t nw_round_up(uint64_t x, uint64_t unit) { return (x + unit - 1) & ~(unit - 1); }
static inline uint64_t nw_round_down(uint64_t x, uint64_t unit) { return x & ~(unit - 1); }

static inline size_t nw_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t nw_max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline uint64_t nw_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t nw_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif

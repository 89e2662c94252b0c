/* What kernels.inc.h is written over: 16 f32 lanes, one header per instruction set (lanes_<name>.h).
 *
 * Each of them defines, all static inline, all with the same result bit for bit on every instruction set:
 *
 *   v16, v16i                      16 floats; 16 unsigned 32-bit integers that wrap
 *   v16_set(a)                     every lane a
 *   v16_load(p), v16_store(p, a)   16 floats at any address
 *   v16_load_part(p, n, fill)      lanes 0..n-1 from p, the others from fill; reads n floats only. n 0..16
 *   v16_store_part(p, a, n)        lanes 0..n-1; writes n floats only. n 0..16
 *   v16_load_bf16, v16_load_f16    (p) 16 stored weights at any address, as their exact f32 values
 *   v16_part_bf16, v16_part_f16    (p, n) the first n of them, the others zero; reads n elements only. n 0..16
 *   v16_add, _sub, _mul, _div      correctly rounded
 *   v16_fma(a, b, c)               a * b + c, rounded once
 *   v16_max(a, b), v16_min(a, b)   a > b ? a : b and a < b ? a : b: b if either is NaN, or both are zeros
 *   v16_abs(a)                     the sign bit cleared
 *   v16_select_less(x, y, a, b)    x < y ? a : b
 *   v16_equal(a, b)                bit l set where a == b in lane l
 *   v16_bits, v16_of_bits          the same bits as v16i, as v16
 *   v16i_set, _add, _sub           modulo 2^32
 *   v16i_halve(a)                  signed shift right by one
 *   v16i_exponent(a)               shift left by 23
 *   v16_sum4(out, a, b, c, d)      the sum of the lanes of each, by the tree below, to out[0..3]
 *
 * The tree: lane l += lane l+8 (l < 8), then l += l+4 (l < 4), then l += l+2 (l < 2), then lane 0 += lane 1. Halves are
 * added to halves so that a vector unit can fold several accumulators into each other and share every level.
 *
 * NaNs: a NaN comes out where the portable header gives a NaN; its sign and payload are not promised.
 * Rounding is to nearest, and subnormals are kept (no flush to zero): the state every thread starts with.
 *
 * Each header also fixes its register blocking, which changes no result:
 *
 *   TILE_ROWS_ONE, TILE_ROWS   rows of weights that one matmul tile takes, for one column and for more
 *   TILE_COLS                  columns that one tile takes at most
 *   TILE_EACH(F, d)            F(d, 1) .. F(d, TILE_COLS)
 *   TILE_SUMS                  accumulators of the largest tile: a multiple of 4, at least rows times columns
 *   WIDE_FROM                  columns from which on matmul widens weights in memory (wide.inc.h); may be left out
 *   MIX_QUERIES, MIX_VECTORS   rows and vectors of the output that one tile of mix holds
 */
#ifndef NW_KERNELS_LANES_H
#define NW_KERNELS_LANES_H

#include "model/kernels.h"

#include <math.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* Loops over registers: their counts are constants, and an accumulator that is not unrolled lives in memory. */
#if defined(LANES_IN_MEMORY) || defined(NW_SANITIZED) /* whose checks make other loops of them */
#define LANES_UNROLL
#elif defined(__clang__)
#define LANES_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LANES_UNROLL _Pragma("GCC unroll 32")
#endif

#endif

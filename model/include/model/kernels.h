/* The arithmetic: one table of functions per instruction set, all equal bit for bit.
 *
 * The numeric contract (ARCHITECTURE.md):
 *   - f32 activations and accumulation; a stored weight is first its exact f32 value.
 *   - A dot product has 16 virtual lanes. Element i goes to lane i mod 16; each lane is one chain of fused
 *     multiply-adds over the whole row; a tail is lanes filled with zero; one fixed tree adds the lanes at the end
 *     (lanes.h).
 *   - Elementwise functions are the same sequence of correctly rounded operations on every instruction set.
 * So results do not depend on the instruction set, on how many rows or columns are computed together, or on the
 * threads. Each variant is the same source (kernels.inc.h) over 16-lane primitives (lanes_*.h). The portable one is the
 * reference.
 *
 * Everything here is pure: no allocation, no I/O, no state; up to 20 KiB of stack. Sizes are elements, never bytes;
 * strides are elements too. Buffers of f32 are aligned to 4 bytes only; weights (`w`) may be at any address.
 */
#ifndef NW_MODEL_KERNELS_H
#define NW_MODEL_KERNELS_H

#include "base/check.h"
#include "base/dtype.h"
#include "base/quant.h"
#include "base/slim.h"

typedef enum { NW_ACT_NONE, NW_ACT_RELU, NW_ACT_GELU_TANH, NW_ACT_GELU_ERF, NW_ACT_SILU } nw_activation;

/* Queries that one call of mix takes at most. */
#define NW_COLS_MAX 16

typedef struct {
    const char *name; /* "portable", "avx2", "avx512", "avx512_vbmi2", "neon" */

    /* y[c][r] = sum over i of w[r][i] * x[c][i]
     * Shapes   w [rows, k] of dtype d, row stride ldw; x [cols, k], stride ldx; y [cols, rows], stride ldy.
     *          room [nw_matmul_room(cols, k)] for what comes in between, NULL if that is 0; fastest at a multiple of
     *          64 bytes.
     * y and room overlap neither each other nor an input. */
    void (*matmul[NW_DTYPE_COUNT])(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                                   size_t ldw, size_t rows, size_t k, float *room);

    /* out[q][d] = start[q][d] + sum over j = 0.. of p[q][j] * v[j][d], one chain of fused multiply-adds per element, j
     * ascending, starting from out's own value: attention continues a sum from page to page.
     * Shapes   out [q_count, d], stride ldo; p [q_count, j_count], stride ldp; v [j_count, d], stride ldv. q_count
     *          1..16. */
    void (*mix)(float *out, size_t ldo, const float *p, size_t ldp, size_t q_count, const float *v, size_t ldv,
                size_t j_count, size_t d);

    /* Attention of up to 16 queries, one head: out[q] = sum over keys j of softmax over j of (q[q] . k[j] + bias) times
     * v[j], with the bits of matmul, a sum with the bias, softmax and mix from zero.
     * Shapes   q [q_count, d], stride ldq; k and v [j_count, d], strides ldk, ldv; out [q_count, d], stride ldo;
     *          bias [j_count + 15]: that of query c and key j is at j_count - 1 - j + c, so it looks at their distance
     *          alone; room [(j_count + d) * 16] for what comes in between. q_count 1..16, j_count and d at least 1. */
    void (*attend)(float *out, size_t ldo, const float *q, size_t ldq, size_t q_count, const float *k, size_t ldk,
                   const float *v, size_t ldv, size_t j_count, size_t d, const float *bias, float *room);

    /* Root mean square norm (T5LayerNorm): y[i] = g[i] * (x[i] * (1 / sqrt(mean(x^2) + eps))); the mean by the 16
     * lanes. y may be x. n at least 1. */
    void (*norm)(float *y, const float *x, const float *g, size_t n, float eps);

    /* In place: x[i] = exp(x[i] - max) * (1 / sum); the sum by the 16 lanes. n at least 1. */
    void (*softmax)(float *x, size_t n);

    /* In place: x[i] = act(x[i]).  gelu_tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), computed as x * sigmoid
     * of twice the argument; gelu_erf: 0.5 x (1 + erf(x / sqrt 2)); silu: x * sigmoid(x). */
    void (*activate)(float *x, size_t n, nw_activation act);

    void (*add)(float *y, const float *x, size_t n);      /* y[i] += x[i] */
    void (*multiply)(float *y, const float *x, size_t n); /* y[i] *= x[i] */
    void (*scale)(float *y, float factor, size_t n);      /* y[i] *= factor */

    /* y[i] = the exact f32 value of w[i]. */
    void (*widen[NW_DTYPE_COUNT])(float *y, const void *w, size_t n);

    /* matmul over a slim strip (base/slim.h): the same bits as matmul[NW_BF16] over what nw_slim_decode gives, whatever
     * the weights are.
     * Shapes   rows first_row .. first_row + rows - 1 of the strip, which has k columns; x, y, room as for matmul.
     * The strip, at any address, was checked by nw_slim_check or made by an encoder: nothing is checked here. Up to 64
     * bytes behind what is used are read, never beyond the strip. */
    void (*matmul_slim)(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *strip,
                        size_t first_row, size_t rows, size_t k, float *room);

    /* matmul over q8 and q4 blocks (base/quant.h): the same bits as matmul[NW_F32] over what nw_quant_decode gives.
     * Shapes   as for matmul, w [rows, k] in blocks, row stride ldw in weights; k and ldw are multiples of 32. */
    void (*matmul_q[NW_QUANT_COUNT])(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w,
                                     size_t ldw, size_t rows, size_t k, float *room);

    /* y [rows, k] = the exact f32 values of rows of a slim strip; y [n] = those of n quantised weights, n a multiple
     * of 32. What each needs besides is as for its product. */
    void (*widen_slim)(float *y, const void *strip, size_t first_row, size_t rows);
    void (*widen_q[NW_QUANT_COUNT])(float *y, const void *w, size_t n);

    /* nw_slim_encode, by its contract and to the byte, as fast as this CPU can. */
    size_t (*slim_encode)(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width);

    /* Bits of a code that matmul_slim is fastest with: 3 or 4. It takes both. And whether it then multiplies weights
     * from memory faster than matmul[NW_BF16]. */
    unsigned slim_width;
    bool     slim_faster;

    /* The largest value and, among equal ones, the lowest index. NaN never wins; all NaN gives index 0. n >= 1. */
    size_t (*argmax)(const float *x, size_t n);

    /* max and sum of exp(x[i] - max), the sum by the 16 lanes: what a log-softmax needs. */
    void (*exp_sum)(const float *x, size_t n, float *ret_max, float *ret_sum);
} nw_kernels;

/* Floats that a product of so many columns with rows of k elements needs beside them: none for up to 16 columns, then
 * up to 572 KiB (model/kernels/wide_cut.h). More columns never need less. */
size_t nw_matmul_room(size_t cols, size_t k);

/* The fastest table this CPU runs. */
const nw_kernels *nw_kernels_best(void);

/* A table by its name, for tests and experiments; NULL if unknown, not built, or not runnable on this CPU. */
const nw_kernels *nw_kernels_named(const char *name);

/* The names that were built, whether or not this CPU runs them; NULL-terminated. */
const char *const *nw_kernels_names(void);

/* log(x) for x > 0 in double, our own sequence of operations (no libm): the same bits everywhere. Within 2 ulp. */
double nw_ln(double x);

#endif

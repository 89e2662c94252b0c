/* The one BLAS routine that we use, safe to call from several threads at once. */
#ifndef NW_MODEL_BLAS_H
#define NW_MODEL_BLAS_H

#include <stddef.h>

/* y[c][r] = sum over i of w[r][i] * x[c][i]
 *
 * Shapes   x [columns, k], w [rows, k], y [columns, rows], all f32 row-major without gaps; no overlap.
 * Numeric  the bits depend on the shape alone, not on what other threads do.
 */
void nw_blas_multiply(float *y, const float *x, size_t columns, const float *w, size_t rows, size_t k);

#endif

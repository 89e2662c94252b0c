/* Normal draws by position: element i of a tensor is a function of (key, i) alone, so that a checkpoint does not depend
 * on how it is cut into files or pieces, and any part of it can be made again.
 */
#ifndef NW_BENCHMARKS_NORMAL_H
#define NW_BENCHMARKS_NORMAL_H

#include "base/dtype.h"
#include "base/memory.h"

typedef struct nw_normal nw_normal;

/* The quantiles of the normal distribution, 64 Ki cells of equal probability. Errors: NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_normal_open(nw_memory *mem, nw_normal **ret_normal, nw_error *err);
nw_normal          *nw_normal_close(nw_normal *normal); /* takes NULL; returns NULL */

/* Chooses the distribution and the stored type of what nw_normal_fill draws.
 * coarse  f32 only: values that bf16 can hold, as in checkpoints converted from it. */
void nw_normal_set(nw_normal *normal, nw_dtype dtype, bool coarse, double mean, double sigma);

/* The key of one tensor. */
uint64_t nw_normal_key(uint64_t seed, const char *name);

/* Elements first .. first + count - 1 of the sequence of `key`, to any address.
 * Numeric  16-bit types: one of the 64 Ki cells' middles, rounded. f32: uniform within a cell, so every bit of the
 *          fraction carries entropy, as in weights that were trained. */
void nw_normal_fill(const nw_normal *normal, uint64_t key, uint64_t first, size_t count, void *ret);

#endif

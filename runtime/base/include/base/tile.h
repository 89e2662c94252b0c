/* How a matrix is cut into tiles and strips: a pure function of its shape, never of the budget or the threads.
 *
 * tile    a run of whole rows: the unit that is read, kept and dropped. At most 8 strips, so at most 1 Mi elements.
 * strip   a run of rows of at most 128 Ki elements (one row if a row is longer): the unit of work for one thread, and
 *         of decompression and checksums in a pack (128 KiB is the largest zstd block).
 */
#ifndef NW_BASE_TILE_H
#define NW_BASE_TILE_H

#include "base/check.h"

#define NW_STRIP_ELEMENTS_MAX ((uint64_t)131072)
#define NW_TILE_STRIPS_MAX    ((uint64_t)8)

/* The cut of one [rows, cols] matrix. Every tile but the last has tile_rows rows; every strip of a tile but its last
 * has strip_rows. */
typedef struct {
    uint64_t rows, cols;
    uint64_t strip_rows, tile_rows;
    uint64_t tile_count;
} nw_cut;

/* rows and cols must be at least 1. */
nw_cut nw_cut_make(uint64_t rows, uint64_t cols);

/* First row and number of rows of a tile (tile < tile_count). */
static inline uint64_t nw_cut_first(const nw_cut *cut, uint64_t tile) { return tile * cut->tile_rows; }
static inline uint64_t nw_cut_rows(const nw_cut *cut, uint64_t tile)
{
    return nw_min_u64(cut->tile_rows, cut->rows - tile * cut->tile_rows);
}

/* Strips in a tile of `tile_rows` rows. */
static inline uint64_t nw_cut_strips(const nw_cut *cut, uint64_t tile_rows)
{
    return (tile_rows + cut->strip_rows - 1) / cut->strip_rows;
}

#endif

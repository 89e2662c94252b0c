/* How a product of many columns is cut (wide.inc.h), the same on every instruction set, so that a plan can count its
 * memory anywhere.
 *
 * A panel is the weights of some rows, widened to f32. While it stays, all columns pass by, TILE_COLS at a time, and of
 * those one stretch of elements after the other: it stays in the first cache while all rows of the panel pass by.
 *
 * Up to WIDE_NEAR_COLS columns, if they lie in the second cache (WIDE_NEAR_INPUTS elements of x), have panels of few
 * rows and one stretch, which lie in the first one; between two panels of the same rows the chains wait in memory.
 * So have short rows, of which so many columns are near at a time, and then the next: a small model's room is small.
 *
 * More columns are read from further away, so panels have many rows for each time that x is read, and wait in the
 * second cache. They have all elements of their rows, so that weights are widened once for all columns and no chains
 * wait for the next panel, unless rows are so long that this would be few of them.
 *
 * Measured with 512 columns on two cores with 2 MiB of second cache each, GFLOP/s: 8 rows at a time 200 to 310 (k =
 * 5120, 2048), 16 rows 320, 24 to 32 rows 360 to 370, 64 rows 350; stretches of 512 elements were 6 % slower than of
 * 1024, as their sums are loaded and stored twice as often; panels of one stretch with 132 columns at a time 9 % slower
 * than of whole rows. With 64 columns 8 rows had 330 and 32 rows 305. */
#ifndef NW_KERNELS_WIDE_CUT_H
#define NW_KERNELS_WIDE_CUT_H

#include "base/check.h"

#define WIDE_STEP ((size_t)64)     /* panels and stretches are multiples of it: of every group of a form */
#define WIDE_ROWS_STEP ((size_t)4) /* a multiple of every TILE_ROWS */
#define WIDE_TILE_COLS ((size_t)6) /* the largest TILE_COLS; numbers of columns below are multiples of every one */

#define WIDE_FEW ((size_t)16) /* up to so many columns there are WIDE_ROWS_STEP rows, or x is crowded out */
#define WIDE_FEW_COLS ((size_t)18) /* WIDE_FEW, up to a multiple of every TILE_COLS */
#define WIDE_NEAR_COLS ((size_t)96)
#define WIDE_NEAR_INPUTS ((size_t)1 << 18)
#define WIDE_NEAR_ROWS ((size_t)8)
#define WIDE_NEAR_STRETCH ((size_t)512)
#define WIDE_FEW_FLOATS (WIDE_ROWS_STEP * (WIDE_NEAR_STRETCH + 16 * WIDE_FEW_COLS)) /* panel and chains of few */

#define WIDE_ROWS ((size_t)32)
#define WIDE_STRETCH ((size_t)1024)
#define WIDE_WHOLE ((size_t)5120)     /* longer rows are cut into panels; of rows this long a panel has 28 */
#define WIDE_VALUES (28 * WIDE_WHOLE) /* floats: 560 KiB */
#define WIDE_COLS ((size_t)132)       /* of longer rows: their chains take 264 KiB */

/* The most of each at once. */
typedef struct {
    size_t rows, cols, panel, stretch; /* panel, stretch: elements of a row */
    bool   far;                        /* x is fetched before it is used */
} wide_cut;

static inline wide_cut wide_cut_make(size_t cols, size_t k)
{
    if (cols <= WIDE_FEW)
        return (wide_cut){WIDE_ROWS_STEP, WIDE_FEW_COLS, WIDE_NEAR_STRETCH, WIDE_NEAR_STRETCH, false};
    if (k <= WIDE_NEAR_STRETCH || (cols <= WIDE_NEAR_COLS && cols * k <= WIDE_NEAR_INPUTS))
        return (wide_cut){WIDE_NEAR_ROWS, WIDE_NEAR_COLS, WIDE_NEAR_STRETCH, WIDE_NEAR_STRETCH, false};
    if (k > WIDE_WHOLE)
        return (wide_cut){WIDE_ROWS, WIDE_COLS, WIDE_STRETCH, WIDE_STRETCH, true};
    size_t rows = WIDE_VALUES / (size_t)nw_round_up(k, 16) / WIDE_ROWS_STEP * WIDE_ROWS_STEP;
    return (wide_cut){nw_min_size(rows, WIDE_ROWS), cols, k, WIDE_STRETCH, true};
}

/* Floats of a panel; and of the chains of its rows: of one group of TILE_COLS if the panel has whole rows, so that each
 * group ends before the next begins; else of all columns at once, as they wait for the next panel. */
static inline size_t wide_panel_floats(const wide_cut *cut, size_t k)
{
    return cut->rows * (size_t)nw_round_up(nw_min_size(cut->panel, k), 16);
}

static inline size_t wide_chain_floats(const wide_cut *cut, size_t k)
{
    return cut->rows * 16 * (cut->panel < k ? cut->cols : WIDE_TILE_COLS);
}

#endif

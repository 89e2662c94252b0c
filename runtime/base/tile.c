#include "base/tile.h"

nw_cut nw_cut_make(uint64_t rows, uint64_t cols)
{
    NW_CHECK(rows > 0);
    NW_CHECK(cols > 0);
    nw_cut cut = {.rows = rows, .cols = cols};
    cut.strip_rows = nw_max_u64(1, NW_STRIP_ELEMENTS_MAX / cols);
    cut.tile_rows = cut.strip_rows * NW_TILE_STRIPS_MAX;
    cut.tile_count = (rows - 1) / cut.tile_rows + 1;
    return cut;
}

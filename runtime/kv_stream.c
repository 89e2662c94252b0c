#include "kv_stream.h"

#include "base/size.h"

nw_kv_shape nw_kv_shape_make(const nw_config *c, size_t input_tokens, size_t places, size_t tile_bytes, size_t align)
{
    nw_kv_shape s = {.row_bytes = nw_config_inner(c) * sizeof(float), .places = places};
    size_t      rows = nw_max_size(1, nw_min_size(tile_bytes / s.row_bytes, input_tokens));
    size_t      tiles = (input_tokens + rows - 1) / rows;
    s.tile_rows = (uint32_t)((input_tokens + tiles - 1) / tiles); /* equal tiles */
    s.tile_bytes = (size_t)nw_round_up(s.tile_rows * s.row_bytes, align);
    s.tiles = tiles;
    s.place_bytes = (uint64_t)c->decoder_blocks * 2 * s.tiles * s.tile_bytes;
    return s;
}

void nw_kv_stream_layout(nw_kv_stream *k, nw_arena *a, size_t align)
{
    size_t places = k->shape.tile_rows > 0 ? k->shape.places : 0;
    k->taken = nw_carve(a, places, sizeof *k->taken, 64);
    k->stages = nw_carve(a, places > 0 ? NW_KV_STAGES : 0, k->shape.tile_rows > 0 ? k->shape.tile_bytes : 1, align);
}

bool nw_kv_stream_take(nw_kv_stream *k, uint32_t *ret_place)
{
    for (uint32_t i = 0; i < k->shape.places; i++) {
        if (k->taken[i])
            continue;
        k->taken[i] = true;
        *ret_place = i;
        return true;
    }
    return false;
}

void nw_kv_stream_give(nw_kv_stream *k, uint32_t place)
{
    NW_CHECK(place < k->shape.places && k->taken[place]);
    k->taken[place] = false;
}

size_t nw_kv_stream_free(const nw_kv_stream *k)
{
    size_t count = 0;
    for (size_t i = 0; i < k->shape.places; i++)
        count += k->taken[i] ? 0 : 1;
    return count;
}

#include "kv_stream.h"

#include "base/size.h"

nw_kv_shape nw_kv_shape_make(const nw_config *c, size_t tile_rows, size_t rows, size_t places, size_t align)
{
    nw_kv_shape s = {
        .tile_rows = (uint32_t)tile_rows, .row_bytes = nw_config_inner(c) * sizeof(float), .places = places};
    s.tile_bytes = (size_t)nw_round_up(tile_rows * s.row_bytes, align);
    s.tiles = nw_kv_tiles(&s, rows);
    s.place_bytes = (uint64_t)c->decoder_blocks * 2 * s.tiles * s.tile_bytes;
    return s;
}

size_t nw_kv_tile_rows(const nw_config *c, size_t rows, size_t tile_bytes)
{
    size_t most = nw_max_size(1, nw_min_size(tile_bytes / (nw_config_inner(c) * sizeof(float)), rows));
    size_t tiles = (rows + most - 1) / most;
    return (rows + tiles - 1) / tiles;
}

void nw_kv_stream_layout(nw_kv_stream *k, nw_arena *a, size_t align)
{
    k->stage_bytes = 0;
    for (int kind = 0; kind < NW_KV_KINDS; kind++) {
        const nw_kv_shape *s = &k->shapes[kind];
        k->taken[kind] = nw_carve(a, s->tile_rows > 0 ? s->places : 0, sizeof *k->taken[kind], 64);
        if (s->tile_rows > 0)
            k->stage_bytes = nw_max_size(k->stage_bytes, s->tile_bytes);
    }
    k->stages = nw_carve(a, k->stage_bytes > 0 ? NW_KV_STAGES : 0, nw_max_size(k->stage_bytes, 1), align);
}

bool nw_kv_stream_take(nw_kv_stream *k, nw_kv_kind kind, uint32_t *ret_place)
{
    for (uint32_t i = 0; i < k->shapes[kind].places; i++) {
        if (k->taken[kind][i])
            continue;
        k->taken[kind][i] = true;
        *ret_place = i;
        return true;
    }
    return false;
}

void nw_kv_stream_give(nw_kv_stream *k, nw_kv_kind kind, uint32_t place)
{
    NW_CHECK(place < k->shapes[kind].places && k->taken[kind][place]);
    k->taken[kind][place] = false;
}

size_t nw_kv_stream_free(const nw_kv_stream *k, nw_kv_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < k->shapes[kind].places; i++)
        count += k->taken[kind][i] ? 0 : 1;
    return count;
}

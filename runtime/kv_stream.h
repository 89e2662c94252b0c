/* Cross-attention K and V that do not fit in memory: written to a scratch file when they are made, read back in each
 * decode pass as tiles of its schedule, between the tiles of weights.
 *
 * A tile is K or V of one block for a run of positions. A place in the file has, for each block, all tiles of K and
 * then those of V of one input; inputs take and give back places.
 */
#ifndef NW_RUNTIME_KV_STREAM_H
#define NW_RUNTIME_KV_STREAM_H

#include "loader/file.h"
#include "model/forward.h"

enum {
    NW_KV_STAGES = 3,           /* tiles on their way to the file */
    NW_KV_TILE_BYTES = 1 << 20, /* of a tile at most, unless a row alone is larger */
};

/* What follows from the model and the session's maxima. */
typedef struct {
    uint32_t tile_rows;  /* positions of a tile; 0: nothing is streamed */
    size_t   tile_bytes; /* in the file and in memory: a multiple of the alignment */
    size_t   row_bytes;
    size_t   tiles;       /* of K, or of V, of one block for the longest input */
    uint64_t place_bytes; /* of one input */
    size_t   places;
} nw_kv_shape;

/* tile_bytes  of a tile at most, unless a row alone is larger. */
nw_kv_shape nw_kv_shape_make(const nw_config *c, size_t input_tokens, size_t places, size_t tile_bytes, size_t align);

/* Tiles of K, or of V, of a block of an input. */
static inline size_t nw_kv_tiles(const nw_kv_shape *s, const nw_cross *cross)
{
    return (cross->length + s->tile_rows - 1) / s->tile_rows;
}

/* Where a tile is in the file. */
static inline uint64_t nw_kv_offset(const nw_kv_shape *s, const nw_cross *cross, uint32_t block, bool values,
                                    size_t tile)
{
    return cross->place * s->place_bytes + (((uint64_t)block * 2 + (values ? 1 : 0)) * s->tiles + tile) * s->tile_bytes;
}

typedef struct {
    nw_kv_shape    shape;
    nw_file        file; /* fd -1: none */
    char           dir[256];
    bool          *taken;    /* [places] */
    unsigned char *stages;   /* [NW_KV_STAGES, tile_bytes] */
    uint32_t       busy;     /* bits of the stages that are being written */
    int            os_errno; /* of a write that failed; 0: none */
    uint64_t       written_bytes;
} nw_kv_stream;

/* Carves stages and places; shape must be set. */
void nw_kv_stream_layout(nw_kv_stream *k, nw_arena *a, size_t align);

bool nw_kv_stream_take(nw_kv_stream *k, uint32_t *ret_place); /* false: all are taken */
void nw_kv_stream_give(nw_kv_stream *k, uint32_t place);
size_t nw_kv_stream_free(const nw_kv_stream *k); /* places that can be taken */

#endif

/* K and V of attention that do not fit in memory: written to a scratch file when they are final, read back in each
 * decode pass as tiles of its schedule, between the tiles of weights.
 *
 * There are two kinds: of prompts, made once by the cross pass, and of answers, a page at a time when it is full. A
 * tile is K or V of one block for a run of rows: of an answer, its rows of one page. A place in the file has, for each
 * block, all tiles of K and then those of V of one input or one request, which take and give back places.
 */
#ifndef NW_RUNTIME_KV_STREAM_H
#define NW_RUNTIME_KV_STREAM_H

#include "loader/file.h"
#include "model/forward.h"

/* In the order in which a block comes to them. */
typedef enum { NW_KV_SELF, NW_KV_CROSS, NW_KV_KINDS } nw_kv_kind;

enum {
    NW_KV_STAGES = 3,           /* tiles on their way to the file */
    NW_KV_TILE_BYTES = 1 << 20, /* of a prompt's tile at most, unless a row alone is larger */
};

/* What follows from the model and the session's maxima. */
typedef struct {
    uint32_t tile_rows;  /* of a tile; 0: nothing of this kind is streamed */
    size_t   tile_bytes; /* in the file and in memory: a multiple of the alignment */
    size_t   row_bytes;
    size_t   tiles;       /* of K, or of V, of one block, where there are as many rows as there may be */
    uint64_t place_bytes; /* of one input or request */
    size_t   places;
    uint64_t at; /* where the places begin in the file */
} nw_kv_shape;

/* Of tiles of tile_rows, for `rows` rows at most. */
nw_kv_shape nw_kv_shape_make(const nw_config *c, size_t tile_rows, size_t rows, size_t places, size_t align);

/* Rows of equal tiles for `rows` rows, each of at most tile_bytes, unless a row alone is larger. */
size_t nw_kv_tile_rows(const nw_config *c, size_t rows, size_t tile_bytes);

/* Tiles of K, or of V, of a block that so many rows take. */
static inline size_t nw_kv_tiles(const nw_kv_shape *s, size_t rows)
{
    return (rows + s->tile_rows - 1) / s->tile_rows;
}

/* Where a tile is in the file. */
static inline uint64_t nw_kv_offset(const nw_kv_shape *s, uint32_t place, uint32_t block, bool values, size_t tile)
{
    uint64_t tiles = ((uint64_t)block * 2 + (values ? 1 : 0)) * s->tiles + tile;
    return s->at + place * s->place_bytes + tiles * s->tile_bytes;
}

/* Where the places of a kind end in the file. */
static inline uint64_t nw_kv_end(const nw_kv_shape *s)
{
    return s->at + s->places * s->place_bytes;
}

typedef struct {
    nw_kv_shape    shapes[NW_KV_KINDS];
    nw_file        file; /* fd -1: none */
    char           dir[256];
    bool          *taken[NW_KV_KINDS]; /* [places] */
    unsigned char *stages;             /* [NW_KV_STAGES, stage_bytes] */
    size_t         stage_bytes;
    uint32_t       busy;     /* bits of the stages that are being written */
    int            os_errno; /* of a write that failed; 0: none */
    uint64_t       written_bytes;
} nw_kv_stream;

/* Carves stages and places; shapes must be set. */
void nw_kv_stream_layout(nw_kv_stream *k, nw_arena *a, size_t align);

bool   nw_kv_stream_take(nw_kv_stream *k, nw_kv_kind kind, uint32_t *ret_place); /* false: all are taken */
void   nw_kv_stream_give(nw_kv_stream *k, nw_kv_kind kind, uint32_t place);
size_t nw_kv_stream_free(const nw_kv_stream *k, nw_kv_kind kind); /* places that can be taken */

#endif

/* From strips as they are stored to rows that kernels take.
 *
 * A checkpoint's strips are rows as they stand. A pack's are checked and, where they are packed, restored into scratch
 * of the worker that multiplies them, in its cache: what is streamed does not travel to memory a second time.
 */
#ifndef NW_RUNTIME_RESTORE_H
#define NW_RUNTIME_RESTORE_H

#include <stdatomic.h>

#include "loader/packed.h"
#include "model_state.h"

/* What a worker has restored, and how long it took. */
typedef struct {
    _Alignas(64) uint64_t plain_bytes;
    double seconds;
} nw_restored;

typedef struct {
    const nw_model *model;
    bool            verify_off;
    size_t          threads, plain_bytes, codec_bytes; /* rooms of one worker; 0: nothing is packed */
    unsigned char  *plain;                             /* [threads, plain_bytes] */
    unsigned char  *codecs;                            /* [threads, codec_bytes] */
    nw_packed     **packed;                            /* [threads] */
    nw_restored    *restored;                          /* [threads] */
    /* A damage found in a tile in use: the first that any worker came to. */
    atomic_bool damaged;
    nw_step     damaged_tile;
    uint32_t    damaged_strip;
    const char *why; /* NULL: its checksum */
} nw_restore;

/* Whether any strip of the model is packed. */
bool nw_restore_is_needed(const nw_model *m);

/* Carves the scratch; nothing where no strip is packed. Also used for measuring: the arena may have no base. */
void nw_restore_layout(nw_restore *r, nw_arena *a, const nw_model *m, size_t threads);

/* Rows of a strip of a tile. Called by any worker.
 * tile    the tile's bytes as they were read
 * fresh   they have not been checked since
 * ret     points into the tile or the worker's scratch
 * Returns false if the strip is damaged; nw_restore_result then says so. */
bool nw_restore_strip(nw_restore *r, nw_step step, uint32_t strip, const unsigned char *tile, bool fresh, size_t worker,
                      nw_rows *ret);

/* Bytes of plain weights that a worker restores from their packed form, checks included, a second; 0: none has been. */
double nw_restore_rate(const nw_restore *r);

/* After all strips of the tiles in use: NW_OK, or NW_E_IO for a damaged one (the first that a worker found). Forgets
 * it. */
NW_MUST_USE nw_code nw_restore_result(nw_restore *r, nw_error *err);

/* Row `row` of a strip's rows of d columns as f32, out [d]. */
void nw_rows_widen(const nw_kernels *kernels, const nw_rows *rows, size_t row, size_t d, float *out);

/* One row of the embedding as f32, out [d_model]. Uses the first worker's scratch.
 * bytes   where nw_model_row_extent says, or the same bytes of a tile that is resident.
 * Errors  NW_E_IO: damaged. */
NW_MUST_USE nw_code nw_restore_row(nw_restore *r, const nw_kernels *kernels, uint32_t id, const unsigned char *bytes,
                                   float *out, nw_error *err);

/* A strip of a pack, checked by its checksum, as plain rows.
 * codec   decodes; used for packed strips only
 * dtype   of the stored values; q8 and q4 become f32 whatever it is
 * dst     [rows, cols], at any address; no overlap with src
 * Returns NULL: done. Otherwise what is wrong with it, for a message; dst then holds garbage. */
NW_MUST_USE const char *nw_restore_plain(nw_packed *codec, nw_form form, nw_dtype dtype, const void *src, size_t bytes,
                                         size_t rows, size_t cols, void *dst);

#endif

/* The window that slides over the model: reads tiles ahead of the pass, keeps what is pinned, drops the rest.
 *
 * A pass visits the steps of its schedule in order. Each visit finds its tile in a pin, or in a slot of the ring; slots
 * are filled and freed in visit order, so the ring needs no search. Reading runs ahead of the pass along the schedule,
 * and straight on into the pass that will come next: weights do not depend on tokens. Slots and
 * pins are the only places that a tile is read into. A pin that keeps a tile as it is stored is filled when the reader
 * first comes by; one that keeps it in another form (pin_form.h), by the pass that first uses the tile, which is in a
 * slot then.
 *
 *   slot   FREE -> READING -> READY -> IN_USE -> FREE; a failed read is READY with an error
 *   pin    FREE -> READING -> READY, or FREE -> READY when its tile is released from a slot; FREE again when an encoder
 *          pass needs its memory, when its read failed, or when what is in it turned out to be damaged
 *
 * Belongs to the session's thread. Nothing here allocates.
 */
#ifndef NW_RUNTIME_WINDOW_H
#define NW_RUNTIME_WINDOW_H

#include <stdatomic.h>

#include "layout.h"

/* K and V that a pass streams, in the order in which each block comes to them. */
typedef struct {
    const nw_kv **list;         /* [lanes] */
    size_t        count, tiles; /* tiles: of one block */
} nw_kv_list;

typedef struct {
    nw_model    *model;
    nw_io       *io;
    nw_parts    *parts;
    nw_shape     shape;
    uint64_t     encode_from; /* offset in the region where the encoder's scratch starts */
    bool         prefetch_off;
    void (*reach)(void *user, const unsigned char *end); /* before pins before `end` are read into: touches their
                                                          * memory (first_touch.h) */
    void        *reach_user;
    atomic_bool *stop; /* set from outside: acquire gives up with NW_E_CANCELLED */

    nw_kv_list kv_lists[NW_KV_KINDS]; /* what the pass under way streams */

    nw_visit at;           /* the visit that acquire comes to next */
    nw_pass  next;         /* the pass expected after this one; NW_PASS_COUNT: none */
    nw_visit read;         /* the visit that is read next: at or ahead of `at` */
    bool     read_crossed; /* `read` is in the next pass */
    size_t   crossed_tail; /* where the ring's tail was then */
    uint32_t reading;      /* slots that are being read into */
    size_t   head, tail;   /* ring: head is the slot of the oldest visit, tail the next to fill; counts, not indices */
    bool     scratch_in_use;     /* by an encoder pass and its cross pass: pins that it overlays stay empty */
    bool     in_use;             /* a tile is acquired */
    size_t   more;               /* tiles behind it that are in use too */
    nw_pin  *pin;                /* of that tile, unless it is streamed */
    nw_pin_shape      pin_shape; /* of that tile, pinned or not */
    atomic_bool       misfit;    /* a strip of that tile did not fit into its pin */
    const nw_kernels *kernels;
    uint32_t          rows_done; /* bits of the row reads that have arrived; rows_failed: with an error, row_errno */
    uint32_t          rows_failed;
    int               row_errno;

    uint64_t bytes_read, rows_read, pinned_bytes, kv_bytes_read;
    double   seconds_waited;
} nw_window;

/* Everything else must be set. Slots and pins must be as nw_parts_layout left them, pins' places as planned. */
void nw_window_start(nw_window *w);

/* Slots that may hold tiles of the next pass before it begins. */
uint32_t nw_window_ahead(const nw_shape *s);

/* Begins a pass; `next` is what will probably follow it (NW_PASS_COUNT: nothing). Reading begins with the first rows or
 * tile that are asked for. What has been read ahead for another
 * pass is dropped. ENCODE drops the pins under its scratch, which is the pass's until a pass begins that is neither
 * ENCODE nor CROSS. */
void nw_window_begin(nw_window *w, nw_pass pass, nw_pass next);

/* What was made of the tiles in use. USED: their strips were asked for, checked and, where a pin has another form,
 * written there. DAMAGED: one of them was not what it should be: what is new is not kept. UNUSED: no strip was asked
 * for, so nothing is known of them, and a pin of another form is still empty. */
typedef enum { NW_TILE_USED, NW_TILE_DAMAGED, NW_TILE_UNUSED } nw_tile_use;

/* Before a decode pass begins: adds K and V of which it will see streamed rows, unless they are there, or none is
 * streamed. */
void nw_window_clear_kv(nw_window *w);
void nw_window_add_kv(nw_window *w, nw_kv_kind kind, const nw_kv *kv);

/* nw_weights.kv and kv_release.
 * Errors  NW_E_IO, naming the scratch file's directory; NW_E_CANCELLED. */
NW_MUST_USE nw_code nw_window_kv(nw_window *w, const nw_kv *kv, uint32_t block, bool values, uint32_t first,
                                 const float **ret_rows, size_t *ret_count, nw_error *err);
void                nw_window_kv_release(nw_window *w);

/* Writes rows of K or V of a block, from row `first` on, with which a tile begins, to the place of kv: whole tiles, and
 * what is left. And after the last of these, waits until all is in the file. Errors: as nw_window_kv. */
NW_MUST_USE nw_code nw_window_kv_store(nw_window *w, nw_kv_kind kind, const nw_kv *kv, uint32_t block, bool values,
                                       size_t first, size_t count, const float *rows, nw_error *err);
NW_MUST_USE nw_code nw_window_kv_stored(nw_window *w, nw_error *err);

/* Whether the pass comes to a tile of K and V next; takes and drops it, for whoever only reads. */
bool                nw_window_at_kv(const nw_window *w);
NW_MUST_USE nw_code nw_window_kv_skip(nw_window *w, nw_error *err);

/* True if acquire would have to wait for the disk. Reads on. */
bool nw_window_would_wait(nw_window *w);

/* nw_weights.acquire and release.
 * Errors  NW_E_IO, NW_E_FORMAT, both with err->block; NW_E_CANCELLED. */
NW_MUST_USE nw_code nw_window_acquire(nw_window *w, uint32_t tensor, uint32_t tile, nw_tile *ret, nw_error *err);
void                nw_window_release(nw_window *w, nw_tile_use use);

/* nw_weights.more: what lies in pins or has come into slots, some of these at most; nothing beside a tile that fills
 * its pin, and none that would. */
size_t nw_window_more(nw_window *w, size_t most, size_t multiple, nw_tile *ret);

/* True if the first use of the tile in use is what fills its pin. */
bool nw_window_fills_pin(const nw_window *w);

/* Rows of a strip of a tile in use, for any worker; nw_weights.rows. */
bool nw_window_strip(nw_window *w, const nw_tile *tile, size_t strip, size_t worker, nw_rows *ret);

/* After the last step of a decode pass: waits until the pinned embedding, if planned, is resident. */
NW_MUST_USE nw_code nw_window_finish(nw_window *w, nw_error *err);

/* Embedding rows as f32, out [count, d_model]: from a pin, from the row cache, or from disk, NW_ROW_BATCH at a time.
 * Each distinct row is read at most once. */
NW_MUST_USE nw_code nw_window_rows(nw_window *w, const nw_kernels *kernels, const uint32_t *ids, size_t count,
                                   float *out, nw_error *err);

/* After an error, and before closing: waits for what is in flight and forgets what was read ahead. Filled pins stay. */
void nw_window_drain(nw_window *w);

#endif

/* What the files of the window share: window.c has the ring, its reader and the passes; window_kv.c the tiles of K and
 * V; window_rows.c the rows of the embedding. */
#ifndef NW_RUNTIME_WINDOW_PARTS_H
#define NW_RUNTIME_WINDOW_PARTS_H

#include "window.h"

/* Where a completion belongs: a slot, a pin, a pin of the embedding, a row buffer, a stage of K and V; with its index.
 */
typedef enum { NW_TAG_SLOT, NW_TAG_PIN, NW_TAG_EMBED, NW_TAG_ROW, NW_TAG_STAGE } nw_tag_kind;
uint64_t nw_tag_make(nw_tag_kind kind, size_t index);

/* The only writer of a slot's state. */
void     nw_slot_move(nw_slot *s, nw_slot_state from, nw_slot_state to);
nw_slot *nw_window_slot(nw_window *w, size_t count); /* of the ring's head or tail */

nw_step      nw_window_step(const nw_window *w, nw_visit v);
nw_visit     nw_window_after(const nw_window *w, nw_visit v);
bool         nw_visit_same(nw_visit a, nw_visit b);
nw_pin_shape nw_window_pin_shape(const nw_window *w, const nw_pin *pin, nw_step step); /* pin: or NULL */
void         nw_window_empty_pin(nw_window *w, nw_pin *pin, nw_step step); /* what is in it is of no use any more */

void nw_window_drop_cached(const nw_window *w, nw_step step); /* where reads are not direct: its pages, after use */

/* Takes what has arrived; with `wait`, at least one thing if any is in flight. */
void nw_window_reap(nw_window *w, bool wait);
/* Starts all reads that there is room for. */
void nw_window_pump(nw_window *w);
/* Both, and further until the visit at hand is being read. */
void nw_window_keep_up(nw_window *w);
bool nw_window_has_room(const nw_window *w); /* for one more read of a tile */
/* Waits, reading on meanwhile, until a read has ended, one way or the other. `step`: for the trace. */
NW_MUST_USE nw_code nw_window_wait(nw_window *w, const nw_slot_state *state, nw_step step, nw_error *err);
/* offset, bytes: of what could not be read. */
nw_code nw_window_read_failed(const nw_window *w, nw_step step, uint64_t offset, size_t bytes, int os_errno,
                              nw_error *err);

/* ---- tiles of K and V ---- */

/* True at the first tile behind an attention whose K and V may be streamed; and at a tile of these. */
bool nw_window_is_behind_attention(const nw_window *w, nw_visit v);
bool nw_window_is_kv(const nw_window *w, nw_visit v);
/* Reads a tile of K and V into its slot, and what is done when it has come. */
void nw_window_kv_submit(nw_window *w, nw_slot *s, uint64_t tag);
void nw_window_kv_drop_cached(const nw_window *w, nw_visit v);

#endif

/* Reads a pack tile by tile and gives the plain rows of its strips: what unpacking needs, whatever tensors there are.
 *
 * One tile is read ahead while the strips of another are checked and restored.
 */
#ifndef NW_RUNTIME_PACK_READ_H
#define NW_RUNTIME_PACK_READ_H

#include "model_state.h"

typedef struct nw_pack_reader nw_pack_reader;

/* m           a model that is a pack; borrowed
 * io          borrowed; from nw_pack_reader_start to nw_pack_reader_wait nothing else may be in flight in it
 * read_bytes  what was read is added to it
 * Memory      nw_pack_reader_bytes(m), tags NW_TAG_IO and NW_TAG_SESSION
 * Errors      NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_reader_open(nw_model *m, nw_io *io, uint64_t *read_bytes, nw_pack_reader **ret_reader,
                                        nw_error *err);
uint64_t            nw_pack_reader_bytes(const nw_model *m);
nw_pack_reader     *nw_pack_reader_close(nw_pack_reader *r); /* waits for a read in flight; takes NULL; returns NULL */

/* Starts the read of a tile (an index of nw_pack_tile_at) into the buffer that is free. */
void nw_pack_reader_start(nw_pack_reader *r, size_t tile);
/* Waits for it: its strips are then at hand, and another may be started. Errors: NW_E_IO, NW_E_FORMAT. */
NW_MUST_USE nw_code nw_pack_reader_wait(nw_pack_reader *r, nw_error *err);

/* Strip `strip` of the tile that was waited for last, checked: *ret_elements of them, in rows as they stand in the
 * tensor, of the type that the checkpoint says for it. They live until the next call.
 * Errors  NW_E_IO, naming shard, tensor, tile and strip: it is damaged. */
NW_MUST_USE nw_code nw_pack_reader_strip(nw_pack_reader *r, uint32_t strip, const void **ret_values,
                                         size_t *ret_elements, nw_error *err);

#endif

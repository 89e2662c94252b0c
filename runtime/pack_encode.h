/* The part of packing that works: reads tiles of a checkpoint, and encodes their strips by all workers at once. */
#ifndef NW_RUNTIME_PACK_ENCODE_H
#define NW_RUNTIME_PACK_ENCODE_H

#include "copying.h"
#include "loader/pack_writer.h"
#include "loader/packed.h"
#include "model_state.h"

typedef struct nw_pack_encoder nw_pack_encoder;

/* How a tensor is stored. */
typedef struct {
    nw_stored stored;
    bool      lossy; /* the type that was asked for cannot hold every value of its own */
    bool      kept;  /* q8 or q4 was asked for, and its rows have no whole blocks */
    uint32_t  stride;
} nw_pack_storage;

/* True if a pack can hold the tensor: a type that runs, one or two dimensions, not empty. */
bool nw_pack_can_store(const nw_tensor *t);

/* How a tensor is cut: as the same tensor is cut in a run. */
nw_cut nw_pack_cut(const nw_tensor *t);

/* Tiles and strips of all tensors of a checkpoint. */
void nw_pack_count(const nw_model *m, uint64_t *ret_tiles, uint64_t *ret_strips);

/* io  allows at least 2 operations; at each call of the encoder nothing else may be in flight in it.
 * Memory  from the model's account, NW_TAG_SESSION and NW_TAG_IO: nw_pack_encoder_bytes.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_pack_encoder_open(nw_model *m, nw_io *io, nw_type type, nw_compress compress, unsigned threads,
                                         uint64_t *read_bytes, nw_pack_encoder **ret_encoder, nw_error *err);
uint64_t            nw_pack_encoder_bytes(const nw_model *m, unsigned threads);
nw_pack_encoder    *nw_pack_encoder_close(nw_pack_encoder *e); /* takes NULL; returns NULL */

/* Encodes the embedding for its longest strip: before the storage of tensors is asked for. Tells `progress`, of which
 * nothing is done yet, so that it can be stopped. */
NW_MUST_USE nw_code nw_pack_encoder_measure(nw_pack_encoder *e, nw_progress *progress, nw_error *err);

nw_pack_storage nw_pack_encoder_storage(const nw_pack_encoder *e, uint32_t tensor);

/* Starts the read of a tile into the buffer that is free: while one is encoded, the next is read. */
void nw_pack_encoder_read(nw_pack_encoder *e, uint32_t tensor, uint32_t tile);
/* Waits for it. Errors: NW_E_IO, NW_E_FORMAT. */
NW_MUST_USE nw_code nw_pack_encoder_wait(nw_pack_encoder *e, nw_error *err);

typedef struct {
    const nw_pack_strip_data *strips; /* until the next tile is encoded */
    size_t                    strip_count;
    uint64_t                  source_bytes, stored_bytes;
} nw_pack_encoded;

/* Encodes the tile that was waited for last.
 * Errors  NW_E_ARG: a weight is too large for the type. */
NW_MUST_USE nw_code nw_pack_encoder_encode(nw_pack_encoder *e, uint32_t tensor, uint32_t tile, nw_pack_encoded *ret,
                                           nw_error *err);

/* Weights that have lost bits by conversion to f16 or bf16. */
uint64_t nw_pack_encoder_rounded(const nw_pack_encoder *e);

#endif

/* The small files that travel with the weights: configuration and tokenizer. */
#ifndef NW_RUNTIME_SIDE_FILES_H
#define NW_RUNTIME_SIDE_FILES_H

#include "loader/stream.h"
#include "model_state.h"

typedef struct {
    nw_model  *model;
    nw_io     *io;
    nw_stream *stream; /* over io; nothing is in flight */
    nw_type    type;   /* what config.json is to say that the weights have; KEEP, q8, q4: as it is */
    uint64_t  *read_bytes;
    /* Takes a piece of a file: the first of a name begins it, others append. */
    nw_code (*put)(void *user, const char *name, const void *bytes, size_t len, nw_error *err);
    void *user;
} nw_side_files;

/* Copies what there is of them. A model whose configuration was inferred gets a config.json that says so much.
 * A pack's files are what its manifest says, or NW_E_IO (after `put` had what they are).
 * Errors  NW_E_IO, NW_E_FORMAT, NW_E_MEMORY, and what `put` gives. */
NW_MUST_USE nw_code nw_side_files_copy(const nw_side_files *files, nw_error *err);

#endif

/* Long ranges of files from start to end, several reads ahead: whole tensors that are copied, converted or checked.
 *
 * Pieces come in order, each of NW_STREAM_PIECE bytes but the last, wherever in the file the range begins; so an
 * element of a power of two bytes is never cut.
 */
#ifndef NW_LOADER_STREAM_H
#define NW_LOADER_STREAM_H

#include "loader/file.h"

#define NW_STREAM_PIECE ((size_t)1 << 20)
enum { NW_STREAM_DEPTH = 4 }; /* reads in flight; the nw_io must allow as many */

typedef struct nw_stream nw_stream;

/* Memory  from `mem`, tag NW_TAG_IO: nw_stream_bytes() of it.   io  borrowed; nothing else may be in flight in it.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_stream_open(nw_memory *mem, nw_io *io, nw_stream **ret_stream, nw_error *err);
uint64_t            nw_stream_bytes(void);
nw_stream          *nw_stream_close(nw_stream *stream); /* waits for what is in flight; takes NULL; returns NULL */

/* Starts on [offset, offset + bytes) of a file, which must be within it. What was left of a range before is dropped.
 * `file` and `path` are borrowed until the range's end. */
void nw_stream_begin(nw_stream *stream, const nw_file *file, const char *path, uint64_t offset, uint64_t bytes);

/* The next piece, at any address; *ret_len is 0 at the end of the range. It lives until the next call.
 * read_bytes  what was read, alignment included, is added to it; may be NULL.
 * Errors      NW_E_IO; NW_E_FORMAT if the file has become shorter. */
NW_MUST_USE nw_code nw_stream_next(nw_stream *stream, const void **ret_bytes, size_t *ret_len, uint64_t *read_bytes,
                                   nw_error *err);

#endif

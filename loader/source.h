/* One file as the readers of its format see it, and chunks of it. Private to loader/. */
#ifndef NW_LOADER_SOURCE_H
#define NW_LOADER_SOURCE_H

#include "base/json.h"
#include "loader/file.h"

#define NW_HEADER_CHUNK ((size_t)65536) /* bytes of one read of what is read from start to end */
#define NW_SMALL_CHUNK ((size_t)4096)   /* of what is read here and there */

/* What all readers of one file share. */
typedef struct {
    nw_memory     *mem;
    nw_io         *io;
    const nw_file *file;
    const char    *path;
    uint64_t      *read_bytes; /* may be NULL */
} nw_source;

/* The chunk at hand. */
typedef struct {
    const nw_source *source;
    unsigned char   *buf;
    size_t           cap; /* bytes of buf, and of one read */
    uint64_t         offset;
    size_t           bytes; /* valid from offset on */
} nw_chunk;

/* `bytes` of one read: a power of two; raised to the file's alignment where that is larger. Close it also after a
 * failure.
 * Errors  NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_chunk_open(nw_chunk *chunk, const nw_source *source, size_t bytes, nw_error *err);
void                nw_chunk_close(nw_chunk *chunk);

/* Makes the byte at `pos` (within the file) available, and as many after it as one aligned read gives: at least one.
 * *ret_bytes is valid until the next call.
 * Errors  those of nw_io_run. */
NW_MUST_USE nw_code nw_chunk_fetch(nw_chunk *chunk, uint64_t pos, const unsigned char **ret_bytes, size_t *ret_len,
                                   nw_error *err);

/* Copies `len` bytes at `pos`, all within the file, by as many reads as it takes. */
NW_MUST_USE nw_code nw_chunk_copy(nw_chunk *chunk, uint64_t pos, void *ret, size_t len, nw_error *err);

/* Streams `bytes` at `offset`, within the file, into a strict JSON scan. `label` names it in messages.
 * Errors  those of nw_json and nw_io_run. */
NW_MUST_USE nw_code nw_chunk_scan(nw_chunk *chunk, const char *label, uint64_t offset, uint64_t bytes, nw_json_fn fn,
                                  void *user, nw_error *err);

/* The same with a chunk of its own. */
NW_MUST_USE nw_code nw_source_scan(const nw_source *source, const char *label, uint64_t offset, uint64_t bytes,
                                   nw_json_fn fn, void *user, nw_error *err);

/* `bytes` bytes, at most 8, as a little-endian number. */
uint64_t nw_le(const unsigned char *p, size_t bytes);

#endif

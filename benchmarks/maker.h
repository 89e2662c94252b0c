/* What the programs that make checkpoints share: the stream of tensor data with its progress line, and the small files.
 */
#ifndef NW_BENCHMARKS_MAKER_H
#define NW_BENCHMARKS_MAKER_H

#include "loader/io.h"
#include "loader/writer.h"
#include "normal.h"

/* The largest piece that nw_maker_piece gives; a multiple of every element size. */
#define NW_MAKER_PIECE_BYTES ((size_t)1 << 20)

typedef struct {
    nw_memory     *mem;
    nw_writer     *writer;
    nw_normal     *normal;
    unsigned char *buffer; /* NW_MAKER_PIECE_BYTES; `used` of them not yet written */
    size_t         used;
    uint64_t       done_bytes, total_bytes;
    uint64_t       start_ns, shown_ns;
    bool           terminal; /* stderr is one: show progress */
} nw_maker;

/* Creates `dir` (see nw_writer_open). total_bytes: of tensor data, for the progress line. Close also after a failure.
 */
NW_MUST_USE nw_code nw_maker_open(nw_memory *mem, const char *dir, uint64_t shard_bytes_max, uint64_t total_bytes,
                                  nw_maker *ret_maker, nw_error *err);

/* A place for the next `bytes` (at most NW_MAKER_PIECE_BYTES) of tensor data, to be filled before the next call. */
NW_MUST_USE nw_code nw_maker_piece(nw_maker *maker, size_t bytes, unsigned char **ret, nw_error *err);

/* The next count elements: zeros, or what maker->normal draws from `first` on. */
NW_MUST_USE nw_code nw_maker_zeros(nw_maker *maker, nw_dtype dtype, uint64_t count, nw_error *err);
NW_MUST_USE nw_code nw_maker_draw(nw_maker *maker, nw_dtype dtype, uint64_t key, uint64_t first, uint64_t count,
                                  nw_error *err);

/* Copies the tokenizer's files that `dir` has; with `generation` also generation_config.json. */
NW_MUST_USE nw_code nw_maker_carry(nw_maker *maker, nw_io *io, const char *dir, bool generation, nw_error *err);

/* Writes what is left and finishes the checkpoint; all data must have been given. */
NW_MUST_USE nw_code nw_maker_finish(nw_maker *maker, nw_error *err);

/* Seconds since nw_maker_open. */
double nw_maker_seconds(const nw_maker *maker);

/* Frees; a checkpoint that is not finished is removed. */
void nw_maker_close(nw_maker *maker);

/* An option's whole text as a decimal number of at most `max`; false if it is not one. */
bool nw_maker_number(const char *text, uint64_t max, uint64_t *ret);

#endif

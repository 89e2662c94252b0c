/* Files of a model, opened for direct reading.
 *
 * Weights go past the page cache (O_DIRECT): a cached copy would be memory that nobody counted. Where the file system
 * refuses O_DIRECT, reads are buffered with FADV_RANDOM and their pages dropped after use. Weights are never mapped: a
 * truncated file would be a SIGBUS.
 */
#ifndef NW_LOADER_FILE_H
#define NW_LOADER_FILE_H

#include "loader/io.h"

typedef struct {
    int      fd;         /* -1: not open */
    uint64_t size;       /* bytes, when it was opened */
    uint32_t align;      /* power of two: offsets, lengths and memory addresses of reads must be multiples */
    bool     direct;     /* O_DIRECT is in force */
    uint64_t device, inode; /* identity, with size and mtime */
    int64_t  mtime_ns;
} nw_file;

/* Opens a regular file (symlinks are followed to one) for reading.
 * Errors  NW_E_IO, naming the path: missing, unreadable; NW_E_FORMAT: a directory, FIFO, device or other non-regular
 *         file, an empty file, a git-lfs pointer, or an unfinished download (".incomplete"), called that. */
NW_MUST_USE nw_code nw_file_open(const char *path, nw_file *ret_file, nw_error *err);
void nw_file_close(nw_file *file); /* takes a closed one; sets fd to -1 */

/* A file of our own without a name, for what does not fit in memory: `bytes` long, read and written like the others,
 * gone when it is closed. In `dir`, or if that is NULL in the first of $TMPDIR, /var/tmp and the current directory that
 * is on a disk, not in memory, and has the room.
 * ret_dir  where it is.
 * Errors   NW_E_IO, naming the last directory that would not do, and why. */
NW_MUST_USE nw_code nw_file_scratch(const char *dir, uint64_t bytes, nw_file *ret_file, char ret_dir[256],
                                    nw_error *err);

/* NW_E_IO if the file at hand was truncated or replaced since it was opened. */
NW_MUST_USE nw_code nw_file_unchanged(const nw_file *file, const char *path, nw_error *err);

/* The aligned read that covers `bytes` at `offset` (within the file; bytes >= 1). */
typedef struct {
    uint64_t offset;       /* of the read, a multiple of align */
    size_t   bytes;        /* of the read, a multiple of align; may hang over the end of the file */
    size_t   bytes_needed; /* from `offset` to the end of what was asked for */
    size_t   skip;         /* where the wanted bytes start in the buffer */
    size_t   bytes_counted; /* of these, within the file: what bytes_read counts */
} nw_extent;
nw_extent nw_file_extent(const nw_file *file, uint64_t offset, uint64_t bytes);

/* Drops [offset, offset + bytes) from the page cache if the file is not read directly; otherwise nothing. */
void nw_file_drop(const nw_file *file, uint64_t offset, uint64_t bytes);

/* Reads `bytes` at `offset` to any address, through an aligned buffer of at most 256 KiB from `mem`.
 * read_bytes   what was read in all, alignment included, is added to it.
 * Errors       NW_E_FORMAT if the file ends before; NW_E_IO. */
NW_MUST_USE nw_code nw_file_read(nw_memory *mem, nw_io *io, const nw_file *file, const char *path, uint64_t offset,
                                 void *ret_bytes, size_t bytes, uint64_t *read_bytes, nw_error *err);

/* A whole small file (a configuration, a tokenizer) of at most `max` bytes, with a NUL behind it that is not counted.
 * Memory   *ret_data is from `mem` under `tag`, (*ret_bytes + 1) bytes of it; the caller frees it.
 * Errors   as nw_file_open; NW_E_FORMAT if larger than max. */
NW_MUST_USE nw_code nw_file_read_whole(nw_memory *mem, nw_tag tag, nw_io *io, const char *path, size_t max,
                                       char **ret_data, size_t *ret_bytes, uint64_t *read_bytes, nw_error *err);

/* Of the other files of this library: whether what is behind a descriptor is memory (tmpfs), and how it is switched to
 * direct access if that can be had (sets align and direct). */
bool                nw_file_in_memory(int fd);
NW_MUST_USE nw_code nw_file_set_mode(nw_file *file, const char *path, nw_error *err);

#endif

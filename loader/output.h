/* A directory that appears at once or not at all, and files in it that leave nothing in the page cache. Private to
 * loader/.
 *
 * Everything is written to DST.tmp-XXXXXX beside DST; nw_output_commit makes it DST by one rename, after all is on the
 * disk. What a crash leaves is a directory of another name.
 */
#ifndef NW_LOADER_OUTPUT_H
#define NW_LOADER_OUTPUT_H

#include "base/memory.h"

#include <limits.h>
#define XXH_STATIC_LINKING_ONLY /* states that are members */
#include <xxhash.h>

#define NW_OUTPUT_BLOCK ((size_t)4096)           /* the ends of direct writes */
#define NW_OUTPUT_BUFFER_BYTES ((size_t)1 << 20) /* of one write */

typedef struct {
    nw_memory *mem;
    char       dir[PATH_MAX];  /* DST, without slashes at its end */
    char       temp[PATH_MAX]; /* empty: not made, or renamed */
    int        temp_fd;
    bool       failed; /* an error was returned; only close */
    /* the file at hand */
    int            fd; /* -1: none */
    bool           direct;
    unsigned char *buf; /* NW_OUTPUT_BUFFER_BYTES */
    size_t         buffered;
    uint64_t       written, dropped; /* of the file */
} nw_output;

/* Refuses a target that holds something, and makes the temporary directory. Close it also after a failure.
 * Errors  NW_E_ARG (no name for a directory), NW_E_IO, NW_E_MEMORY, NW_E_BUDGET. */
NW_MUST_USE nw_code nw_output_open(nw_output *out, nw_memory *mem, const char *dir, nw_error *err);

/* An error with the directory's name, `what`, and after it `name` unless that is empty. Returns `code`. */
nw_code nw_output_fail(nw_output *out, nw_error *err, nw_code code, int os_errno, const char *what, const char *name);

/* NW_E_IO if fewer than `bytes` are free on the disk. */
NW_MUST_USE nw_code nw_output_room(nw_output *out, uint64_t bytes, nw_error *err);

/* One large file through the buffer: new, from its start, complete when it has ended. */
NW_MUST_USE nw_code nw_output_begin(nw_output *out, const char *name, nw_error *err);
NW_MUST_USE nw_code nw_output_put(nw_output *out, const void *bytes, size_t len, nw_error *err);
NW_MUST_USE nw_code nw_output_end(nw_output *out, nw_error *err);

/* Replaces the first NW_OUTPUT_BLOCK bytes of a file that has ended, and waits for the disk. */
NW_MUST_USE nw_code nw_output_rewrite(nw_output *out, const char *name, const void *block, nw_error *err);
NW_MUST_USE nw_code nw_output_rename(nw_output *out, const char *from, const char *to, nw_error *err);

/* A small file; a second call with its name appends. `name` must be a plain file name (NW_E_ARG). */
NW_MUST_USE nw_code nw_output_small(nw_output *out, const char *name, const void *bytes, size_t len, nw_error *err);

/* The temporary directory becomes DST. */
NW_MUST_USE nw_code nw_output_commit(nw_output *out, nw_error *err);

/* Removes what was not committed. Takes one whose opening failed, and a zeroed one. */
void nw_output_close(nw_output *out);

/* Text, measured or written to the file at hand. */
typedef struct {
    nw_output    *out;  /* NULL: only counted */
    XXH3_state_t *hash; /* of all that was put; NULL: none */
    uint64_t      bytes;
    nw_code       rc; /* of the first put that failed */
    nw_error     *err;
} nw_text;

void nw_text_put(nw_text *text, const char *bytes, size_t len);
void nw_text_say(nw_text *text, const char *words);
void nw_text_u64(nw_text *text, uint64_t value);
void nw_text_hex(nw_text *text, uint64_t value);        /* 16 digits */
void nw_text_string(nw_text *text, const char *string); /* in quotes; it must have no control characters */

#endif

/* Results as a file of tensors, .safetensors or .npy by its name: written as they come, and there only when complete.
 *
 * Tensors are written one behind the other. What a result's first dimension is may be known only at its end (how many
 * tokens an answer has), so it follows from what was written, and the header is filled in behind the data. Bytes go
 * straight to a temporary file beside the target, which takes its place by tensor_file_finish; written pages are
 * dropped from the page cache, so that a budget holds as the limit of a control group too.
 *
 * Functions that return int print what is wrong and return -1 to go on, or the exit status.
 */
#ifndef NW_TOOLS_TENSOR_FILE_H
#define NW_TOOLS_TENSOR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { TENSOR_F32, TENSOR_I32 } tensor_type;

enum { TENSOR_NAME_MAX = 63, TENSOR_INNER_MAX = 2, TENSOR_PATH_MAX = 4096 };

/* Zero-initialise it. */
typedef struct {
    char     path[TENSOR_PATH_MAX], temp[TENSOR_PATH_MAX + 32]; /* temp is empty when there is none */
    int      fd;
    bool     npy;
    uint64_t header_bytes; /* before the data */
    uint64_t header_used;  /* of these, of a .safetensors; its last bytes are written by the end */
    uint64_t data_bytes;   /* written so far */
    uint64_t dropped;      /* of the file's bytes, from the page cache */
    /* the tensor at hand */
    char        name[TENSOR_NAME_MAX + 1];
    tensor_type type;
    uint64_t    inner[TENSOR_INNER_MAX];
    size_t      inner_count;
    uint64_t    start; /* in data_bytes */
} tensor_file;

/* True if the name ends in .npy: a file of exactly one tensor. */
bool tensor_file_is_npy(const char *path);

/* True if the name has one of the two endings; otherwise tensor_file_open refuses it. */
bool tensor_file_is_named(const char *path);

/* Makes the temporary file.
 * path        the target; ends in .safetensors or .npy; replaced if it is there, also behind a link.
 * tensor_max  the most tensors that will be written: room for the header (.npy: 1). */
int tensor_file_open(tensor_file *file, const char *path, size_t tensor_max);

/* Begins a tensor [?, inner...], row-major: its first dimension is counted. inner_count is 0 to 2; names are ASCII
 * without quotes, at most 63 bytes. */
int tensor_file_begin(tensor_file *file, const char *name, tensor_type type, const uint64_t *inner, size_t inner_count);

/* Appends elements of 4 bytes. */
int tensor_file_write(tensor_file *file, const void *elements, size_t count);

/* Ends the tensor: whole rows must have been written, perhaps none. */
int tensor_file_end(tensor_file *file);

/* Header, fsync, rename. After a failure nothing is left. */
int tensor_file_finish(tensor_file *file);

/* Removes what was written, if anything. */
void tensor_file_abandon(tensor_file *file);

#endif

/* A checkpoint: which tensors its files hold, of what type and shape, and where. Knows no T5.
 *
 * Opened from headers alone, through the same reader as the weights. Formats: safetensors, and what torch.save writes
 * (pytorch_model.bin); one file, or many with an index. A file's first bytes say which it is.
 * Rules that are enforced: ARCHITECTURE.md, "What a checkpoint may not do".
 */
#ifndef NW_LOADER_CHECKPOINT_H
#define NW_LOADER_CHECKPOINT_H

#include "base/dtype.h"
#include "loader/pack.h"

#define NW_TENSOR_DIMS_MAX 8

typedef struct {
    const char *name;  /* NUL-terminated; belongs to the checkpoint */
    bool        known; /* its type is one of nw_dtype; others are listed but cannot be run */
    nw_dtype    dtype;
    char        dtype_name[12]; /* as safetensors calls it: "BF16", "I64" */
    uint32_t    dim_count;
    uint64_t    dims[NW_TENSOR_DIMS_MAX];
    uint32_t    file;   /* index into the checkpoint's files */
    uint64_t    offset; /* bytes from the start of that file */
    uint64_t    bytes;
} nw_tensor;

typedef struct nw_checkpoint nw_checkpoint;

/* Opens a model directory (model.safetensors, model.safetensors.index.json with its shards, pytorch_model.bin,
 * pytorch_model.bin.index.json: the first of these that is there), one file of weights, or an index by its own name.
 *
 * Tied tensors of a PyTorch file share their place (file, offset and bytes); each is listed.
 *
 * Memory      from `mem`, tag NW_TAG_INDEX: the tables, and up to 16 MiB while headers are parsed.
 * read_bytes  what was read is added to it; may be NULL.
 * Errors      NW_E_IO, NW_E_FORMAT, NW_E_UNSUPPORTED (another format, an adapter, a training checkpoint: says so),
 *             NW_E_MEMORY, NW_E_BUDGET.
 *             Every message names the file and what is wrong with it. */
NW_MUST_USE nw_code nw_checkpoint_open(nw_memory *mem, nw_io *io, const char *path, const nw_log *log,
                                       uint64_t *read_bytes, nw_checkpoint **ret_checkpoint, nw_error *err);
nw_checkpoint      *nw_checkpoint_close(nw_checkpoint *checkpoint); /* takes NULL; returns NULL */

size_t           nw_checkpoint_tensor_count(const nw_checkpoint *checkpoint);
const nw_tensor *nw_checkpoint_tensor(const nw_checkpoint *checkpoint, size_t index);           /* sorted by name */
size_t           nw_checkpoint_index(const nw_checkpoint *checkpoint, const nw_tensor *tensor); /* of one of these */
const nw_tensor *nw_checkpoint_find(const nw_checkpoint *checkpoint, const char *name);         /* NULL: not there */

size_t         nw_checkpoint_file_count(const nw_checkpoint *checkpoint);
const nw_file *nw_checkpoint_file(const nw_checkpoint *checkpoint, size_t index);
const char    *nw_checkpoint_file_path(const nw_checkpoint *checkpoint, size_t index);

/* NULL: no pack. Of a pack, tensor `index` of nw_checkpoint_tensor is tensor `index` of nw_pack_tensor_at: its dtype is
 * the type of its values once restored (f32 for q8 and q4), dtype_name the stored type, bytes those of all its strips.
 * Where a matrix's tiles are only the pack tells; a vector's one strip is plain and stands at `offset`. */
const nw_pack *nw_checkpoint_pack(const nw_checkpoint *checkpoint);

/* The directory that holds the checkpoint (where config.json and the tokenizer are looked for). */
const char *nw_checkpoint_dir(const nw_checkpoint *checkpoint);

/* The directory for a model name: a path is taken as it is; "owner/name" that is no path is looked up in the local
 * Hugging Face cache ($HF_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in $XDG_CACHE_HOME or ~/.cache:
 * models--owner--name/snapshots/<refs/main>).
 * Writes a NUL-terminated path to buf.
 * Errors  NW_E_ARG: no such path, and not in the cache; the message has the command that would fetch it. */
NW_MUST_USE nw_code nw_model_path_find(const char *name, char *buf, size_t cap, nw_error *err);

#endif

/* Which format a file is of, by its first bytes. */
#include "weights.h"

#include "safetensors.h"
#include "torch_legacy.h"
#include "torch_zip.h"

#include <string.h>

#define HEAD_BYTES 512u /* a tar archive says so at byte 257 */

typedef nw_code (*reader)(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                          void *name_user, nw_error *err);

/* A header that fits the file: what no other format's first bytes look like. */
static bool is_safetensors(const unsigned char *head, uint64_t size)
{
    uint64_t len = nw_le(head, 8);
    return len <= NW_HEADER_BYTES_MAX && len <= size - 8;
}

/* MessagePack, as Flax writes it: a map whose first key is a string. */
static bool is_msgpack(const unsigned char *head)
{
    const unsigned char *key = head + (head[0] == 0xde ? 3 : head[0] == 0xdf ? 5 : 1);
    bool                 is_map = (head[0] > 0x80 && head[0] < 0x90) || head[0] == 0xde || head[0] == 0xdf;
    return is_map && ((key[0] >= 0xa1 && key[0] < 0xc0) || key[0] == 0xd9);
}

/* What else it may be; NULL: nothing known. `head` has HEAD_BYTES, zeros behind the file's end. */
static const char *other_format(const unsigned char *head)
{
    if (memcmp(head, "GGUF", 4) == 0)
        return "a GGUF file";
    if (memcmp(head, "\x89HDF", 4) == 0)
        return "an HDF5 file, as TensorFlow writes";
    if (memcmp(head + 257, "ustar", 5) == 0)
        return "a tar archive, as torch.save wrote before version 0.2: load it with a newer one and save it again";
    if (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5)
        return "a Python pickle, but not one of torch.save";
    return is_msgpack(head) ? "a MessagePack file, as Flax writes" : NULL;
}

static nw_code choose(const nw_source *source, const unsigned char *head, reader *ret, nw_error *err)
{
    const char *other = NULL;
    if (memcmp(head, "PK\3\4", 4) == 0)
        *ret = nw_torch_zip_read;
    else if (memcmp(head, NW_TORCH_LEGACY_MAGIC, sizeof NW_TORCH_LEGACY_MAGIC - 1) == 0)
        *ret = nw_torch_legacy_read;
    else if (source->file->size < 8 || is_safetensors(head, source->file->size))
        *ret = nw_safetensors_read;
    else
        other = other_format(head);
    if (other != NULL) {
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s' is %s; safetensors and PyTorch checkpoints can be read",
                       source->path, other);
    }
    if (*ret == NULL)
        *ret = nw_safetensors_read; /* which says that it is none */
    return NW_OK;
}

nw_code nw_weights_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                        void *name_user, nw_error *err)
{
    unsigned char head[HEAD_BYTES] = {0};
    nw_chunk      chunk;
    reader        read = NULL;
    nw_code       rc = nw_chunk_open(&chunk, source, NW_SMALL_CHUNK, err);
    if (rc == NW_OK)
        rc = nw_chunk_copy(&chunk, 0, head, (size_t)nw_min_u64(sizeof head, source->file->size), err);
    nw_chunk_close(&chunk);
    if (rc == NW_OK)
        rc = choose(source, head, &read, err);
    return rc == NW_OK ? read(source, file, table, name_fn, name_user, err) : rc;
}

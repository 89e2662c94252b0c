/* unpack: any model that opens, written as Hugging Face safetensors.
 *
 * The tensors are sorted as a run uses them, block by block, which is also what keeps a block in one shard. Bytes go
 * from the reader's buffers to the writer's, a piece at a time, so the memory is a constant whatever the model's size.
 * Tensors that share one place in the source (tied storages of a .bin) are written once, under the name that the model
 * asks for.
 *
 * Of a pack, tiles take the place of pieces: each tensor's in order, the next one read while one is checked and
 * restored, and written in the type that the tensor had before it was packed, where the pack still has its values.
 */
#include "base/sort.h"
#include "copying.h"
#include "loader/stream.h"
#include "loader/writer.h"
#include "pack_read.h"
#include "side_files.h"
#include "ties.h"

#include <stdio.h>
#include <string.h>

#define SHARD_BYTES_USUAL ((uint64_t)2000000000)

/* A tensor of the checkpoint, or another name for one. */
typedef struct {
    const nw_tensor *tensor;
    const char      *name; /* without the model's prefix */
    nw_name_place    place;
    const char      *kept;   /* not NULL: written under this name, being the same bytes */
} entry;

typedef struct {
    nw_model                *model;
    const nw_unpack_options *options;
    nw_unpack_result        *result;
    entry                   *entries; /* [room], of which count are used */
    size_t                   count, room;
    nw_io                   *io;
    nw_stream               *stream;
    nw_pack_reader          *reader; /* NULL: no pack */
    nw_writer               *writer;
    unsigned char           *converted; /* a piece in its new type, which may be twice as large */
    nw_progress              progress;  /* bytes of weights read */
} unpacking;

#define CONVERTED_BYTES (2 * NW_STREAM_PIECE)

/* ---- what is written ---- */

/* The type in the checkpoint; of a lossy tensor of a pack, that of what is left of it. */
static nw_dtype own_type(const nw_model *m, const nw_tensor *t)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    if (pack == NULL)
        return t->dtype;
    nw_pack_tensor p = nw_pack_tensor_at(pack, nw_checkpoint_index(m->checkpoint, t));
    return p.lossy ? t->dtype : p.source;
}

static nw_dtype new_type(const unpacking *u, const nw_tensor *t)
{
    switch (u->options->type) {
    case NW_TYPE_KEEP: return own_type(u->model, t);
    case NW_TYPE_F32: return NW_F32;
    case NW_TYPE_BF16: return NW_BF16;
    case NW_TYPE_F16: return NW_F16;
    case NW_TYPE_Q8:
    case NW_TYPE_Q4: break;
    }
    nw_trap("a type", __FILE__, __LINE__);
}

static bool changes_type(const unpacking *u, const nw_tensor *t)
{
    return t->known && new_type(u, t) != t->dtype;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* As a run uses them; within a block by name. */
static int compare_places(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int          order = compare_u64(x->place.part, y->place.part);
    if (order == 0)
        order = compare_u64(x->place.block, y->place.block);
    return order != 0 ? order : strcmp(x->name, y->name);
}

static nw_code list_tensors(unpacking *u, nw_error *err)
{
    const nw_checkpoint *c = u->model->checkpoint;
    size_t               room = nw_checkpoint_tensor_count(c);
    uint32_t            *kept = NULL;
    u->entries = nw_memory_alloc(&u->model->memory, NW_TAG_INDEX, room, sizeof *u->entries);
    if (u->entries == NULL)
        return nw_memory_fail(&u->model->memory, err, room * sizeof *u->entries, u->model->path);
    u->room = room;
    nw_code rc = nw_ties_find(u->model, &kept, err);
    if (rc != NW_OK)
        return rc;
    for (uint32_t i = 0; i < room; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        const char      *name = nw_model_tensor_name(u->model, t);
        bool             tied = kept[i] != i;
        if (name == NULL || name[0] == '\0')
            continue;
        u->entries[u->count++] =
            (entry){.tensor = t,
                    .name = name,
                    .place = nw_tensor_name_place(name),
                    .kept = tied ? nw_model_tensor_name(u->model, nw_checkpoint_tensor(c, kept[i])) : NULL};
        u->result->alias_count += tied;
        u->progress.total += tied ? 0 : t->bytes;
    }
    nw_ties_free(u->model, kept);
    nw_sort(u->entries, u->count, sizeof *u->entries, compare_places);
    return NW_OK;
}

static nw_code declare_tensor(unpacking *u, const entry *e, nw_error *err)
{
    const nw_tensor *t = e->tensor;
    if (e->kept != NULL)
        return nw_writer_alias(u->writer, e->name, e->kept, err);
    u->result->tensor_count++;
    if (!changes_type(u, t) && u->reader == NULL)
        return nw_writer_declare_like(u->writer, e->name, t, err);
    nw_tensor converted = *t;
    nw_dtype  type = new_type(u, t);
    uint64_t  elements = t->bytes / nw_dtype_bytes(t->dtype);
    if (u->reader != NULL)
        elements = t->dims[0] * (t->dim_count > 1 ? t->dims[1] : 1);
    snprintf(converted.dtype_name, sizeof converted.dtype_name, "%s",
             type == NW_F32    ? "F32"
             : type == NW_BF16 ? "BF16"
                               : "F16");
    converted.bytes = elements * nw_dtype_bytes(type); /* at most twice what is within a file */
    return nw_writer_declare_like(u->writer, e->name, &converted, err);
}

/* A pack's other names for its tensors, as they were in what was packed. */
static nw_code declare_pack_aliases(unpacking *u, nw_error *err)
{
    const nw_pack *pack = nw_checkpoint_pack(u->model->checkpoint);
    nw_code        rc = NW_OK;
    for (size_t i = 0; pack != NULL && i < nw_pack_alias_count(pack) && rc == NW_OK; i++) {
        nw_pack_alias a = nw_pack_alias_at(pack, i);
        rc = nw_writer_alias(u->writer, a.name, a.kept, err);
        u->result->alias_count++;
    }
    return rc;
}

static nw_code declare_all(unpacking *u, nw_error *err)
{
    nw_code      rc = NW_OK;
    const entry *last = NULL;
    for (size_t i = 0; i < u->count && rc == NW_OK; i++) {
        const entry *e = &u->entries[i];
        bool         block = e->place.part == NW_PART_ENCODER_BLOCK || e->place.part == NW_PART_DECODER_BLOCK;
        bool         goes_on =
            block && last != NULL && last->place.part == e->place.part && last->place.block == e->place.block;
        if (!goes_on)
            rc = nw_writer_group(u->writer, err);
        if (rc == NW_OK)
            rc = declare_tensor(u, e, err);
        last = e;
    }
    return rc == NW_OK ? declare_pack_aliases(u, err) : rc;
}

/* ---- the weights ---- */

static nw_code write_piece(unpacking *u, const nw_tensor *t, const void *bytes, size_t len, nw_error *err)
{
    if (!changes_type(u, t)) {
        u->result->written_bytes += len;
        return nw_writer_data(u->writer, bytes, len, err);
    }
    nw_dtype type = new_type(u, t);
    size_t   n = len / nw_dtype_bytes(t->dtype);
    uint64_t infinite = 0;
    nw_dtype_convert(type, u->converted, t->dtype, bytes, n, &u->result->rounded, &infinite);
    if (infinite > 0) {
        return nw_fail(err, NW_E_ARG, 0, "tensor %s holds weights beyond the range of %s; bf16 has the range of f32",
                       t->name, nw_dtype_name(type));
    }
    if (u->options->type == NW_TYPE_KEEP && u->result->rounded > 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor %s is said to hold what it held in %s, and does not",
                       u->model->path, t->name, nw_dtype_name(type));
    if (u->options->type != NW_TYPE_KEEP)
        u->result->converted += n;
    u->result->written_bytes += n * nw_dtype_bytes(type);
    return nw_writer_data(u->writer, u->converted, n * nw_dtype_bytes(type), err);
}

static nw_code write_tensor(unpacking *u, const entry *e, nw_error *err)
{
    const nw_model  *m = u->model;
    const nw_tensor *t = e->tensor;
    const void      *bytes;
    size_t           len = 0;
    nw_code          rc;
    if (e->kept != NULL || t->bytes == 0)
        return NW_OK;
    nw_stream_begin(u->stream, nw_checkpoint_file(m->checkpoint, t->file),
                    nw_checkpoint_file_path(m->checkpoint, t->file), t->offset, t->bytes);
    do {
        rc = nw_stream_next(u->stream, &bytes, &len, &u->result->read_bytes, err);
        if (rc == NW_OK && len > 0)
            rc = write_piece(u, t, bytes, len, err);
        u->progress.done += len;
        if (rc == NW_OK)
            rc = nw_progress_report(&u->progress, err);
    } while (rc == NW_OK && len > 0);
    return rc;
}

/* ---- the weights of a pack ---- */

/* Writes the tile that was started last, and starts the one that comes next; `next` SIZE_MAX: none. */
static nw_code write_tile(unpacking *u, const nw_tensor *t, size_t tile, size_t next, nw_error *err)
{
    nw_pack_tile record = nw_pack_tile_at(nw_checkpoint_pack(u->model->checkpoint), tile);
    size_t       size = nw_dtype_bytes(t->dtype);
    nw_code      rc = nw_pack_reader_wait(u->reader, err);
    if (rc == NW_OK && next != SIZE_MAX)
        nw_pack_reader_start(u->reader, next);
    for (uint32_t i = 0; i < record.strip_count && rc == NW_OK; i++) {
        const void *values;
        size_t      n;
        rc = nw_pack_reader_strip(u->reader, i, &values, &n, err);
        for (size_t at = 0; rc == NW_OK && at < n * size; at += NW_STREAM_PIECE)
            rc =
                write_piece(u, t, (const unsigned char *)values + at, nw_min_size(NW_STREAM_PIECE, n * size - at), err);
        u->progress.done +=
            nw_pack_strip_at(nw_checkpoint_pack(u->model->checkpoint), (size_t)record.strip_first + i).bytes;
    }
    return rc == NW_OK ? nw_progress_report(&u->progress, err) : rc;
}

static nw_pack_tensor packed_tensor(const unpacking *u, size_t entry_index)
{
    const nw_checkpoint *c = u->model->checkpoint;
    const nw_tensor     *t = u->entries[entry_index].tensor;
    return nw_pack_tensor_at(nw_checkpoint_pack(c), nw_checkpoint_index(c, t));
}

/* Each tensor of a pack has tiles of its own: what is tied in it is recorded in the manifest. */
static nw_code write_packed(unpacking *u, nw_error *err)
{
    nw_code rc = NW_OK;
    if (u->count > 0)
        nw_pack_reader_start(u->reader, packed_tensor(u, 0).tile_first);
    for (size_t i = 0; i < u->count && rc == NW_OK; i++) {
        nw_pack_tensor p = packed_tensor(u, i);
        size_t         after = i + 1 < u->count ? packed_tensor(u, i + 1).tile_first : SIZE_MAX;
        NW_CHECK(u->entries[i].kept == NULL);
        u->result->lossy = u->result->lossy || p.lossy;
        for (uint32_t k = 0; k < p.tile_count && rc == NW_OK; k++) {
            size_t tile = (size_t)p.tile_first + k;
            rc = write_tile(u, u->entries[i].tensor, tile, k + 1 < p.tile_count ? tile + 1 : after, err);
        }
    }
    return rc;
}

static nw_code write_weights(unpacking *u, nw_error *err)
{
    nw_code rc = NW_OK;
    if (u->reader != NULL)
        return write_packed(u, err);
    for (size_t i = 0; i < u->count && rc == NW_OK; i++)
        rc = write_tensor(u, &u->entries[i], err);
    return rc;
}

/* ---- the small files ---- */

/* What config.json is to say: what was asked for; or, where a pack has its weights in another type than the one that
 * is written, that of the embedding. */
static nw_type config_type(const unpacking *u)
{
    static const nw_type types[NW_DTYPE_COUNT] = {
        [NW_F32] = NW_TYPE_F32, [NW_BF16] = NW_TYPE_BF16, [NW_F16] = NW_TYPE_F16};
    const nw_model  *m = u->model;
    const nw_pack   *pack = nw_checkpoint_pack(m->checkpoint);
    const nw_tensor *embed = m->places[m->tensors.embed].tensor;
    if (u->options->type != NW_TYPE_KEEP || pack == NULL)
        return u->options->type;
    nw_pack_tensor p = nw_pack_tensor_at(pack, nw_checkpoint_index(m->checkpoint, embed));
    return p.stored == nw_stored_of(own_type(m, embed)) ? NW_TYPE_KEEP : types[own_type(m, embed)];
}

static nw_code put_file(void *user, const char *name, const void *bytes, size_t len, nw_error *err)
{
    return nw_writer_file(((unpacking *)user)->writer, name, bytes, len, err);
}

static nw_code write_small_files(unpacking *u, nw_error *err)
{
    nw_side_files files = {.model = u->model,
                           .io = u->io,
                           .stream = u->stream,
                           .type = config_type(u),
                           .read_bytes = &u->result->read_bytes,
                           .put = put_file,
                           .user = u};
    return nw_side_files_copy(&files, err);
}

/* ---- together ---- */

static nw_code check_budget(const unpacking *u, const nw_io_options *io, nw_error *err)
{
    const nw_model *m = u->model;
    size_t          count = nw_checkpoint_tensor_count(m->checkpoint);
    uint64_t        bytes = m->memory.live + nw_writer_declared_bytes(count) + CONVERTED_BYTES +
                     count * sizeof(entry) + nw_ties_bytes(count);
    if (nw_checkpoint_pack(m->checkpoint) != NULL)
        bytes += nw_pack_reader_bytes(m) + NW_PACK_HASH_BYTES;
    return nw_copying_check_budget(u->options->budget_bytes, bytes, io, "writing", u->options->dir, err);
}

static nw_code open_parts(unpacking *u, nw_error *err)
{
    nw_model     *m = u->model;
    nw_memory    *mem = &m->memory;
    nw_io_options io = nw_copying_io(m->io, &m->log);
    uint64_t      shard_bytes = u->options->shard_bytes_max;
    nw_code       rc = nw_model_check_files(m, err);
    if (rc == NW_OK)
        rc = check_budget(u, &io, err);
    if (rc == NW_OK)
        rc = nw_device_open(mem, m->hooks, &io, &u->io, err);
    if (rc == NW_OK)
        rc = nw_stream_open(mem, u->io, &u->stream, err);
    if (rc == NW_OK && nw_checkpoint_pack(u->model->checkpoint) != NULL)
        rc = nw_pack_reader_open(u->model, u->io, &u->result->read_bytes, &u->reader, err);
    if (rc != NW_OK)
        return rc;
    u->converted = nw_memory_map(mem, NW_TAG_IO, CONVERTED_BYTES, false);
    if (u->converted == NULL)
        return nw_memory_fail(mem, err, CONVERTED_BYTES, "converting");
    return nw_writer_open(mem, u->options->dir, shard_bytes != 0 ? shard_bytes : SHARD_BYTES_USUAL, &u->writer, err);
}

static void close_parts(unpacking *u)
{
    nw_memory *mem = &u->model->memory;
    nw_writer_close(u->writer);
    nw_memory_unmap(mem, NW_TAG_IO, u->converted, CONVERTED_BYTES);
    nw_pack_reader_close(u->reader);
    nw_stream_close(u->stream);
    nw_io_close(u->io);
    nw_memory_free(mem, NW_TAG_INDEX, u->entries, u->room, sizeof *u->entries);
}

nw_code nw_model_unpack(nw_model *m, const nw_unpack_options *options, nw_unpack_result *ret, nw_error *err)
{
    unpacking u = {.model = m,
                   .options = options,
                   .result = ret,
                   .progress = {.on_progress = options->on_progress, .user = options->user}};
    *ret = (nw_unpack_result){0};
    if (options->dir == NULL || options->dir[0] == '\0')
        return nw_fail(err, NW_E_ARG, 0, "no directory to write to");
    if (options->type > NW_TYPE_F16)
        return nw_fail(err, NW_E_ARG, 0, "q8 and q4 are types of packs");
    nw_model_tokenizer_release(m);
    nw_code rc = open_parts(&u, err);
    if (rc == NW_OK)
        rc = list_tensors(&u, err);
    if (rc == NW_OK)
        rc = declare_all(&u, err);
    if (rc == NW_OK)
        rc = write_weights(&u, err);
    if (rc == NW_OK)
        rc = write_small_files(&u, err);
    if (rc == NW_OK)
        rc = nw_model_check_files(m, err); /* what was read is what was opened */
    if (rc == NW_OK)
        rc = nw_writer_finish(u.writer, err);
    if (rc == NW_OK)
        ret->shard_count = nw_writer_shard_count(u.writer);
    close_parts(&u);
    return rc;
}

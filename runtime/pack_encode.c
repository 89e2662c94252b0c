#include "pack_encode.h"

#include "copying.h"
#include "team.h"

#include <stdio.h>
#include <string.h>

/* What one strip became. */
typedef struct {
    nw_pack_strip_data data;
    uint64_t           rounded, infinite;
} outcome;

struct nw_pack_encoder {
    nw_model            *model;
    nw_memory           *mem;
    nw_type              type;
    nw_compress          compress;
    unsigned             threads;
    nw_workers          *workers;
    size_t               strip_room, strips_max; /* bytes of a strip in its largest form; strips of a tile */
    unsigned char       *encoded;                /* [strips_max, strip_room] */
    unsigned char       *scratch;                /* [threads, 2, strip_room]: converted, widened */
    unsigned char       *codecs;                 /* [threads, codec_room] */
    size_t               codec_room;
    nw_packed          **packed;   /* [threads] */
    outcome             *outcomes; /* [strips_max] */
    nw_pack_strip_data  *strips;
    uint32_t             embed, stride; /* of the embedding */
    uint64_t             rounded;
    nw_ahead             ahead;
    const nw_tensor     *reading;
    const unsigned char *tile; /* that was waited for last */
};

/* ---- sizes ---- */

bool nw_pack_can_store(const nw_tensor *t)
{
    bool full = t->known && (t->dim_count == 1 || t->dim_count == 2);
    for (uint32_t i = 0; i < t->dim_count && full; i++)
        full = t->dims[i] > 0;
    return full;
}

nw_cut nw_pack_cut(const nw_tensor *t)
{
    return t->dim_count == 1 ? nw_cut_make(1, t->dims[0]) : nw_cut_make(t->dims[0], t->dims[1]);
}

static uint64_t cut_rows(const nw_tensor *t)
{
    return t->dim_count == 1 ? 1 : t->dims[0];
}

void nw_pack_count(const nw_model *m, uint64_t *ret_tiles, uint64_t *ret_strips)
{
    *ret_tiles = *ret_strips = 0;
    for (size_t i = 0; i < nw_checkpoint_tensor_count(m->checkpoint); i++) {
        const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
        if (!nw_pack_can_store(t))
            continue;
        nw_cut cut = nw_pack_cut(t);
        *ret_tiles += cut.tile_count;
        for (uint64_t k = 0; k < cut.tile_count; k++)
            *ret_strips += nw_cut_strips(&cut, nw_cut_rows(&cut, (uint32_t)k));
    }
}

static nw_extent tile_extent(const nw_model *m, uint32_t tensor, uint32_t tile)
{
    const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, tensor);
    nw_cut           cut = nw_pack_cut(t);
    uint64_t         row_bytes = cut.cols * nw_dtype_bytes(t->dtype);
    return nw_file_extent(nw_checkpoint_file(m->checkpoint, t->file), t->offset + nw_cut_first(&cut, tile) * row_bytes,
                          nw_cut_rows(&cut, tile) * row_bytes);
}

/* The largest rooms that any tensor asks for. */
static void find_rooms(const nw_model *m, size_t *ret_read, size_t *ret_strip, size_t *ret_strips)
{
    *ret_read = *ret_strip = *ret_strips = 0;
    for (uint32_t i = 0; i < nw_checkpoint_tensor_count(m->checkpoint); i++) {
        const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
        if (!nw_pack_can_store(t))
            continue;
        nw_cut   cut = nw_pack_cut(t);
        uint64_t rows = nw_min_u64(cut.strip_rows, cut_rows(t)),
                 align = nw_checkpoint_file(m->checkpoint, t->file)->align;
        uint64_t tile_rows = nw_cut_rows(&cut, 0);
        *ret_read = nw_max_size(*ret_read, (size_t)(tile_rows * cut.cols * nw_dtype_bytes(t->dtype) + 2 * align));
        *ret_strip = nw_max_size(*ret_strip, (size_t)(rows * cut.cols * sizeof(float)));
        *ret_strips = nw_max_size(*ret_strips, (size_t)nw_cut_strips(&cut, tile_rows));
    }
    *ret_read = (size_t)nw_round_up(*ret_read, 65536);
    *ret_strip = (size_t)nw_round_up(*ret_strip, 64);
}

uint64_t nw_pack_encoder_bytes(const nw_model *m, unsigned threads)
{
    size_t read, strip, strips;
    find_rooms(m, &read, &strip, &strips);
    return sizeof(nw_pack_encoder) + 2 * (uint64_t)read + strips * (strip + sizeof(outcome)) +
           threads * (2 * (uint64_t)strip + nw_packed_workspace_bytes(NW_PACKED_ENCODE) + 4096);
}

/* ---- open and close ---- */

static nw_code take_rooms(nw_pack_encoder *e, size_t *ret_read_room, nw_error *err)
{
    size_t threads = e->threads;
    find_rooms(e->model, ret_read_room, &e->strip_room, &e->strips_max);
    e->codec_room = (size_t)nw_round_up(nw_packed_workspace_bytes(NW_PACKED_ENCODE), 64);
    e->encoded = nw_memory_map(e->mem, NW_TAG_SESSION, e->strips_max * e->strip_room, false);
    e->scratch = nw_memory_map(e->mem, NW_TAG_SESSION, threads * 2 * e->strip_room, false);
    e->codecs = nw_memory_map(e->mem, NW_TAG_SESSION, threads * e->codec_room, false);
    e->packed = nw_memory_alloc(e->mem, NW_TAG_SESSION, threads, sizeof(nw_packed *));
    e->outcomes = nw_memory_alloc(e->mem, NW_TAG_SESSION, e->strips_max, sizeof *e->outcomes);
    e->strips = nw_memory_alloc(e->mem, NW_TAG_SESSION, e->strips_max, sizeof *e->strips);
    if (e->encoded == NULL || e->scratch == NULL || e->codecs == NULL || e->packed == NULL || e->outcomes == NULL ||
        e->strips == NULL)
        return nw_memory_fail(e->mem, err, (size_t)nw_pack_encoder_bytes(e->model, e->threads), "packing");
    for (size_t i = 0; i < threads; i++)
        e->packed[i] = nw_packed_init(e->codecs + i * e->codec_room, e->codec_room, NW_PACKED_ENCODE);
    return NW_OK;
}

nw_code nw_pack_encoder_open(nw_model *m, nw_io *io, nw_type type, nw_compress compress, unsigned threads,
                             uint64_t *read_bytes, nw_pack_encoder **ret_encoder, nw_error *err)
{
    nw_pack_encoder *e = nw_memory_alloc(&m->memory, NW_TAG_SESSION, 1, sizeof *e);
    if (e == NULL)
        return nw_memory_fail(&m->memory, err, sizeof *e, "packing");
    e->model = m;
    e->mem = &m->memory;
    e->type = type;
    e->compress = compress;
    e->threads = threads;
    e->embed = (uint32_t)nw_checkpoint_index(m->checkpoint, m->places[m->tensors.embed].tensor);
    size_t  read_room = 0;
    nw_code rc = take_rooms(e, &read_room, err);
    if (rc == NW_OK)
        rc = nw_ahead_open(&e->ahead, e->mem, io, read_room, read_bytes, err);
    if (rc == NW_OK)
        rc = nw_workers_open(e->mem, threads, &e->workers, err);
    if (rc != NW_OK) {
        nw_pack_encoder_close(e);
        return rc;
    }
    *ret_encoder = e;
    return NW_OK;
}

nw_pack_encoder *nw_pack_encoder_close(nw_pack_encoder *e)
{
    if (e == NULL)
        return NULL;
    nw_ahead_close(&e->ahead);
    nw_workers_close(e->workers);
    nw_memory_unmap(e->mem, NW_TAG_SESSION, e->encoded, e->strips_max * e->strip_room);
    nw_memory_unmap(e->mem, NW_TAG_SESSION, e->scratch, (size_t)e->threads * 2 * e->strip_room);
    nw_memory_unmap(e->mem, NW_TAG_SESSION, e->codecs, e->threads * e->codec_room);
    nw_memory_free(e->mem, NW_TAG_SESSION, e->packed, e->threads, sizeof(nw_packed *));
    nw_memory_free(e->mem, NW_TAG_SESSION, e->outcomes, e->strips_max, sizeof *e->outcomes);
    nw_memory_free(e->mem, NW_TAG_SESSION, e->strips, e->strips_max, sizeof *e->strips);
    nw_memory_free(e->mem, NW_TAG_SESSION, e, 1, sizeof *e);
    return NULL;
}

/* ---- storage ---- */

/* Vectors stay as they are; the embedding and the head are never below q8. */
static nw_stored stored_type(const nw_pack_encoder *e, uint32_t tensor, bool *ret_kept)
{
    const nw_model  *m = e->model;
    const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, tensor);
    nw_stored        own = nw_stored_of(t->dtype);
    bool             head = m->tensors.head != UINT32_MAX && m->places[m->tensors.head].tensor == t;
    *ret_kept = false;
    if (nw_model_is_vector(m, t))
        return own;
    switch (e->type) {
    case NW_TYPE_KEEP: return own;
    case NW_TYPE_F32: return NW_STORED_F32;
    case NW_TYPE_BF16: return NW_STORED_BF16;
    case NW_TYPE_F16: return NW_STORED_F16;
    case NW_TYPE_Q8:
    case NW_TYPE_Q4: break;
    }
    if (t->dims[1] % NW_QUANT_BLOCK != 0) {
        *ret_kept = true;
        return own;
    }
    return e->type == NW_TYPE_Q8 || tensor == e->embed || head ? NW_STORED_Q8 : NW_STORED_Q4;
}

/* Whether every value of a type is one of another. */
static bool holds(nw_stored stored, nw_dtype source)
{
    return stored == nw_stored_of(source) || stored == NW_STORED_F32;
}

nw_pack_storage nw_pack_encoder_storage(const nw_pack_encoder *e, uint32_t tensor)
{
    nw_pack_storage s = {0};
    s.stored = stored_type(e, tensor, &s.kept);
    s.lossy = !holds(s.stored, nw_checkpoint_tensor(e->model->checkpoint, tensor)->dtype);
    s.stride = tensor == e->embed ? e->stride : 0;
    return s;
}

/* ---- reading ---- */

void nw_pack_encoder_read(nw_pack_encoder *e, uint32_t tensor, uint32_t tile)
{
    const nw_checkpoint *c = e->model->checkpoint;
    const nw_tensor     *t = nw_checkpoint_tensor(c, tensor);
    e->reading = t;
    nw_ahead_start(&e->ahead, nw_checkpoint_file(c, t->file), nw_checkpoint_file_path(c, t->file),
                   tile_extent(e->model, tensor, tile));
}

nw_code nw_pack_encoder_wait(nw_pack_encoder *e, nw_error *err)
{
    return nw_ahead_wait(&e->ahead, e->reading->name, &e->tile, err);
}

/* ---- encoding ---- */

typedef struct {
    nw_pack_encoder     *e;
    const nw_tensor     *tensor;
    nw_cut               cut;
    uint32_t             tile;
    nw_stored            stored;
    bool                 vector;
    const unsigned char *data;
} encode_job;

/* The strip in its stored type: as it is, or converted into scratch. */
static const void *convert_strip(const encode_job *j, const void *src, size_t n, size_t worker, outcome *o)
{
    nw_pack_encoder *e = j->e;
    unsigned char   *to = e->scratch + worker * 2 * e->strip_room;
    nw_dtype         type = (nw_dtype)j->stored;
    if (type == j->tensor->dtype)
        return src;
    nw_dtype_convert(type, to, j->tensor->dtype, src, n, &o->rounded, &o->infinite);
    return to;
}

static void encode_blocks(const encode_job *j, const void *src, size_t n, size_t worker, unsigned char *dst, outcome *o)
{
    nw_pack_encoder *e = j->e;
    float           *values = (float *)(void *)(e->scratch + (worker * 2 + 1) * e->strip_room);
    nw_quant         type = j->stored == NW_STORED_Q8 ? NW_Q8 : NW_Q4;
    uint64_t         ignored = 0;
    nw_dtype_convert(NW_F32, values, j->tensor->dtype, src, n, &ignored, &ignored);
    o->data = (nw_pack_strip_data){.form = type == NW_Q8 ? NW_FORM_Q8 : NW_FORM_Q4,
                                   .bytes = dst,
                                   .len = n / NW_QUANT_BLOCK * nw_quant_block_bytes(type)};
    if (!nw_quant_encode(type, dst, values, n))
        o->infinite = 1;
}

/* Slim where that is asked for and possible, else packed, else plain: whatever shrinks. */
static void encode_values(const encode_job *j, const void *src, size_t rows, size_t worker, unsigned char *dst,
                          outcome *o)
{
    const nw_pack_encoder *e = j->e;
    size_t                 n = rows * (size_t)j->cut.cols;
    nw_dtype               type = (nw_dtype)j->stored;
    size_t                 plain = n * nw_dtype_bytes(type), len = 0;
    o->data = (nw_pack_strip_data){.form = NW_FORM_PLAIN, .bytes = src, .len = plain};
    if (e->compress == NW_COMPRESS_OFF || j->vector)
        return;
    if (e->compress == NW_COMPRESS_SLIM && type == NW_BF16) {
        len = nw_kernels_best()->slim_encode(dst, e->strip_room, src, rows, (size_t)j->cut.cols, 3);
        if (len > 0)
            o->data = (nw_pack_strip_data){.form = NW_FORM_SLIM3, .bytes = dst, .len = len};
        return;
    }
    len = nw_packed_encode(e->packed[worker], type, src, n, dst);
    if (len > 0)
        o->data = (nw_pack_strip_data){.form = NW_FORM_PACKED, .bytes = dst, .len = len};
}

static void encode_strip(void *ctx, size_t i, size_t worker)
{
    const encode_job *j = ctx;
    nw_pack_encoder  *e = j->e;
    uint64_t          first = i * j->cut.strip_rows;
    size_t            rows = (size_t)nw_min_u64(j->cut.strip_rows, nw_cut_rows(&j->cut, j->tile) - first);
    size_t            n = rows * (size_t)j->cut.cols;
    const void       *src = j->data + first * j->cut.cols * nw_dtype_bytes(j->tensor->dtype);
    unsigned char    *dst = e->encoded + i * e->strip_room;
    outcome          *o = &e->outcomes[i];
    *o = (outcome){0};
    if (nw_stored_is_quantised(j->stored)) {
        encode_blocks(j, src, n, worker, dst, o);
        return;
    }
    const void *values = convert_strip(j, src, n, worker, o);
    encode_values(j, values, rows, worker, dst, o);
    if (o->data.bytes == values && values != src) { /* scratch is the next strip's */
        memcpy(dst, values, o->data.len);
        o->data.bytes = dst;
    }
}

nw_code nw_pack_encoder_encode(nw_pack_encoder *e, uint32_t tensor, uint32_t tile, nw_pack_encoded *ret, nw_error *err)
{
    const nw_tensor *t = nw_checkpoint_tensor(e->model->checkpoint, tensor);
    bool             kept;
    encode_job       j = {.e = e,
                          .tensor = t,
                          .cut = nw_pack_cut(t),
                          .tile = tile,
                          .stored = stored_type(e, tensor, &kept),
                          .vector = nw_model_is_vector(e->model, t),
                          .data = e->tile};
    uint64_t         rows = nw_cut_rows(&j.cut, tile);
    size_t           count = (size_t)nw_cut_strips(&j.cut, rows);
    NW_CHECK(count <= e->strips_max);
    nw_workers_run(e->workers, encode_strip, &j, count);
    *ret = (nw_pack_encoded){
        .strips = e->strips, .strip_count = count, .source_bytes = rows * j.cut.cols * nw_dtype_bytes(t->dtype)};
    for (size_t i = 0; i < count; i++) {
        const outcome *o = &e->outcomes[i];
        if (o->infinite > 0) {
            return nw_fail(err, NW_E_ARG, 0,
                           "tensor %s holds weights beyond the range of %s; bf16 has the range of f32", t->name,
                           nw_stored_name(j.stored));
        }
        e->rounded += o->rounded;
        e->strips[i] = o->data;
        ret->stored_bytes += o->data.len;
    }
    return NW_OK;
}

nw_code nw_pack_encoder_measure(nw_pack_encoder *e, nw_progress *progress, nw_error *err)
{
    const nw_tensor *t = nw_checkpoint_tensor(e->model->checkpoint, e->embed);
    uint64_t         tiles = nw_pack_cut(t).tile_count, rounded = e->rounded;
    size_t           longest = 0;
    nw_code          rc = NW_OK;
    nw_pack_encoder_read(e, e->embed, 0);
    for (uint64_t k = 0; k < tiles && rc == NW_OK; k++) {
        nw_pack_encoded encoded;
        rc = nw_pack_encoder_wait(e, err);
        if (rc == NW_OK && k + 1 < tiles)
            nw_pack_encoder_read(e, e->embed, (uint32_t)k + 1);
        if (rc == NW_OK)
            rc = nw_pack_encoder_encode(e, e->embed, (uint32_t)k, &encoded, err);
        for (size_t i = 0; rc == NW_OK && i < encoded.strip_count; i++)
            longest = nw_max_size(longest, encoded.strips[i].len);
        if (rc == NW_OK)
            rc = nw_progress_report(progress, err);
    }
    e->stride = (uint32_t)nw_round_up(longest, 4096);
    e->rounded = rounded;
    return rc;
}

uint64_t nw_pack_encoder_rounded(const nw_pack_encoder *e)
{
    return e->rounded;
}

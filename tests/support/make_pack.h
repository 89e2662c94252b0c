/* Packs for tests: tensors with values that follow from their names, written through the loader's pack writer. */
#ifndef NW_TEST_MAKE_PACK_H
#define NW_TEST_MAKE_PACK_H

#include "base/slim.h"
#include "loader/pack.h"
#include "loader/pack_writer.h"
#include "loader/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    nw_stored   stored;
    uint32_t    dim_count;
    uint64_t    dims[2];
    uint32_t    stride;
    const char *block;  /* a block starts with it, or NULL. Its tiles come after those of the tensor before */
    bool        paired; /* its tiles alternate with those of the tensor before */
} pack_tensor;

typedef struct {
    const pack_tensor *tensors;
    size_t             count;
    uint64_t           shard_bytes_max;
    uint64_t           seed; /* of the values */
} pack_model;

static inline nw_cut pack_cut(const pack_tensor *t)
{
    return nw_cut_make(t->dim_count == 1 ? 1 : t->dims[0], t->dims[t->dim_count - 1]);
}

/* Bytes of rows [first, first + count) as they were before packing (or, of q8 and q4, as they are stored). */
static inline unsigned char *pack_rows(const pack_model *m, size_t tensor, uint64_t first, uint64_t count,
                                       size_t *ret_bytes)
{
    const pack_tensor *t = &m->tensors[tensor];
    nw_cut             cut = pack_cut(t);
    uint64_t           bytes = 0, state = 0;
    NW_CHECK(nw_stored_bytes(t->stored, count, cut.cols, &bytes));
    unsigned char *p = malloc(bytes);
    NW_CHECK(p != NULL);
    bool     quant = t->stored == NW_STORED_Q8 || t->stored == NW_STORED_Q4;
    nw_dtype dtype = t->stored == NW_STORED_F32 ? NW_F32 : t->stored == NW_STORED_BF16 ? NW_BF16 : NW_F16;
    size_t   unit = quant ? 1 : nw_dtype_bytes(dtype);
    uint64_t row_units = bytes / count / unit;
    for (uint64_t i = 0; i < bytes / unit; i++) {
        state = (m->seed * 1000 + tensor * 77 + first * row_units + i + 1) * 0x9e3779b97f4a7c15u;
        state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u;
        state ^= state >> 32;
        /* Far more small values than large ones, of both signs. */
        float u = (float)(state & 0xffffff) / 16777216.0f;
        float value = (u * u * u) * ((state >> 40 & 1) != 0 ? 0.3f : -0.3f);
        if (quant)
            p[i] = (unsigned char)(state >> 8);
        else
            nw_dtype_from_f32(dtype, value, p + i * unit);
    }
    *ret_bytes = (size_t)bytes;
    return p;
}

/* Encodes and writes one tile: packed, or slim if its tensor's name says so, where that is smaller. */
static inline nw_code pack_write_tile(nw_pack_writer *w, nw_packed *codec, const pack_model *m, size_t tensor,
                                      uint64_t tile, nw_error *err)
{
    const pack_tensor *t = &m->tensors[tensor];
    nw_cut             cut = pack_cut(t);
    uint64_t           rows = nw_cut_rows(&cut, tile), strips = nw_cut_strips(&cut, rows);
    nw_pack_strip_data data[NW_TILE_STRIPS_MAX];
    unsigned char     *plain[NW_TILE_STRIPS_MAX], *packed[NW_TILE_STRIPS_MAX];
    bool               slim = strstr(t->name, "slim") != NULL;
    for (uint64_t i = 0; i < strips; i++) {
        uint64_t first = i * cut.strip_rows, count = nw_min_u64(cut.strip_rows, rows - first);
        size_t   bytes = 0, smaller = 0;
        plain[i] = pack_rows(m, tensor, nw_cut_first(&cut, tile) + first, count, &bytes);
        packed[i] = malloc(bytes);
        NW_CHECK(packed[i] != NULL);
        data[i] = (nw_pack_strip_data){NW_FORM_PLAIN, plain[i], bytes};
        nw_dtype dtype = t->stored == NW_STORED_F32 ? NW_F32 : t->stored == NW_STORED_BF16 ? NW_BF16 : NW_F16;
        if (t->stored == NW_STORED_Q8 || t->stored == NW_STORED_Q4)
            data[i].form = t->stored == NW_STORED_Q8 ? NW_FORM_Q8 : NW_FORM_Q4;
        else if (slim)
            smaller = nw_slim_encode(packed[i], bytes, plain[i], count, cut.cols, i % 2 ? 4 : 3);
        else if (t->dim_count > 1)
            smaller = nw_packed_encode(codec, dtype, plain[i], count * cut.cols, packed[i]);
        nw_form form = !slim ? NW_FORM_PACKED : i % 2 ? NW_FORM_SLIM4 : NW_FORM_SLIM3;
        if (smaller > 0)
            data[i] = (nw_pack_strip_data){form, packed[i], smaller};
    }
    nw_code rc = nw_pack_writer_tile(w, data, strips, err);
    for (uint64_t i = 0; i < strips; i++) {
        free(plain[i]);
        free(packed[i]);
    }
    return rc;
}

/* Declares all, and the schedule: blocks, tensors, and pairs tile by tile. Calls `each` for every tile in that order.
 */
typedef nw_code (*pack_tile_fn)(void *user, size_t tensor, uint64_t tile, nw_error *err);

static inline nw_code pack_walk(const pack_model *m, pack_tile_fn each, void *user, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < m->count; i++) {
        bool     pair = i + 1 < m->count && m->tensors[i + 1].paired;
        uint64_t tiles = pack_cut(&m->tensors[i]).tile_count;
        for (uint64_t k = 0; k < tiles && rc == NW_OK; k++) {
            rc = each(user, i, k, err);
            if (rc == NW_OK && pair)
                rc = each(user, i + 1, k, err);
        }
        i += pair;
    }
    return rc;
}

typedef struct {
    nw_pack_writer   *w;
    nw_packed        *codec;
    const pack_model *model;
    uint32_t          ids[32];
    uint64_t          tiles_max; /* stop after so many tiles: NW_E_CANCELLED */
} pack_maker;

static inline nw_code pack_schedule_one(void *user, size_t tensor, uint64_t tile, nw_error *err)
{
    pack_maker *k = user;
    nw_code     rc = NW_OK;
    if (tile == 0 && k->model->tensors[tensor].block != NULL)
        rc = nw_pack_writer_block(k->w, k->model->tensors[tensor].block, err);
    return rc == NW_OK ? nw_pack_writer_schedule(k->w, k->ids[tensor], (uint32_t)tile, err) : rc;
}

static inline nw_code pack_write_one(void *user, size_t tensor, uint64_t tile, nw_error *err)
{
    pack_maker *k = user;
    if (k->tiles_max-- == 0)
        return nw_fail(err, NW_E_CANCELLED, 0, "as asked");
    return pack_write_tile(k->w, k->codec, k->model, tensor, tile, err);
}

/* Writes a pack, each tile by `write_one` with a pack_maker, as far as tiles_max tiles; finishes it if that is all. */
static inline nw_code pack_make_with(nw_memory *mem, const char *dir, const pack_model *m, uint64_t tiles_max,
                                     pack_tile_fn write_one, nw_error *err)
{
    static const nw_dtype  sources[NW_STORED_COUNT] = {NW_F32, NW_BF16, NW_F16, NW_F32, NW_BF16};
    nw_pack_writer_options options = {
        .model = "te\"st\nmodel", .tool = "narrows test", .compress = "packed", .shard_bytes_max = m->shard_bytes_max};
    size_t     bytes = nw_packed_workspace_bytes(NW_PACKED_ENCODE);
    void      *place = aligned_alloc(64, (bytes + 63) / 64 * 64);
    pack_maker k = {.model = m, .tiles_max = tiles_max};
    NW_CHECK(place != NULL && m->count <= 32);
    k.codec = nw_packed_init(place, bytes, NW_PACKED_ENCODE);
    nw_code rc = nw_pack_writer_open(mem, dir, &options, &k.w, err);
    for (size_t i = 0; i < m->count && rc == NW_OK; i++) {
        const pack_tensor  *t = &m->tensors[i];
        nw_pack_declaration d = {.name = t->name,
                                 .source = sources[t->stored],
                                 .stored = t->stored,
                                 .lossy = t->stored >= NW_STORED_Q8,
                                 .dim_count = t->dim_count,
                                 .dims = {t->dims[0], t->dims[1]},
                                 .stride = t->stride};
        rc = nw_pack_writer_declare(k.w, &d, &k.ids[i], err);
    }
    if (rc == NW_OK)
        rc = nw_pack_writer_alias(k.w, "zz.alias", k.ids[0], err);
    if (rc == NW_OK)
        rc = nw_pack_writer_alias(k.w, "0.alias", k.ids[m->count - 1], err);
    if (rc == NW_OK)
        rc = nw_pack_writer_file(k.w, "config.json", "{\"a\": ", 6, err);
    if (rc == NW_OK)
        rc = nw_pack_writer_file(k.w, "config.json", "1}\n", 3, err);
    if (rc == NW_OK)
        rc = nw_pack_writer_file(k.w, "empty.txt", "", 0, err);
    if (rc == NW_OK)
        rc = pack_walk(m, pack_schedule_one, &k, err);
    if (rc == NW_OK)
        rc = pack_walk(m, write_one, &k, err);
    if (rc == NW_OK)
        rc = nw_pack_writer_finish(k.w, err);
    nw_pack_writer_close(k.w);
    free(place);
    return rc;
}

static inline nw_code pack_make(nw_memory *mem, const char *dir, const pack_model *m, nw_error *err)
{
    return pack_make_with(mem, dir, m, UINT64_MAX, pack_write_one, err);
}

#endif

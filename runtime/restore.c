#include "restore.h"

#include "base/slim.h"
#include "system.h"

#include <string.h>

static const char no_slim[] = "is no slim strip of its rows";

/* A strip of a pack. */
typedef struct {
    nw_pack_strip record;
    size_t        rows, cols;
} strip_at;

static strip_at find_strip(const nw_model *m, nw_step step, uint32_t strip)
{
    const nw_place *p = &m->places[step.tensor];
    const nw_pack  *pack = nw_checkpoint_pack(m->checkpoint);
    nw_pack_tile    t = nw_pack_tile_at(pack, (size_t)p->tile_first + step.tile);
    uint64_t        rows = nw_cut_rows(&p->cut, step.tile), first = strip * p->cut.strip_rows;
    NW_CHECK(strip < t.strip_count && first < rows);
    return (strip_at){.record = nw_pack_strip_at(pack, (size_t)t.strip_first + strip),
                      .rows = (size_t)nw_min_u64(p->cut.strip_rows, rows - first),
                      .cols = (size_t)p->cut.cols};
}

bool nw_restore_is_needed(const nw_model *m)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    return pack != NULL && (nw_pack_about(pack)->forms & 1u << NW_FORM_PACKED) != 0;
}

void nw_restore_layout(nw_restore *r, nw_arena *a, const nw_model *m, size_t threads)
{
    bool packed = nw_restore_is_needed(m);
    r->model = m;
    r->threads = threads;
    r->plain_bytes = r->codec_bytes = 0;
    for (uint32_t i = 0; i < m->tensors.count && packed; i++) {
        const nw_place *p = &m->places[i];
        uint64_t        rows = nw_min_u64(p->cut.strip_rows, m->tensors.list[i].rows);
        if (!m->tensors.list[i].vector)
            r->plain_bytes = nw_max_size(r->plain_bytes, (size_t)nw_round_up(rows * p->row_bytes, 64));
    }
    if (packed)
        r->codec_bytes = (size_t)nw_round_up(nw_packed_workspace_bytes(NW_PACKED_DECODE), 64);
    r->plain = nw_carve(a, packed ? threads * r->plain_bytes : 0, 1, 64);
    r->codecs = nw_carve(a, packed ? threads * r->codec_bytes : 0, 1, 64);
    r->packed = nw_carve(a, packed ? threads : 0, sizeof(nw_packed *), 64);
    r->restored = nw_carve(a, packed ? threads : 0, sizeof *r->restored, 64);
    for (size_t i = 0; packed && r->packed != NULL && i < threads; i++)
        r->packed[i] = nw_packed_init(r->codecs + i * r->codec_bytes, r->codec_bytes, NW_PACKED_DECODE);
}

static bool is_damaged(nw_restore *r, nw_step step, uint32_t strip, const char *why)
{
    bool was = atomic_exchange(&r->damaged, true);
    if (!was) { /* whoever waits for the team sees both */
        r->damaged_tile = step;
        r->damaged_strip = strip;
        r->why = why;
    }
    return false;
}

static bool restore_pack(nw_restore *r, nw_step step, uint32_t strip, strip_at s, const unsigned char *bytes,
                         bool fresh, size_t worker, nw_rows *ret)
{
    double          begin = r->plain_bytes > 0 ? nw_system_seconds() : 0;
    const nw_place *p = &r->model->places[step.tensor];
    const nw_pack  *pack = nw_checkpoint_pack(r->model->checkpoint);
    const char     *why;
    *ret = (nw_rows){.dtype = p->tensor->dtype, .data = bytes};
    if (fresh && !r->verify_off && !nw_pack_strip_check(pack, (size_t)p->tile_first + step.tile, strip, bytes))
        return is_damaged(r, step, strip, NULL);
    switch (s.record.form) {
    case NW_FORM_PLAIN: return true;
    case NW_FORM_PACKED:
        NW_CHECK(worker < r->threads && s.rows * p->row_bytes <= r->plain_bytes);
        ret->data = r->plain + worker * r->plain_bytes;
        why = nw_packed_decode(r->packed[worker], p->tensor->dtype, bytes, s.record.bytes,
                               r->plain + worker * r->plain_bytes, s.rows * s.cols);
        r->restored[worker].plain_bytes += s.rows * p->row_bytes;
        r->restored[worker].seconds += nw_system_seconds() - begin;
        return why == NULL ? true : is_damaged(r, step, strip, why);
    case NW_FORM_SLIM3:
    case NW_FORM_SLIM4:
        ret->form = NW_ROWS_SLIM;
        /* A checksum says that a file is whole, not that its author means well. */
        return !fresh || nw_slim_check(bytes, s.record.bytes, s.rows, s.cols) ? true
                                                                              : is_damaged(r, step, strip, no_slim);
    case NW_FORM_Q8: ret->form = NW_ROWS_Q8; return true;
    case NW_FORM_Q4: ret->form = NW_ROWS_Q4; return true;
    case NW_FORM_COUNT: break;
    }
    nw_trap("a form", __FILE__, __LINE__);
}

bool nw_restore_strip(nw_restore *r, nw_step step, uint32_t strip, const unsigned char *tile, bool fresh, size_t worker,
                      nw_rows *ret)
{
    const nw_place *p = &r->model->places[step.tensor];
    if (nw_checkpoint_pack(r->model->checkpoint) != NULL) {
        strip_at s = find_strip(r->model, step, strip);
        return restore_pack(r, step, strip, s, tile + s.record.offset, fresh, worker, ret);
    }
    *ret = (nw_rows){.dtype = p->tensor->dtype, .data = tile + strip * p->cut.strip_rows * p->row_bytes};
    return true;
}

double nw_restore_rate(const nw_restore *r)
{
    nw_restored all = {0};
    for (size_t i = 0; i < r->threads && r->plain_bytes > 0; i++) {
        all.plain_bytes += r->restored[i].plain_bytes;
        all.seconds += r->restored[i].seconds;
    }
    return all.seconds > 0 ? (double)all.plain_bytes / all.seconds : 0;
}

nw_code nw_restore_result(nw_restore *r, nw_error *err)
{
    if (!atomic_exchange(&r->damaged, false))
        return NW_OK;
    const nw_model *m = r->model;
    nw_step         step = r->damaged_tile;
    nw_code         rc =
        nw_pack_strip_fail(nw_checkpoint_pack(m->checkpoint), (size_t)m->places[step.tensor].tile_first + step.tile,
                           r->damaged_strip, r->why, err);
    if (err != NULL)
        err->block = m->tensors.list[step.tensor].block;
    return rc;
}

void nw_rows_widen(const nw_kernels *kernels, const nw_rows *rows, size_t row, size_t d, float *out)
{
    const unsigned char *data = rows->data;
    nw_quant             type = rows->form == NW_ROWS_Q8 ? NW_Q8 : NW_Q4;
    switch (rows->form) {
    case NW_ROWS_PLAIN: kernels->widen[rows->dtype](out, data + row * d * nw_dtype_bytes(rows->dtype), d); break;
    case NW_ROWS_SLIM: kernels->widen_slim(out, data, row, 1); break;
    case NW_ROWS_Q8:
    case NW_ROWS_Q4:
        kernels->widen_q[type](out, data + row * (d / NW_QUANT_BLOCK) * nw_quant_block_bytes(type), d);
        break;
    }
}

nw_code nw_restore_row(nw_restore *r, const nw_kernels *kernels, uint32_t id, const unsigned char *bytes, float *out,
                       nw_error *err)
{
    const nw_model *m = r->model;
    const nw_place *p = &m->places[m->tensors.embed];
    nw_row_place    at = nw_model_row_place(m, id);
    size_t          d = m->config.d_model;
    nw_rows         rows;
    if (nw_checkpoint_pack(m->checkpoint) == NULL) {
        kernels->widen[p->tensor->dtype](out, bytes, d);
        return NW_OK;
    }
    if (!restore_pack(r, at.step, at.strip, find_strip(m, at.step, at.strip), bytes, true, 0, &rows))
        return nw_restore_result(r, err);
    nw_rows_widen(kernels, &rows, at.row, d, out);
    return NW_OK;
}

const char *nw_restore_plain(nw_packed *codec, nw_form form, nw_dtype dtype, const void *src, size_t bytes, size_t rows,
                             size_t cols, void *dst)
{
    switch (form) {
    case NW_FORM_PLAIN:
        NW_CHECK(bytes == rows * cols * nw_dtype_bytes(dtype));
        memcpy(dst, src, bytes);
        return NULL;
    case NW_FORM_PACKED: return nw_packed_decode(codec, dtype, src, bytes, dst, rows * cols);
    case NW_FORM_SLIM3:
    case NW_FORM_SLIM4:
        if (!nw_slim_check(src, bytes, rows, cols))
            return no_slim;
        nw_slim_decode(dst, src, 0, rows);
        return NULL;
    case NW_FORM_Q8: nw_quant_decode(NW_Q8, dst, src, rows * cols); return NULL;
    case NW_FORM_Q4: nw_quant_decode(NW_Q4, dst, src, rows * cols); return NULL;
    case NW_FORM_COUNT: break;
    }
    nw_trap("a form", __FILE__, __LINE__);
}

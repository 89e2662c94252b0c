/* Embedding rows: from a pin, from the row cache, or from disk beside the tiles. */
#include "window_parts.h"

#include "system.h"

#include <string.h>

/* The pinned tile of the embedding with a row, which is the head's in tied models, if a pass has had it. A tile that
 * merely happens to have arrived does not count: what is read would then depend on the disk's timing. NULL: not
 * resident. */
static nw_pin *pin_of_row(const nw_window *w, uint32_t id)
{
    const nw_model *m = w->model;
    size_t  tile = nw_model_row_place(m, id).step.tile, tiles = (size_t)m->places[m->tensors.embed].cut.tile_count;
    bool    tied = m->tensors.embed == m->tensors.head;
    nw_pin *pin = NULL;
    if (tied && w->shape.pinned == NW_PASS_DECODE) /* the head's tiles end the decode schedule */
        pin = &w->parts->pins[m->step_count[NW_PASS_DECODE] - tiles + tile];
    else if (nw_embed_tiles(m, w->shape.pinned) > 0)
        pin = &w->parts->embed_pins[tile];
    return pin != NULL && pin->at != NW_NOT_PINNED && pin->visited ? pin : NULL;
}

static float *cached_row(const nw_window *w, uint32_t id)
{
    return w->parts->row_cache + id % NW_ROW_CACHE * w->model->config.d_model;
}

/* Takes the row from the cache or from a pin, if it is there. */
static nw_code resident_row(nw_window *w, const nw_kernels *kernels, uint32_t id, float *out, bool *ret_found,
                            nw_error *err)
{
    nw_pin *pin = pin_of_row(w, id);
    bool    cached = w->parts->row_ids[id % NW_ROW_CACHE] == id + 1;
    *ret_found = cached || pin != NULL;
    if (cached)
        memcpy(out, cached_row(w, id), w->model->config.d_model * sizeof *out);
    if (cached || pin == NULL)
        return NW_OK;
    nw_row_place at = nw_model_row_place(w->model, id);
    nw_step      step = at.step;
    nw_pin_shape shape = nw_window_pin_shape(w, pin, step);
    if (shape.form != NW_PINS_STORED) {
        nw_rows rows = nw_pin_rows(&shape, at.strip, w->parts->region + pin->at);
        nw_rows_widen(kernels, &rows, at.row, w->model->config.d_model, out);
        return NW_OK;
    }
    /* As far behind the tile's start in memory as in the file. */
    nw_extent row = nw_model_row_extent(w->model, id), tile = nw_model_extent(w->model, step);
    nw_code   rc = nw_restore_row(&w->parts->restore, kernels, id,
                                  w->parts->region + pin->at + (row.offset + row.skip - tile.offset), out, err);
    if (rc != NW_OK)
        nw_window_empty_pin(w, pin, step);
    return rc;
}

static nw_io_op row_op(const nw_window *w, uint32_t id, size_t index)
{
    const nw_model *m = w->model;
    nw_extent       e = nw_model_row_extent(m, id);
    NW_CHECK(e.bytes <= w->shape.row_bytes);
    return (nw_io_op){.kind = NW_IO_READ,
                      .fd = nw_model_tile_file(m, nw_model_row_place(m, id).step)->fd,
                      .offset = e.offset,
                      .buf = w->parts->row_buffers + index * w->shape.row_bytes,
                      .bytes = e.bytes,
                      .bytes_needed = e.bytes_needed,
                      .tag = nw_tag_make(NW_TAG_ROW, index)};
}

/* Waits for the rows that were submitted. */
static nw_code wait_for_rows(nw_window *w, const uint32_t *ids, size_t count, nw_error *err)
{
    double   begin = nw_system_seconds();
    uint64_t begin_ns = nw_trace_now(&w->parts->trace);
    while (w->rows_done != (1u << count) - 1)
        nw_window_reap(w, true);
    w->seconds_waited += nw_system_seconds() - begin;
    nw_trace_waited(&w->parts->trace, begin_ns, nw_model_row_place(w->model, ids[0]).step);
    if (w->rows_failed == 0)
        return NW_OK;
    uint32_t id = ids[__builtin_ctz(w->rows_failed)];
    nw_io_op op = row_op(w, id, 0);
    return nw_window_read_failed(w, nw_model_row_place(w->model, id).step, op.offset, op.bytes_needed, w->row_errno,
                                 err);
}

/* Reads rows ids[0 .. count), count <= NW_ROW_BATCH, into the row buffers and from there to out and the cache. */
static nw_code read_rows(nw_window *w, const nw_kernels *kernels, const uint32_t *ids, const size_t *targets,
                         size_t count, float *out, nw_error *err)
{
    const nw_model *m = w->model;
    size_t          d = m->config.d_model;
    w->rows_done = w->rows_failed = 0;
    for (size_t i = 0; i < count; i++) {
        nw_io_op op = row_op(w, ids[i], i);
        nw_trace_read_begin(&w->parts->trace, op.tag, nw_model_row_place(m, ids[i]).step);
        bool queued = nw_io_submit(w->io, &op);
        NW_CHECK(queued);
        w->bytes_read += nw_model_row_extent(m, ids[i]).bytes_counted;
    }
    w->rows_read += count;
    if (w->at.pass != NW_PASS_COUNT)
        nw_window_pump(w);
    nw_code rc = wait_for_rows(w, ids, count, err);
    for (size_t i = 0; i < count && rc == NW_OK; i++) {
        nw_io_op             op = row_op(w, ids[i], i);
        const unsigned char *row = (const unsigned char *)op.buf + nw_model_row_extent(m, ids[i]).skip;
        rc = nw_restore_row(&w->parts->restore, kernels, ids[i], row, out + targets[i] * d, err);
        if (rc != NW_OK)
            break;
        memcpy(cached_row(w, ids[i]), out + targets[i] * d, d * sizeof *out);
        w->parts->row_ids[ids[i] % NW_ROW_CACHE] = ids[i] + 1;
        nw_file_drop(nw_model_tile_file(m, nw_model_row_place(m, ids[i]).step), op.offset, op.bytes);
    }
    return rc;
}

/* An earlier position with the same id; SIZE_MAX if there is none. */
static size_t earlier(const uint32_t *ids, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (ids[j] == ids[i])
            return j;
    }
    return SIZE_MAX;
}

nw_code nw_window_rows(nw_window *w, const nw_kernels *kernels, const uint32_t *ids, size_t count, float *out,
                       nw_error *err)
{
    const nw_model *m = w->model;
    size_t          d = m->config.d_model, pending = 0;
    uint32_t        batch[NW_ROW_BATCH];
    size_t          targets[NW_ROW_BATCH];
    for (size_t i = 0; i < count; i++) {
        NW_CHECK(ids[i] < m->config.vocab_size);
        bool    found;
        nw_code rc = resident_row(w, kernels, ids[i], out + i * d, &found, err);
        if (rc != NW_OK)
            return rc;
        if (!found && earlier(ids, i) == SIZE_MAX) {
            batch[pending] = ids[i];
            targets[pending++] = i;
        }
        if (pending == NW_ROW_BATCH || (i + 1 == count && pending > 0)) {
            rc = read_rows(w, kernels, batch, targets, pending, out, err);
            if (rc != NW_OK)
                return rc;
            pending = 0;
        }
    }
    for (size_t i = 0; i < count; i++) {
        size_t first = earlier(ids, i);
        if (first != SIZE_MAX)
            memcpy(out + i * d, out + first * d, d * sizeof *out);
    }
    return NW_OK;
}

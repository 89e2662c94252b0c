/* K and V through the window: tiles of a scratch file, written when they are final and read back as parts of each
 * decode pass. */
#include "window_parts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const nw_kv_shape *kv_shape(const nw_window *w, nw_kv_kind kind)
{
    return &w->parts->kv_stream.shapes[kind];
}

/* The kind whose attention the step is the first behind, if that may be streamed; else NW_KV_KINDS. */
static nw_kv_kind kind_before(const nw_window *w, nw_visit v)
{
    if (v.pass != NW_PASS_DECODE || v.step >= w->model->step_count[v.pass])
        return NW_KV_KINDS;
    nw_step    step = nw_window_step(w, v);
    nw_role    role = w->model->tensors.list[step.tensor].role;
    nw_kv_kind kind = role == NW_ROLE_O ? NW_KV_SELF : role == NW_ROLE_CROSS_O ? NW_KV_CROSS : NW_KV_KINDS;
    return kind != NW_KV_KINDS && step.tile == 0 && kv_shape(w, kind)->tile_rows > 0 ? kind : NW_KV_KINDS;
}

bool nw_window_is_behind_attention(const nw_window *w, nw_visit v)
{
    return kind_before(w, v) != NW_KV_KINDS;
}

bool nw_window_is_kv(const nw_window *w, nw_visit v)
{
    nw_kv_kind kind = kind_before(w, v);
    return kind != NW_KV_KINDS && v.kv < w->kv_lists[kind].tiles;
}

/* What tile of K and V a visit is. */
typedef struct {
    nw_kv_kind   kind;
    const nw_kv *kv;
    uint32_t     block;
    bool         values;
    size_t       tile;
} kv_tile;

static kv_tile kv_tile_of(const nw_window *w, nw_visit v)
{
    nw_kv_kind          kind = kind_before(w, v);
    const nw_kv_shape  *shape = kv_shape(w, kind);
    const nw_kv *const *kv = w->kv_lists[kind].list;
    size_t              at = v.kv;
    for (; at >= 2 * nw_kv_tiles(shape, (*kv)->streamed); kv++)
        at -= 2 * nw_kv_tiles(shape, (*kv)->streamed);
    size_t tiles = nw_kv_tiles(shape, (*kv)->streamed);
    return (kv_tile){.kind = kind,
                     .kv = *kv,
                     .block = w->model->tensors.list[nw_window_step(w, v).tensor].block,
                     .values = at >= tiles,
                     .tile = at % tiles};
}

static uint64_t kv_place(const nw_window *w, kv_tile t)
{
    return nw_kv_offset(kv_shape(w, t.kind), t.kv->place, t.block, t.values, t.tile);
}

void nw_window_kv_submit(nw_window *w, nw_slot *s, uint64_t tag)
{
    kv_tile  t = kv_tile_of(w, s->visit);
    size_t   bytes = kv_shape(w, t.kind)->tile_bytes;
    nw_io_op op = {.kind = NW_IO_READ,
                   .fd = w->parts->kv_stream.file.fd,
                   .offset = kv_place(w, t),
                   .buf = s->bytes,
                   .bytes = bytes,
                   .bytes_needed = bytes,
                   .tag = tag};
    bool     queued = nw_io_submit(w->io, &op);
    NW_CHECK(queued);
    nw_trace_read_begin(&w->parts->trace, tag, nw_window_step(w, s->visit));
    w->bytes_read += bytes;
    w->kv_bytes_read += bytes;
}

void nw_window_kv_drop_cached(const nw_window *w, nw_visit v)
{
    kv_tile t = kv_tile_of(w, v);
    nw_file_drop(&w->parts->kv_stream.file, kv_place(w, t), kv_shape(w, t.kind)->tile_bytes);
}

void nw_window_clear_kv(nw_window *w)
{
    for (int kind = 0; kind < NW_KV_KINDS; kind++)
        w->kv_lists[kind].count = w->kv_lists[kind].tiles = 0;
}

void nw_window_add_kv(nw_window *w, nw_kv_kind kind, const nw_kv *kv)
{
    nw_kv_list *l = &w->kv_lists[kind];
    for (size_t i = 0; i < l->count; i++) {
        if (l->list[i] == kv)
            return;
    }
    if (kv->streamed == 0)
        return;
    l->list[l->count++] = kv;
    l->tiles += 2 * nw_kv_tiles(kv_shape(w, kind), kv->streamed);
}

bool nw_window_at_kv(const nw_window *w)
{
    return nw_window_is_kv(w, w->at);
}

static nw_code scratch_failed(const nw_window *w, const char *what, int os_errno, nw_error *err)
{
    return nw_fail(err, NW_E_IO, os_errno == NW_IO_EOF ? 0 : os_errno, "%s the scratch file in '%s'%s", what,
                   w->parts->kv_stream.dir, os_errno == NW_IO_EOF ? ": it was cut short" : "");
}

/* Takes the next tile of K and V into use. */
static nw_code take_kv(nw_window *w, const unsigned char **ret_bytes, nw_error *err)
{
    NW_CHECK(!w->in_use && nw_window_is_kv(w, w->at));
    if (atomic_load_explicit(w->stop, memory_order_relaxed))
        return nw_fail(err, NW_E_CANCELLED, 0, "stopped");
    nw_window_keep_up(w);
    nw_slot *s = nw_window_slot(w, w->head);
    NW_CHECK(w->head < w->tail && nw_visit_same(s->visit, w->at));
    nw_code rc = nw_window_wait(w, &s->state, nw_window_step(w, w->at), err);
    if (rc == NW_OK && s->os_errno != 0)
        rc = scratch_failed(w, "reading", s->os_errno, err);
    if (rc != NW_OK)
        return rc;
    nw_slot_move(s, NW_SLOT_READY, NW_SLOT_IN_USE);
    w->in_use = true;
    *ret_bytes = s->bytes;
    return NW_OK;
}

nw_code nw_window_kv(nw_window *w, const nw_kv *kv, uint32_t block, bool values, uint32_t first, const float **ret_rows,
                     size_t *ret_count, nw_error *err)
{
    const unsigned char *bytes;
    kv_tile              t = kv_tile_of(w, w->at);
    size_t               rows = kv_shape(w, t.kind)->tile_rows;
    NW_CHECK(t.kv == kv && t.block == block && t.values == values && t.tile * rows == first);
    nw_code rc = take_kv(w, &bytes, err);
    if (rc != NW_OK)
        return rc;
    *ret_rows = (const float *)(const void *)bytes;
    *ret_count = nw_min_size(rows, kv->streamed - first);
    return NW_OK;
}

void nw_window_kv_release(nw_window *w)
{
    NW_CHECK(w->in_use);
    w->in_use = false;
    nw_slot_move(nw_window_slot(w, w->head), NW_SLOT_IN_USE, NW_SLOT_FREE);
    w->head++;
    w->at = nw_window_after(w, w->at);
    nw_window_reap(w, false);
    nw_window_pump(w);
}

nw_code nw_window_kv_skip(nw_window *w, nw_error *err)
{
    const unsigned char *bytes;
    nw_code              rc = take_kv(w, &bytes, err);
    if (rc == NW_OK)
        nw_window_kv_release(w);
    return rc;
}

/* A stage that is not being written. */
static size_t free_stage(nw_window *w)
{
    nw_kv_stream *k = &w->parts->kv_stream;
    while (k->busy == (1u << NW_KV_STAGES) - 1)
        nw_window_reap(w, true);
    return (size_t)__builtin_ctz(~k->busy);
}

/* Starts to write `count` rows, a tile or less. */
static void write_tile(nw_window *w, kv_tile t, const float *rows, size_t count)
{
    nw_kv_stream      *k = &w->parts->kv_stream;
    const nw_kv_shape *shape = kv_shape(w, t.kind);
    size_t             stage = free_stage(w), bytes = count * shape->row_bytes;
    unsigned char     *to = k->stages + stage * k->stage_bytes;
    NW_CHECK(bytes <= shape->tile_bytes);
    memcpy(to, rows, bytes);
    memset(to + bytes, 0, shape->tile_bytes - bytes);
    nw_io_op op = {.kind = NW_IO_WRITE,
                   .fd = k->file.fd,
                   .offset = kv_place(w, t),
                   .buf = to,
                   .bytes = shape->tile_bytes,
                   .bytes_needed = shape->tile_bytes,
                   .tag = nw_tag_make(NW_TAG_STAGE, stage)};
    bool     queued = nw_io_submit(w->io, &op);
    NW_CHECK(queued);
    k->busy |= 1u << stage;
    k->written_bytes += shape->tile_bytes;
}

nw_code nw_window_kv_store(nw_window *w, nw_kv_kind kind, const nw_kv *kv, uint32_t block, bool values, size_t first,
                           size_t count, const float *rows, nw_error *err)
{
    nw_kv_stream      *k = &w->parts->kv_stream;
    const nw_kv_shape *shape = kv_shape(w, kind);
    NW_CHECK(first % shape->tile_rows == 0);
    for (size_t done = 0, some; done < count && k->os_errno == 0; done += some) {
        kv_tile t = {
            .kind = kind, .kv = kv, .block = block, .values = values, .tile = (first + done) / shape->tile_rows};
        some = nw_min_size(shape->tile_rows, count - done);
        write_tile(w, t, rows + done * (shape->row_bytes / sizeof *rows), some);
    }
    nw_io_flush(w->io);
    return k->os_errno == 0 ? NW_OK : scratch_failed(w, "writing", k->os_errno, err);
}

nw_code nw_window_kv_stored(nw_window *w, nw_error *err)
{
    nw_kv_stream *k = &w->parts->kv_stream;
    while (k->busy != 0)
        nw_window_reap(w, true);
    int os_errno = k->os_errno;
    k->os_errno = 0;
    if (os_errno == 0 && !k->file.direct && k->file.fd >= 0) { /* written pages must not stay in the page cache */
        if (fdatasync(k->file.fd) != 0)
            os_errno = errno;
        nw_file_drop(&k->file, 0, k->file.size);
    }
    return os_errno == 0 ? NW_OK : scratch_failed(w, "writing", os_errno, err);
}

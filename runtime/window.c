#include "window_parts.h"

#include "system.h"

#include <string.h>

/* Rows of the embedding are asked for first when a pass begins, and wait for what was read ahead of it: about 2 ms for
 * so many bytes. */
#define AHEAD_BYTES ((uint64_t)5 << 20)

/* ---- tags ---- */

uint64_t nw_tag_make(nw_tag_kind kind, size_t index)
{
    return (uint64_t)kind << 56 | (uint64_t)index;
}
static nw_tag_kind tag_kind_of(uint64_t tag)
{
    return (nw_tag_kind)(tag >> 56);
}
static size_t tag_index(uint64_t tag)
{
    return (size_t)(tag & (((uint64_t)1 << 56) - 1));
}

/* ---- states ---- */

/* The only writers of a slot's and a pin's state. */
void nw_slot_move(nw_slot *s, nw_slot_state from, nw_slot_state to)
{
    NW_CHECK(s->state == from);
    s->state = to;
}

static void pin_move(nw_pin *p, nw_slot_state from, nw_slot_state to)
{
    NW_CHECK(p->state == from);
    p->state = to;
}

nw_slot *nw_window_slot(nw_window *w, size_t count)
{
    return &w->parts->slots[count % w->shape.slot_count];
}

nw_step nw_window_step(const nw_window *w, nw_visit v)
{
    return w->model->steps[v.pass][v.step];
}

static nw_step embed_step(const nw_window *w, size_t tile)
{
    return (nw_step){.tensor = w->model->tensors.embed, .tile = (uint32_t)tile};
}

nw_visit nw_window_after(const nw_window *w, nw_visit v)
{
    return nw_window_is_kv(w, v) ? (nw_visit){v.pass, v.step, v.kv + 1} : (nw_visit){v.pass, v.step + 1, 0};
}

bool nw_visit_same(nw_visit a, nw_visit b)
{
    return a.pass == b.pass && a.step == b.step && a.kv == b.kv;
}

/* The pin of a visit; NULL: it is streamed. */
static nw_pin *pin_of(const nw_window *w, nw_visit v)
{
    if (nw_window_is_kv(w, v))
        return NULL;
    if (v.pass != w->shape.pinned || w->parts->pins[v.step].at == NW_NOT_PINNED)
        return NULL;
    return &w->parts->pins[v.step];
}

/* True if the visit whose pin this is finds its tile in a slot. */
static bool uses_slot(const nw_pin *pin)
{
    return pin == NULL || pin->in_slot || pin->unfit;
}

nw_pin_shape nw_window_pin_shape(const nw_window *w, const nw_pin *pin, nw_step step)
{
    return nw_pin_shape_of(w->model, &w->shape.pinning, pin != NULL && pin->packed, step, w->shape.align);
}

/* True if the encoder's scratch overlays the pin. */
static bool is_overlaid(const nw_window *w, const nw_pin *pin, nw_step step)
{
    return pin->at + nw_window_pin_shape(w, pin, step).bytes > w->encode_from;
}

/* ---- reading ---- */

static void submit(nw_window *w, nw_step step, void *buf, uint64_t tag)
{
    nw_extent e = nw_model_extent(w->model, step);
    nw_io_op  op = {.kind = NW_IO_READ,
                    .fd = nw_model_tile_file(w->model, step)->fd,
                    .offset = e.offset,
                    .buf = buf,
                    .bytes = e.bytes,
                    .bytes_needed = e.bytes_needed,
                    .tag = tag};
    nw_trace_read_begin(&w->parts->trace, tag, step);
    bool queued = nw_io_submit(w->io, &op);
    NW_CHECK(queued);
    w->bytes_read += e.bytes_counted;
}

void nw_window_drop_cached(const nw_window *w, nw_step step)
{
    nw_extent e = nw_model_extent(w->model, step);
    nw_file_drop(nw_model_tile_file(w->model, step), e.offset, e.bytes);
}

static void pin_done(nw_window *w, nw_pin *pin, nw_step step, int os_errno)
{
    pin->os_errno = os_errno;
    pin_move(pin, NW_SLOT_READING, os_errno == 0 ? NW_SLOT_READY : NW_SLOT_FREE);
    if (os_errno == 0)
        w->pinned_bytes += nw_window_pin_shape(w, pin, step).bytes;
    nw_window_drop_cached(w, step);
}

static void slot_done(nw_window *w, nw_slot *s, int os_errno)
{
    NW_CHECK(w->reading > 0);
    w->reading--;
    s->os_errno = os_errno;
    nw_slot_move(s, NW_SLOT_READING, NW_SLOT_READY);
    if (nw_window_is_kv(w, s->visit))
        nw_window_kv_drop_cached(w, s->visit);
    else
        nw_window_drop_cached(w, nw_window_step(w, s->visit));
}

static void stage_done(nw_kv_stream *k, size_t index, int os_errno)
{
    k->busy &= ~(1u << index);
    if (os_errno != 0)
        k->os_errno = os_errno;
}

static void row_done(nw_window *w, size_t index, int os_errno)
{
    w->rows_done |= 1u << index;
    if (os_errno != 0) {
        w->rows_failed |= 1u << index;
        w->row_errno = os_errno;
    }
}

/* Takes what has arrived; with `wait`, at least one thing if any is in flight. */
void nw_window_reap(nw_window *w, bool wait)
{
    nw_io_done done[32];
    size_t     count;
    do {
        count = nw_io_reap(w->io, done, sizeof done / sizeof *done, wait);
        wait = false;
        for (size_t i = 0; i < count; i++) {
            size_t index = tag_index(done[i].tag);
            if (tag_kind_of(done[i].tag) != NW_TAG_STAGE)
                nw_trace_read_end(&w->parts->trace, done[i].tag);
            switch (tag_kind_of(done[i].tag)) {
            case NW_TAG_SLOT: slot_done(w, &w->parts->slots[index], done[i].os_errno); break;
            case NW_TAG_PIN:
                pin_done(w, &w->parts->pins[index],
                         nw_window_step(w, (nw_visit){.pass = w->shape.pinned, .step = index}), done[i].os_errno);
                break;
            case NW_TAG_EMBED: pin_done(w, &w->parts->embed_pins[index], embed_step(w, index), done[i].os_errno); break;
            case NW_TAG_ROW: row_done(w, index, done[i].os_errno); break;
            case NW_TAG_STAGE: stage_done(&w->parts->kv_stream, index, done[i].os_errno); break;
            }
        }
    } while (count == sizeof done / sizeof *done);
}

/* Rows of the embedding, and K and V on their way to the disk, always find room beside what is read. */
bool nw_window_has_room(const nw_window *w)
{
    const nw_kv_stream *k = &w->parts->kv_stream;
    size_t              stages = k->stage_bytes > 0 ? NW_KV_STAGES : 0;
    size_t              reads = nw_io_in_flight(w->io) - (size_t)__builtin_popcount(k->busy);
    return reads + NW_ROW_BATCH + stages < nw_io_depth(w->io);
}

static void read_pin(nw_window *w, nw_pin *pin, nw_step step, uint64_t tag)
{
    if (!is_overlaid(w, pin, step)) /* what is lies behind all others: its turn may come before theirs */
        w->reach(w->reach_user, w->parts->region + pin->at + nw_window_pin_shape(w, pin, step).bytes);
    pin_move(pin, NW_SLOT_FREE, NW_SLOT_READING);
    submit(w, step, w->parts->region + pin->at, tag);
}

/* Slots that may be read into at once: not all. Devices may report several reads at a time, the last ones of a queue
 * that has run empty; then those held back are started at once, and the disk does not wait until the first of what has
 * come is used. */
static uint32_t reading_max(uint32_t slot_count)
{
    return slot_count - slot_count / 4;
}

/* Slots in use at once: what is left of the others goes on being read into. */
static size_t in_use_max(uint32_t slot_count)
{
    return nw_max_size(1, slot_count / 4);
}

uint32_t nw_window_ahead(const nw_shape *s)
{
    uint64_t slots = AHEAD_BYTES / s->slot_bytes;
    return (uint32_t)nw_min_u64(nw_max_u64(slots, 1), reading_max(s->slot_count));
}

/* True if a slot may be filled with the visit at w->read. */
static bool may_read_slot(const nw_window *w)
{
    uint32_t most = w->next == NW_PASS_CROSS ? w->shape.slot_count : nw_window_ahead(&w->shape);
    if (w->read_crossed && w->tail - w->crossed_tail >= most)
        return false;
    return w->tail - w->head < w->shape.slot_count && w->reading < reading_max(w->shape.slot_count) &&
           nw_window_has_room(w);
}

typedef enum { READ_STARTED, READ_RESIDENT, READ_BLOCKED } read_result;

/* Reads the visit at w->read into the next slot of the ring. */
static read_result read_into_slot(nw_window *w)
{
    nw_slot *s = nw_window_slot(w, w->tail);
    if (!may_read_slot(w))
        return READ_BLOCKED;
    nw_slot_move(s, NW_SLOT_FREE, NW_SLOT_READING);
    s->os_errno = 0;
    s->visit = w->read;
    uint64_t tag = nw_tag_make(NW_TAG_SLOT, w->tail % w->shape.slot_count);
    if (nw_window_is_kv(w, s->visit))
        nw_window_kv_submit(w, s, tag);
    else
        submit(w, nw_window_step(w, w->read), s->bytes, tag);
    w->tail++;
    w->reading++;
    return READ_STARTED;
}

/* Starts the read of the visit at w->read, if it needs one and there is somewhere to put it. */
static read_result read_one(nw_window *w)
{
    /* What K and V the next pass will see is not known before it begins, nor are the new ones written. */
    if (w->read_crossed && nw_window_is_behind_attention(w, w->read))
        return READ_BLOCKED;
    if (nw_window_is_kv(w, w->read))
        return read_into_slot(w);
    nw_step step = nw_window_step(w, w->read);
    nw_pin *pin = pin_of(w, w->read);
    if (pin != NULL && pin->state != NW_SLOT_FREE)
        return READ_RESIDENT;
    if (pin != NULL && pin->in_slot) /* this pass's: whether it fits into its pin will show when it is used */
        return READ_BLOCKED;
    if (pin != NULL && nw_window_pin_shape(w, pin, step).form == NW_PINS_STORED) {
        if (pin->os_errno != 0 || !nw_window_has_room(w) || (w->scratch_in_use && is_overlaid(w, pin, step)))
            return READ_BLOCKED;
        read_pin(w, pin, step, nw_tag_make(NW_TAG_PIN, w->read.step));
        return READ_STARTED;
    }
    read_result r = read_into_slot(w);
    if (pin != NULL && r == READ_STARTED)
        pin->in_slot = !pin->unfit;
    return r;
}

/* Moves the reader over the seam when it has come to a pass's end. False: there is nothing more to read for now. Only
 * one seam is crossed: what comes after the next pass is anyone's guess. */
static bool reader_has_visit(nw_window *w)
{
    if (w->read.pass == NW_PASS_COUNT)
        return false;
    if (w->read.step < w->model->step_count[w->read.pass])
        return true;
    if (w->read_crossed || w->next == NW_PASS_COUNT || w->model->step_count[w->next] == 0)
        return false;
    w->read = (nw_visit){.pass = w->next};
    w->read_crossed = true;
    w->crossed_tail = w->tail;
    return true;
}

/* Fills slots and every pin that comes by. */
void nw_window_pump(nw_window *w)
{
    bool started = false;
    while (reader_has_visit(w)) {
        if (w->prefetch_off && (w->read_crossed || !nw_visit_same(w->read, w->at)))
            break;
        read_result r = read_one(w);
        if (r == READ_BLOCKED)
            break;
        started |= r == READ_STARTED;
        w->read = nw_window_after(w, w->read);
    }
    if (started)
        nw_io_flush(w->io);
}

/* ---- passes ---- */

void nw_window_start(nw_window *w)
{
    w->at = w->read = (nw_visit){.pass = NW_PASS_COUNT};
    w->next = NW_PASS_COUNT;
    w->read_crossed = false;
    w->head = w->tail = 0;
}

static void forget_errors(nw_pin *pins, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pins[i].os_errno = 0;
}

/* Frees every slot; waits for those that are being read. Pins in flight arrive too; failed ones may be tried again. */
void nw_window_drain(nw_window *w)
{
    while (nw_io_in_flight(w->io) > 0)
        nw_window_reap(w, true);
    for (; w->head < w->tail; w->head++) {
        nw_slot *s = nw_window_slot(w, w->head);
        nw_slot_move(s, s->state == NW_SLOT_IN_USE ? NW_SLOT_IN_USE : NW_SLOT_READY, NW_SLOT_FREE);
        nw_pin *pin = pin_of(w, s->visit);
        if (pin != NULL)
            pin->in_slot = false;
    }
    forget_errors(w->parts->pins, w->model->step_count[w->shape.pinned]);
    forget_errors(w->parts->embed_pins, nw_embed_tiles(w->model, w->shape.pinned));
    w->in_use = false;
    w->more = 0;
    w->pin = NULL;
    atomic_store(&w->misfit, false);
    w->parts->kv_stream.os_errno = 0;
    nw_window_start(w);
}

/* What is in it is of no use any more. */
void nw_window_empty_pin(nw_window *w, nw_pin *pin, nw_step step)
{
    pin_move(pin, NW_SLOT_READY, NW_SLOT_FREE);
    pin->visited = false;
    w->pinned_bytes -= nw_window_pin_shape(w, pin, step).bytes;
}

static void drop_pin(nw_window *w, nw_pin *pin, nw_step step)
{
    if (pin->at == NW_NOT_PINNED || !is_overlaid(w, pin, step))
        return;
    NW_CHECK(pin->state != NW_SLOT_READING);
    if (pin->state != NW_SLOT_READY)
        return;
    nw_window_empty_pin(w, pin, step);
}

/* The encoder's scratch takes its memory: what it overlays is forgotten (no pins of its own pass, which lie before it).
 * Nothing is in flight into it: a decode pass has waited for all its pins, and the reader crosses into the next decode
 * pass only when that is expected; then it was drained. */
static void take_scratch(nw_window *w)
{
    for (size_t i = 0; i < w->model->step_count[w->shape.pinned]; i++)
        drop_pin(w, &w->parts->pins[i], w->model->steps[w->shape.pinned][i]);
    for (size_t i = 0; i < nw_embed_tiles(w->model, w->shape.pinned); i++)
        drop_pin(w, &w->parts->embed_pins[i], embed_step(w, i));
    w->scratch_in_use = true;
}

void nw_window_begin(nw_window *w, nw_pass pass, nw_pass next)
{
    NW_CHECK(!w->in_use);
    NW_CHECK(pass < NW_PASS_COUNT && w->model->step_count[pass] > 0);
    /* What was read ahead is this pass's from its first step on, or of no use. */
    bool expected = w->at.pass != NW_PASS_COUNT && w->next == pass && w->at.step == w->model->step_count[w->at.pass];
    if (!expected)
        nw_window_drain(w);
    if (pass == NW_PASS_ENCODE)
        take_scratch(w);
    else if (pass != NW_PASS_CROSS)
        w->scratch_in_use = false;
    if (!w->read_crossed)
        w->read = (nw_visit){.pass = pass};
    w->read_crossed = false;
    w->at = (nw_visit){.pass = pass};
    w->next = next;
}

/* ---- acquire and release ---- */

/* Takes what has arrived, and reads on: at least as far as the visit at hand, for which writes may have left no room.
 */
void nw_window_keep_up(nw_window *w)
{
    nw_window_reap(w, false);
    nw_window_pump(w);
    while (!w->read_crossed && nw_visit_same(w->read, w->at) && nw_io_in_flight(w->io) > 0) {
        nw_window_reap(w, true);
        nw_window_pump(w);
    }
}

/* offset, bytes: of what could not be read. */
nw_code nw_window_read_failed(const nw_window *w, nw_step step, uint64_t offset, size_t bytes, int os_errno,
                              nw_error *err)
{
    const char *path = nw_model_tile_path(w->model, step);
    const char *name = w->model->places[step.tensor].tensor->name;
    nw_code     rc;
    if (os_errno == NW_IO_EOF) {
        rc = nw_fail(err, NW_E_FORMAT, 0, "%s: ends before byte %llu, in tensor %s: the file was cut short", path,
                     (unsigned long long)(offset + bytes), name);
    } else {
        rc = nw_fail(err, NW_E_IO, os_errno, "%s: reading %zu bytes at %llu, of tensor %s", path, bytes,
                     (unsigned long long)offset, name);
    }
    if (err != NULL) {
        err->block = w->model->tensors.list[step.tensor].block;
        err->offset = offset;
    }
    return rc;
}

/* Waits, reading on meanwhile, until a read has ended, one way or the other. */
nw_code nw_window_wait(nw_window *w, const nw_slot_state *state, nw_step step, nw_error *err)
{
    double   start = 0;
    uint64_t start_ns = 0;
    while (*state == NW_SLOT_READING) {
        if (atomic_load_explicit(w->stop, memory_order_relaxed))
            return nw_fail(err, NW_E_CANCELLED, 0, "stopped");
        if (start == 0) {
            start = nw_system_seconds();
            start_ns = nw_trace_now(&w->parts->trace);
        }
        nw_window_reap(w, true);
        nw_window_pump(w);
    }
    if (start != 0) {
        w->seconds_waited += nw_system_seconds() - start;
        nw_trace_waited(&w->parts->trace, start_ns, step);
    }
    return NW_OK;
}

/* The same for a tile of weights, and whether it is there. */
static nw_code wait_for(nw_window *w, const nw_slot_state *state, const int *os_errno, nw_step step, nw_error *err)
{
    nw_code rc = nw_window_wait(w, state, step, err);
    if (rc != NW_OK)
        return rc;
    NW_CHECK(*state == NW_SLOT_READY || *os_errno != 0); /* the reader is never behind the pass */
    if (*os_errno == 0)
        return NW_OK;
    nw_extent e = nw_model_extent(w->model, step);
    return nw_window_read_failed(w, step, e.offset, e.bytes_needed, *os_errno, err);
}

static nw_tile tile_of(const nw_window *w, nw_step step, const unsigned char *bytes)
{
    const nw_cut *cut = &w->model->places[step.tensor].cut;
    return (nw_tile){.tensor = step.tensor,
                     .tile = step.tile,
                     .first = nw_cut_first(cut, step.tile),
                     .rows = nw_cut_rows(cut, step.tile),
                     .cols = cut->cols,
                     .strip_rows = cut->strip_rows,
                     .strips = nw_cut_strips(cut, nw_cut_rows(cut, step.tile)),
                     .data = bytes + nw_model_extent(w->model, step).skip};
}

/* A tile that is in its pin for good. Its strips lie there one behind the other; only those of a pack that are kept as
 * they are stored have to be restored. */
static nw_tile settled_tile(const nw_window *w, const nw_pin *pin, nw_step step)
{
    const nw_place *place = &w->model->places[step.tensor];
    nw_pin_shape    shape = nw_window_pin_shape(w, pin, step);
    nw_tile         t = tile_of(w, step, w->parts->region + pin->at);
    if (shape.form != NW_PINS_STORED) {
        t.ready = nw_pin_rows(&shape, 0, w->parts->region + pin->at);
        t.ready_stride = shape.stride;
    } else if (nw_checkpoint_pack(w->model->checkpoint) == NULL) {
        t.ready = (nw_rows){.dtype = place->tensor->dtype, .data = t.data};
        t.ready_stride = (size_t)(t.strip_rows * place->row_bytes);
    }
    return t;
}

bool nw_window_would_wait(nw_window *w)
{
    NW_CHECK(!w->in_use);
    nw_window_keep_up(w);
    const nw_pin *pin = pin_of(w, w->at);
    bool          in_slot = uses_slot(pin);
    return (in_slot ? nw_window_slot(w, w->head)->state : pin->state) == NW_SLOT_READING;
}

nw_code nw_window_acquire(nw_window *w, uint32_t tensor, uint32_t tile, nw_tile *ret, nw_error *err)
{
    NW_CHECK(!w->in_use);
    NW_CHECK(w->at.pass < NW_PASS_COUNT && w->at.step < w->model->step_count[w->at.pass]);
    nw_step step = nw_window_step(w, w->at);
    NW_CHECK(!nw_window_is_kv(w, w->at));                 /* all tiles of K and V have been taken */
    NW_CHECK(step.tensor == tensor && step.tile == tile); /* the model asks for exactly the next tile of the schedule */
    if (atomic_load_explicit(w->stop, memory_order_relaxed))
        return nw_fail(err, NW_E_CANCELLED, 0, "stopped");
    nw_window_keep_up(w);

    nw_pin              *pin = pin_of(w, w->at);
    bool                 in_slot = uses_slot(pin);
    nw_slot             *s = in_slot ? nw_window_slot(w, w->head) : NULL;
    const unsigned char *bytes = in_slot ? s->bytes : w->parts->region + pin->at;
    if (in_slot)
        NW_CHECK(w->head < w->tail && nw_visit_same(s->visit, w->at));
    nw_code rc =
        in_slot ? wait_for(w, &s->state, &s->os_errno, step, err) : wait_for(w, &pin->state, &pin->os_errno, step, err);
    if (rc != NW_OK)
        return rc;
    w->pin = pin != NULL && !pin->unfit ? pin : NULL;
    w->pin_shape = nw_window_pin_shape(w, pin, step);
    if (in_slot)
        nw_slot_move(s, NW_SLOT_READY, NW_SLOT_IN_USE);
    w->in_use = true;

    if (in_slot || !pin->visited) {
        *ret = tile_of(w, step, bytes);
        ret->fresh = true;
    } else {
        *ret = settled_tile(w, pin, step);
    }
    return NW_OK;
}

/* True if the visit's tile is there, and its use changes nothing but a slot. `slots`: those in use before it. */
static bool is_at_hand(nw_window *w, nw_visit v, size_t slots, nw_tile *ret)
{
    const nw_pin *pin = pin_of(w, v);
    nw_step       step = nw_window_step(w, v);
    if (!uses_slot(pin)) {
        bool settled = pin->state == NW_SLOT_READY && pin->visited;
        if (settled)
            *ret = settled_tile(w, pin, step);
        return settled;
    }
    const nw_slot *s = nw_window_slot(w, w->head + slots);
    bool           fills_pin = pin != NULL && !pin->unfit;
    if (fills_pin || slots >= in_use_max(w->shape.slot_count) || w->head + slots >= w->tail)
        return false;
    NW_CHECK(nw_visit_same(s->visit, v));
    *ret = tile_of(w, step, s->bytes);
    ret->fresh = true;
    return s->state == NW_SLOT_READY && s->os_errno == 0;
}

size_t nw_window_more(nw_window *w, size_t most, size_t multiple, nw_tile *ret)
{
    size_t   count = 0, slots = uses_slot(pin_of(w, w->at)) ? 1 : 0;
    nw_visit v = {.pass = w->at.pass, .step = w->at.step + 1};
    NW_CHECK(w->in_use && w->more == 0);
    if (nw_window_fills_pin(w))
        return 0;
    for (; count < most && v.step < w->model->step_count[v.pass] && !nw_window_is_kv(w, v); v.step++) {
        if (!is_at_hand(w, v, slots, &ret[count]))
            break;
        slots += uses_slot(pin_of(w, v)) ? 1 : 0;
        count++;
    }
    w->more = nw_max_size((count + 1) / multiple * multiple, 1) - 1;
    slots = uses_slot(pin_of(w, w->at)) ? 1 : 0; /* of those that are left of what was found */
    for (size_t i = 1; i <= w->more; i++) {
        v.step = w->at.step + i;
        if (uses_slot(pin_of(w, v)))
            nw_slot_move(nw_window_slot(w, w->head + slots++), NW_SLOT_READY, NW_SLOT_IN_USE);
    }
    return w->more;
}

bool nw_window_fills_pin(const nw_window *w)
{
    NW_CHECK(w->in_use);
    return w->pin != NULL && w->pin->in_slot;
}

bool nw_window_strip(nw_window *w, const nw_tile *tile, size_t strip, size_t worker, nw_rows *ret)
{
    nw_step step = {.tensor = tile->tensor, .tile = tile->tile};
    if (!nw_restore_strip(&w->parts->restore, step, (uint32_t)strip, tile->data, tile->fresh, worker, ret))
        return false;
    size_t rows = (size_t)nw_min_u64(tile->strip_rows, tile->rows - strip * tile->strip_rows);
    if (nw_window_fills_pin(w) &&
        !nw_pin_fill(&w->pin_shape, w->kernels, strip, rows, (size_t)tile->cols, w->parts->region + w->pin->at, ret))
        atomic_store_explicit(&w->misfit, true, memory_order_relaxed);
    return true;
}

static void free_slot(nw_window *w)
{
    nw_slot_move(nw_window_slot(w, w->head), NW_SLOT_IN_USE, NW_SLOT_FREE);
    w->head++;
}

/* The tile at hand was filled into its pin, or has been there. */
static void settle_pin(nw_window *w, nw_pin *pin, nw_tile_use use)
{
    if (!pin->in_slot) {
        if (use == NW_TILE_DAMAGED)
            nw_window_empty_pin(w, pin, nw_window_step(w, w->at));
        else if (use == NW_TILE_USED)
            pin->visited = true;
        return;
    }
    bool misfit = atomic_exchange(&w->misfit, false);
    pin->in_slot = false;
    pin->unfit = misfit;
    if (use != NW_TILE_USED || misfit)
        return;
    pin_move(pin, NW_SLOT_FREE, NW_SLOT_READY);
    pin->visited = true;
    w->pinned_bytes += w->pin_shape.bytes;
}

void nw_window_release(nw_window *w, nw_tile_use use)
{
    NW_CHECK(w->in_use);
    w->in_use = false;
    for (size_t i = 0; i <= w->more; i++) {
        if (uses_slot(pin_of(w, w->at)))
            free_slot(w);
        if (i == 0 && w->pin != NULL)
            settle_pin(w, w->pin, use);
        w->at = nw_window_after(w, w->at);
    }
    w->more = 0;
    if (!w->read_crossed && w->read.step < w->at.step) /* what it had not come to needed no reading */
        w->read = w->at;
    nw_window_reap(w, false);
    nw_window_pump(w);
}

nw_code nw_window_finish(nw_window *w, nw_error *err)
{
    size_t count = nw_embed_tiles(w->model, w->shape.pinned);
    for (size_t i = 0; i < count; i++) {
        nw_pin *pin = &w->parts->embed_pins[i];
        if (pin->at == NW_NOT_PINNED || pin->state != NW_SLOT_FREE)
            continue;
        while (!nw_window_has_room(w))
            nw_window_reap(w, true);
        read_pin(w, pin, embed_step(w, i), nw_tag_make(NW_TAG_EMBED, i));
    }
    for (size_t i = 0; i < count; i++) {
        nw_pin *pin = &w->parts->embed_pins[i];
        if (pin->at == NW_NOT_PINNED)
            continue;
        nw_code rc = wait_for(w, &pin->state, &pin->os_errno, embed_step(w, i), err);
        if (rc != NW_OK)
            return rc;
        pin->visited = true;
    }
    return NW_OK;
}

#include "pin_choice.h"

#include "pin_plan.h"
#include "session_state.h"
#include "system.h"
#include "window_parts.h"

/* Less than this is read in a burst by disks whose rate is limited, or comes from some cache. */
#define BYTES_MIN ((uint64_t)128 << 20)

/* An encoder pass that waits for this part of its time has shown what the disk gives; less may mean that it waited for
 * the cores, too, or for memory of pins (first_touch.h). */
#define WAITED_MIN 0.5

/* Tiles that are read for a probe: of bf16, packed, 67 MB. Of too few, only so few are in flight at a time that a fast
 * disk looks slow. */
enum { PROBE_TILES = 48, PROBE_TILES_MIN = 24 };

/* What the encoder pass has read, at least: reads in flight are the next pass's. */
static uint64_t encode_bytes(const nw_session *s)
{
    uint64_t bytes = s->window.bytes_read - s->pin_choice.bytes;
    return bytes - nw_min_u64(bytes, s->window.reading * (uint64_t)s->window.shape.slot_bytes);
}

/* Reading tiles that a decode pass will stream, as fast as they come, to where pins will be. What is timed begins with
 * the first that has come and ends when no more are asked for: as many as may be are in flight all the time, but only
 * some of all, so that there is something left to time. */
typedef struct {
    size_t   tiles, most, begun, ended;
    nw_step  steps[PROBE_TILES];
    uint64_t at[PROBE_TILES + 1]; /* offsets in the region; [tiles]: where the last ends */
    size_t   timed;
    double   start, seconds;
    bool     failed;
} probe_run;

/* As many as there is room for. */
static probe_run probe_make(const nw_session *s)
{
    const nw_blueprint *b = &s->blueprint;
    uint64_t            room = nw_min_u64(b->plan.pinned_bytes, s->window.encode_from);
    probe_run           p = {0};
    for (size_t i = 0; i < b->pin_count && p.tiles < PROBE_TILES; i++) {
        nw_step  step = s->model->steps[b->shape.pinned][i];
        uint64_t end = p.at[p.tiles] + nw_round_up(nw_model_extent(s->model, step).bytes, b->shape.align);
        if (b->pin_at[i] != NW_NOT_PINNED || end > room)
            continue;
        p.steps[p.tiles++] = step;
        p.at[p.tiles] = end;
    }
    p.most = nw_min_size(nw_min_size(b->shape.slot_count, nw_io_depth(s->io)), nw_max_size(p.tiles / 4, 1));
    return p;
}

static void probe_submit(nw_session *s, probe_run *p)
{
    for (; p->begun < p->tiles && p->begun - p->ended < p->most; p->begun++) {
        nw_step   step = p->steps[p->begun];
        nw_extent e = nw_model_extent(s->model, step);
        nw_io_op  op = {.kind = NW_IO_READ,
                        .fd = nw_model_tile_file(s->model, step)->fd,
                        .offset = e.offset,
                        .buf = s->parts.region + p->at[p->begun],
                        .bytes = e.bytes,
                        .bytes_needed = e.bytes_needed};
        bool      queued = nw_io_submit(s->io, &op);
        NW_CHECK(queued);
        s->window.bytes_read += e.bytes_counted;
        s->stats.probe_bytes += e.bytes_counted;
    }
}

static void probe_reap(nw_session *s, probe_run *p)
{
    nw_io_done done[PROBE_TILES];
    size_t     count = nw_io_reap(s->io, done, PROBE_TILES, true);
    for (size_t i = 0; i < count; i++)
        p->failed |= done[i].os_errno != 0;
    p->ended += count;
    if (p->start == 0) {
        p->start = nw_system_seconds();
    } else if (p->begun < p->tiles) {
        p->seconds = nw_system_seconds() - p->start;
        p->timed += count;
    }
}

/* Bytes a second, with nothing else to do; 0: there are too few tiles or is room for too few, or one cannot be read,
 * which will show again. `any`: how few does not matter. */
static double probe(nw_session *s, bool any)
{
    probe_run p = probe_make(s);
    if (p.tiles < PROBE_TILES_MIN && !any)
        return 0;
    nw_first_touch_until(&s->touch, s->parts.region + p.at[p.tiles], s->workers, &s->parts.trace);
    while (nw_io_in_flight(s->io) > 0) /* what the next pass has begun to read */
        nw_window_reap(&s->window, true);
    while (p.ended < p.tiles) {
        probe_submit(s, &p);
        probe_reap(s, &p);
    }
    for (size_t i = 0; i < p.tiles; i++)
        nw_window_drop_cached(&s->window, p.steps[i]);
    if (p.failed || p.seconds <= 0)
        return 0;
    return (double)p.at[p.tiles] / (double)p.tiles * (double)p.timed / p.seconds;
}

/* Bytes a second; 0: unknown. */
static double disk_rate(nw_session *s)
{
    const nw_hooks *hooks = s->model->hooks;
    if (hooks != NULL && hooks->disk_rate > 0)
        return hooks->disk_rate;
    bool any = hooks != NULL && hooks->measure_all;
    if (encode_bytes(s) < BYTES_MIN && !any)
        return 0;
    double seconds = nw_system_seconds() - s->pin_choice.seconds;
    double waited = s->window.seconds_waited - s->pin_choice.waited;
    double rate = (double)encode_bytes(s) / seconds;
    if (waited > seconds * WAITED_MIN && !any)
        return rate;
    double probed = probe(s, any); /* without one, `rate` is no more than a bound: it says nothing of a fast disk */
    return probed > rate ? probed : probed > 0 ? rate : 0;
}

/* The window follows the plan. */
static void take_plan(nw_session *s)
{
    const nw_blueprint *b = &s->blueprint;
    for (size_t i = 0; i < b->pin_count; i++)
        NW_CHECK(s->parts.pins[i].state == NW_SLOT_FREE && !s->parts.pins[i].in_slot);
    nw_session_place_pins(s);
    s->window.shape = b->shape;
}

static void choose(nw_session *s)
{
    nw_pin_rates rates = {.restore = nw_restore_rate(&s->parts.restore)};
    s->pin_choice.made = true;
    if (rates.restore <= 0 || s->blueprint.plan.read.next_pass == 0)
        return;
    rates.disk = disk_rate(s);
    if (rates.disk <= 0)
        return;
    s->stats.disk_rate = rates.disk;
    (void)nw_pins_mix(s->model, &rates, &s->blueprint);
    take_plan(s);
}

void nw_pin_choice_begin(nw_session *s, nw_pass pass)
{
    nw_pin_choice *c = &s->pin_choice;
    if (c->made)
        return;
    if (pass == NW_PASS_CROSS) {
        choose(s);
    } else if (pass == s->blueprint.shape.pinned) {
        c->made = true;
    } else {
        *c = (nw_pin_choice){
            .bytes = s->window.bytes_read, .seconds = nw_system_seconds(), .waited = s->window.seconds_waited};
    }
}

#include "pin_plan.h"

#include <math.h>

/* Bytes of plain weights that a core multiplies out of slim pins, a second: 19e9 measured (narrows bench, AVX-512); of
 * restored ones, which are in its cache, next to nothing. */
#define SLIM_RATE_THREAD 1.8e10

/* What cores take besides: submitting and reaping, waiting for the last of a job. */
#define CORES_BESIDES 1.15
#define MEAN_POWER 6.0

enum { SHARE_STEP = NW_SHARE_ALL / 16 };

/* Of pins that are chosen and have no place yet: offsets are smaller. */
#define UNDISTURBED (NW_NOT_PINNED - 2)
#define OVERLAID (NW_NOT_PINNED - 1)

/* The pin of tile i of the pinned pass's schedule, then of the embedding. */
static nw_pin_shape pin_shape(const nw_model *m, const nw_shape *s, size_t i, bool packed)
{
    size_t  steps = m->step_count[s->pinned];
    nw_step step =
        i < steps ? m->steps[s->pinned][i] : (nw_step){.tensor = m->tensors.embed, .tile = (uint32_t)(i - steps)};
    return nw_pin_shape_of(m, &s->pinning, packed, step, s->align);
}

static nw_pin_shape place_shape(const nw_model *m, const nw_shape *s, size_t i)
{
    return pin_shape(m, s, i, nw_pin_stays_packed(&s->pinning, i));
}

static uint64_t place_bytes(const nw_model *m, const nw_shape *s, size_t i)
{
    return place_shape(m, s, i).bytes;
}

/* Where the encoder's scratch begins. */
static uint64_t overlay_of(const nw_blueprint *b)
{
    return b->shape.region_bytes - b->plan.part.encode;
}

static uint64_t bytes_of(const nw_model *m, const nw_shape *s, size_t first, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = first; i < first + count; i++)
        bytes += pin_shape(m, s, i, false).bytes;
    return bytes;
}

uint64_t nw_pins_bytes(const nw_model *m, const nw_shape *s)
{
    return bytes_of(m, s, 0, m->step_count[s->pinned]);
}

uint64_t nw_embed_pins_bytes(const nw_model *m, const nw_shape *s)
{
    return bytes_of(m, s, m->step_count[s->pinned], nw_embed_tiles(m, s->pinned));
}

bool nw_pins_may_mix(const nw_model *m, const nw_shape *s)
{
    for (size_t i = 0; i < m->step_count[s->pinned] && nw_restore_is_needed(m); i++) {
        if (nw_pin_is_packed(m, m->steps[s->pinned][i]) && pin_shape(m, s, i, false).form != NW_PINS_STORED)
            return true;
    }
    return false;
}

/* ---- places ---- */

static uint64_t reverse_bits(uint64_t x, unsigned bits)
{
    uint64_t reversed = 0;
    for (unsigned i = 0; i < bits; i++)
        reversed |= (x >> i & 1) << (bits - 1 - i);
    return reversed;
}

/* Which tiles stay: in one fixed order until the next does not fit, by bit-reversed index (van der Corput's sequence),
 * every prefix of which is spread evenly over the schedule. So what a smaller budget pins, a larger one pins too, and
 * what the encoder's scratch overlays, from `overlay` on, is spread evenly as well. */
static void choose_pins(const nw_model *m, nw_blueprint *b, uint64_t overlay)
{
    uint64_t used = 0;
    unsigned bits = 0;
    while ((uint64_t)1 << bits < b->pin_count)
        bits++;
    for (size_t i = 0; i < b->pin_count; i++)
        b->pin_at[i] = NW_NOT_PINNED;
    for (uint64_t k = 0; k < (uint64_t)1 << bits; k++) {
        size_t i = (size_t)reverse_bits(k, bits);
        if (i >= b->pin_count)
            continue;
        used += place_bytes(m, &b->shape, i);
        if (used > b->pin_room)
            break;
        b->pin_at[i] = used <= overlay ? UNDISTURBED : OVERLAID;
    }
}

/* Gives the pins of one kind their places, in the order in which a pass fills them: their memory is touched in this
 * order, too (first_touch.h). Returns where the last one ends. */
static uint64_t place_kind(const nw_model *m, nw_blueprint *b, uint64_t kind, uint64_t used)
{
    for (size_t i = 0; i < b->pin_count; i++) {
        if (b->pin_at[i] != kind)
            continue;
        b->pin_at[i] = used;
        used += place_bytes(m, &b->shape, i);
        b->plan.pinned_tiles++;
        b->plan.packed_tiles +=
            place_shape(m, &b->shape, i).form == NW_PINS_STORED && nw_pin_is_packed(m, m->steps[b->shape.pinned][i]);
    }
    return used;
}

static uint64_t place_schedule(const nw_model *m, nw_blueprint *b)
{
    choose_pins(m, b, overlay_of(b));
    return place_kind(m, b, OVERLAID, place_kind(m, b, UNDISTURBED, 0));
}

/* The embedding comes last, whole or not at all. */
static uint64_t place_embedding(const nw_model *m, nw_blueprint *b, uint64_t used)
{
    nw_plan *p = &b->plan;
    p->embedding_resident = b->embed_count > 0 && p->pinned_tiles == b->pin_count &&
                            used + nw_embed_pins_bytes(m, &b->shape) <= b->pin_room;
    for (size_t i = 0; i < b->embed_count; i++) {
        b->embed_at[i] = p->embedding_resident ? used : NW_NOT_PINNED;
        used += p->embedding_resident ? place_bytes(m, &b->shape, b->pin_count + i) : 0;
    }
    return used;
}

/* ---- what is read ---- */

uint64_t nw_counted_bytes(const nw_model *m, nw_step step)
{
    return nw_model_extent(m, step).bytes_counted;
}

uint64_t nw_pass_bytes(const nw_plan *p)
{
    return p->read.next_pass + p->read.kv + p->read.kv_answers;
}

/* What K and V a pass will see is not known before it begins: where they may come from the disk, nothing is read ahead
 * from the first attention on (window.c). */
static bool waits_for_pass(const nw_model *m, const nw_shape *s, nw_step step)
{
    nw_role role = m->tensors.list[step.tensor].role;
    return s->pinned == NW_PASS_DECODE &&
           ((role == NW_ROLE_O && s->maxima.stream_self) || (role == NW_ROLE_CROSS_O && s->maxima.stream_cross));
}

static void count_reads(const nw_model *m, nw_blueprint *b)
{
    nw_plan *p = &b->plan;
    uint64_t overlay = overlay_of(b);
    uint32_t ahead = 0;
    bool     waits = false;
    p->read.first_pass = p->read.next_pass = p->read.refill = p->read.ahead = 0;
    for (size_t i = 0; i < b->pin_count; i++) {
        uint64_t bytes = nw_counted_bytes(m, m->steps[b->shape.pinned][i]);
        p->read.first_pass += bytes;
        waits = waits || waits_for_pass(m, &b->shape, m->steps[b->shape.pinned][i]);
        if (b->pin_at[i] != NW_NOT_PINNED) {
            p->read.refill += b->pin_at[i] + place_bytes(m, &b->shape, i) > overlay ? bytes : 0;
            continue;
        }
        p->read.next_pass += bytes;
        if (!waits && ahead++ < b->read_ahead)
            p->read.ahead += bytes;
    }
    for (size_t i = 0; i < b->embed_count && p->embedding_resident; i++) {
        uint64_t bytes = nw_counted_bytes(m, (nw_step){.tensor = m->tensors.embed, .tile = (uint32_t)i});
        p->read.first_pass += bytes;
        p->read.refill += b->embed_at[i] + place_bytes(m, &b->shape, b->pin_count + i) > overlay ? bytes : 0;
    }
}

void nw_pins_place(const nw_model *m, nw_blueprint *b)
{
    b->plan.pinned_tiles = b->plan.packed_tiles = 0;
    b->plan.pinned_bytes = place_embedding(m, b, place_schedule(m, b));
    count_reads(m, b);
}

/* ---- mixes ---- */

/* Of a pass that repeats, by the disk and by the cores; what its other products take is the same for all mixes. Where
 * both take about as long, each waits for the other now and then: a mean of high power comes near to what was measured
 * (flan-t5-xl at 1G, disks of 2.2 to 3.2 GB/s). */
static double mix_seconds(const nw_model *m, const nw_pin_rates *rates, const nw_blueprint *b)
{
    uint64_t restored = 0, slim = 0;
    for (size_t i = 0; i < b->pin_count; i++) {
        nw_step step = m->steps[b->shape.pinned][i];
        if (!nw_pin_is_packed(m, step))
            continue;
        bool     slim_pin = b->pin_at[i] != NW_NOT_PINNED && place_shape(m, &b->shape, i).form != NW_PINS_STORED;
        uint64_t plain = nw_model_tile_rows(m, step) * m->places[step.tensor].row_bytes;
        *(slim_pin ? &slim : &restored) += plain;
    }
    double disk = (double)nw_pass_bytes(&b->plan) / rates->disk;
    double cores = ((double)restored / rates->restore + (double)slim / SLIM_RATE_THREAD) / b->threads * CORES_BESIDES;
    return pow(pow(disk, MEAN_POWER) + pow(cores, MEAN_POWER), 1 / MEAN_POWER);
}

double nw_pins_mix(const nw_model *m, const nw_pin_rates *rates, nw_blueprint *b)
{
    unsigned *share = &b->shape.pinning.packed_share, best = 0;
    *share = 0;
    nw_pins_place(m, b);
    double least = mix_seconds(m, rates, b), limit = least * NW_PINS_WORTH_IT;
    if (!b->pins_mixed || b->plan.read.next_pass == 0)
        return least;
    for (*share = SHARE_STEP; *share <= NW_SHARE_ALL; *share += SHARE_STEP) {
        nw_pins_place(m, b);
        double seconds = mix_seconds(m, rates, b);
        if (seconds < limit && seconds < least) {
            least = seconds;
            best = *share;
        }
    }
    *share = best;
    nw_pins_place(m, b);
    return least;
}

/* From a budget to a plan. The order of claims: what the process and its threads cost anyway, what every request needs,
 * a window, the encoder's scratch; all that is left is for pins, whose last part the scratch may overlay.
 */
#include "plan.h"

#include "declared.h"
#include "draft_model.h"
#include "pin_plan.h"
#include "system.h"
#include "window.h"

#include <stdio.h>
#include <string.h>

enum {
    INPUT_DEFAULT = 512,
    OUTPUT_DEFAULT = 256,
    TOKENS_MAX = 1 << 20,
    LANES_MAX = 1024,
    REQUESTS_MAX = 1 << 16,
    INPUTS_MAX = 256, /* of one encoder pass: more gain nothing */
    WAITING_DEFAULT = 4,
    CROSS_ROWS_SHARED = 16, /* of a page, where inputs of different lengths share a pool */
    STREAMED_ROWS = 32,     /* of a page of an answer that may be streamed */
    STREAMED_RING = 2,      /* its pages in memory: one that is being filled, and what columns ahead may need */
    THREADS_MAX = 256,
    QUEUE_DEPTH_MAX = 1024,
    TRACE_EVENTS_MAX = 1 << 26,
    SLOTS_MIN = 2, /* one in use, one being read */
    SLOTS_USUAL_MIN = 4,
    SLOTS_MAX = 64,
};

/* The window holds what the disk delivers between two reaps: eight tiles of bf16, with their alignment, are 8 ms at
 * 2 GB/s, far longer than a tile takes to multiply. */
#define WINDOW_USUAL ((uint64_t)17 << 20)

/* Assumed for predictions unless the caller knows better: an NVMe disk that is shared, one core's reading of memory. */
#define DISK_RATE_ASSUMED 1.0e9
#define MEMORY_RATE_ASSUMED_THREAD 1.0e10
#define FLOP_RATE_ASSUMED_THREAD 4.0e10

/* Weights in plain bytes that a core restores from their packed form, a second: 6.2e9 measured
 * (benchmarks/bench_packed), less what the kernel's part of reading takes. */
#define RESTORE_RATE_THREAD 5.5e9

/* ---- sizes that follow from the model ---- */

static void widen_slot(const nw_model *m, nw_pass pass, size_t *bytes)
{
    for (size_t i = 0; i < m->step_count[pass]; i++)
        *bytes = nw_max_size(*bytes, nw_model_extent(m, m->steps[pass][i]).bytes);
}

static size_t read_align(const nw_model *m)
{
    size_t align = 4096; /* at least a page: the kernel pins whole pages for direct reads */
    for (size_t i = 0; i < nw_checkpoint_file_count(m->checkpoint); i++)
        align = nw_max_size(align, nw_checkpoint_file(m->checkpoint, i)->align);
    return align;
}

/* Rows of a page: so that pages for `rows` are equal and no last one is almost empty. */
static uint32_t page_rows(size_t rows, size_t most)
{
    size_t pages = (rows + most - 1) / most;
    return (uint32_t)(pages > 0 ? (rows + pages - 1) / pages : 1);
}

static size_t pages_of(size_t rows, uint32_t page_rows)
{
    return (rows + page_rows - 1) / page_rows;
}

/* Lanes that a request takes at most. */
static size_t sequences_of(const nw_session_options *o)
{
    const nw_generation_settings *g = o->generation;
    size_t                        own = g == NULL ? 1 : g->do_sample ? g->num_return_sequences : g->num_beams;
    return nw_max_size(nw_max_size(own, o->max_choices), 1);
}

static nw_code check_maxima(const nw_session_options *o, nw_error *err)
{
    if (o->max_input_tokens > TOKENS_MAX || o->max_output_tokens > TOKENS_MAX || o->max_encode_tokens > TOKENS_MAX)
        return nw_fail(err, NW_E_ARG, 0, "at most %d tokens in or out", TOKENS_MAX);
    if (o->max_lanes > LANES_MAX || o->max_columns > LANES_MAX)
        return nw_fail(err, NW_E_ARG, 0, "at most %d lanes and columns", LANES_MAX);
    if (o->max_waiting > REQUESTS_MAX || o->max_encoded_ahead > REQUESTS_MAX)
        return nw_fail(err, NW_E_ARG, 0, "at most %d requests", REQUESTS_MAX);
    if (o->queue_depth > QUEUE_DEPTH_MAX || o->trace_events > TRACE_EVENTS_MAX)
        return nw_fail(err, NW_E_ARG, 0, "at most %d reads in flight and %d events", QUEUE_DEPTH_MAX, TRACE_EVENTS_MAX);
    return o->threads > THREADS_MAX ? nw_fail(err, NW_E_ARG, 0, "at most %d threads", THREADS_MAX) : NW_OK;
}

/* What is to be decoded: settings as requests may have them, and lanes for them. */
static nw_code check_choice(const nw_model *m, const nw_session_options *o, nw_error *err)
{
    nw_code rc = o->generation != NULL ? nw_generation_check(o->generation, 0, m->config.vocab_size, err) : NW_OK;
    if (rc == NW_OK && sequences_of(o) > nw_max_size(o->max_lanes, 1))
        rc = nw_fail(err, NW_E_ARG, 0, "%zu sequences of a request need as many lanes", sequences_of(o));
    return rc;
}

/* What choosing tokens takes. */
static void shape_choice(const nw_session_options *o, nw_shape *s)
{
    const nw_generation_settings *g = o->generation;
    s->sequences = sequences_of(o);
    s->choices = nw_max_size(1, o->max_choices);
    if (g == NULL)
        return;
    s->beams = g->do_sample || g->num_beams < 2 ? 0 : g->num_beams;
    s->searches = s->beams > 0 ? nw_max_size(1, s->lanes / s->beams) : 0;
    nw_processors p = {.settings = g, .prompt_count = 1, .max_length = 1 + s->maxima.output_tokens};
    s->processed = g->do_sample || nw_processors_active(&p);
    s->stops = g->stop_strings.count > 0;
}

/* Requests, lanes, and the pages of their K and V. Prompts encoded ahead keep theirs until they get a lane. */
static void shape_lanes(const nw_session_options *o, nw_shape *s)
{
    nw_maxima *x = &s->maxima;
    if (s->pinned == NW_PASS_ENCODE) {
        x->output_tokens = 0;
        return;
    }
    s->lanes = o->max_lanes != 0 ? o->max_lanes : 1;
    shape_choice(o, s);
    x->columns = nw_max_size(o->max_columns, s->lanes);
    size_t encoded = nw_max_size(1, s->lanes / s->sequences) + o->max_encoded_ahead;
    s->requests = encoded + (o->max_waiting != 0 ? o->max_waiting : WAITING_DEFAULT);
    s->self_rows = page_rows(x->output_tokens, NW_PAGE_ROWS);
    s->self_pages = s->lanes * pages_of(x->output_tokens, s->self_rows);
    s->encoded = encoded;
    s->drafted = o->draft != NULL;
    s->cross_rows = page_rows(x->input_tokens, encoded > 1 ? CROSS_ROWS_SHARED : NW_PAGE_ROWS);
    s->cross_pages = encoded * pages_of(x->input_tokens, s->cross_rows);
    if (o->max_encoded_tokens != 0) /* each input's last page may be all but empty */
        s->cross_pages = nw_min_size(s->cross_pages, nw_max_size(pages_of(x->input_tokens, s->cross_rows),
                                                                 o->max_encoded_tokens / s->cross_rows + encoded));
}

static nw_code shape_make(const nw_model *m, const nw_session_options *o, nw_blueprint *b, nw_error *err)
{
    nw_shape *s = &b->shape;
    nw_code   rc = check_maxima(o, err);
    s->pinned = o->encode_only || m->config.decoder_blocks == 0 ? NW_PASS_ENCODE : NW_PASS_DECODE;
    if (rc == NW_OK && s->pinned == NW_PASS_DECODE)
        rc = check_choice(m, o, err);
    if (rc != NW_OK)
        return rc;
    b->threads = o->threads != 0 ? o->threads : nw_system_cpus("/proc", "/sys/fs/cgroup");
    s->maxima = (nw_maxima){.input_tokens = o->max_input_tokens != 0 ? o->max_input_tokens : INPUT_DEFAULT,
                            .output_tokens = o->max_output_tokens != 0 ? o->max_output_tokens : OUTPUT_DEFAULT,
                            .threads = b->threads};
    s->maxima.encode_tokens = nw_max_size(o->max_encode_tokens, s->maxima.input_tokens);
    s->inputs = nw_min_size(s->maxima.encode_tokens, INPUTS_MAX);
    s->trace = (nw_trace_options){.on = o->trace, .event_count = o->trace_events};
    shape_lanes(o, s);
    s->align = read_align(m);
    b->kernels = o->kernels != NULL ? nw_kernels_named(o->kernels) : nw_kernels_best();
    if (b->kernels == NULL)
        return nw_fail(err, NW_E_ARG, 0, "no kernels called '%s' on this machine", o->kernels);
    s->pinning = nw_pinning_make(o->pin_form, b->kernels);
    b->pins_mixed = o->pin_form == NW_PINS_AUTO && nw_pins_may_mix(m, s);
    for (int pass = 0; pass < NW_PASS_COUNT; pass++) {
        if (pass == NW_PASS_ENCODE || s->pinned == NW_PASS_DECODE)
            widen_slot(m, (nw_pass)pass, &s->slot_bytes);
    }
    s->slot_bytes = (size_t)nw_round_up(s->slot_bytes, s->align);
    s->row_bytes = (size_t)nw_round_up(nw_model_row_extent(m, 0).bytes, s->align);
    s->region_bytes = nw_parts_encode_bytes(m, &s->maxima);
    return NW_OK;
}

/* Most bytes of a tile of K and V that the tests ask for; 0: nothing. */
static size_t hooked_tile(const nw_model *m)
{
    return m->hooks != NULL ? m->hooks->kv_tile_bytes : 0;
}

/* The encoder's K and V go to a scratch file instead of pages. */
static void shape_stream_cross(const nw_model *m, nw_shape *s)
{
    size_t tile = hooked_tile(m) != 0 ? hooked_tile(m) : NW_KV_TILE_BYTES, input = s->maxima.input_tokens;
    s->cross_pages = 0;
    s->maxima.stream_cross = true;
    s->kv[NW_KV_CROSS] =
        nw_kv_shape_make(&m->config, nw_kv_tile_rows(&m->config, input, tile), input, s->encoded, s->align);
    s->slot_bytes = nw_max_size(s->slot_bytes, s->kv[NW_KV_CROSS].tile_bytes);
}

/* Requests that have lanes, if each has as many sequences as it may. */
static size_t lives(const nw_shape *s)
{
    return nw_max_size(1, s->lanes / s->sequences);
}

/* So do those of answers, but for the last pages of each request: a pass writes rows of one position, and of some ahead
 * of it (nw_lanes_lay), and no row goes before it is there for good. */
static void shape_stream_self(const nw_model *m, nw_shape *s)
{
    size_t row_bytes = nw_config_inner(&m->config) * sizeof(float), rows = s->sequences * s->maxima.output_tokens;
    size_t most = hooked_tile(m) != 0 ? hooked_tile(m) / row_bytes : STREAMED_ROWS;
    s->self_rows = (uint32_t)nw_max_size(most, 2 * s->sequences);
    s->self_ring = STREAMED_RING;
    s->self_pages = lives(s) * nw_min_size(STREAMED_RING, pages_of(rows, s->self_rows));
    s->maxima.stream_self = true;
    s->kv[NW_KV_SELF] = nw_kv_shape_make(&m->config, s->self_rows, rows, lives(s), s->align);
    s->kv[NW_KV_SELF].at = nw_kv_end(&s->kv[NW_KV_CROSS]);
    s->slot_bytes = nw_max_size(s->slot_bytes, s->kv[NW_KV_SELF].tile_bytes);
}

/* ---- the budget ---- */

/* Fills plan.part for a shape; returns what is needed in all without the reserve. */
static uint64_t claim(const nw_model *m, const nw_session_options *o, const nw_tokenizer_cost *cost,
                      uint64_t unforeseen, nw_blueprint *b)
{
    nw_plan *p = &b->plan;
    nw_arena a = nw_arena_measure();
    nw_parts parts = {0};
    b->shape.io_depth = (o->queue_depth != 0 ? o->queue_depth : b->shape.slot_count) + NW_ROW_BATCH +
                        (b->shape.maxima.stream_cross || b->shape.maxima.stream_self ? NW_KV_STAGES : 0);
    nw_parts_layout(&parts, &a, m, &b->shape);
    NW_CHECK(!a.failed);
    b->io = (nw_io_options){.choice = (nw_io_choice)o->io,
                            .depth = b->shape.io_depth,
                            .register_bytes = b->shape.slot_count * b->shape.slot_bytes,
                            .log = &m->log};

    p->slot_count = b->shape.slot_count;
    p->slot_bytes = b->shape.slot_bytes;
    p->part.process = NW_DECLARED_PROCESS + unforeseen;
    p->part.threads = b->threads * nw_declared_thread();
    p->part.io = nw_io_declared_bytes(&b->io);
    p->part.draft = o->draft != NULL ? nw_draft_bytes(o->draft) : 0;
    p->part.tokenizer = cost->pieces + (o->keep_tokenizer ? cost->peak : 0);
    p->part.index = m->memory.tag_live[NW_TAG_INDEX] + parts.index_bytes;
    p->part.vectors = parts.vector_bytes;
    p->part.kv_self = parts.self_bytes;
    p->part.kv_cross = parts.cross_bytes;
    p->part.activations = parts.activation_bytes;
    p->part.encode = parts.encode_bytes;
    p->part.window = parts.window_bytes;
    p->part.pins = a.used - parts.index_bytes - parts.vector_bytes - parts.self_bytes - parts.cross_bytes -
                   parts.activation_bytes - parts.window_bytes;
    return p->part.process + p->part.threads + p->part.io + p->part.tokenizer + p->part.draft +
           m->memory.tag_live[NW_TAG_INDEX] + a.used;
}

/* The smallest budget whose reserve leaves `needed`. */
static uint64_t with_reserve(uint64_t needed)
{
    uint64_t budget = nw_round_up(needed + NW_RESERVE(needed), 4096);
    while (budget - NW_RESERVE(budget) < needed)
        budget += 4096;
    return budget;
}

/* Slots of the window that a model is usually given: enough for the disk, but a small part of what a pass reads, or a
 * small model would have a window where its pins should be. Follows from the model and the options alone. */
static uint32_t usual_slots(const nw_model *m, const nw_session_options *o, const nw_shape *s)
{
    uint64_t pass = nw_pins_bytes(m, s);
    uint64_t bytes = o->window_bytes != 0 ? o->window_bytes : nw_min_u64(WINDOW_USUAL, pass / 8);
    uint64_t slots = bytes / s->slot_bytes;
    if (o->window_bytes == 0)
        slots = nw_max_u64(slots, SLOTS_USUAL_MIN);
    return (uint32_t)nw_min_u64(nw_max_u64(slots, SLOTS_MIN), SLOTS_MAX);
}

/* The window for a budget: the usual one if it fits, else as many slots as do. Returns what is needed in all. */
static uint64_t choose_window(const nw_model *m, const nw_session_options *o, const nw_tokenizer_cost *cost,
                              uint64_t unforeseen, uint64_t room, nw_blueprint *b)
{
    nw_shape *s = &b->shape;
    s->slot_count = usual_slots(m, o, s);
    uint64_t needed = claim(m, o, cost, unforeseen, b);
    while (needed > room && s->slot_count > SLOTS_MIN && o->window_bytes == 0) {
        s->slot_count--;
        needed = claim(m, o, cost, unforeseen, b);
    }
    return needed;
}

/* ---- pins ---- */

/* Gives what the budget leaves to the region, but no more than everything in it could use. Pins of decoding may lie
 * under the encoder's scratch too; the encoder's own lie before it. While the window is not yet the usual one, what is
 * left is less than a slot and stays unused: pins that came and went with the slots would make more budget read more.
 */
static void size_region(const nw_model *m, const nw_session_options *o, uint64_t spare, nw_blueprint *b)
{
    nw_shape *s = &b->shape;
    uint64_t  encode = s->region_bytes;
    uint64_t  everything = nw_pins_bytes(m, s) + nw_embed_pins_bytes(m, s);
    bool      window_grows = s->slot_count < usual_slots(m, o, s), overlaid = s->pinned != NW_PASS_ENCODE;
    uint64_t  room = nw_round_down((overlaid ? encode : 0) + (window_grows ? 0 : spare), s->align);
    if (o->pins_off)
        room = 0;
    else if (o->pins_bytes != 0)
        room = nw_min_u64(room, o->pins_bytes);
    if (overlaid)
        s->region_bytes = (size_t)nw_max_u64(encode, nw_min_u64(room, everything + encode));
    else
        s->region_bytes = (size_t)(encode + nw_min_u64(room, everything));
    b->pin_room = nw_min_u64(room, s->region_bytes - (overlaid ? 0 : encode));
    b->read_ahead = o->prefetch_off ? 0 : nw_window_ahead(s);
    nw_pins_place(m, b);
}

/* ---- what will be read ---- */

static uint64_t pass_read(const nw_model *m, nw_pass pass)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->step_count[pass]; i++)
        bytes += nw_counted_bytes(m, m->steps[pass][i]);
    return bytes;
}

/* The mean of an answer's passes: each page is read from when it is full until the end. */
static void count_kv_reads(const nw_model *m, const nw_shape *s, nw_plan *p)
{
    const nw_kv_shape *cross = &s->kv[NW_KV_CROSS], *self = &s->kv[NW_KV_SELF];
    p->kv_page_rows = s->maxima.stream_self ? s->self_rows : 0;
    if (s->maxima.stream_cross)
        p->read.kv = cross->place_bytes * lives(s);
    if (s->maxima.stream_self && self->tiles > STREAMED_RING) {
        p->read.kv_page = (uint64_t)m->config.decoder_blocks * 2 * self->tile_bytes;
        p->read.kv_answers = p->read.kv_page * (self->tiles - 1) / 2 * lives(s);
    }
}

/* Beside what depends on pins. */
static void count_reads(const nw_model *m, nw_blueprint *b, uint64_t tokenizer_bytes)
{
    nw_plan *p = &b->plan;
    p->read.open = m->open_bytes;
    p->read.tokenizer = tokenizer_bytes;
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        if (nw_vector_needed(m, b->shape.pinned, i))
            p->read.vectors += nw_counted_bytes(m, (nw_step){.tensor = i});
    }
    if (b->shape.pinned == NW_PASS_DECODE) {
        p->read.encode = pass_read(m, NW_PASS_ENCODE);
        p->read.cross = pass_read(m, NW_PASS_CROSS);
    }
    count_kv_reads(m, &b->shape, p);
    p->read.embedding_row = nw_model_row_extent(m, 0).bytes;
}

static double pass_seconds(const nw_plan *p, uint64_t read, uint64_t weights, uint64_t elements, size_t columns)
{
    double disk = (double)read / p->disk_rate;
    double memory = (double)weights / p->memory_rate;
    double products = 2.0 * (double)elements * (double)columns / (FLOP_RATE_ASSUMED_THREAD * p->threads);
    double slowest = disk > memory ? disk : memory;
    return slowest > products ? slowest : products;
}

/* The first pass and each later one, of `weights` bytes and `elements` weights times `columns` columns; `before`: what
 * else comes before the first. */
static void predict_passes(nw_plan *p, uint64_t weights, uint64_t elements, size_t columns, double before)
{
    double open = (double)(p->read.open + p->read.vectors + p->read.tokenizer) / p->disk_rate;
    p->seconds_first_token =
        open + before + pass_seconds(p, p->read.first_pass + p->read.kv, weights, elements, columns);
    p->seconds_per_token = pass_seconds(p, nw_pass_bytes(p), weights, elements, columns);
}

static void predict(const nw_model *m, const nw_session_options *o, nw_blueprint *b)
{
    nw_plan      *p = &b->plan;
    nw_model_info info;
    nw_model_describe(m, &info);
    double per_weight = info.parameters > 0 ? (double)info.weight_bytes / (double)info.parameters : 1;
    p->threads = b->threads;
    p->disk_rate = o->disk_rate > 0 ? o->disk_rate : DISK_RATE_ASSUMED;
    p->memory_rate = o->memory_rate > 0 ? o->memory_rate : MEMORY_RATE_ASSUMED_THREAD * b->threads;
    size_t   columns = b->shape.maxima.input_tokens;
    uint64_t once = info.encoder_bytes + (b->shape.pinned == NW_PASS_DECODE ? info.cross_bytes : 0);
    uint64_t elements = (uint64_t)((double)once / per_weight);
    if (b->shape.pinned == NW_PASS_DECODE) {
        double encode = pass_seconds(p, p->read.encode + p->read.cross, once, elements, columns);
        double weights = (double)info.decode_bytes / per_weight;
        predict_passes(p, info.decode_bytes, 0, 1, encode);
        p->column_cost = 2 * weights / (FLOP_RATE_ASSUMED_THREAD * p->threads) / p->seconds_per_token;
    } else {
        predict_passes(p, once, elements, columns, 0);
    }
}

/* ---- together ---- */

static nw_code arrays_open(nw_model *m, nw_blueprint *b, nw_error *err)
{
    b->pin_count = m->step_count[b->shape.pinned];
    b->embed_count = nw_embed_tiles(m, b->shape.pinned);
    b->pin_at = nw_memory_alloc(&m->memory, NW_TAG_SESSION, b->pin_count, sizeof *b->pin_at);
    b->embed_at = nw_memory_alloc(&m->memory, NW_TAG_SESSION, b->embed_count, sizeof *b->embed_at);
    if (b->pin_at == NULL || b->embed_at == NULL)
        return nw_memory_fail(&m->memory, err, (b->pin_count + b->embed_count) * sizeof *b->pin_at, "plan");
    return NW_OK;
}

void nw_blueprint_free(nw_model *m, nw_blueprint *b)
{
    nw_memory_free(&m->memory, NW_TAG_SESSION, b->pin_at, b->pin_count, sizeof *b->pin_at);
    nw_memory_free(&m->memory, NW_TAG_SESSION, b->embed_at, b->embed_count, sizeof *b->embed_at);
    b->pin_at = b->embed_at = NULL;
}

static nw_code too_small(const nw_plan *p, uint64_t budget, const nw_maxima *maxima, nw_error *err)
{
    char have[16], need[16], out[32] = "";
    if (maxima->columns > 0)
        snprintf(out, sizeof out, ", %zu out", maxima->output_tokens);
    nw_code rc = nw_fail(err, NW_E_BUDGET, 0, "budget %s is too small: needs %s for %zu tokens in%s",
                         nw_bytes_format(budget, false, have), nw_bytes_format(p->smallest, true, need),
                         maxima->input_tokens, out);
    if (err != NULL)
        err->bytes_needed = p->smallest;
    return rc;
}

/* The smallest budget, from the smallest window; the tokenizer, loaded and gone before the rest, may need more. And the
 * budget, with the usual window, whose pins hold the whole schedule of the pinned pass. */
static void bound_budget(const nw_model *m, const nw_session_options *o, const nw_tokenizer_cost *cost,
                         uint64_t tokenizer_bytes, uint64_t unforeseen, nw_blueprint *b)
{
    nw_plan *p = &b->plan;
    uint64_t schedule = nw_pins_bytes(m, &b->shape) + b->shape.align;
    uint64_t usual = choose_window(m, o, cost, unforeseen, UINT64_MAX, b);
    uint64_t encode = p->part.encode;
    uint64_t region = b->shape.pinned == NW_PASS_ENCODE ? schedule + encode : nw_max_u64(schedule, encode);
    p->budget_all_resident = with_reserve(usual - p->part.encode + region);
    uint64_t least = choose_window(m, o, cost, unforeseen, 0, b);
    p->tokenizer_peak = cost->peak + cost->pieces + tokenizer_bytes;
    uint64_t at_start = p->part.process + m->memory.tag_live[NW_TAG_INDEX] + p->tokenizer_peak;
    p->smallest = with_reserve(nw_max_u64(least, at_start));
}

/* What a plan is made from besides its shape. */
typedef struct {
    const nw_model           *m;
    const nw_session_options *o;
    nw_tokenizer_cost         cost;
    uint64_t                  tokenizer_bytes, unforeseen;
} plan_inputs;

/* The plan of a shape, for p->budget, which is enough. */
static void fill_plan(const plan_inputs *in, const nw_shape *shape, nw_blueprint *b)
{
    nw_plan *p = &b->plan;
    b->shape = *shape;
    memset(&p->read, 0, sizeof p->read);
    p->part.reserve = NW_RESERVE(p->budget);
    uint64_t room = p->budget - p->part.reserve;
    uint64_t needed = choose_window(in->m, in->o, &in->cost, in->unforeseen, room, b);
    NW_CHECK(needed <= room);
    size_region(in->m, in->o, room - needed, b);
    p->encode_only = b->shape.pinned == NW_PASS_ENCODE;
    p->kv_on_disk = b->shape.maxima.stream_cross || b->shape.maxima.stream_self;
    p->pass_tiles = b->pin_count;
    claim(in->m, in->o, &in->cost, in->unforeseen, b);
    count_reads(in->m, b, in->tokenizer_bytes);
}

static uint64_t smallest_of(const plan_inputs *in, const nw_shape *shape, nw_blueprint *b)
{
    b->shape = *shape;
    bound_budget(in->m, in->o, &in->cost, in->tokenizer_bytes, in->unforeseen, b);
    return b->plan.smallest;
}

/* K and V stay in memory if they fit; else the encoder's go to the disk, which never change; else those of answers too.
 * Also where passes would then read noticeably less: a pin may hold more of a model than its own bytes. Fills all but
 * the predictions; returns whether the budget is enough. */
static bool choose_kv(const plan_inputs *in, uint64_t budget, nw_blueprint *b)
{
    enum { IN_MEMORY, CROSS_ON_DISK, ALL_ON_DISK, PLACES };
    nw_plan *p = &b->plan;
    nw_shape shapes[PLACES] = {b->shape, b->shape, b->shape};
    uint64_t smallest[PLACES], read = 0;
    bool     decodes = b->shape.pinned != NW_PASS_ENCODE;
    int      last = decodes && !in->o->kv_in_memory ? ALL_ON_DISK : IN_MEMORY;
    int      first = in->o->kv_on_disk ? last : IN_MEMORY;
    int      chosen = PLACES;
    for (int i = CROSS_ON_DISK; i <= last; i++)
        shape_stream_cross(in->m, &shapes[i]);
    if (decodes)
        shape_stream_self(in->m, &shapes[ALL_ON_DISK]);
    uint64_t least = UINT64_MAX;
    for (int i = last; i >= first; i--) { /* the first one last: all is resident with its budget */
        smallest[i] = smallest_of(in, &shapes[i], b);
        least = nw_min_u64(least, smallest[i]);
    }
    p->smallest = least;
    p->budget = nw_max_u64(budget, least);
    for (int i = first; i <= last; i++) {
        if (p->budget < smallest[i])
            continue;
        fill_plan(in, &shapes[i], b);
        if (chosen != PLACES && nw_pass_bytes(p) >= read - read / 50)
            continue;
        chosen = i;
        read = nw_pass_bytes(p);
    }
    fill_plan(in, &shapes[chosen], b);
    return budget >= p->smallest;
}

/* A mix for a rate of the disk that was given. Where K and V are best depends on what pins hold: it has been chosen for
 * slim ones, and is tried for packed ones. */
static void choose_mix(const plan_inputs *in, uint64_t budget, nw_shape shape, nw_blueprint *b)
{
    const nw_pin_rates rates = {.disk = in->o->disk_rate, .restore = RESTORE_RATE_THREAD};
    if (in->o->disk_rate <= 0 || !b->pins_mixed)
        return;
    double with_slim = nw_pins_mix(in->m, &rates, b);
    b->shape = shape;
    b->shape.pinning.packed_share = NW_SHARE_ALL;
    (void)choose_kv(in, budget, b);
    if (nw_pins_mix(in->m, &rates, b) < with_slim * NW_PINS_WORTH_IT)
        return;
    b->shape = shape;
    (void)choose_kv(in, budget, b);
    (void)nw_pins_mix(in->m, &rates, b);
}

nw_code nw_blueprint_make(nw_model *m, const nw_session_options *o, uint64_t unforeseen, nw_blueprint *b, nw_error *err)
{
    plan_inputs in = {.m = m, .o = o, .unforeseen = unforeseen};
    uint64_t    budget = o->budget_bytes;
    *b = (nw_blueprint){0};
    nw_code rc = shape_make(m, o, b, err);
    if (rc == NW_OK)
        rc = nw_model_tokenizer_facts(m, &in.cost, &in.tokenizer_bytes, err);
    if (rc == NW_OK)
        rc = arrays_open(m, b, err);
    if (rc != NW_OK)
        return rc;
    if (budget == 0) {
        nw_machine_memory machine;
        nw_machine_memory_read(&machine);
        budget = nw_budget_auto(&machine);
    }
    nw_shape shape = b->shape;
    bool     enough = choose_kv(&in, budget, b);
    choose_mix(&in, budget, shape, b);
    predict(m, o, b);
    return enough ? NW_OK : too_small(&b->plan, budget, &b->shape.maxima, err);
}

nw_code nw_plan_make(nw_model *m, const nw_session_options *o, nw_plan *ret, nw_error *err)
{
    nw_blueprint b;
    nw_code      rc = nw_blueprint_make(m, o, 0, &b, err);
    *ret = b.plan;
    nw_blueprint_free(m, &b);
    return rc;
}

/* Collects bytes by block. Blocks come in schedule order, so a tile is the last block's or a new one's. */
typedef struct {
    nw_plan_block *blocks;
    size_t         cap, count;
    nw_plan_block  last;
} block_list;

static void block_list_flush(block_list *l)
{
    if (l->count > 0 && l->count <= l->cap)
        l->blocks[l->count - 1] = l->last;
}

static void block_list_add(block_list *l, const nw_model *m, nw_step step, bool pinned)
{
    char     name[32];
    uint64_t bytes = nw_model_tile_rows(m, step) * m->places[step.tensor].row_bytes;
    nw_tensor_place(&m->tensors, step.tensor, name);
    if (l->count == 0 || strcmp(l->last.name, name) != 0) {
        block_list_flush(l);
        l->count++;
        l->last = (nw_plan_block){0};
        snprintf(l->last.name, sizeof l->last.name, "%s", name);
    }
    l->last.bytes += bytes;
    l->last.pinned_bytes += pinned ? bytes : 0;
}

nw_code nw_plan_blocks(nw_model *m, const nw_session_options *o, nw_plan_block *blocks, size_t cap, size_t *ret_count,
                       nw_error *err)
{
    nw_blueprint b;
    block_list   list = {.blocks = blocks, .cap = cap};
    nw_code      rc = nw_blueprint_make(m, o, 0, &b, err);
    for (int pass = 0; pass < NW_PASS_COUNT && rc == NW_OK; pass++) {
        /* Cross-attention's are read once a prompt, and part of the decoder's blocks: not blocks of their own. */
        if (pass == NW_PASS_CROSS || (pass == NW_PASS_DECODE && b.plan.encode_only))
            continue;
        for (size_t i = 0; i < m->step_count[pass]; i++)
            block_list_add(&list, m, m->steps[pass][i], pass == (int)b.shape.pinned && b.pin_at[i] != NW_NOT_PINNED);
    }
    block_list_flush(&list);
    *ret_count = list.count;
    nw_blueprint_free(m, &b);
    return rc;
}

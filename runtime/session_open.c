/* Opening and closing a session. The order is the budget's: give back what start-up needed, start threads and the
 * reader, look at what the process has resident by then, plan, map the arena (untouched), read small tensors, seal. */
#define _DEFAULT_SOURCE
#include "copying.h"
#include "declared.h"
#include "draft_model.h"
#include "session_state.h"
#include "system.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static nw_code check_available(const nw_session_options *o, uint64_t budget, nw_error *err)
{
    nw_machine_memory machine;
    if (o->force)
        return NW_OK;
    nw_machine_memory_read(&machine);
    uint64_t available = machine.available + nw_process_resident(); /* what this process has counts for it */
    if (budget <= available)
        return NW_OK;
    char want[16], have[16];
    return nw_fail(err, NW_E_BUDGET, 0, "budget %s is above the %s that this machine has available (%s)",
                   nw_bytes_format(budget, false, want), nw_bytes_format(available, false, have), machine.limited_by);
}

/* Resident memory beyond what the table declares: another library, another build of libc. It is taken from the plan, so
 * that the budget holds all the same. Not under sanitizers, whose shadow memory would count. */
static uint64_t measure_unforeseen(const nw_session *s, const nw_session_options *o)
{
#ifdef NW_SANITIZED
    (void)s;
    (void)o;
    return 0;
#else
    const nw_plan *p = &s->blueprint.plan;
    uint64_t       known = p->part.process + s->blueprint.threads * nw_declared_thread() + p->part.io +
                     s->model->memory.live + s->memory.tag_live[NW_TAG_SESSION];
    known += o->draft != NULL ? p->part.draft : 0;
    if (o->keep_tokenizer)
        known += p->part.tokenizer;
    uint64_t resident = nw_process_resident();
    if (resident <= known)
        return 0;
    char excess[16];
    nw_log_line(&o->log, NW_LOG_WARN,
                "this process has %s resident beyond what is planned for; the plan makes room for it",
                nw_bytes_format(resident - known, true, excess));
    return resident - known;
#endif
}

/* Plan, threads, reader; and again the plan, if the process turns out to be larger than declared: for the same budget,
 * which `auto` must not choose twice. Where K and V leave memory in the second, its window may be the deeper one, and
 * the reader has to be. */
static nw_code prepare(nw_session *s, const nw_session_options *o, nw_error *err)
{
    nw_code rc = nw_blueprint_make(s->model, o, 0, &s->blueprint, err);
    if (rc == NW_OK)
        rc = check_available(o, s->blueprint.plan.budget, err);
    if (rc != NW_OK)
        return rc;
    s->memory.limit = s->blueprint.plan.budget;
    rc = nw_workers_open(&s->memory, s->blueprint.threads, &s->workers, err);
    if (rc == NW_OK)
        rc = nw_device_open(&s->memory, s->model->hooks, &s->blueprint.io, &s->io, err);
    if (rc != NW_OK)
        return rc;
    uint64_t unforeseen = measure_unforeseen(s, o);
    if (unforeseen == 0)
        return NW_OK;
    nw_io_options      before = s->blueprint.io;
    nw_session_options fixed = *o;
    fixed.budget_bytes = s->blueprint.plan.budget;
    nw_blueprint_free(s->model, &s->blueprint);
    rc = nw_blueprint_make(s->model, &fixed, unforeseen, &s->blueprint, err);
    const nw_io_options *now = &s->blueprint.io;
    if (rc != NW_OK || (now->depth <= before.depth && now->register_bytes <= before.register_bytes))
        return rc;
    s->io = nw_io_close(s->io);
    return nw_device_open(&s->memory, s->model->hooks, &s->blueprint.io, &s->io, err);
}

void nw_session_place_pins(nw_session *s)
{
    const nw_blueprint *b = &s->blueprint;
    for (size_t i = 0; i < b->pin_count; i++) {
        s->parts.pins[i].at = b->pin_at[i];
        s->parts.pins[i].packed = nw_pin_stays_packed(&b->shape.pinning, i);
    }
    for (size_t i = 0; i < b->embed_count; i++)
        s->parts.embed_pins[i].at = b->embed_at[i];
    unsigned char *end = s->parts.region + b->plan.pinned_bytes;
    if (s->touch.next == NULL)
        s->touch.next = s->parts.region;
    s->touch.end = end > s->touch.next ? end : s->touch.next;
}

static nw_code map_arena(nw_session *s, nw_error *err)
{
    nw_parts measured = {0};
    nw_arena a = nw_arena_measure();
    nw_parts_layout(&measured, &a, s->model, &s->blueprint.shape);
    s->arena_bytes = a.used;
    s->arena = nw_memory_map(&s->memory, NW_TAG_ARENA, s->arena_bytes, true);
    if (s->arena == NULL)
        return nw_memory_fail(&s->memory, err, s->arena_bytes, "the session's memory");
    a = nw_arena_over(s->arena, s->arena_bytes);
    nw_parts_layout(&s->parts, &a, s->model, &s->blueprint.shape);
    NW_CHECK(!a.failed && a.used == s->arena_bytes);
    nw_session_place_pins(s);
    return NW_OK;
}

/* Greedy search with the model's own start and end tokens: what requests without settings get. */
static nw_generation_settings greedy_settings(const nw_config *c)
{
    nw_generation_settings g = nw_generation_defaults();
    g.decoder_start_token_id = c->start_id;
    g.eos_token_id.count = c->eos_count;
    memcpy(g.eos_token_id.ids, c->eos_ids, sizeof g.eos_token_id.ids);
    return g;
}

static nw_code open_requests(nw_session *s, nw_error *err)
{
    const nw_shape *shape = &s->blueprint.shape;
    s->requests = nw_memory_alloc(&s->memory, NW_TAG_SESSION, shape->requests, sizeof *s->requests);
    if (s->requests == NULL)
        return nw_memory_fail(&s->memory, err, shape->requests * sizeof *s->requests, "requests");
    s->request_count = shape->requests;
    s->lanes = nw_memory_alloc(&s->memory, NW_TAG_SESSION, shape->lanes, sizeof *s->lanes);
    if (s->lanes == NULL)
        return nw_memory_fail(&s->memory, err, shape->lanes * sizeof *s->lanes, "lanes");
    s->lane_count = shape->lanes;
    s->greedy = greedy_settings(&s->model->config);
    return NW_OK;
}

/* Norms and bias tables: read once, kept as f32. */
static nw_code read_vectors(nw_session *s, nw_error *err)
{
    const nw_model *m = s->model;
    nw_code         rc = NW_OK;
    for (uint32_t i = 0; i < m->tensors.count && rc == NW_OK; i++) {
        if (!nw_vector_needed(m, s->blueprint.shape.pinned, i))
            continue;
        const nw_tensor *t = m->places[i].tensor;
        void            *raw = nw_memory_alloc(&s->memory, NW_TAG_SESSION, (size_t)t->bytes, 1);
        if (raw == NULL)
            return nw_memory_fail(&s->memory, err, (size_t)t->bytes, t->name);
        nw_step step = {.tensor = i};
        rc = nw_file_read(&s->memory, s->io, nw_model_tile_file(m, step), nw_model_tile_path(m, step), t->offset, raw,
                          (size_t)t->bytes, &s->vector_bytes_read, err);
        const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
        if (rc == NW_OK && pack != NULL && !s->parts.restore.verify_off &&
            !nw_pack_strip_check(pack, m->places[i].tile_first, 0, raw))
            rc = nw_pack_strip_fail(pack, m->places[i].tile_first, 0, NULL, err);
        if (rc == NW_OK)
            s->kernels->widen[t->dtype](s->parts.vectors[i], raw, (size_t)(t->bytes / nw_dtype_bytes(t->dtype)));
        nw_memory_free(&s->memory, NW_TAG_SESSION, raw, (size_t)t->bytes, 1);
    }
    return rc;
}

/* The shadow lanes of a draft model. */
static nw_code open_draft(nw_session *s, const nw_session_options *o, nw_error *err)
{
    if (o->draft == NULL || s->lane_count == 0)
        return NW_OK;
    nw_code rc = nw_draft_check(o->draft, s->model, &s->blueprint.shape, err);
    if (rc != NW_OK)
        return rc;
    nw_draft_model *d = nw_memory_alloc(&s->memory, NW_TAG_SESSION, 1, sizeof *d);
    s->draft = d;
    if (d == NULL)
        return nw_memory_fail(&s->memory, err, sizeof *d, "draft");
    d->session = o->draft;
    d->session->lent = true;
    d->session->window.stop = &s->stop;
    d->lane_count = s->lane_count;
    d->lanes = nw_memory_alloc(&s->memory, NW_TAG_SESSION, d->lane_count, sizeof *d->lanes);
    d->end = nw_memory_alloc(&s->memory, NW_TAG_SESSION, d->lane_count, sizeof *d->end);
    if (d->lanes == NULL || d->end == NULL)
        return nw_memory_fail(&s->memory, err, d->lane_count * sizeof *d->lanes, "draft");
    return NW_OK;
}

static void close_draft(nw_session *s)
{
    nw_draft_model *d = s->draft;
    if (d == NULL)
        return;
    for (size_t i = 0; i < d->lane_count && d->lanes != NULL; i++)
        nw_draft_end(d, i);
    d->session->lent = false;
    d->session->window.stop = &d->session->stop;
    nw_memory_free(&s->memory, NW_TAG_SESSION, d->lanes, d->lane_count, sizeof *d->lanes);
    nw_memory_free(&s->memory, NW_TAG_SESSION, d->end, d->lane_count, sizeof *d->end);
    nw_memory_free(&s->memory, NW_TAG_SESSION, d, 1, sizeof *d);
}

/* The file for K and V that do not fit in memory. */
static nw_code open_scratch(nw_session *s, const nw_session_options *o, nw_error *err)
{
    nw_kv_stream *k = &s->parts.kv_stream;
    uint64_t      bytes = nw_max_u64(nw_kv_end(&k->shapes[NW_KV_CROSS]), nw_kv_end(&k->shapes[NW_KV_SELF]));
    if (bytes == 0)
        return NW_OK;
    nw_code rc = nw_file_scratch(o->scratch, bytes, &k->file, k->dir, err);
    if (rc == NW_OK && k->file.align > s->blueprint.shape.align)
        rc = nw_fail(err, NW_E_IO, 0, "scratch file in '%s': its blocks of %u bytes are too large", k->dir,
                     k->file.align);
    return rc;
}

static void reach_pins(void *user, const unsigned char *end)
{
    nw_session *s = user;
    nw_first_touch_until(&s->touch, end, s->workers, &s->parts.trace);
}

/* Most reads go from the checkpoint's files to the window's slots. Pins are read once; what is registered is touched,
 * and they are not to be before they are filled. */
static void register_window(nw_session *s)
{
    const nw_checkpoint *c = s->model->checkpoint;
    const nw_shape      *shape = &s->blueprint.shape;
    int                  fds[NW_IO_FILES_MAX];
    size_t               count = 0;
    if (s->parts.kv_stream.file.fd >= 0)
        fds[count++] = s->parts.kv_stream.file.fd;
    for (size_t i = 0; i < nw_checkpoint_file_count(c) && count < NW_IO_FILES_MAX; i++)
        fds[count++] = nw_checkpoint_file(c, i)->fd;
    nw_io_register(s->io, fds, count, s->parts.slot_bytes, shape->slot_count * shape->slot_bytes);
}

static void wire(nw_session *s, const nw_session_options *o)
{
    nw_forward *f = &s->parts.forward;
    f->kernels = s->kernels;
    f->weights = nw_session_weights(s);
    s->parts.trace.workers = s->workers;
    f->team = nw_session_team(s);
    nw_forward_prepare(f);
    s->window =
        (nw_window){.model = s->model,
                    .io = s->io,
                    .parts = &s->parts,
                    .shape = s->blueprint.shape,
                    .kernels = s->kernels,
                    .encode_from = (uint64_t)(s->parts.encode_scratch - s->parts.region),
                    .reach = reach_pins,
                    .reach_user = s,
                    .prefetch_off = o->prefetch_off,
                    .kv_lists = {{.list = s->parts.streamed[NW_KV_SELF]}, {.list = s->parts.streamed[NW_KV_CROSS]}},
                    .stop = &s->stop};
    nw_window_start(&s->window);
    s->pin_choice.made = o->disk_rate > 0 || !s->blueprint.pins_mixed;
}

static nw_code open_parts(nw_session *s, const nw_session_options *o, nw_error *err)
{
    nw_error ignored = {0};
    nw_code  rc = nw_model_check_files(s->model, err);
    if (rc != NW_OK)
        return rc;
    if (!o->keep_tokenizer)
        nw_model_tokenizer_release(s->model);
    rc = nw_model_text_load(s->model, &ignored);
    if (rc == NW_E_MEMORY || rc == NW_E_BUDGET)
        return nw_fail(err, rc, 0, "%s", ignored.msg);
    if (rc != NW_OK)
        nw_log_line(&o->log, NW_LOG_DEBUG, "answers are ids only: %s", ignored.msg);
    malloc_trim(0);
    rc = prepare(s, o, err);
    s->kernels = s->blueprint.kernels;
    if (rc == NW_OK)
        rc = open_requests(s, err);
    if (rc == NW_OK)
        rc = open_draft(s, o, err);
    if (rc == NW_OK)
        rc = map_arena(s, err);
    s->parts.restore.verify_off = o->verify_off;
    if (rc == NW_OK)
        rc = open_scratch(s, o, err);
    if (rc == NW_OK)
        register_window(s);
    if (rc == NW_OK)
        rc = read_vectors(s, err);
    if (rc == NW_OK)
        wire(s, o);
    return rc;
}

nw_code nw_session_open(nw_model *m, const nw_session_options *options, nw_session **ret_session, nw_error *err)
{
    double    start = nw_system_seconds();
    nw_memory mem;
    nw_memory_init(&mem, UINT64_MAX, /* until the plan has judged the budget */
                   m->hooks != NULL ? m->hooks->memory : NULL);
    nw_session *s = nw_memory_alloc(&mem, NW_TAG_SESSION, 1, sizeof *s);
    if (s == NULL)
        return nw_memory_fail(&mem, err, sizeof *s, "session");
    s->memory = mem;
    s->model = m;
    s->pass_name = "idle";
    nw_code rc = open_parts(s, options, err);
    if (rc != NW_OK) {
        nw_session_close(s);
        return rc;
    }
    nw_memory_seal(&s->memory);
    s->stats.seconds_load = m->open_seconds + nw_system_seconds() - start;
    *ret_session = s;
    return NW_OK;
}

nw_session *nw_session_close(nw_session *s)
{
    if (s == NULL)
        return NULL;
    if (s->window.parts != NULL)
        nw_window_drain(&s->window);
    s->io = nw_io_close(s->io); /* before the files and the memory that are registered with it */
    if (s->arena != NULL)
        nw_file_close(&s->parts.kv_stream.file);
    s->workers = nw_workers_close(s->workers);
    close_draft(s);
    nw_memory_unmap(&s->memory, NW_TAG_ARENA, s->arena, s->arena_bytes);
    nw_memory_free(&s->memory, NW_TAG_SESSION, s->lanes, s->lane_count, sizeof *s->lanes);
    nw_memory_free(&s->memory, NW_TAG_SESSION, s->requests, s->request_count, sizeof *s->requests);
    nw_blueprint_free(s->model, &s->blueprint);
    nw_memory mem = s->memory;
    nw_memory_free(&mem, NW_TAG_SESSION, s, 1, sizeof *s);
    NW_CHECK(mem.live == 0);
    return NULL;
}

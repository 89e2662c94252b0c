/* One model run in many ways, each of which has to give the same bits: the exact bits of all encoder states, logits and
 * tokens, whatever the budget, window, share of pins, threads, device, order of completions, kernels, lanes and order
 * of prompts. Variations are walked over one by one, or drawn together at random. */
#ifndef NW_TEST_SAME_BITS_H
#define NW_TEST_SAME_BITS_H

#include "answers.h"
#include "many_tiles.h"

#ifdef SAME_BITS_FAKE_SEEDS
enum { FAKE_SEEDS = SAME_BITS_FAKE_SEEDS };
#elif defined NW_SANITIZED
enum { FAKE_SEEDS = 6 };
#else
enum { FAKE_SEEDS = 32 };
#endif

/* One way to run a model. Zero is the reference: all resident, one thread, one lane. */
typedef struct {
    uint64_t     extra; /* bytes above the smallest budget; 0 and `smallest`: the smallest itself */
    bool         smallest, pins_off, prefetch_off, together, encode_between, kv_on_disk;
    uint64_t     window, pins;
    unsigned     threads, queue_depth;
    nw_read_with io;
    nw_io_fake  *fake;
    size_t       lanes, columns, encoded_ahead, encode_tokens, order[PROMPTS_MAX];
    size_t       kv_tile_bytes; /* most bytes of a streamed tile of K and V; 0: as usual */
    double       disk_rate; /* what the session believes of its disk: which pins of a pack stay packed; 0: nothing */
    bool         probed;    /* it looks, as if the model were large */
    const char  *kernels;
} variation;

static unsigned runs, failures;
static uint64_t budget_last;

static inline void describe(const subject *s, const variation *v, const char *what)
{
    if (failures++ >= 20)
        return;
    printf("FAILED %s: %s: budget %llu (smallest + %llu) window %llu pins %s%llu%s threads %u depth %u lanes %zu%s "
           "io %s kernels %s",
           s->name, what, (unsigned long long)budget_last, (unsigned long long)v->extra, (unsigned long long)v->window,
           v->pins_off ? "off " : "", (unsigned long long)v->pins,
           v->prefetch_off ? v->kv_on_disk ? " no prefetch, kv on disk" : " no prefetch"
           : v->kv_on_disk ? " kv on disk"
                           : "",
           v->threads, v->queue_depth, v->lanes, v->together ? " together" : "",
           v->fake != NULL            ? "fake"
           : v->io == NW_READ_URING   ? "uring"
           : v->io == NW_READ_THREADS ? "threads"
                                      : "auto",
           v->kernels != NULL ? v->kernels : "best");
    if (v->fake != NULL)
        printf(" device seed %llu short %u retry %u delay %u", (unsigned long long)v->fake->seed,
               v->fake->short_percent, v->fake->retry_percent, v->fake->delay_max);
    printf(" columns %zu ahead %zu encode %zu disk %g%s order", v->columns, v->encoded_ahead, v->encode_tokens,
           v->disk_rate, v->probed ? " probed" : "");
    for (size_t i = 0; i < s->prompt_count; i++)
        printf(" %zu", v->order[i]);
    printf("\n");
}

/* The prompts in an open session, as the variation says. */
static inline nw_code ask(nw_session *session, const nw_model_info *info, const subject *s, const variation *v,
                          answers *ret, nw_error *err)
{
    nw_code rc = NW_OK;
    if (info->decoder_blocks > 0 && v->together)
        rc = answer_together(session, s, v->order, info->vocab_size, ret, err);
    for (size_t i = 0; i < s->prompt_count && rc == NW_OK; i++) {
        size_t p = v->order[i];
        if (info->decoder_blocks > 0 && !v->together)
            rc = answer_generate(session, s, p, info->vocab_size, &ret->hash[p], &ret->tokens[p], err);
        if (rc == NW_OK && v->encode_between)
            rc = answer_encode(session, s, p, info->d_model, &ret->hash[p], err);
    }
    for (size_t i = 0; i < s->prompt_count && rc == NW_OK && !v->encode_between; i++)
        rc = answer_encode(session, s, v->order[i], info->d_model, &ret->hash[v->order[i]], err);
    return rc;
}

/* The budget of a variation; the smallest is what the session itself asks for, since a test's own memory counts as
 * base. */
static inline nw_code open_session(nw_model *model, nw_session_options *o, const variation *v, nw_session **ret,
                                   nw_error *err)
{
    nw_plan plan;
    o->budget_bytes = (uint64_t)1 << 40;
    nw_code rc = nw_plan_make(model, o, &plan, err);
    if (rc != NW_OK)
        return rc;
    o->force = true;
    o->budget_bytes = v->smallest || v->extra != 0 ? plan.smallest + v->extra : (uint64_t)1 << 32;
    rc = nw_session_open(model, o, ret, err);
    if (rc == NW_E_BUDGET && err->bytes_needed > plan.smallest) {
        o->budget_bytes = err->bytes_needed + v->extra;
        rc = nw_session_open(model, o, ret, err);
    }
    budget_last = o->budget_bytes;
    return rc;
}

static inline bool run(const subject *s, const variation *v, answers *ret)
{
    nw_generation_settings most = {0};
    if (s->searched != NULL) { /* what samples and beams need, both */
        most = *s->sampled;
        most.do_sample = false;
        most.num_beams = s->searched->num_beams;
    }
    nw_error      err = {0};
    nw_model     *model = NULL;
    nw_session   *session = NULL;
    nw_model_info info;
    nw_hooks      hooks = {
             .io = v->fake, .kv_tile_bytes = v->kv_tile_bytes, .disk_rate = v->disk_rate, .measure_all = v->probed};
    *ret = (answers){0};
    for (size_t i = 0; i < s->prompt_count; i++)
        ret->hash[i] = ANSWERS_SEED;
    nw_code rc = nw_model_open(&(nw_model_options){.path = s->dir, .io = v->io, .hooks = &hooks}, &model, &err);
    if (rc == NW_OK) {
        nw_model_describe(model, &info);
        nw_session_options o = {.max_input_tokens = s->longest,
                                .max_output_tokens = s->tokens,
                                .max_lanes = v->lanes + (s->searched != NULL ? s->searched->num_beams : 0),
                                .max_columns = v->columns,
                                .max_encoded_ahead = v->encoded_ahead,
                                .max_encode_tokens = v->encode_tokens,
                                .generation = s->searched != NULL ? &most : NULL,
                                .threads = v->threads != 0 ? v->threads : 1,
                                .io = v->io,
                                .window_bytes = v->window,
                                .pins_bytes = v->pins,
                                .pins_off = v->pins_off,
                                .kv_on_disk = v->kv_on_disk,
                                .queue_depth = v->queue_depth,
                                .prefetch_off = v->prefetch_off,
                                .kernels = v->kernels};
        rc = open_session(model, &o, v, &session, &err);
    }
    if (rc == NW_OK)
        rc = ask(session, &info, s, v, ret, &err);
    nw_session_close(session);
    nw_model_close(model);
    runs++;
    if (rc != NW_OK)
        describe(s, v, err.msg);
    return rc == NW_OK;
}

static inline void compare(const subject *s, const variation *v, const answers *want)
{
    answers have;
    if (!run(s, v, &have))
        return;
    if (memcmp(have.hash, want->hash, sizeof have.hash) != 0 ||
        memcmp(have.tokens, want->tokens, sizeof have.tokens) != 0)
        describe(s, v, "other bits");
}

static inline variation usual(void)
{
    return (variation){.threads = 1, .lanes = 1, .order = {0, 1, 2, 3, 4, 5}};
}

/* ---- one thing at a time ---- */

static const uint64_t budget_steps[] = {0,       4096,    1 << 16,  1 << 18,  1 << 20,  3 << 20,
                                        6 << 20, 9 << 20, 12 << 20, 17 << 20, 23 << 20, 31 << 20};

static inline void vary_budget(const subject *s, const answers *want)
{
    for (size_t i = 0; i < sizeof budget_steps / sizeof *budget_steps; i++) {
        variation v = usual();
        v.smallest = true;
        v.extra = budget_steps[i];
        v.encode_between = i % 2 == 1;
        v.disk_rate = i % 3 == 1 ? 1e6 : 0;
        v.probed = i % 3 == 2;
        compare(s, &v, want);
    }
}

static inline void vary_window_and_pins(const subject *s, const answers *want)
{
    static const uint64_t windows[] = {1, 1 << 20, 5 << 20, 12 << 20}; /* 1: as few slots as work */
    static const uint64_t pins[] = {1 << 16, 1 << 20, 5 << 20, 11 << 20};
    for (size_t i = 0; i < 4; i++) {
        variation v = usual();
        v.window = windows[i];
        v.queue_depth = 1u << (2 * i); /* 1 to 64 */
        v.pins_off = true;
        compare(s, &v, want);
        v.prefetch_off = true;
        v.pins_off = false;
        v.pins = pins[i];
        compare(s, &v, want);
    }
}

static inline void vary_threads_and_lanes(const subject *s, const answers *want)
{
    for (unsigned n = 1; n <= 4; n++) {
        variation v = usual();
        v.threads = n;
        compare(s, &v, want);
        v.lanes = n;
        v.columns = n * n;
        v.encoded_ahead = n / 2;
        v.encode_tokens = n == 3 ? 2 * s->longest : 0;
        v.together = true;
        v.kv_on_disk = n > 2;
        v.kv_tile_bytes = 1024;
        for (size_t i = 0; i < s->prompt_count; i++)
            v.order[i] = (i + n) % s->prompt_count;
        compare(s, &v, want);
    }
}

static inline void vary_device_and_kernels(const subject *s, const answers *want)
{
    for (unsigned seed = 1; seed <= FAKE_SEEDS; seed++) {
        nw_io_fake fake = {.seed = seed, .short_percent = 30, .retry_percent = 20, .delay_max = seed % 8};
        variation  v = usual();
        v.fake = &fake;
        v.smallest = true;
        v.kv_tile_bytes = 4096;
        v.extra = (uint64_t)seed * 700001;
        compare(s, &v, want);
    }
    variation v = usual();
    v.io = NW_READ_THREADS;
    v.pins_off = true;
    compare(s, &v, want);
    for (const char *const *name = nw_kernels_names(); *name != NULL; name++) {
        if (nw_kernels_named(*name) == NULL) {
            printf("%s: this machine does not run the %s kernels\n", s->name, *name);
            continue;
        }
        v.io = NW_READ_AUTO;
        v.kernels = *name;
        compare(s, &v, want);
    }
}

/* ---- all together, at random ---- */

static inline void draw_order(variation *v, size_t count, uint64_t *state)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)(many_tiles_draw(state) % i), t = v->order[i - 1];
        v->order[i - 1] = v->order[j];
        v->order[j] = t;
    }
}

static inline void vary_at_random(const subject *s, const answers *want, uint64_t seed, const char *program)
{
    uint64_t   state = seed;
    nw_io_fake fake = {.seed = seed, .short_percent = 30, .retry_percent = 20, .delay_max = (uint32_t)(seed % 6)};
    variation  v = usual();
    v.smallest = true;
    v.extra = many_tiles_draw(&state) % ((uint64_t)1 << (12 + many_tiles_draw(&state) % 15));
    v.window = many_tiles_draw(&state) % 3 == 0 ? many_tiles_draw(&state) % v.extra : 0;
    v.pins_off = many_tiles_draw(&state) % 6 == 0;
    v.queue_depth = many_tiles_draw(&state) % 4 == 0 ? 1 + (unsigned)(many_tiles_draw(&state) % 9) : 0;
    v.prefetch_off = many_tiles_draw(&state) % 6 == 0;
    v.threads = 1 + (unsigned)(many_tiles_draw(&state) % 4);
    v.lanes = 1 + (size_t)(many_tiles_draw(&state) % 4);
    v.columns = (size_t)(many_tiles_draw(&state) % 17);
    v.encoded_ahead = (size_t)(many_tiles_draw(&state) % 4);
    v.encode_tokens = (size_t)(many_tiles_draw(&state) % (4 * s->longest));
    v.together = many_tiles_draw(&state) % 2 == 0;
    v.encode_between = many_tiles_draw(&state) % 2 == 0;
    v.kv_on_disk = many_tiles_draw(&state) % 2 == 0;
    v.disk_rate = many_tiles_draw(&state) % 2 == 0 ? 1e6 * (double)(1 + many_tiles_draw(&state) % 10000) : 0;
    v.probed = many_tiles_draw(&state) % 2 == 0;
    v.kv_tile_bytes = (size_t)1024 << many_tiles_draw(&state) % 3; /* of some rows: answers fill several pages */
    switch (many_tiles_draw(&state) % 4) {
    case 0: v.io = NW_READ_THREADS; break;
    case 1: break;
    default: v.fake = &fake; break;
    }
    draw_order(&v, s->prompt_count, &state);
    if (v.window != 0)
        v.extra += v.window + (1 << 20);
    unsigned before = failures;
    compare(s, &v, want);
    if (failures != before)
        printf("replay: %s %llu 1\n", program, (unsigned long long)seed);
}

static inline subject subject_make(const char *name, const char *dir, const size_t *lengths, size_t count,
                                   uint32_t vocab, size_t tokens)
{
    subject s = {.name = name, .tokens = tokens};
    snprintf(s.dir, sizeof s.dir, "%s", dir);
    for (size_t i = 0; i < count; i++)
        subject_add(&s, lengths[i], vocab, i * 77 + 1);
    return s;
}

/* A subject of a golden case, or of numbers-t5. */
static inline subject subject_golden(const char *name)
{
    static const size_t lengths[] = {1, 9, 16, 17, 40}, lengths_long[] = {300, 5};
    bool                is_long = strcmp(name, "long") == 0;
    char                dir[1024];
    nw_error            err = {0};
    nw_model           *model = NULL;
    nw_model_info       info;
    snprintf(dir, sizeof dir, "%s/%s%s", NW_TEST_DATA, strcmp(name, "numbers-t5") == 0 ? "" : "goldens/", name);
    NW_CHECK(nw_model_open(&(nw_model_options){.path = dir}, &model, &err) == NW_OK);
    nw_model_describe(model, &info);
    uint32_t vocab = info.vocab_size;
    nw_model_close(model);
    return subject_make(name, dir, is_long ? lengths_long : lengths, is_long ? 2 : 5, vocab, 5);
}

#endif

/* Which form pins of a pack take, by the disk's rate: a slow disk is spared bytes, a fast one spares the cores; never
 * more is read than with the better of the two. The rate is given, or measured by a session. */
#include "hooks.h"
#include "many_tiles.h"
#include "narrows.h"
#include "pin_plan.h"
#include "session_state.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static temp_dir  dir;
static temp_path pack_dir, wide_dir, slim_dir; /* packed; as f32; with nothing packed */
static nw_model *model;

static nw_plan plan_of(uint64_t budget, nw_pin_form form, double disk_rate)
{
    nw_error           err = {0};
    nw_plan            plan;
    nw_session_options o = {.budget_bytes = budget,
                            .max_input_tokens = 16,
                            .max_output_tokens = 4,
                            .threads = 1,
                            .pin_form = form,
                            .disk_rate = disk_rate,
                            .kernels = nw_kernels_named("avx2") != NULL ? "avx2" : NULL};
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_OK);
    return plan;
}

static uint64_t pass_bytes(const nw_plan *plan)
{
    return plan->read.next_pass + plan->read.kv + plan->read.kv_answers;
}

static void test_rates(void **state)
{
    (void)state;
    nw_error           err = {0};
    nw_plan            any;
    nw_session_options o = {.budget_bytes = (uint64_t)1 << 40, .max_input_tokens = 16, .max_output_tokens = 4};
    unsigned           spared = 0, mixed = 0, budgets = 0;
    if (!nw_kernels_best()->slim_faster)
        skip(); /* there pins of a pack are never slim */
    assert_int_equal(nw_plan_make(model, &o, &any, &err), NW_OK);
    for (uint64_t budget = any.smallest + (2 << 20); budget < any.budget_all_resident; budget += 100 << 10) {
        nw_plan slim = plan_of(budget, NW_PINS_SLIM, 1e6), packed = plan_of(budget, NW_PINS_STORED, 1e6);
        nw_plan slow = plan_of(budget, NW_PINS_AUTO, 1e6), fast = plan_of(budget, NW_PINS_AUTO, 1e14);
        nw_plan unknown = plan_of(budget, NW_PINS_AUTO, 0);
        if (slim.read.next_pass == 0)
            break;
        uint64_t least = pass_bytes(&slim) < pass_bytes(&packed) ? pass_bytes(&slim) : pass_bytes(&packed);
        assert_true(pass_bytes(&slow) <= least + least / 40);
        /* Now and then a few small packed pins make room for one more slim one: less to read, and less to restore. */
        assert_true(fast.read.next_pass <= slim.read.next_pass);
        mixed += fast.read.next_pass < slim.read.next_pass;
        budgets++;
        assert_int_equal(unknown.read.next_pass, slim.read.next_pass);
        spared += pass_bytes(&slow) < pass_bytes(&slim);
    }
    assert_true(spared > 0 && mixed <= budgets / 10);
}

enum { TOKENS = 4, PROMPTS = 2 };

/* A session that believes something of its disk: what came of it. */
typedef struct {
    uint32_t ids[PROMPTS][TOKENS];
    nw_stats stats;
    nw_plan  after;
    double   restore_rate;
} outcome;

static nw_session_options options_with(uint64_t pins)
{
    return (nw_session_options){.budget_bytes = (uint64_t)1 << 32,
                                .pins_bytes = pins,
                                .window_bytes = 1, /* two slots: a probe has few tiles here, and reads in turn */
                                .max_input_tokens = 16,
                                .max_output_tokens = TOKENS,
                                .threads = 2,
                                .force = true,
                                .kernels = nw_kernels_named("avx2") != NULL ? "avx2" : NULL};
}

static nw_plan plan_with(uint64_t pins, double disk_rate)
{
    nw_error           err = {0};
    nw_plan            plan;
    nw_session_options o = options_with(pins);
    o.disk_rate = disk_rate;
    assert_int_equal(nw_plan_make(model, &o, &plan, &err), NW_OK);
    return plan;
}

static outcome run_session(nw_hooks hooks, const char *path, nw_session_options o)
{
    static const uint32_t input[] = {3, 700, 41, 2222, 9, 1};
    outcome               r = {0};
    nw_model             *m = NULL;
    nw_session           *s = NULL;
    nw_error              err = {0};
    assert_int_equal(nw_model_open(&(nw_model_options){.path = path, .hooks = &hooks}, &m, &err), NW_OK);
    assert_int_equal(nw_session_open(m, &o, &s, &err), NW_OK);
    for (size_t p = 0; p < PROMPTS; p++) {
        nw_request q = {.input_ids = input, .input_count = sizeof input / sizeof *input - p, .max_new_tokens = TOKENS};
        nw_result  made = {.ids = r.ids[p]};
        assert_int_equal(nw_session_generate(s, &q, &made, &err), NW_OK);
        assert_int_equal(made.count, TOKENS);
    }
    nw_session_stats(s, &r.stats);
    nw_session_plan(s, &r.after);
    r.restore_rate = nw_restore_rate(&s->parts.restore);
    nw_session_close(s);
    nw_model_close(m);
    return r;
}

/* All that was read is what the session's plan says, and what was read to see how fast the disk is. */
static void check_bytes(const outcome *r)
{
    const nw_plan *p = &r->after;
    uint64_t       once = p->read.open + p->read.vectors;
    uint64_t       prompts = PROMPTS * (p->read.encode + p->read.cross + (TOKENS - 1) * p->read.next_pass);
    uint64_t       first = p->read.first_pass + p->read.next_pass + p->read.refill;
    uint64_t       rows = r->stats.embedding_rows_read * p->read.embedding_row;
    assert_int_equal(r->stats.bytes_read, once + prompts + first + rows + r->stats.probe_bytes);
}

/* Whether slim pins alone are the fastest with a fast disk, however long restoring takes. */
static bool slim_is_best(uint64_t pins)
{
    nw_session_options o = options_with(pins);
    nw_error           err = {0};
    bool               best = true;
    for (double restore = 1e8; restore < 1e10; restore *= 3) {
        nw_blueprint b;
        nw_pin_rates rates = {.disk = 1e14, .restore = restore};
        assert_int_equal(nw_blueprint_make(model, &o, 0, &b, &err), NW_OK);
        (void)nw_pins_mix(model, &rates, &b);
        best &= b.shape.pinning.packed_share == 0;
        nw_blueprint_free(model, &b);
    }
    return best;
}

/* A session takes the same choice by what it measures as a plan does by what it is told, and says what it reads. */
static void test_measured(void **state)
{
    (void)state;
    uint64_t pins = 8 << 20;
    if (!nw_kernels_best()->slim_faster)
        skip(); /* there pins of a pack are never slim */
    while (plan_with(pins, 1e6).read.next_pass >= plan_with(pins, 0).read.next_pass || !slim_is_best(pins)) {
        pins += 100 << 10;
        assert_true(pins < 100 << 20);
    }
    nw_session_options o = options_with(pins);
    outcome            unknown = run_session((nw_hooks){0}, pack_dir.text, o);
    outcome            slow = run_session((nw_hooks){.disk_rate = 1e6}, pack_dir.text, o);
    outcome            fast = run_session((nw_hooks){.disk_rate = 1e14}, pack_dir.text, o);
    outcome            probed = run_session((nw_hooks){.measure_all = true}, pack_dir.text, o);
    assert_true(unknown.stats.disk_rate == 0 && unknown.stats.probe_bytes == 0);
    assert_true(slow.stats.disk_rate == 1e6 && fast.stats.disk_rate == 1e14);
    assert_true(probed.stats.disk_rate > 0 && probed.stats.probe_bytes > 0);
    assert_int_equal(unknown.after.read.next_pass, plan_with(pins, 0).read.next_pass);
    assert_int_equal(fast.after.read.next_pass, plan_with(pins, 1e14).read.next_pass);
    assert_int_equal(slow.after.read.next_pass, plan_with(pins, 1e6).read.next_pass);
    assert_true(slow.after.packed_tiles > fast.after.packed_tiles);
    check_bytes(&unknown);
    check_bytes(&slow);
    check_bytes(&fast);
    check_bytes(&probed);
    assert_memory_equal(slow.ids, unknown.ids, sizeof slow.ids);
    assert_memory_equal(fast.ids, unknown.ids, sizeof fast.ids);
    assert_memory_equal(probed.ids, unknown.ids, sizeof probed.ids);
}

/* The slower the disk, the less is read and the more stays packed; in between some pins do and others do not. */
static void test_mixes(void **state)
{
    (void)state;
    unsigned mixed = 0;
    if (!nw_kernels_best()->slim_faster)
        skip();
    for (uint64_t pins = 1 << 20; pins < 20 << 20; pins += 300 << 10) {
        nw_plan slim = plan_with(pins, 1e14), packed = plan_with(pins, 1e3);
        for (double rate = 1e10; rate > 1e8; rate /= 2) {
            nw_plan plan = plan_with(pins, rate);
            assert_true(plan.read.next_pass <= slim.read.next_pass && plan.read.next_pass >= packed.read.next_pass);
            mixed += plan.read.next_pass < slim.read.next_pass && plan.read.next_pass > packed.read.next_pass;
        }
    }
    assert_true(mixed > 0);
}

/* A window that could hold all that a probe reads leaves something to time all the same. */
static void test_deep_window(void **state)
{
    (void)state;
    nw_session_options o = options_with(8 << 20);
    if (!nw_kernels_best()->slim_faster)
        skip();
    o.window_bytes = 64 << 20;
    outcome probed = run_session((nw_hooks){.measure_all = true}, pack_dir.text, o);
    assert_true(probed.stats.probe_bytes > 0 && probed.stats.disk_rate > 0);
    check_bytes(&probed);
}

/* Where no pin can be anything but what is stored, nothing is read to choose. */
static void test_nothing_to_choose(void **state)
{
    (void)state;
    outcome wide = run_session((nw_hooks){.measure_all = true}, wide_dir.text, options_with(8 << 20));
    assert_true(wide.stats.probe_bytes == 0 && wide.stats.disk_rate == 0);
    assert_true(wide.restore_rate > 0 && wide.after.packed_tiles > 0);
    outcome slim = run_session((nw_hooks){.measure_all = true}, slim_dir.text, options_with(4 << 20));
    assert_true(slim.stats.probe_bytes == 0 && slim.stats.disk_rate == 0);
    assert_true(slim.restore_rate == 0 && slim.after.packed_tiles == 0);
    assert_true(slim.after.pinned_tiles > 0 && slim.after.read.next_pass > 0);
    check_bytes(&wide);
    check_bytes(&slim);
}

/* What cores take to restore does not depend on pins that stay packed. */
static void test_restored_pins(void **state)
{
    (void)state;
    nw_pin_rates rates = {.disk = 1e15, .restore = 5e9};
    nw_error     err = {0};
    nw_model    *m = NULL;
    double       seconds[2];
    assert_int_equal(nw_model_open(&(nw_model_options){.path = wide_dir.text}, &m, &err), NW_OK);
    for (int off = 0; off < 2; off++) {
        nw_blueprint       b;
        nw_session_options o = options_with(8 << 20);
        o.pins_off = off != 0;
        assert_int_equal(nw_blueprint_make(m, &o, 0, &b, &err), NW_OK);
        assert_true(off || b.plan.packed_tiles > 0);
        seconds[off] = nw_pins_mix(m, &rates, &b);
        nw_blueprint_free(m, &b);
    }
    nw_model_close(m);
    assert_true(seconds[0] > 0.99 * seconds[1] && seconds[0] < 1.01 * seconds[1]);
}

static void write_pack(temp_path *ret, const char *name, const char *source, nw_compress compress, nw_type type)
{
    nw_error        err = {0};
    nw_pack_result  r;
    nw_pack_options o = {.threads = 1, .compress = compress, .type = type};
    nw_model       *m = NULL;
    *ret = temp_dir_path(&dir, name);
    o.dir = ret->text;
    NW_CHECK(nw_model_open(&(nw_model_options){.path = source}, &m, &err) == NW_OK);
    NW_CHECK(nw_model_pack(m, &o, &r, &err) == NW_OK);
    nw_model_close(m);
}

static int start(void **state)
{
    (void)state;
    nw_error err = {0};
    dir = temp_dir_make();
    temp_path source = temp_dir_path(&dir, "source");
    many_tiles_write(source.text, false, 5);
    write_pack(&pack_dir, "packed", source.text, NW_COMPRESS_PACKED, NW_TYPE_KEEP);
    write_pack(&wide_dir, "wide", source.text, NW_COMPRESS_PACKED, NW_TYPE_F32);
    write_pack(&slim_dir, "slim", source.text, NW_COMPRESS_SLIM, NW_TYPE_BF16);
    NW_CHECK(nw_model_open(&(nw_model_options){.path = pack_dir.text}, &model, &err) == NW_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    model = nw_model_close(model);
    temp_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates),
                                       cmocka_unit_test(test_measured),
                                       cmocka_unit_test(test_mixes),
                                       cmocka_unit_test(test_deep_window),
                                       cmocka_unit_test(test_nothing_to_choose),
                                       cmocka_unit_test(test_restored_pins)};
    return cmocka_run_group_tests(tests, start, end);
}

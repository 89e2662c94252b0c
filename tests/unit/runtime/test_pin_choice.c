/* Which form pins of a pack take, by the disk's rate: a slow disk is spared bytes, a fast one spares the cores; never
 * more is read than with the better of the two. The rate is given, or measured by a session. */
#include "hooks.h"
#include "many_tiles.h"
#include "narrows.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static temp_dir  dir;
static temp_path pack_dir;
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
    unsigned           spared = 0;
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
        assert_int_equal(fast.read.next_pass, slim.read.next_pass);
        assert_int_equal(unknown.read.next_pass, slim.read.next_pass);
        spared += pass_bytes(&slow) < pass_bytes(&slim);
    }
    assert_true(spared > 0);
}

enum { TOKENS = 4, PROMPTS = 2 };

/* A session that believes something of its disk: what came of it. */
typedef struct {
    uint32_t ids[PROMPTS][TOKENS];
    nw_stats stats;
    nw_plan  after;
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

static outcome run_session(nw_hooks hooks, uint64_t pins)
{
    static const uint32_t input[] = {3, 700, 41, 2222, 9, 1};
    outcome               r = {0};
    nw_model             *m = NULL;
    nw_session           *s = NULL;
    nw_error              err = {0};
    nw_session_options    o = options_with(pins);
    assert_int_equal(nw_model_open(&(nw_model_options){.path = pack_dir.text, .hooks = &hooks}, &m, &err), NW_OK);
    assert_int_equal(nw_session_open(m, &o, &s, &err), NW_OK);
    for (size_t p = 0; p < PROMPTS; p++) {
        nw_request q = {.input_ids = input, .input_count = sizeof input / sizeof *input - p, .max_new_tokens = TOKENS};
        nw_result  made = {.ids = r.ids[p]};
        assert_int_equal(nw_session_generate(s, &q, &made, &err), NW_OK);
        assert_int_equal(made.count, TOKENS);
    }
    nw_session_stats(s, &r.stats);
    nw_session_plan(s, &r.after);
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

/* A session takes the same choice by what it measures as a plan does by what it is told, and says what it reads. */
static void test_measured(void **state)
{
    (void)state;
    uint64_t pins = 8 << 20;
    if (!nw_kernels_best()->slim_faster)
        skip(); /* there pins of a pack are never slim */
    while (plan_with(pins, 1e6).read.next_pass >= plan_with(pins, 0).read.next_pass) {
        pins += 100 << 10;
        assert_true(pins < 100 << 20);
    }
    outcome unknown = run_session((nw_hooks){0}, pins), slow = run_session((nw_hooks){.disk_rate = 1e6}, pins);
    outcome fast = run_session((nw_hooks){.disk_rate = 1e14}, pins);
    outcome probed = run_session((nw_hooks){.measure_all = true}, pins);
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

/* Where no tile is packed there is nothing to choose, and nothing is looked at. */
static void test_slim_pack(void **state)
{
    (void)state;
    nw_error        err = {0};
    nw_pack_result  r;
    temp_path       packed = pack_dir;
    nw_pack_options o = {.threads = 1, .compress = NW_COMPRESS_SLIM, .type = NW_TYPE_BF16};
    pack_dir = temp_dir_path(&dir, "slim");
    o.dir = pack_dir.text;
    nw_model *m = NULL;
    assert_int_equal(nw_model_open(&(nw_model_options){.path = temp_dir_path(&dir, "plain").text}, &m, &err), NW_OK);
    assert_int_equal(nw_model_pack(m, &o, &r, &err), NW_OK);
    nw_model_close(m);
    outcome made = run_session((nw_hooks){.measure_all = true}, 4 << 20);
    pack_dir = packed;
    assert_true(made.stats.disk_rate == 0 && made.stats.probe_bytes == 0 && made.after.packed_tiles == 0);
    assert_true(made.after.pinned_tiles > 0 && made.after.read.next_pass > 0);
    check_bytes(&made);
}

static int start(void **state)
{
    (void)state;
    nw_error        err = {0};
    nw_pack_result  r;
    nw_pack_options o = {.threads = 1};
    dir = temp_dir_make();
    temp_path plain = temp_dir_path(&dir, "plain");
    pack_dir = temp_dir_path(&dir, "packed");
    many_tiles_write(plain.text, false, 5);
    o.dir = pack_dir.text;
    NW_CHECK(nw_model_open(&(nw_model_options){.path = plain.text}, &model, &err) == NW_OK);
    NW_CHECK(nw_model_pack(model, &o, &r, &err) == NW_OK);
    nw_model_close(model);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates), cmocka_unit_test(test_measured),
                                       cmocka_unit_test(test_mixes), cmocka_unit_test(test_slim_pack)};
    return cmocka_run_group_tests(tests, start, end);
}

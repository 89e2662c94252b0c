/* Which form pins of a pack take, by the disk's rate: a slow disk is spared bytes, a fast one spares the cores; never
 * more is read than with the better of the two. */
#include "many_tiles.h"
#include "narrows.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static temp_dir  dir;
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

static int start(void **state)
{
    (void)state;
    nw_error        err = {0};
    nw_pack_result  r;
    nw_pack_options o = {.threads = 1};
    dir = temp_dir_make();
    temp_path plain = temp_dir_path(&dir, "plain"), packed = temp_dir_path(&dir, "packed");
    many_tiles_write(plain.text, false, 5);
    o.dir = packed.text;
    NW_CHECK(nw_model_open(&(nw_model_options){.path = plain.text}, &model, &err) == NW_OK);
    NW_CHECK(nw_model_pack(model, &o, &r, &err) == NW_OK);
    nw_model_close(model);
    NW_CHECK(nw_model_open(&(nw_model_options){.path = packed.text}, &model, &err) == NW_OK);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates)};
    return cmocka_run_group_tests(tests, start, end);
}

/* K and V in a scratch file: where it may be, what it holds, and what happens where there is no room for it. */
#include "golden.h"
#include "kv_stream.h"
#include "narrows.h"
#include "temp_dir.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <cmocka.h>

static nw_model *model;

static nw_code open_in(const char *scratch, nw_session **ret, nw_error *err)
{
    nw_session_options o = {.budget_bytes = 256 << 20,
                            .max_input_tokens = 40,
                            .max_output_tokens = 4,
                            .kv_on_disk = true,
                            .scratch = scratch,
                            .force = true};
    *ret = NULL;
    return nw_session_open(model, &o, ret, err);
}

static nw_code answer(nw_session *session, nw_error *err)
{
    static const uint32_t ids[] = {11, 10, 5, 4, 9, 6, 14, 3, 7, 15, 8, 63, 20, 3, 18, 55, 12, 41, 1};
    nw_result             r = {0};
    return nw_session_generate(
        session, &(nw_request){.input_ids = ids, .input_count = sizeof ids / sizeof *ids, .max_new_tokens = 3}, &r,
        err);
}

static void test_places(void **state)
{
    (void)state;
    nw_config   c = {.decoder_blocks = 3, .d_kv = 10, .head_count = 2};
    nw_kv_shape s = nw_kv_shape_make(&c, 100, 2, 1000, 512); /* rows of 80 bytes, 12 to a tile at most */
    nw_cross    first = {.length = 100}, second = {.length = 13, .place = 1};
    assert_int_equal(s.row_bytes, 80);
    assert_int_equal(s.tiles, 9);
    assert_int_equal(s.tile_rows, 12);
    assert_int_equal(s.tile_bytes, 1024);
    assert_int_equal(nw_kv_tiles(&s, &first), 9);
    assert_int_equal(nw_kv_tiles(&s, &second), 2);
    assert_int_equal(s.place_bytes, 3 * 2 * 9 * 1024);
    /* Places of tiles follow one another without gap or overlap. */
    uint64_t want = 0;
    for (uint32_t block = 0; block < 3; block++) {
        for (int values = 0; values < 2; values++) {
            for (size_t tile = 0; tile < 9; tile++, want += 1024)
                assert_int_equal(nw_kv_offset(&s, &first, block, values, tile), want);
        }
    }
    assert_int_equal(nw_kv_offset(&s, &second, 0, false, 0), want);
}

static void test_streamed(void **state)
{
    (void)state;
    nw_error    err = {0};
    nw_session *session;
    nw_stats    stats;
    temp_dir    dir = temp_dir_make();
    assert_int_equal(open_in(dir.path, &session, &err), NW_OK);
    assert_int_equal(answer(session, &err), NW_OK);
    nw_session_stats(session, &stats);
    assert_true(stats.kv_bytes_written > 0);
    assert_int_equal(stats.kv_bytes_read, stats.kv_bytes_written * stats.passes);
    nw_session_close(session);
    assert_int_equal(rmdir(dir.path), 0); /* nothing is left, and nothing ever had a name */
}

static void test_no_directory(void **state)
{
    (void)state;
    nw_error    err = {0};
    nw_session *session;
    assert_int_equal(open_in("/nowhere/at all", &session, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, "/nowhere/at all"));
    assert_int_equal(err.os_errno, ENOENT);
}

static void test_memory_is_no_disk(void **state)
{
    (void)state;
    enum { TMPFS = 0x01021994 };
    struct statfs fs;
    nw_error      err = {0};
    nw_session   *session;
    if (statfs("/dev/shm", &fs) != 0 || fs.f_type != TMPFS)
        skip(); /* there is no file system in memory here */
    assert_int_equal(open_in("/dev/shm", &session, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, "in memory"));
}

static void test_no_room(void **state)
{
    (void)state;
    struct rlimit before, small;
    nw_error      err = {0};
    nw_session   *session;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    nw_code rc = open_in(NULL, &session, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, NW_E_IO);
    assert_non_null(strstr(err.msg, "scratch file"));
}

static int open_model(void **state)
{
    (void)state;
    nw_error err = {0};
    golden_need(nw_model_open(&(nw_model_options){.path = NW_TEST_DATA "/numbers-t5"}, &model, &err) == NW_OK, "model",
                &err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    model = nw_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),       cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_no_directory), cmocka_unit_test(test_memory_is_no_disk),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

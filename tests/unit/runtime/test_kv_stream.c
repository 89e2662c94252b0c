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
    size_t      rows = nw_kv_tile_rows(&c, 100, 1000); /* of 80 bytes, 12 to a tile at most */
    nw_kv_shape s = nw_kv_shape_make(&c, rows, 100, 2, 512);
    assert_int_equal(rows, 12);
    assert_int_equal(s.row_bytes, 80);
    assert_int_equal(s.tiles, 9);
    assert_int_equal(s.tile_rows, 12);
    assert_int_equal(s.tile_bytes, 1024);
    assert_int_equal(nw_kv_tiles(&s, 100), 9);
    assert_int_equal(nw_kv_tiles(&s, 13), 2);
    assert_int_equal(s.place_bytes, 3 * 2 * 9 * 1024);
    /* Places of tiles follow one another without gap or overlap. */
    uint64_t want = s.at = 4096;
    for (uint32_t block = 0; block < 3; block++) {
        for (int values = 0; values < 2; values++) {
            for (size_t tile = 0; tile < 9; tile++, want += 1024)
                assert_int_equal(nw_kv_offset(&s, 0, block, values, tile), want);
        }
    }
    assert_int_equal(nw_kv_offset(&s, 1, 0, false, 0), want);
    assert_int_equal(nw_kv_end(&s), 4096 + 2 * s.place_bytes);
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

enum { LONG = 100, CHOICES = 3 };

/* Log-probabilities of answers that are given: one of LONG tokens, others of 3 and 40. */
typedef struct {
    double   logprobs[CHOICES][LONG];
    size_t   lens[CHOICES];
    nw_stats stats;
    nw_plan  plan;
} judged;

static void keep_logprobs(void *user, const nw_sequence *q)
{
    judged *j = user;
    j->lens[q->sequence] = q->count;
    memcpy(j->logprobs[q->sequence], q->logprobs, q->count * sizeof *q->logprobs);
}

static void judge(bool on_disk, size_t count, size_t columns, judged *ret)
{
    static const size_t lens[CHOICES] = {LONG, 3, 40};
    uint32_t            ids[LONG + 3 + 40], input[] = {11, 10, 5, 4, 9, 6, 14, 1};
    nw_error            err = {0};
    nw_session         *session = NULL;
    nw_session_options  o = {.budget_bytes = 256 << 20,
                             .max_input_tokens = 40,
                             .max_output_tokens = LONG,
                             .max_lanes = count,
                             .max_choices = count,
                             .max_columns = columns,
                             .kv_on_disk = on_disk,
                             .force = true};
    nw_request          q = {.input_ids = input,
                             .input_count = 8,
                             .choice_ids = ids,
                             .choice_lens = lens,
                             .choice_count = count,
                             .logprobs = true,
                             .on_sequence = keep_logprobs,
                             .user = ret};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (uint32_t)(3 + i * 37 % 60);
    *ret = (judged){0};
    assert_int_equal(nw_plan_make(model, &o, &ret->plan, &err), NW_OK);
    assert_int_equal(nw_session_open(model, &o, &session, &err), NW_OK);
    nw_result r = {0};
    assert_int_equal(nw_session_generate(session, &q, &r, &err), NW_OK);
    nw_session_stats(session, &ret->stats);
    nw_session_close(session);
}

/* Answers whose first pages are in the scratch file have the bits that they have in memory, however many columns a pass
 * has, and sequences of one request at different lengths. */
static void test_answers(void **state)
{
    (void)state;
    static const size_t columns[] = {3, 5, 16, 64, 143};
    static judged       memory, disk;
    judge(false, CHOICES, CHOICES, &memory);
    assert_int_equal(memory.plan.kv_page_rows, 0);
    assert_int_equal(memory.stats.kv_bytes_written, 0);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        judge(true, CHOICES, columns[i], &disk);
        assert_memory_equal(disk.lens, memory.lens, sizeof disk.lens);
        assert_memory_equal(disk.logprobs, memory.logprobs, sizeof disk.logprobs);
        size_t rows = LONG * CHOICES, pages = (rows - 1) / disk.plan.kv_page_rows; /* but the last */
        assert_true(pages > 4);
        assert_true(disk.stats.kv_bytes_written > (pages - 1) * disk.plan.read.kv_page);
    }
}

/* What is read and written is what the plan says. */
static void test_answer_bytes(void **state)
{
    (void)state;
    static judged disk;
    judge(true, 1, 1, &disk);
    uint64_t rows = disk.plan.kv_page_rows, page = disk.plan.read.kv_page, pages = 0;
    assert_true(rows > 0 && page > 0);
    assert_int_equal(disk.stats.passes, LONG);
    for (size_t position = 0; position < LONG; position++)
        pages += position / rows;
    assert_int_equal(disk.stats.kv_bytes_read, LONG * disk.plan.read.kv + pages * page);
    assert_int_equal(disk.stats.kv_bytes_written, disk.plan.read.kv + (LONG - 1) / rows * page);
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
        cmocka_unit_test(test_no_room),      cmocka_unit_test(test_answers),
        cmocka_unit_test(test_answer_bytes),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}

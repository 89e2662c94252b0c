/* Sizes as people write them: parsing is exact and locale-free, and what is written can be read back. */
#include "base/size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t    bytes;
    } cases[] = {
        {"1", 1},
        {"4096", 4096},
        {"4096B", 4096},
        {"1K", 1024},
        {"1k", 1024},
        {"1KB", 1000},
        {"1kb", 1000},
        {"1KiB", 1024},
        {"1kib", 1024},
        {"900M", 900ull << 20},
        {"1.5G", 3ull << 29},
        {"1.5 GiB", 3ull << 29},
        {"2GB", 2000000000ull},
        {"2GiB", 2ull << 30},
        {"2G", 2ull << 30},
        {"1T", 1ull << 40},
        {"1TB", 1000000000000ull},
        {"0.5K", 512},
        {"0.1K", 102},
        {"00001", 1},
        /* a double would round these down or away */
        {"1.001GB", 1001000000ull},
        {"9007199254740993", 9007199254740993ull},
        {"0.999999999999T", 1099511627774ull},
        {"1.0000000000000000000000000000000000000001K", 1024},
        {"4611686018427387903", (1ull << 62) - 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 0;
        if (!nw_size_parse(cases[i].text, &bytes))
            fail_msg("'%s' was refused", cases[i].text);
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",
        " 1",
        "0",
        "0G",
        "0.0001K",
        "-1",
        "+1",
        "1.5",
        "1.5B",
        ".5G",
        "1.G",
        "G",
        "1X",
        "1GX",
        "1GiBs",
        "1Gi",
        "1iB",
        "1 K x",
        "1e3",
        "0x1",
        "1,5G",
        "nan",
        "infinity",
        "1..5G",
        "4611686018427387904",
        "18446744073709551616",
        "99999999999999999999999",
        "4194304T",
        "20000000000G",
        "1K1",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 77;
        if (nw_size_parse(cases[i], &bytes))
            fail_msg("'%s' was accepted", cases[i]);
        assert_int_equal(bytes, 77);
    }
}

static void test_written(void **state)
{
    (void)state;
    static const struct {
        uint64_t    bytes;
        const char *near, *up;
    } cases[] = {
        {0, "0", "0"},
        {1, "1", "1"},
        {1023, "1023", "1023"},
        {1024, "1K", "1K"},
        {1025, "1K", "1.01K"},
        {1536, "1.5K", "1.5K"},
        {192ull << 20, "192M", "192M"},
        {3ull << 29, "1.5G", "1.5G"},
        {(1ull << 30) - 1, "1G", "1G"},
        {1023ull << 20, "1023M", "1023M"},
        {(1023ull << 20) + 1, "1023M", "1G"},
        {(100ull << 20) - 1, "100M", "100M"},
        {(10ull << 20) + 1, "10M", "10.1M"},
        {(1ull << 60) + 1, "1E", "1.01E"},
        {UINT64_MAX, "16E", "16E"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buf[16];
        assert_string_equal(nw_size_format(cases[i].bytes, false, buf), cases[i].near);
        assert_string_equal(nw_size_format(cases[i].bytes, true, buf), cases[i].up);
    }
}

/* Rounded up and read back, a size is never smaller, and not larger by more than three digits allow. */
static void test_read_back(void **state)
{
    (void)state;
    uint64_t random = 88172645463325252ull;
    for (int i = 0; i < 200000; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t bytes = (random >> 15) >> (random % 49); /* below 2^49: there is no unit above T to read */
        if (bytes == 0)
            continue;
        char     up[16], near[16];
        uint64_t read_up = 0, read_near = 0;
        assert_true(nw_size_parse(nw_size_format(bytes, true, up), &read_up));
        assert_true(nw_size_parse(nw_size_format(bytes, false, near), &read_near));
        assert_true(read_up >= bytes);
        assert_true(read_up - bytes <= bytes / 99);
        uint64_t off = read_near > bytes ? read_near - bytes : bytes - read_near;
        assert_true(off <= bytes / 198 + 1);
        assert_true(strlen(up) <= 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

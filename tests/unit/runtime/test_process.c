/* The settings of the process, its resident size, and the budgets and sizes that people write. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "child.h"
#include "narrows.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* ---- the process ---------------------------------------------------------------------------------------------- */

static void test_resident(void **state)
{
    (void)state;
    const size_t bytes = 64 * MIB;
    uint64_t     before = nw_process_resident();
    assert_true(before > 100 * KIB);
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    memset(p, 1, bytes);
    assert_true(nw_process_resident() >= before + bytes - 4 * MIB);
    assert_int_equal(munmap(p, bytes), 0);
    assert_true(nw_process_resident() < before + bytes / 2);
    assert_true(nw_process_peak() >= before + bytes - 4 * MIB);
}

static void *thread_allocate(void *user)
{
    (void)user;
    return malloc(1000);
}

/* Heaps that malloc has made. */
static size_t malloc_arenas(void)
{
    char  *text = NULL;
    size_t size = 0, count = 0;
    FILE  *file = open_memstream(&text, &size);
    NW_CHECK(file != NULL);
    NW_CHECK(malloc_info(0, file) == 0);
    NW_CHECK(fclose(file) == 0);
    for (const char *at = text; (at = strstr(at, "<heap nr=")) != NULL; at++)
        count++;
    free(text);
    return count;
}

static int child_malloc(void *user)
{
    (void)user;
    nw_process_setup();
    pthread_t thread;
    void     *from_thread;
    EXPECT(pthread_create(&thread, NULL, thread_allocate, NULL) == 0);
    EXPECT(pthread_join(thread, &from_thread) == 0);
    EXPECT(from_thread != NULL);
    EXPECT(malloc_arenas() == 1);
    free(from_thread);
    /* Freeing a large block must not teach malloc to keep such blocks in the heap. */
    void *volatile large = malloc(8 * MIB); /* volatile: or the compiler sees that it is not needed */
    EXPECT(large != NULL);
    free(large);
    size_t mapped = mallinfo2().hblks;
    large = malloc(4 * MIB);
    EXPECT(large != NULL);
    EXPECT(mallinfo2().hblks == mapped + 1);
    free(large);
    return 0;
}

/* What child_huge_pages returns where the setting cannot be asked for: qemu-user does not pass it on. */
enum { NO_SETTING = 254 };

static int child_huge_pages(void *user)
{
    (void)user;
    const unsigned long but_where_asked = 2; /* PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18 */
    bool                known = prctl(PR_SET_THP_DISABLE, 1UL, but_where_asked, 0UL, 0UL) == 0;
    if (prctl(PR_SET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL) != 0)
        return NO_SETTING;
    nw_process_setup();
    char  text[64] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file == NULL)
        return 0; /* a kernel without them */
    EXPECT(fgets(text, sizeof text, file) != NULL);
    fclose(file);
    int disabled = prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL);
    EXPECT(disabled == (known ? 3 : strstr(text, "[always]") != NULL ? 1 : 0));

    const size_t   bytes = 16 * MIB; /* one byte in each 2 MiB: that many pages become resident, not all */
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(p != MAP_FAILED);
    uint64_t before = nw_process_resident();
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        p[at] = 1;
    EXPECT(nw_process_resident() < before + 4 * MIB);
    return 0;
}

static void test_process_setup(void **state)
{
    (void)state;
    int huge_pages = in_child(child_huge_pages, NULL);
    if (huge_pages == NO_SETTING)
        print_message("no setting for huge pages here: not looked at\n");
    else
        assert_int_equal(huge_pages, 0);
    if (CHILD_SANITIZED) {
        print_message("malloc is the sanitizer's: its settings cannot be seen\n");
        skip();
    }
    assert_int_equal(in_child(child_malloc, NULL), 0);
}

/* ---- budgets ------------------------------------------------------------------------------------------------ */

static void test_budget_auto(void **state)
{
    (void)state;
    static const struct {
        uint64_t available, budget;
    } cases[] = {
        {16 * GIB, 14 * GIB},
        {GIB, GIB - 128 * MIB},
        {512 * MIB, 448 * MIB},
        {256 * MIB, 192 * MIB},
        {66 * MIB, 2 * MIB},
        {64 * MIB, MIB},
        {MIB, MIB},
        {0, MIB},
        {UINT64_MAX, UINT64_MAX - UINT64_MAX / 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nw_machine_memory memory = {.available = cases[i].available, .total = UINT64_MAX};
        assert_int_equal(nw_budget_auto(&memory), cases[i].budget);
    }
}

static void test_budget_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t    bytes; /* 0: refused */
    } cases[] = {
        {"auto", 7 * GIB},
        {"900M", 900 * MIB},
        {"1.5G", 1536 * MIB},
        {"2GB", 2000000000},
        {"2GiB", 2 * GIB},
        {"60%", 8 * GIB * 3 / 5},
        {"100%", 8 * GIB},
        {"100.000%", 8 * GIB},
        {"1%", 85899345},
        {"12.5%", GIB},
        {"33.3333333333333333%", 2863311502},
        {"Auto", 0},
        {"auto ", 0},
        {"", 0},
        {"%", 0},
        {"0%", 0},
        {"0.99%", 0},
        {"100.1%", 0},
        {"101%", 0},
        {"1000%", 0},
        {"99999999999999999999%", 0},
        {"-5%", 0},
        {"+5%", 0},
        {" 5%", 0},
        {"5 %", 0},
        {"5.%", 0},
        {".5%", 0},
        {"5%%", 0},
        {"5,5%", 0},
        {"1e1%", 0},
        {"5.5.5%", 0},
        {"0", 0},
        {"-1G", 0},
        {"1X", 0},
        {"nan", 0},
    };
    const nw_machine_memory memory = {.available = 8 * GIB, .total = 16 * GIB};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 77;
        bool     parsed = nw_budget_parse(cases[i].text, &memory, &bytes);
        if (parsed != (cases[i].bytes != 0) || (parsed ? bytes != cases[i].bytes : bytes != 77))
            fail_msg("'%s' gave %d, %llu", cases[i].text, parsed, (unsigned long long)bytes);
    }
}

/* The share is exact for any size, and never 0, which would mean `auto`. */
static void test_budget_percent_extremes(void **state)
{
    (void)state;
    nw_machine_memory memory = {.available = UINT64_MAX};
    uint64_t          bytes;
    assert_true(nw_budget_parse("100%", &memory, &bytes));
    assert_true(bytes == UINT64_MAX);
    assert_true(nw_budget_parse("50%", &memory, &bytes));
    assert_true(bytes == UINT64_MAX / 2);
    memory.available = 0;
    assert_true(nw_budget_parse("50%", &memory, &bytes));
    assert_int_equal(bytes, MIB);
}

static void test_bytes(void **state)
{
    (void)state;
    uint64_t bytes = 77;
    char     text[16];
    assert_false(nw_bytes_parse("60%", &bytes));
    assert_false(nw_bytes_parse("auto", &bytes));
    assert_int_equal(bytes, 77);
    assert_true(nw_bytes_parse("192M", &bytes));
    assert_int_equal(bytes, 192 * MIB);
    assert_ptr_equal(nw_bytes_format(192 * MIB, false, text), text);
    assert_string_equal(text, "192M");
    assert_string_equal(nw_bytes_format(192 * MIB + 1, true, text), "193M");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resident),
        cmocka_unit_test(test_process_setup),
        cmocka_unit_test(test_budget_auto),
        cmocka_unit_test(test_budget_parse),
        cmocka_unit_test(test_budget_percent_extremes),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

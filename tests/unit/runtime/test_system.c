/* What the machine and the process have, on made-up machines (two roots in a temporary directory) and on this one:
 * control groups of both versions, nested, hybrid, in containers; resource limits; CPU quotas; files that are missing
 * or garbage. And the budgets that people write. Where this machine lets us, real control groups with a child in them.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "child.h"
#include "system.h"
#include "temp_dir.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* ---- made-up machines --------------------------------------------------------------------------------------- */

typedef struct {
    temp_dir  dir;
    temp_path proc, cgroup;
} machine;

/* Writes a file of the machine, "proc/..." or "cgroup/...", and the directories that lead to it. */
static void put(const machine *m, const char *name, const char *text)
{
    temp_path path = temp_dir_path(&m->dir, name);
    for (char *at = path.text + strlen(m->dir.path) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        NW_CHECK(mkdir(path.text, 0777) == 0 || errno == EEXIST);
        *at = '/';
    }
    temp_dir_write(&m->dir, name, text, strlen(text));
}

static void put_number(const machine *m, const char *name, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)number);
    put(m, name, text);
}

/* 16 GiB, of which 12 GiB are available; no control groups. */
static machine machine_make(void)
{
    machine m = {.dir = temp_dir_make()};
    m.proc = temp_dir_path(&m.dir, "proc");
    m.cgroup = temp_dir_path(&m.dir, "cgroup");
    put(&m, "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:         8388608 kB\nMemAvailable:   12582912 kB\nCached: 4 kB\n");
    return m;
}

static nw_machine_memory machine_memory(const machine *m)
{
    nw_machine_memory memory;
    memset(&memory, 0xA5, sizeof memory);
    nw_system_memory(m->proc.text, m->cgroup.text, &memory);
    assert_non_null(memchr(memory.limited_by, '\0', sizeof memory.limited_by));
    assert_true(memory.available <= memory.total);
    return memory;
}

static void expect_left(const machine *m, uint64_t available, uint64_t total, const char *limited_by)
{
    nw_machine_memory memory = machine_memory(m);
    assert_string_equal(memory.limited_by, limited_by);
    assert_int_equal(memory.available, available);
    assert_int_equal(memory.total, total);
}

static const char *const mounts_v2 =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

static const char *const mounts_v1 = "31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
                                     "32 31 0:29 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
                                     "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                                     "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

static const char *const groups_v1 = "5:memory:/a/b\n4:cpu,cpuacct:/a/b\n3:cpuset:/\n1:name=systemd:/a/b\n0::/a/b\n";

static machine machine_v2(const char *path)
{
    machine m = machine_make();
    char    line[1024];
    snprintf(line, sizeof line, "0::%s\n", path);
    put(&m, "proc/self/cgroup", line);
    put(&m, "proc/self/mountinfo", mounts_v2);
    return m;
}

static machine machine_v1(void)
{
    machine m = machine_make();
    put(&m, "proc/self/cgroup", groups_v1);
    put(&m, "proc/self/mountinfo", mounts_v1);
    return m;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static void test_no_groups(void **state)
{
    (void)state;
    machine m = machine_make();
    expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");
    put(&m, "proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 8388608 kB\n"); /* Linux before 3.14 */
    expect_left(&m, 8 * GIB, 16 * GIB, "MemFree");
    temp_dir_remove(&m.dir);
}

static void test_no_proc(void **state)
{
    (void)state;
    machine           m = {.dir = temp_dir_make()};
    nw_machine_memory memory;
    nw_system_memory("/nowhere/proc", "/nowhere/cgroup", &memory);
    assert_string_equal(memory.limited_by, "sysinfo");
    assert_in_range(memory.available, 1, memory.total);
    temp_dir_remove(&m.dir);
}

static void test_v2_limit_in_the_middle(void **state)
{
    (void)state;
    machine m = machine_v2("/a/b/c");
    put(&m, "cgroup/a/b/c/memory.max", "max\n");
    put(&m, "cgroup/a/b/c/memory.high", "max\n");
    put_number(&m, "cgroup/a/b/c/memory.current", 100 * MIB);
    put_number(&m, "cgroup/a/b/memory.max", 2 * GIB);
    put_number(&m, "cgroup/a/b/memory.current", 700 * MIB);
    put(&m, "cgroup/a/memory.max", "max\n");
    expect_left(&m, 2 * GIB - 700 * MIB, 2 * GIB, "memory.max of /a/b");

    put_number(&m, "cgroup/a/b/memory.high", GIB); /* throttles from there on: no use to go beyond */
    expect_left(&m, GIB - 700 * MIB, GIB, "memory.high of /a/b");

    put_number(&m, "cgroup/a/memory.max", 3 * GIB); /* a wider limit, but siblings have used it up */
    put_number(&m, "cgroup/a/memory.current", 3 * GIB - 5 * MIB);
    expect_left(&m, 5 * MIB, GIB, "memory.max of /a");

    put_number(&m, "cgroup/a/memory.current", 4 * GIB); /* lowered below what is in use */
    expect_left(&m, 0, GIB, "memory.max of /a");
    temp_dir_remove(&m.dir);
}

static void test_v2_page_cache(void **state)
{
    (void)state;
    machine m = machine_v2("/a");
    put_number(&m, "cgroup/a/memory.max", 1000 * MIB);
    put_number(&m, "cgroup/a/memory.current", 900 * MIB);
    expect_left(&m, 100 * MIB, 1000 * MIB, "memory.max of /a");
    put(&m, "cgroup/a/memory.stat",
        "anon 5242880\nfile 629145600\nfile_dirty 10485760\nfile_writeback 5242880\ninactive_file 314572800\n"
        "active_file 209715200\nactive_file_more 999999999999\nunevictable 104857600\n");
    expect_left(&m, 100 * MIB + 500 * MIB - 15 * MIB, 1000 * MIB, "memory.max of /a");

    put(&m, "cgroup/a/memory.stat", "inactive_file 1048576\nfile_dirty 99999999999\n"); /* more dirty than there is */
    expect_left(&m, 100 * MIB, 1000 * MIB, "memory.max of /a");
    put(&m, "cgroup/a/memory.stat", "inactive_file 99999999999\n"); /* more cache than is used */
    expect_left(&m, 1000 * MIB, 1000 * MIB, "memory.max of /a");
    temp_dir_remove(&m.dir);
}

static void test_v1(void **state)
{
    (void)state;
    machine m = machine_v1();
    put(&m, "cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put_number(&m, "cgroup/memory/a/b/memory.usage_in_bytes", MIB);
    put(&m, "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");

    put_number(&m, "cgroup/memory/a/memory.limit_in_bytes", 17 * GIB); /* more than the machine has */
    put_number(&m, "cgroup/memory/a/memory.usage_in_bytes", 16 * GIB);
    expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");

    put_number(&m, "cgroup/memory/a/memory.limit_in_bytes", GIB);
    put_number(&m, "cgroup/memory/a/memory.usage_in_bytes", 800 * MIB);
    put(&m, "cgroup/memory/a/memory.stat",
        "inactive_file 7\nactive_file 7\nhierarchical_memory_limit 1073741824\ntotal_inactive_file 104857600\n"
        "total_active_file 209715200\ntotal_dirty 1048576\ntotal_writeback 2097152\n");
    expect_left(&m, GIB - 800 * MIB + 297 * MIB, GIB, "memory.limit_in_bytes of /a");

    /* The own group says that a limit applies which none of the visible groups has. */
    put(&m, "cgroup/memory/a/b/memory.stat", "hierarchical_memory_limit 268435456\n");
    expect_left(&m, 255 * MIB, 256 * MIB, "hierarchical_memory_limit of /a/b");
    put_number(&m, "cgroup/memory/a/b/memory.limit_in_bytes", 256 * MIB);
    expect_left(&m, 255 * MIB, 256 * MIB, "memory.limit_in_bytes of /a/b");
    temp_dir_remove(&m.dir);
}

/* v1 has the memory controller, the unified hierarchy is mounted beside it; and the other way round. */
static void test_hybrid(void **state)
{
    (void)state;
    machine m = machine_v1();
    put(&m, "cgroup/unified/a/b/cgroup.procs", "1\n");
    put_number(&m, "cgroup/memory/a/memory.limit_in_bytes", GIB);
    expect_left(&m, GIB, GIB, "memory.limit_in_bytes of /a");
    temp_dir_remove(&m.dir);

    m = machine_v1();
    put(&m, "proc/self/cgroup", "4:cpu,cpuacct:/a/b\n0::/u/v\n");
    put_number(&m, "cgroup/unified/u/memory.max", GIB);
    expect_left(&m, GIB, GIB, "memory.max of /u");
    temp_dir_remove(&m.dir);
}

/* How containers show groups: what path and mount root are, and where the limit is found. */
static void test_containers(void **state)
{
    (void)state;
    static const struct {
        const char *path, *root, *file, *limited_by;
    } cases[] = {
        {"/", "/", "cgroup/memory.max", "memory.max of /"}, /* a namespace of its own */
        {"/docker/x", "/docker/x", "cgroup/memory.max", "memory.max of /docker/x"},
        {"/docker/x/in", "/docker/x", "cgroup/in/memory.max", "memory.max of /docker/x/in"},
        {"/docker/x/in", "/docker/x", "cgroup/memory.max", "memory.max of /docker/x"},
        {"/docker/xy", "/docker/x", "cgroup/memory.max", "memory.max of /docker/x"}, /* not below: the mount's root */
        {"/../..", "/", "cgroup/memory.max", "memory.max of /"},                     /* outside of the namespace */
        {"/../other", "/", "cgroup/memory.max", "memory.max of /"},
        {"/", "/../..", "cgroup/memory.max", "memory.max of /"}, /* mounted from outside */
        {"/..", "/..", "cgroup/memory.max", "memory.max of /.."},
        {"/a/b/c/d", "/", "cgroup/a/memory.max", "memory.max of /a"}, /* b is not there */
        {"/a/b (deleted)", "/", "cgroup/a/memory.max", "memory.max of /a"},
        {"/a/b/", "/", "cgroup/a/b/memory.max", "memory.max of /a/b"},
        {"/a:b/..c", "/", "cgroup/a:b/..c/memory.max", "memory.max of /a:b/..c"},
        {"/a\tb/c d", "/", "cgroup/a\tb/c d/memory.max", "memory.max of /a?b/c d"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine m = machine_v2(cases[i].path);
        char    line[1024];
        snprintf(line, sizeof line, "31 23 0:28 %s /sys/fs/cgroup rw - cgroup2 cgroup rw\n", cases[i].root);
        put(&m, "proc/self/mountinfo", line);
        put_number(&m, "other/memory.max", MIB); /* beside the mount: never to be looked at */
        put_number(&m, cases[i].file, GIB);
        expect_left(&m, GIB, GIB, cases[i].limited_by);
        temp_dir_remove(&m.dir);
    }
}

/* Of several mounts the one that shows most; mount points elsewhere, with escapes; lines longer than any buffer. */
static void test_mounts(void **state)
{
    (void)state;
    machine m = machine_v2("/pod/x");
    put(&m, "proc/self/mountinfo",
        "30 23 0:28 /other /sys/fs/cgroup/one rw - cgroup2 cgroup rw\n"
        "31 23 0:28 /pod/x /sys/fs/cgroup/two rw - cgroup2 cgroup rw\n"
        "32 23 0:28 /pod /sys/fs/cgroup/three rw - cgroup2 cgroup rw\n"
        "33 23 0:28 /pod/y /sys/fs/cgroup/four rw - cgroup2 cgroup rw\n");
    put_number(&m, "cgroup/one/memory.max", MIB);
    put_number(&m, "cgroup/two/memory.max", 2 * MIB);
    put_number(&m, "cgroup/three/memory.max", GIB);
    put_number(&m, "cgroup/four/memory.max", 4 * MIB);
    expect_left(&m, GIB, GIB, "memory.max of /pod");

    char *text = malloc(70000);
    NW_CHECK(text != NULL);
    size_t len = (size_t)snprintf(text, 100, "29 23 0:28 / / rw - overlay overlay rw,lowerdir=");
    memset(text + len, 'x', 30000);
    snprintf(text + len + 30000, 1000, "\n31 23 0:28 / %s/some\\040where rw - cgroup2 cgroup rw", m.dir.path);
    put(&m, "proc/self/mountinfo", text);
    put_number(&m, "some where/pod/x/memory.max", 3 * GIB);
    expect_left(&m, 3 * GIB, 3 * GIB, "memory.max of /pod/x");

    memset(text, 'y', 8191); /* one more than fits; the rest must not be taken for a line */
    snprintf(text + 8191, 1000, "9 23 0:28 / /sys/fs/cgroup/one rw - cgroup2 cgroup rw\n%s", mounts_v2);
    put_number(&m, "cgroup/pod/memory.max", 2 * GIB);
    put(&m, "proc/self/mountinfo", text);
    expect_left(&m, 2 * GIB, 2 * GIB, "memory.max of /pod");
    text[8190] = '\n'; /* exactly what fits: now it is one */
    put(&m, "proc/self/mountinfo", text);
    expect_left(&m, MIB, MIB, "memory.max of /");
    free(text);
    temp_dir_remove(&m.dir);
}

static void test_long_name(void **state)
{
    (void)state;
    char path[200];
    char middle[81] = "";
    for (size_t i = 0; i < 80; i++)
        middle[i] = "\xC3\xA9"[i % 2];
    snprintf(path, sizeof path, "/kubepods.slice/%s/0123456789012345678901234567890123456789.scope", middle);
    machine m = machine_v2(path);
    char    name[300];
    snprintf(name, sizeof name, "cgroup%s/memory.max", path);
    put_number(&m, name, GIB);
    nw_machine_memory memory = machine_memory(&m);
    const char       *tail = strstr(memory.limited_by, "memory.max of ...");
    assert_ptr_equal(tail, memory.limited_by);
    assert_in_range(strlen(memory.limited_by), 94, 95);
    tail += strlen("memory.max of ...");
    assert_int_equal((unsigned char)tail[0], 0xC3); /* a whole character */
    assert_string_equal(path + strlen(path) - strlen(tail), tail);
    temp_dir_remove(&m.dir);
}

static void test_resource_limits(void **state)
{
    (void)state;
    machine     m = machine_make();
    const char *head = "Limit                     Soft Limit           Hard Limit           Units\n";
    char        text[1024];
    put(&m, "proc/self/status", "Name:\tx\nVmPeak:\t  9999 kB\nVmSize:\t  1024 kB\nVmData:\t   512 kB\n");
    snprintf(text, sizeof text, "%sMax data size             unlimited            unlimited            bytes\n%s", head,
             "Max address space         unlimited            1048576              bytes\n");
    put(&m, "proc/self/limits", text);
    expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");

    snprintf(text, sizeof text, "%sMax data size             unlimited            unlimited            bytes\n%s", head,
             "Max address space         1073741824           unlimited            bytes\n");
    put(&m, "proc/self/limits", text);
    expect_left(&m, GIB - MIB, 16 * GIB, "RLIMIT_AS");

    snprintf(text, sizeof text, "%sMax data size             536870912            unlimited            bytes\n%s", head,
             "Max address space         1073741824           unlimited            bytes\n");
    put(&m, "proc/self/limits", text);
    expect_left(&m, 512 * MIB - 512 * KIB, 16 * GIB, "RLIMIT_DATA");
    temp_dir_remove(&m.dir);
}

/* ---- files that are not what they should be ------------------------------------------------------------------- */

/* Each alone leaves the machine as if the file were not there. */
static void test_malformed(void **state)
{
    (void)state;
    static const char *const bad_limits[] = {"",
                                             "\n",
                                             "-1\n",
                                             "maximal\n",
                                             "12x\n",
                                             " 5\n",
                                             "0x10\n",
                                             "\xFF\xFE\n",
                                             "99999999999999999999999999999999999999\n",
                                             "18446744073709551616\n"};
    static const char *const bad_groups[] = {"",      "\n",     ":\n",       "::\n",     "0:\n",
                                             "0::\n", "0::a\n", "garbage\n", "0:memory:"};
    static const char *const bad_mounts[] = {"",
                                             "\n",
                                             "- \n",
                                             "31 23 0:28 / /sys/fs/cgroup\n",
                                             "31 23 0:28 / /sys/fs/cgroup rw -\n",
                                             "31 23 0:28 / /sys/fs/cgroup rw - cgroup2\n",
                                             "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2\n",
                                             "31 23 0:28 / sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
                                             "31 23 0:28 / \\777\\0 rw - cgroup2 cgroup2 rw\n",
                                             "31 23 0:28 / /sys/fs/cgroupX rw - cgroup2 cgroup2 rw\n"};
    machine                  m = machine_v2("/a");
    for (size_t i = 0; i < sizeof bad_limits / sizeof *bad_limits; i++) {
        put(&m, "cgroup/a/memory.max", bad_limits[i]);
        expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");
    }
    put_number(&m, "cgroup/a/memory.max", GIB);
    for (size_t i = 0; i < sizeof bad_limits / sizeof *bad_limits; i++) {
        put(&m, "cgroup/a/memory.current", bad_limits[i]);
        expect_left(&m, GIB, GIB, "memory.max of /a");
    }
    for (size_t i = 0; i < sizeof bad_groups / sizeof *bad_groups; i++) {
        put(&m, "proc/self/cgroup", bad_groups[i]);
        expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");
    }
    put(&m, "proc/self/cgroup", "0::/a\n");
    for (size_t i = 0; i < sizeof bad_mounts / sizeof *bad_mounts; i++) {
        put(&m, "proc/self/mountinfo", bad_mounts[i]);
        expect_left(&m, 12 * GIB, 16 * GIB, "MemAvailable");
    }
    put(&m, "proc/self/mountinfo", mounts_v2);
    expect_left(&m, GIB, GIB, "memory.max of /a");
    temp_dir_remove(&m.dir);
}

static void test_malformed_meminfo(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "MemTotal:\n", "MemTotal: x kB\n", "MemTotal 0 kB\nMemAvailable: 5 kB\n",
                                      "MemTotal: -5 kB\nMemAvailable: -5 kB\n"};
    machine                  m = machine_make();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(&m, "proc/meminfo", bad[i]);
        nw_machine_memory memory = machine_memory(&m);
        assert_string_equal(memory.limited_by, "sysinfo");
        assert_in_range(memory.available, 1, memory.total);
    }
    put(&m, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 99999999999999999999999 kB\nMemFree: 1024 kB\n");
    expect_left(&m, MIB, GIB, "MemFree");
    put(&m, "proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1048577 kB\n");
    expect_left(&m, GIB, GIB, "MemAvailable");
    temp_dir_remove(&m.dir);
}

static uint64_t draw(uint64_t *seed)
{
    *seed += 0x9E3779B97F4A7C15; /* splitmix64 */
    uint64_t x = *seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* Any damage to any file: no crash, and what is reported stays within the machine. */
static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
    } files[] = {
        {"proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n"},
        {"proc/self/cgroup", "5:memory:/a/b\n4:cpu,cpuacct:/a/b\n0::/u/v\n"},
        {"proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
                                "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                "34 31 0:31 /a /sys/fs/cgroup/mem\\157ry rw - cgroup cgroup rw,memory\n"},
        {"proc/self/limits", "Max address space 9999999999 unlimited bytes\n"},
        {"proc/self/status", "VmSize:\t 1024 kB\nVmData:\t 512 kB\n"},
        {"cgroup/unified/u/v/cpu.max", "150000 100000\n"},
        {"cgroup/unified/u/memory.max", "8589934592\n"},
        {"cgroup/memory/b/memory.limit_in_bytes", "4294967296\n"},
        {"cgroup/memory/b/memory.usage_in_bytes", "1073741824\n"},
        {"cgroup/memory/b/memory.stat", "total_inactive_file 1048576\ntotal_dirty 4096\n"},
        {"cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"},
        {"cgroup/cpu/a/cpu.cfs_period_us", "100000\n"},
    };
    const size_t count = sizeof files / sizeof *files;
    machine      m = machine_make();
    uint64_t     seed = 20240611;
    for (size_t i = 0; i < count; i++)
        put(&m, files[i].name, files[i].text);
    expect_left(&m, 3 * GIB + MIB - 4096, 4 * GIB, "memory.limit_in_bytes of /a/b");
    assert_int_equal(nw_system_cpus(m.proc.text, m.cgroup.text), 1);
    for (unsigned run = 0; run < 1000; run++) {
        size_t at = draw(&seed) % count;
        char   text[512];
        size_t len = strlen(files[at].text);
        memcpy(text, files[at].text, len);
        switch (draw(&seed) % 3) {
        case 0: len = draw(&seed) % len; break;
        case 1: text[draw(&seed) % len] = (char)draw(&seed); break;
        default: text[draw(&seed) % len] = "\0\n/: -9,.\\"[draw(&seed) % 10]; break;
        }
        temp_dir_write(&m.dir, files[at].name, text, len);
        nw_machine_memory memory = machine_memory(&m);
        assert_true(*memory.limited_by != '\0');
        assert_true(nw_system_cpus(m.proc.text, m.cgroup.text) >= 1);
        put(&m, files[at].name, files[at].text);
    }
    temp_dir_remove(&m.dir);
}

/* ---- processors --------------------------------------------------------------------------------------------- */

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* CPUs in this process's affinity mask. */
static unsigned cpus_here(void)
{
    machine  m = machine_make();
    unsigned cpus = nw_system_cpus(m.proc.text, m.cgroup.text);
    temp_dir_remove(&m.dir);
    return cpus;
}

static void test_cpu_quota(void **state)
{
    (void)state;
    static const struct {
        const char *v2, *quota, *period;
        unsigned    cpus;
    } cases[] = {
        {"max 100000\n", "-1\n", "100000\n", UINT32_MAX},
        {"50000 100000\n", "50000\n", "100000\n", 1},
        {"100000 100000\n", "100000\n", "100000\n", 1},
        {"100001 100000\n", "100001\n", "100000\n", 2},
        {"1 1000000\n", "1\n", "1000000\n", 1},
        {"250000 100000\n", "250000\n", "100000\n", 3},
        {"50000 0\n", "50000\n", "0\n", UINT32_MAX},
        {"\n", "\n", "\n", UINT32_MAX},
        {"50000\n", "50000\n", "", UINT32_MAX},
        {"x 100000\n", "x\n", "100000\n", UINT32_MAX},
        {"0 100000\n", "0\n", "100000\n", 1},
        {"50000 max\n", "50000\n", "max\n", UINT32_MAX},
    };
    unsigned here = cpus_here();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        machine m = machine_v2("/a/b");
        put(&m, "cgroup/a/cpu.max", cases[i].v2);
        put(&m, "cgroup/a/b/cpu.max", "max 100000\n");
        assert_int_equal(nw_system_cpus(m.proc.text, m.cgroup.text), min_unsigned(here, cases[i].cpus));
        temp_dir_remove(&m.dir);
        m = machine_v1();
        put(&m, "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", cases[i].quota);
        put(&m, "cgroup/cpu,cpuacct/a/cpu.cfs_period_us", cases[i].period);
        assert_int_equal(nw_system_cpus(m.proc.text, m.cgroup.text), min_unsigned(here, cases[i].cpus));
        temp_dir_remove(&m.dir);
    }
}

/* ---- this machine --------------------------------------------------------------------------------------------- */

static void test_this_machine(void **state)
{
    (void)state;
    nw_machine_memory memory;
    nw_machine_memory_read(&memory);
    assert_in_range(memory.available, 1, memory.total);
    assert_true(memory.total <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) * 2);
    assert_true(*memory.limited_by != '\0');
    assert_in_range(nw_system_cpus("/proc", "/sys/fs/cgroup"), 1, (unsigned)sysconf(_SC_NPROCESSORS_CONF));
    double start = nw_system_seconds();
    usleep(20000);
    double passed = nw_system_seconds() - start;
    assert_true(passed >= 0.02 && passed < 60);
}

static int child_affinity(void *user)
{
    (void)user;
    cpu_set_t all, one;
    EXPECT(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    }
    EXPECT(nw_system_cpus("/nowhere", "/nowhere") == (unsigned)CPU_COUNT(&all));
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0);
    EXPECT(nw_system_cpus("/nowhere", "/nowhere") == 1);
    return 0;
}

static void test_affinity(void **state)
{
    (void)state;
    assert_int_equal(in_child(child_affinity, NULL), 0);
}

/* Whether a limit that is set is there: qemu-user takes those on memory and does nothing. */
static int child_limits_hold(void *user)
{
    struct rlimit limit = {.rlim_cur = 1024 * MIB, .rlim_max = RLIM_INFINITY};
    (void)user;
    return setrlimit(RLIMIT_DATA, &limit) == 0 && getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur == 1024 * MIB;
}

static int child_resource_limit(void *user)
{
    nw_machine_memory before, after;
    nw_machine_memory_read(&before);
    struct rlimit limit = {.rlim_cur = nw_system_status_bytes("/proc", user) + 64 * MIB, .rlim_max = RLIM_INFINITY};
    bool          data = strcmp(user, "VmData") == 0;
    EXPECT(before.available > 64 * MIB);
    EXPECT(setrlimit(data ? RLIMIT_DATA : RLIMIT_AS, &limit) == 0);
    nw_machine_memory_read(&after);
    EXPECT(strcmp(after.limited_by, data ? "RLIMIT_DATA" : "RLIMIT_AS") == 0);
    EXPECT(after.available <= 64 * MIB);
    EXPECT(after.available > 60 * MIB);
    /* What is left can be had, and no more. */
    size_t bytes = (size_t)after.available;
    EXPECT(mmap(NULL, bytes + MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    EXPECT(mmap(NULL, bytes - MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    return 0;
}

static void test_this_resource_limit(void **state)
{
    (void)state;
    if (CHILD_SANITIZED) {
        print_message("sanitizers map terabytes: no limit on the address space can be set\n");
        skip();
    }
    if (in_child(child_limits_hold, NULL) == 0) {
        print_message("limits on memory do not hold here\n");
        skip();
    }
    assert_int_equal(in_child(child_resource_limit, (char[]){"VmSize"}), 0);
    assert_int_equal(in_child(child_resource_limit, (char[]){"VmData"}), 0);
}

static void test_status(void **state)
{
    (void)state;
    machine m = machine_make();
    assert_int_equal(nw_system_status_bytes(m.proc.text, "VmHWM"), 0);
    put(&m, "proc/self/status", "Name:\tVmHWM\nVmHWMX:\t 7 kB\nVmHWM:\t    1234 kB\nVmRSS:\t99999999999999999999 kB\n");
    assert_int_equal(nw_system_status_bytes(m.proc.text, "VmHWM"), 1234 * KIB);
    assert_int_equal(nw_system_status_bytes(m.proc.text, "VmHW"), 0);
    assert_true(nw_system_status_bytes(m.proc.text, "VmRSS") >= (uint64_t)1 << 62);
    temp_dir_remove(&m.dir);
}

/* ---- real control groups -------------------------------------------------------------------------------------- */

static bool write_text(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return false;
    bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written;
}

/* Makes a group at the top of one of these hierarchies, with one setting; false: this machine does not let us. */
static bool real_group(char dir[256], const char *const hierarchies[2], const char *const files[2], const char *value,
                       size_t *ret_version)
{
    for (size_t i = 0; i < 2; i++) {
        snprintf(dir, 256, "%s/narrows-test-%ld", hierarchies[i], (long)getpid());
        if (mkdir(dir, 0755) != 0)
            continue;
        *ret_version = i;
        if (access(hierarchies[i], W_OK) == 0 && write_text(dir, files[i], value))
            return true;
        rmdir(dir);
    }
    return false;
}

static int child_in_memory_group(void *user)
{
    nw_machine_memory memory;
    const char       *dir = user;
    char              name[96], pid[24];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    EXPECT(write_text(dir, "cgroup.procs", pid));
    nw_machine_memory_read(&memory);
    EXPECT(memory.total == 512 * MIB);
    EXPECT(memory.available > 256 * MIB && memory.available <= 512 * MIB);
    snprintf(name, sizeof name, " of %s", strrchr(dir, '/'));
    EXPECT(strstr(memory.limited_by, name) != NULL);

    /* What is used is no longer available. Usage is counted in batches; sanitizers use more than what is asked for. */
    const size_t   bytes = CHILD_SANITIZED ? 32 * MIB : 200 * MIB;
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(p != MAP_FAILED);
    memset(p, 1, bytes);
    uint64_t before = memory.available;
    nw_machine_memory_read(&memory);
    EXPECT(memory.available <= before - bytes + 8 * MIB);
    EXPECT(CHILD_SANITIZED || memory.available >= before - bytes - 8 * MIB);
    return 0;
}

static void test_real_memory_group(void **state)
{
    (void)state;
    static const char *const hierarchies[2] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const files[2] = {"memory.limit_in_bytes", "memory.max"};
    char                     dir[256];
    size_t                   version;
    nw_machine_memory        memory;
    nw_machine_memory_read(&memory);
    if (memory.available < GIB || !real_group(dir, hierarchies, files, "536870912", &version)) {
        print_message("no memory control group can be made here (not root, or no controller)\n");
        skip();
    }
    int line = in_child(child_in_memory_group, dir);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(line, 0);
}

static int child_in_cpu_group(void *user)
{
    char pid[24];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    EXPECT(write_text(user, "cgroup.procs", pid));
    EXPECT(nw_system_cpus("/proc", "/sys/fs/cgroup") == 1);
    return 0;
}

static void test_real_cpu_group(void **state)
{
    (void)state;
    static const char *const hierarchies[2] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"};
    static const char *const files[2] = {"cpu.cfs_quota_us", "cpu.max"};
    char                     dir[256];
    size_t                   version;
    if (cpus_here() < 2 || !real_group(dir, hierarchies, files, "90000", &version)) {
        print_message("no cpu control group can be made here (not root, no controller, or one CPU)\n");
        skip();
    }
    int line = in_child(child_in_cpu_group, dir);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(line, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_groups),
        cmocka_unit_test(test_no_proc),
        cmocka_unit_test(test_v2_limit_in_the_middle),
        cmocka_unit_test(test_v2_page_cache),
        cmocka_unit_test(test_v1),
        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_mounts),
        cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_resource_limits),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_malformed_meminfo),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_cpu_quota),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_this_resource_limit),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_real_memory_group),
        cmocka_unit_test(test_real_cpu_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

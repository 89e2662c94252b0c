/* Opening and reading a model's files: what is refused and how, alignment, the aligned superset, changes underneath. */
#define _DEFAULT_SOURCE
#include "loader/file.h"
#include "loader/io_fake.h"
#include "temp_dir.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#define FILE_BYTES ((size_t)(1 << 20) + 4321)

static temp_dir       dir;
static nw_memory      mem;
static unsigned char *content;

static int setup(void **state)
{
    (void)state;
    dir = temp_dir_make();
    nw_memory_init(&mem, UINT64_MAX, NULL);
    content = malloc(FILE_BYTES);
    NW_CHECK(content != NULL);
    uint32_t x = 12345;
    for (size_t i = 0; i < FILE_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        content[i] = (unsigned char)(x >> 24);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(content);
    temp_dir_remove(&dir);
    return mem.live == 0 ? 0 : -1;
}

static nw_io *threads_open(void)
{
    nw_io        *io = NULL;
    nw_io_options options = {.choice = NW_IO_THREADS, .depth = 2};
    nw_error      err = {0};
    if (nw_io_open(&mem, &options, &io, &err) != NW_OK)
        fail_msg("%s", err.msg);
    return io;
}

/* The file must be refused with this code and these words, and *file left alone. */
static void expect_refusal(const char *path, nw_code code, const char *words)
{
    nw_file  file = {.fd = -7, .size = 99};
    nw_error err = {0};
    assert_int_equal(nw_file_open(path, &file, &err), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.msg, path));
    if (strstr(err.msg, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, words);
    assert_int_equal(file.fd, -7);
    assert_int_equal(file.size, 99);
    /* The same from the other door. */
    nw_io *io = threads_open();
    char  *data = NULL;
    size_t bytes = 0;
    assert_int_equal(nw_file_read_whole(&mem, NW_TAG_INDEX, io, path, 1 << 20, &data, &bytes, NULL, &err), code);
    assert_null(data);
    nw_io_close(io);
    assert_int_equal(mem.live, 0);
}

static void refuses_what_is_not_a_file(void **state)
{
    (void)state;
    temp_path path = temp_dir_path(&dir, "missing");
    expect_refusal(path.text, NW_E_IO, "No such file");
    expect_refusal(dir.path, NW_E_FORMAT, "directory");
    expect_refusal("/dev/zero", NW_E_FORMAT, "device");
    path = temp_dir_path(&dir, "pipe");
    assert_int_equal(mkfifo(path.text, 0600), 0);
    expect_refusal(path.text, NW_E_FORMAT, "pipe"); /* and does not hang */
    temp_path link = temp_dir_path(&dir, "link-to-pipe");
    assert_int_equal(symlink(path.text, link.text), 0);
    expect_refusal(link.text, NW_E_FORMAT, "pipe");
    link = temp_dir_path(&dir, "link-to-itself");
    assert_int_equal(symlink(link.text, link.text), 0);
    expect_refusal(link.text, NW_E_IO, "symbolic links");
    path = temp_dir_path(&dir, "sock");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path.text) < sizeof address.sun_path) {
        snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path.text);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
        expect_refusal(path.text, NW_E_FORMAT, "socket");
        close(fd);
    }
    path = temp_dir_write(&dir, "empty", "", 0);
    expect_refusal(path.text, NW_E_FORMAT, "empty");
    expect_refusal("/proc/self/status", NW_E_FORMAT, "empty");
}

static void refuses_unreadable(void **state)
{
    (void)state;
    if (geteuid() == 0) {
        print_message("root may read everything\n");
        skip();
    }
    temp_path path = temp_dir_write(&dir, "secret", "x", 1);
    assert_int_equal(chmod(path.text, 0), 0);
    expect_refusal(path.text, NW_E_IO, "ermission");
}

static void refuses_downloads_that_are_none(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3132668808\n";
    temp_path         path = temp_dir_write(&dir, "model.safetensors", pointer, sizeof pointer - 1);
    expect_refusal(path.text, NW_E_FORMAT, "git-lfs");
    path = temp_dir_write(&dir, "blob.incomplete", "abc", 3);
    expect_refusal(path.text, NW_E_FORMAT, "unfinished download");
    temp_path link = temp_dir_path(&dir, "weights");
    assert_int_equal(symlink("blob.incomplete", link.text), 0);
    expect_refusal(link.text, NW_E_FORMAT, "unfinished download");

    /* Nearly those, and fine. */
    static const char *const names[] = {"incomplete", "a.incomplete.bin", ".incomplet"};
    for (size_t i = 0; i < 3; i++) {
        path = temp_dir_write(&dir, names[i], "version https://git-lf", 22);
        nw_file file;
        assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
        nw_file_close(&file);
    }
}

static void opens_through_links_with_sane_alignment(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "content", content, FILE_BYTES);
    temp_path link = temp_dir_path(&dir, "to-content");
    assert_int_equal(symlink("content", link.text), 0);
    nw_file  direct, linked;
    nw_error err = {0};
    assert_int_equal(nw_file_open(path.text, &direct, &err), NW_OK);
    assert_int_equal(nw_file_open(link.text, &linked, &err), NW_OK);
    assert_int_equal(direct.size, FILE_BYTES);
    assert_int_equal(linked.inode, direct.inode);
    assert_int_equal(linked.device, direct.device);
    assert_int_equal(linked.mtime_ns, direct.mtime_ns);
    assert_true(direct.mtime_ns > 0);
    assert_true(direct.align >= 512 && direct.align <= 65536);
    assert_int_equal(direct.align & (direct.align - 1), 0);
    int flags = fcntl(direct.fd, F_GETFL);
    assert_int_equal(flags & O_NONBLOCK, 0);
    assert_true((fcntl(direct.fd, F_GETFD) & FD_CLOEXEC) != 0);
    nw_file_close(&direct);
    assert_int_equal(direct.fd, -1);
    nw_file_close(&direct);
    nw_file_close(&linked);
}

/* Files in memory take O_DIRECT and ignore it (newer kernels) or refuse it (older): both must come out as not direct.
 */
static void file_in_memory_is_not_direct(void **state)
{
    (void)state;
    temp_dir memory = {.path = "/dev/shm/narrows-test-XXXXXX"};
    if (mkdtemp(memory.path) == NULL) {
        print_message("no /dev/shm here\n");
        skip();
    }
    temp_path path = temp_dir_write(&memory, "content", content, FILE_BYTES);
    nw_file   file;
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    assert_false(file.direct);
    nw_io         *io = threads_open();
    unsigned char *bytes = malloc(FILE_BYTES);
    uint64_t       read_bytes = 0;
    assert_int_equal(nw_file_read(&mem, io, &file, path.text, 5, bytes, FILE_BYTES - 5, &read_bytes, NULL), NW_OK);
    assert_memory_equal(bytes, content + 5, FILE_BYTES - 5);
    free(bytes);
    nw_io_close(io);
    nw_file_close(&file);
    temp_dir_remove(&memory);
}

static void extent_covers_and_no_more(void **state)
{
    (void)state;
    static const uint32_t aligns[] = {512, 4096, 65536};
    uint64_t              seed = 99;
    for (size_t a = 0; a < 3; a++) {
        nw_file file = {.fd = 0, .size = 1000003, .align = aligns[a]};
        for (int i = 0; i < 3000; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            uint64_t  offset = i < 100 ? file.size - 1 - (uint64_t)i : (seed >> 20) % file.size;
            uint64_t  bytes = 1 + (seed >> 40) % (file.size - offset);
            nw_extent e = nw_file_extent(&file, offset, bytes);
            assert_int_equal(e.offset % aligns[a], 0);
            assert_int_equal(e.bytes % aligns[a], 0);
            assert_true(e.offset <= offset && offset - e.offset < aligns[a]);
            assert_int_equal(e.skip, offset - e.offset);
            assert_int_equal(e.bytes_needed, e.skip + bytes);
            assert_true(e.bytes >= e.bytes_needed && e.bytes - e.bytes_needed < aligns[a]);
            assert_int_equal(e.bytes_counted, nw_min_u64(e.bytes, file.size - e.offset));
        }
    }
    nw_file   huge = {.fd = 0, .size = INT64_MAX, .align = 4096};
    nw_extent e = nw_file_extent(&huge, (uint64_t)INT64_MAX - 1, 1);
    assert_int_equal(e.offset, (uint64_t)INT64_MAX - 4095);
    assert_int_equal(e.bytes, 4096);
}

static void reads_any_range(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset;
        size_t   bytes;
    } ranges[] = {{0, 1},         {0, FILE_BYTES}, {1, FILE_BYTES - 1},   {FILE_BYTES - 1, 1},       {4095, 2},
                  {511, 262144},  {4096, 262144},  {100, 262144 * 2 + 1}, {FILE_BYTES - 5000, 5000}, {777, 0},
                  {FILE_BYTES, 0}};
    temp_path      path = temp_dir_write(&dir, "content", content, FILE_BYTES);
    nw_file        file;
    unsigned char *bytes = malloc(FILE_BYTES + 2);
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    for (uint64_t seed = 0; seed < 8; seed++) {
        nw_io_fake fake = {.seed = seed, .short_percent = seed == 0 ? 0 : 60, .retry_percent = 20};
        nw_io     *io = NULL;
        assert_int_equal(nw_io_fake_open(&mem, &fake, 1, &io, NULL), NW_OK);
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            size_t   n = ranges[i].bytes;
            uint64_t read_bytes = 1000;
            uint64_t live = mem.live;
            bytes[0] = bytes[n + 1] = 0x5A; /* to an odd address, with guards */
            nw_error err = {0};
            if (nw_file_read(&mem, io, &file, path.text, ranges[i].offset, bytes + 1, n, &read_bytes, &err) != NW_OK)
                fail_msg("%s", err.msg);
            assert_memory_equal(bytes + 1, content + ranges[i].offset, n);
            assert_int_equal(bytes[0], 0x5A);
            assert_int_equal(bytes[n + 1], 0x5A);
            assert_int_equal(mem.live, live);
            /* Aligned pieces follow one another without overlap, so the sum is the one extent's. */
            uint64_t counted = n > 0 ? nw_file_extent(&file, ranges[i].offset, n).bytes_counted : 0;
            assert_int_equal(read_bytes - 1000, counted);
        }
        nw_io_close(io);
    }
    assert_true(mem.peak <= (512u << 10)); /* one buffer of 256 KiB and the device */
    free(bytes);
    nw_file_close(&file);
}

static void refuses_reads_past_the_end(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "short", content, 5000);
    nw_file   file;
    nw_io    *io = threads_open();
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    static const uint64_t offsets[] = {4999, 5000, 5001, UINT64_MAX, UINT64_MAX - 1};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        unsigned char bytes[2] = {1, 2};
        uint64_t      read_bytes = 0;
        nw_error      err = {0};
        assert_int_equal(nw_file_read(&mem, io, &file, path.text, offsets[i], bytes, 2, &read_bytes, &err),
                         NW_E_FORMAT);
        assert_non_null(strstr(err.msg, "ends before"));
        assert_non_null(strstr(err.msg, path.text));
        assert_int_equal(read_bytes, 0);
        assert_int_equal(bytes[0], 1);
    }
    /* Cut short behind our back: what was announced at open is not there. */
    assert_int_equal(truncate(path.text, 4000), 0);
    unsigned char bytes[2000];
    nw_error      err = {0};
    assert_int_equal(nw_file_read(&mem, io, &file, path.text, 2500, bytes, 2000, NULL, &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "ends before"));
    nw_io_close(io);
    nw_file_close(&file);
}

static void reads_whole_small_files(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "whole", content, 70001);
    nw_io    *io = threads_open();
    uint64_t  live = mem.live;
    char     *data = NULL;
    size_t    bytes = 0;
    uint64_t  read_bytes = 0;
    nw_error  err = {0};
    nw_tag    tag = NW_TAG_TOKENIZER;
    assert_int_equal(nw_file_read_whole(&mem, tag, io, path.text, 70000, &data, &bytes, &read_bytes, &err),
                     NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "70001 bytes"));
    assert_int_equal(read_bytes, 0);
    assert_int_equal(nw_file_read_whole(&mem, tag, io, path.text, 70001, &data, &bytes, &read_bytes, &err), NW_OK);
    assert_int_equal(bytes, 70001);
    assert_memory_equal(data, content, 70001);
    assert_int_equal(data[70001], 0);
    assert_int_equal(read_bytes, 70001);
    assert_int_equal(mem.tag_live[tag], 70002);
    nw_memory_free(&mem, tag, data, 1, bytes + 1);
    assert_int_equal(mem.live, live);
    nw_io_close(io);
}

/* Any allocation and any read may fail; nothing is left behind, outputs stay as they were. */
static void whole_file_survives_every_fault(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "faulty", content, 600000);
    unsigned  memory_faults = 0, read_faults = 0;
    for (uint64_t at = 1;; at++) {
        nw_memory_fault fault = {.fail_at = at};
        nw_io_fake      fake = {.seed = at, .fail_at = at, .fail_errno = EIO};
        nw_memory       account;
        char           *data = NULL;
        size_t          bytes = 0;
        bool            done = true;
        for (int what = 0; what < 2; what++) { /* allocations, then reads */
            nw_io *io = NULL;
            nw_memory_init(&account, UINT64_MAX, what == 0 ? &fault : NULL);
            fake.fail_at = what == 0 ? 0 : at;
            nw_error err = {0};
            nw_code  rc = nw_io_fake_open(&account, &fake, 1, &io, &err);
            if (rc == NW_OK)
                rc = nw_file_read_whole(&account, NW_TAG_INDEX, io, path.text, 1 << 20, &data, &bytes, NULL, &err);
            nw_io_close(io);
            if (what == 0 ? fault.fired : fake.fired) {
                assert_int_equal(rc, what == 0 ? NW_E_MEMORY : NW_E_IO);
                assert_null(data);
                assert_int_equal(bytes, 0);
                done = false;
                memory_faults += what == 0;
                read_faults += what == 1;
            } else {
                assert_int_equal(rc, NW_OK);
                assert_memory_equal(data, content, 600000);
                nw_memory_free(&account, NW_TAG_INDEX, data, 1, bytes + 1);
                data = NULL;
                bytes = 0;
            }
            assert_int_equal(account.live, 0);
        }
        if (done)
            break;
    }
    assert_true(memory_faults >= 5);
    assert_int_equal(read_faults, 3); /* 600000 bytes through 256 KiB */
}

static void expect_changed(const nw_file *file, const char *path, const char *words)
{
    nw_error err = {0};
    assert_int_equal(nw_file_unchanged(file, path, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, path));
    if (strstr(err.msg, words) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, words);
}

static void notices_changes_underneath(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "watched", content, 9000);
    nw_file   file;
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    assert_int_equal(nw_file_unchanged(&file, path.text, NULL), NW_OK);

    assert_int_equal(truncate(path.text, 8999), 0);
    expect_changed(&file, path.text, "cut short");
    assert_int_equal(truncate(path.text, 9001), 0);
    expect_changed(&file, path.text, "changed");
    assert_int_equal(truncate(path.text, 9000), 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000, .tv_nsec = 5}}; /* same size, another time */
    assert_int_equal(utimensat(AT_FDCWD, path.text, times, 0), 0);
    expect_changed(&file, path.text, "changed");
    nw_file_close(&file);

    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    assert_int_equal(file.mtime_ns, 1000000000005);
    temp_path other = temp_dir_write(&dir, "other", content, 9000);
    assert_int_equal(utimensat(AT_FDCWD, other.text, times, 0), 0);
    assert_int_equal(rename(other.text, path.text), 0);
    expect_changed(&file, path.text, "replaced");
    assert_int_equal(unlink(path.text), 0);
    expect_changed(&file, path.text, "removed");
    nw_file_close(&file);
}

/* Pages of the file that are in the page cache. */
static size_t cached_pages(const char *path, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t count = (bytes + page - 1) / page, cached = 0;
    int    fd = open(path, O_RDONLY | O_CLOEXEC);
    void  *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    unsigned char *in = malloc(count);
    assert_int_equal(mincore(map, bytes, in), 0);
    for (size_t i = 0; i < count; i++)
        cached += in[i] & 1u;
    free(in);
    munmap(map, bytes);
    close(fd);
    return cached;
}

/* Weights leave nothing in the page cache: never read into it directly, dropped after a buffered read. */
static void reading_leaves_no_cache(void **state)
{
    (void)state;
    temp_path path = temp_dir_write(&dir, "cold", content, FILE_BYTES);
    int       fd = open(path.text, O_RDONLY | O_CLOEXEC);
    assert_int_equal(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (cached_pages(path.text, FILE_BYTES) != 0) {
        print_message("this file system does not drop pages\n");
        skip();
    }
    nw_file        file;
    nw_io         *io = threads_open();
    unsigned char *bytes = malloc(FILE_BYTES);
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    for (int buffered = 0; buffered < 2; buffered++) {
        if (buffered) {
            assert_int_equal(fcntl(file.fd, F_SETFL, 0), 0);
            file.direct = false;
        }
        assert_int_equal(nw_file_read(&mem, io, &file, path.text, 0, bytes, FILE_BYTES, NULL, NULL), NW_OK);
        assert_memory_equal(bytes, content, FILE_BYTES);
        assert_int_equal(cached_pages(path.text, FILE_BYTES), 0);
    }
    /* nw_file_drop does the work in the second round: without it the pages are there, and a direct file is left alone.
     */
    assert_int_equal(pread(file.fd, bytes, FILE_BYTES, 0), FILE_BYTES);
    assert_true(cached_pages(path.text, FILE_BYTES) > 0);
    file.direct = true;
    nw_file_drop(&file, 0, FILE_BYTES);
    assert_true(cached_pages(path.text, FILE_BYTES) > 0);
    file.direct = false;
    nw_file_drop(&file, 0, 0);
    assert_true(cached_pages(path.text, FILE_BYTES) > 0);
    nw_file_drop(&file, 0, FILE_BYTES);
    assert_int_equal(cached_pages(path.text, FILE_BYTES), 0);
    free(bytes);
    nw_file_close(&file);
    nw_io_close(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_not_a_file),
        cmocka_unit_test(refuses_unreadable),
        cmocka_unit_test(refuses_downloads_that_are_none),
        cmocka_unit_test(opens_through_links_with_sane_alignment),
        cmocka_unit_test(file_in_memory_is_not_direct),
        cmocka_unit_test(extent_covers_and_no_more),
        cmocka_unit_test(reads_any_range),
        cmocka_unit_test(refuses_reads_past_the_end),
        cmocka_unit_test(reads_whole_small_files),
        cmocka_unit_test(whole_file_survives_every_fault),
        cmocka_unit_test(notices_changes_underneath),
        cmocka_unit_test(reading_leaves_no_cache),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

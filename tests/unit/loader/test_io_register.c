/* Files and memory that a device is told of: what is registered and what is not, side by side in one ring, with one
 * result. Whether the kernel registered anything is its own affair (RLIMIT_MEMLOCK, its age); where it says that it
 * did, some checks show that it is used. Refusals by a filter are in test_io_refused.c. */
#define _DEFAULT_SOURCE
#include "loader/file.h"
#include "loader/io.h"
#include "loader/io_fake.h"
#include "temp_dir.h"
#include "uring_here.h"

#include <errno.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

typedef enum { DEVICE_URING, DEVICE_THREADS, DEVICE_FAKE } device_kind;
typedef enum { FILE_DIRECT, FILE_BUFFERED, FILE_STRANGER, FILE_COUNT } file_kind;

/* Buffers of one unit each; those from FIXED_FIRST on, FIXED_COUNT, are registered. */
enum { UNIT = 16384, DEPTH = 12, FIXED_FIRST = 4, FIXED_COUNT = 4, FILE_BYTES = 40 * UNIT + 777 };

typedef struct {
    temp_dir       dir;
    nw_memory      mem;
    nw_file        direct;          /* past the page cache, where its file system can */
    int            fds[FILE_COUNT]; /* that of `direct` first; the stranger is not registered */
    unsigned char *bytes;           /* [DEPTH, UNIT] */
    bool           uring;
    unsigned       lines;
} fixture;

static fixture fx;

static unsigned char content_at(int file, uint64_t at)
{
    uint64_t z = (at + 1) * 0x9e3779b97f4a7c15u + (uint64_t)file * 0xbf58476d1ce4e5b9u;
    return (unsigned char)(z >> 32 ^ z >> 56);
}

static void expect_content(int file, const unsigned char *bytes, uint64_t offset, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != content_at(file, offset + i))
            fail_msg("byte %zu of the read at %llu of file %d is wrong", i, (unsigned long long)offset, file);
    }
}

static int setup(void **state)
{
    (void)state;
    static const char *const names[] = {"direct", "buffered", "stranger"};
    fx.dir = temp_dir_make();
    nw_memory_init(&fx.mem, UINT64_MAX, NULL);
    unsigned char *bytes = malloc(FILE_BYTES);
    NW_CHECK(bytes != NULL);
    for (int file = 0; file < FILE_COUNT; file++) {
        for (size_t i = 0; i < FILE_BYTES; i++)
            bytes[i] = content_at(file, i);
        temp_path path = temp_dir_write(&fx.dir, names[file], bytes, FILE_BYTES);
        if (file == FILE_DIRECT)
            NW_CHECK(nw_file_open(path.text, &fx.direct, NULL) == NW_OK);
        fx.fds[file] = file == FILE_DIRECT ? fx.direct.fd : open(path.text, O_RDWR | O_CLOEXEC);
        NW_CHECK(fx.fds[file] >= 0);
    }
    free(bytes);
    fx.bytes = mmap(NULL, DEPTH * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NW_CHECK(fx.bytes != MAP_FAILED);
    fx.uring = uring_here(&fx.mem);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nw_file_close(&fx.direct);
    close(fx.fds[FILE_BUFFERED]);
    close(fx.fds[FILE_STRANGER]);
    munmap(fx.bytes, DEPTH * UNIT);
    temp_dir_remove(&fx.dir);
    return fx.mem.live == 0 ? 0 : -1;
}

static void count_line(void *user, nw_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
    fx.lines++;
}

static const nw_log log_lines = {.fn = count_line, .level = NW_LOG_DEBUG};

static nw_io *open_registered(device_kind kind, nw_io_fake *fake)
{
    nw_io *io = NULL;
    fx.lines = 0;
    if (kind == DEVICE_URING && !fx.uring)
        skip();
    nw_io_options options = {.choice = kind == DEVICE_URING ? NW_IO_URING : NW_IO_THREADS,
                             .depth = DEPTH,
                             .register_bytes = FIXED_COUNT * UNIT,
                             .log = &log_lines};
    nw_code       rc = kind == DEVICE_FAKE ? nw_io_fake_open(&fx.mem, fake, DEPTH, &io, NULL)
                                           : nw_io_open(&fx.mem, &options, &io, NULL);
    assert_int_equal(rc, NW_OK);
    nw_io_register(io, fx.fds, FILE_STRANGER, fx.bytes + FIXED_FIRST * UNIT, FIXED_COUNT * UNIT);
    assert_true(fx.lines <= (kind == DEVICE_URING ? 1u : 0u));
    return io;
}

static int run_one(nw_io *io, nw_io_op op)
{
    nw_io_done done = {0};
    assert_true(nw_io_submit(io, &op));
    assert_int_equal(nw_io_reap(io, &done, 1, true), 1);
    return done.os_errno;
}

static nw_io_op read_op(int file, uint64_t offset, unsigned char *buf, size_t bytes, size_t needed)
{
    return (nw_io_op){
        .kind = NW_IO_READ, .fd = fx.fds[file], .offset = offset, .buf = buf, .bytes = bytes, .bytes_needed = needed};
}

/* A read into each buffer, of all files by turns: all in flight together, checked when all have come. With `shift` the
 * buffers lie that far behind the units, so that some begin or end in the registered memory and are not within it. */
static void read_round(nw_io *io, size_t round, size_t shift)
{
    size_t buffers = shift == 0 ? DEPTH : DEPTH - 1;
    memset(fx.bytes, 0x11, DEPTH * UNIT);
    for (size_t i = 0; i < buffers; i++) {
        nw_io_op op =
            read_op((int)((i + round) % FILE_COUNT), (i * 3 + round) * UNIT, fx.bytes + i * UNIT + shift, UNIT, UNIT);
        assert_true(nw_io_submit(io, &op));
    }
    while (nw_io_in_flight(io) > 0) {
        nw_io_done done[DEPTH];
        size_t     got = nw_io_reap(io, done, DEPTH, true);
        for (size_t i = 0; i < got; i++)
            assert_int_equal(done[i].os_errno, 0);
    }
    for (size_t i = 0; i < buffers; i++)
        expect_content((int)((i + round) % FILE_COUNT), fx.bytes + i * UNIT + shift, (i * 3 + round) * UNIT, UNIT);
}

/* The file's last bytes, into registered memory and into the last of it and some more. */
static void read_the_end(nw_io *io, int file)
{
    const size_t   left = FILE_BYTES % UNIT;
    const uint64_t last = FILE_BYTES - left;
    for (size_t unit = FIXED_FIRST; unit <= FIXED_FIRST + FIXED_COUNT; unit++) {
        unsigned char *buf = fx.bytes + unit * UNIT;
        assert_int_equal(run_one(io, read_op(file, last, buf, UNIT, left)), 0);
        expect_content(file, buf, last, left);
        assert_int_equal(run_one(io, read_op(file, last - UNIT, buf, 2 * UNIT, UNIT + left)), 0);
        expect_content(file, buf, last - UNIT, UNIT + left);
        assert_int_equal(run_one(io, read_op(file, last - UNIT, buf, 2 * UNIT, UNIT + left + 1)), NW_IO_EOF);
        assert_int_equal(run_one(io, read_op(file, last + UNIT, buf, UNIT, 1)), NW_IO_EOF);
    }
}

static void write_and_read(nw_io *io, int file)
{
    for (size_t unit = FIXED_FIRST - 1; unit <= FIXED_FIRST; unit++) { /* from other memory, and from registered */
        unsigned char *buf = fx.bytes + unit * UNIT, got[100];
        for (size_t i = 0; i < UNIT; i++)
            buf[i] = (unsigned char)~content_at(file, UNIT + i);
        nw_io_op op = {.kind = NW_IO_WRITE, .fd = fx.fds[file], .offset = UNIT, .buf = buf, .bytes = UNIT};
        assert_int_equal(run_one(io, op), 0);
        assert_int_equal(pread(fx.fds[file], got, sizeof got, UNIT), sizeof got);
        assert_memory_equal(got, buf, sizeof got);
        for (size_t i = 0; i < UNIT; i++)
            buf[i] = content_at(file, UNIT + i);
        assert_int_equal(run_one(io, op), 0);
        assert_int_equal(run_one(io, (nw_io_op){.kind = NW_IO_FSYNC, .fd = fx.fds[file]}), 0);
        assert_int_equal(run_one(io, read_op(file, UNIT, buf, UNIT, UNIT)), 0);
        expect_content(file, buf, UNIT, UNIT);
    }
}

static void exercise(nw_io *io)
{
    for (size_t round = 0; round < 6; round++)
        read_round(io, round, round % 2 == 0 ? 0 : UNIT / 2);
    for (int file = 0; file < FILE_COUNT; file++)
        read_the_end(io, file);
    write_and_read(io, FILE_BUFFERED);
    write_and_read(io, FILE_STRANGER);
    assert_int_equal(run_one(io, (nw_io_op){.kind = NW_IO_FSYNC, .fd = -1}), EBADF);
}

static void all_reads_are_the_same_uring(void **state)
{
    (void)state;
    nw_io *io = open_registered(DEVICE_URING, NULL);
    exercise(io);
    nw_io_close(io);
}

static void all_reads_are_the_same_threads(void **state)
{
    (void)state;
    nw_io *io = open_registered(DEVICE_THREADS, NULL);
    exercise(io);
    nw_io_close(io);
}

static void all_reads_are_the_same_fake(void **state)
{
    (void)state;
    nw_io_fake fake = {.seed = 7, .short_percent = 50, .retry_percent = 20, .delay_max = 3};
    nw_io     *io = open_registered(DEVICE_FAKE, &fake);
    exercise(io);
    nw_io_close(io);
}

/* Closing waits for what is in flight; then neither file nor memory is held. */
static void close_with_reads_in_flight(void **state)
{
    (void)state;
    nw_io         *io = open_registered(DEVICE_URING, NULL);
    unsigned char *buf = fx.bytes + FIXED_FIRST * UNIT;
    memset(buf, 0x11, FIXED_COUNT * UNIT);
    for (size_t i = 0; i < FIXED_COUNT; i++) {
        nw_io_op op = read_op(FILE_DIRECT, i * UNIT, buf + i * UNIT, UNIT, UNIT);
        assert_true(nw_io_submit(io, &op));
    }
    nw_io_close(io);
    expect_content(FILE_DIRECT, buf, 0, FIXED_COUNT * UNIT);
}

/* A pipe's end that is registered is open for as long as the device is, and no longer. */
static void registered_file_is_held_until_close(void **state)
{
    (void)state;
    int           ends[2];
    unsigned char byte;
    nw_io        *io = NULL;
    nw_io_options options = {.choice = NW_IO_URING, .depth = 1, .register_bytes = UNIT, .log = &log_lines};
    if (!fx.uring)
        skip();
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(nw_io_open(&fx.mem, &options, &io, NULL), NW_OK);
    fx.lines = 0;
    nw_io_register(io, &ends[1], 1, fx.bytes, UNIT);
    close(ends[1]);
    ssize_t got = read(ends[0], &byte, 1);
    if (fx.lines == 0) { /* registered: the end is open still */
        assert_int_equal(got, -1);
        assert_int_equal(errno, EAGAIN);
    }
    nw_io_close(io);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

/* Pages that are taken away behind a device's back: the kernel fills those that it was given. No caller may do this; it
 * shows that reads within the memory go to the registered pages, and others do not. */
static void registered_memory_is_used(void **state)
{
    (void)state;
    nw_io *io = open_registered(DEVICE_URING, NULL);
    if (fx.lines > 0 || UNIT % sysconf(_SC_PAGESIZE) != 0) {
        nw_io_close(io);
        print_message("this kernel registers nothing here, or has larger pages\n");
        skip();
    }
    for (size_t unit = FIXED_FIRST - 1; unit <= FIXED_FIRST + FIXED_COUNT; unit++) {
        bool           registered = unit >= FIXED_FIRST && unit < FIXED_FIRST + FIXED_COUNT;
        unsigned char *buf = fx.bytes + unit * UNIT, zeros[100] = {0};
        assert_int_equal(madvise(buf, UNIT, MADV_DONTNEED), 0);
        assert_int_equal(run_one(io, read_op(FILE_STRANGER, 0, buf, UNIT, UNIT)), 0);
        if (registered)
            assert_memory_equal(buf, zeros, sizeof zeros);
        else
            expect_content(FILE_STRANGER, buf, 0, UNIT);
    }
    nw_io_close(io);
}

/* In a process of its own: enough memory may be locked for a ring, where that counts, and not for what is registered.
 */
static int read_with_little_locked_memory(void)
{
    struct rlimit                   little = {FIXED_COUNT * UNIT / 2, FIXED_COUNT * UNIT / 2};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct   caps[2];
    nw_io                          *io = NULL;
    unsigned char                  *buf = fx.bytes + FIXED_FIRST * UNIT;
    nw_io_options                   options = {.depth = 1, .register_bytes = FIXED_COUNT * UNIT, .log = &log_lines};
    if (syscall(SYS_capget, &header, caps) != 0)
        return 1;
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, caps) != 0 || setrlimit(RLIMIT_MEMLOCK, &little) != 0)
        return 2;
    fx.lines = 0; /* where the ring is refused, threads read */
    if (nw_io_open(&fx.mem, &options, &io, NULL) != NW_OK)
        return 3;
    nw_io_register(io, fx.fds, FILE_STRANGER, buf, FIXED_COUNT * UNIT);
    if (fx.lines > 1)
        return 4;
    for (int file = 0; file < FILE_COUNT; file++) {
        if (run_one(io, read_op(file, UNIT, buf, UNIT, UNIT)) != 0)
            return 5;
        for (size_t i = 0; i < UNIT; i++) {
            if (buf[i] != content_at(file, UNIT + i))
                return 6;
        }
    }
    nw_io_close(io);
    return fx.mem.live == 0 ? 0 : 7;
}

static void refused_by_the_limit_of_locked_memory(void **state)
{
    (void)state;
    int   status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(read_with_little_locked_memory());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What the kernel keeps is charged when the device opens: a session allocates nothing later. */
static void charged_at_open(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 1 << 20, 17 << 20, 1 << 30};
    if (!fx.uring)
        skip();
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        nw_io_options options = {.choice = NW_IO_URING, .depth = 8, .register_bytes = sizes[i]};
        nw_memory     mem;
        nw_io        *io = NULL;
        nw_memory_init(&mem, nw_io_declared_bytes(&options), NULL);
        assert_int_equal(nw_io_open(&mem, &options, &io, NULL), NW_OK);
        /* 16 bytes a page, of 64 KiB at most. */
        assert_true(i == 0 || mem.live >= before + (sizes[i] - sizes[i - 1]) / 65536 * 16);
        before = mem.live;
        nw_memory_seal(&mem);
        nw_io_register(io, fx.fds, FILE_STRANGER, fx.bytes, nw_min_size(sizes[i], DEPTH * UNIT));
        nw_io_close(io);
        assert_int_equal(mem.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reads_are_the_same_uring),          cmocka_unit_test(all_reads_are_the_same_threads),
        cmocka_unit_test(all_reads_are_the_same_fake),           cmocka_unit_test(close_with_reads_in_flight),
        cmocka_unit_test(registered_file_is_held_until_close),   cmocka_unit_test(registered_memory_is_used),
        cmocka_unit_test(refused_by_the_limit_of_locked_memory), cmocka_unit_test(charged_at_open),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

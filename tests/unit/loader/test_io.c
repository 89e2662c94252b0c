/* The I/O devices. One battery runs on all three; what only one can show (drawn faults) is apart; a kernel that refuses
 * io_uring has a file of its own (test_io_refused.c). Every expectation is computed from the position in the file, so a
 * buffer that was not filled, or filled from elsewhere, shows. */
#include "../../../loader/io_backend.h"
#include "loader/file.h"
#include "loader/io.h"
#include "loader/io_fake.h"
#include "temp_dir.h"
#include "uring_here.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FILE_BYTES ((size_t)(3 << 20) + 777)
#define BUF_ALIGN ((size_t)4096)
#define POISON 0xA5

typedef enum { DEVICE_URING, DEVICE_THREADS, DEVICE_FAKE } device_kind;

typedef struct {
    temp_dir  dir;
    temp_path path;
    nw_memory mem;
    nw_file   file;
    bool      uring;
} fixture;

static fixture fx;

/* A generator for the tests' own choices (xorshift64*). */
static uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

static uint64_t random_below(uint64_t *state, uint64_t n)
{
    return (random_next(state) >> 11) % n;
}

/* The byte that the test file has at `at`. */
static unsigned char content_at(uint64_t at)
{
    uint64_t z = (at / 8 + 1) * 0x9e3779b97f4a7c15u;
    z ^= z >> 29;
    z *= 0xbf58476d1ce4e5b9u;
    return (unsigned char)(z >> (at % 8 * 8));
}

static void expect_content(const unsigned char *bytes, uint64_t offset, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != content_at(offset + i))
            fail_msg("byte %zu of the read at %llu is %02x, not %02x", i, (unsigned long long)offset, bytes[i],
                     content_at(offset + i));
    }
}

static int setup(void **state)
{
    (void)state;
    fx.dir = temp_dir_make();
    nw_memory_init(&fx.mem, UINT64_MAX, NULL);
    unsigned char *bytes = malloc(FILE_BYTES);
    NW_CHECK(bytes != NULL);
    for (size_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = content_at(i);
    fx.path = temp_dir_write(&fx.dir, "content", bytes, FILE_BYTES);
    free(bytes);
    nw_error err = {0};
    if (nw_file_open(fx.path.text, &fx.file, &err) != NW_OK)
        fail_msg("%s", err.msg);
    fx.uring = uring_here(&fx.mem);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nw_file_close(&fx.file);
    temp_dir_remove(&fx.dir);
    return fx.mem.live == 0 ? 0 : -1;
}

static nw_io *device_open(device_kind kind, uint32_t depth, nw_io_fake *fake)
{
    nw_io   *io = NULL;
    nw_error err = {0};
    nw_code  rc;
    if (kind == DEVICE_FAKE) {
        rc = nw_io_fake_open(&fx.mem, fake, depth, &io, &err);
    } else {
        if (kind == DEVICE_URING && !fx.uring)
            skip();
        nw_io_options options = {.choice = kind == DEVICE_URING ? NW_IO_URING : NW_IO_THREADS, .depth = depth};
        rc = nw_io_open(&fx.mem, &options, &io, &err);
    }
    if (rc != NW_OK)
        fail_msg("%s", err.msg);
    static const char *const names[] = {"uring", "threads", "fake"};
    assert_string_equal(nw_io_name(io), names[kind]);
    assert_int_equal(nw_io_depth(io), depth);
    assert_int_equal(nw_io_in_flight(io), 0);
    return io;
}

static unsigned char *buffer_new(size_t bytes)
{
    void *p = NULL;
    NW_CHECK(posix_memalign(&p, BUF_ALIGN, bytes) == 0);
    memset(p, 0x11, bytes);
    return p;
}

static nw_io_op read_op(int fd, uint64_t offset, void *buf, size_t bytes, size_t needed, uint64_t tag)
{
    return (nw_io_op){
        .kind = NW_IO_READ, .fd = fd, .offset = offset, .buf = buf, .bytes = bytes, .bytes_needed = needed, .tag = tag};
}

static nw_io_done reap_one(nw_io *io)
{
    nw_io_done done = {.tag = UINT64_MAX};
    assert_int_equal(nw_io_reap(io, &done, 1, true), 1);
    return done;
}

/* One operation whose outcome is expected; fills `buf`. */
static int run_one(nw_io *io, nw_io_op op)
{
    op.tag = 77;
    assert_true(nw_io_submit(io, &op));
    nw_io_done done = reap_one(io);
    assert_int_equal(done.tag, 77);
    assert_int_equal(nw_io_in_flight(io), 0);
    return done.os_errno;
}

/* ---- the battery ---- */

#define PIECE_MAX ((size_t)96 << 10)

typedef struct {
    nw_extent extent;
    uint64_t  offset;
    size_t    bytes;
    bool      busy;
} piece;

static nw_extent draw_piece(piece *p, uint64_t *seed)
{
    p->offset = random_below(seed, FILE_BYTES);
    uint64_t room = PIECE_MAX - 2 * fx.file.align;
    p->bytes = (size_t)nw_min_u64(1 + random_below(seed, room), FILE_BYTES - p->offset);
    if (random_below(seed, 8) == 0) { /* the end of the file, often */
        p->offset = FILE_BYTES - p->bytes;
    }
    p->busy = true;
    p->extent = nw_file_extent(&fx.file, p->offset, p->bytes);
    return p->extent;
}

/* `count` reads of random pieces, as many in flight as go, each checked when its completion comes. */
static void read_randomly(nw_io *io, uint64_t seed, uint32_t count)
{
    uint32_t       depth = nw_io_depth(io);
    unsigned char *bytes = buffer_new(depth * PIECE_MAX);
    piece         *pieces = calloc(depth, sizeof *pieces);
    NW_CHECK(pieces != NULL);
    uint32_t begun = 0, ended = 0;
    while (ended < count) {
        for (uint32_t i = 0; i < depth && begun < count && random_below(&seed, 8) != 0; i++) {
            if (pieces[i].busy)
                continue;
            nw_extent e = draw_piece(&pieces[i], &seed);
            nw_io_op  op = read_op(fx.file.fd, e.offset, bytes + i * PIECE_MAX, e.bytes, e.bytes_needed, i);
            assert_true(nw_io_submit(io, &op));
            begun++;
        }
        assert_int_equal(nw_io_in_flight(io), begun - ended);
        if (random_below(&seed, 4) == 0)
            nw_io_flush(io);
        nw_io_done done[80];
        bool       wait = random_below(&seed, 2) == 0;
        size_t     got = nw_io_reap(io, done, (size_t)(1 + random_below(&seed, 80)), wait);
        assert_true(!wait || got > 0 || begun == ended);
        for (size_t i = 0; i < got; i++) {
            assert_true(done[i].tag < depth);
            piece *p = &pieces[done[i].tag];
            assert_true(p->busy); /* each completion once */
            assert_int_equal(done[i].os_errno, 0);
            expect_content(bytes + done[i].tag * PIECE_MAX + p->extent.skip, p->offset, p->bytes);
            memset(bytes + done[i].tag * PIECE_MAX, 0x11, PIECE_MAX);
            p->busy = false;
            ended++;
        }
    }
    assert_int_equal(nw_io_in_flight(io), 0);
    free(pieces);
    free(bytes);
}

static void check_random_reads(device_kind kind)
{
    static const uint32_t depths[] = {1, 2, 7, 64};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        nw_io_fake fake = {.seed = 11 + i};
        nw_io     *io = device_open(kind, depths[i], &fake);
        read_randomly(io, 101 + i, 150);
        nw_io_close(io);
    }
}

static void check_write_and_sync(device_kind kind)
{
    enum { BLOCK = 16384, BLOCKS = 24, DEPTH = 5 };
    nw_io_fake     fake = {.seed = 5, .short_percent = 40, .retry_percent = 30, .delay_max = 2};
    nw_io         *io = device_open(kind, DEPTH, &fake);
    temp_path      path = temp_dir_path(&fx.dir, "written");
    int            fd = open(path.text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    unsigned char *bytes = buffer_new((size_t)BLOCK * BLOCKS);
    for (size_t i = 0; i < (size_t)BLOCK * BLOCKS; i++)
        bytes[i] = content_at(i);
    uint32_t next = 0, ended = 0;
    while (ended < BLOCKS) {
        while (next < BLOCKS) {
            uint64_t at = (uint64_t)(next * 7 % BLOCKS) * BLOCK; /* not in order; 7 and 24 have no common divisor */
            nw_io_op op = {.kind = NW_IO_WRITE, .fd = fd, .offset = at, .buf = bytes + at, .bytes = BLOCK, .tag = next};
            if (!nw_io_submit(io, &op))
                break;
            next++;
        }
        assert_int_equal(reap_one(io).os_errno, 0);
        ended++;
    }
    assert_int_equal(run_one(io, (nw_io_op){.kind = NW_IO_FSYNC, .fd = fd}), 0);
    nw_io_close(io);
    memset(bytes, 0, (size_t)BLOCK * BLOCKS);
    assert_int_equal(pread(fd, bytes, (size_t)BLOCK * BLOCKS + 0, 0), BLOCK * BLOCKS);
    expect_content(bytes, 0, (size_t)BLOCK * BLOCKS);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, BLOCK * BLOCKS);
    close(fd);
    unlink(path.text);
    free(bytes);
}

static void check_end_of_file(device_kind kind)
{
    nw_io_fake     fake = {.seed = 3};
    nw_io         *io = device_open(kind, 2, &fake);
    size_t         align = fx.file.align;
    unsigned char *buf = buffer_new(16 * align + 65536);
    uint64_t       last = nw_round_down(FILE_BYTES, align); /* start of the last, partial unit */
    size_t         left = FILE_BYTES - (size_t)last;

    /* Hangs over the end, all that is needed is there: done, and exactly that. */
    assert_int_equal(run_one(io, read_op(fx.file.fd, last, buf, align, left, 0)), 0);
    expect_content(buf, last, left);
    assert_int_equal(run_one(io, read_op(fx.file.fd, last - 4 * align, buf, 8 * align, 4 * align + left, 0)), 0);
    expect_content(buf, last - 4 * align, 4 * align + left);
    /* One byte more is needed than there is: however far the read reaches, and wherever it starts. */
    assert_int_equal(run_one(io, read_op(fx.file.fd, last, buf, align, left + 1, 0)), NW_IO_EOF);
    assert_int_equal(run_one(io, read_op(fx.file.fd, last - 4 * align, buf, 8 * align, 4 * align + left + 1, 0)),
                     NW_IO_EOF);
    assert_int_equal(run_one(io, read_op(fx.file.fd, last - 4 * align, buf, 8 * align, 8 * align, 0)), NW_IO_EOF);
    /* Wholly behind the end. */
    assert_int_equal(run_one(io, read_op(fx.file.fd, last + 8 * align, buf, align, 1, 0)), NW_IO_EOF);

    /* The same for a buffered file and no alignment at all. */
    int fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
    assert_int_equal(run_one(io, read_op(fd, FILE_BYTES - 13, buf + 3, 29, 13, 0)), 0);
    expect_content(buf + 3, FILE_BYTES - 13, 13);
    assert_int_equal(run_one(io, read_op(fd, FILE_BYTES - 13, buf + 3, 29, 14, 0)), NW_IO_EOF);
    assert_int_equal(run_one(io, read_op(fd, FILE_BYTES, buf, 1, 1, 0)), NW_IO_EOF);
    close(fd);
    nw_io_close(io);
    free(buf);
}

static void check_truncated_meanwhile(device_kind kind)
{
    nw_io_fake     fake = {.seed = 3, .short_percent = 50};
    nw_io         *io = device_open(kind, 2, &fake);
    unsigned char *buf = buffer_new(65536);
    temp_path      path = temp_dir_write(&fx.dir, "shrinking", buf, 65536);
    nw_file        file;
    assert_int_equal(nw_file_open(path.text, &file, NULL), NW_OK);
    static const int sizes[] = {65536, 65535, 40000, 8192, 512, 1, 0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(truncate(path.text, sizes[i]), 0);
        int expected = sizes[i] == 65536 ? 0 : NW_IO_EOF;
        assert_int_equal(run_one(io, read_op(file.fd, 0, buf, 65536, 65536, 0)), expected);
    }
    nw_file_close(&file);
    nw_io_close(io);
    unlink(path.text);
    free(buf);
}

static void check_errors(device_kind kind)
{
    nw_io_fake    fake = {.seed = 3};
    nw_io        *io = device_open(kind, 3, &fake);
    unsigned char buf[64];
    int           directory = open(fx.dir.path, O_RDONLY | O_CLOEXEC);
    int           write_only = open(fx.path.text, O_WRONLY | O_CLOEXEC);
    assert_int_equal(run_one(io, read_op(-1, 0, buf, 64, 64, 0)), EBADF);
    assert_int_equal(run_one(io, read_op(directory, 0, buf, 64, 64, 0)), EISDIR);
    assert_int_equal(run_one(io, read_op(write_only, 0, buf, 64, 64, 0)), EBADF);
    assert_int_equal(run_one(io, (nw_io_op){.kind = NW_IO_FSYNC, .fd = -1}), EBADF);
    nw_io_op write = {.kind = NW_IO_WRITE, .fd = fx.file.fd, .buf = buf, .bytes = 64};
    assert_int_equal(run_one(io, write), EBADF);
    close(directory);
    close(write_only);
    /* An error leaves the device usable, and its neighbours alone. */
    int fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
    for (uint64_t i = 0; i < 3; i++) {
        nw_io_op op = read_op(i == 1 ? -1 : fd, 16 * i, buf + 16 * i, 16, 16, i);
        assert_true(nw_io_submit(io, &op));
    }
    for (uint64_t i = 0; i < 3; i++) {
        nw_io_done done = reap_one(io);
        assert_int_equal(done.os_errno, done.tag == 1 ? EBADF : 0);
        if (done.tag != 1)
            expect_content(buf + 16 * done.tag, 16 * done.tag, 16);
    }
    close(fd);
    nw_io_close(io);
}

static void check_depth_and_close(device_kind kind)
{
    enum { DEPTH = 6 };
    for (int flushed = 0; flushed < 2; flushed++) {
        nw_io_fake     fake = {.seed = 3, .delay_max = 5, .short_percent = 50};
        nw_io         *io = device_open(kind, DEPTH, &fake);
        unsigned char *buf = buffer_new(DEPTH * PIECE_MAX);
        nw_io_done     none;
        assert_int_equal(nw_io_reap(io, &none, 1, true), 0); /* nothing in flight: does not block */
        assert_int_equal(nw_io_reap(io, &none, 1, false), 0);
        for (uint64_t i = 0; i < DEPTH; i++) {
            nw_io_op op = read_op(fx.file.fd, i * PIECE_MAX, buf + i * PIECE_MAX, PIECE_MAX, PIECE_MAX, i);
            assert_true(nw_io_submit(io, &op));
        }
        nw_io_op more = read_op(fx.file.fd, 0, buf, PIECE_MAX, PIECE_MAX, 99);
        assert_false(nw_io_submit(io, &more));
        assert_int_equal(nw_io_in_flight(io), DEPTH);
        if (flushed)
            nw_io_flush(io);
        nw_io_close(io);
        free(buf); /* under ASan and TSan: nobody writes here any more */
    }
    assert_null(nw_io_close(NULL));
}

static void check_run(device_kind kind)
{
    nw_io_fake    fake = {.seed = 3};
    nw_io        *io = device_open(kind, 1, &fake);
    int           fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
    unsigned char buf[100];
    nw_error      err = {0};
    nw_io_op      op = read_op(fd, 1000, buf, 100, 100, 5);
    assert_int_equal(nw_io_run(io, &op, "some/file", &err), NW_OK);
    expect_content(buf, 1000, 100);
    op.offset = FILE_BYTES - 50;
    assert_int_equal(nw_io_run(io, &op, "some/file", &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "'some/file' ends before"));
    assert_int_equal(err.offset, FILE_BYTES - 50);
    op.fd = -1;
    assert_int_equal(nw_io_run(io, &op, "some/file", &err), NW_E_IO);
    assert_int_equal(err.os_errno, EBADF);
    assert_non_null(strstr(err.msg, "'some/file'"));
    assert_int_equal(nw_io_run(io, &op, "some/file", NULL), NW_E_IO);
    close(fd);
    nw_io_close(io);
}

/* Any allocation may fail: an error of the right kind, nothing left behind, and the next attempt works. */
static void check_allocations(device_kind kind)
{
    if (kind == DEVICE_URING && !fx.uring)
        skip();
    for (uint64_t at = 1;; at++) {
        nw_memory_fault fault = {.fail_at = at};
        nw_memory       mem;
        nw_memory_init(&mem, UINT64_MAX, &fault);
        nw_io_fake    fake = {.seed = 1};
        nw_io_options options = {.choice = kind == DEVICE_URING ? NW_IO_AUTO : NW_IO_THREADS, .depth = 9};
        nw_io        *io = NULL;
        nw_error      err = {0};
        nw_code       rc =
            kind == DEVICE_FAKE ? nw_io_fake_open(&mem, &fake, 9, &io, &err) : nw_io_open(&mem, &options, &io, &err);
        if (!fault.fired) {
            assert_int_equal(rc, NW_OK);
            assert_true(at > 4); /* the walk did walk */
            assert_true(mem.live > 0);
            assert_int_equal(mem.live, mem.tag_live[NW_TAG_IO]);
            nw_io_close(io);
            assert_int_equal(mem.live, 0);
            return;
        }
        assert_int_equal(rc, NW_E_MEMORY);
        assert_int_equal(err.code, NW_E_MEMORY);
        assert_null(io);
        assert_int_equal(mem.live, 0);
    }
}

static void check_budget_and_declared(device_kind kind)
{
    if (kind == DEVICE_URING && !fx.uring)
        skip();
    static const uint32_t depths[] = {1, 3, 16, 100, 1024};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        nw_io_options options = {.choice = kind == DEVICE_URING ? NW_IO_URING : NW_IO_THREADS, .depth = depths[i]};
        nw_memory     mem;
        nw_io        *io = NULL;
        nw_memory_init(&mem, nw_io_declared_bytes(&options), NULL);
        assert_int_equal(nw_io_open(&mem, &options, &io, NULL), NW_OK); /* what is declared is enough */
        uint64_t used = mem.peak;
        assert_true(used > nw_io_declared_bytes(&options) / 4); /* and not far off */
        nw_io_close(io);
        assert_int_equal(mem.live, 0);
        nw_error err = {0};
        nw_memory_init(&mem, used - 1, NULL);
        io = NULL;
        assert_int_equal(nw_io_open(&mem, &options, &io, &err), NW_E_BUDGET);
        assert_null(io);
        assert_int_equal(mem.live, 0);
    }
}

#define ON_ALL(check)                                                                                                  \
    static void check##_uring(void **state)                                                                            \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        check_##check(DEVICE_URING);                                                                                   \
    }                                                                                                                  \
    static void check##_threads(void **state)                                                                          \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        check_##check(DEVICE_THREADS);                                                                                 \
    }                                                                                                                  \
    static void check##_fake(void **state)                                                                             \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        check_##check(DEVICE_FAKE);                                                                                    \
    }
/* clang-format off */
ON_ALL(random_reads)
ON_ALL(write_and_sync)
ON_ALL(end_of_file)
ON_ALL(truncated_meanwhile)
ON_ALL(errors)
ON_ALL(depth_and_close)
ON_ALL(run)
ON_ALL(allocations)
/* clang-format on */

static void declared_uring(void **state)
{
    (void)state;
    check_budget_and_declared(DEVICE_URING);
}

static void declared_threads(void **state)
{
    (void)state;
    check_budget_and_declared(DEVICE_THREADS);
}

/* ---- continuing: against a device that says what it is told ---- */

typedef struct {
    int64_t  moved;                           /* what the device answers */
    uint64_t expected_offset, expected_bytes; /* what it must have been asked */
} script_step;

typedef struct {
    nw_io_backend      base;
    const script_step *steps;
    size_t             at;
    nw_io_transfer     asked;
    uint64_t           buf;
    bool               pending;
} script_device;

static void script_submit(nw_io_backend *backend, const nw_io_transfer *transfer)
{
    script_device *d = (script_device *)backend;
    d->asked = *transfer;
    d->pending = true;
}

static size_t script_reap(nw_io_backend *backend, nw_io_result *ret, size_t cap, bool wait)
{
    script_device *d = (script_device *)backend;
    (void)wait;
    if (!d->pending || cap == 0)
        return 0;
    const script_step *step = &d->steps[d->at++];
    assert_int_equal(d->asked.offset, step->expected_offset);
    assert_int_equal(d->asked.bytes, step->expected_bytes);
    assert_int_equal((uintptr_t)d->asked.buf - d->buf, step->expected_offset);
    assert_int_equal(d->asked.first, d->at == 1);
    d->pending = false;
    *ret = (nw_io_result){.slot = d->asked.slot, .moved = step->moved};
    return 1;
}

static void script_close(nw_io_backend *backend)
{
    (void)backend;
}

/* Runs one operation at offset 0 over the steps, all of which must be used; nothing is read, so any address will do. */
static int run_script(nw_io_op op, const script_step *steps, size_t step_count)
{
    script_device d = {.base = {.name = "script", .submit = script_submit, .reap = script_reap, .close = script_close},
                       .steps = steps,
                       .buf = (uintptr_t)op.buf};
    nw_io        *io = NULL;
    assert_int_equal(nw_io_make(&fx.mem, &d.base, 1, &io, NULL), NW_OK);
    int os_errno = run_one(io, op);
    assert_int_equal(d.at, step_count);
    nw_io_close(io);
    return os_errno;
}

#define RUN_SCRIPT(op, ...)                                                                                            \
    run_script((op), (const script_step[]){__VA_ARGS__},                                                               \
               sizeof((const script_step[]){__VA_ARGS__}) / sizeof(script_step))

static void short_transfers_go_on_where_they_may(void **state)
{
    (void)state;
    void    *wide = (void *)(uintptr_t)0x10000000;                    /* aligned to more than any file asks for */
    nw_io_op op = read_op(3, 0, wide, 65536 + 8192, 65536 + 8192, 0); /* all multiples of 8 KiB */

    /* Ends within a unit: from the unit's start again. A unit's end: from there. */
    assert_int_equal(RUN_SCRIPT(op, {20000, 0, 73728}, {8192, 16384, 57344}, {49152, 24576, 49152}), 0);
    /* No step ahead by units: from the exact place; there EINVAL and 0 both mean the end, other errors what they say.
     */
    assert_int_equal(RUN_SCRIPT(op, {512, 0, 73728}, {-EINVAL, 512, 73216}), NW_IO_EOF);
    assert_int_equal(RUN_SCRIPT(op, {700, 0, 73728}, {0, 700, 73028}), NW_IO_EOF);
    assert_int_equal(RUN_SCRIPT(op, {512, 0, 73728}, {-EIO, 512, 73216}), EIO);
    assert_int_equal(RUN_SCRIPT(op, {512, 0, 73728}, {73216, 512, 73216}), 0);
    assert_int_equal(RUN_SCRIPT(op, {-EINVAL, 0, 73728}), EINVAL);
    assert_int_equal(RUN_SCRIPT(op, {8192, 0, 73728}, {-EINVAL, 8192, 65536}), EINVAL);
    /* Retried at the same place; what is needed is enough. */
    assert_int_equal(RUN_SCRIPT(op, {-EINTR, 0, 73728}, {8192, 0, 73728}, {-EBUSY, 8192, 65536}, {65536, 8192, 65536}),
                     0);
    op.bytes_needed = 10000;
    assert_int_equal(RUN_SCRIPT(op, {9999, 0, 73728}, {1808, 8192, 65536}), 0);
    /* A write goes on alike, but has no end of the file. */
    op.kind = NW_IO_WRITE;
    assert_int_equal(RUN_SCRIPT(op, {8192, 0, 73728}, {65536, 8192, 65536}), 0);
    assert_int_equal(RUN_SCRIPT(op, {0, 0, 73728}), EIO);
    assert_int_equal(RUN_SCRIPT(op, {512, 0, 73728}, {-EINVAL, 512, 73216}), EINVAL);
}

static void long_operations_are_cut(void **state)
{
    (void)state;
    uint64_t gib = (uint64_t)1 << 30;
    nw_io_op op = read_op(3, 0, (void *)(uintptr_t)0x10000000, (size_t)(5 * gib / 2), (size_t)(5 * gib / 2), 0);
    int64_t  whole = (int64_t)gib;
    assert_int_equal(RUN_SCRIPT(op, {whole, 0, gib}, {whole, gib, gib}, {whole / 2, 2 * gib, gib / 2}), 0);
}

/* ---- the fake device ---- */

static void fake_splits_retries_delays(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        nw_io_fake fake = {
            .seed = seed,
            .short_percent = seed % 3 == 0 ? 100 : 60,
            .retry_percent = seed % 4 == 0 ? 100 : 40,
            .delay_max = (uint32_t)(seed % 5),
        };
        nw_io *io = device_open(DEVICE_FAKE, (uint32_t)(1 + seed * 3), &fake);
        read_randomly(io, seed, 60);
        nw_io_close(io);
        assert_int_equal(fake.ops_seen, 60);
        assert_false(fake.fired);
    }
}

/* The order in which 16 reads complete. */
static void fake_order(uint64_t seed, uint64_t order[16])
{
    nw_io_fake     fake = {.seed = seed, .short_percent = 30, .retry_percent = 30, .delay_max = 3};
    nw_io         *io = device_open(DEVICE_FAKE, 16, &fake);
    unsigned char *buf = buffer_new(16 * 8192);
    for (uint64_t i = 0; i < 16; i++) {
        nw_io_op op = read_op(fx.file.fd, i * 8192, buf + i * 8192, 8192, 8192, i);
        assert_true(nw_io_submit(io, &op));
    }
    for (size_t i = 0; i < 16; i++)
        order[i] = reap_one(io).tag;
    nw_io_close(io);
    free(buf);
}

static void fake_is_drawn_from_the_seed(void **state)
{
    (void)state;
    uint64_t first[16], again[16], other[16], submitted[16];
    for (uint64_t i = 0; i < 16; i++)
        submitted[i] = i;
    fake_order(42, first);
    fake_order(42, again);
    fake_order(43, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    assert_memory_not_equal(first, submitted, sizeof first);
}

static void fake_poisons_until_complete(void **state)
{
    (void)state;
    nw_io_fake     fake = {.seed = 9};
    nw_io         *io = device_open(DEVICE_FAKE, 1, &fake);
    unsigned char *buf = buffer_new(65536);
    nw_io_op       op = read_op(fx.file.fd, 0, buf, 65536, 65536, 0);
    assert_true(nw_io_submit(io, &op));
    nw_io_flush(io);
    for (size_t i = 0; i < 65536; i++)
        assert_int_equal(buf[i], POISON);
    assert_int_equal(reap_one(io).os_errno, 0);
    expect_content(buf, 0, 65536);
    nw_io_close(io);
    free(buf);
}

static void fake_holds_back_at_most_delay_max(void **state)
{
    (void)state;
    bool held = false;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        nw_io_fake     fake = {.seed = seed, .delay_max = 4};
        nw_io         *io = device_open(DEVICE_FAKE, 1, &fake);
        unsigned char *buf = buffer_new(4096);
        nw_io_op       op = read_op(fx.file.fd, 0, buf, 4096, 4096, 0);
        assert_true(nw_io_submit(io, &op));
        nw_io_done done;
        int        reaps = 1;
        while (nw_io_reap(io, &done, 1, false) == 0)
            reaps++;
        assert_true(reaps <= 5);
        held = held || reaps > 1;
        nw_io_close(io);
        free(buf);
    }
    assert_true(held);
}

/* Reads, a write and a sync, one after the other's completion; the errno of the one that failed, 0 if none. */
static int fake_run(nw_io_fake *fake, const temp_path *path)
{
    enum { READS = 12, BYTES = 20480 };
    nw_io         *io = device_open(DEVICE_FAKE, 4, fake);
    unsigned char *buf = buffer_new(BYTES);
    int            failed = 0;
    for (uint64_t i = 0; i < READS && failed == 0; i++) {
        failed = run_one(io, read_op(fx.file.fd, i * 4096, buf, BYTES, BYTES, 0));
        if (failed == 0)
            expect_content(buf, i * 4096, BYTES);
    }
    int fd = open(path->text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (failed == 0)
        failed = run_one(io, (nw_io_op){.kind = NW_IO_WRITE, .fd = fd, .buf = buf, .bytes = BYTES});
    if (failed == 0)
        failed = run_one(io, (nw_io_op){.kind = NW_IO_FSYNC, .fd = fd});
    close(fd);
    nw_io_close(io);
    free(buf);
    return failed;
}

static void fake_every_fault_point(void **state)
{
    (void)state;
    static const int errnos[] = {EIO, ENOSPC, EAGAIN, NW_IO_EOF};
    temp_path        path = temp_dir_path(&fx.dir, "faulty");
    for (size_t e = 0; e < sizeof errnos / sizeof *errnos; e++) {
        uint64_t at = 1;
        for (;; at++) {
            nw_io_fake fake = {
                .seed = at, .short_percent = 50, .retry_percent = 30, .fail_at = at, .fail_errno = errnos[e]};
            int failed = fake_run(&fake, &path);
            if (!fake.fired) {
                assert_int_equal(failed, 0);
                break;
            }
            assert_int_equal(fake.ops_seen, at); /* nothing was started behind the failure */
            bool behind_reads = at > 12;         /* a write or a sync knows no end of the file */
            assert_int_equal(failed, errnos[e] == NW_IO_EOF && behind_reads ? EIO : errnos[e]);
        }
        assert_int_equal(at, 12 + 2 + 1);
    }
    unlink(path.text);
}

/* A failure among many in flight hits that one alone. */
static void fake_fault_among_others(void **state)
{
    (void)state;
    for (uint64_t at = 1; at <= 16; at++) {
        nw_io_fake     fake = {.seed = at, .short_percent = 50, .fail_at = at, .fail_errno = EIO};
        nw_io         *io = device_open(DEVICE_FAKE, 16, &fake);
        unsigned char *buf = buffer_new(16 * 8192);
        for (uint64_t i = 0; i < 16; i++) {
            nw_io_op op = read_op(fx.file.fd, i * 8192, buf + i * 8192, 8192, 8192, i);
            assert_true(nw_io_submit(io, &op));
        }
        for (size_t i = 0; i < 16; i++) {
            nw_io_done done = reap_one(io);
            assert_int_equal(done.os_errno, done.tag + 1 == at ? EIO : 0);
            if (done.os_errno == 0)
                expect_content(buf + done.tag * 8192, done.tag * 8192, 8192);
        }
        assert_true(fake.fired);
        nw_io_close(io);
        free(buf);
    }
}

#define ALL_OF(check) cmocka_unit_test(check##_uring), cmocka_unit_test(check##_threads), cmocka_unit_test(check##_fake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL_OF(random_reads),
        ALL_OF(write_and_sync),
        ALL_OF(end_of_file),
        ALL_OF(truncated_meanwhile),
        ALL_OF(errors),
        ALL_OF(depth_and_close),
        ALL_OF(run),
        ALL_OF(allocations),
        cmocka_unit_test(declared_uring),
        cmocka_unit_test(declared_threads),
        cmocka_unit_test(short_transfers_go_on_where_they_may),
        cmocka_unit_test(long_operations_are_cut),
        cmocka_unit_test(fake_splits_retries_delays),
        cmocka_unit_test(fake_is_drawn_from_the_seed),
        cmocka_unit_test(fake_poisons_until_complete),
        cmocka_unit_test(fake_holds_back_at_most_delay_max),
        cmocka_unit_test(fake_every_fault_point),
        cmocka_unit_test(fake_fault_among_others),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

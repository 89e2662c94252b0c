/* A kernel that refuses io_uring, at its start or in the middle: what a container's seccomp profile does is done here
 * with a filter of our own, so the fall back to threads is tested where the ring would work. */
#include "loader/io.h"
#include "temp_dir.h"
#include "uring_here.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cmocka.h>

typedef struct {
    temp_dir  dir;
    temp_path path;
    nw_memory mem;
    bool      uring;
} fixture;

static fixture fx;

static const unsigned char content[64] = "What a read must give: 63 characters and one NUL that ends them";

static int setup(void **state)
{
    (void)state;
    fx.dir = temp_dir_make();
    fx.path = temp_dir_write(&fx.dir, "content", content, sizeof content);
    nw_memory_init(&fx.mem, UINT64_MAX, NULL);
    fx.uring = uring_here(&fx.mem);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(&fx.dir);
    return fx.mem.live == 0 ? 0 : -1;
}

/* Makes one system call fail for the calling thread, as a container's seccomp profile would. False: not possible. */
static bool refuse_call(unsigned number, unsigned os_errno)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | os_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* A filter binds a thread until it ends, and an assertion that fails may not leave one: these run in a thread of their
 * own and report in this. */
typedef struct {
    unsigned number, os_errno;
    bool     filtered;
    bool     registers_first; /* files and memory, before the ring is lost; else after it */
    nw_code  code_auto, code_uring;
    nw_error err;
    char     name[16];
    unsigned lines;
    char     line[400];
    int      first_errno, second_errno; /* outcomes of reads */
    uint64_t live;
} refusal;

static void keep_line(void *user, nw_log_level level, const char *line)
{
    refusal *r = user;
    r->lines++;
    if (level == NW_LOG_INFO)
        snprintf(r->line, sizeof r->line, "%s", line);
}

static int read_once(nw_io *io)
{
    unsigned char buf[64] = {0};
    int           fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
    nw_io_op      op = {.kind = NW_IO_READ, .fd = fd, .buf = buf, .bytes = 64, .bytes_needed = 64};
    nw_error      err = {0};
    nw_code       rc = nw_io_run(io, &op, "content", &err);
    close(fd);
    if (rc == NW_OK)
        return memcmp(buf, content, sizeof content) == 0 ? 0 : -2;
    return err.os_errno;
}

static void *open_refused(void *user)
{
    refusal  *r = user;
    nw_memory mem;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    r->filtered = refuse_call(r->number, r->os_errno);
    if (!r->filtered)
        return NULL;
    nw_log        log = {.fn = keep_line, .user = r, .level = NW_LOG_DEBUG};
    nw_io_options options = {.choice = NW_IO_URING, .depth = 8, .log = &log};
    nw_io        *io = NULL;
    r->code_uring = nw_io_open(&mem, &options, &io, &r->err);
    options.choice = NW_IO_AUTO;
    r->code_auto = nw_io_open(&mem, &options, &io, NULL);
    if (r->code_auto == NW_OK) {
        snprintf(r->name, sizeof r->name, "%s", nw_io_name(io));
        r->first_errno = read_once(io);
        nw_io_close(io);
    }
    r->live = mem.live;
    return NULL;
}

static void in_thread(void *(*fn)(void *), refusal *r)
{
    pthread_t id;
    assert_int_equal(pthread_create(&id, NULL, fn, r), 0);
    assert_int_equal(pthread_join(id, NULL), 0);
    if (!r->filtered) {
        print_message("seccomp filters cannot be set here\n");
        skip();
    }
}

static void refused_ring_falls_back(void **state)
{
    (void)state;
    static const struct {
        unsigned    number, os_errno;
        const char *says;
    } cases[] = {
        {SYS_io_uring_setup, EPERM, "io_uring is not available"},
        {SYS_io_uring_setup, ENOSYS, "does not have it"},
        {SYS_io_uring_setup, ENOMEM, "locked memory"},
        {SYS_io_uring_enter, EPERM, "io_uring is not available"},
        {SYS_io_uring_enter, ENOSYS, "does not have it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].number == SYS_io_uring_enter && !fx.uring)
            continue; /* the setup is refused before it comes to that */
        refusal r = {.number = cases[i].number, .os_errno = cases[i].os_errno};
        in_thread(open_refused, &r);
        assert_int_equal(r.code_uring, NW_E_IO);
        assert_int_equal(r.err.os_errno, cases[i].os_errno);
        assert_int_equal(r.code_auto, NW_OK);
        assert_string_equal(r.name, "threads");
        assert_int_equal(r.lines, 1);
        assert_non_null(strstr(r.line, cases[i].says));
        assert_non_null(strstr(r.line, "4 threads"));
        assert_int_equal(r.first_errno, 0);
        assert_int_equal(r.live, 0);
    }
}

/* A ring that works, and registers nothing. */
static void *register_refused(void *user)
{
    refusal      *r = user;
    nw_memory     mem;
    unsigned char buf[64];
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_log        log = {.fn = keep_line, .user = r, .level = NW_LOG_DEBUG};
    nw_io_options options = {.choice = NW_IO_URING, .depth = 8, .register_bytes = sizeof buf, .log = &log};
    nw_io        *io = NULL;
    r->filtered = refuse_call(SYS_io_uring_register, r->os_errno);
    if (!r->filtered)
        return NULL;
    r->code_uring = nw_io_open(&mem, &options, &io, &r->err);
    if (r->code_uring == NW_OK) {
        int fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
        nw_io_register(io, &fd, 1, buf, sizeof buf);
        r->first_errno = read_once(io);
        nw_io_op op = {.kind = NW_IO_READ, .fd = fd, .buf = buf, .bytes = 64, .bytes_needed = 64};
        r->second_errno = nw_io_run(io, &op, "content", NULL) == NW_OK ? memcmp(buf, content, sizeof content) : -1;
        close(fd);
    }
    nw_io_close(io);
    r->live = mem.live;
    return NULL;
}

static void registering_is_refused(void **state)
{
    (void)state;
    if (!fx.uring)
        skip();
    static const unsigned errnos[] = {EPERM, ENOSYS, EINVAL, ENOMEM};
    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        refusal r = {.os_errno = errnos[i]};
        in_thread(register_refused, &r);
        assert_int_equal(r.code_uring, NW_OK);
        assert_int_equal(r.lines, 1);
        assert_int_equal(r.first_errno, 0);
        assert_int_equal(r.second_errno, 0);
        assert_int_equal(r.live, 0);
    }
}

static void *ring_lost(void *user)
{
    refusal  *r = user;
    nw_memory mem;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    unsigned char buf[8][16];
    int           fd = open(fx.path.text, O_RDONLY | O_CLOEXEC);
    nw_io_options options = {.choice = NW_IO_URING, .depth = 8, .register_bytes = sizeof buf};
    nw_io        *io = NULL;
    r->code_uring = nw_io_open(&mem, &options, &io, &r->err);
    if (r->code_uring == NW_OK && r->registers_first)
        nw_io_register(io, &fd, 1, buf, sizeof buf);
    r->filtered = r->code_uring == NW_OK && refuse_call(SYS_io_uring_enter, r->os_errno);
    if (r->filtered) {
        r->first_errno = read_once(io);
        if (!r->registers_first)
            nw_io_register(io, &fd, 1, buf, sizeof buf);
        r->second_errno = read_once(io);
        for (uint64_t i = 0; i < 8; i++) {
            nw_io_op op = {.kind = NW_IO_READ, .fd = fd, .buf = buf[i], .bytes = 16, .bytes_needed = 16, .tag = i};
            r->lines += nw_io_submit(io, &op) ? 1u : 0u;
        }
    }
    nw_io_close(io); /* with operations queued */
    close(fd);
    r->live = mem.live;
    return NULL;
}

/* A kernel that takes nothing any more, for now or for good: an error in bounded time, not a hang. */
static void ring_that_breaks_ends_in_errors(void **state)
{
    (void)state;
    if (!fx.uring)
        skip();
    static const unsigned errnos[] = {EAGAIN, EBUSY, EFAULT};
    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        refusal r = {.os_errno = errnos[i], .registers_first = i > 0};
        in_thread(ring_lost, &r);
        assert_int_equal(r.first_errno, errnos[i]);
        assert_int_equal(r.second_errno, errnos[i]);
        assert_int_equal(r.lines, 8);
        assert_int_equal(r.live, 0);
    }
}

static void automatic_choice_prefers_the_ring(void **state)
{
    (void)state;
    if (!fx.uring)
        skip();
    refusal       r = {0};
    nw_log        log = {.fn = keep_line, .user = &r, .level = NW_LOG_DEBUG};
    nw_io_options options = {.depth = 3, .log = &log};
    nw_io        *io = NULL;
    assert_int_equal(nw_io_open(&fx.mem, &options, &io, NULL), NW_OK);
    assert_string_equal(nw_io_name(io), "uring");
    assert_int_equal(r.lines, 0);
    nw_io_close(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_ring_falls_back),
        cmocka_unit_test(registering_is_refused),
        cmocka_unit_test(ring_that_breaks_ends_in_errors),
        cmocka_unit_test(automatic_choice_prefers_the_ring),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

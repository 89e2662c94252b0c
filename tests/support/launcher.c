/* launcher: runs one command and reports what it cost: exit status, peak resident memory, and, inside a memory cgroup
 * of its own, the peak of the cgroup and whether it was ever at its limit.
 *
 *   launcher [--cgroup BYTES] [--stdout FILE] [--json FILE] -- COMMAND [ARGUMENT ...]
 *
 * Exit status: the command's; 128 + signal when one ended it; 77 when --cgroup is asked for and cannot be had (not
 * root, no memory controller); 2 usage; 1 when the launcher itself failed.
 *
 * A child's ru_maxrss starts at what its parent has resident when it forks, so this program is small: static buffers,
 * no library but the C library. The cgroup is made below our own, so that every limit above still holds, and the child
 * moves itself in before exec: all its memory is counted, its page cache and the kernel's share included. */
#define _DEFAULT_SOURCE /* wait4, ru_maxrss */
#include "base/error.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STATUS_SKIP 77
#define REMOVE_TRIES 200 /* of 10 ms: a cgroup stays busy until the kernel has buried its last process */

typedef struct {
    uint64_t    limit_bytes; /* 0: no cgroup */
    const char *stdout_path, *json_path;
    char      **command;
} options;

typedef struct {
    bool made, v2;
    bool enabled_controller; /* v2: +memory was written to our own cgroup's subtree_control */
    char own[1024];          /* directory of our own cgroup */
    char path[1100];         /* of the one that was made */
} cgroup;

typedef struct {
    uint64_t peak_bytes, limit_hits, oom_kills;
} cgroup_report;

static volatile sig_atomic_t child_pid;

static void forward_signal(int signal_number)
{
    if (child_pid > 0)
        kill((pid_t)child_pid, signal_number);
}

static bool write_text(const char *dir, const char *file, const char *text)
{
    char path[1200];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
        return false;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t  len = strlen(text);
    ssize_t written = write(fd, text, len);
    int     why = errno;
    close(fd);
    errno = why;
    return written == (ssize_t)len;
}

/* The start of a file; an empty string if it cannot be read. */
static void read_text(const char *dir, const char *file, char *buf, size_t cap)
{
    char path[1200];
    buf[0] = '\0';
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    size_t used = 0;
    for (ssize_t some; used + 1 < cap && (some = read(fd, buf + used, cap - 1 - used)) > 0;)
        used += (size_t)some;
    buf[used] = '\0';
    close(fd);
}

/* The number after "key " at the start of a line; 0 if there is none. */
static uint64_t number_after(const char *text, const char *key)
{
    size_t len = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n' ? 1 : 0;
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return strtoull(line + len, NULL, 10);
    }
    return 0;
}

/* True if `word` is one of the parts of a list that commas separate. */
static bool has_part(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += len) {
        bool starts = at == list || at[-1] == ',';
        if (starts && (at[len] == ',' || at[len] == '\0'))
            return true;
    }
    return false;
}

/* Our cgroup in the hierarchy that has the memory controller: version 1 if it is mounted there, else version 2. */
static bool find_own_path(bool *v2, char *path, size_t cap)
{
    char  line[2048];
    bool  found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *own = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (own == NULL)
            continue;
        controllers++;
        *own++ = '\0';
        bool v1_memory = has_part(controllers, "memory");
        if (!v1_memory && (found || *controllers != '\0'))
            continue;
        *v2 = !v1_memory;
        found = (size_t)snprintf(path, cap, "%s", own) < cap;
        if (v1_memory)
            break;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* Where that hierarchy is mounted, with our path below it. A mount may show only a part of the hierarchy (its root). */
static bool find_own_dir(bool v2, const char *path, char *dir, size_t cap)
{
    char  line[4096];
    bool  found = false;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        char root[1024], mount[1024], type[64], super[1024];
        if (sscanf(line, "%*s %*s %*s %1023s %1023s", root, mount) != 2)
            continue;
        const char *dash = strstr(line, " - ");
        if (dash == NULL || sscanf(dash, " - %63s %*s %1023s", type, super) != 2)
            continue;
        if (v2 ? strcmp(type, "cgroup2") != 0 : strcmp(type, "cgroup") != 0 || !has_part(super, "memory"))
            continue;
        size_t      root_len = strcmp(root, "/") == 0 ? 0 : strlen(root);
        bool        below = strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || path[root_len] == '\0');
        const char *rest = below ? path + root_len : path;
        struct stat info;
        found = (size_t)snprintf(dir, cap, "%s%s", mount, strcmp(rest, "/") == 0 ? "" : rest) < cap &&
                stat(dir, &info) == 0;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* Version 2 hands the controller on only where it is told to, and only while no process sits in the parent itself. */
static void enable_controller(cgroup *c)
{
    char enabled[512];
    read_text(c->own, "cgroup.subtree_control", enabled, sizeof enabled);
    c->enabled_controller =
        strstr(enabled, "memory") == NULL && write_text(c->own, "cgroup.subtree_control", "+memory");
}

static void remove_cgroup(cgroup *c)
{
    for (int try = 0; c->made && try < REMOVE_TRIES; try++) {
        /* What the command left running would keep the cgroup; only processes that it started are in there. */
        char  procs[4096];
        char *rest = procs;
        read_text(c->path, "cgroup.procs", procs, sizeof procs);
        for (long pid; (pid = strtol(rest, &rest, 10)) > 0;)
            kill((pid_t)pid, SIGKILL);
        if (rmdir(c->path) == 0 || errno == ENOENT)
            c->made = false;
        else
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (c->made)
        fprintf(stderr, "launcher: cannot remove '%s': %s\n", c->path, strerror(errno));
    if (c->enabled_controller)
        write_text(c->own, "cgroup.subtree_control", "-memory");
}

/* Makes the cgroup. Returns false after printing one line that says why there is none; nothing is left behind then. */
static bool make_cgroup(uint64_t limit_bytes, cgroup *c)
{
    char        own[1024];
    const char *why = NULL;
    *c = (cgroup){0};
    if (!find_own_path(&c->v2, own, sizeof own) || !find_own_dir(c->v2, own, c->own, sizeof c->own)) {
        fputs("launcher: no memory cgroup: no hierarchy with a memory controller is mounted\n", stderr);
        return false;
    }
    if (c->v2)
        enable_controller(c);
    snprintf(c->path, sizeof c->path, "%s/narrows-launcher-%ld", c->own, (long)getpid());
    c->made = mkdir(c->path, 0755) == 0;
    if (!c->made)
        why = "mkdir";
    char limit[32], set[32];
    snprintf(limit, sizeof limit, "%" PRIu64, limit_bytes);
    const char *limit_file = c->v2 ? "memory.max" : "memory.limit_in_bytes";
    if (why == NULL && !write_text(c->path, limit_file, limit))
        why = limit_file;
    if (why != NULL) {
        int os_errno = errno;
        fprintf(stderr, "launcher: no memory cgroup: '%s': %s: %s\n", c->path, why, strerror(os_errno));
        remove_cgroup(c);
        return false;
    }
    /* No swap, so that the limit is one on memory. The files are absent where the kernel does not account for swap. */
    if (c->v2) {
        write_text(c->path, "memory.swap.max", "0");
    } else {
        write_text(c->path, "memory.swappiness", "0");
        write_text(c->path, "memory.memsw.limit_in_bytes", limit);
    }
    read_text(c->path, limit_file, set, sizeof set); /* the kernel rounds down to pages */
    uint64_t set_bytes = strtoull(set, NULL, 10);
    if (set_bytes > limit_bytes || limit_bytes - set_bytes >= 65536) {
        fprintf(stderr, "launcher: no memory cgroup: '%s': the limit became %" PRIu64 " bytes\n", c->path, set_bytes);
        remove_cgroup(c);
        return false;
    }
    return true;
}

static cgroup_report read_report(const cgroup *c)
{
    char          text[1024];
    cgroup_report report = {0};
    read_text(c->path, c->v2 ? "memory.peak" : "memory.max_usage_in_bytes", text, sizeof text);
    report.peak_bytes = strtoull(text, NULL, 10);
    read_text(c->path, c->v2 ? "memory.events" : "memory.failcnt", text, sizeof text);
    report.limit_hits = c->v2 ? number_after(text, "max") : strtoull(text, NULL, 10);
    if (!c->v2)
        read_text(c->path, "memory.oom_control", text, sizeof text);
    report.oom_kills = number_after(text, "oom_kill");
    return report;
}

/* In the child: moves into the cgroup, redirects, and becomes the command. */
static _Noreturn void become_command(const options *o, const cgroup *c, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a launcher that is killed, by a test's time limit, takes the command along */
    if (getppid() != parent)
        _exit(1);
    if (c->made && !write_text(c->path, "cgroup.procs", "0")) {
        fprintf(stderr, "launcher: no memory cgroup: moving into '%s': %s\n", c->path, strerror(errno));
        _exit(STATUS_SKIP);
    }
    if (o->stdout_path != NULL) {
        int fd = open(o->stdout_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0 || dup2(fd, 1) < 0) {
            fprintf(stderr, "launcher: '%s': %s\n", o->stdout_path, strerror(errno));
            _exit(1);
        }
    }
    execvp(o->command[0], o->command);
    fprintf(stderr, "launcher: '%s': %s\n", o->command[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

static bool print_report(const options *o, int status, const struct rusage *usage, const cgroup_report *report,
                         double seconds)
{
    FILE *out = o->json_path != NULL ? fopen(o->json_path, "we") : stderr;
    if (out == NULL) {
        fprintf(stderr, "launcher: '%s': %s\n", o->json_path, strerror(errno));
        return false;
    }
    fprintf(out, "{\"exit\": %d, \"signal\": %d, \"maxrss_bytes\": %lld, ",
            WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            (long long)usage->ru_maxrss * 1024);
    if (o->limit_bytes > 0)
        fprintf(out,
                "\"cgroup_limit_bytes\": %" PRIu64 ", \"cgroup_peak_bytes\": %" PRIu64
                ", \"cgroup_limit_hits\": %" PRIu64 ", \"cgroup_oom_kills\": %" PRIu64 ", ",
                o->limit_bytes, report->peak_bytes, report->limit_hits, report->oom_kills);
    fprintf(out, "\"seconds\": %.6f}\n", seconds);
    bool good = ferror(out) == 0;
    if (out != stderr)
        good = fclose(out) == 0 && good;
    return good;
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int launch(const options *o)
{
    cgroup c = {0};
    if (o->limit_bytes > 0 && !make_cgroup(o->limit_bytes, &c))
        return STATUS_SKIP;

    /* Held back until the child's number is known, so that none is lost in between. */
    sigset_t forwarded, before;
    sigemptyset(&forwarded);
    sigaddset(&forwarded, SIGINT);
    sigaddset(&forwarded, SIGTERM);
    sigprocmask(SIG_BLOCK, &forwarded, &before);
    double start = now_seconds();
    pid_t  parent = getpid(), pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        become_command(o, &c, parent);
    }
    struct sigaction action = {.sa_handler = forward_signal, .sa_flags = SA_RESTART};
    child_pid = (sig_atomic_t)pid;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);

    int           status = 0;
    struct rusage usage = {0};
    pid_t         ended = pid;
    while (pid > 0 && (ended = wait4(pid, &status, 0, &usage)) < 0 && errno == EINTR)
        continue;
    double seconds = now_seconds() - start;
    if (pid < 0 || ended < 0)
        fprintf(stderr, "launcher: %s: %s\n", pid < 0 ? "fork" : "wait4", strerror(errno));
    cgroup_report report = c.made ? read_report(&c) : (cgroup_report){0};
    remove_cgroup(&c);
    if (pid < 0 || ended < 0 || !print_report(o, status, &usage, &report, seconds))
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    options o = {0};
    int     at = 1;
    bool    good = true;
    for (; at + 1 < argc && good && strcmp(argv[at], "--") != 0; at += 2) {
        if (strcmp(argv[at], "--cgroup") == 0)
            good = nw_size_parse(argv[at + 1], &o.limit_bytes);
        else if (strcmp(argv[at], "--stdout") == 0)
            o.stdout_path = argv[at + 1];
        else if (strcmp(argv[at], "--json") == 0)
            o.json_path = argv[at + 1];
        else
            good = false;
    }
    if (!good || at + 1 >= argc || strcmp(argv[at], "--") != 0) {
        fputs("usage: launcher [--cgroup BYTES] [--stdout FILE] [--json FILE] -- COMMAND [ARGUMENT ...]\n", stderr);
        return 2;
    }
    o.command = argv + at + 1;
    return launch(&o);
}

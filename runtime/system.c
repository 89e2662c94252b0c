/* What the kernel says of this machine and this process.
 *
 * Everything is read from text files below two roots, so that a test can show any machine; only the affinity mask, the
 * clock and, where meminfo is missing, sysinfo are asked of the kernel itself. The files are read through a fixed
 * buffer on the stack: nothing here allocates, so the resident size can be read while a session is sealed. Nothing here
 * fails: a file that is missing, cut short or garbage is no limit, and another one decides.
 *
 * Control groups: a memory or cpu controller is either in a v1 hierarchy of its own or in the unified one, never in
 * both. Both are looked at, and the files that are not there are no limits; so hybrid machines need no case of their
 * own. */
#define _GNU_SOURCE
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

/* Numbers saturate here, and limits of this size or more are none: v1 writes "no limit" as 2^63 less a page. Sums of
 * two cannot overflow. */
#define NO_LIMIT ((uint64_t)1 << 62)

/* Where mount points of control groups are expected; the caller's root takes its place. */
#define CGROUP_ROOT "/sys/fs/cgroup"

/* ---- lines and numbers -------------------------------------------------------------------------------------- */

/* A file, line by line. Lines that do not fit (mountinfo has them, for overlays) are left out whole. */
typedef struct {
    int    fd;
    size_t at, end; /* bytes[at .. end) are read and not yet given out */
    bool   done;
    char   bytes[8192];
} line_reader;

/* "<dir>/<name>"; false if that is too long to be a path. */
static bool path_join(char path[PATH_MAX], const char *dir, const char *name)
{
    int len = snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return len > 0 && len < PATH_MAX;
}

static bool lines_open(line_reader *r, const char *dir, const char *name)
{
    char path[PATH_MAX];
    if (!path_join(path, dir, name))
        return false;
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    r->at = r->end = 0;
    r->done = false;
    return r->fd >= 0;
}

static void lines_close(line_reader *r)
{
    close(r->fd);
}

/* The next line without its end; NULL: no more. It may be written to, and lives until the next call. */
static char *lines_next(line_reader *r)
{
    bool whole = true; /* false: in the rest of a line that did not fit */
    for (;;) {
        char *line = r->bytes + r->at;
        char *end = memchr(line, '\n', r->end - r->at);
        if (end == NULL && r->done) {
            if (r->at == r->end || !whole)
                return NULL;
            end = r->bytes + r->end;
            r->at = r->end;
        } else if (end != NULL) {
            r->at = (size_t)(end - r->bytes) + 1;
        }
        if (end != NULL) {
            *end = '\0';
            if (whole)
                return line;
            whole = true;
            continue;
        }
        memmove(r->bytes, line, r->end - r->at);
        r->end -= r->at;
        r->at = 0;
        if (r->end == sizeof r->bytes - 1) {
            r->end = 0;
            whole = false;
        }
        ssize_t count = read(r->fd, r->bytes + r->end, sizeof r->bytes - 1 - r->end);
        if (count > 0)
            r->end += (size_t)count;
        else if (count == 0 || errno != EINTR)
            r->done = true;
    }
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

/* A decimal number, at most NO_LIMIT, or "max" for that; a blank or the end must follow.
 * Returns what follows; NULL: it is no such number, and *ret is left alone. */
static const char *number_parse(const char *text, uint64_t *ret)
{
    uint64_t    value = 0;
    const char *at = text;
    if (strncmp(at, "max", 3) == 0) {
        value = NO_LIMIT;
        at += 3;
    } else {
        for (; *at >= '0' && *at <= '9'; at++)
            value = value > NO_LIMIT / 10 ? NO_LIMIT : nw_min_u64(value * 10 + (uint64_t)(*at - '0'), NO_LIMIT);
    }
    if (at == text || (*at != '\0' && *at != ' ' && *at != '\t'))
        return NULL;
    *ret = value;
    return at;
}

/* The number after a key in "key: N" or "key N"; false if the line has another key, or no number. */
static bool line_value(const char *line, const char *key, uint64_t *ret)
{
    size_t len = strlen(key);
    if (strncmp(line, key, len) != 0)
        return false;
    line += len;
    if (*line == ':')
        line++;
    if (*line != ' ' && *line != '\t')
        return false;
    return number_parse(skip_blanks(line), ret) != NULL;
}

static uint64_t from_kib(uint64_t kib)
{
    return kib >= NO_LIMIT / 1024 ? NO_LIMIT : kib * 1024;
}

/* The number that a file begins with; NO_LIMIT if there is none. */
static uint64_t file_number(const char *dir, const char *name)
{
    line_reader r;
    uint64_t    value = NO_LIMIT;
    if (!lines_open(&r, dir, name))
        return value;
    const char *line = lines_next(&r);
    if (line != NULL)
        number_parse(line, &value);
    lines_close(&r);
    return value;
}

/* ---- control groups ----------------------------------------------------------------------------------------- */

/* One control group of this process: first its own, then each above it. */
typedef struct {
    char   dir[PATH_MAX];  /* where its files are */
    char   name[PATH_MAX]; /* its path in the hierarchy, for people */
    size_t top_len;        /* bytes of `dir` at the mount: there is nothing above to be seen */
} group;

/* True if a comma-separated list has this word. */
static bool list_has(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (;;) {
        size_t item = strcspn(list, ",");
        if (item == len && strncmp(list, word, len) == 0)
            return true;
        if (list[item] == '\0')
            return false;
        list += item + 1;
    }
}

/* This process's group of a v1 controller, or with "" of the unified hierarchy, from proc/self/cgroup: lines
 * "id:controllers:path", the unified one with no controllers. Without trailing slashes: "" is the root. */
static bool group_path(const char *proc, const char *controller, char path[PATH_MAX])
{
    line_reader r;
    bool        found = false;
    if (!lines_open(&r, proc, "self/cgroup"))
        return false;
    for (char *line; !found && (line = lines_next(&r)) != NULL;) {
        char *list = strchr(line, ':');
        char *text = list == NULL ? NULL : strchr(list + 1, ':');
        if (text == NULL || text[1] != '/')
            continue;
        *text++ = '\0';
        size_t len = strlen(text);
        while (len > 0 && text[len - 1] == '/')
            len--;
        found = list_has(list + 1, controller) && len < PATH_MAX;
        if (found) {
            memcpy(path, text, len);
            path[len] = '\0';
        }
    }
    lines_close(&r);
    return found;
}

/* Splits off the next blank-separated field of mountinfo, and undoes its octal escapes ("\040"). NULL: no more. */
static char *mount_field(char **rest)
{
    char *field = *rest + strspn(*rest, " ");
    if (*field == '\0')
        return NULL;
    char *to = field;
    char *from = field;
    while (*from != '\0' && *from != ' ') {
        if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
            int code = (from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0');
            *to++ = (char)(code & 0xFF);
            from += 4;
        } else {
            *to++ = *from++;
        }
    }
    *rest = *from == '\0' ? from : from + 1;
    *to = '\0';
    return field;
}

/* Root and mount point of a line of mountinfo, if it mounts this controller's hierarchy:
 * "id parent major:minor root point options [tags...] - type source super-options". */
static bool mount_parse(char *line, const char *controller, const char **ret_root, const char **ret_point)
{
    char *field[6];
    for (size_t i = 0; i < 6; i++) {
        field[i] = mount_field(&line);
        if (field[i] == NULL)
            return false;
    }
    const char *tag;
    do {
        tag = mount_field(&line);
        if (tag == NULL)
            return false;
    } while (strcmp(tag, "-") != 0);
    const char *type = mount_field(&line);
    const char *source = type == NULL ? NULL : mount_field(&line);
    const char *options = source == NULL ? NULL : mount_field(&line);
    if (options == NULL || field[3][0] != '/' || field[4][0] != '/')
        return false;
    *ret_root = field[3];
    *ret_point = field[4];
    if (*controller == '\0')
        return strcmp(type, "cgroup2") == 0;
    return strcmp(type, "cgroup") == 0 && list_has(options, controller);
}

static bool has_dot_dot(const char *path)
{
    for (const char *at = path; (at = strstr(at, "/..")) != NULL; at += 3) {
        if (at[3] == '/' || at[3] == '\0')
            return true;
    }
    return false;
}

/* The part of a group's path below a mount's root: "" or "/a/b". NULL if the group cannot be seen there. */
static const char *path_below(const char *path, const char *root)
{
    size_t len = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, len) != 0 || (path[len] != '\0' && path[len] != '/') || has_dot_dot(path + len))
        return NULL;
    return path + len;
}

/* Places the group at a mount. `below` NULL: the mount's own root is all that can be seen of what is above us. */
static bool group_place(group *g, const char *cgroup, const char *root, const char *point, const char *path,
                        const char *below)
{
    size_t known = strlen(CGROUP_ROOT);
    bool   moved = strncmp(point, CGROUP_ROOT, known) == 0 && (point[known] == '\0' || point[known] == '/');
    int    top = snprintf(g->dir, sizeof g->dir, "%s%s", moved ? cgroup : "", point + (moved ? known : 0));
    if (top < 0 || (size_t)top + strlen(below == NULL ? "" : below) >= sizeof g->dir)
        return false;
    g->top_len = (size_t)top;
    if (below != NULL)
        memcpy(g->dir + top, below, strlen(below) + 1);
    int len = snprintf(g->name, sizeof g->name, "%s", below != NULL ? path : has_dot_dot(root) ? "" : root);
    return len >= 0 && (size_t)len < sizeof g->name;
}

/* Finds this process's group of a controller; false if there is none.
 * Of several mounts the one that shows the most groups above ours is taken: the one with the shortest root. In a
 * container the path may name groups that are outside of what is mounted, or of the namespace ("/../.."); then the
 * mount's root is the nearest group that can be seen. */
static bool group_find(group *g, const char *proc, const char *cgroup, const char *controller)
{
    char        path[PATH_MAX];
    line_reader r;
    if (!group_path(proc, controller, path) || !lines_open(&r, proc, "self/mountinfo"))
        return false;
    bool   found = false;
    size_t best = SIZE_MAX;
    for (char *line; (line = lines_next(&r)) != NULL;) {
        const char *root, *point;
        if (!mount_parse(line, controller, &root, &point))
            continue;
        const char *below = path_below(path, root);
        size_t      rank = below != NULL ? strlen(root) : SIZE_MAX - 1;
        if (rank < best && group_place(g, cgroup, root, point, path, below)) {
            best = rank;
            found = true;
        }
    }
    lines_close(&r);
    return found;
}

/* Goes to the group above; false if there is none, or none to be seen. */
static bool group_up(group *g)
{
    if (strlen(g->dir) <= g->top_len)
        return false;
    *strrchr(g->dir, '/') = '\0'; /* dir and name end alike as far as dir is below the mount */
    *strrchr(g->name, '/') = '\0';
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* The files of the memory controller in each version. */
typedef struct {
    const char *controller;
    const char *limits[2];
    const char *usage;
    const char *inactive, *active, *dirty, *writeback; /* of memory.stat, of the group and all below it */
} memory_files;

static const memory_files memory_versions[] = {
    {.controller = "",
     .limits = {"memory.max", "memory.high"},
     .usage = "memory.current",
     .inactive = "inactive_file",
     .active = "active_file",
     .dirty = "file_dirty",
     .writeback = "file_writeback"},
    {.controller = "memory",
     .limits = {"memory.limit_in_bytes", NULL},
     .usage = "memory.usage_in_bytes",
     .inactive = "total_inactive_file",
     .active = "total_active_file",
     .dirty = "total_dirty",
     .writeback = "total_writeback"},
};

typedef struct {
    uint64_t           machine; /* memory of the machine: limits from there on are none */
    nw_machine_memory *ret;
} memory_look;

/* "file of /group" for people; of a long path the end, which tells groups apart. */
static void limit_name(char text[static 96], const char *file, const char *name)
{
    size_t      room = 95 - strlen(file) - strlen(" of ");
    size_t      len = strlen(name);
    const char *dots = "";
    if (len == 0)
        name = "/";
    if (len > room) {
        dots = "...";
        name += len - (room - 3);
        while ((*name & 0xC0) == 0x80) /* not in the middle of a character */
            name++;
    }
    snprintf(text, 96, "%s of %s%s", file, dots, name);
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7F)
            *at = '?';
    }
}

static void memory_lower(memory_look *look, uint64_t limit, uint64_t used, const char *name)
{
    if (limit >= NO_LIMIT || limit >= look->machine)
        return;
    nw_machine_memory *ret = look->ret;
    uint64_t           left = used < limit ? limit - used : 0;
    ret->total = nw_min_u64(ret->total, limit);
    if (left < ret->available) {
        ret->available = left;
        snprintf(ret->limited_by, sizeof ret->limited_by, "%s", name);
    }
}

typedef struct {
    uint64_t used; /* what dropping page cache does not give back */
    uint64_t
        above; /* v1: the lowest limit of the group and all above it, even those that cannot be seen; or NO_LIMIT */
} memory_use;

/* What a group uses. Both lists of file pages count as free, as in the kernel's MemAvailable: under a limit the kernel
 * drops even active ones before it kills. Neither list has tmpfs or locked pages. Dirty pages and those being written
 * stay charged: they go only as fast as the disk takes them, too late for a process that fills its budget. The
 * reclaimable part of slab stays charged too, to be on the safe side. */
static memory_use memory_use_read(const group *g, const memory_files *files)
{
    memory_use  use = {.above = NO_LIMIT};
    uint64_t    inactive = 0, active = 0, dirty = 0, writeback = 0;
    line_reader r;
    if (lines_open(&r, g->dir, "memory.stat")) {
        for (const char *line; (line = lines_next(&r)) != NULL;) {
            line_value(line, files->inactive, &inactive);
            line_value(line, files->active, &active);
            line_value(line, files->dirty, &dirty);
            line_value(line, files->writeback, &writeback);
            line_value(line, "hierarchical_memory_limit", &use.above);
        }
        lines_close(&r);
    }
    uint64_t usage = file_number(g->dir, files->usage);
    uint64_t cache = inactive + active;
    uint64_t reclaimable = cache - nw_min_u64(cache, dirty + writeback);
    if (usage < NO_LIMIT)
        use.used = usage - nw_min_u64(usage, reclaimable);
    return use;
}

static void memory_groups(memory_look *look, const memory_files *files, const char *proc, const char *cgroup)
{
    group g;
    char  name[96], own_name[96];
    if (!group_find(&g, proc, cgroup, files->controller))
        return;
    const memory_use own = memory_use_read(&g, files);
    limit_name(own_name, "hierarchical_memory_limit", g.name);
    uint64_t lowest = NO_LIMIT;
    for (bool more = true; more; more = group_up(&g)) {
        memory_use use = memory_use_read(&g, files);
        for (size_t i = 0; i < 2 && files->limits[i] != NULL; i++) {
            uint64_t limit = file_number(g.dir, files->limits[i]);
            lowest = nw_min_u64(lowest, limit);
            limit_name(name, files->limits[i], g.name);
            memory_lower(look, limit, use.used, name);
        }
    }
    if (own.above < lowest) /* of a group that cannot be seen; it uses at least what ours does */
        memory_lower(look, own.above, own.used, own_name);
}

/* MemTotal and MemAvailable of the machine. Kernels before 3.14 have only MemFree; without /proc there is sysinfo. */
static void memory_machine(const char *proc, nw_machine_memory *ret)
{
    line_reader r;
    uint64_t    total = 0, available = NO_LIMIT, unused = NO_LIMIT;
    if (lines_open(&r, proc, "meminfo")) {
        for (const char *line; (line = lines_next(&r)) != NULL;) {
            if (!line_value(line, "MemTotal", &total) && !line_value(line, "MemAvailable", &available))
                line_value(line, "MemFree", &unused);
        }
        lines_close(&r);
    }
    total = from_kib(total);
    const char *name = "MemAvailable";
    if (available == NO_LIMIT) {
        available = unused;
        name = "MemFree";
    }
    struct sysinfo info;
    if ((total == 0 || available == NO_LIMIT) && sysinfo(&info) == 0) {
        uint64_t unit = info.mem_unit;
        total = total != 0 ? total : (uint64_t)info.totalram * unit;
        available = (uint64_t)info.freeram * unit;
        name = "sysinfo";
    } else {
        available = from_kib(available);
    }
    ret->total = total == 0 ? NO_LIMIT : total;
    ret->available = nw_min_u64(available, ret->total);
    snprintf(ret->limited_by, sizeof ret->limited_by, "%s", name);
}

/* Resource limits bound what is mapped, not what is resident, but what cannot be mapped cannot become resident either.
 */
static void memory_resource_limits(const char *proc, nw_machine_memory *ret)
{
    static const struct {
        const char *line, *used, *name;
    } limits[2] = {
        {"Max address space", "VmSize", "RLIMIT_AS"},
        {"Max data size", "VmData", "RLIMIT_DATA"},
    };
    uint64_t    soft[] = {NO_LIMIT, NO_LIMIT};
    line_reader r;
    if (!lines_open(&r, proc, "self/limits"))
        return;
    for (const char *line; (line = lines_next(&r)) != NULL;) {
        for (size_t i = 0; i < 2; i++)
            line_value(line, limits[i].line, &soft[i]); /* "unlimited" is no number */
    }
    lines_close(&r);
    for (size_t i = 0; i < 2; i++) {
        if (soft[i] >= NO_LIMIT)
            continue;
        uint64_t used = nw_system_status_bytes(proc, limits[i].used);
        uint64_t left = used < soft[i] ? soft[i] - used : 0;
        if (left < ret->available) {
            ret->available = left;
            snprintf(ret->limited_by, sizeof ret->limited_by, "%s", limits[i].name);
        }
    }
}

void nw_system_memory(const char *proc, const char *cgroup, nw_machine_memory *ret)
{
    NW_CHECK(proc != NULL);
    NW_CHECK(cgroup != NULL);
    memory_machine(proc, ret);
    memory_look look = {.machine = ret->total, .ret = ret};
    for (size_t i = 0; i < sizeof memory_versions / sizeof *memory_versions; i++)
        memory_groups(&look, &memory_versions[i], proc, cgroup);
    memory_resource_limits(proc, ret);
}

uint64_t nw_system_status_bytes(const char *proc, const char *key)
{
    line_reader r;
    uint64_t    kib = 0;
    NW_CHECK(key != NULL);
    if (!lines_open(&r, proc, "self/status"))
        return 0;
    for (const char *line; (line = lines_next(&r)) != NULL && !line_value(line, key, &kib);)
        continue;
    lines_close(&r);
    return from_kib(kib);
}

/* ---- processors and the clock ------------------------------------------------------------------------------- */

/* CPUs in the affinity mask. The mask must be at least the kernel's own, which is 8192 bits on the largest machines. */
static uint64_t cpus_allowed(void)
{
    cpu_set_t mask[8192 / CPU_SETSIZE];
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        return (uint64_t)CPU_COUNT_S(sizeof mask, mask);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint64_t)online : 1;
}

/* CPUs that a quota of time per period keeps busy, rounded up: of half a CPU one thread still makes use. */
static uint64_t quota_cpus(uint64_t quota, uint64_t period)
{
    if (quota >= NO_LIMIT || period >= NO_LIMIT || period == 0)
        return NO_LIMIT;
    return (quota + period - 1) / period;
}

/* v2: "quota period" or "max period" in one file. */
static uint64_t group_cpus_v2(const group *g)
{
    line_reader r;
    uint64_t    quota = NO_LIMIT, period = 0;
    if (!lines_open(&r, g->dir, "cpu.max"))
        return NO_LIMIT;
    const char *rest = lines_next(&r);
    if (rest != NULL)
        rest = number_parse(rest, &quota);
    if (rest != NULL)
        rest = number_parse(skip_blanks(rest), &period);
    lines_close(&r);
    return rest == NULL ? NO_LIMIT : quota_cpus(quota, period);
}

/* v1: two files; a quota of -1 is none. */
static uint64_t group_cpus_v1(const group *g)
{
    return quota_cpus(file_number(g->dir, "cpu.cfs_quota_us"), file_number(g->dir, "cpu.cfs_period_us"));
}

unsigned nw_system_cpus(const char *proc, const char *cgroup)
{
    NW_CHECK(proc != NULL);
    NW_CHECK(cgroup != NULL);
    group    g;
    uint64_t cpus = cpus_allowed();
    for (bool more = group_find(&g, proc, cgroup, ""); more; more = group_up(&g))
        cpus = nw_min_u64(cpus, group_cpus_v2(&g));
    for (bool more = group_find(&g, proc, cgroup, "cpu"); more; more = group_up(&g))
        cpus = nw_min_u64(cpus, group_cpus_v1(&g));
    return (unsigned)nw_max_u64(cpus, 1);
}

uint64_t nw_system_nanoseconds(void)
{
    struct timespec now;
    NW_CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double nw_system_seconds(void)
{
    struct timespec now;
    NW_CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* For writers of models: what is not finished leaves nothing that opens, however it ended. */
#ifndef NW_TEST_UNFINISHED_H
#define NW_TEST_UNFINISHED_H

#include "base/memory.h"
#include "child.h"
#include "temp_dir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

/* Writes a model into `path`, a directory that is not there. */
typedef nw_code (*write_run)(nw_memory *mem, const char *path, nw_error *err);

/* A full disk, by the limit on a file's size, which is reached: a clean error, and nothing is left. */
static inline void check_no_room(write_run write, uint64_t file_bytes_max)
{
    temp_dir      dir = temp_dir_make();
    temp_path     path = temp_dir_path(&dir, "m");
    struct rlimit before, small;
    nw_memory     mem;
    nw_error      err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = file_bytes_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    nw_code rc = write(&mem, path.text, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, NW_E_IO);
    assert_true(err.os_errno != 0);
    assert_int_equal(temp_dir_count(dir.path), 0);
    assert_int_equal(mem.live, 0);
    temp_dir_remove(&dir);
}

/* Every allocation fails in turn, and nothing is left; until all of more than `least` and fewer than `most` were there,
 * and the model is at `path`, alone in `dir`. */
static inline void check_every_allocation(write_run write, const temp_dir *dir, const char *path, uint64_t least,
                                          uint64_t most)
{
    bool written = false;
    for (uint64_t at = 1; !written; at++) {
        assert_true(at < most);
        nw_memory_fault fault = {.fail_at = at};
        nw_memory       mem;
        nw_error        err = {0};
        nw_memory_init(&mem, UINT64_MAX, &fault);
        nw_code rc = write(&mem, path, &err);
        assert_int_equal(mem.live, 0);
        written = !fault.fired;
        assert_int_equal(rc, written ? NW_OK : NW_E_MEMORY);
        assert_int_equal(temp_dir_count(dir->path), written);
        assert_true(!written || at > least);
    }
}

/* A child runs `write`, which kills itself while it writes into `name` of an empty directory: the target does not open,
 * and neither does the one directory that is left beside it. */
static inline void check_killed(int (*write)(void *user), void *user, const temp_dir *dir, const char *name,
                                void (*check_refused)(const char *path))
{
    char prefix[64];
    int  len = snprintf(prefix, sizeof prefix, "%s.tmp-", name);
    assert_true(len > 0 && (size_t)len < sizeof prefix);
    fflush(NULL);
    assert_int_equal(in_child(write, user), 1000 + SIGKILL);
    check_refused(temp_dir_path(dir, name).text);
    DIR *d = opendir(dir->path);
    assert_non_null(d);
    const struct dirent *entry;
    size_t               left = 0;
    while ((entry = readdir(d)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        assert_int_equal(strncmp(entry->d_name, prefix, (size_t)len), 0);
        check_refused(temp_dir_path(dir, entry->d_name).text);
        left++;
    }
    closedir(d);
    assert_int_equal(left, 1);
}

#endif

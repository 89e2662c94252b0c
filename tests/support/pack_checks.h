/* For tests of packing, unpacking and checking whole models: checks that are counted and told by name, and what fails,
 * stops or damages them. */
#ifndef NW_TEST_PACK_CHECKS_H
#define NW_TEST_PACK_CHECKS_H

#include "temp_dir.h"
#include "tensor_files.h"

#include <errno.h>

static unsigned failures;

static inline void check(bool ok, const char *name, const char *what)
{
    if (!ok && failures++ < 20)
        printf("FAILED %s: %s\n", name, what);
}

/* The text is in this file of a directory, which has less than 64 KiB. */
static inline bool file_has(const char *dir, const char *file, const char *text)
{
    char path[1100], bytes[65536];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "rb");
    NW_CHECK(f != NULL);
    bytes[fread(bytes, 1, sizeof bytes - 1, f)] = '\0';
    fclose(f);
    return strstr(bytes, text) != NULL;
}

/* One bit of a file; the second time puts it back. */
static inline void flip(const char *path, uint64_t at)
{
    unsigned char byte;
    int           fd = open(path, O_RDWR);
    NW_CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 0x10;
    NW_CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1 && close(fd) == 0);
}

/* A progress callback. */
static inline bool stop_half_way(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    return done * 2 < total;
}

/* ---- faults ---- */

/* Something that is NW_OK, or says what failed and checks what is left of it. */
typedef nw_code (*faulty_run)(void *user, nw_hooks *hooks, nw_error *err);

typedef struct {
    uint64_t allocations, reads;
} fault_points;

/* Any allocation may fail, and any read (every `stride`th is tried), until a run no longer reaches the armed point. */
static inline fault_points check_faults(const char *name, uint64_t stride, faulty_run run, void *user)
{
    uint64_t points[2] = {0};
    for (int kind = 0; kind < 2; kind++) {
        bool fired = true;
        for (uint64_t at = 1; fired; at += kind == 0 ? 1 : stride, points[kind]++) {
            NW_CHECK(at < 100000);
            nw_memory_fault fault = {.fail_at = kind == 0 ? at : 0};
            nw_io_fake      io = {.seed = at, .short_percent = 10, .fail_at = kind == 1 ? at : 0, .fail_errno = EIO};
            nw_hooks        hooks = {.memory = &fault, .io = &io};
            nw_error        err = {0};
            nw_code         rc = run(user, &hooks, &err);
            fired = kind == 0 ? fault.fired : io.fired;
            check(fired ? rc == (kind == 0 ? NW_E_MEMORY : NW_E_IO) && err.msg[0] != '\0' : rc == NW_OK, name, err.msg);
        }
    }
    printf("%s: %llu allocations and %llu reads failed in turn\n", name, (unsigned long long)points[0],
           (unsigned long long)points[1]);
    return (fault_points){points[0], points[1]};
}

/* A model, and the empty directory in which "out" is made of it. */
typedef struct {
    const char     *name, *src;
    const temp_dir *dir;
} faulty_source;

/* What failed left nothing; what did not, the target alone. Then the directory is empty again. */
static inline nw_code faulty_end(const faulty_source *f, nw_code rc)
{
    check(temp_dir_count(f->dir->path) == (rc == NW_OK ? 1 : 0), f->name, "something is left");
    temp_dir_empty(f->dir->path);
    return rc;
}

static inline nw_code faulty_unpack(void *user, nw_hooks *hooks, nw_error *err)
{
    const faulty_source *f = (const faulty_source *)user;
    temp_path            out = temp_dir_path(f->dir, "out");
    nw_unpack_result     r;
    nw_unpack_options    o = {.dir = out.text, .shard_bytes_max = 300000, .type = NW_TYPE_BF16};
    return faulty_end(f, model_unpack(f->src, &o, hooks, &r, err));
}

static inline nw_code faulty_pack(void *user, nw_hooks *hooks, nw_error *err)
{
    const faulty_source *f = (const faulty_source *)user;
    temp_path            out = temp_dir_path(f->dir, "out");
    nw_pack_result       r;
    nw_pack_options      o = {.dir = out.text, .shard_bytes_max = 300000, .threads = 2};
    return faulty_end(f, model_pack(f->src, &o, hooks, &r, err));
}

#endif

/* Writing checkpoints: what is written opens with the same names, shapes and bytes; what is not finished does not open,
 * however it ended; nothing of it stays in the page cache. */
#define _DEFAULT_SOURCE
#include "loader/writer.h"

#include "loader/checkpoint.h"
#include "loader/io_fake.h"
#include "unfinished.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

typedef struct {
    const char *name;
    nw_dtype    dtype;
    uint32_t    dim_count;
    uint64_t    dims[2];
    bool        group; /* a group starts here */
} tensor;

static const tensor model[] = {
    {"shared.weight", NW_BF16, 2, {1000, 300}, false}, /* 600000 bytes */
    {"a.q", NW_F32, 2, {100, 1000}, true},             /* 400000 */
    {"a.norm", NW_F32, 1, {77}, false},
    {"a.\"odd\\\xc3\xa9", NW_F16, 1, {3}, false},
    {"b.q", NW_F32, 2, {100, 1000}, true},
    {"b.empty", NW_F32, 2, {0, 5}, false},
    {"b.k", NW_F32, 2, {100, 1000}, false},
    {"c.large", NW_F16, 2, {3000, 1000}, true}, /* 6000000: alone larger than a shard */
    {"c.tail", NW_F16, 1, {5}, false},
    {"d.end", NW_F32, 1, {0}, true},
};
enum { MODEL_COUNT = sizeof model / sizeof *model };

static uint64_t bytes_of(const tensor *t)
{
    return nw_dtype_bytes(t->dtype) * t->dims[0] * (t->dim_count > 1 ? t->dims[1] : 1);
}

static unsigned char byte_at(size_t t, uint64_t i)
{
    return (unsigned char)(t * 37 + i * 131 + (i >> 9));
}

static nw_code declare_all(nw_writer *w, nw_error *err)
{
    nw_code rc = NW_OK;
    for (size_t i = 0; i < MODEL_COUNT && rc == NW_OK; i++) {
        if (model[i].group)
            rc = nw_writer_group(w, err);
        if (rc == NW_OK)
            rc = nw_writer_declare(w, model[i].name, model[i].dtype, model[i].dims, model[i].dim_count, err);
    }
    return rc;
}

/* Writes the first `max` bytes of data in pieces of `step`. */
static nw_code write_data(nw_writer *w, size_t step, uint64_t max, nw_error *err)
{
    static unsigned char piece[1 << 16];
    size_t               len = 0;
    nw_code              rc = NW_OK;
    for (size_t t = 0; t < MODEL_COUNT && rc == NW_OK; t++) {
        for (uint64_t i = 0; i < bytes_of(&model[t]) && rc == NW_OK && max > 0; i++, max--) {
            piece[len++] = byte_at(t, i);
            if (len == step || max == 1) {
                rc = nw_writer_data(w, piece, len, err);
                len = 0;
            }
        }
    }
    return rc == NW_OK && len > 0 ? nw_writer_data(w, piece, len, err) : rc;
}

static nw_code write_model(nw_memory *m, const char *path, uint64_t shard_max, size_t step, nw_error *err)
{
    nw_writer *w = NULL;
    nw_code    rc = nw_writer_open(m, path, shard_max, &w, err);
    if (rc == NW_OK)
        rc = declare_all(w, err);
    if (rc == NW_OK)
        rc = nw_writer_file(w, "config.json", "{}\n", 3, err);
    if (rc == NW_OK)
        rc = write_data(w, step, UINT64_MAX, err);
    if (rc == NW_OK)
        rc = nw_writer_finish(w, err);
    nw_writer_close(w);
    return rc;
}

/* -- reading back -- */

typedef struct {
    nw_memory      mem;
    nw_io_fake     fake;
    nw_io         *io;
    nw_checkpoint *c;
    nw_error       err;
} reader;

static nw_code reader_open(reader *r, const char *path)
{
    *r = (reader){.fake = {.seed = 7}};
    nw_memory_init(&r->mem, UINT64_MAX, NULL);
    assert_int_equal(nw_io_fake_open(&r->mem, &r->fake, 2, &r->io, &r->err), NW_OK);
    return nw_checkpoint_open(&r->mem, r->io, path, NULL, NULL, &r->c, &r->err);
}

static void reader_close(reader *r)
{
    nw_checkpoint_close(r->c);
    nw_io_close(r->io);
    assert_int_equal(r->mem.live, 0);
}

static void check_model(const char *path, size_t files)
{
    reader r;
    if (reader_open(&r, path) != NW_OK)
        fail_msg("%s", r.err.msg);
    assert_int_equal(nw_checkpoint_file_count(r.c), files);
    assert_int_equal(nw_checkpoint_tensor_count(r.c), MODEL_COUNT);
    static unsigned char bytes[6000000];
    for (size_t t = 0; t < MODEL_COUNT; t++) {
        const nw_tensor *found = nw_checkpoint_find(r.c, model[t].name);
        assert_non_null(found);
        assert_true(found->known && found->dtype == model[t].dtype);
        assert_int_equal(found->dim_count, model[t].dim_count);
        assert_memory_equal(found->dims, model[t].dims, found->dim_count * sizeof *found->dims);
        assert_int_equal(found->bytes, bytes_of(&model[t]));
        assert_int_equal(nw_file_read(&r.mem, r.io, nw_checkpoint_file(r.c, found->file), "shard", found->offset, bytes,
                                      (size_t)found->bytes, NULL, &r.err),
                         NW_OK);
        for (uint64_t i = 0; i < found->bytes; i++) {
            if (bytes[i] != byte_at(t, i))
                fail_msg("%s: byte %llu", model[t].name, (unsigned long long)i);
        }
    }
    reader_close(&r);
}

static void check_refused(const char *path)
{
    reader r;
    if (reader_open(&r, path) == NW_OK)
        fail_msg("'%s' opens", path);
    reader_close(&r);
}

/* -- tests -- */

static void test_round_trip(void **state)
{
    (void)state;
    static const struct {
        uint64_t shard_max;
        size_t   step, files;
    } cases[] = {
        {0, 65536, 1}, {0, 1, 1}, {1000000, 4099, 5}, {1, 60000, 8}, {100000000, 511, 1},
    };
    temp_dir dir = temp_dir_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char     name[32];
        nw_error err = {0};
        snprintf(name, sizeof name, "model-%zu%s", i, i % 2 ? "///" : "");
        temp_path path = temp_dir_path(&dir, name);
        nw_memory m;
        nw_memory_init(&m, UINT64_MAX, NULL);
        if (write_model(&m, path.text, cases[i].shard_max, cases[i].step, &err) != NW_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(m.live, 0);
        assert_true(m.peak < 2 << 20); /* a buffer, never the data */
        check_model(path.text, cases[i].files);
        assert_int_equal(temp_dir_count(path.text), cases[i].files + (cases[i].files > 1) + 1);
        assert_int_equal(temp_dir_count(dir.path), i + 1); /* no temporary directory is left */
    }
    temp_dir_remove(&dir);
}

/* Which tensor goes where: groups stay together, a tensor is never split. */
static void test_shards(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    temp_path path = temp_dir_path(&dir, "m");
    nw_memory m;
    nw_error  err = {0};
    reader    r;
    nw_memory_init(&m, UINT64_MAX, NULL);
    assert_int_equal(write_model(&m, path.text, 1000000, 65536, &err), NW_OK);
    assert_int_equal(reader_open(&r, path.text), NW_OK);
    uint32_t a = nw_checkpoint_find(r.c, "a.q")->file, b = nw_checkpoint_find(r.c, "b.q")->file;
    assert_int_equal(nw_checkpoint_find(r.c, "a.norm")->file, a);
    assert_int_equal(nw_checkpoint_find(r.c, model[3].name)->file, a);
    assert_int_equal(nw_checkpoint_find(r.c, "b.k")->file, b);
    assert_true(a != b);
    for (size_t f = 0; f < nw_checkpoint_file_count(r.c); f++) {
        char name[64];
        snprintf(name, sizeof name, "/model-%05zu-of-%05zu.safetensors", f + 1, nw_checkpoint_file_count(r.c));
        assert_non_null(strstr(nw_checkpoint_file_path(r.c, f), name));
        uint64_t data = 0;
        size_t   tensors = 0;
        for (size_t t = 0; t < nw_checkpoint_tensor_count(r.c); t++) {
            const nw_tensor *found = nw_checkpoint_tensor(r.c, t);
            data += found->file == f ? found->bytes : 0;
            tensors += found->file == f && found->bytes > 0;
        }
        assert_true(data <= 1000000 || tensors == 1);
    }
    reader_close(&r);
    temp_dir_remove(&dir);
}

/* The bytes of a small file, as the reference would lay them out. */
static void test_layout(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"x\":{\"dtype\":\"BF16\",\"shape\":[2,1],"
                                 "\"data_offsets\":[0,4]}}";
    temp_dir          dir = temp_dir_make();
    temp_path         path = temp_dir_path(&dir, "m"), file = temp_dir_path(&dir, "m/model.safetensors");
    nw_memory         m;
    nw_writer        *w = NULL;
    nw_error          err = {0};
    uint64_t          dims[2] = {2, 1};
    unsigned char     bytes[256];
    nw_memory_init(&m, UINT64_MAX, NULL);
    assert_int_equal(nw_writer_open(&m, path.text, 0, &w, &err), NW_OK);
    assert_int_equal(nw_writer_declare(w, "x", NW_BF16, dims, 2, &err), NW_OK);
    assert_int_equal(nw_writer_data(w, "\1\2\3\4", 4, &err), NW_OK);
    assert_int_equal(nw_writer_finish(w, &err), NW_OK);
    nw_writer_close(w);
    FILE *f = fopen(file.text, "rb");
    assert_non_null(f);
    size_t got = fread(bytes, 1, sizeof bytes, f), len = sizeof header - 1, padded = (len + 7) / 8 * 8;
    fclose(f);
    assert_int_equal(got, 8 + padded + 4);
    assert_int_equal(bytes[0], padded);
    assert_memory_equal(bytes + 8, header, len);
    for (size_t i = len; i < padded; i++)
        assert_int_equal(bytes[8 + i], ' ');
    assert_memory_equal(bytes + 8 + padded, "\1\2\3\4", 4);
    struct stat st;
    mode_t      mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path.text, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0777 & ~mask); /* a model like any other directory, not a private one */
    temp_dir_remove(&dir);
}

static void test_target(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    nw_memory m;
    nw_error  err = {0};
    nw_memory_init(&m, UINT64_MAX, NULL);
    temp_path path = temp_dir_path(&dir, "m");
    assert_int_equal(mkdir(path.text, 0755), 0); /* an empty directory is as good as none */
    assert_int_equal(write_model(&m, path.text, 0, 65536, &err), NW_OK);
    check_model(path.text, 1);
    assert_int_equal(write_model(&m, path.text, 0, 65536, &err), NW_E_IO); /* but nothing is overwritten */
    assert_non_null(strstr(err.msg, path.text));
    check_model(path.text, 1);

    temp_path file = temp_dir_write(&dir, "file", "x", 1);
    assert_int_equal(write_model(&m, file.text, 0, 65536, &err), NW_E_IO);
    temp_path nowhere = temp_dir_path(&dir, "no/where");
    assert_int_equal(write_model(&m, nowhere.text, 0, 65536, &err), NW_E_IO);
    assert_int_equal(write_model(&m, "", 0, 65536, &err), NW_E_ARG);
    assert_int_equal(temp_dir_count(dir.path), 2);
    assert_int_equal(m.live, 0);
    temp_dir_remove(&dir);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", "__metadata__", "a\nb"};
    static const char *const files[] = {"", ".", "..", "a/b", "../x", "a\nb"};
    temp_dir                 dir = temp_dir_make();
    temp_path                path = temp_dir_path(&dir, "m");
    nw_memory                m;
    nw_error                 err = {0};
    uint64_t dims[2] = {2, 2}, huge[2] = {UINT64_MAX / 2, 4}, large[2] = {(uint64_t)1 << 30, (uint64_t)1 << 28};
    nw_memory_init(&m, UINT64_MAX, NULL);
    for (size_t i = 0; i < 12; i++) {
        nw_writer *w = NULL;
        nw_code    rc = nw_writer_open(&m, path.text, 0, &w, &err);
        assert_int_equal(rc, NW_OK);
        if (i < 3) {
            assert_int_equal(nw_writer_declare(w, names[i], NW_F32, dims, 2, &err), NW_E_ARG);
        } else if (i < 9) {
            assert_int_equal(nw_writer_file(w, files[i - 3], "x", 1, &err), NW_E_ARG);
        } else if (i == 9) {
            assert_int_equal(nw_writer_declare(w, "huge", NW_F32, huge, 2, &err), NW_E_ARG);
        } else if (i == 10) { /* a quintillion bytes: no disk has room */
            assert_int_equal(nw_writer_declare(w, "large", NW_F32, large, 2, &err), NW_OK);
            assert_int_equal(nw_writer_data(w, "x", 1, &err), NW_E_IO);
            assert_non_null(strstr(err.msg, "free"));
        } else {
            assert_int_equal(nw_writer_declare(w, "twice", NW_F32, dims, 2, &err), NW_OK);
            assert_int_equal(nw_writer_declare(w, "twice", NW_F16, dims, 1, &err), NW_OK);
            assert_int_equal(nw_writer_data(w, "x", 1, &err), NW_E_ARG);
            assert_non_null(strstr(err.msg, "twice"));
        }
        nw_writer_close(w);
        assert_int_equal(temp_dir_count(dir.path), 0);
        assert_int_equal(m.live, 0);
    }
    temp_dir_remove(&dir);
}

/* Closed before the end, at many places: nothing is left. */
static void test_abandoned(void **state)
{
    (void)state;
    temp_dir dir = temp_dir_make();
    for (uint64_t bytes = 0; bytes < 8000000; bytes += 1300001) {
        temp_path  path = temp_dir_path(&dir, "m");
        nw_memory  m;
        nw_writer *w = NULL;
        nw_error   err = {0};
        nw_memory_init(&m, UINT64_MAX, NULL);
        assert_int_equal(nw_writer_open(&m, path.text, 1000000, &w, &err), NW_OK);
        assert_int_equal(declare_all(w, &err), NW_OK);
        assert_int_equal(nw_writer_file(w, "config.json", "{}", 2, &err), NW_OK);
        assert_int_equal(write_data(w, 65536, bytes, &err), NW_OK);
        check_refused(path.text);
        nw_writer_close(w);
        assert_int_equal(temp_dir_count(dir.path), 0);
        assert_int_equal(m.live, 0);
    }
    temp_dir_remove(&dir);
}

typedef struct {
    const char *path;
    bool        sharded;
    uint64_t    bytes;
} killed;

static int write_killed(void *user)
{
    const killed *k = user;
    nw_memory     m;
    nw_writer    *w = NULL;
    nw_memory_init(&m, UINT64_MAX, NULL);
    if (nw_writer_open(&m, k->path, k->sharded ? 1000000 : 0, &w, NULL) == NW_OK && declare_all(w, NULL) == NW_OK &&
        write_data(w, 65536, k->bytes, NULL) == NW_OK)
        raise(SIGKILL);
    return 1;
}

/* Killed at many places: the target is not there, and the directory that is left does not open as a model. */
static void test_killed(void **state)
{
    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        for (uint64_t bytes = 0; bytes < 8000000; bytes += 1900003) {
            temp_dir  dir = temp_dir_make();
            temp_path path = temp_dir_path(&dir, "m");
            check_killed(write_killed, &(killed){path.text, sharded, bytes}, &dir, "m", check_refused);
            temp_dir_remove(&dir);
        }
    }
}

static nw_code write_one_file(nw_memory *mem, const char *path, nw_error *err)
{
    return write_model(mem, path, 0, 65536, err);
}

static nw_code write_shards(nw_memory *mem, const char *path, nw_error *err)
{
    return write_model(mem, path, 1000000, 65536, err);
}

static void test_no_room(void **state)
{
    (void)state;
    check_no_room(write_one_file, 3 << 20);
}

static void test_every_allocation(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    temp_path path = temp_dir_path(&dir, "m");
    check_every_allocation(write_shards, &dir, path.text, 4, 100);
    temp_dir_remove(&dir);
}

/* What was written is on the disk, not in memory that nobody counted. */
static void test_not_cached(void **state)
{
    (void)state;
    temp_dir      dir = temp_dir_make();
    temp_path     path = temp_dir_path(&dir, "m"), file = temp_dir_path(&dir, "m/model.safetensors");
    nw_memory     m;
    nw_error      err = {0};
    struct statfs fs;
    assert_int_equal(statfs(dir.path, &fs), 0);
    if (fs.f_type == 0x01021994) {
        temp_dir_remove(&dir);
        print_message("tmpfs has no disk to be on\n");
        skip();
    }
    nw_memory_init(&m, UINT64_MAX, NULL);
    assert_int_equal(write_model(&m, path.text, 0, 65536, &err), NW_OK);
    int fd = open(file.text, O_RDONLY);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    size_t bytes = (size_t)st.st_size, pages = (bytes + 4095) / 4096, cached = 0;
    void  *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(view != MAP_FAILED);
    static unsigned char resident[4096];
    assert_true(pages <= sizeof resident);
    assert_int_equal(mincore(view, bytes, resident), 0);
    for (size_t i = 0; i < pages; i++)
        cached += resident[i] & 1;
    munmap(view, bytes);
    close(fd);
    temp_dir_remove(&dir);
    if (cached > 16)
        fail_msg("%zu of %zu pages are cached", cached, pages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_shards),  cmocka_unit_test(test_layout),
        cmocka_unit_test(test_target),     cmocka_unit_test(test_refused), cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_killed),     cmocka_unit_test(test_no_room), cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_not_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* One device and one account for tests of the checkpoint reader, and small PyTorch files to open. */
#ifndef NW_TEST_TORCH_BENCH_H
#define NW_TEST_TORCH_BENCH_H

#include "loader/checkpoint.h"
#include "loader/io_fake.h"
#include "temp_dir.h"
#include "torch_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    nw_memory  mem, io_mem;
    nw_io_fake fake;
    nw_io     *io;
    uint64_t   read_bytes;
} bench;

static inline void bench_open(bench *b, uint64_t memory_max, nw_memory_fault *fault)
{
    *b = (bench){.fake = {.seed = 12345}};
    nw_memory_init(&b->io_mem, UINT64_MAX, NULL);
    nw_memory_init(&b->mem, memory_max, fault);
    nw_error err = {0};
    assert_int_equal(nw_io_fake_open(&b->io_mem, &b->fake, 4, &b->io, &err), NW_OK);
}

/* What was opened is closed: not a byte may be left. */
static inline void bench_close(bench *b)
{
    b->io = nw_io_close(b->io);
    assert_int_equal(b->mem.live, 0);
}

static inline nw_code bench_checkpoint(bench *b, const char *path, nw_checkpoint **ret, nw_error *err)
{
    *ret = NULL;
    *err = (nw_error){0};
    return nw_checkpoint_open(&b->mem, b->io, path, NULL, &b->read_bytes, ret, err);
}

/* Opens the bytes as pytorch_model.bin and expects an error of one line that has `word`; NULL: any error will do. */
static inline void bench_refused(const temp_dir *dir, const torch_bytes *bytes, nw_code code, const char *word)
{
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    temp_path      path = temp_dir_write(dir, "pytorch_model.bin", bytes->data, bytes->len);
    bench_open(&b, (uint64_t)64 << 20, NULL);
    nw_code rc = bench_checkpoint(&b, path.text, &c, &err);
    bool    named = strstr(err.msg, path.text) != NULL && strchr(err.msg, '\n') == NULL;
    if (word == NULL ? rc != NW_E_FORMAT && rc != NW_E_UNSUPPORTED : rc != code || strstr(err.msg, word) == NULL)
        fail_msg("wanted %d with '%s', got %d '%s'", (int)code, word != NULL ? word : "", (int)rc, err.msg);
    if (!named || err.code != rc)
        fail_msg("an error that does not name its file: '%s'", err.msg);
    assert_null(c);
    bench_close(&b);
}

/* A file in memory that a torch_zip writes to. */
typedef struct {
    torch_zip zip;
    char     *text;
    size_t    len;
} memory_zip;

static inline void memory_zip_open(memory_zip *m, const char *prefix)
{
    *m = (memory_zip){0};
    FILE *f = open_memstream(&m->text, &m->len);
    assert_non_null(f);
    torch_zip_open(&m->zip, f, prefix);
}

/* The bytes are the caller's: free(data). The entries' places stay in m->zip. */
static inline torch_bytes memory_zip_close(memory_zip *m)
{
    torch_zip_close(&m->zip);
    assert_int_equal(fclose(m->zip.file), 0);
    return (torch_bytes){.data = (unsigned char *)m->text, .len = m->len, .cap = m->len};
}

/* An archive around a pickle, with one storage "0" of `bytes` bytes: 0, 1, 2, ... */
static inline torch_bytes archive_of(const torch_bytes *pickle, size_t bytes, torch_entry **ret_entries)
{
    memory_zip m;
    memory_zip_open(&m, "archive");
    torch_zip_add(&m.zip, "data.pkl", pickle->data, pickle->len);
    torch_zip_facts(&m.zip);
    torch_zip_begin(&m.zip, "data/0", bytes);
    for (size_t i = 0; i < bytes; i++)
        torch_zip_data(&m.zip, &(unsigned char){(unsigned char)i}, 1);
    torch_zip_end(&m.zip);
    torch_zip_add(&m.zip, "version", "3\n", 2);
    torch_bytes file = memory_zip_close(&m);
    if (ret_entries != NULL)
        *ret_entries = m.zip.entries;
    else
        free(m.zip.entries);
    return file;
}

#endif

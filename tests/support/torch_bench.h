/* Small PyTorch files, and what becomes of them in the checkpoint reader. */
#ifndef NW_TEST_TORCH_BENCH_H
#define NW_TEST_TORCH_BENCH_H

#include "checkpoint_bench.h"
#include "temp_dir.h"
#include "torch_writer.h"

/* The files of one program: a group's setup makes the directory, its teardown removes it. */
static temp_dir bench_dir;

static inline int bench_make_dir(void **state)
{
    (void)state;
    bench_dir = temp_dir_make();
    return 0;
}

static inline int bench_remove_dir(void **state)
{
    (void)state;
    temp_dir_remove(&bench_dir);
    return 0;
}

static inline temp_path bench_write(const torch_bytes *bytes)
{
    return temp_dir_write(&bench_dir, "pytorch_model.bin", bytes->data, bytes->len);
}

/* Opens the bytes as pytorch_model.bin and expects an error of one line that has `word`; NULL: any error will do. */
static inline void bench_refused(const torch_bytes *bytes, nw_code code, const char *word)
{
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    temp_path      path = bench_write(bytes);
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

/* Opens damaged bytes, on attempt `attempt`: true if they open as tensors of at most `bytes_max` bytes that lie before
 * `end`; false if they are refused with a line that names the file. */
static inline bool bench_damaged(const torch_bytes *bytes, uint64_t end, uint64_t bytes_max, size_t attempt)
{
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    temp_path      path = bench_write(bytes);
    bench_open(&b, (uint64_t)64 << 20, NULL);
    nw_code rc = bench_checkpoint(&b, path.text, &c, &err);
    if (rc == NW_OK) {
        for (size_t i = 0; i < nw_checkpoint_tensor_count(c); i++) {
            const nw_tensor *t = nw_checkpoint_tensor(c, i);
            assert_true(t->bytes <= bytes_max && t->offset <= end && t->bytes <= end - t->offset);
        }
    } else if ((rc != NW_E_FORMAT && rc != NW_E_UNSUPPORTED) || strstr(err.msg, path.text) == NULL) {
        fail_msg("%zu: %d '%s'", attempt, (int)rc, err.msg);
    }
    nw_checkpoint_close(c);
    bench_close(&b);
    return rc == NW_OK;
}

/* Cuts the bytes everywhere. */
static inline void bench_every_cut(torch_bytes *bytes)
{
    size_t whole = bytes->len;
    for (bytes->len = 1; bytes->len < whole; bytes->len++)
        bench_refused(bytes, NW_E_FORMAT, NULL);
    bytes->len = whole;
}

/* Every allocation and every read of whole bytes may fail; the error is of that kind, and nothing is left. There are
 * more than 10 allocations and `reads_least` reads. */
static inline void bench_faults(const torch_bytes *bytes, uint64_t reads_least)
{
    temp_path path = bench_write(bytes);
    for (int reads = 0; reads < 2; reads++) {
        bool fired = true;
        for (uint64_t at = 1; fired; at++) {
            nw_memory_fault fault = {.fail_at = reads ? 0 : at};
            bench           b;
            nw_checkpoint  *c;
            nw_error        err;
            bench_open(&b, UINT64_MAX, &fault);
            b.fake.short_percent = b.fake.retry_percent = 0; /* each read once */
            b.fake.fail_at = reads ? at : 0;
            b.fake.fail_errno = 5; /* EIO */
            nw_code rc = bench_checkpoint(&b, path.text, &c, &err);
            fired = reads ? b.fake.fired : fault.fired;
            assert_int_equal(rc, !fired ? NW_OK : reads ? NW_E_IO : NW_E_MEMORY);
            assert_int_equal(err.code, rc);
            assert_true(fired || at > (reads ? reads_least : 10));
            nw_checkpoint_close(c);
            bench_close(&b);
        }
    }
}

/* A tensor that is all of its storage. */
static inline void pickle_whole(torch_pickle *p, const char *name, const char *type, const char *key,
                                const uint64_t *dims, size_t dim_count, bool legacy)
{
    uint64_t strides[8], numel = 1;
    NW_CHECK(dim_count <= 8);
    torch_strides(dims, dim_count, strides);
    for (size_t i = 0; i < dim_count; i++)
        numel *= dims[i];
    torch_pickle_tensor(p, &(torch_tensor){name, type, key, numel, 0, dims, strides, dim_count, legacy});
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

/* Checkpoints on disk, read with the project's own reader into the heap: to compare what was written with its source.
 */
#ifndef NW_TEST_TENSOR_FILES_H
#define NW_TEST_TENSOR_FILES_H

#include "base/check.h"
#include "hooks.h"
#include "loader/checkpoint.h"
#include "narrows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every golden case. */
static const char *const golden_cases[] = {"t5-v1.0-tied",
                                           "t5-v1.1",
                                           "flan-bf16-shards",
                                           "flan-f16",
                                           "mt5",
                                           "umt5",
                                           "byt5",
                                           "ul2",
                                           "madlad",
                                           "long",
                                           "encoder-only",
                                           "odd-sizes",
                                           "buckets",
                                           "three-embeddings",
                                           "gelu-exact",
                                           "bin",
                                           "bin-shards-f16"};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

/* The directory of a golden case, or of numbers-t5. */
static inline void golden_dir(const char *name, char ret[1024])
{
    snprintf(ret, 1024, "%s/%s%s", NW_TEST_DATA, strcmp(name, "numbers-t5") == 0 ? "" : "goldens/", name);
}

typedef struct {
    nw_memory      mem;
    nw_io         *io;
    nw_checkpoint *c;
} tensor_files;

static inline void tensor_files_open(tensor_files *f, const char *dir)
{
    nw_error err = {0};
    nw_memory_init(&f->mem, UINT64_MAX, NULL);
    NW_CHECK(nw_io_open(&f->mem, &(nw_io_options){.depth = 1}, &f->io, &err) == NW_OK);
    nw_code rc = nw_checkpoint_open(&f->mem, f->io, dir, NULL, NULL, &f->c, &err);
    if (rc != NW_OK)
        printf("%s\n", err.msg);
    NW_CHECK(rc == NW_OK);
}

static inline void tensor_files_close(tensor_files *f)
{
    nw_checkpoint_close(f->c);
    nw_io_close(f->io);
}

/* A tensor's bytes as they stand in its file; the caller frees them. */
static inline void *tensor_files_read(tensor_files *f, const nw_tensor *t)
{
    nw_error err = {0};
    void    *data = malloc((size_t)t->bytes + 1);
    NW_CHECK(data != NULL);
    NW_CHECK(nw_file_read(&f->mem, f->io, nw_checkpoint_file(f->c, t->file), t->name, t->offset, data, (size_t)t->bytes,
                          NULL, &err) == NW_OK);
    return data;
}

/* Every tensor of `src` is in `dst` with its type, shape and bytes, but for `missing` of them, and there are no
 * others. Otherwise false, with what is different in `why`. */
static inline bool tensor_files_equal(const char *src, const char *dst, size_t missing, char why[200])
{
    tensor_files a, b;
    size_t       gone = 0;
    bool         equal = true;
    tensor_files_open(&a, src);
    tensor_files_open(&b, dst);
    size_t count = nw_checkpoint_tensor_count(a.c);
    for (size_t i = 0; i < count && equal; i++) {
        const nw_tensor *x = nw_checkpoint_tensor(a.c, i), *y = nw_checkpoint_find(b.c, x->name);
        if (y == NULL) {
            gone++;
            continue;
        }
        equal = x->bytes == y->bytes && x->dim_count == y->dim_count && memcmp(x->dims, y->dims, sizeof x->dims) == 0 &&
                strcmp(x->dtype_name, y->dtype_name) == 0;
        if (equal) {
            void *p = tensor_files_read(&a, x), *q = tensor_files_read(&b, y);
            equal = memcmp(p, q, (size_t)x->bytes) == 0;
            free(p);
            free(q);
        }
        if (!equal)
            snprintf(why, 200, "another type, shape or bytes: %.150s", x->name);
    }
    if (equal && (gone != missing || nw_checkpoint_tensor_count(b.c) + gone != count)) {
        snprintf(why, 200, "%zu tensors are missing, %zu are there", gone, nw_checkpoint_tensor_count(b.c));
        equal = false;
    }
    tensor_files_close(&a);
    tensor_files_close(&b);
    return equal;
}

/* Opens a model, and unpacks or packs it. */
static inline nw_code model_unpack(const char *src, const nw_unpack_options *o, nw_hooks *hooks, nw_unpack_result *r,
                                   nw_error *err)
{
    nw_model *m = NULL;
    nw_code   rc = nw_model_open(&(nw_model_options){.path = src, .hooks = hooks}, &m, err);
    if (rc == NW_OK)
        rc = nw_model_unpack(m, o, r, err);
    nw_model_close(m);
    return rc;
}

static inline nw_code model_pack(const char *src, const nw_pack_options *o, nw_hooks *hooks, nw_pack_result *r,
                                 nw_error *err)
{
    nw_model *m = NULL;
    nw_code   rc = nw_model_open(&(nw_model_options){.path = src, .hooks = hooks}, &m, err);
    if (rc == NW_OK)
        rc = nw_model_pack(m, o, r, err);
    nw_model_close(m);
    return rc;
}

#endif

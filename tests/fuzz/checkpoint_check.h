/* A file of weights opened as a checkpoint, and what must hold of every one that opens. */
#ifndef NW_FUZZ_CHECKPOINT_CHECK_H
#define NW_FUZZ_CHECKPOINT_CHECK_H

#include "fuzz_file.h"
#include "loader/checkpoint.h"

static inline void check_tensor(const nw_checkpoint *c, size_t index)
{
    const nw_file   *file = nw_checkpoint_file(c, 0);
    const nw_tensor *t = nw_checkpoint_tensor(c, index);
    uint64_t         count = 1;
    NW_CHECK(t->name[0] != '\0' && fuzz_utf8(t->name, strlen(t->name)));
    NW_CHECK(nw_checkpoint_find(c, t->name) == t);
    NW_CHECK(index == 0 || strcmp(nw_checkpoint_tensor(c, index - 1)->name, t->name) < 0);
    NW_CHECK(t->file == 0);
    NW_CHECK(t->dim_count <= NW_TENSOR_DIMS_MAX);
    NW_CHECK(t->offset <= file->size && t->bytes <= file->size - t->offset);
    NW_CHECK(strnlen(t->dtype_name, sizeof t->dtype_name) < sizeof t->dtype_name);
    for (uint32_t d = 0; d < t->dim_count; d++)
        NW_CHECK(nw_mul_u64(count, t->dims[d], &count));
    if (t->known)
        NW_CHECK(count * nw_dtype_bytes(t->dtype) == t->bytes);
    if (t->bytes > 0) {
        nw_extent extent = nw_file_extent(file, t->offset, t->bytes);
        NW_CHECK(extent.bytes_needed <= extent.bytes && extent.skip + t->bytes == extent.bytes_needed);
    }
}

/* Called with a checkpoint that opened; may be NULL. */
typedef void (*check_fn)(const nw_checkpoint *c, size_t size);

/* Again, with less memory than it took: refused for that, or for what was wrong before. */
static inline void check_refused(const fuzz_file *file, uint64_t limit, nw_code before)
{
    nw_memory      mem;
    nw_error       err = {0};
    nw_checkpoint *c = NULL;
    nw_memory_init(&mem, limit, NULL);
    nw_code rc = nw_checkpoint_open(&mem, fuzz_io(), file->path, NULL, NULL, &c, &err);
    NW_CHECK(rc == before || rc == NW_E_BUDGET);
    NW_CHECK((c != NULL) == fuzz_ok(rc, &err));
    nw_checkpoint_close(c);
    NW_CHECK(mem.live == 0);
}

static inline void check_weights(const uint8_t *data, size_t size, check_fn more)
{
    static fuzz_file file = {.fd = -1};
    nw_memory        mem;
    nw_error         err = {0};
    nw_checkpoint   *c = NULL;
    uint64_t         read_bytes = 0;
    if (file.fd < 0)
        file = fuzz_file_make();
    fuzz_file_set(&file, data, size);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_checkpoint_open(&mem, fuzz_io(), file.path, NULL, &read_bytes, &c, &err);
    NW_CHECK((c != NULL) == (rc == NW_OK));
    if (fuzz_parsed(rc, &err)) {
        NW_CHECK(nw_checkpoint_file_count(c) == 1);
        NW_CHECK(nw_checkpoint_find(c, "") == NULL);
        for (size_t i = 0; i < nw_checkpoint_tensor_count(c); i++)
            check_tensor(c, i);
        if (more != NULL)
            more(c, size);
        nw_checkpoint_close(c);
    }
    fuzz_memory_check(&mem, size);
    uint64_t draw = fuzz_hash(FUZZ_HASH, data, size);
    if (draw % 4 == 0 && mem.peak > 0)
        check_refused(&file, (draw >> 8) % mem.peak, rc);
}

#endif

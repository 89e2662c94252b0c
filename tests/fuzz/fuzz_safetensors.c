/* A safetensors file, opened as a checkpoint of one file: what is accepted is a sorted table of tensors whose data
 * covers the file exactly. */
#include "fuzz_file.h"
#include "loader/checkpoint.h"

static void check_tensor(const nw_checkpoint *c, size_t index)
{
    const nw_file   *file = nw_checkpoint_file(c, 0);
    const nw_tensor *t = nw_checkpoint_tensor(c, index);
    uint64_t         count = 1;
    NW_CHECK(t->name[0] != '\0' && fuzz_utf8(t->name, strlen(t->name)));
    NW_CHECK(nw_checkpoint_find(c, t->name) == t);
    NW_CHECK(index == 0 || strcmp(nw_checkpoint_tensor(c, index - 1)->name, t->name) < 0);
    NW_CHECK(t->file == 0);
    NW_CHECK(t->dim_count <= NW_TENSOR_DIMS_MAX);
    NW_CHECK(t->offset >= 8 && t->offset <= file->size && t->bytes <= file->size - t->offset);
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

static void check_checkpoint(const nw_checkpoint *c, size_t size)
{
    size_t   count = nw_checkpoint_tensor_count(c);
    uint64_t bytes = 0, first = size;
    NW_CHECK(nw_checkpoint_file_count(c) == 1);
    NW_CHECK(nw_checkpoint_find(c, "") == NULL);
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        check_tensor(c, i);
        bytes += t->bytes;
        first = nw_min_u64(first, t->offset);
    }
    NW_CHECK(first + bytes == size); /* each within the file: so no two overlap */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
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
        check_checkpoint(c, size);
        c = nw_checkpoint_close(c);
    }
    fuzz_memory_check(&mem, size);
    return 0;
}

#ifdef NW_FUZZ
/* Highest number in a pair "[a,b]" of the header: where the data should end if these are the offsets. */
static uint64_t data_end(const uint8_t *header, size_t len)
{
    uint64_t end = 0;
    for (size_t i = 1; i < len; i++) {
        if (header[i - 1] != ',' || header[i] < '0' || header[i] > '9')
            continue;
        uint64_t value = 0;
        size_t   at = i;
        while (at < len && header[at] >= '0' && header[at] <= '9' && value < 1000000)
            value = value * 10 + (uint64_t)(header[at++] - '0');
        if (at < len && header[at] == ']' && value <= 65536)
            end = nw_max_u64(end, value);
    }
    return end;
}

/* Mutates the header's text and mostly makes the length before it, and the data behind it, fit again: few other inputs
 * get past the first check. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    uint64_t draw = fuzz_hash(FUZZ_HASH, &seed, sizeof seed);
    if (size < 8 || max < 64 || draw % 16 == 0)
        return LLVMFuzzerMutate(data, size, max);
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | data[i];
    len = nw_min_u64(len, size - 8);
    len = LLVMFuzzerMutate(data + 8, (size_t)len, max - 8);
    for (int i = 0; i < 8; i++)
        data[i] = (uint8_t)(len >> (8 * i));
    uint64_t tail = data_end(data + 8, (size_t)len);
    if ((draw >> 8) % 8 == 0)
        tail += (draw >> 16) % 3 - 1;
    tail = nw_min_u64(tail, max - 8 - len);
    memset(data + 8 + len, 0, (size_t)tail);
    return (size_t)(8 + len + tail);
}
#endif

/* A safetensors file, opened as a checkpoint of one file: what is accepted is a sorted table of tensors whose data
 * covers the file exactly. */
#include "checkpoint_check.h"

static void check_cover(const nw_checkpoint *c, size_t size)
{
    uint64_t bytes = 0, first = size;
    for (size_t i = 0; i < nw_checkpoint_tensor_count(c); i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        bytes += t->bytes;
        first = nw_min_u64(first, t->offset);
    }
    NW_CHECK(first >= 8);
    NW_CHECK(first + bytes == size); /* each within the file: so no two overlap */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t len = UINT64_MAX; /* of the header; the rest of the formats have targets of their own */
    if (size >= 8)
        memcpy(&len, data, 8);
    check_weights(data, size, size >= 8 && len <= size - 8 ? check_cover : NULL);
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

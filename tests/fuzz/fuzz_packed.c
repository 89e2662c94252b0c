/* A packed strip: one byte of type, two of elements, and the strip. Never writes beyond the elements, and what is
 * accepted gives the same elements when it is packed again. */
#include "fuzz.h"
#include "loader/packed.h"

#include <stdlib.h>

static nw_packed *codec(nw_packed_use use)
{
    static nw_packed *codecs[2];
    if (codecs[use] == NULL) {
        size_t bytes = nw_packed_workspace_bytes(use);
        codecs[use] = nw_packed_init(aligned_alloc(64, (bytes + 63) / 64 * 64), bytes, use);
    }
    return codecs[use];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    nw_dtype dtype = (nw_dtype)(data[0] % NW_DTYPE_COUNT);
    size_t   n = 1 + (data[1] | (size_t)data[2] << 8), bytes = n * nw_dtype_bytes(dtype);
    /* Of exactly their sizes, so that the address sanitizer sees a byte too many. */
    unsigned char *src = malloc(size - 3 + 1), *out = malloc(bytes), *again = malloc(bytes);
    NW_CHECK(src != NULL && out != NULL && again != NULL);
    memcpy(src + 1, data + 3, size - 3);
    const char *why = nw_packed_decode(codec(NW_PACKED_DECODE), dtype, src + 1, size - 3, out, n);
    if (why != NULL) {
        NW_CHECK(strlen(why) > 0 && strlen(why) < 100);
    } else {
        size_t stored = nw_packed_encode(codec(NW_PACKED_ENCODE), dtype, out, n, again);
        NW_CHECK(stored < bytes);
        if (stored > 0) {
            unsigned char *restored = malloc(bytes);
            NW_CHECK(restored != NULL);
            NW_CHECK(nw_packed_decode(codec(NW_PACKED_DECODE), dtype, again, stored, restored, n) == NULL);
            NW_CHECK(memcmp(restored, out, bytes) == 0);
            free(restored);
        }
    }
    free(src);
    free(out);
    free(again);
    return 0;
}

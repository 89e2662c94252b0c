/* Huffman-coded planes: a byte of choices, two of the plane's length, and either a frame, or the literals of one,
 * around which headers of the right sizes are put so that mutations get further than these. What our decoder accepts,
 * the library decodes, to the same bytes. */
#include "fuzz.h"
#include "huffman.h"

#include <stdlib.h>
#include <zstd.h>

/* A plain frame of n literals: code table, jump table and streams are given. Returns its bytes. */
static size_t frame_around(const uint8_t *given, size_t bytes, size_t n, unsigned format, unsigned char *frame)
{
    unsigned bits = 6 + 4 * format;
    uint64_t literals = 2 | format << 2 | (uint64_t)n << 4 | (uint64_t)bytes << (4 + bits);
    uint64_t block = (2 + format + bytes + 1) << 3 | 5;
    uint64_t content = n < 256 ? n : n - 256;
    size_t   content_bytes = n < 256 ? 1 : 2, at = 5;
    memcpy(frame, (const unsigned char[]){0x28, 0xb5, 0x2f, 0xfd, n < 256 ? 0x20 : 0x60}, 5);
    for (size_t i = 0; i < content_bytes; i++)
        frame[at++] = (unsigned char)(content >> 8 * i);
    for (size_t i = 0; i < 3; i++)
        frame[at++] = (unsigned char)(block >> 8 * i);
    for (size_t i = 0; i < 2 + format; i++)
        frame[at++] = (unsigned char)(literals >> 8 * i);
    memcpy(frame + at, given, bytes);
    at += bytes;
    frame[at++] = 0; /* no sequences */
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ZSTD_DCtx *library;
    if (library == NULL)
        library = ZSTD_createDCtx();
    if (size < 3 || size > 65536)
        return 0;
    size_t         n = 1 + (data[1] | (size_t)data[2] << 8), bytes = size - 3;
    unsigned       format = 1 + data[0] / 2 % 3;
    unsigned char *frame = malloc(size + 32);
    NW_CHECK(frame != NULL);
    if (data[0] % 2 == 0)
        bytes = frame_around(data + 3, size - 3, n, format, frame);
    else
        memcpy(frame, data + 3, bytes);
    /* Of exactly their sizes, so that the address sanitizer sees a byte too many. */
    unsigned char *src = malloc(bytes + 1), *out = malloc(n + 1), *expected = malloc(n);
    nw_huffman    *huffman = malloc(sizeof *huffman);
    NW_CHECK(src != NULL && out != NULL && expected != NULL && huffman != NULL);
    memcpy(src + 1, frame, bytes);
    memset(huffman, data[0], sizeof *huffman);
    if (nw_huffman_decode(huffman, src + 1, bytes, out + 1, n)) {
        NW_CHECK(ZSTD_decompressDCtx(library, expected, n, frame, bytes) == n);
        NW_CHECK(memcmp(expected, out + 1, n) == 0);
    }
    free(huffman);
    free(expected);
    free(out);
    free(src);
    free(frame);
    return 0;
}

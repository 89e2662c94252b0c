/* The short cut past the library: whatever it accepts has the library's bytes, and it accepts what our encoder makes of
 * weights. Damaged frames are judged by the library too. */
#include "../../../loader/huffman.h"
#include "base/bytes.h"
#include "base/size.h"
#include "loader/packed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

enum { PLANE_MAX = 65536 };

typedef struct {
    void          *place;
    nw_packed     *encoder;
    ZSTD_CCtx     *zstd_encoder;
    ZSTD_DCtx     *zstd_decoder;
    nw_huffman    *huffman;
    unsigned char *plane, *elements, *frame, *other; /* two bytes a plane's byte */
    size_t         accepted, refused;
    size_t         direct, fse, format[4]; /* of those accepted: how the weights are written; which literals' header */
} bench;

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, nw_round_up(bytes, 64));
    assert_non_null(p);
    return p;
}

static bench bench_open(void)
{
    size_t bytes = nw_packed_workspace_bytes(NW_PACKED_ENCODE);
    bench  b = {.place = take(bytes),
                .zstd_encoder = ZSTD_createCCtx(),
                .zstd_decoder = ZSTD_createDCtx(),
                .huffman = take(sizeof(nw_huffman)),
                .plane = take(PLANE_MAX),
                .elements = take(2 * PLANE_MAX),
                .frame = take(2 * PLANE_MAX),
                .other = take(2 * PLANE_MAX)};
    b.encoder = nw_packed_init(b.place, bytes, NW_PACKED_ENCODE);
    assert_true(b.zstd_encoder != NULL && b.zstd_decoder != NULL);
    memset(b.huffman, 0xee, sizeof *b.huffman);
    return b;
}

static void bench_close(bench *b)
{
    ZSTD_freeCCtx(b->zstd_encoder);
    ZSTD_freeDCtx(b->zstd_decoder);
    free(b->place);
    free(b->huffman);
    free(b->plane);
    free(b->elements);
    free(b->frame);
    free(b->other);
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 32;
}

/* -- planes -- */

typedef enum {
    UNIFORM_2,
    UNIFORM_3,
    UNIFORM_8,
    UNIFORM_100,
    EVERY_SYMBOL, /* all 256, some of them often */
    HALF,         /* one symbol half of the time: a code of one bit */
    MOST,         /* one symbol nearly always, the others rarely: codes of one bit and of eleven */
    GEOMETRIC,    /* codes of each length */
    EXPONENTS,    /* as weights have them */
    LOW_SYMBOLS,  /* weights that are written directly */
    PLANES
} plane_kind;

static unsigned char draw(plane_kind kind, uint64_t *seed)
{
    uint64_t x = next(seed), zeros = (uint64_t)__builtin_ctzll(next(seed) | (uint64_t)1 << 30);
    switch (kind) {
    case UNIFORM_2: return x % 2 ? 0 : 255;
    case UNIFORM_3: return (unsigned char)(x % 3);
    case UNIFORM_8: return (unsigned char)(x % 8 * 30);
    case UNIFORM_100: return (unsigned char)(x % 100);
    case EVERY_SYMBOL: return (unsigned char)(x % 3 ? x >> 8 & 7 : x >> 8 & 255);
    case HALF: return (unsigned char)(x % 2 ? 17 : x % 11);
    case MOST: return (unsigned char)(x % 40 ? 200 : x >> 8 & 127);
    case GEOMETRIC: return (unsigned char)(zeros * 3);
    case EXPONENTS: return (unsigned char)(122 - zeros - (x % 4 == 0) + (x % 9 == 0));
    default: return (unsigned char)(x % 16 ? x >> 8 & 3 : x >> 8 & 15);
    }
}

static void plane_fill(unsigned char *plane, plane_kind kind, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        plane[i] = draw(kind, &seed);
}

/* The frame that our encoder makes of a plane: that of the high bytes of a strip. Returns 0 if it makes none. */
static size_t frame_encode(bench *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned x = (unsigned)b->plane[i] << 8 | 0x55;
        x = x >> 1 | x << 15;
        b->elements[2 * i] = (unsigned char)x;
        b->elements[2 * i + 1] = (unsigned char)(x >> 8);
    }
    size_t stored = nw_packed_encode(b->encoder, NW_BF16, b->elements, n, b->other);
    size_t bytes = stored > 0 ? nw_get_u32(b->other + 4) : n;
    if (bytes == n)
        return 0;
    memcpy(b->frame, b->other + 12, bytes);
    return bytes;
}

/* -- one frame -- */

/* Whether it is decoded, from and to memory of exactly its sizes, so that the address sanitizer sees a byte too many.
 * What is accepted is what the library makes of it. */
static bool frame_check(bench *b, const unsigned char *frame, size_t bytes, size_t n)
{
    unsigned char *exact = malloc(bytes + 1), *out = malloc(n + 1);
    assert_true(exact != NULL && out != NULL);
    memcpy(exact + 1, frame, bytes);
    out[0] = 0x5a;
    bool accepted = nw_huffman_decode(b->huffman, exact + 1, bytes, out + 1, n);
    assert_int_equal(out[0], 0x5a);
    if (accepted) {
        assert_int_equal(ZSTD_decompressDCtx(b->zstd_decoder, b->other, 2 * PLANE_MAX, frame, bytes), n);
        assert_memory_equal(b->other, out + 1, n);
    }
    free(exact);
    free(out);
    b->accepted += accepted;
    b->refused += !accepted;
    return accepted;
}

/* Where the literals' header begins in a plain frame. */
static size_t literals_at(const unsigned char *frame)
{
    return 5 + ((size_t)1 << (frame[4] >> 6)) + 3;
}

static void count_kind(bench *b, const unsigned char *frame)
{
    size_t at = literals_at(frame), format = frame[at] >> 2 & 3;
    b->format[format]++;
    if (frame[at + 2 + format] < 128)
        b->fse++;
    else
        b->direct++;
}

/* Every length at which something begins to be another way, and where streams end in each way there is. */
static size_t next_length(size_t n)
{
    if (n < 40 || (n >= 250 && n < 290) || (n >= 1015 && n < 1035) || n >= PLANE_MAX - 4)
        return n + 1;
    size_t stop = n < 250 ? 250 : n < 1015 ? 1015 : PLANE_MAX - 4;
    return nw_min_size(n + n / 5, stop);
}

static void test_planes(void **state)
{
    (void)state;
    static const int levels[] = {-20, 1, 5};
    bench            b = bench_open();
    size_t           frames = 0, others = 0;
    for (plane_kind kind = 0; kind < PLANES; kind++) {
        for (size_t n = 1; n <= PLANE_MAX; n = next_length(n)) {
            plane_fill(b.plane, kind, n, n * PLANES + kind);
            size_t bytes = frame_encode(&b, n);
            frames += bytes > 0;
            if (bytes > 0 && frame_check(&b, b.frame, bytes, n))
                count_kind(&b, b.frame);
            else if (bytes > 0 && n >= 256) /* shorter planes have one stream */
                fail_msg("our encoder's frame of %zu bytes, kind %d, is not decoded", n, kind);
            for (size_t i = 0; i < sizeof levels / sizeof *levels && n <= 20000; i++) {
                ZSTD_CCtx_setParameter(b.zstd_encoder, ZSTD_c_compressionLevel, levels[i]);
                bytes = ZSTD_compress2(b.zstd_encoder, b.frame, 2 * PLANE_MAX, b.plane, n);
                assert_false(ZSTD_isError(bytes));
                others += frame_check(&b, b.frame, bytes, n);
            }
        }
    }
    print_message("%zu of our %zu frames (FSE %zu, direct %zu; formats %zu %zu %zu), %zu others\n", b.fse + b.direct,
                  frames, b.fse, b.direct, b.format[1], b.format[2], b.format[3], others);
    assert_true(b.fse > 200 && b.direct > 200 && b.format[1] > 200 && b.format[2] > 100 && b.format[3] > 50);
    bench_close(&b);
}

/* Codes of one bit, of eleven, and as many symbols of each entry as there are places, through to the last byte. */
static void test_long_runs(void **state)
{
    (void)state;
    bench b = bench_open();
    for (size_t run = 1; run < 64; run++) {
        for (size_t i = 0; i < 3000; i++)
            b.plane[i] = (unsigned char)(i % run == 0 ? i / run : 99);
        size_t bytes = frame_encode(&b, 3000);
        assert_true(bytes > 0 || run == 1);
        assert_true(bytes == 0 || frame_check(&b, b.frame, bytes, 3000));
    }
    bench_close(&b);
}

/* -- damage -- */

/* Sizes in the headers as they are for so many bytes, so that what is cut is looked at. */
static void sizes_repair(unsigned char *frame, size_t bytes)
{
    size_t   at = literals_at(frame), format = frame[at] >> 2 & 3, bits = 6 + 4 * format;
    uint32_t block = (uint32_t)(bytes - at) << 3 | 5;
    memcpy(frame + at - 3, &(unsigned char[]){(unsigned char)block, (unsigned char)(block >> 8), 0}, 3);
    uint64_t literals = 0;
    for (size_t i = 0; i < 2 + format; i++)
        literals |= (uint64_t)frame[at + i] << 8 * i;
    literals &= ((uint64_t)1 << (4 + bits)) - 1;
    literals |= (uint64_t)(bytes - 1 - (at + 2 + format)) << (4 + bits);
    for (size_t i = 0; i < 2 + format; i++)
        frame[at + i] = (unsigned char)(literals >> 8 * i);
}

/* Returns the bytes that are left. */
static size_t damage(unsigned char *frame, size_t bytes, uint64_t *seed)
{
    size_t head = literals_at(frame), cut = 0;
    switch (next(seed) % 6) {
    case 0: /* a bit anywhere */ frame[next(seed) % bytes] ^= (unsigned char)(1 << next(seed) % 8); break;
    case 1: /* bits of the headers, the weights, the jump table */
        for (size_t k = 1 + next(seed) % 3; k > 0; k--)
            frame[next(seed) % nw_min_size(bytes, head + 40)] ^= (unsigned char)(1 << next(seed) % 8);
        break;
    case 2: /* a byte of the weights */ frame[head + 3 + next(seed) % 24] = (unsigned char)next(seed); break;
    case 3: /* the end of one stream moved into the next */
        frame[nw_min_size(bytes - 1, head + 4 + next(seed) % 60)] += (unsigned char)(next(seed) % 2 * 2 - 1);
        break;
    case 4: /* cut, and unaware of it */ return next(seed) % bytes;
    default: /* cut somewhere, and the sizes say so */
        cut = 1 + next(seed) % 8;
        head += 5 + next(seed) % (bytes - head - 5 - cut - 1);
        memmove(frame + head, frame + head + cut, bytes - cut - head);
        sizes_repair(frame, bytes - cut);
    }
    return bytes - cut;
}

static void test_damage(void **state)
{
    (void)state;
    static const size_t lengths[] = {256, 300, 700, 1100};
    bench               b = bench_open();
    unsigned char       damaged[2048];
    uint64_t            seed = 5;
    for (plane_kind kind = 0; kind < PLANES; kind++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            plane_fill(b.plane, kind, lengths[i], kind);
            size_t bytes = frame_encode(&b, lengths[i]);
            for (size_t round = 0; round < 700 && bytes > 0; round++) {
                memcpy(damaged, b.frame, bytes);
                size_t left = damage(damaged, bytes, &seed);
                (void)frame_check(&b, damaged, left, lengths[i]);
            }
            if (bytes > 0) {
                assert_true(frame_check(&b, b.frame, bytes, lengths[i]));
                assert_false(frame_check(&b, b.frame, bytes, lengths[i] - 1));
                assert_false(frame_check(&b, b.frame, bytes, lengths[i] + 1));
            }
        }
    }
    print_message("damaged: %zu accepted, as the library does, %zu refused\n", b.accepted, b.refused);
    assert_true(b.accepted > 1000 && b.refused > 10000);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

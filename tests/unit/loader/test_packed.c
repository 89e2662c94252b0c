/* The packed form: every bit comes back whatever the elements are, normal weights shrink as promised, and no source of
 * bytes makes the decoder read or write beyond its buffers. */
#define ZSTD_STATIC_LINKING_ONLY
#include "loader/packed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

#define ELEMENTS_MAX ((size_t)NW_PACKED_ELEMENTS_MAX)
enum { GUARD = 64 };

typedef struct {
    void      *encode_place, *decode_place;
    nw_packed *encoder, *decoder;
} codec;

static void *place_of(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static codec codec_open(void)
{
    size_t encode = nw_packed_workspace_bytes(NW_PACKED_ENCODE), decode = nw_packed_workspace_bytes(NW_PACKED_DECODE);
    codec  c = {.encode_place = place_of(encode), .decode_place = place_of(decode)};
    c.encoder = nw_packed_init(c.encode_place, encode, NW_PACKED_ENCODE);
    c.decoder = nw_packed_init(c.decode_place, decode, NW_PACKED_DECODE);
    return c;
}

static void codec_close(codec *c)
{
    free(c->encode_place);
    free(c->decode_place);
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 32;
}

/* About normal, of the deviation that weights have; twelve uniform draws are near enough for ratios. */
static float normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)next(state) / 4294967296.0;
    return (float)(sum * 0.04);
}

static void fill_normal(nw_dtype dtype, unsigned char *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        nw_dtype_from_f32(dtype, normal(&seed), p + i * nw_dtype_bytes(dtype));
}

/* Packs and restores at odd addresses, with guards around what is written; returns the bytes, 0 if it does not shrink.
 */
static size_t round_trip(codec *c, nw_dtype dtype, const unsigned char *plain, size_t n)
{
    size_t         bytes = n * nw_dtype_bytes(dtype);
    unsigned char *packed = malloc(bytes + 2 * GUARD + 1), *restored = malloc(bytes + 2 * GUARD + 1);
    assert_true(packed != NULL && restored != NULL);
    memset(packed, 0xa5, bytes + 2 * GUARD + 1);
    memset(restored, 0x5a, bytes + 2 * GUARD + 1);
    size_t stored = nw_packed_encode(c->encoder, dtype, plain, n, packed + GUARD + 1);
    assert_true(stored < bytes || bytes == 0);
    for (size_t i = 0; i < GUARD; i++)
        assert_true(packed[i + 1] == 0xa5 && packed[GUARD + 1 + bytes + i] == 0xa5);
    if (stored > 0) {
        unsigned char *exact = malloc(stored); /* so that the address sanitizer sees a byte too many */
        assert_non_null(exact);
        memcpy(exact, packed + GUARD + 1, stored);
        const char *why = nw_packed_decode(c->decoder, dtype, exact, stored, restored + GUARD + 1, n);
        if (why != NULL)
            fail_msg("%s", why);
        assert_memory_equal(restored + GUARD + 1, plain, bytes);
        for (size_t i = 0; i < GUARD; i++)
            assert_true(restored[i + 1] == 0x5a && restored[GUARD + 1 + bytes + i] == 0x5a);
        free(exact);
    }
    free(packed);
    free(restored);
    return stored;
}

static void test_ratio(void **state)
{
    (void)state;
    static const struct {
        nw_dtype dtype;
        double   most;
    } cases[] = {{NW_BF16, 0.67}, {NW_F32, 0.85}, {NW_F16, 0.86}};
    codec          c = codec_open();
    unsigned char *plain = place_of(ELEMENTS_MAX * 4);
    for (size_t i = 0; i < 3; i++) {
        size_t bytes = ELEMENTS_MAX * nw_dtype_bytes(cases[i].dtype);
        fill_normal(cases[i].dtype, plain, ELEMENTS_MAX, 1);
        double ratio = (double)round_trip(&c, cases[i].dtype, plain, ELEMENTS_MAX) / (double)bytes;
        print_message("%s: %.4f\n", nw_dtype_name(cases[i].dtype), ratio);
        assert_true(ratio > 0.5 && ratio <= cases[i].most);
    }
    /* bf16 in f32's clothes; one weight with a low bit takes the strip out of them */
    fill_normal(NW_F32, plain, ELEMENTS_MAX, 1);
    for (size_t i = 0; i < ELEMENTS_MAX; i++)
        memset(plain + 4 * i, 0, 2);
    double ratio = (double)round_trip(&c, NW_F32, plain, ELEMENTS_MAX) / (double)(ELEMENTS_MAX * 4);
    assert_true(ratio > 0 && ratio <= 0.335);
    plain[4 * (ELEMENTS_MAX - 1)] = 1;
    assert_true(round_trip(&c, NW_F32, plain, ELEMENTS_MAX) > 0);
    free(plain);
    codec_close(&c);
}

/* Every value of 16 bits; as the high half of f32 with low halves of zero, one bit, and noise. */
static void test_every_exponent(void **state)
{
    (void)state;
    codec          c = codec_open();
    unsigned char *plain = place_of(65536 * 4);
    for (int skewed = 0; skewed < 2; skewed++) { /* skewed: most are one value, so that planes shrink */
        for (int type = 0; type < 5; type++) {
            nw_dtype dtype = type == 0 ? NW_BF16 : type == 1 ? NW_F16 : NW_F32;
            uint64_t seed = 9;
            for (size_t i = 0; i < 65536; i++) {
                uint32_t high = skewed && i % 8 != 0 ? 0x3f80 : (uint32_t)i;
                uint32_t low = type == 2 ? 0 : type == 3 ? i == 40000 : (uint32_t)next(&seed) & 0xffff;
                uint32_t x = dtype == NW_F32 ? high << 16 | low : high;
                memcpy(plain + i * nw_dtype_bytes(dtype), &x, nw_dtype_bytes(dtype));
            }
            size_t stored = round_trip(&c, dtype, plain, 65536);
            assert_true(!skewed || stored > 0);
        }
    }
    free(plain);
    codec_close(&c);
}

static void test_lengths(void **state)
{
    (void)state;
    static const nw_dtype types[] = {NW_BF16, NW_F16, NW_F32};
    codec                 c = codec_open();
    unsigned char        *plain = place_of(ELEMENTS_MAX * 4);
    size_t                shrunk = 0;
    for (size_t t = 0; t < 3; t++) {
        fill_normal(types[t], plain, ELEMENTS_MAX, 5 + t);
        for (size_t n = 1; n <= ELEMENTS_MAX; n = n < 70 ? n + 1 : n * 3 / 2)
            shrunk += round_trip(&c, types[t], plain, n) > 0;
        for (size_t n = 32766; n <= 32785; n++)
            shrunk += round_trip(&c, types[t], plain, n) > 0;
        for (size_t n = 65535; n <= 65537; n++)
            shrunk += round_trip(&c, types[t], plain, n) > 0;
        shrunk += round_trip(&c, types[t], plain, ELEMENTS_MAX - 1) > 0;
    }
    assert_true(shrunk > 60);
    free(plain);
    codec_close(&c);
}

/* Zeros of either sign nearly vanish; noise is left to be stored plain, and so is a strip that is too long. */
static void test_extremes(void **state)
{
    (void)state;
    codec          c = codec_open();
    unsigned char *plain = place_of((ELEMENTS_MAX + 1) * 4), *out = place_of((ELEMENTS_MAX + 1) * 4);
    memset(plain, 0, (ELEMENTS_MAX + 1) * 4);
    size_t zeros = round_trip(&c, NW_BF16, plain, ELEMENTS_MAX);
    assert_true(zeros > 0 && zeros < 200);
    zeros = round_trip(&c, NW_F32, plain, ELEMENTS_MAX);
    assert_true(zeros > 0 && zeros < 200);
    assert_int_equal(nw_packed_encode(c.encoder, NW_BF16, plain, ELEMENTS_MAX + 1, out), 0);
    for (size_t i = 0; i < ELEMENTS_MAX; i++)
        plain[4 * i + 3] = i % 3 == 0 ? 0x80 : 0;
    zeros = round_trip(&c, NW_F32, plain, ELEMENTS_MAX);
    assert_true(zeros > 0 && zeros < ELEMENTS_MAX / 4);
    uint64_t seed = 3;
    for (size_t i = 0; i < ELEMENTS_MAX * 4; i++)
        plain[i] = (unsigned char)next(&seed);
    assert_int_equal(round_trip(&c, NW_BF16, plain, ELEMENTS_MAX), 0);
    assert_int_equal(round_trip(&c, NW_F32, plain, ELEMENTS_MAX), 0);
    free(plain);
    free(out);
    codec_close(&c);
}

/* -- what was not written by us -- */

/* Decodes from and to buffers of exactly their sizes. Returns what is wrong with it. */
static const char *decode_exact(codec *c, nw_dtype dtype, const unsigned char *src, size_t bytes, size_t n)
{
    unsigned char *exact = malloc(bytes + 1), *restored = malloc(n * nw_dtype_bytes(dtype) + GUARD);
    assert_true(exact != NULL && restored != NULL);
    memcpy(exact + 1, src, bytes);
    memset(restored + n * nw_dtype_bytes(dtype), 0x77, GUARD);
    const char *why = nw_packed_decode(c->decoder, dtype, exact + 1, bytes, restored, n);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(restored[n * nw_dtype_bytes(dtype) + i], 0x77);
    free(exact);
    free(restored);
    return why;
}

static void test_flips_and_cuts(void **state)
{
    (void)state;
    static const nw_dtype types[] = {NW_BF16, NW_F16, NW_F32, NW_F32};
    enum { N = 1500 };
    codec         c = codec_open();
    unsigned char plain[N * 4], packed[N * 4];
    uint64_t      seed = 11;
    for (size_t t = 0; t < 4; t++) {
        fill_normal(types[t], plain, N, 3);
        for (size_t i = 0; t == 3 && i < N; i++)
            memset(plain + 4 * i, 0, 2);
        size_t stored = nw_packed_encode(c.encoder, types[t], plain, N, packed), refused = 0;
        assert_true(stored > 0);
        for (size_t i = 0; i < stored; i++) {
            unsigned char kept = packed[i];
            for (int bit = 0; bit < 8; bit++) {
                packed[i] = (unsigned char)(kept ^ 1 << bit);
                refused += decode_exact(&c, types[t], packed, stored, N) != NULL;
            }
            packed[i] = (unsigned char)next(&seed);
            refused += decode_exact(&c, types[t], packed, stored, N) != NULL;
            packed[i] = kept;
            assert_non_null(decode_exact(&c, types[t], packed, i, N));
        }
        assert_true(refused > 0);
        assert_non_null(decode_exact(&c, types[t], packed, stored + 1 > sizeof packed ? 0 : stored + 1, N));
        assert_non_null(decode_exact(&c, types[t], packed, stored, N - 1));
        assert_non_null(decode_exact(&c, types[t], packed, stored, N + 1));
        assert_non_null(decode_exact(&c, types[t] == NW_F32 ? NW_BF16 : NW_F32, packed, stored, N / 2));
        assert_null(decode_exact(&c, types[t], packed, stored, N));
    }
    codec_close(&c);
}

/* A strip of N bf16 whose exponent plane is whatever `frame` is. */
static size_t strip_around(unsigned char *out, const void *frame, size_t bytes, size_t n)
{
    unsigned char head[12] = {
        1, 0, 0, 0, (unsigned char)bytes, (unsigned char)(bytes >> 8), 0, 0, (unsigned char)n, (unsigned char)(n >> 8),
        0, 0};
    memcpy(out, head, sizeof head);
    memcpy(out + sizeof head, frame, bytes);
    memset(out + sizeof head + bytes, 0x55, n);
    return sizeof head + bytes + n;
}

static void test_hostile_frames(void **state)
{
    (void)state;
    enum { N = 4000 };
    codec         c = codec_open();
    unsigned char plane[2 * N], frame[3 * N], strip[6 * N];
    memset(plane, 7, sizeof plane);
    static const struct {
        int         window_log, content_size, checksum;
        size_t      bytes;
        const char *why; /* NULL: good */
    } cases[] = {
        {10, 1, 0, N, NULL},       {10, 1, 1, N, "checksum"}, {10, 0, 0, N, "size"}, {27, 0, 0, N, "size"},
        {10, 1, 0, N - 1, "size"}, {10, 1, 0, 2 * N, "size"}, {10, 1, 0, 1, "size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ZSTD_CCtx *z = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, cases[i].window_log);
        ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, cases[i].content_size);
        ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, cases[i].checksum);
        size_t bytes = ZSTD_compress2(z, frame, sizeof frame, plane, cases[i].bytes);
        assert_false(ZSTD_isError(bytes));
        ZSTD_freeCCtx(z);
        const char *why = decode_exact(&c, NW_BF16, strip, strip_around(strip, frame, bytes, N), N);
        assert_true((why == NULL) == (cases[i].why == NULL));
        assert_true(why == NULL || strstr(why, cases[i].why) != NULL);
        /* two frames, and a skippable one, where there must be one */
        size_t end = bytes;
        memcpy(frame + end, "\x50\x2a\x4d\x18\4\0\0\0abcd", 12);
        assert_non_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, frame, end + 12, N), N));
        assert_non_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, frame + end, 12, N), N));
        memcpy(frame + end, frame, bytes);
        assert_non_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, frame, end + bytes, N), N));
    }
    /* By hand: content size right, a window of 2 TiB or of 128 MiB beside it, one block of N times the same byte; and
     * the magic of a format of long ago. */
    unsigned char huge[] = {0x28,
                            0xb5,
                            0x2f,
                            0xfd,
                            0x40,
                            0xf8,
                            (unsigned char)(N - 256),
                            (N - 256) >> 8,
                            (unsigned char)(3 | N << 3),
                            (N >> 5) & 0xff,
                            N >> 13,
                            7};
    assert_non_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, huge, sizeof huge, N), N));
    huge[5] = 0x88;
    const char *why = decode_exact(&c, NW_BF16, strip, strip_around(strip, huge, sizeof huge, N), N);
    assert_true(why != NULL && strstr(why, "window") != NULL);
    huge[5] = 0x38; /* 128 KiB is the most that is taken */
    assert_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, huge, sizeof huge, N), N));
    huge[0] = 0x27;
    assert_non_null(decode_exact(&c, NW_BF16, strip, strip_around(strip, huge, sizeof huge, N), N));
    codec_close(&c);
}

/* Noise behind a good head; it must end, one way or the other. */
static void test_noise(void **state)
{
    (void)state;
    codec         c = codec_open();
    unsigned char strip[3000];
    uint64_t      seed = 77;
    for (size_t round = 0; round < 20000; round++) {
        size_t bytes = next(&seed) % sizeof strip;
        for (size_t i = 0; i < bytes; i++)
            strip[i] = (unsigned char)next(&seed);
        static const unsigned char head[] = {1, 0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 3};
        memcpy(strip, head, nw_min_size(bytes, round % 4 * 6 + 1));
        (void)decode_exact(&c, NW_BF16, strip, bytes, 1024);
    }
    codec_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ratio),    cmocka_unit_test(test_every_exponent), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_flips_and_cuts), cmocka_unit_test(test_hostile_frames),
        cmocka_unit_test(test_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

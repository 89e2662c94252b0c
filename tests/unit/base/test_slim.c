/* Slim strips: what goes in comes out, whatever the weights are; the layout is the documented one; strips that are too
 * large are refused before anything is written; damaged strips are refused or at least decode inside their bounds (each
 * lies at the end of memory that may be touched). */
#define _DEFAULT_SOURCE
#include "base/slim.h"

#include "draws.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define WEIGHTS_MAX ((size_t)40000)
#define ROOM (4 * WEIGHTS_MAX)

/* Weights whose exponents halve in frequency, so that a strip shrinks; `odd` of 256 have any bits at all. */
static uint16_t random_weight(unsigned odd)
{
    uint32_t bits = random_u32();
    if (random_u32() % 256 < odd)
        return (uint16_t)bits;
    unsigned exponent = 122 - (unsigned)__builtin_ctz(random_u32() | 0x100u);
    return (uint16_t)((bits & 0x807f) | exponent << 7);
}

static void fill(uint16_t *w, size_t n, unsigned odd)
{
    for (size_t i = 0; i < n; i++)
        w[i] = random_weight(odd);
}

/* `bytes` bytes that end where memory may not be touched any more. */
static uint8_t *at_the_end(size_t bytes)
{
    static uint8_t *region;
    size_t          page = (size_t)sysconf(_SC_PAGESIZE), room = (ROOM + page - 1) / page * page;
    if (region == NULL) {
        region = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(region != MAP_FAILED);
        assert_int_equal(mprotect(region + room, page, PROT_NONE), 0);
    }
    assert_true(bytes <= room);
    return region + room - bytes;
}

static void check_round_trip(size_t rows, size_t k, unsigned width, unsigned odd)
{
    static uint16_t w[WEIGHTS_MAX], back[WEIGHTS_MAX + 1];
    static uint8_t  strip[ROOM];
    fill(w, rows * k, odd);
    memset(strip, 0xa5, sizeof strip);
    size_t bytes = nw_slim_encode(strip, sizeof strip, w, rows, k, width);
    assert_true(bytes < rows * k * 2);
    assert_int_equal(strip[bytes], 0xa5);
    if (bytes == 0) {
        assert_int_equal(strip[0], 0xa5);
        return;
    }
    uint8_t *tight = at_the_end(bytes);
    assert_int_equal(nw_slim_encode(tight, bytes - 1, w, rows, k, width), 0);
    assert_int_equal(nw_slim_encode(tight, bytes, w, rows, k, width), bytes);
    assert_memory_equal(tight, strip, bytes);
    assert_int_equal(nw_slim_width(tight), width);
    assert_true(bytes <= nw_slim_layout_of(rows, k, width, rows * k).bytes);
    assert_true(nw_slim_check(tight, bytes, rows, k));
    assert_false(nw_slim_check(tight, bytes - 1, rows, k));
    assert_false(nw_slim_check(strip, bytes + 1, rows, k));
    assert_false(nw_slim_check(tight, bytes, rows + 1, k));
    assert_false(nw_slim_check(tight, bytes, rows, k + 1));

    memset(back, 0x5a, sizeof back);
    nw_slim_decode(back, tight, 0, rows);
    assert_memory_equal(back, w, rows * k * 2);
    assert_int_equal(back[rows * k], 0x5a5a);
    size_t first = random_u32() % rows, count = 1 + random_u32() % (rows - first);
    nw_slim_decode((uint8_t *)back + 1, tight, first, count); /* at an odd address */
    assert_memory_equal((uint8_t *)back + 1, w + first * k, count * k * 2);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t round = 0; round < 400; round++) {
        size_t k = 1 + random_u32() % 300, rows = 1 + random_u32() % 60;
        check_round_trip(rows, k, 3 + round % 2, (unsigned)(round / 2 % 5 * 8));
    }
    check_round_trip(9, 4096, 3, 1);
    check_round_trip(1, 33000, 4, 1);
}

/* Every 16-bit pattern there is, among ordinary weights that let the strip shrink. */
static void test_every_pattern(void **state)
{
    (void)state;
    enum { ROWS = 256, K = 1280 };
    uint16_t *w = malloc(ROWS * K * 2), *back = malloc(ROWS * K * 2);
    uint8_t  *strip = malloc(ROWS * K * 2);
    assert_true(w != NULL && back != NULL && strip != NULL);
    for (unsigned width = 3; width <= 4; width++) {
        fill(w, ROWS * K, 0);
        for (size_t i = 0; i < 65536; i++)
            w[i * 5] = (uint16_t)i;
        size_t bytes = nw_slim_encode(strip, ROWS * K * 2, w, ROWS, K, width);
        assert_true(bytes > 0);
        assert_true(nw_slim_check(strip, bytes, ROWS, K));
        nw_slim_decode(back, strip, 0, ROWS);
        assert_memory_equal(back, w, ROWS * K * 2);
    }
    free(w), free(back), free(strip);
}

/* No exponent is common, or there is one only. */
static void test_ends(void **state)
{
    (void)state;
    static uint16_t w[64 * 128], back[64 * 128];
    static uint8_t  strip[64 * 128 * 2];
    for (unsigned width = 3; width <= 4; width++) {
        for (size_t i = 0; i < 64 * 128; i++)
            w[i] = (uint16_t)(i * 8111);
        assert_int_equal(nw_slim_encode(strip, sizeof strip, w, 64, 128, width), 0);
        static const uint16_t same[] = {0, 0x8000, 0x7f80, 0xffff, 0x3f80};
        for (size_t s = 0; s < 5; s++) {
            for (size_t i = 0; i < 64 * 128; i++)
                w[i] = same[s];
            size_t bytes = nw_slim_encode(strip, sizeof strip, w, 64, 128, width);
            assert_int_equal(bytes, nw_slim_layout_of(64, 128, width, 0).bytes);
            assert_true(nw_slim_check(strip, bytes, 64, 128));
            nw_slim_decode(back, strip, 0, 64);
            assert_memory_equal(back, w, sizeof w);
        }
    }
    assert_int_equal(nw_slim_encode(strip, sizeof strip, w, 1, 1, 3), 0);
}

/* Places, codes and escapes where the header says they are. */
static void test_layout(void **state)
{
    (void)state;
    static uint16_t w[8 * 64];
    static uint8_t  strip[1024];
    for (size_t i = 0; i < 8 * 64; i++)
        w[i] = (uint16_t)(0x3f80 | (i % 64)); /* exponent 127; the mantissa says which weight it is */
    w[3 * 64 + 21] = 0xc67f;                  /* -, exponent 140, mantissa all ones */
    for (size_t e = 0; e < 6; e++)            /* six more exponents, each twice, fill the table */
        w[2 * e] = w[2 * e + 64] = (uint16_t)(0x4000 + e * 0x80);
    size_t bytes = nw_slim_encode(strip, sizeof strip, w, 8, 64, 3);
    assert_int_equal(bytes, 128 + 8 * 64 + 8 * 24 + 1 + 64);
    static const uint8_t head[] = {3, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 127, 128, 129, 130, 131, 132, 133};
    assert_memory_equal(strip, head, sizeof head);
    assert_int_equal(nw_slim_u32(strip, 32 + 4 * 3), 0);
    assert_int_equal(nw_slim_u32(strip, 32 + 4 * 4), 1);
    assert_int_equal(strip[128 + 512 + 192], 140);
    /* weight 21 = 16 * 1 + 4 * 1 + 1: position 16 * 1 + 0 + 2 * 1 + 1 */
    assert_int_equal(nw_slim_place(21), 19);
    assert_int_equal(strip[128 + 3 * 64 + 19], 0xff);
    assert_int_equal(strip[128 + 4 * 64 + 19], 21 << 1);
    const uint8_t *codes = strip + 128 + 512 + 3 * 24; /* position 19: bits 57..59 */
    assert_int_equal(codes[7] >> 1 & 7, 7);
    assert_int_equal(codes[7] & ~0x0e, 0);
}

/* Escapes from `first` to `end` of a row of two groups, all other codes in use beside them: each counts once. */
static void check_places(size_t first, size_t end, unsigned width)
{
    enum { ROWS = 8, K = 128 };
    static uint16_t w[ROWS * K], back[ROWS * K];
    static uint8_t  strip[ROWS * K * 2];
    unsigned        shift = width == 3 ? 7 : 8, codes = (1u << width) - 1;
    for (size_t i = 0; i < ROWS * K; i++)
        w[i] = (uint16_t)(0x3f80 + (random_u32() % codes << shift));
    for (size_t i = first; i < end; i++)
        w[i] = (uint16_t)(random_u32() % 48 << shift); /* too many kinds for any to get a code */
    size_t bytes = nw_slim_encode(strip, sizeof strip, w, ROWS, K, width);
    assert_int_equal(bytes, nw_slim_layout_of(ROWS, K, width, end - first).bytes);
    assert_int_equal(nw_slim_u32(strip, NW_SLIM_FIRST + 4), end - first);
    assert_int_equal(nw_slim_u32(strip, NW_SLIM_FIRST + 4 * ROWS), end - first);
    assert_true(nw_slim_check(strip, bytes, ROWS, K));
    nw_slim_decode(back, strip, 0, ROWS);
    assert_memory_equal(back, w, sizeof w);
}

static void test_every_place(void **state)
{
    (void)state;
    for (size_t at = 0; at < 128; at++) {
        for (unsigned width = 3; width <= 4; width++) {
            check_places(at, at + 1, width);
            check_places(at, 128, width);
        }
    }
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static void check_damage(unsigned width)
{
    enum { ROWS = 3, K = 190 };
    static uint16_t w[ROWS * K], back[ROWS * K];
    static uint8_t  strip[2048];
    size_t          accepted = 0, refused = 0;
    for (size_t i = 0; i < ROWS * K; i++)
        w[i] = (uint16_t)(random_u32() & 0x7f) | 0x3f80;
    w[7] = w[150] = w[151] = w[299] = 0x1234;
    for (size_t e = 0; e < 14; e++)
        w[20 + 2 * e] = w[60 + 2 * e] = (uint16_t)(0x4000 + e * 0x100);
    size_t bytes = nw_slim_encode(strip, sizeof strip, w, ROWS, K, width);
    assert_true(bytes > 0);
    uint8_t *tight = at_the_end(bytes);
    for (size_t at = 0; at < bytes; at++) {
        for (unsigned change = 1; change < 256; change++) {
            memcpy(tight, strip, bytes);
            tight[at] ^= (uint8_t)change;
            if (nw_slim_check(tight, bytes, ROWS, K)) {
                nw_slim_decode(back, tight, 0, ROWS);
                nw_slim_decode(back, tight, ROWS - 1, 1);
                accepted++;
            } else {
                refused++;
            }
        }
    }
    assert_true(accepted > 0 && refused > 0);
    for (size_t cut = 0; cut < bytes; cut++) {
        tight = at_the_end(cut);
        memcpy(tight, strip, cut);
        assert_false(nw_slim_check(tight, cut, ROWS, K));
    }
}

static void test_damage(void **state)
{
    (void)state;
    check_damage(3);
    check_damage(4);
}

/* What each field may not be. */
static void test_refused_fields(void **state)
{
    (void)state;
    static uint16_t w[16 * 128];
    static uint8_t  good[16 * 256], bad[16 * 256];
    fill(w, 16 * 128, 3);
    size_t bytes = nw_slim_encode(good, sizeof good, w, 16, 128, 3);
    assert_true(nw_slim_check(good, bytes, 16, 128));
    static const struct {
        size_t  at;
        uint8_t value;
    } fields[] = {{0, 2},  {0, 4},  {0, 5},  {1, 1},  {3, 1},    {4, 15},   {7, 1},         {8, 127},    {11, 1},
                  {12, 1}, {24, 1}, {31, 1}, {32, 1}, {35, 128}, {39, 255}, {32 + 64, 255}, {32 + 67, 1}};
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        memcpy(bad, good, bytes);
        bad[fields[f].at] = fields[f].value;
        assert_false(nw_slim_check(bad, bytes, 16, 128));
    }
    for (size_t c = 0; c < 7; c++) { /* a code that would look like an escape */
        memcpy(bad, good, bytes);
        bad[16 + c] = bad[16 + 7];
        assert_false(nw_slim_check(bad, bytes, 16, 128));
    }
}

int main(void)
{
    random_state = 42;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_every_pattern), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_every_place),   cmocka_unit_test(test_damage),
        cmocka_unit_test(test_refused_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

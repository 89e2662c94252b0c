/* Tokenizer files that nobody should trust: each is refused with a reason, or does no harm. Meant to run under
 * sanitizers. */
#define _GNU_SOURCE
#include "make_spiece.h"
#include "model/tokenizer.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A model under construction. */
typedef struct {
    unsigned char bytes[1 << 20];
    spiece_out    out;
} builder;

static builder made; /* one at a time; too large for a stack */

static spiece_out *begin(void)
{
    made.out = (spiece_out){.bytes = made.bytes, .cap = sizeof made.bytes};
    return &made.out;
}

/* The three special pieces, and letters that a text can be made of. */
static spiece_out *begin_small(void)
{
    spiece_out *o = begin();
    spiece_piece(o, "<pad>", 5, 0, 3);
    spiece_piece(o, "</s>", 4, 0, 3);
    spiece_piece(o, "<unk>", 5, 0, 2);
    spiece_piece(o, "\xE2\x96\x81", 3, -2, 1);
    spiece_piece(o, "a", 1, -3, 1);
    spiece_piece(o,
                 "\xE2\x96\x81"
                 "ab",
                 5, -1, 1);
    return o;
}

static nw_tokenizer_files files_of(const void *bytes, size_t len)
{
    return (nw_tokenizer_files){
        .name = "hostile.model", .spiece = bytes, .spiece_bytes = len, .vocab_size = 2000000, .eos_id = 1};
}

/* Whole use of a file: check, open, encode, decode. Returns the first code that is not NW_OK. */
static nw_code use(const nw_tokenizer_files *files, nw_error *err)
{
    static const char  text[] = "ab \xEF\xAC\x81 \xC2\xBD a\0\xff\xE2\x96\x81  cafe\xCC\x81 zz <extra_id_0> <pad>x\n";
    nw_memory          mem;
    nw_tokenizer_facts facts;
    nw_tokenizer      *tokenizer = NULL;
    nw_pieces         *pieces = NULL;
    uint32_t           ids[256];
    size_t             count = 0;
    nw_decoder         decoder = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_tokenizer_check(&mem, files, &facts, err);
    assert_true(mem.peak <= 1 << 20);
    nw_tokenizer_cost cost = {0};
    if (rc == NW_OK) {
        cost = nw_tokenizer_declared(&facts);
        rc = nw_tokenizer_open(&mem, files, &tokenizer, err);
        assert_true(mem.live <= cost.kept && mem.peak <= cost.peak);
    }
    if (rc == NW_OK)
        rc = nw_tokenizer_encode(tokenizer, text, sizeof text - 1, ids, 256, &count, err);
    uint64_t kept = mem.live;
    if (rc == NW_OK)
        rc = nw_pieces_open(&mem, files, &pieces, err);
    if (rc == NW_OK) {
        assert_true(mem.live - kept <= cost.pieces);
        size_t max = nw_pieces_text_max(pieces);
        char  *buf = malloc(max);
        nw_tokenizer_unknown(tokenizer, text, sizeof text - 1, NULL, 0);
        for (size_t i = 0; i < count && i < 256; i++) {
            assert_true(ids[i] < files->vocab_size);
            assert_true(nw_pieces_decode(pieces, &decoder, ids[i], buf, max) <= max);
        }
        free(buf);
    }
    nw_tokenizer_close(tokenizer);
    nw_pieces_close(pieces);
    assert_int_equal(mem.live, 0);
    return rc;
}

/* The bytes in a block of their own size, so that a sanitizer sees any read beyond them. */
static nw_code use_bytes(const unsigned char *bytes, size_t len, nw_error *err)
{
    unsigned char *exact = malloc(len > 0 ? len : 1);
    memcpy(exact, bytes, len);
    nw_tokenizer_files files = files_of(exact, len);
    nw_code            rc = use(&files, err);
    free(exact);
    return rc;
}

static nw_code use_made(nw_error *err)
{
    assert_true(made.out.len <= sizeof made.bytes);
    return use_bytes(made.bytes, made.out.len, err);
}

/* The model at hand is refused, and the message says why. */
static void expect_refused(const char *why)
{
    nw_error err = {0};
    assert_int_equal(use_made(&err), NW_E_TOKENIZER);
    if (strstr(err.msg, why) == NULL || strstr(err.msg, "hostile.model") == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void expect_good(void)
{
    nw_error err = {0};
    if (use_made(&err) != NW_OK)
        fail_msg("%s", err.msg);
}

static void test_small_is_good(void **state)
{
    (void)state;
    begin_small();
    expect_good();
}

static void test_pieces(void **state)
{
    (void)state;
    static char long_piece[120001];
    memset(long_piece, 'x', sizeof long_piece);
    spiece_piece(begin_small(), long_piece, 120000, -1, 1);
    expect_refused("longer than 8192");
    spiece_piece(begin_small(), long_piece, 8193, -1, 1);
    expect_refused("longer than 8192");
    spiece_piece(begin_small(), long_piece, 8192, -1, 1);
    expect_good();
    spiece_piece(begin_small(), "a\0b", 3, -1, 1);
    expect_refused("contains a NUL");
    spiece_piece(begin_small(), "", 0, -1, 1);
    expect_refused("is empty");
    static const char *const bad[] = {"\xff",     "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                      "\xE2\x82", "\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spiece_piece(begin_small(), bad[i], strlen(bad[i]), -1, 1);
        expect_refused("no valid UTF-8");
    }
    static const float scores[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        spiece_piece(begin_small(), "b", 1, scores[i], 1);
        expect_refused("no finite number");
    }
    static const unsigned types[] = {0, 7, 99, UINT_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        spiece_piece(begin_small(), "b", 1, -1, types[i]);
        expect_refused("unknown type");
    }
    spiece_piece(begin_small(), "b", 1, -1, 2);
    expect_refused("both the unknown piece");
    spiece_piece(begin_small(), "a", 1, -1, 1);
    expect_refused("are the same");
    spiece_piece(begin_small(), "<0xGG>", 6, 0, 6);
    expect_refused("of type byte");
    spiece_piece(begin_small(), "<0x0a>", 6, 0, 6);
    expect_refused("of type byte");
    spiece_piece(begin_small(), "<0x0A>", 6, 0, 6);
    expect_refused("byte_fallback");
    spiece_piece(begin(), "a", 1, -1, 1);
    expect_refused("no unknown piece");
    begin();
    expect_refused("empty");
}

static void test_extreme_scores(void **state)
{
    (void)state;
    spiece_out *o = begin_small();
    spiece_piece(o, "b", 1, 3.4e38f, 1);
    spiece_piece(o, "z", 1, -3.4e38f, 1);
    spiece_piece(o, "zz", 2, -3.4e38f, 4);
    expect_good();
}

static void number_spec(unsigned message, unsigned field, uint64_t value)
{
    unsigned char bytes[24];
    spiece_out    spec = {.bytes = bytes, .cap = sizeof bytes};
    spiece_number(&spec, field, value);
    spiece_bytes(begin_small(), message, bytes, spec.len);
}

static void test_specs(void **state)
{
    (void)state;
    static unsigned char large[70000];
    number_spec(2, 3, 3);
    expect_refused("a word model");
    number_spec(2, 3, 4);
    expect_refused("a char model");
    number_spec(2, 3, 9);
    expect_refused("unknown model type");
    number_spec(2, 3, ((uint64_t)1 << 32) + 1);
    expect_refused("unknown model type");
    number_spec(2, 44, 1);
    expect_refused("wrong protobuf type");
    number_spec(3, 2, 1);
    expect_refused("wrong protobuf type");
    spiece_number(begin_small(), 3, 1);
    expect_refused("not a sentencepiece model");
    spiece_bytes(begin_small(), 4, large, sizeof large);
    expect_refused("self-test");
    number_spec(3, 2000, 7); /* fields that we do not know are none of our business */
    expect_good();
    number_spec(3, 3, 0); /* each switch of white space */
    expect_good();
    number_spec(3, 4, 0);
    expect_good();
    number_spec(3, 5, 0);
    expect_good();
    number_spec(2, 24, 1);
    expect_good();
    const unsigned char denormalizer[] = {2 << 3 | 2, 1, 0};
    spiece_bytes(begin_small(), 5, denormalizer, sizeof denormalizer);
    expect_refused("denormalizer");
}

static void put_raw(const void *bytes, size_t len)
{
    spiece_put(begin_small(), bytes, len);
}

static void test_wire(void **state)
{
    (void)state;
    static const unsigned char group[] = {9 << 3 | 3, 9 << 3 | 4};
    static const unsigned char type6[] = {9 << 3 | 6}, type7[] = {9 << 3 | 7}, field0[] = {0, 1};
    static const unsigned char endless[] = {9 << 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1};
    static const unsigned char too_large[] = {9 << 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2};
    static const unsigned char huge_len[] = {9 << 3 | 2, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1};
    static const unsigned char long_len[] = {1 << 3 | 2, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F};
    static const unsigned char big_tag[] = {0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 0};
    static const struct {
        const unsigned char *bytes;
        size_t               len;
    } cases[] = {{group, sizeof group},       {type6, sizeof type6},       {type7, sizeof type7},
                 {field0, sizeof field0},     {endless, sizeof endless},   {too_large, sizeof too_large},
                 {huge_len, sizeof huge_len}, {long_len, sizeof long_len}, {big_tag, sizeof big_tag}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_raw(cases[i].bytes, cases[i].len);
        expect_refused("not a sentencepiece model");
    }
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* --- The charsmap --- */

/* A double array of one or more blocks of 256 units, and the replacements after it. Every free unit has a label that no
 * walk takes. */
typedef struct {
    uint32_t units[64 * 256];
    size_t   count;
} array;

static array trie;

static void array_begin(size_t blocks)
{
    trie.count = blocks * 256;
    for (size_t i = 0; i < trie.count; i++)
        trie.units[i] = 0x80000000u;
    trie.units[0] = 256 << 10; /* the root's children are in block 1 */
}

/* The unit for `byte` below state `from`, leading to state `to` (both are multiples of 256 here). */
static void array_edge(uint32_t from, unsigned char byte, uint32_t to, bool leaf)
{
    uint32_t at = from ^ byte;
    trie.units[at] = (at ^ to) << 10 | (leaf ? 0x100u : 0) | byte;
}

static void array_value(uint32_t state, uint32_t value)
{
    trie.units[state] = 0x80000000u | value;
}

static void charsmap_model(const void *charsmap, size_t len, unsigned model_type)
{
    static unsigned char normalizer[sizeof trie.units + 1024];
    unsigned char        trainer[] = {3 << 3, (unsigned char)model_type};
    spiece_out           spec = {.bytes = normalizer, .cap = sizeof normalizer};
    spiece_bytes(&spec, 2, charsmap, len);
    assert_true(spec.len <= sizeof normalizer);
    spiece_out *o = begin_small();
    spiece_bytes(o, 2, trainer, sizeof trainer);
    spiece_bytes(o, 3, normalizer, spec.len);
}

static void array_model_of(const void *strings, size_t len, unsigned model_type)
{
    static unsigned char map[sizeof trie.units + 512];
    uint32_t             trie_bytes = (uint32_t)(trie.count * 4);
    memcpy(map, &trie_bytes, 4);
    memcpy(map + 4, trie.units, trie_bytes);
    memcpy(map + 4 + trie_bytes, strings, len);
    charsmap_model(map, 4 + trie_bytes + len, model_type);
}

static void array_model(const void *strings, size_t len)
{
    array_model_of(strings, len, 1);
}

static void test_charsmap_shapes(void **state)
{
    (void)state;
    array_begin(4);
    array_edge(256, 'a', 512, true); /* "a" becomes "b" */
    array_value(512, 0);
    array_model("b", 2);
    expect_good();
    array_value(512, 1); /* the empty text, which is there */
    array_model("b", 2);
    expect_good();
    array_value(512, 2);
    array_model("b", 2);
    expect_refused("outside the replacements");
    array_value(512, 0x7FFFFFFF);
    array_model("b", 2);
    expect_refused("outside the replacements");
    array_value(512, 1); /* the middle of a character */
    array_model("\xC3\xA4", 3);
    expect_refused("outside the replacements");
    array_value(512, 0);
    array_model("b", 1);
    expect_refused("no NUL-terminated UTF-8");
    array_model("\xff", 2);
    expect_refused("no NUL-terminated UTF-8");
    array_begin(4);
    array_edge(256, 'a', 1024, false); /* a block that is not there */
    array_model("b", 2);
    expect_refused("out of its array");
    array_begin(4);
    trie.units[0] = 0x1FFFFFu << 10;
    array_model("b", 2);
    expect_refused("out of its array");
    trie.units[0] = 256 << 10;
    trie.count = 511; /* the last place of the root's block is missing */
    array_model("b", 2);
    expect_refused("out of its array");
}

static void test_charsmap_circles(void **state)
{
    (void)state;
    array_begin(4);
    array_edge(256, 'a', 256, false); /* a state that leads to itself */
    array_model("b", 2);
    expect_refused("in a circle");
    array_begin(4);
    array_edge(256, 'a', 512, true);
    array_edge(512, 'b', 768, false);
    array_edge(768, 'c', 512, true);
    array_value(512, 0);
    array_model("b", 2);
    expect_refused("in a circle");
}

/* Keys that begin alike: "a", "aa", "aaa".. */
static void array_chain(uint32_t keys)
{
    array_begin(64);
    for (uint32_t i = 1; i <= keys; i++) {
        array_edge(256 * i, 'a', 256 * (i + 1), true);
        array_value(256 * (i + 1), 0);
    }
    array_model("b", 2);
}

static void test_charsmap_many_matches(void **state)
{
    (void)state;
    array_chain(32);
    expect_good();
    array_chain(33);
    expect_refused("begin alike");
    /* The same by a shared state: 20 matches on the way to it, 20 beyond; first reached by a way without matches. */
    array_begin(64);
    array_edge(256, 'A', 256 * 22, false);
    for (uint32_t i = 1; i <= 40; i++) {
        array_edge(256 * i, 'a', 256 * (i + 1), true);
        array_value(256 * (i + 1), 0);
    }
    array_model("b", 2);
    expect_refused("begin alike");
}

/* One character that becomes many: a text would grow without measure. */
static void test_charsmap_growth(void **state)
{
    (void)state;
    char many[130];
    memset(many, 'b', sizeof many);
    array_begin(4);
    array_edge(256, 'a', 512, true);
    array_value(512, 0);
    many[129] = '\0';
    array_model(many, 130);
    expect_refused("replacement of more than 128 bytes");
    array_value(512, 1); /* 128 of them */
    array_model(many, 130);
    expect_good();
    /* By a state that is reached without a match first. */
    array_value(512, 0);
    array_edge(256, 'A', 512, false);
    array_model(many, 130);
    expect_refused("replacement of more than 128 bytes");
}

/* The library's time for unknown characters grows with the square of their number, and the charsmap makes them. */
static void test_charsmap_growth_bpe(void **state)
{
    (void)state;
    char many[129];
    memset(many, 'z', sizeof many);
    many[128] = '\0';
    array_begin(4);
    array_edge(256, 'a', 512, true);
    array_value(512, 0);
    array_model_of(many, sizeof many, 2);
    static char        text[65536];
    nw_tokenizer_files files = files_of(made.bytes, made.out.len);
    nw_tokenizer      *tokenizer = NULL;
    nw_memory          mem;
    nw_error           err = {0};
    size_t             count = 0;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    memset(text, 'a', sizeof text);
    assert_int_equal(nw_tokenizer_open(&mem, &files, &tokenizer, &err), NW_OK);
    assert_int_equal(nw_tokenizer_encode(tokenizer, text, 513, NULL, 0, &count, &err), NW_E_TOKENIZER);
    assert_non_null(strstr(err.msg, "64 KiB"));
    assert_int_equal(nw_tokenizer_unknown(tokenizer, text, sizeof text, NULL, 0), 0);
    assert_int_equal(nw_tokenizer_encode(tokenizer, text, 100, NULL, 0, &count, &err), NW_OK);
    memset(text, 'b', sizeof text); /* which stays as it is */
    assert_int_equal(nw_tokenizer_encode(tokenizer, text, 1000, NULL, 0, &count, &err), NW_OK);
    nw_tokenizer_close(tokenizer);
    assert_int_equal(mem.live, 0);
}

static void test_charsmap_sizes(void **state)
{
    (void)state;
    unsigned char map[64] = {0};
    for (size_t len = 1; len <= 8; len++) {
        charsmap_model(map, len, 1);
        expect_refused("sizes do not fit");
    }
    static const uint32_t sizes[] = {1, 2, 3, 5, 59, 60, 61, 64, 0x7FFFFFFF, 0x80000000u, UINT32_MAX, UINT32_MAX - 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memcpy(map, &sizes[i], 4);
        charsmap_model(map, sizeof map, 1);
        expect_refused("sizes do not fit");
    }
}

/* All ones, and random ones with a right frame: thousands, for both encoders. Refused or harmless. */
static void test_charsmap_random(void **state)
{
    (void)state;
    static unsigned char map[4 + 1024 * 8 + 64];
    uint64_t             rng = 1263;
    int                  good = 0;
    memset(map, 0xFF, sizeof map);
    charsmap_model(map, sizeof map, 1);
    expect_refused("charsmap");
    for (int round = 0; round < 6000; round++) {
        nw_error err = {0};
        uint32_t blocks = 1 + (uint32_t)(next_random(&rng) % 8), trie_bytes = blocks * 1024;
        size_t   len = 4 + trie_bytes + 64;
        for (size_t i = 0; i < len; i++)
            map[i] = (unsigned char)next_random(&rng);
        memcpy(map, &trie_bytes, 4);
        for (size_t i = 4; round % 2 == 1 && i < 4 + trie_bytes; i += 4) { /* labels that fit, offsets that stay near */
            uint32_t unit = (uint32_t)next_random(&rng);
            unit = (unit % (blocks * 256)) << 10 | (unit >> 31) << 8 | (uint32_t)((i / 4 - 1) & 0xFF);
            memcpy(map + i, &unit, next_random(&rng) % 4 > 0 ? 4 : 0);
        }
        for (size_t i = 4 + trie_bytes; i < len; i++)
            map[i] &= 0x5F;
        map[len - 1] = 0;
        charsmap_model(map, len, round % 3 == 0 ? 2 : 1);
        good += use_made(&err) == NW_OK;
    }
    print_message("%d of 6000 random charsmaps were harmless\n", good);
    assert_true(good > 0 && good < 6000);
}

/* --- Whole files --- */

static unsigned char *load(const char *name, size_t *ret_len)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", NW_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    *ret_len = (size_t)ftell(f);
    rewind(f);
    unsigned char *bytes = malloc(*ret_len);
    assert_int_equal(fread(bytes, 1, *ret_len, f), *ret_len);
    fclose(f);
    return bytes;
}

static void test_truncated(void **state)
{
    (void)state;
    int         good = 0;
    spiece_out *o = begin_small();
    array_begin(4);
    array_edge(256, 'a', 512, true);
    array_value(512, 0);
    array_model("b", 2);
    o = &made.out;
    for (size_t len = 0; len < o->len; len++) {
        nw_error err = {0};
        nw_code  rc = use_bytes(made.bytes, len, &err);
        assert_true(rc == NW_OK || (rc == NW_E_TOKENIZER && err.msg[0] != '\0'));
        good += rc == NW_OK;
    }
    assert_in_range(good, 1, 6); /* cut between two whole fields it is a smaller model */
}

static void test_damaged(void **state)
{
    (void)state;
    size_t         len;
    unsigned char *bytes = load("numbers-t5/spiece.model", &len);
    uint64_t       rng = 1308;
    int            good = 0;
    for (int round = 0; round < 1500; round++) {
        nw_error       err = {0};
        unsigned char *copy = malloc(len);
        memcpy(copy, bytes, len);
        for (uint64_t n = next_random(&rng) % 8; n < 8; n++) {
            uint64_t r = next_random(&rng);
            copy[round % 2 == 0 ? r % 14000 : r % len] = (unsigned char)(r >> 56); /* pieces first, then the charsmap */
        }
        nw_tokenizer_files files = files_of(copy, round % 5 == 0 ? (size_t)(next_random(&rng) % len) : len);
        nw_code            rc = use(&files, &err);
        assert_true(rc == NW_OK || (rc == NW_E_TOKENIZER && err.msg[0] != '\0'));
        good += rc == NW_OK;
        free(copy);
    }
    print_message("%d of 1500 damaged files were harmless\n", good);
    free(bytes);
}

/* The library looks at all matches of user-defined pieces but has room for 64. */
static void user_pieces(unsigned lengths, unsigned model_type)
{
    static char   x[256];
    unsigned char trainer[] = {3 << 3, (unsigned char)model_type};
    spiece_out   *o = begin_small();
    memset(x, 'z', sizeof x);
    for (unsigned i = 1; i <= lengths; i++)
        spiece_piece(o, x, i, 0, 4);
    spiece_bytes(o, 2, trainer, sizeof trainer);
}

static void test_user_pieces(void **state)
{
    (void)state;
    for (unsigned type = 1; type <= 2; type++) {
        user_pieces(64, type);
        expect_good();
        user_pieces(65, type);
        expect_refused("more than 64 lengths");
    }
}

/* The library recurses over the bytes of a piece when it loads, and over those of unused pieces when it encodes: what
 * is let through must do with a small stack. Each longer z is best made from the one before, so the second goes as deep
 * as it can. */
static void deep_model(unsigned char model_type, uint32_t unused_max)
{
    static char   deep[8192];
    unsigned char trainer[] = {3 << 3, model_type};
    spiece_out   *o = begin_small();
    memset(deep, 'z', sizeof deep);
    spiece_piece(o, deep, sizeof deep, 0, 4);
    spiece_piece(o, deep, 1, 0, 1);
    for (uint32_t len = 2; len <= unused_max; len++)
        spiece_piece(o, deep, len, (float)len, 5);
    spiece_bytes(o, 2, trainer, sizeof trainer);
}

static void *use_deep(void *user)
{
    char          text[256];
    nw_memory     mem;
    nw_tokenizer *tokenizer = NULL;
    size_t        count = 0;
    memset(text, 'z', sizeof text);
    deep_model(*(const unsigned char *)user, 256);
    nw_tokenizer_files files = files_of(made.bytes, made.out.len);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    bool good = nw_tokenizer_open(&mem, &files, &tokenizer, NULL) == NW_OK &&
                nw_tokenizer_encode(tokenizer, text, sizeof text, NULL, 0, &count, NULL) == NW_OK && count == 256 + 2;
    nw_tokenizer_close(tokenizer);
    return good ? user : NULL;
}

static void test_small_stack(void **state)
{
    (void)state;
#ifdef NW_SANITIZED
    skip(); /* a sanitizer's frames are larger */
#endif
    for (unsigned char type = 1; type <= 2; type++) {
        pthread_t      thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
        assert_int_equal(pthread_create(&thread, &attr, use_deep, &type), 0);
        void *good = NULL;
        pthread_join(thread, &good);
        assert_ptr_equal(good, &type); /* the space mark, each z, the end */
        pthread_attr_destroy(&attr);
    }
    deep_model(2, 257);
    expect_refused("unused piece");
}

/* Documents cut at every byte, and with many tokens. */
static void test_documents(void **state)
{
    (void)state;
    static const char document[] =
        "{\"extra_ids\": 2, \"eos_token\": {\"content\": \"</s>\", \"lstrip\": true}, \"additional_special_tokens\": "
        "[\"<extra_id_0>\", {\"content\": \"q\"}], \"added_tokens_decoder\": {\"7\": {\"content\": \"w\", \"rstrip\": "
        "true}, "
        "\"8\": {}}, \"x\": [[{\"content\": \"no\"}]]}";
    begin_small();
    nw_tokenizer_files files = files_of(made.bytes, made.out.len);
    for (size_t len = 0; len < sizeof document; len++) {
        nw_error err = {0};
        char    *exact = malloc(len + 1);
        memcpy(exact, document, len);
        files.config = exact;
        files.config_bytes = len;
        assert_int_equal(use(&files, &err), len == sizeof document - 1 ? NW_OK : NW_E_TOKENIZER);
        free(exact);
    }
    files.config = NULL;
    size_t   cap = 9000 * 24, len = 0;
    char    *many = malloc(cap);
    nw_error err = {0};
    for (unsigned i = 0; i < 9000; i++)
        len += (size_t)snprintf(many + len, cap - len, "%c\"<%u>\":%u", i == 0 ? '{' : ',', i, i);
    many[len++] = '}';
    files.added = many;
    files.added_bytes = len;
    assert_int_equal(use(&files, &err), NW_E_TOKENIZER);
    assert_non_null(strstr(err.msg, "too many special tokens"));
    free(many);
}

static void test_too_many_pieces(void **state)
{
    (void)state;
    size_t         len = make_spiece(NULL, 0, 1000001);
    unsigned char *bytes = malloc(len);
    nw_error       err = {0};
    make_spiece(bytes, len, 1000001);
    nw_tokenizer_files files = files_of(bytes, len);
    assert_int_equal(use(&files, &err), NW_E_TOKENIZER);
    assert_non_null(strstr(err.msg, "more than 1000000 pieces"));
    free(bytes);
}

/* Documents that are large in each way: refused, or within what was promised and declared, which use() checks. */
static void test_large_documents(void **state)
{
    (void)state;
    enum { CAP = 1 << 20 };
    begin_small();
    nw_tokenizer_files files = files_of(made.bytes, made.out.len);
    char              *text = malloc(CAP);
    nw_error           err = {0};
    size_t             len = 0;
    files.special = text;
    memset(text, 'k', CAP); /* a long key; a long string, as it is and escaped */
    memcpy(text, "{\"", 2);
    memcpy(text + 900000, "\":1}", 4);
    files.special_bytes = 900004;
    assert_int_equal(use(&files, &err), NW_E_TOKENIZER);
    memcpy(text, "{\"chat_template\":\"", 18);
    memcpy(text + 900000, "\"}", 2);
    files.special_bytes = 900002;
    assert_int_equal(use(&files, &err), NW_OK);
    memcpy(text + 18, "\\n", 2);
    assert_int_equal(use(&files, &err), NW_E_TOKENIZER);
    assert_non_null(strstr(err.msg, "memory to read"));
    for (unsigned i = 0; i < 60000; i++) /* many keys that mean nothing */
        len += (size_t)snprintf(text + len, CAP - len, "%c\"%u\":0", i == 0 ? '{' : ',', i);
    text[len++] = '}';
    files.special_bytes = len;
    assert_int_equal(use(&files, &err), NW_E_TOKENIZER);
    assert_non_null(strstr(err.msg, "memory to read"));
    /* As many tokens as there may be, and as long ones. */
    for (size_t name_len = 5; name_len <= 505; name_len += 500) {
        unsigned count = name_len == 5 ? 8000 : 500;
        len = 0;
        for (unsigned i = 0; i < count; i++)
            len += (size_t)snprintf(text + len, CAP - len, "%s\"%0*u\"",
                                    i == 0 ? "{\"additional_special_tokens\":[" : ",", (int)name_len, i);
        len += (size_t)snprintf(text + len, CAP - len, "]}");
        files.special_bytes = len;
        if (use(&files, &err) != NW_OK)
            fail_msg("%s", err.msg);
    }
    files.special_bytes = (size_t)snprintf(text, CAP, "{\"added_tokens_decoder\":{\"1999999\":{\"content\":\"x\"}}}");
    assert_int_equal(use(&files, &err), NW_OK); /* a table of so many ids */
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_is_good),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_charsmap_shapes),
        cmocka_unit_test(test_charsmap_circles),
        cmocka_unit_test(test_charsmap_many_matches),
        cmocka_unit_test(test_charsmap_growth),
        cmocka_unit_test(test_charsmap_growth_bpe),
        cmocka_unit_test(test_charsmap_sizes),
        cmocka_unit_test(test_charsmap_random),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_user_pieces),
        cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_large_documents),
        cmocka_unit_test(test_too_many_pieces),
    };
    return cmocka_run_group_tests_name("tokenizer_hostile", tests, NULL, NULL);
}

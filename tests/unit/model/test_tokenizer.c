/* The tokenizer against the reference's vectors, the rules for special tokens, decoding, ByT5, and its declared memory.
 */
#define _GNU_SOURCE
#include "../../../model/tokenizer/spiece_shim.h" /* private: the library, to compare with */
#include "make_spiece.h"
#include "model/tokenizer.h"

#include <cjson/cJSON.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define IDS_MAX 40000

typedef struct {
    char  *bytes;
    size_t len;
} blob;

static blob load(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", NW_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    blob b = {malloc((size_t)size + 1), (size_t)size};
    assert_int_equal(fread(b.bytes, 1, b.len, f), b.len);
    b.bytes[b.len] = '\0';
    fclose(f);
    return b;
}

static void unload(blob *b)
{
    free(b->bytes);
    *b = (blob){0};
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* A tokenizer with its piece table and account. */
typedef struct {
    nw_memory          mem;
    nw_tokenizer_files files;
    nw_tokenizer      *tokenizer;
    nw_pieces         *pieces;
    blob               spiece, config, special;
} kit;

static void kit_start(kit *k)
{
    nw_error err = {0};
    nw_memory_init(&k->mem, UINT64_MAX, NULL);
    if (nw_tokenizer_open(&k->mem, &k->files, &k->tokenizer, &err) != NW_OK ||
        nw_pieces_open(&k->mem, &k->files, &k->pieces, &err) != NW_OK)
        fail_msg("%s", err.msg);
}

static void kit_end(kit *k)
{
    assert_null(nw_tokenizer_close(k->tokenizer));
    assert_null(nw_pieces_close(k->pieces));
    assert_int_equal(k->mem.live, 0);
    unload(&k->spiece);
    unload(&k->config);
    unload(&k->special);
}

static void kit_t5_files(kit *k)
{
    *k = (kit){.spiece = load("t5-tokenizer/spiece.model"),
               .config = load("t5-tokenizer/tokenizer_config.json"),
               .special = load("t5-tokenizer/special_tokens_map.json")};
    k->files = (nw_tokenizer_files){.name = "t5-tokenizer/spiece.model",
                                    .spiece = k->spiece.bytes,
                                    .spiece_bytes = k->spiece.len,
                                    .config = k->config.bytes,
                                    .config_bytes = k->config.len,
                                    .special = k->special.bytes,
                                    .special_bytes = k->special.len,
                                    .vocab_size = 32128,
                                    .eos_id = 1};
}

static void kit_t5(kit *k)
{
    kit_t5_files(k);
    kit_start(k);
}

static void kit_byt5(kit *k)
{
    *k = (kit){.files = {.name = "ByT5", .vocab_size = 384, .eos_id = 1}};
    kit_start(k);
}

static size_t encode(kit *k, const char *text, size_t len, uint32_t *ids)
{
    nw_error err = {0};
    size_t   count = 0;
    if (nw_tokenizer_encode(k->tokenizer, text, len, ids, IDS_MAX, &count, &err) != NW_OK)
        fail_msg("%s", err.msg);
    assert_true(count <= IDS_MAX);
    return count;
}

/* Decodes with room for exactly nw_pieces_text_max at a time; the result is malloced and NUL-terminated. */
static char *decode(const kit *k, const uint32_t *ids, size_t count, size_t *ret_len)
{
    size_t     max = nw_pieces_text_max(k->pieces);
    char      *text = malloc(max * (count + 1) + 1);
    size_t     len = 0;
    nw_decoder d = {0};
    for (size_t i = 0; i < count; i++) {
        char  *piece = malloc(max); /* its own block, so that a sanitizer sees every byte beyond */
        size_t got = nw_pieces_decode(k->pieces, &d, ids[i], piece, max);
        assert_true(got <= max);
        memcpy(text + len, piece, got);
        len += got;
        free(piece);
    }
    len += nw_pieces_decode_end(k->pieces, &d, text + len, max);
    text[len] = '\0';
    *ret_len = len;
    return text;
}

static void expect_ids(kit *k, const char *text, size_t len, const uint32_t *want, size_t want_count)
{
    static uint32_t ids[IDS_MAX];
    size_t          count = encode(k, text, len, ids);
    if (count != want_count || memcmp(ids, want, count * sizeof *ids) != 0) {
        fprintf(stderr, "text '%.200s':", text);
        for (size_t i = 0; i < count && i < 100; i++)
            fprintf(stderr, " %u", ids[i]);
        fail_msg("wrong ids");
    }
}

#define EXPECT_IDS(k, text, ...)                                                                                       \
    do {                                                                                                               \
        const uint32_t want_[] = {__VA_ARGS__};                                                                        \
        expect_ids(k, text, sizeof(text) - 1, want_, sizeof want_ / sizeof *want_);                                    \
    } while (0)

static void expect_text(const kit *k, const uint32_t *ids, size_t count, const char *want, size_t want_len)
{
    size_t len;
    char  *text = decode(k, ids, count, &len);
    if (len != want_len || memcmp(text, want, len) != 0)
        fail_msg("decoded '%s', not '%s'", text, want);
    free(text);
}

#define EXPECT_TEXT(k, want, ...)                                                                                      \
    do {                                                                                                               \
        const uint32_t ids_[] = {__VA_ARGS__};                                                                         \
        expect_text(k, ids_, sizeof ids_ / sizeof *ids_, want, sizeof(want) - 1);                                      \
    } while (0)

/* --- The reference's vectors --- */

/* cJSON cuts strings at a NUL; so in the file's text NULs are written as U+F8FF until they are decoded. */
static void hide_nul(char *line)
{
    assert_null(strstr(line, "\\uf8ff"));
    for (char *at; (at = strstr(line, "\\u0000")) != NULL;)
        memcpy(at, "\\uf8ff", 6);
}

static size_t show_nul(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        bool hidden = memcmp(from, "\xEF\xA3\xBF", nw_min_size(3, strlen(from))) == 0;
        *to++ = hidden ? '\0' : *from;
        from += hidden ? 3 : 1;
    }
    size_t len = (size_t)(to - text);
    *to = '\0';
    return len;
}

static size_t array_ids(const cJSON *array, uint32_t *ids)
{
    size_t       count = 0;
    const cJSON *item;
    assert_non_null(array);
    cJSON_ArrayForEach(item, array) ids[count++] = (uint32_t)item->valuedouble;
    return count;
}

static size_t from_hex(const char *hex, char *bytes)
{
    size_t len = strlen(hex) / 2;
    for (size_t i = 0; i < len; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (char)byte;
    }
    return len;
}

static void one_vector(kit *k, char *line)
{
    static uint32_t want[IDS_MAX], plain[IDS_MAX];
    char            bytes[256];
    hide_nul(line);
    cJSON       *row = cJSON_Parse(line);
    const cJSON *hex = cJSON_GetObjectItemCaseSensitive(row, "hex");
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(row, "text");
    const cJSON *decoded = cJSON_GetObjectItemCaseSensitive(row, "decoded");
    size_t       count = array_ids(cJSON_GetObjectItemCaseSensitive(row, "ids"), want);
    if (hex != NULL)
        expect_ids(k, bytes, from_hex(hex->valuestring, bytes), want, count);
    else
        expect_ids(k, text->valuestring, show_nul(text->valuestring), want, count);
    if (decoded != NULL) {
        size_t plain_count = 0;
        for (size_t i = 0; i < count; i++) {
            if (want[i] > 2 && want[i] < 32000)
                plain[plain_count++] = want[i];
        }
        expect_text(k, plain, plain_count, decoded->valuestring, strlen(decoded->valuestring));
    }
    cJSON_Delete(row);
}

static void test_t5_vectors(void **state)
{
    (void)state;
    kit  k;
    blob vectors = load("goldens/t5-tokenizer.jsonl");
    int  rows = 0;
    kit_t5(&k);
    for (char *line = strtok(vectors.bytes, "\n"); line != NULL; line = strtok(NULL, "\n"), rows++)
        one_vector(&k, line);
    assert_int_equal(rows, 243);
    unload(&vectors);
    kit_end(&k);
}

static void test_numbers_vectors(void **state)
{
    (void)state;
    static uint32_t want[IDS_MAX];
    kit             k = {.spiece = load("numbers-t5/spiece.model"), .config = load("numbers-t5/tokenizer_config.json")};
    blob            vectors = load("numbers-t5/vectors.jsonl");
    int             rows = 0;
    k.files = (nw_tokenizer_files){.name = "numbers-t5/spiece.model",
                                   .spiece = k.spiece.bytes,
                                   .spiece_bytes = k.spiece.len,
                                   .config = k.config.bytes,
                                   .config_bytes = k.config.len,
                                   .vocab_size = 768,
                                   .eos_id = 1};
    kit_start(&k);
    for (char *line = strtok(vectors.bytes, "\n"); line != NULL; line = strtok(NULL, "\n"), rows++) {
        cJSON       *row = cJSON_Parse(line);
        const char  *text = cJSON_GetObjectItemCaseSensitive(row, "text")->valuestring;
        const cJSON *sequences = cJSON_GetObjectItemCaseSensitive(row, "sequences");
        const cJSON *texts = cJSON_GetObjectItemCaseSensitive(row, "texts");
        expect_ids(&k, text, strlen(text), want, array_ids(cJSON_GetObjectItemCaseSensitive(row, "input_ids"), want));
        assert_true(cJSON_GetArraySize(sequences) > 0);
        for (int i = 0; i < cJSON_GetArraySize(sequences); i++) {
            const char *out = cJSON_GetArrayItem(texts, i)->valuestring;
            expect_text(&k, want, array_ids(cJSON_GetArrayItem(sequences, i), want), out, strlen(out));
        }
        cJSON_Delete(row);
    }
    assert_true(rows > 100);
    EXPECT_IDS(&k, "<extra_id_0><extra_id_99>", 739, 640, 1);
    unload(&vectors);
    kit_end(&k);
}

/* The library itself on the same unigram model: the same normalisation, and the same cuts but for ties. */
static void test_like_the_library(void **state)
{
    (void)state;
    static uint32_t ours[IDS_MAX], theirs[IDS_MAX];
    kit             k;
    nw_spiece      *spiece = NULL;
    nw_error        err = {0};
    uint64_t        rng = 5;
    int             differ = 0;
    kit_t5(&k);
    assert_int_equal(nw_spiece_open("T5", k.spiece.bytes, k.spiece.len, &spiece, &err), NW_OK);
    for (int round = 0; round < 3000; round++) {
        char   text[256];
        size_t len = 0, count = 0;
        for (unsigned n = (unsigned)next_random(&rng) % 60; n > 0; n--) {
            size_t piece_len;
            char   byte = (char)next_random(&rng);
            if (round % 3 == 0) { /* any bytes, pieces, or ASCII and spaces */
                memcpy(text + len++, &byte, 1);
            } else if (round % 3 == 1) {
                const char *piece = nw_pieces_raw(k.pieces, (uint32_t)next_random(&rng) % 32000, &piece_len);
                if (piece_len < 16 && len + piece_len < sizeof text && *piece != '<') {
                    memcpy(text + len, piece, piece_len);
                    len += piece_len;
                }
            } else {
                text[len++] = " \t!.aeinrst0019~\n  "[(unsigned)next_random(&rng) % 19];
            }
        }
        size_t our_count = encode(&k, text, len, ours) - 1;
        assert_int_equal(nw_spiece_encode(spiece, text, len, theirs, IDS_MAX, &count, &err), NW_OK);
        if (our_count == count && memcmp(ours, theirs, count * sizeof *ours) == 0)
            continue;
        differ++;
        size_t our_len, their_len;
        char  *our_text = decode(&k, ours, our_count, &our_len), *their_text = decode(&k, theirs, count, &their_len);
        assert_string_equal(our_text, their_text);
        free(our_text);
        free(their_text);
    }
    print_message("%d of 3000 texts are cut otherwise by this version of the library\n", differ);
    assert_true(differ < 60);
    nw_spiece_close(spiece);
    kit_end(&k);
}

/* --- Special tokens --- */

/* Opens T5's model with documents given as strings. */
static void kit_with(kit *k, uint32_t vocab_size, const char *config, const char *special, const char *added)
{
    kit_t5_files(k);
    k->files.vocab_size = vocab_size;
    k->files.config = config;
    k->files.config_bytes = config != NULL ? strlen(config) : 0;
    k->files.special = special;
    k->files.special_bytes = special != NULL ? strlen(special) : 0;
    k->files.added = added;
    k->files.added_bytes = added != NULL ? strlen(added) : 0;
}

static uint32_t extra_ids_of(uint32_t vocab_size, const char *config, const char *special)
{
    kit                k;
    nw_tokenizer_facts facts = {0};
    nw_error           err = {0};
    kit_with(&k, vocab_size, config, special, NULL);
    nw_memory_init(&k.mem, UINT64_MAX, NULL);
    if (nw_tokenizer_check(&k.mem, &k.files, &facts, &err) != NW_OK)
        fail_msg("%s", err.msg);
    kit_end(&k);
    return facts.extra_ids;
}

static void test_extra_id_count(void **state)
{
    (void)state;
    assert_int_equal(extra_ids_of(32128, NULL, NULL), 100);
    assert_int_equal(extra_ids_of(32099, NULL, NULL), 0);
    assert_int_equal(extra_ids_of(32128, "{\"extra_ids\": 7}", NULL), 7);
    assert_int_equal(extra_ids_of(32128, "{\"extra_ids\": 0}", NULL), 0);
    assert_int_equal(extra_ids_of(32128, NULL, "{\"additional_special_tokens\": [\"<extra_id_0>\", \"<extra_id_1>\"]}"),
                     2);
    assert_int_equal(extra_ids_of(32128, "{\"additional_special_tokens\": null}", NULL), 100);
}

static void test_special_rules(void **state)
{
    (void)state;
    kit k;
    kit_with(&k, 32128, "{\"extra_ids\": 7, \"eos_token\": {\"content\": \"[E]\", \"rstrip\": true}}", NULL,
             "{\"<new>\": 32120}");
    kit_start(&k);
    EXPECT_IDS(&k, "<extra_id_0>", 32006, 1);
    EXPECT_IDS(&k, "<extra_id_6>a", 32000, 3, 9, 1);
    EXPECT_IDS(&k, "a[E]  b", 3, 9, 1, 3, 115, 1);
    EXPECT_IDS(&k, "<new>", 32120, 1);
    EXPECT_TEXT(&k, "<new> a", 32120, 3, 9);
    kit_end(&k);
    /* Explicit ids hold, whatever the rule; names of the model's own pieces keep theirs; the rest follows. */
    kit_with(&k, 32128,
             "{\"added_tokens_decoder\": {\"32050\": {\"content\": \"<extra_id_0>\"}},"
             "\"additional_special_tokens\": [\"X\", \"<free>\"]}",
             NULL, NULL);
    kit_start(&k);
    EXPECT_IDS(&k, "<extra_id_0>X<free>", 32050, 4, 32051, 1);
    kit_end(&k);
}

static void test_special_refusals(void **state)
{
    (void)state;
    static const char *const configs[] = {"{\"extra_ids\": 129}",
                                          "{\"extra_ids\": -1}",
                                          "{\"extra_ids\": 1.5}",
                                          "{\"added_tokens_decoder\": {\"32128\": {\"content\": \"<x>\"}}}",
                                          "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<x>\"}}}",
                                          "{\"added_tokens_decoder\": {\"99999999999\": {\"content\": \"<x>\"}}}",
                                          "[]",
                                          "{",
                                          "",
                                          "{\"eos_token\": \"\xff\"}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        kit                k;
        nw_tokenizer_facts facts;
        nw_error           err = {0};
        kit_with(&k, 32128, configs[i], NULL, NULL);
        nw_memory_init(&k.mem, UINT64_MAX, NULL);
        assert_int_equal(nw_tokenizer_check(&k.mem, &k.files, &facts, &err), NW_E_TOKENIZER);
        assert_int_equal(err.code, NW_E_TOKENIZER);
        assert_true(strlen(err.msg) > 0);
        k.files.config = NULL;
        k.files.eos_id = 32128;
        assert_int_equal(nw_tokenizer_check(&k.mem, &k.files, &facts, &err), NW_E_TOKENIZER);
        k.files.eos_id = 1;
        k.files.vocab_size = 31999;
        assert_int_equal(nw_tokenizer_check(&k.mem, &k.files, &facts, &err), NW_E_TOKENIZER);
        kit_end(&k);
    }
}

/* --- Decoding and the rest of encoding --- */

static void test_decode_rules(void **state)
{
    (void)state;
    kit    k;
    size_t len;
    kit_t5(&k);
    EXPECT_TEXT(&k, "<extra_id_0> a", 0, 32099, 3, 9, 1);
    EXPECT_TEXT(&k, "a", 0, 0, 3, 9, 1, 1);
    EXPECT_TEXT(&k, " \xE2\x81\x87 ", 2);
    EXPECT_TEXT(&k, "a \xE2\x81\x87  a", 3, 9, 2, 3, 9);
    EXPECT_TEXT(&k, "a", 32127, 3, 9, 32127, 4000000000u);
    assert_memory_equal(nw_pieces_raw(k.pieces, 32099, &len), "<extra_id_0>", 12);
    assert_int_equal(len, 12);
    assert_memory_equal(nw_pieces_raw(k.pieces, 3, &len), "\xE2\x96\x81", 3);
    assert_int_equal(len, 3);
    nw_pieces_raw(k.pieces, 32127, &len);
    assert_int_equal(len, 0);
    kit_end(&k);
}

static void test_room(void **state)
{
    (void)state;
    kit      k;
    uint32_t ids[4] = {77, 77, 77, 77};
    size_t   count = 0;
    nw_error err = {0};
    kit_t5(&k);
    assert_int_equal(nw_tokenizer_encode(k.tokenizer, "a b <pad> c", 11, ids, 3, &count, &err), NW_OK);
    assert_int_equal(count, 8);
    assert_int_equal(ids[2], 3);
    assert_int_equal(ids[3], 77);
    assert_int_equal(nw_tokenizer_encode(k.tokenizer, "a b", 3, NULL, 0, &count, &err), NW_OK);
    assert_int_equal(count, 5);
    kit_end(&k);
}

static void test_unknown(void **state)
{
    (void)state;
    kit  k;
    char buf[64];
    kit_t5(&k);
    assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "plain text", 10, buf, sizeof buf), 0);
    assert_string_equal(buf, "");
    assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "a{b} ~{ \0 \xff <unk>", 17, buf, sizeof buf), 5);
    assert_string_equal(buf, "{ } ~ \\x00 \xEF\xBF\xBD");
    assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "{}~", 3, buf, 4), 3);
    assert_string_equal(buf, "{ }");
    assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "{}~", 3, NULL, 0), 3);
    kit_end(&k);
}

static void test_byt5(void **state)
{
    (void)state;
    kit    k;
    size_t len;
    kit_byt5(&k);
    EXPECT_IDS(&k, "", 1);
    EXPECT_IDS(&k, "a\xC3\xA4 \xff", 100, 198, 167, 35, 258, 1);
    EXPECT_IDS(&k, "a <extra_id_0> b</s><pad><unk>", 100, 35, 259, 35, 101, 1, 0, 2, 1);
    EXPECT_IDS(&k, "<extra_id_124>", 383, 1);
    EXPECT_TEXT(&k, " a\xC3\xA4<extra_id_1>b", 35, 100, 198, 167, 260, 101, 1, 0);
    EXPECT_TEXT(&k, "ab", 100, 258, 198, 101, 229, 133); /* bytes that are no UTF-8 vanish */
    EXPECT_TEXT(&k, "\xC3\xA4", 198, 0, 167);            /* special ids are taken out first */
    EXPECT_TEXT(&k, "a", 100, 2);
    assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "\xff", 1, NULL, 0), 0);
    assert_memory_equal(nw_pieces_raw(k.pieces, 13, &len), "<0x0A>", 6);
    kit_end(&k);
}

/* A model with all 256 byte pieces; unigram, or BPE through the library. */
static blob byte_fallback_model(bool bpe)
{
    const unsigned char trainer[] = {3 << 3, bpe ? 2 : 1, 0x98, 0x02, 1}; /* model_type, byte_fallback (field 35) */
    spiece_out          o = {0};
    blob                b = {0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            b = (blob){malloc(o.len), o.len};
            o = (spiece_out){.bytes = (unsigned char *)b.bytes, .cap = b.len};
        }
        spiece_piece(&o, "<unk>", 5, 0, 2);
        spiece_piece(&o, "</s>", 4, 0, 3);
        for (unsigned byte = 0; byte < 256; byte++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", byte);
            spiece_piece(&o, name, 6, 0, 6);
        }
        spiece_piece(&o, "\xE2\x96\x81", 3, -2, 1);
        spiece_piece(&o, "a", 1, -3, 1);
        spiece_piece(&o,
                     "\xE2\x96\x81"
                     "a",
                     4, -1, 1);
        spiece_piece(&o, "<2de>", 5, 0, 4);
        spiece_bytes(&o, 2, trainer, sizeof trainer);
    }
    return b;
}

static void test_byte_fallback(void **state)
{
    (void)state;
    for (int bpe = 0; bpe < 2; bpe++) {
        kit k = {.spiece = byte_fallback_model(bpe)};
        k.files = (nw_tokenizer_files){.name = "made.model",
                                       .spiece = k.spiece.bytes,
                                       .spiece_bytes = k.spiece.len,
                                       .vocab_size = 300,
                                       .eos_id = 1};
        kit_start(&k);
        EXPECT_IDS(&k, "a\xC3\xA4 a", 260, 2 + 0xC3, 2 + 0xA4, 260, 1);
        EXPECT_IDS(&k, "<2de> a", 258, 261, 260, 1);
        EXPECT_TEXT(&k, "a\xC3\xA4 a", 260, 2 + 0xC3, 2 + 0xA4, 260, 1);
        EXPECT_TEXT(&k,
                    "\xEF\xBF\xBD\xEF\xBF\xBD"
                    "a\xEF\xBF\xBD",
                    2 + 0xE2, 2 + 0x82, 259, 2 + 0xF0);
        EXPECT_TEXT(&k, "\xEF\xBF\xBD\xEF\xBF\xBD", 2 + 0xC0, 2 + 0x80);
        assert_int_equal(nw_tokenizer_unknown(k.tokenizer, "\xC3\xA4", 2, NULL, 0), 0);
        kit_end(&k);
    }
}

/* Work is proportional to the text: 4 MiB that look like the beginning of a special token at every byte. */
static void test_long_text(void **state)
{
    (void)state;
    size_t   len = (size_t)4 << 20, count = 0;
    char    *text = malloc(len);
    nw_error err = {0};
    kit      k;
    for (size_t i = 0; i < len; i++)
        text[i] = "<extra_id_"[i % 10];
    kit_byt5(&k);
    assert_int_equal(nw_tokenizer_encode(k.tokenizer, text, len, NULL, 0, &count, &err), NW_OK);
    assert_int_equal(count, len + 1);
    kit_end(&k);
    kit_t5(&k);
    memset(text, 0xFF, len);
    assert_int_equal(nw_tokenizer_encode(k.tokenizer, text, len, NULL, 0, &count, &err), NW_OK);
    assert_int_equal(count, 3);
    /* A limit on memory is an error, not a larger process. */
    k.mem.limit = k.mem.live + (1 << 20);
    assert_int_equal(nw_tokenizer_encode(k.tokenizer, text, len, NULL, 0, &count, &err), NW_E_BUDGET);
    kit_end(&k);
    free(text);
}

/* --- Memory --- */

static bool all_with_fault(const nw_tokenizer_files *files, uint64_t at)
{
    nw_memory_fault fault = {.fail_at = at};
    nw_memory       mem;
    nw_error        err = {0};
    nw_tokenizer   *tokenizer = NULL;
    nw_pieces      *pieces = NULL;
    uint32_t        ids[64];
    size_t          count = 0;
    nw_memory_init(&mem, UINT64_MAX, &fault);
    nw_code rc = nw_tokenizer_open(&mem, files, &tokenizer, &err);
    if (rc == NW_OK)
        rc = nw_pieces_open(&mem, files, &pieces, &err);
    if (rc == NW_OK)
        rc = nw_tokenizer_encode(tokenizer, "a <pad> b{", 10, ids, 64, &count, &err);
    if (rc == NW_OK) {
        assert_false(fault.fired);
        assert_int_equal(count, 7); /* a <pad> b{ </s> */
        size_t unknown = nw_tokenizer_unknown(tokenizer, "{", 1, NULL, 0);
        assert_int_equal(unknown, fault.fired ? 0 : 1);
    } else {
        assert_true(fault.fired);
        assert_int_equal(rc, NW_E_MEMORY);
        assert_int_equal(err.code, NW_E_MEMORY);
    }
    nw_tokenizer_close(tokenizer);
    nw_pieces_close(pieces);
    assert_int_equal(mem.live, 0);
    return fault.fired;
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    kit      k;
    uint64_t at = 1;
    kit_t5_files(&k);
    while (all_with_fault(&k.files, at))
        at++;
    assert_true(at > 15);
    nw_memory_init(&k.mem, 0, NULL);
    kit_end(&k);
}

#ifdef NW_SANITIZED
static void test_declared(void **state)
{
    (void)state;
    skip(); /* a sanitizer's own memory is not the tokenizer's */
}
#else
/* Put after a unigram model, it makes a BPE model of it: trainer_spec again, and the last model_type counts. */
static const unsigned char bpe_again[] = {2 << 3 | 2, 2, 3 << 3, 2};

static uint64_t resident(const char *key)
{
    char     line[256];
    uint64_t kib = 0;
    FILE    *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoull(line + strlen(key), NULL, 10);
    }
    if (f != NULL)
        fclose(f);
    return kib * 1024;
}

/* Code that is paged in is the process's base, not the tokenizer's: both encoders run once before anything is measured.
 */
static void warm(void)
{
    static char bytes[8192];
    size_t      len = make_spiece(bytes, sizeof bytes - sizeof bpe_again, MAKE_SPIECE_PIECES_MIN);
    uint32_t    ids[64];
    for (int bpe = 0; bpe < 2; bpe++) {
        kit k = {.files = {.name = "warm",
                           .spiece = bytes,
                           .spiece_bytes = len,
                           .config = "{\"extra_ids\": 1}",
                           .config_bytes = 16,
                           .vocab_size = 1000,
                           .eos_id = 1}};
        memcpy(bytes + len, bpe_again, sizeof bpe_again);
        k.files.spiece_bytes += (size_t)bpe * sizeof bpe_again;
        kit_start(&k);
        assert_int_equal(encode(&k, "a", 1, ids), 3);
        kit_end(&k);
    }
}

/* In a process of its own: exit status 0, or the line that failed. */
static int declared_holds(const nw_tokenizer_files *files, size_t text_len)
{
    warm();
    nw_memory          mem;
    nw_error           err = {0};
    nw_tokenizer_facts facts;
    nw_tokenizer      *tokenizer;
    nw_pieces         *pieces;
    size_t             count;
    char              *text = malloc(text_len);
    for (size_t i = 0; i < text_len; i++)
        text[i] = "ba ce di"[i % 8];
    nw_memory_init(&mem, UINT64_MAX, NULL);
    malloc_trim(0);
    FILE *clear = fopen("/proc/self/clear_refs", "w"); /* 5: VmHWM starts again */
    if (clear == NULL || fputs("5", clear) < 0 || fclose(clear) != 0)
        return 77;
    uint64_t before = resident("VmRSS:"), anon = resident("RssAnon:");
    if (nw_tokenizer_check(&mem, files, &facts, &err) != NW_OK || mem.peak > 1 << 20)
        return 1;
    nw_tokenizer_cost cost = nw_tokenizer_declared(&facts);
    if (nw_tokenizer_open(&mem, files, &tokenizer, &err) != NW_OK)
        return 2;
    if (resident("VmRSS:") > before + cost.kept)
        return 3;
    if (nw_tokenizer_encode(tokenizer, text, text_len, NULL, 0, &count, &err) != NW_OK)
        return 4;
    uint64_t peak = resident("VmHWM:") - before;
    if (peak > cost.peak + cost.per_text_byte * text_len)
        return 5;
    nw_tokenizer_close(tokenizer);
    malloc_trim(0);
    uint64_t left = resident("VmRSS:");
    if (resident("RssAnon:") > anon + (256 << 10)) /* the rest is code of the library, paged in from its file */
        return 6;
    if (nw_pieces_open(&mem, files, &pieces, &err) != NW_OK || mem.live > cost.pieces)
        return 7;
    malloc_trim(0);
    if (resident("VmRSS:") > left + cost.pieces)
        return 8;
    printf("%s: %u pieces%s: peak %llu kB of %llu declared, text %zu\n", files->name, facts.piece_count,
           facts.library ? " (library)" : "", (unsigned long long)peak / 1024, (unsigned long long)cost.peak / 1024,
           text_len);
    fflush(stdout);
    return 0;
}

static void expect_declared(const nw_tokenizer_files *files, size_t text_len)
{
    int   status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(declared_holds(files, text_len));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_declared(void **state)
{
    (void)state;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    for (uint32_t pieces = 0; pieces <= 250000; pieces += 250000) {
        kit k;
        kit_t5_files(&k);
        k.files.vocab_size = 260000;
        if (pieces > 0) {
            unload(&k.spiece);
            k.spiece.len = make_spiece(NULL, 0, pieces);
            k.spiece.bytes = malloc(k.spiece.len);
            assert_int_equal(make_spiece(k.spiece.bytes, k.spiece.len, pieces), k.spiece.len);
            k.files.config = k.files.special = NULL;
        }
        k.spiece.bytes = realloc(k.spiece.bytes, k.spiece.len + sizeof bpe_again);
        memcpy(k.spiece.bytes + k.spiece.len, bpe_again, sizeof bpe_again);
        k.files.spiece = k.spiece.bytes;
        for (size_t added = 0; added <= sizeof bpe_again; added += sizeof bpe_again) {
            k.files.spiece_bytes = k.spiece.len + added;
            expect_declared(&k.files, 100);
            expect_declared(&k.files, 60000);
        }
        nw_memory_init(&k.mem, 0, NULL);
        kit_end(&k);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_t5_vectors),
        cmocka_unit_test(test_numbers_vectors),
        cmocka_unit_test(test_like_the_library),
        cmocka_unit_test(test_extra_id_count),
        cmocka_unit_test(test_special_rules),
        cmocka_unit_test(test_special_refusals),
        cmocka_unit_test(test_decode_rules),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_byt5),
        cmocka_unit_test(test_byte_fallback),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_declared),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}

/* Makes sentencepiece unigram models in memory, so that tests and benchmarks can have a vocabulary of any size.
 *
 *   size_t len = make_spiece(NULL, 0, 250000);    bytes = malloc(len);    make_spiece(bytes, len, 250000);
 *
 * Ids       0 <pad>, 1 </s>, 2 <unk>, 3 the space mark, then each ASCII character but NUL and space, then made-up
 * words, every other one with a space mark before it. Anything ASCII can be encoded. Normaliser none; a space is put
 * before the text and runs of spaces are made one.
 *
 * make_spiece_madlad does the same in the manner of MADLAD-400: 0 <unk>, 1 <s>, 2 </s>, then 419 user-defined pieces
 * <2aa>, <2ab>, ..., then the bytes <0x00> to <0xFF>, then the space mark, characters and words. Anything can be
 * encoded.
 */
#ifndef NW_TEST_MAKE_SPIECE_H
#define NW_TEST_MAKE_SPIECE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MAKE_SPIECE_PIECES_MIN 130u /* 4 and 126 characters */
#define MAKE_SPIECE_LANGUAGES 419u
#define MAKE_SPIECE_MADLAD_MIN (MAKE_SPIECE_PIECES_MIN + MAKE_SPIECE_LANGUAGES + 256)

/* A growing output: counts when there is no room. */
typedef struct {
    unsigned char *bytes;
    size_t         cap, len;
} spiece_out;

static inline void spiece_put(spiece_out *o, const void *bytes, size_t len)
{
    if (len > 0 && o->len <= o->cap && len <= o->cap - o->len)
        memcpy(o->bytes + o->len, bytes, len);
    o->len += len;
}

static inline void spiece_varint(spiece_out *o, uint64_t value)
{
    do {
        unsigned char byte = (unsigned char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        spiece_put(o, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

/* A field of bytes: a string or a message. */
static inline void spiece_bytes(spiece_out *o, unsigned field, const void *bytes, size_t len)
{
    spiece_varint(o, (uint64_t)field << 3 | 2);
    spiece_varint(o, len);
    spiece_put(o, bytes, len);
}

static inline void spiece_number(spiece_out *o, unsigned field, uint64_t value)
{
    spiece_varint(o, (uint64_t)field << 3);
    spiece_varint(o, value);
}

/* One piece with its score and type (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte). */
static inline void spiece_piece(spiece_out *o, const char *text, size_t len, float score, unsigned type)
{
    const unsigned char score_tag = 2 << 3 | 5;
    spiece_out          measure = {0};
    for (int pass = 0; pass < 2; pass++) {
        spiece_out *to = pass == 0 ? &measure : o;
        if (pass == 1) {
            spiece_varint(o, 1 << 3 | 2);
            spiece_varint(o, measure.len);
        }
        spiece_bytes(to, 1, text, len);
        spiece_put(to, &score_tag, 1);
        spiece_put(to, &score, sizeof score); /* little-endian, as all hosts of this project are */
        spiece_number(to, 3, type);
    }
}

/* The k-th made-up word: syllables of two letters, no word twice. At most 24 bytes; returns how many. */
static inline size_t spiece_word(uint32_t k, char word[24])
{
    static const char consonants[] = "bcdfghjklmnpqrstvwxz", vowels[] = "aeiou";
    size_t            len = 0;
    if (k % 2 == 0) {
        memcpy(word, "\xE2\x96\x81", 3);
        len = 3;
    }
    for (uint32_t rest = k / 2 + 1; rest > 0; rest = (rest - 1) / 100) {
        uint32_t syllable = (rest - 1) % 100;
        word[len++] = consonants[syllable / 5];
        word[len++] = vowels[syllable % 5];
    }
    return len;
}

/* The space mark, the characters, and words up to piece_count pieces, of which `before` are there. */
static inline void spiece_text_pieces(spiece_out *o, uint32_t before, uint32_t piece_count)
{
    char word[24];
    spiece_piece(o, "\xE2\x96\x81", 3, -3, 1);
    for (char c = 1; c > 0 && c < 127; c++) {
        if (c != ' ')
            spiece_piece(o, &c, 1, -12, 1);
    }
    spiece_piece(o, "\x7F", 1, -12, 1);
    for (uint32_t k = 0; k + before + 127 < piece_count; k++)
        spiece_piece(o, word, spiece_word(k, word), -4.0f - 8.0f * (float)k / (float)piece_count, 1);
}

/* What stands behind the pieces: a unigram model, with the three switches of white space. */
static inline void spiece_settings(spiece_out *o, int byte_fallback)
{
    static const unsigned char trainer[] = {3 << 3, 1, (35 << 3 & 0x7F) | 0x80, 35 >> 4, 1};
    static const unsigned char normalizer[] = {3 << 3, 1, 4 << 3, 1, 5 << 3, 1};
    spiece_bytes(o, 2, trainer, byte_fallback ? sizeof trainer : 2);
    spiece_bytes(o, 3, normalizer, sizeof normalizer);
}

/* Writes a model of piece_count pieces (at least MAKE_SPIECE_PIECES_MIN) if it fits in cap bytes; returns its size. */
static inline size_t make_spiece(void *bytes, size_t cap, uint32_t piece_count)
{
    spiece_out o = {.bytes = (unsigned char *)bytes, .cap = cap};
    spiece_piece(&o, "<pad>", 5, 0, 3);
    spiece_piece(&o, "</s>", 4, 0, 3);
    spiece_piece(&o, "<unk>", 5, 0, 2);
    spiece_text_pieces(&o, 3, piece_count);
    spiece_settings(&o, 0);
    return o.len;
}

/* The same in the manner of MADLAD-400, of at least MAKE_SPIECE_MADLAD_MIN pieces. */
static inline size_t make_spiece_madlad(void *bytes, size_t cap, uint32_t piece_count)
{
    spiece_out o = {.bytes = (unsigned char *)bytes, .cap = cap};
    char       text[16];
    spiece_piece(&o, "<unk>", 5, 0, 2);
    spiece_piece(&o, "<s>", 3, 0, 3);
    spiece_piece(&o, "</s>", 4, 0, 3);
    for (uint32_t k = 0; k < MAKE_SPIECE_LANGUAGES; k++) {
        char language[] = {'<', '2', (char)('a' + k / 26), (char)('a' + k % 26), '>'};
        spiece_piece(&o, language, sizeof language, 0, 4);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", byte);
        spiece_piece(&o, text, strlen(text), 0, 6);
    }
    spiece_text_pieces(&o, 3 + MAKE_SPIECE_LANGUAGES + 256, piece_count);
    spiece_settings(&o, 1);
    return o.len;
}

#endif

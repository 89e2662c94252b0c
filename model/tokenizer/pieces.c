/* Ids back to text, from a table of our own: one blob of raw piece texts, their ends, and what each is.
 *
 * The rules are those of sentencepiece's Decode (sentencepiece_processor.cc), applied as ids come rather than to the
 * whole: U+2581 is a space; spaces at the very start are dropped when the model adds them; bytes of byte pieces are put
 * together to characters, and each byte that cannot be part of one becomes U+FFFD. ByT5 is a table of byte pieces where
 * such bytes are dropped (errors="ignore" in transformers' tokenization_byt5.py). Tokens that are not in the model's
 * file are written as their names.
 */
#include "model/tokenizer.h"

#include "tokenizer_files.h"
#include "utf8.h"

#include <stdio.h>
#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"
#define REPLACEMENT_LEN ((size_t)3)
#define SPACE_MARK "\xE2\x96\x81"
#define SPACE_MARK_LEN ((size_t)3)
#define BYTE_NAME_LEN ((size_t)6) /* <0xNN> */

typedef enum { TEXT_NONE, TEXT_SILENT, TEXT_PIECE, TEXT_UNKNOWN, TEXT_LITERAL, TEXT_BYTE } text_kind;

struct nw_pieces {
    nw_memory     *mem;
    bool           byt5;
    bool           drop_spaces; /* all spaces at the start */
    bool           drop_space;  /* one space at the start */
    uint32_t       count;
    uint32_t      *ends; /* [count]: where each text ends in the blob; it begins where the one before ends */
    uint8_t       *kinds;
    char          *blob;
    size_t         blob_bytes, text_max;
    unsigned char *unk_surface;
    size_t         unk_surface_len;
};

static size_t piece_begin(const nw_pieces *p, uint32_t id)
{
    return id > 0 ? p->ends[id - 1] : 0;
}

static text_kind kind_of(nw_piece_type type)
{
    switch (type) {
    case NW_PIECE_UNKNOWN: return TEXT_UNKNOWN;
    case NW_PIECE_CONTROL: return TEXT_SILENT;
    case NW_PIECE_BYTE: return TEXT_BYTE;
    default: return TEXT_PIECE;
    }
}

static void append(nw_pieces *p, uint32_t id, const void *text, size_t len, text_kind kind)
{
    size_t at = piece_begin(p, id);
    NW_CHECK(len <= p->blob_bytes - at);
    if (len > 0)
        memcpy(p->blob + at, text, len);
    p->ends[id] = (uint32_t)(at + len);
    p->kinds[id] = (uint8_t)kind;
    p->text_max = nw_max_size(p->text_max, kind == TEXT_UNKNOWN ? p->unk_surface_len : len);
}

static void append_byte(nw_pieces *p, uint32_t id, unsigned byte)
{
    char name[BYTE_NAME_LEN + 1];
    snprintf(name, sizeof name, "<0x%02X>", byte & 0xFF);
    append(p, id, name, BYTE_NAME_LEN, TEXT_BYTE);
}

/* The model's own piece of an id, or the special token that took its place. */
static void append_piece(nw_pieces *p, const nw_tokenizer_files *files, uint32_t id, const nw_spiece_piece *piece,
                         const nw_specials *specials, const nw_special *special)
{
    const char *name = special != NULL ? nw_specials_name(specials, special) : NULL;
    bool        silent = id == files->eos_id || id == files->pad_id;
    if (piece == NULL) { /* above the model's pieces, or one of ByT5's first three */
        text_kind kind = special == NULL ? TEXT_NONE : TEXT_LITERAL;
        if (silent || (p->byt5 && id < NW_BYT5_FIRST_BYTE))
            kind = TEXT_SILENT;
        append(p, id, name, special != NULL ? special->name_len : 0, kind);
        return;
    }
    text_kind kind = kind_of(piece->type);
    bool      renamed = special != NULL && kind != TEXT_UNKNOWN &&
                   (special->name_len != piece->len || memcmp(name, piece->text, piece->len) != 0);
    if (renamed)
        append(p, id, name, special->name_len, silent ? TEXT_SILENT : TEXT_LITERAL);
    else
        append(p, id, piece->text, piece->len, silent ? TEXT_SILENT : kind);
}

static void fill(nw_pieces *p, const nw_tokenizer_files *files, const nw_tokenizer_parts *parts)
{
    const nw_specials *specials = &parts->specials;
    size_t             at = 0;
    /* Until an id is filled, its place in `ends` says which special token it is: 1 + index, or 0. */
    for (uint32_t i = 0; i < specials->count; i++)
        p->ends[specials->items[i].id] = i + 1;
    for (uint32_t id = 0; id < p->count; id++) {
        const nw_special *special = p->ends[id] > 0 ? &specials->items[p->ends[id] - 1] : NULL;
        nw_spiece_piece   piece;
        bool              own = !p->byt5 && id < parts->piece_count;
        if (own) {
            bool good = nw_spiece_next(&parts->spiece, &at, &piece);
            NW_CHECK(good);
        }
        if (p->byt5 && id >= NW_BYT5_FIRST_BYTE && id < NW_BYT5_PIECE_COUNT)
            append_byte(p, id, id - NW_BYT5_FIRST_BYTE);
        else
            append_piece(p, files, id, own ? &piece : NULL, specials, special);
    }
}

static nw_code build(nw_pieces *p, const nw_tokenizer_files *files, const nw_tokenizer_parts *parts, nw_error *err)
{
    nw_memory *mem = p->mem;
    size_t     texts = parts->byt5 ? 256 * BYTE_NAME_LEN : (size_t)parts->spiece.text_bytes;
    for (uint32_t i = 0; i < parts->specials.count; i++)
        texts += parts->specials.items[i].name_len;
    p->byt5 = parts->byt5;
    p->drop_spaces = !parts->byt5 && parts->spiece.remove_extra_whitespaces;
    p->drop_space = !parts->byt5 && parts->spiece.add_dummy_prefix;
    p->count = parts->piece_count > parts->specials.id_end ? parts->piece_count : parts->specials.id_end;
    p->unk_surface_len = parts->byt5 ? 0 : parts->spiece.unk_surface_len;
    p->blob_bytes = texts;
    p->ends = (uint32_t *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, p->count, sizeof *p->ends);
    p->kinds = (uint8_t *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, p->count, 1);
    p->blob = (char *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, p->blob_bytes, 1);
    p->unk_surface = (unsigned char *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, p->unk_surface_len, 1);
    if (p->ends == NULL || p->kinds == NULL || p->blob == NULL || p->unk_surface == NULL)
        return nw_memory_fail(mem, err, p->count * (sizeof *p->ends + 1) + p->blob_bytes, files->name);
    if (p->unk_surface_len > 0)
        memcpy(p->unk_surface, parts->spiece.unk_surface, p->unk_surface_len);
    fill(p, files, parts);
    return NW_OK;
}

nw_code nw_pieces_open(nw_memory *mem, const nw_tokenizer_files *files, nw_pieces **ret_pieces, nw_error *err)
{
    nw_tokenizer_parts parts;
    nw_code            rc = nw_tokenizer_parts_open(mem, files, &parts, err);
    if (rc != NW_OK)
        return rc;
    nw_pieces *p = (nw_pieces *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, 1, sizeof *p);
    if (p == NULL) {
        rc = nw_memory_fail(mem, err, sizeof *p, files->name);
    } else {
        p->mem = mem;
        rc = build(p, files, &parts, err);
    }
    nw_tokenizer_parts_close(&parts);
    if (rc == NW_OK)
        *ret_pieces = p;
    else
        nw_pieces_close(p);
    return rc;
}

nw_pieces *nw_pieces_close(nw_pieces *p)
{
    if (p == NULL)
        return NULL;
    nw_memory *mem = p->mem;
    nw_memory_free(mem, NW_TAG_TOKENIZER, p->unk_surface, p->unk_surface_len, 1);
    nw_memory_free(mem, NW_TAG_TOKENIZER, p->blob, p->blob_bytes, 1);
    nw_memory_free(mem, NW_TAG_TOKENIZER, p->kinds, p->count, 1);
    nw_memory_free(mem, NW_TAG_TOKENIZER, p->ends, p->count, sizeof *p->ends);
    nw_memory_free(mem, NW_TAG_TOKENIZER, p, 1, sizeof *p);
    return NULL;
}

const char *nw_pieces_raw(const nw_pieces *p, uint32_t id, size_t *ret_len)
{
    if (id >= p->count) {
        *ret_len = 0;
        return p->blob;
    }
    size_t begin = piece_begin(p, id);
    *ret_len = p->ends[id] - begin;
    return p->blob + begin;
}

/* Where text goes; what does not fit is dropped. */
typedef struct {
    char  *buf;
    size_t cap, len;
} text_sink;

static void put(text_sink *out, nw_decoder *d, const void *text, size_t len)
{
    size_t room = nw_min_size(len, out->cap - out->len);
    if (len > 0)
        d->started = true;
    if (room > 0)
        memcpy(out->buf + out->len, text, room);
    out->len += room;
}

/* Gives up on the bytes of a character that will not be completed. */
static void flush(const nw_pieces *p, nw_decoder *d, text_sink *out)
{
    for (uint32_t i = 0; i < d->held_count && !p->byt5; i++)
        put(out, d, REPLACEMENT, REPLACEMENT_LEN);
    d->held_count = 0;
}

static void put_byte(const nw_pieces *p, nw_decoder *d, unsigned char byte, text_sink *out)
{
    if (d->held_count > 0 && !nw_utf8_follows(d->held, d->held_count, byte))
        flush(p, d, out);
    if (d->held_count == 0 && nw_utf8_length(byte) == 0) {
        if (!p->byt5)
            put(out, d, REPLACEMENT, REPLACEMENT_LEN);
        return;
    }
    d->held[d->held_count++] = byte;
    if (d->held_count == nw_utf8_length(d->held[0])) {
        put(out, d, d->held, d->held_count);
        d->held_count = 0;
    }
}

/* A piece with its marks as spaces. Of each piece at the start one mark is dropped, as the library does. */
static void put_piece(const nw_pieces *p, nw_decoder *d, const char *text, size_t len, text_sink *out)
{
    size_t at = 0;
    if (!d->started && (p->drop_spaces || p->drop_space) && len >= SPACE_MARK_LEN &&
        memcmp(text, SPACE_MARK, SPACE_MARK_LEN) == 0) {
        at = SPACE_MARK_LEN;
        d->started = !p->drop_spaces;
    }
    while (at < len) {
        size_t end = at;
        while (end < len && (len - end < SPACE_MARK_LEN || memcmp(text + end, SPACE_MARK, SPACE_MARK_LEN) != 0))
            end++;
        put(out, d, text + at, end - at);
        if (end < len)
            put(out, d, " ", 1);
        at = end < len ? end + SPACE_MARK_LEN : len;
    }
}

size_t nw_pieces_text_max(const nw_pieces *p)
{
    return p->text_max + sizeof((nw_decoder *)NULL)->held * REPLACEMENT_LEN;
}

size_t nw_pieces_decode(const nw_pieces *p, nw_decoder *d, uint32_t id, char *buf, size_t cap)
{
    NW_CHECK(d->held_count < sizeof d->held);
    text_sink   out = {.buf = buf, .cap = cap};
    size_t      len;
    const char *text = nw_pieces_raw(p, id, &len);
    text_kind   kind = id < p->count ? (text_kind)p->kinds[id] : TEXT_NONE;
    bool        writes = kind != TEXT_NONE && kind != TEXT_SILENT;
    if (kind != TEXT_BYTE && (writes || !p->byt5)) /* ByT5's silent ids are taken out before bytes are joined */
        flush(p, d, &out);
    switch (kind) {
    case TEXT_NONE:
    case TEXT_SILENT: break;
    case TEXT_PIECE: put_piece(p, d, text, len, &out); break;
    case TEXT_UNKNOWN: put(&out, d, p->unk_surface, p->unk_surface_len); break;
    case TEXT_LITERAL: put(&out, d, text, len); break;
    case TEXT_BYTE: {
        unsigned high = (unsigned)text[3], low = (unsigned)text[4]; /* "<0xNN>", checked when it was read */
        high = high <= '9' ? high - '0' : high - 'A' + 10;
        low = low <= '9' ? low - '0' : low - 'A' + 10;
        put_byte(p, d, (unsigned char)(high * 16 + low), &out);
        break;
    }
    }
    return out.len;
}

size_t nw_pieces_decode_end(const nw_pieces *p, nw_decoder *d, char *buf, size_t cap)
{
    text_sink out = {.buf = buf, .cap = cap};
    flush(p, d, &out);
    return out.len;
}

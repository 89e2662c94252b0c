/* Text to ids: split at special tokens, and each part through the model's encoder: our own for unigram models
 * (unigram.c says why), the library for BPE, bytes for ByT5.
 *
 * Parts are found in one pass and their ids go straight to the caller's array. What an encoder takes for a text is
 * proportional to it; nw_tokenizer_declared says how much.
 */
#include "model/tokenizer.h"

#include "spiece_shim.h"
#include "tokenizer_files.h"
#include "unigram.h"
#include "utf8.h"

#include <stdio.h>
#include <string.h>

/* The library counts characters in 32-bit integers, and a text can grow 18-fold when it is normalised. */
#define TEXT_BYTES_MAX ((size_t)64 << 20)

/* The library joins unknown characters in a row one by one, copying all of them each time: 300 kB of them take minutes.
 * Models with byte fallback have none. Of the text as it is and of what the charsmap makes of it. */
#define BPE_TEXT_BYTES_MAX ((size_t)64 << 10)

struct nw_tokenizer {
    nw_memory         *mem;
    nw_unigram        *unigram; /* one of these two, or none for ByT5 */
    nw_spiece         *bpe;
    unsigned char     *charsmap; /* of a BPE model without byte fallback, to measure texts with; NULL: none */
    size_t             charsmap_len;
    nw_tokenizer_parts parts;
    uint32_t           eos_id;
    bool               first_byte[256]; /* bytes that special tokens begin with */
    char               name[256];       /* of the file, for messages */
};

nw_code nw_tokenizer_parts_open(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer_parts *ret, nw_error *err)
{
    nw_tokenizer_parts parts = {.byt5 = files->spiece == NULL, .piece_count = NW_BYT5_PIECE_COUNT};
    if (!parts.byt5) {
        nw_code rc = nw_spiece_read(mem, files->name, files->spiece, files->spiece_bytes, &parts.spiece, err);
        if (rc != NW_OK)
            return rc;
        parts.piece_count = parts.spiece.piece_count;
    }
    if (parts.piece_count > files->vocab_size)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: %u pieces, but the model has only %u rows", files->name,
                       parts.piece_count, files->vocab_size);
    if (files->eos_id >= files->vocab_size)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the end token is %u, but the model has only %u rows", files->name,
                       files->eos_id, files->vocab_size);
    nw_code rc = nw_specials_open(mem, files, parts.byt5 ? NULL : &parts.spiece, &parts.specials, err);
    if (rc == NW_OK)
        *ret = parts;
    return rc;
}

void nw_tokenizer_parts_close(nw_tokenizer_parts *parts)
{
    nw_specials_close(&parts->specials);
}

nw_code nw_tokenizer_check(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer_facts *ret, nw_error *err)
{
    nw_tokenizer_parts parts;
    nw_code            rc = nw_tokenizer_parts_open(mem, files, &parts, err);
    if (rc != NW_OK)
        return rc;
    const nw_specials *specials = &parts.specials;
    *ret = (nw_tokenizer_facts){
        .extra_ids = specials->extra_ids,
        .special_bytes = specials->cap * sizeof *specials->items + specials->names_cap,
        .id_end = specials->id_end > parts.piece_count ? specials->id_end : parts.piece_count,
    };
    if (!parts.byt5) {
        ret->piece_count = parts.piece_count;
        ret->file_bytes = files->spiece_bytes;
        ret->text_bytes = parts.spiece.text_bytes;
        ret->library = parts.spiece.bpe;
    }
    nw_tokenizer_parts_close(&parts);
    return NW_OK;
}

/* Fitted to VmHWM and VmRSS around the calls, with T5's 32,000 pieces and a made vocabulary of 250,000, about a
 * fifth above what was measured. Ours is arithmetic: 16 bytes a piece, the texts, the
 * charsmap (the file's size bounds it: a piece takes 4 bytes beside its text). The library's is a fit: 171 bytes a
 * piece and the file once were measured. */
nw_tokenizer_cost nw_tokenizer_declared(const nw_tokenizer_facts *facts)
{
    const uint64_t    kib = 1024, pieces = facts->piece_count, special = facts->special_bytes;
    uint64_t          framing = facts->text_bytes + 4 * pieces;
    uint64_t          charsmap = facts->file_bytes > framing ? facts->file_bytes - framing : 0;
    uint64_t          loading = charsmap / 4 + 512 * kib; /* checking the charsmap, scanning the documents */
    nw_tokenizer_cost cost = {.pieces = facts->text_bytes + 5 * (uint64_t)facts->id_end + special + 64 * kib};
    if (facts->library) {
        cost.kept = 205 * pieces + 2 * facts->file_bytes + special + 1024 * kib;
        cost.per_text_byte = 700; /* 260 for plain text, 650 where one character becomes 18 */
    } else {
        cost.kept = 16 * pieces + facts->text_bytes + charsmap + special + 256 * kib;
        cost.per_text_byte = facts->piece_count > 0 ? 39 : 0; /* 13 bytes, and a space becomes 3 */
    }
    cost.peak = cost.kept + loading;
    return cost;
}

static nw_code bpe_open(nw_tokenizer *t, const nw_tokenizer_files *files, nw_error *err)
{
    const nw_spiece_file *file = &t->parts.spiece;
    if (file->charsmap != NULL && !file->byte_fallback) {
        t->charsmap = (unsigned char *)nw_memory_alloc(t->mem, NW_TAG_TOKENIZER, file->charsmap_len, 1);
        if (t->charsmap == NULL)
            return nw_memory_fail(t->mem, err, file->charsmap_len, files->name);
        t->charsmap_len = file->charsmap_len;
        memcpy(t->charsmap, file->charsmap, file->charsmap_len);
    }
    return nw_spiece_open(t->name, files->spiece, files->spiece_bytes, &t->bpe, err);
}

nw_code nw_tokenizer_open(nw_memory *mem, const nw_tokenizer_files *files, nw_tokenizer **ret_tokenizer, nw_error *err)
{
    nw_tokenizer *t = (nw_tokenizer *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, 1, sizeof *t);
    if (t == NULL)
        return nw_memory_fail(mem, err, sizeof *t, files->name);
    t->mem = mem;
    t->eos_id = files->eos_id;
    snprintf(t->name, sizeof t->name, "%s", files->name);
    nw_code rc = nw_tokenizer_parts_open(mem, files, &t->parts, err);
    if (rc == NW_OK && !t->parts.byt5 && t->parts.spiece.bpe)
        rc = bpe_open(t, files, err);
    else if (rc == NW_OK && !t->parts.byt5)
        rc = nw_unigram_open(mem, t->name, &t->parts.spiece, &t->unigram, err);
    if (rc != NW_OK) {
        nw_tokenizer_close(t);
        return rc;
    }
    for (uint32_t i = 0; i < t->parts.specials.count; i++)
        t->first_byte[(unsigned char)*nw_specials_name(&t->parts.specials, &t->parts.specials.items[i])] = true;
    /* The file's bytes are the caller's: only what is no pointer stays. */
    t->parts.spiece =
        (nw_spiece_file){.unk_id = t->parts.spiece.unk_id, .byte_fallback = t->parts.spiece.byte_fallback};
    *ret_tokenizer = t;
    return NW_OK;
}

nw_tokenizer *nw_tokenizer_close(nw_tokenizer *t)
{
    if (t == NULL)
        return NULL;
    nw_unigram_close(t->unigram);
    nw_spiece_close(t->bpe);
    nw_memory_free(t->mem, NW_TAG_TOKENIZER, t->charsmap, t->charsmap_len, 1);
    nw_tokenizer_parts_close(&t->parts);
    nw_memory_free(t->mem, NW_TAG_TOKENIZER, t, 1, sizeof *t);
    return NULL;
}

/* A text seen as parts: plain text, then a special token or the end. */
typedef struct {
    const char *text;
    size_t      len, at;
    bool        rstrip; /* the token before takes the white space that follows */
} splitter;

static size_t skip_space(const char *text, size_t at, size_t len)
{
    uint32_t point;
    for (;;) {
        size_t step = nw_utf8_next((const unsigned char *)text + at, len - at, &point);
        if (step == 0 || !nw_utf8_is_space(point))
            return at;
        at += step;
    }
}

/* Where the white space at the end of text[from..to) begins. */
static size_t trim_space(const char *text, size_t from, size_t to)
{
    uint32_t point;
    while (to > from) {
        size_t start = to - 1;
        while (start > from && to - start < 4 && ((unsigned char)text[start] & 0xC0) == 0x80)
            start--;
        if (nw_utf8_next((const unsigned char *)text + start, to - start, &point) != to - start ||
            !nw_utf8_is_space(point))
            break;
        to = start;
    }
    return to;
}

/* The next part and the token after it (NULL at the end). False when there is nothing left. */
static bool split_next(const nw_tokenizer *t, splitter *s, size_t *ret_from, size_t *ret_to,
                       const nw_special **ret_token)
{
    const nw_special *token = NULL;
    if (s->at == s->len)
        return false;
    size_t from = s->rstrip ? skip_space(s->text, s->at, s->len) : s->at;
    size_t to = from;
    for (; to < s->len; to++) {
        if (!t->first_byte[(unsigned char)s->text[to]])
            continue;
        token = nw_specials_match(&t->parts.specials, s->text + to, s->len - to);
        if (token != NULL)
            break;
    }
    s->at = token != NULL ? to + token->name_len : to;
    s->rstrip = token != NULL && token->rstrip;
    *ret_from = from;
    *ret_to = token != NULL && token->lstrip ? trim_space(s->text, from, to) : to;
    *ret_token = token;
    return true;
}

/* Where ids go: as many as there is room for are kept, all are counted. */
typedef struct {
    uint32_t *ids;
    size_t    cap, count;
} id_sink;

static void sink_put(id_sink *sink, uint32_t id)
{
    if (sink->count < sink->cap)
        sink->ids[sink->count] = id;
    sink->count++;
}

static void sink_piece(void *user, uint32_t id, const unsigned char *text, size_t len)
{
    (void)text;
    (void)len;
    sink_put((id_sink *)user, id);
}

static bool bpe_takes(const nw_tokenizer *t, const char *text, size_t len)
{
    size_t made = 0, step;
    if (t->parts.spiece.byte_fallback)
        return true;
    for (size_t at = 0; at < len && made <= BPE_TEXT_BYTES_MAX && t->charsmap != NULL; at += step) {
        const char *replacement = NULL;
        step = nw_charsmap_match(t->charsmap, (const unsigned char *)text + at, len - at, &replacement);
        made += step > 0 ? strlen(replacement) : 1;
        step = nw_max_size(step, 1);
    }
    return len <= BPE_TEXT_BYTES_MAX && made <= BPE_TEXT_BYTES_MAX;
}

static nw_code encode_part(const nw_tokenizer *t, const char *text, size_t len, id_sink *sink, nw_error *err)
{
    if (t->unigram != NULL)
        return nw_unigram_encode(t->unigram, text, len, sink_piece, sink, err);
    if (t->bpe == NULL) {
        for (size_t i = 0; i < len; i++)
            sink_put(sink, (unsigned char)text[i] + NW_BYT5_FIRST_BYTE);
        return NW_OK;
    }
    if (!bpe_takes(t, text, len))
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a BPE model without byte fallback takes texts of at most 64 KiB",
                       t->name);
    size_t   kept = nw_min_size(sink->count, sink->cap);
    size_t   count = 0;
    uint32_t none = 0; /* a place to point to when the caller gave none */
    nw_code  rc = nw_spiece_encode(t->bpe, text, len, sink->ids != NULL ? sink->ids + kept : &none, sink->cap - kept,
                                   &count, err);
    if (rc == NW_OK)
        sink->count += count;
    return rc;
}

nw_code nw_tokenizer_encode(nw_tokenizer *t, const char *text, size_t len, uint32_t *ids, size_t cap, size_t *ret_count,
                            nw_error *err)
{
    NW_CHECK(ids != NULL || cap == 0);
    id_sink           sink = {.ids = ids, .cap = cap};
    splitter          s = {.text = text, .len = len};
    size_t            from, to;
    const nw_special *token;
    if (len > TEXT_BYTES_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: a text of %zu bytes is longer than 64 MiB", t->name, len);
    while (split_next(t, &s, &from, &to, &token)) {
        nw_code rc = to > from ? encode_part(t, text + from, to - from, &sink, err) : NW_OK;
        if (rc != NW_OK)
            return rc;
        if (token != NULL)
            sink_put(&sink, token->id);
    }
    sink_put(&sink, t->eos_id);
    *ret_count = sink.count;
    return NW_OK;
}

/* The list of unknown characters while it is made. */
typedef struct {
    uint64_t *seen; /* one bit for each code point */
    char     *buf;
    size_t    cap, used;
    size_t    count;
    bool      full; /* one did not fit; later ones are not written either, to keep the order */
    uint32_t  unk_id;
} unknown_list;

#define CODE_POINTS 0x110000u

static void unknown_put(unknown_list *list, uint32_t point, const char *text, size_t len)
{
    char escaped[8];
    if ((list->seen[point / 64] >> (point % 64) & 1) != 0)
        return;
    list->seen[point / 64] |= (uint64_t)1 << (point % 64);
    list->count++;
    if (point < 0x20 || (point >= 0x7F && point < 0xA0)) {
        len = (size_t)snprintf(escaped, sizeof escaped, "\\x%02X", point);
        text = escaped;
    }
    size_t gap = list->used > 0 ? 1 : 0;
    if (list->full || list->cap - list->used <= gap + len) {
        list->full = true;
        return;
    }
    if (gap > 0)
        list->buf[list->used] = ' ';
    memcpy(list->buf + list->used + gap, text, len);
    list->used += gap + len;
    list->buf[list->used] = '\0';
}

static void unknown_stretch(void *user, const char *text, size_t len)
{
    unknown_list *list = (unknown_list *)user;
    for (size_t i = 0; i < len;) {
        uint32_t point = 0xFFFD;
        size_t   step = nw_utf8_next((const unsigned char *)text + i, len - i, &point);
        if (step > 0)
            unknown_put(list, point, text + i, step);
        else
            unknown_put(list, point, "\xEF\xBF\xBD", 3);
        i += step > 0 ? step : 1;
    }
}

static void unknown_piece(void *user, uint32_t id, const unsigned char *text, size_t len)
{
    if (id == ((const unknown_list *)user)->unk_id)
        unknown_stretch(user, (const char *)text, len);
}

size_t nw_tokenizer_unknown(nw_tokenizer *t, const char *text, size_t len, char *buf, size_t cap)
{
    splitter          s = {.text = text, .len = len};
    size_t            from, to;
    const nw_special *token;
    uint32_t          unk_id = t->parts.spiece.unk_id;
    unknown_list      list = {.buf = buf, .cap = cap, .unk_id = unk_id};
    nw_code           rc = NW_OK;
    if (cap > 0)
        buf[0] = '\0';
    if (t->parts.byt5 || len > TEXT_BYTES_MAX)
        return 0;
    list.seen = (uint64_t *)nw_memory_alloc(t->mem, NW_TAG_TOKENIZER, CODE_POINTS / 64, sizeof *list.seen);
    if (list.seen == NULL)
        return 0;
    while (rc == NW_OK && split_next(t, &s, &from, &to, &token)) {
        if (to > from && t->unigram != NULL)
            rc = nw_unigram_encode(t->unigram, text + from, to - from, unknown_piece, &list, NULL);
        else if (to > from && bpe_takes(t, text + from, to - from))
            rc = nw_spiece_unknown(t->bpe, text + from, to - from, unk_id, unknown_stretch, &list, NULL);
    }
    nw_memory_free(t->mem, NW_TAG_TOKENIZER, list.seen, CODE_POINTS / 64, sizeof *list.seen);
    return list.count;
}

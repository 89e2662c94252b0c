/* The normaliser and the Viterbi search of sentencepiece (normalizer.cc, Normalize; unigram_model.cc, EncodeOptimized),
 * in C and from memory that is accounted.
 *
 * Why not the library's own: Debian's 0.1.97 adds scores in double and compares them with a best score that was rounded
 * to float, so of two equal cuts it may take the later one ("!!!!!!" becomes "!!!!!" "!", where the reference, 0.2,
 * gives "!"
 * "!!!!!"). Here sums and comparisons are float throughout and only a strictly better cut replaces an earlier one,
 * which is what the reference's results are. It also takes a tenth of the library's memory, and none of it is out of
 * our sight.
 */
#include "unigram.h"

#include "utf8.h"
#include "vocabulary.h"

#include <float.h>
#include <string.h>

#define SPACE_MARK "\xE2\x96\x81"
#define SPACE_MARK_LEN ((size_t)3)
#define UNK_PENALTY 10.0f /* unigram_model.cc, kUnkPenalty */
#define NOWHERE UINT32_MAX

struct nw_unigram {
    nw_memory     *mem;
    const char    *name;
    nw_vocabulary  vocabulary;
    unsigned char *charsmap; /* NULL: none */
    size_t         charsmap_len;
    float          unk_score, max_score;
    uint32_t       unk_id;
    bool           byte_fallback;
    bool           add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, space_as_suffix;
    uint32_t       byte_ids[256];
};

/* The best cut of the text up to some place: its last piece. After the search `score` has served, and the same room
 * links a piece's start to its end. */
typedef struct {
    union {
        float    score;
        uint32_t end;
    };
    uint32_t start; /* NOWHERE: no cut ends here */
    uint32_t id;
} best_cut;

/* Text while it is normalised: counted first, then written. */
typedef struct {
    unsigned char *bytes; /* NULL: counting */
    size_t         len;
} text_out;

static nw_code read_scores(nw_unigram *u, const nw_spiece_file *file, nw_error *err)
{
    size_t          at = 0;
    nw_spiece_piece piece;
    float           min_score = FLT_MAX;
    uint32_t        bytes_known = 0;
    u->max_score = FLT_MIN; /* sic: the least positive number, as in unigram_model.cc */
    memset(u->byte_ids, 0xFF, sizeof u->byte_ids);
    for (uint32_t id = 0; nw_spiece_next(file, &at, &piece); id++) {
        if (piece.type == NW_PIECE_NORMAL) {
            min_score = piece.score < min_score ? piece.score : min_score;
            u->max_score = piece.score > u->max_score ? piece.score : u->max_score;
        } else if (piece.type == NW_PIECE_BYTE && u->byte_ids[piece.byte] == NOWHERE) {
            u->byte_ids[piece.byte] = id;
            bytes_known++;
        }
    }
    u->unk_score = min_score - UNK_PENALTY;
    if (file->byte_fallback ? bytes_known < 256 : bytes_known > 0)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: byte_fallback is %s, but %u of 256 byte pieces are there", u->name,
                       file->byte_fallback ? "on" : "off", bytes_known);
    return NW_OK;
}

static nw_code build(nw_unigram *u, const nw_spiece_file *file, nw_error *err)
{
    nw_code rc = read_scores(u, file, err);
    if (rc == NW_OK)
        rc = nw_vocabulary_open(u->mem, u->name, file, &u->vocabulary, err);
    if (rc != NW_OK || file->charsmap == NULL)
        return rc;
    u->charsmap = (unsigned char *)nw_memory_alloc(u->mem, NW_TAG_TOKENIZER, file->charsmap_len, 1);
    if (u->charsmap == NULL)
        return nw_memory_fail(u->mem, err, file->charsmap_len, u->name);
    u->charsmap_len = file->charsmap_len;
    memcpy(u->charsmap, file->charsmap, file->charsmap_len);
    return NW_OK;
}

nw_code nw_unigram_open(nw_memory *mem, const char *name, const nw_spiece_file *file, nw_unigram **ret, nw_error *err)
{
    nw_unigram *u = (nw_unigram *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, 1, sizeof *u);
    if (u == NULL)
        return nw_memory_fail(mem, err, sizeof *u, name);
    u->mem = mem;
    u->name = name;
    u->unk_id = file->unk_id;
    u->byte_fallback = file->byte_fallback;
    u->add_dummy_prefix = file->add_dummy_prefix;
    u->remove_extra_whitespaces = file->remove_extra_whitespaces;
    u->escape_whitespaces = file->escape_whitespaces;
    u->space_as_suffix = file->space_as_suffix;
    nw_code rc = build(u, file, err);
    if (rc == NW_OK)
        *ret = u;
    else
        nw_unigram_close(u);
    return rc;
}

nw_unigram *nw_unigram_close(nw_unigram *u)
{
    if (u == NULL)
        return NULL;
    nw_vocabulary_close(&u->vocabulary);
    nw_memory_free(u->mem, NW_TAG_TOKENIZER, u->charsmap, u->charsmap_len, 1);
    nw_memory_free(u->mem, NW_TAG_TOKENIZER, u, 1, sizeof *u);
    return NULL;
}

static size_t user_piece_len(const nw_unigram *u, const unsigned char *text, size_t len)
{
    nw_vocabulary_walk walk = {0};
    size_t             longest = 0;
    for (size_t i = 0; i < len; i++) {
        const nw_vocabulary_item *item = nw_vocabulary_step(&u->vocabulary, &walk, text[i]);
        if (item != NULL && item->type == NW_PIECE_USER)
            longest = i + 1;
        if (walk.low == walk.high)
            break;
    }
    return longest;
}

/* What the beginning of a text (at least 1 byte) becomes; returns how much of the text that is. */
static size_t normalise_prefix(const nw_unigram *u, const unsigned char *text, size_t len, const char **ret,
                               size_t *ret_len)
{
    uint32_t point;
    size_t   taken = u->vocabulary.has_user ? user_piece_len(u, text, len) : 0;
    if (taken == 0 && u->charsmap != NULL) {
        taken = nw_charsmap_match(u->charsmap, text, len, ret);
        if (taken > 0) {
            *ret_len = strlen(*ret);
            return taken;
        }
    }
    if (taken == 0)
        taken = nw_utf8_next(text, len, &point);
    *ret = taken > 0 ? (const char *)text : "\xEF\xBF\xBD";
    *ret_len = taken > 0 ? taken : 3;
    return taken > 0 ? taken : 1;
}

static void text_put(text_out *out, const void *bytes, size_t len)
{
    if (out->bytes != NULL)
        memcpy(out->bytes + out->len, bytes, len);
    out->len += len;
}

static void put_space(const nw_unigram *u, text_out *out)
{
    if (u->escape_whitespaces)
        text_put(out, SPACE_MARK, SPACE_MARK_LEN);
    else
        text_put(out, " ", 1);
}

/* Everything but the white space at the end, which is cut off when the text is there. */
static void normalise(const nw_unigram *u, const unsigned char *text, size_t len, text_out *out)
{
    const char *part;
    size_t      part_len, at = 0, taken;
    while (u->remove_extra_whitespaces && at < len) {
        taken = normalise_prefix(u, text + at, len - at, &part, &part_len);
        if (part_len != 1 || *part != ' ')
            break;
        at += taken;
    }
    if (at == len)
        return;
    if (u->add_dummy_prefix && !u->space_as_suffix)
        put_space(u, out);
    bool after_space = u->remove_extra_whitespaces;
    for (; at < len; at += taken) {
        taken = normalise_prefix(u, text + at, len - at, &part, &part_len);
        while (after_space && part_len > 0 && *part == ' ') {
            part++;
            part_len--;
        }
        for (size_t i = 0; i < part_len; i++) {
            if (part[i] == ' ')
                put_space(u, out);
            else
                text_put(out, part + i, 1);
        }
        if (part_len > 0)
            after_space = u->remove_extra_whitespaces && part[part_len - 1] == ' ';
    }
}

static void trim_end(const nw_unigram *u, text_out *out)
{
    const char *space = u->escape_whitespaces ? SPACE_MARK : " ";
    size_t      space_len = strlen(space);
    while (u->remove_extra_whitespaces && out->len >= space_len &&
           memcmp(out->bytes + out->len - space_len, space, space_len) == 0)
        out->len -= space_len;
}

/* A cut that ends at `cut` with this piece, if it is better than what is there. */
static void offer(best_cut *cut, float score, size_t start, uint32_t id)
{
    if (cut->start != NOWHERE && !(score > cut->score))
        return;
    cut->score = score;
    cut->start = (uint32_t)start;
    cut->id = id;
}

/* cuts[0 .. len]. The text is valid UTF-8. */
static void search(const nw_unigram *u, const unsigned char *text, size_t len, best_cut *cuts)
{
    for (size_t i = 0; i <= len; i++)
        cuts[i].start = NOWHERE;
    cuts[0].score = 0;
    for (size_t start = 0, step; start < len; start += step) {
        nw_vocabulary_walk walk = {0};
        float              till_here = cuts[start].score;
        bool               has_single = false;
        step = nw_max_size(nw_utf8_length(text[start]), 1);
        NW_CHECK(step <= len - start);
        for (size_t end = start + 1; end <= len; end++) {
            const nw_vocabulary_item *item = nw_vocabulary_step(&u->vocabulary, &walk, text[end - 1]);
            if (walk.low == walk.high)
                break;
            if (item == NULL || item->type == NW_PIECE_UNUSED)
                continue;
            float score = item->score;
            if (item->type == NW_PIECE_USER)
                score = (float)((double)((float)item->len * u->max_score) - 0.1);
            offer(&cuts[end], score + till_here, start, item->id);
            has_single = has_single || end - start == step;
        }
        if (!has_single)
            offer(&cuts[start + step], u->unk_score + till_here, start, u->unk_id);
    }
}

/* Turns the links round, so that cuts[start].end is where the piece that starts there ends. */
static void link_forward(best_cut *cuts, size_t len)
{
    for (size_t end = len; end > 0;) {
        NW_CHECK(cuts[end].start < end);
        cuts[cuts[end].start].end = (uint32_t)end;
        end = cuts[end].start;
    }
}

static void report(const nw_unigram *u, const unsigned char *text, size_t len, const best_cut *cuts, nw_unigram_fn fn,
                   void *user)
{
    for (size_t start = 0, end; start < len; start = end) {
        end = cuts[start].end;
        uint32_t id = cuts[end].id;
        if (id == u->unk_id && u->byte_fallback) {
            for (size_t i = start; i < end; i++)
                fn(user, u->byte_ids[text[i]], text + i, 1);
            continue;
        }
        while (id == u->unk_id && end < len && cuts[cuts[end].end].id == u->unk_id)
            end = cuts[end].end; /* unknown characters in a row are one unknown piece */
        fn(user, id, text + start, end - start);
    }
}

nw_code nw_unigram_encode(const nw_unigram *u, const char *text, size_t len, nw_unigram_fn fn, void *user,
                          nw_error *err)
{
    text_out out = {0};
    normalise(u, (const unsigned char *)text, len, &out);
    if (out.len == 0)
        return NW_OK;
    if (out.len >= NOWHERE)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the text is too long", u->name);
    size_t    room = out.len + SPACE_MARK_LEN; /* for the space at the end of models that have it there */
    best_cut *cuts = (best_cut *)nw_memory_alloc(u->mem, NW_TAG_TOKENIZER, room + 1, sizeof *cuts);
    out = (text_out){.bytes = (unsigned char *)nw_memory_alloc(u->mem, NW_TAG_TOKENIZER, room, 1)};
    nw_code rc = NW_OK;
    if (cuts == NULL || out.bytes == NULL) {
        rc = nw_memory_fail(u->mem, err, room * (sizeof *cuts + 1), u->name);
    } else {
        normalise(u, (const unsigned char *)text, len, &out);
        trim_end(u, &out);
        if (u->add_dummy_prefix && u->space_as_suffix)
            put_space(u, &out);
        search(u, out.bytes, out.len, cuts);
        link_forward(cuts, out.len);
        report(u, out.bytes, out.len, cuts, fn, user);
    }
    nw_memory_free(u->mem, NW_TAG_TOKENIZER, out.bytes, room, 1);
    nw_memory_free(u->mem, NW_TAG_TOKENIZER, cuts, room + 1, sizeof *cuts);
    return rc;
}

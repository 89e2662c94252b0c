/* The wire format of sentencepiece_model.proto, field by field.
 *
 * Stricter than protobuf where that costs no real file: known fields must have their wire type, enums must be known
 * values, groups do not occur, numbers fit. Like protobuf where files may differ: unknown fields are skipped, and of a
 * field that is given twice the last counts. Each refusal below stands for something that crashes or confuses Debian's
 * sentencepiece 0.1.97 or that would be silent garbage.
 */
#include "spiece_file.h"

#include "utf8.h"

#include <math.h>
#include <string.h>

/* The library runs the file's self-test when it loads; this keeps its cost in proportion. */
#define SELF_TEST_BYTES_MAX ((size_t)64 << 10)
#define UNK_SURFACE_BYTES_MAX ((size_t)256)
/* The library's matcher of user-defined pieces looks at every match of a prefix but has room for 64 (normalizer.cc,
 * kResultSize). Matches of one text differ in length, so 64 lengths in all cannot give more. */
#define USER_LENGTHS_MAX 64u
/* The library's BPE encoder recurses once for each character of an unused piece (bpe_model.cc, resegment). */
#define BPE_UNUSED_BYTES_MAX 256u

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct {
    const unsigned char *p, *end;
} wire;

typedef struct {
    uint64_t             number;
    unsigned             type;
    uint64_t             value; /* VARINT, 32, 64 */
    const unsigned char *bytes; /* BYTES */
    size_t               len;
} wire_field;

typedef enum { WIRE_FIELD, WIRE_END, WIRE_BROKEN } wire_status;

typedef struct {
    nw_memory      *mem;
    const char     *name;
    nw_spiece_file *file;
    nw_error       *err;
    uint64_t        user_lengths[NW_SPIECE_PIECE_BYTES_MAX / 64 + 1]; /* lengths of user-defined pieces that occur */
    uint32_t        user_length_count;
    uint32_t        unused_len_max;
    bool            has_unk;
    size_t          self_test_bytes;
} reading;

static bool wire_varint(wire *w, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (w->p == w->end)
            return false;
        unsigned char byte = *w->p++;
        if (shift == 63 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *ret = value;
            return true;
        }
    }
    return false;
}

static bool wire_fixed(wire *w, size_t bytes, uint64_t *ret)
{
    if ((size_t)(w->end - w->p) < bytes)
        return false;
    *ret = 0;
    for (size_t i = 0; i < bytes; i++)
        *ret |= (uint64_t)w->p[i] << (8 * i);
    w->p += bytes;
    return true;
}

static wire_status wire_next(wire *w, wire_field *f)
{
    uint64_t tag, len;
    if (w->p == w->end)
        return WIRE_END;
    if (!wire_varint(w, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
        return WIRE_BROKEN;
    *f = (wire_field){.number = tag >> 3, .type = (unsigned)(tag & 7)};
    switch (f->type) {
    case WIRE_VARINT: return wire_varint(w, &f->value) ? WIRE_FIELD : WIRE_BROKEN;
    case WIRE_64: return wire_fixed(w, 8, &f->value) ? WIRE_FIELD : WIRE_BROKEN;
    case WIRE_32: return wire_fixed(w, 4, &f->value) ? WIRE_FIELD : WIRE_BROKEN;
    case WIRE_BYTES:
        if (!wire_varint(w, &len) || len > (uint64_t)(w->end - w->p))
            return WIRE_BROKEN;
        f->bytes = w->p;
        f->len = (size_t)len;
        w->p += len;
        return WIRE_FIELD;
    default: return WIRE_BROKEN; /* groups, and types that do not exist */
    }
}

static nw_code broken(const reading *r, const char *where)
{
    return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: not a sentencepiece model, or cut short (%s)", r->name, where);
}

static nw_code wrong_type(const reading *r, const char *what)
{
    return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: %s has the wrong protobuf type", r->name, what);
}

/* The value of "<0xNN>"; -1 if the text is no such name. The library knows upper case digits only. */
static int byte_value(const unsigned char *text, size_t len)
{
    static const char digits[] = "0123456789ABCDEF";
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    const char *high = memchr(digits, text[3], 16);
    const char *low = memchr(digits, text[4], 16);
    return high != NULL && low != NULL ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* One SentencePiece message. `wrong` gets what is the matter with it. */
static bool piece_parse(const unsigned char *bytes, size_t len, nw_spiece_piece *ret, const char **wrong)
{
    wire        w = {bytes, bytes + len};
    wire_field  f;
    wire_status status;
    uint64_t    type = NW_PIECE_NORMAL;
    *ret = (nw_spiece_piece){0};
    *wrong = "is cut short";
    while ((status = wire_next(&w, &f)) == WIRE_FIELD) {
        *wrong = "has a field of the wrong protobuf type";
        if (f.number == 1) {
            if (f.type != WIRE_BYTES)
                return false;
            if (f.len > NW_SPIECE_PIECE_BYTES_MAX) {
                *wrong = "is longer than 8192 bytes";
                return false;
            }
            ret->text = f.bytes;
            ret->len = (uint32_t)f.len;
        } else if (f.number == 2) {
            uint32_t bits = (uint32_t)f.value;
            float    score;
            if (f.type != WIRE_32)
                return false;
            memcpy(&score, &bits, sizeof score);
            *wrong = "has a score that is no finite number";
            if (!isfinite(score))
                return false;
            ret->score = score;
        } else if (f.number == 3) {
            if (f.type != WIRE_VARINT)
                return false;
            type = f.value;
        }
        *wrong = "is cut short";
    }
    if (status != WIRE_END)
        return false;
    *wrong = "has an unknown type";
    if (type < NW_PIECE_NORMAL || type > NW_PIECE_BYTE)
        return false;
    ret->type = (nw_piece_type)type;
    *wrong = "is empty";
    if (ret->len == 0)
        return false;
    *wrong = "contains a NUL";
    if (memchr(ret->text, 0, ret->len) != NULL)
        return false;
    *wrong = "is no valid UTF-8";
    if (!nw_utf8_valid(ret->text, ret->len))
        return false;
    *wrong = "is of type byte but not named <0x00> to <0xFF>";
    int byte = ret->type == NW_PIECE_BYTE ? byte_value(ret->text, ret->len) : 0;
    ret->byte = (unsigned char)byte;
    return byte >= 0;
}

static nw_code read_piece(reading *r, const wire_field *f)
{
    nw_spiece_file *file = r->file;
    nw_spiece_piece piece;
    const char     *wrong;
    if (file->piece_count == NW_SPIECE_PIECES_MAX)
        return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: more than %u pieces", r->name, NW_SPIECE_PIECES_MAX);
    if (!piece_parse(f->bytes, f->len, &piece, &wrong))
        return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: piece %u %s", r->name, file->piece_count, wrong);
    if (piece.type == NW_PIECE_UNKNOWN) {
        if (r->has_unk)
            return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: pieces %u and %u are both the unknown piece", r->name,
                           file->unk_id, file->piece_count);
        r->has_unk = true;
        file->unk_id = file->piece_count;
    } else if (piece.type == NW_PIECE_USER) {
        uint64_t bit = (uint64_t)1 << (piece.len % 64);
        if ((r->user_lengths[piece.len / 64] & bit) == 0) {
            r->user_lengths[piece.len / 64] |= bit;
            r->user_length_count++;
        }
    } else if (piece.type == NW_PIECE_UNUSED && piece.len > r->unused_len_max) {
        r->unused_len_max = piece.len;
    }
    file->piece_count++;
    file->text_bytes += piece.len;
    return NW_OK;
}

static nw_code read_trainer(reading *r, const wire_field *message)
{
    wire        w = {message->bytes, message->bytes + message->len};
    wire_field  f;
    wire_status status;
    while ((status = wire_next(&w, &f)) == WIRE_FIELD) {
        if (f.number == 3) {
            if (f.type != WIRE_VARINT)
                return wrong_type(r, "trainer_spec.model_type");
            if (f.value == 3 || f.value == 4)
                return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: a %s model; only unigram and BPE models can be used",
                               r->name, f.value == 3 ? "word" : "char");
            if (f.value != 1 && f.value != 2)
                return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: unknown model type %llu", r->name,
                               (unsigned long long)f.value);
            r->file->bpe = f.value == 2;
        } else if (f.number == 24 || f.number == 35) {
            if (f.type != WIRE_VARINT)
                return wrong_type(r, "a switch of trainer_spec");
            *(f.number == 24 ? &r->file->space_as_suffix : &r->file->byte_fallback) = f.value != 0;
        } else if (f.number == 44) {
            if (f.type != WIRE_BYTES)
                return wrong_type(r, "trainer_spec.unk_surface");
            if (f.len > UNK_SURFACE_BYTES_MAX || !nw_utf8_valid(f.bytes, f.len) || memchr(f.bytes, 0, f.len) != NULL)
                return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: unk_surface is no short UTF-8 text", r->name);
            r->file->unk_surface = f.bytes;
            r->file->unk_surface_len = f.len;
        }
    }
    return status == WIRE_END ? NW_OK : broken(r, "in trainer_spec");
}

static nw_code read_normalizer(reading *r, const wire_field *message, bool denormalizer)
{
    wire        w = {message->bytes, message->bytes + message->len};
    wire_field  f;
    wire_status status;
    while ((status = wire_next(&w, &f)) == WIRE_FIELD) {
        if (f.number == 2) {
            if (f.type != WIRE_BYTES)
                return wrong_type(r, "precompiled_charsmap");
            if (denormalizer && f.len > 0)
                return nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: has a denormalizer, which is not supported", r->name);
            r->file->charsmap = f.len > 0 ? f.bytes : NULL;
            r->file->charsmap_len = f.len;
        } else if (f.number >= 3 && f.number <= 5) {
            if (f.type != WIRE_VARINT)
                return wrong_type(r, "a switch of normalizer_spec");
            if (!denormalizer && f.number == 3)
                r->file->add_dummy_prefix = f.value != 0;
            else if (!denormalizer && f.number == 4)
                r->file->remove_extra_whitespaces = f.value != 0;
            else if (!denormalizer)
                r->file->escape_whitespaces = f.value != 0;
        }
    }
    return status == WIRE_END ? NW_OK : broken(r, denormalizer ? "in denormalizer_spec" : "in normalizer_spec");
}

static nw_code read_field(reading *r, const wire_field *f)
{
    if (f->number >= 1 && f->number <= 5 && f->type != WIRE_BYTES)
        return broken(r, "a message is expected");
    switch (f->number) {
    case 1: return read_piece(r, f);
    case 2: return read_trainer(r, f);
    case 3: return read_normalizer(r, f, false);
    case 4:
        r->self_test_bytes += f->len;
        return r->self_test_bytes <= SELF_TEST_BYTES_MAX
                   ? NW_OK
                   : nw_fail(r->err, NW_E_TOKENIZER, 0, "%s: more than 64 kB of self-test data", r->name);
    case 5: return read_normalizer(r, f, true);
    default: return NW_OK;
    }
}

nw_code nw_spiece_read(nw_memory *mem, const char *name, const void *bytes, size_t len, nw_spiece_file *ret,
                       nw_error *err)
{
    static const unsigned char surface[] = " \xE2\x81\x87 "; /* the default of sentencepiece_model.proto */
    nw_spiece_file             file = {.bytes = (const unsigned char *)bytes,
                                       .len = len,
                                       .add_dummy_prefix = true,
                                       .remove_extra_whitespaces = true,
                                       .escape_whitespaces = true,
                                       .unk_surface = surface,
                                       .unk_surface_len = sizeof surface - 1};
    reading                    r = {.mem = mem, .name = name, .file = &file, .err = err};
    wire                       w = {file.bytes, file.bytes + len};
    wire_field                 f;
    wire_status                status;
    if (len == 0)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the file is empty", name);
    if (len > NW_SPIECE_FILE_BYTES_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: larger than 64 MiB", name);
    while ((status = wire_next(&w, &f)) == WIRE_FIELD) {
        nw_code rc = read_field(&r, &f);
        if (rc != NW_OK)
            return rc;
    }
    if (status != WIRE_END)
        return broken(&r, "at the top");
    if (file.piece_count == 0)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: no pieces", name);
    if (!r.has_unk)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: no unknown piece", name);
    if (r.user_length_count > USER_LENGTHS_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: user-defined pieces of more than %u lengths", name,
                       USER_LENGTHS_MAX);
    if (file.bpe && r.unused_len_max > BPE_UNUSED_BYTES_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: an unused piece is longer than %u bytes", name,
                       BPE_UNUSED_BYTES_MAX);
    if (file.charsmap != NULL) {
        nw_code rc = nw_charsmap_check(mem, name, file.charsmap, file.charsmap_len, err);
        if (rc != NW_OK)
            return rc;
    }
    *ret = file;
    return NW_OK;
}

bool nw_spiece_next(const nw_spiece_file *file, size_t *at, nw_spiece_piece *ret)
{
    wire       w = {file->bytes + *at, file->bytes + file->len};
    wire_field f;
    while (wire_next(&w, &f) == WIRE_FIELD) {
        if (f.number != 1)
            continue;
        const char *wrong;
        bool        good = piece_parse(f.bytes, f.len, ret, &wrong);
        NW_CHECK(good);
        *at = (size_t)(w.p - file->bytes);
        return true;
    }
    return false;
}

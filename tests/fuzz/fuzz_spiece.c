/* A sentencepiece model file: what passes the check can be loaded, encodes any text to ids that exist, decodes them,
 * and takes no more memory than a plan counts for it. BPE models go to the library, which crashes on much that is no
 * sentencepiece model: nothing that it does so with may pass. */
#include "fuzz_tokenizer.h"
#include "spiece_file.h"

/* The model's own pieces one after another, as a text. */
static size_t piece_texts(const nw_spiece_file *file, char *text, size_t cap)
{
    size_t          len = 0, at = 0;
    nw_spiece_piece piece;
    while (nw_spiece_next(file, &at, &piece)) {
        NW_CHECK(piece.len >= 1 && piece.len <= NW_SPIECE_PIECE_BYTES_MAX);
        NW_CHECK(fuzz_utf8(piece.text, piece.len) && memchr(piece.text, 0, piece.len) == NULL);
        NW_CHECK(piece.score - piece.score == 0); /* finite */
        if (piece.len > cap - len)
            continue;
        memcpy(text + len, piece.text, piece.len);
        len += piece.len;
    }
    return len;
}

static void check_read(const uint8_t *data, size_t size, char *text, size_t cap, size_t *ret_len)
{
    nw_memory      mem;
    nw_error       err = {0};
    nw_spiece_file file;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_spiece_read(&mem, "input", data, size, &file, &err);
    NW_CHECK(rc == NW_OK); /* the check before said so */
    NW_CHECK(file.unk_id < file.piece_count);
    NW_CHECK(file.charsmap == NULL || (file.charsmap >= data && file.charsmap_len <= size));
    *ret_len = piece_texts(&file, text, cap);
    NW_CHECK(mem.live == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char        text[4096];
    size_t             len = 0, tail = nw_min_size(size, 100);
    uint64_t           draw = fuzz_hash(FUZZ_HASH, data, size);
    nw_tokenizer_files files = {.name = "input",
                                .spiece = size > 0 ? (const void *)data : "",
                                .spiece_bytes = size,
                                .vocab_size = draw % 8 == 0 ? 300 : 1 << 20,
                                .pad_id = 0,
                                .eos_id = 1};
    nw_tokenizer_facts facts;
    if (!fuzz_tokenizer_check(&files, &facts))
        return 0;
    check_read(data, size, text, sizeof text - tail, &len);
    memcpy(text + len, data + size - tail, tail);
    fuzz_tokenizer_use(&files, &facts, text, len + tail);
    return 0;
}

#ifdef NW_FUZZ
/* Mutations that keep the lengths before messages right: most others only cut the file short. */

typedef struct {
    size_t   at, body, end; /* of the field, its payload and its end */
    unsigned number, type;
} span;

static bool varint_at(const uint8_t *data, size_t size, size_t *at, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; *at < size && shift < 63; shift += 7) {
        uint8_t byte = data[(*at)++];
        *ret |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The fields of a message, at most `cap`; 0 if it is none. */
static size_t spans_of(const uint8_t *data, size_t size, span *spans, size_t cap)
{
    size_t   count = 0, at = 0;
    uint64_t tag, len;
    while (at < size && count < cap) {
        span s = {.at = at};
        if (!varint_at(data, size, &at, &tag))
            return 0;
        s.number = (unsigned)(tag >> 3);
        s.type = (unsigned)(tag & 7);
        s.body = at;
        if (s.type == 2) {
            if (!varint_at(data, size, &at, &len) || len > size - at)
                return 0;
            s.body = at;
            at += (size_t)len;
        } else if (s.type == 0) {
            if (!varint_at(data, size, &at, &len))
                return 0;
        } else {
            size_t bytes = s.type == 5 ? 4 : 8;
            if (bytes > size - at)
                return 0;
            at += bytes;
        }
        s.end = at;
        spans[count++] = s;
    }
    return count;
}

static uint64_t next_draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *state >> 33;
}

/* data[from..to) becomes `len` bytes; the new size, or the old one if there is no room. */
static size_t splice(uint8_t *data, size_t size, size_t max, size_t from, size_t to, const uint8_t *bytes, size_t len)
{
    size_t rest = size - to;
    if (from + len + rest > max)
        return size;
    memmove(data + from + len, data + to, rest);
    if (len > 0)
        memcpy(data + from, bytes, len);
    return from + len + rest;
}

static size_t mutate_message(uint8_t *data, size_t size, size_t max, uint64_t *state, unsigned depth)
{
    enum { SPANS = 512, BODY = 4096 };
    static span    spans[2][SPANS];
    static uint8_t bodies[2][BODY + 16];
    size_t         count = spans_of(data, size, spans[depth], SPANS);
    if (count == 0 || next_draw(state) % 8 == 0)
        return LLVMFuzzerMutate(data, size, max);
    span     s = spans[depth][next_draw(state) % count];
    uint8_t *body = bodies[depth];
    size_t   whole = s.end - s.at, len = s.end - s.body;
    uint64_t choice = next_draw(state) % 8;
    if (choice == 0)
        return splice(data, size, max, s.at, s.end, NULL, 0);
    if (whole > BODY || len > BODY)
        return LLVMFuzzerMutate(data, size, max);
    if (choice == 1) { /* again, somewhere */
        size_t to = spans[depth][next_draw(state) % count].at;
        memcpy(body, data + s.at, whole);
        return splice(data, size, max, to, to, body, whole);
    }
    memcpy(body + 8, data + s.body, len);
    if (s.type != 2) {
        len = LLVMFuzzerMutate(body + 8, len, s.type == 0 ? 10 : len);
        return splice(data, size, max, s.body, s.end, body + 8, len);
    }
    len = depth == 0 ? mutate_message(body + 8, len, BODY, state, 1) : LLVMFuzzerMutate(body + 8, len, BODY);
    size_t head = 0;
    uint8_t frame[12];
    for (uint64_t tag = (uint64_t)s.number << 3 | 2;; tag >>= 7) {
        frame[head++] = (uint8_t)((tag & 0x7F) | (tag > 0x7F ? 0x80 : 0));
        if (tag <= 0x7F)
            break;
    }
    for (size_t left = len;; left >>= 7) {
        frame[head++] = (uint8_t)((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
        if (left <= 0x7F)
            break;
    }
    NW_CHECK(head <= 8);
    memcpy(body + 8 - head, frame, head);
    return splice(data, size, max, s.at, s.end, body + 8 - head, head + len);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    uint64_t state = fuzz_hash(FUZZ_HASH, &seed, sizeof seed);
    return mutate_message(data, size, max, &state, 0);
}
#endif

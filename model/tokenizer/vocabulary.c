/* A sorted array instead of a trie: 16 bytes a piece and the texts, whatever their shape, and nothing to build but the
 * order. A walk narrows a range by two binary searches a byte; ranges are short after the first byte or two. */
#include "vocabulary.h"

#include <assert.h>
#include <string.h>

static_assert(NW_SPIECE_PIECE_BYTES_MAX <= UINT16_MAX, "lengths are stored in 16 bits");

/* The byte at a place of a piece's text; -1 past its end, so that a piece sorts before those that go on. */
static int byte_at(const nw_vocabulary *v, const nw_vocabulary_item *item, size_t at)
{
    return at < item->len ? v->blob[item->text_at + at] : -1;
}

static void swap(nw_vocabulary_item *a, nw_vocabulary_item *b)
{
    nw_vocabulary_item kept = *a;
    *a = *b;
    *b = kept;
}

typedef struct {
    uint32_t low, high, depth;
} sort_range;

/* Three-way radix quicksort (Bentley and Sedgewick 1997). The longest part is done in place and the two others recurse,
 * so the recursion is never deeper than log2 of the count, whatever a file makes of the pieces. */
static void sort(nw_vocabulary *v, sort_range r)
{
    while (r.high - r.low > 1) {
        int      pivot = byte_at(v, &v->items[r.low + (r.high - r.low) / 2], r.depth);
        uint32_t less = r.low, more = r.high;
        for (uint32_t i = r.low; i < more;) {
            int byte = byte_at(v, &v->items[i], r.depth);
            if (byte < pivot)
                swap(&v->items[less++], &v->items[i++]);
            else if (byte > pivot)
                swap(&v->items[i], &v->items[--more]);
            else
                i++;
        }
        sort_range parts[3] = {
            {r.low, less, r.depth}, {less, pivot < 0 ? less : more, r.depth + 1}, {more, r.high, r.depth}};
        int longest = 0;
        for (int k = 1; k < 3; k++) {
            if (parts[k].high - parts[k].low > parts[longest].high - parts[longest].low)
                longest = k;
        }
        for (int k = 0; k < 3; k++) {
            if (k != longest)
                sort(v, parts[k]);
        }
        r = parts[longest];
    }
}

static void collect(nw_vocabulary *v, const nw_spiece_file *file)
{
    size_t          at = 0, used = 0;
    nw_spiece_piece piece;
    for (uint32_t id = 0; nw_spiece_next(file, &at, &piece); id++) {
        if (piece.type != NW_PIECE_NORMAL && piece.type != NW_PIECE_USER && piece.type != NW_PIECE_UNUSED)
            continue;
        v->items[v->count++] = (nw_vocabulary_item){.text_at = (uint32_t)used,
                                                    .id = id,
                                                    .score = piece.score,
                                                    .len = (uint16_t)piece.len,
                                                    .type = (uint8_t)piece.type};
        v->has_user = v->has_user || piece.type == NW_PIECE_USER;
        memcpy(v->blob + used, piece.text, piece.len);
        used += piece.len;
    }
}

static bool items_equal(const nw_vocabulary *v, const nw_vocabulary_item *a, const nw_vocabulary_item *b)
{
    return a->len == b->len && memcmp(v->blob + a->text_at, v->blob + b->text_at, a->len) == 0;
}

nw_code nw_vocabulary_open(nw_memory *mem, const char *name, const nw_spiece_file *file, nw_vocabulary *ret,
                           nw_error *err)
{
    nw_vocabulary v = {.mem = mem, .cap = file->piece_count, .blob_bytes = (size_t)file->text_bytes};
    v.items = (nw_vocabulary_item *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, v.cap, sizeof *v.items);
    v.blob = (unsigned char *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, v.blob_bytes, 1);
    if (v.items == NULL || v.blob == NULL) {
        nw_vocabulary_close(&v);
        return nw_memory_fail(mem, err, file->piece_count * sizeof *v.items, name);
    }
    collect(&v, file);
    sort(&v, (sort_range){0, v.count, 0});
    for (uint32_t i = 1; i < v.count; i++) {
        if (items_equal(&v, &v.items[i - 1], &v.items[i])) {
            uint32_t a = v.items[i - 1].id, b = v.items[i].id;
            nw_vocabulary_close(&v);
            return nw_fail(err, NW_E_TOKENIZER, 0, "%s: pieces %u and %u are the same", name, a < b ? a : b,
                           a < b ? b : a);
        }
    }
    uint32_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        v.first[byte] = at;
        while (at < v.count && v.blob[v.items[at].text_at] == byte)
            at++;
    }
    v.first[256] = at;
    *ret = v;
    return NW_OK;
}

void nw_vocabulary_close(nw_vocabulary *v)
{
    if (v->mem == NULL)
        return;
    nw_memory_free(v->mem, NW_TAG_TOKENIZER, v->items, v->cap, sizeof *v->items);
    nw_memory_free(v->mem, NW_TAG_TOKENIZER, v->blob, v->blob_bytes, 1);
    *v = (nw_vocabulary){0};
}

/* First item of [low, high) whose byte `at` is not below `byte`; all of them are longer than `at`. */
static uint32_t lower_bound(const nw_vocabulary *v, uint32_t low, uint32_t high, uint32_t at, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (v->blob[v->items[middle].text_at + at] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const nw_vocabulary_item *nw_vocabulary_step(const nw_vocabulary *v, nw_vocabulary_walk *w, unsigned char byte)
{
    if (w->len == 0) {
        w->low = v->first[byte];
        w->high = v->first[byte + 1];
    } else {
        if (w->low < w->high && v->items[w->low].len == w->len)
            w->low++; /* the piece that ended here has no next byte */
        w->low = lower_bound(v, w->low, w->high, w->len, byte);
        w->high = lower_bound(v, w->low, w->high, w->len, byte + 1u);
    }
    w->len++;
    return w->low < w->high && v->items[w->low].len == w->len ? &v->items[w->low] : NULL;
}

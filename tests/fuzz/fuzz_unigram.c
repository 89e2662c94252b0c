/* Any text through T5's own vocabulary, beside the sentencepiece library: the pieces are as good, by the sum of their
 * scores, as those that the library finds (it may break ties otherwise), and stand for the same normalised text. */
#include "fuzz_tokenizer.h"
#include "spiece_shim.h"
#include "unigram.h"

#include <math.h>
#include <stdio.h>

#define PIECES_MAX 32100u
#define TEXT_MAX ((size_t)2048)
#define IDS_MAX (18 * TEXT_MAX)

typedef struct {
    unsigned char *bytes;
    nw_spiece_file file;
    nw_memory      mem;
    nw_unigram    *unigram;
    nw_spiece     *library;
    nw_spiece_piece pieces[PIECES_MAX];
} model;

static model *t5(void)
{
    static model m;
    if (m.bytes != NULL)
        return &m;
    FILE    *file = fopen(NW_TEST_DATA "/t5-tokenizer/spiece.model", "rb");
    nw_error err = {0};
    NW_CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    size_t len = (size_t)ftell(file);
    m.bytes = malloc(len);
    rewind(file);
    NW_CHECK(m.bytes != NULL && fread(m.bytes, 1, len, file) == len);
    fclose(file);
    nw_memory_init(&m.mem, UINT64_MAX, NULL);
    nw_code rc = nw_spiece_read(&m.mem, "t5", m.bytes, len, &m.file, &err);
    if (rc == NW_OK)
        rc = nw_unigram_open(&m.mem, "t5", &m.file, &m.unigram, &err);
    if (rc == NW_OK)
        rc = nw_spiece_open("t5", m.bytes, len, &m.library, &err);
    NW_CHECK(rc == NW_OK && m.file.piece_count <= PIECES_MAX);
    size_t at = 0;
    for (uint32_t id = 0; id < m.file.piece_count; id++)
        NW_CHECK(nw_spiece_next(&m.file, &at, &m.pieces[id]));
    return &m;
}

typedef struct {
    const model *m;
    uint32_t     ids[IDS_MAX];
    size_t       count;
} result;

static void on_piece(void *user, uint32_t id, const unsigned char *text, size_t len)
{
    result *r = user;
    NW_CHECK(r->count < IDS_MAX);
    NW_CHECK(id < r->m->file.piece_count && len >= 1 && fuzz_utf8(text, len));
    r->ids[r->count++] = id;
}

/* What the pieces stand for: an unknown stretch is one byte that no text has. The scores of the others are added. */
static uint64_t spell(const model *m, const uint32_t *ids, size_t count, double *ret_sum)
{
    uint64_t hash = FUZZ_HASH;
    *ret_sum = 0;
    for (size_t i = 0; i < count; i++) {
        const nw_spiece_piece *piece = &m->pieces[ids[i]];
        bool                   known = ids[i] != m->file.unk_id;
        hash = known ? fuzz_hash(hash, piece->text, piece->len) : fuzz_hash(hash, "\xFF", 1);
        *ret_sum += known ? (double)piece->score : 0;
    }
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static result   ours;
    static uint32_t theirs[IDS_MAX];
    model          *m = t5();
    nw_error        err = {0};
    size_t          count = 0;
    double          sum, their_sum;
    if (size > TEXT_MAX)
        return 0;
    const char *text = size > 0 ? (const char *)data : "";
    ours.m = m;
    ours.count = 0;
    uint64_t live = m->mem.live;
    nw_code  rc = nw_unigram_encode(m->unigram, text, size, on_piece, &ours, &err);
    NW_CHECK(rc == NW_OK);
    NW_CHECK(m->mem.live == live);
    rc = nw_spiece_encode(m->library, text, size, theirs, IDS_MAX, &count, &err);
    NW_CHECK(rc == NW_OK && count <= IDS_MAX);
    for (size_t i = 0; i < count; i++)
        NW_CHECK(theirs[i] < m->file.piece_count);
    NW_CHECK(spell(m, ours.ids, ours.count, &sum) == spell(m, theirs, count, &their_sum));
    NW_CHECK(fabs(sum - their_sum) <= 1e-5 * (1 + fabs(sum)));
    return 0;
}

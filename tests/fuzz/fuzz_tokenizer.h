/* The whole use of a tokenizer's files: check, open, encode, decode, and what must hold on the way. */
#ifndef NW_FUZZ_FUZZ_TOKENIZER_H
#define NW_FUZZ_FUZZ_TOKENIZER_H

#include "fuzz.h"
#include "model/tokenizer.h"

#include <stdlib.h>

#define FUZZ_CHECK_MEMORY_MAX ((uint64_t)1 << 20) /* promised by nw_tokenizer_check */
#define FUZZ_IDS_MAX ((size_t)65536)
#define FUZZ_PIECES_MAX 1024u

/* Whether the files pass, and what they tell. */
static inline bool fuzz_tokenizer_check(const nw_tokenizer_files *files, nw_tokenizer_facts *ret)
{
    nw_memory mem;
    nw_error  err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_tokenizer_check(&mem, files, ret, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_TOKENIZER);
    NW_CHECK(mem.live == 0);
    NW_CHECK(mem.peak <= FUZZ_CHECK_MEMORY_MAX);
    if (!fuzz_ok(rc, &err))
        return false;
    NW_CHECK(ret->piece_count <= files->vocab_size && ret->text_bytes <= files->spiece_bytes);
    return true;
}

/* Encodes a text twice, the second time into less room, and says which of its characters are unknown. */
static inline size_t fuzz_encode(nw_tokenizer *t, const nw_tokenizer_files *files, const char *text, size_t len,
                                 uint32_t *ids)
{
    static uint32_t few[16];
    char            unknown[64];
    size_t          count = 0, again = 0;
    nw_error        err = {0};
    nw_code         rc = nw_tokenizer_encode(t, text, len, ids, FUZZ_IDS_MAX, &count, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_TOKENIZER);
    if (!fuzz_ok(rc, &err))
        return 0;
    NW_CHECK(count >= 1);
    count = nw_min_size(count, FUZZ_IDS_MAX);
    for (size_t i = 0; i < count; i++)
        NW_CHECK(ids[i] < files->vocab_size);
    size_t cap = len % (sizeof few / sizeof *few);
    rc = nw_tokenizer_encode(t, text, len, few, cap, &again, &err);
    NW_CHECK(rc == NW_OK);
    NW_CHECK(again == count || count == FUZZ_IDS_MAX);
    for (size_t i = 0; i < nw_min_size(cap, count); i++)
        NW_CHECK(few[i] == ids[i]);
    nw_tokenizer_unknown(t, text, len, unknown, sizeof unknown);
    size_t unknown_len = strnlen(unknown, sizeof unknown);
    NW_CHECK(unknown_len < sizeof unknown && fuzz_utf8(unknown, unknown_len));
    return count;
}

/* Decodes ids to text in a buffer of exactly the size that is said to suffice. */
static inline void fuzz_decode(const nw_pieces *pieces, const uint32_t *ids, size_t count)
{
    size_t     max = nw_pieces_text_max(pieces), raw_len;
    char      *buf = malloc(max);
    nw_decoder decoder = {0};
    NW_CHECK(buf != NULL);
    for (size_t i = 0; i < count; i++) {
        const char *raw = nw_pieces_raw(pieces, ids[i], &raw_len);
        NW_CHECK(fuzz_utf8(raw, raw_len));
        size_t len = nw_pieces_decode(pieces, &decoder, ids[i], buf, max);
        NW_CHECK(len <= max && fuzz_utf8(buf, len));
    }
    size_t len = nw_pieces_decode_end(pieces, &decoder, buf, max);
    NW_CHECK(len <= max && fuzz_utf8(buf, len));
    free(buf);
}

/* Loads with less memory than it takes. */
static inline void fuzz_tokenizer_refused(const nw_tokenizer_files *files, uint64_t limit)
{
    nw_memory     mem;
    nw_error      err = {0};
    nw_tokenizer *tokenizer = NULL;
    nw_memory_init(&mem, limit, NULL);
    nw_code rc = nw_tokenizer_open(&mem, files, &tokenizer, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_TOKENIZER || rc == NW_E_BUDGET);
    NW_CHECK((tokenizer != NULL) == fuzz_ok(rc, &err));
    nw_tokenizer_close(tokenizer);
    NW_CHECK(mem.live == 0);
}

/* Loads files that pass the check and takes the text, and the ids of the first pieces, through them. */
static inline void fuzz_tokenizer_use(const nw_tokenizer_files *files, const nw_tokenizer_facts *facts,
                                      const char *text, size_t len)
{
    static uint32_t    ids[FUZZ_IDS_MAX];
    nw_memory          mem, pieces_mem;
    nw_error           err = {0};
    nw_tokenizer      *tokenizer = NULL;
    nw_pieces         *pieces = NULL;
    nw_tokenizer_cost  cost = nw_tokenizer_declared(facts);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_memory_init(&pieces_mem, UINT64_MAX, NULL);
    nw_code rc = nw_tokenizer_open(&mem, files, &tokenizer, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_TOKENIZER);
    bool good = fuzz_ok(rc, &err);
    NW_CHECK(mem.live <= cost.kept && mem.peak <= cost.peak);
    uint64_t draw = fuzz_hash(FUZZ_HASH, text, len);
    if (draw % 4 == 0)
        fuzz_tokenizer_refused(files, (draw >> 8) % mem.peak);
    rc = nw_pieces_open(&pieces_mem, files, &pieces, &err);
    NW_CHECK(rc == NW_OK);
    NW_CHECK(pieces_mem.live <= cost.pieces);
    size_t count = good ? fuzz_encode(tokenizer, files, text, len, ids) : 0;
    fuzz_decode(pieces, ids, count);
    for (uint32_t i = 0; i < FUZZ_PIECES_MAX; i++)
        ids[i] = i;
    fuzz_decode(pieces, ids, FUZZ_PIECES_MAX);
    nw_pieces_close(pieces);
    nw_tokenizer_close(tokenizer);
    NW_CHECK(mem.live == 0 && pieces_mem.live == 0);
}

#endif

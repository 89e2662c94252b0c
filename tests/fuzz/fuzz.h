/* What the fuzz targets share: one account for each input, one device without threads, files that are nowhere on disk,
 * and what must hold of every call whatever it was given.
 *
 * A target is a file fuzz_<name>.c with LLVMFuzzerTestOneInput. It is linked with libFuzzer (CMake's NW_FUZZ), or with
 * replay.c, which runs it over files: then it is a test like any other.
 */
#ifndef NW_FUZZ_FUZZ_H
#define NW_FUZZ_FUZZ_H

#include "base/memory.h"
#include "loader/io_fake.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* libFuzzer's own mutations, and where a target can replace them (with NW_FUZZ only). Returns the new size, at most
 * `max`. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed);

/* What a parser may take beside its input. */
#define FUZZ_MEMORY_MAX ((uint64_t)16 << 20)

/* All is given back, and it was never more than it may be. */
static inline void fuzz_memory_check(const nw_memory *mem, size_t input_bytes)
{
    NW_CHECK(mem->live == 0);
    NW_CHECK(mem->peak <= FUZZ_MEMORY_MAX + input_bytes);
}

/* Length of the UTF-8 character at p, by RFC 3629's table; 0 if there is none. Written for the tests, so that they do
 * not check a decoder with itself. */
static inline size_t fuzz_utf8_next(const unsigned char *p, size_t len)
{
    static const struct {
        unsigned char first_low, first_high, second_low, second_high, bytes;
    } table[] = {
        {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
        {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
        {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    for (size_t i = 0; len > 0 && i < sizeof table / sizeof *table; i++) {
        if (p[0] < table[i].first_low || p[0] > table[i].first_high)
            continue;
        if (table[i].bytes > len || (table[i].bytes > 1 && (p[1] < table[i].second_low || p[1] > table[i].second_high)))
            return 0;
        for (size_t k = 2; k < table[i].bytes; k++) {
            if ((p[k] & 0xC0) != 0x80)
                return 0;
        }
        return table[i].bytes;
    }
    return 0;
}

static inline bool fuzz_utf8(const void *text, size_t len)
{
    const unsigned char *p = text;
    for (size_t i = 0, step; i < len; i += step) {
        step = fuzz_utf8_next(p + i, len - i);
        if (step == 0)
            return false;
    }
    return true;
}

/* A failure says why, in one line of UTF-8 that moves no cursor. Returns whether the call succeeded. */
static inline bool fuzz_ok(nw_code rc, const nw_error *err)
{
    if (rc == NW_OK)
        return true;
    size_t len = strnlen(err->msg, sizeof err->msg);
    NW_CHECK(err->code == rc);
    NW_CHECK(len > 0 && len < sizeof err->msg);
    NW_CHECK(fuzz_utf8(err->msg, len));
    for (size_t i = 0; i < len; i++)
        NW_CHECK((unsigned char)err->msg[i] >= 0x20 && err->msg[i] != 0x7F);
    return false;
}

/* As fuzz_ok, for a parser that refuses files with these codes only: nothing ran out, no argument was wrong. */
static inline bool fuzz_parsed(nw_code rc, const nw_error *err)
{
    NW_CHECK(rc == NW_OK || rc == NW_E_FORMAT || rc == NW_E_UNSUPPORTED || rc == NW_E_TOKENIZER);
    return fuzz_ok(rc, err);
}

/* FNV-1a, for choices that an input makes and for comparing sequences. Start with FUZZ_HASH. */
#define FUZZ_HASH UINT64_C(0xcbf29ce484222325)
static inline uint64_t fuzz_hash(uint64_t hash, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif

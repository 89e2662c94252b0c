/* A precompiled_charsmap by itself: what is accepted can be walked with any text, and whatever it finds is whole UTF-8
 * among its replacements. */
#include "fuzz.h"
#include "spiece_file.h"

#include <stdlib.h>

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t next_draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *state >> 33;
}

static void match(const uint8_t *map, size_t size, const uint8_t *text, size_t len)
{
    const char *replacement = NULL;
    const char *strings = (const char *)map + 4 + load_u32(map), *end = (const char *)map + size;
    size_t      taken = nw_charsmap_match(map, text, len, &replacement);
    NW_CHECK(taken <= len);
    if (taken == 0)
        return;
    NW_CHECK(replacement >= strings && replacement < end);
    NW_CHECK(memchr(replacement, 0, (size_t)(end - replacement)) != NULL);
    NW_CHECK(strlen(replacement) <= 128);
    NW_CHECK(fuzz_utf8(replacement, strlen(replacement)));
}

/* Texts of the bytes that the trie's units are labelled with lead far into it. */
static void match_many(const uint8_t *map, size_t size)
{
    uint64_t state = fuzz_hash(FUZZ_HASH, map, size);
    uint32_t units = load_u32(map) / 4;
    uint8_t *text = malloc(24);
    NW_CHECK(text != NULL);
    for (unsigned byte = 0; byte < 256; byte++) {
        text[0] = (uint8_t)byte;
        match(map, size, text, 1);
    }
    for (unsigned round = 0; round < 64; round++) {
        for (size_t i = 0; i < 24; i++)
            text[i] = map[4 + 4 * (next_draw(&state) % units)];
        match(map, size, text, 24);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nw_memory mem;
    nw_error  err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_charsmap_check(&mem, "input", data, size, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_TOKENIZER);
    NW_CHECK(mem.live == 0 && mem.peak <= (uint64_t)1 << 20);
    if (fuzz_ok(rc, &err))
        match_many(data, size);
    return 0;
}

#ifdef NW_FUZZ
/* Sets one unit of the trie to something that a trie might hold, and keeps the size before it true. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    uint64_t state = fuzz_hash(FUZZ_HASH, &seed, sizeof seed);
    size_t   trie = size >= 4 ? load_u32(data) : 0;
    if (size < 16 || trie < 8 || trie >= size - 4 || next_draw(&state) % 4 == 0)
        return LLVMFuzzerMutate(data, size, max);
    if (next_draw(&state) % 8 == 0) { /* the replacements */
        size_t   strings = LLVMFuzzerMutate(data + 4 + trie, size - 4 - trie, max - 4 - trie);
        uint8_t *last = data + 4 + trie + strings - 1;
        if (strings > 0 && next_draw(&state) % 4 > 0)
            *last = 0;
        return 4 + trie + strings;
    }
    uint32_t units = (uint32_t)(trie / 4);
    uint32_t from = (uint32_t)(next_draw(&state) % units), to = (uint32_t)(next_draw(&state) % units);
    uint32_t byte = (uint32_t)(next_draw(&state) % 256);
    uint32_t old = load_u32(data + 4 + 4 * (size_t)from), unit = 0;
    switch (next_draw(&state) % 6) {
    case 0: unit = 0x80000000u | (uint32_t)(next_draw(&state) % (size - 4 - trie + 2)); break; /* a value */
    case 1: unit = old ^ 0x100; break;
    case 2: unit = old ^ 0x200; break;
    case 3: unit = (old & 0x3FFu) | (from ^ to) << 10; break;
    case 4: unit = (old & ~0xFFu) | byte; break;
    default: unit = (from ^ to) << 10 | (uint32_t)(next_draw(&state) & 0x100) | byte; break;
    }
    memcpy(data + 4 + 4 * (size_t)from, &unit, sizeof unit);
    return size;
}
#endif

/* The precompiled_charsmap: u32 bytes of the trie, the trie (darts-clone double array), NUL-terminated replacements.
 *
 * The library walks the trie with bytes of the user's text and never looks at its bounds (neither does
 * nw_charsmap_match); it keeps at most 32 matches of one walk but looks at as many as there were (normalizer.cc,
 * kMaxTrieResultsSize). So every state that any text can reach is visited here, once: all 256 places that it may look
 * at lie inside the array, each leaf's value is the start of a character in the replacements, no walk runs in a circle,
 * and none meets more than 32 leaves. A replacement is short, so that a text cannot grow without measure.
 *
 * A state is the place from which children are reached: child c of state s is unit s ^ c. States may be shared (the
 * trie is a minimised graph), so the leaves below a state are remembered.
 */
#include "spiece_file.h"

#include "base/bytes.h"
#include "utf8.h"

#include <string.h>

#define TRIE_UNITS_MAX ((size_t)512 << 10) /* real ones have about 45,000 */
#define TRIE_DEPTH_MAX 1024u
#define TRIE_LEAVES_MAX 32u
#define REPLACEMENT_BYTES_MAX ((size_t)128) /* the longest of NFKC has 33 */

enum { STATE_NEW = 0, STATE_OPEN = 255 }; /* otherwise 1 + the most leaves on a walk from here on */

typedef struct {
    uint32_t state;
    uint16_t next_byte;
    uint8_t  leaves; /* the most leaves on the walks seen so far below here */
    uint8_t  own;    /* 1 if reaching this state is a match itself */
} trie_step;

typedef struct {
    const unsigned char *units; /* u32, little-endian */
    size_t               unit_count;
    const unsigned char *strings;
    size_t               string_bytes;
    uint8_t             *seen;  /* per unit: STATE_* */
    trie_step           *steps; /* the walk at hand, from the root */
    uint32_t             depth;
} trie;

static uint32_t unit_at(const trie *t, size_t index)
{
    NW_CHECK(index < t->unit_count);
    return nw_get_u32(t->units + 4 * index);
}

/* Fields of a unit, as darts.h of darts-clone has them. */
static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200u) >> 6);
}
static uint32_t unit_label(uint32_t unit)
{
    return unit & 0x800000FFu;
}
static bool unit_has_leaf(uint32_t unit)
{
    return (unit & 0x100u) != 0;
}

/* What is wrong with the value of a leaf; NULL: nothing. */
static const char *value_problem(const trie *t, uint32_t state)
{
    uint32_t value = unit_at(t, state) & 0x7FFFFFFFu;
    if (value >= t->string_bytes || (t->strings[value] & 0xC0) == 0x80)
        return "has a value outside the replacements";
    size_t look = nw_min_size(t->string_bytes - value, REPLACEMENT_BYTES_MAX + 1);
    return memchr(t->strings + value, 0, look) != NULL ? NULL : "has a replacement of more than 128 bytes";
}

/* Goes on to a state; NULL, or what is wrong. */
static const char *enter(trie *t, uint32_t state, bool match)
{
    if ((size_t)(state | 0xFF) >= t->unit_count)
        return "leads out of its array";
    const char *wrong = match ? value_problem(t, state) : NULL;
    if (wrong != NULL)
        return wrong;
    if (t->depth == TRIE_DEPTH_MAX)
        return "is too deep";
    t->seen[state] = STATE_OPEN;
    t->steps[t->depth++] = (trie_step){.state = state, .own = match};
    return NULL;
}

/* Takes the next byte from the state at the end of the walk, or leaves that state when all bytes are done. */
static const char *advance(trie *t)
{
    trie_step *step = &t->steps[t->depth - 1];
    while (step->next_byte < 256) {
        uint32_t byte = step->next_byte++;
        uint32_t at = step->state ^ byte;
        uint32_t unit = unit_at(t, at);
        if (unit_label(unit) != byte)
            continue;
        uint32_t below = at ^ unit_offset(unit);
        bool     match = unit_has_leaf(unit);
        if ((size_t)below >= t->unit_count || t->seen[below] == STATE_NEW)
            return enter(t, below, match);
        if (t->seen[below] == STATE_OPEN)
            return "runs in a circle";
        uint8_t     leaves = (uint8_t)(t->seen[below] - 1 + (match ? 1 : 0));
        const char *wrong = match ? value_problem(t, below) : NULL;
        if (wrong != NULL)
            return wrong;
        if (leaves > step->leaves)
            step->leaves = leaves;
        if (leaves > TRIE_LEAVES_MAX)
            return "has too many keys that begin alike";
    }
    unsigned leaves = step->leaves;
    t->seen[step->state] = (uint8_t)(leaves + 1);
    leaves += step->own;
    t->depth--;
    if (leaves > TRIE_LEAVES_MAX)
        return "has too many keys that begin alike";
    if (t->depth > 0 && leaves > t->steps[t->depth - 1].leaves)
        t->steps[t->depth - 1].leaves = (uint8_t)leaves;
    return NULL;
}

static const char *walk(trie *t)
{
    const char *wrong = enter(t, unit_offset(unit_at(t, 0)), false);
    while (wrong == NULL && t->depth > 0)
        wrong = advance(t);
    return wrong;
}

nw_code nw_charsmap_check(nw_memory *mem, const char *name, const unsigned char *map, size_t len, nw_error *err)
{
    size_t trie_bytes = len >= 4 ? nw_get_u32(map) : 0;
    if (len < 4 || trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= len - 4)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the charsmap's sizes do not fit together", name);
    trie t = {.units = map + 4,
              .unit_count = trie_bytes / 4,
              .strings = map + 4 + trie_bytes,
              .string_bytes = len - 4 - trie_bytes};
    if (t.unit_count > TRIE_UNITS_MAX)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the charsmap's trie is too large", name);
    if (t.strings[t.string_bytes - 1] != 0 || !nw_utf8_valid(t.strings, t.string_bytes))
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the charsmap's replacements are no NUL-terminated UTF-8", name);

    size_t      steps_bytes = TRIE_DEPTH_MAX * sizeof *t.steps;
    const char *wrong = NULL;
    nw_code     rc = NW_OK;
    t.seen = (uint8_t *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, t.unit_count, 1);
    t.steps = (trie_step *)nw_memory_alloc(mem, NW_TAG_TOKENIZER, 1, steps_bytes);
    if (t.seen == NULL || t.steps == NULL)
        rc = nw_memory_fail(mem, err, t.unit_count + steps_bytes, name);
    else
        wrong = walk(&t);
    nw_memory_free(mem, NW_TAG_TOKENIZER, t.steps, 1, steps_bytes);
    nw_memory_free(mem, NW_TAG_TOKENIZER, t.seen, t.unit_count, 1);
    if (wrong != NULL)
        return nw_fail(err, NW_E_TOKENIZER, 0, "%s: the charsmap's trie %s", name, wrong);
    return rc;
}

size_t nw_charsmap_match(const unsigned char *map, const unsigned char *text, size_t len, const char **ret_replacement)
{
    const unsigned char *units = map + 4;
    const unsigned char *strings = units + nw_get_u32(map);
    size_t               longest = 0;
    uint32_t             state = unit_offset(nw_get_u32(units));
    for (size_t i = 0; i < len; i++) {
        uint32_t at = state ^ text[i];
        uint32_t unit = nw_get_u32(units + 4 * (size_t)at);
        if (unit_label(unit) != text[i])
            break;
        state = at ^ unit_offset(unit);
        if (unit_has_leaf(unit)) {
            longest = i + 1;
            *ret_replacement = (const char *)strings + (nw_get_u32(units + 4 * (size_t)state) & 0x7FFFFFFFu);
        }
    }
    return longest;
}

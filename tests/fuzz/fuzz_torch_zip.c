/* A pytorch_model.bin: a zip archive of stored entries. What opens is a sorted table of tensors within the file. */
#include "checkpoint_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_weights(data, size, NULL);
    return 0;
}

#ifdef NW_FUZZ
/* Most mutations of an archive only make its parts disagree. So the archive is taken apart, one entry is changed, and
 * it is put together again as a whole one; the bytes as they stand are mutated now and then. */
#include "pickle_mutator.h"

enum { ENTRIES = 16, NAME = 64, BODY = 4096 };

typedef struct {
    uint8_t name[NAME], body[BODY];
    size_t  name_len, body_len;
} entry;

typedef struct {
    uint8_t *bytes;
    size_t   len, cap;
    bool     full;
} out;

static uint64_t load(const uint8_t *p, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;)
        value = value << 8 | p[i];
    return value;
}

static void put(out *o, const void *bytes, size_t len)
{
    o->full = o->full || len > o->cap - o->len;
    if (o->full || len == 0)
        return;
    memcpy(o->bytes + o->len, bytes, len);
    o->len += len;
}

static void put_number(out *o, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(i < 8 ? value >> (8 * i) : 0);
        put(o, &byte, 1);
    }
}

/* The entries that follow one another from the start, with sizes in their local headers. */
static size_t take_apart(const uint8_t *data, size_t size, entry *entries)
{
    size_t count = 0, at = 0;
    while (count < ENTRIES && size - at >= 30 && memcmp(data + at, "PK\3\4", 4) == 0) {
        entry *e = &entries[count];
        e->body_len = (size_t)load(data + at + 18, 4);
        e->name_len = (size_t)load(data + at + 26, 2);
        size_t extra = (size_t)load(data + at + 28, 2), rest = size - at - 30;
        if (e->name_len > NAME || e->body_len > BODY || e->name_len + extra + e->body_len > rest)
            break;
        memcpy(e->name, data + at + 30, e->name_len);
        memcpy(e->body, data + at + 30 + e->name_len + extra, e->body_len);
        at += 30 + e->name_len + extra + e->body_len;
        count++;
    }
    return count;
}

/* What local and central headers share, from the version to the length of the extra field. */
static void put_common(out *o, const entry *e, size_t extra)
{
    put_number(o, 0, 6); /* version, flags, method */
    put_number(o, 0, 4); /* time */
    put_number(o, 0, 4); /* CRC, not looked at */
    put_number(o, e->body_len, 4);
    put_number(o, e->body_len, 4);
    put_number(o, e->name_len, 2);
    put_number(o, extra, 2);
}

static size_t put_together(uint8_t *data, size_t max, const entry *entries, size_t count)
{
    size_t places[ENTRIES];
    out    o = {.bytes = data, .cap = max};
    for (size_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        size_t       padding = (0 - (o.len + 34 + e->name_len)) % 16;
        places[i] = o.len;
        put(&o, "PK\3\4", 4);
        put_common(&o, e, 4 + padding);
        put(&o, e->name, e->name_len);
        put(&o, "FB", 2);
        put_number(&o, padding, 2);
        put(&o, "ZZZZZZZZZZZZZZZ", padding);
        put(&o, e->body, e->body_len);
    }
    size_t central = o.len;
    for (size_t i = 0; i < count; i++) {
        put(&o, "PK\1\2", 4);
        put_number(&o, 0, 2);
        put_common(&o, &entries[i], 0);
        put_number(&o, 0, 10); /* comment, disk, attributes */
        put_number(&o, places[i], 4);
        put(&o, entries[i].name, entries[i].name_len);
    }
    size_t end = o.len;
    put(&o, "PK\5\6", 4);
    put_number(&o, 0, 4);
    put_number(&o, count, 2);
    put_number(&o, count, 2);
    put_number(&o, end - central, 4);
    put_number(&o, central, 4);
    put_number(&o, 0, 2);
    return o.full ? 0 : o.len;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    static entry entries[ENTRIES + 1];
    uint64_t     draw = fuzz_hash(FUZZ_HASH, &seed, sizeof seed);
    size_t       count = take_apart(data, size, entries);
    if (count == 0 || draw % 4 == 0)
        return LLVMFuzzerMutate(data, size, max);
    size_t i = (draw >> 8) % count;
    entry *e = &entries[i];
    switch ((draw >> 2) % 8) {
    case 0: e->name_len = LLVMFuzzerMutate(e->name, e->name_len, NAME); break;
    case 1: entries[i] = entries[--count]; break;
    case 2:
        if (count < ENTRIES)
            entries[count++] = *e;
        break;
    case 3: e->body_len = LLVMFuzzerMutate(e->body, e->body_len, BODY); break;
    case 4: /* payloads of the sizes that tensors have */
        e->body_len = (draw >> 16) % 65;
        break;
    default: /* the pickle is the first entry */
        e = &entries[0];
        if (e->body_len > 0)
            e->body_len = pickle_mutate(e->body, e->body_len, BODY, (unsigned)(draw >> 32));
        break;
    }
    size_t made = put_together(data, max, entries, count);
    return made > 0 ? made : size; /* no room: as much of it as was written over the old one */
}
#endif

/* Mutations of a pickle by whole opcodes: others mostly make the machine read arguments as opcodes. */
#ifndef NW_FUZZ_PICKLE_MUTATOR_H
#define NW_FUZZ_PICKLE_MUTATOR_H

#include "fuzz.h"

/* Bytes of the opcode at the start; 0 if it is cut short. */
static inline size_t pickle_op_len(const uint8_t *p, size_t left)
{
    size_t len = 1;
    switch (p[0]) {
    case 'K':
    case 'q':
    case 'h':
    case 0x80: len = 2; break;
    case 'M': len = 3; break;
    case 'J':
    case 'r':
    case 'j': len = 5; break;
    case 'G': len = 9; break;
    case 0x8a: len = left > 1 ? 2 + (size_t)p[1] : 2; break;
    case 'X': len = left > 4 ? 5 + ((size_t)p[1] | (size_t)p[2] << 8 | (size_t)p[3] << 16) : 5; break;
    case 'c':
        for (unsigned lines = 0; len < left && lines < 2; len++)
            lines += p[len] == '\n';
        break;
    default: break;
    }
    return len <= left ? len : 0;
}

typedef struct {
    size_t at, len;
} pickle_op;

/* data[from..from + old) becomes `len` bytes, if there is room; returns the new size. */
static inline size_t pickle_splice(uint8_t *data, size_t size, size_t max, pickle_op old, const uint8_t *bytes,
                                   size_t len)
{
    size_t rest = size - old.at - old.len;
    if (old.at + len + rest > max)
        return size;
    memmove(data + old.at + len, data + old.at + old.len, rest);
    if (len > 0)
        memcpy(data + old.at, bytes, len);
    return old.at + len + rest;
}

/* Other arguments for one opcode. */
static inline size_t pickle_change(uint8_t *data, size_t size, size_t max, pickle_op op)
{
    uint8_t  bytes[600];
    size_t   head = data[op.at] == 'X' ? 5 : data[op.at] == 0x8a ? 2 : 1;
    if (op.len > 300 || op.len < head)
        return LLVMFuzzerMutate(data, size, max);
    memcpy(bytes, data + op.at, op.len);
    size_t body = op.len - head;
    body = LLVMFuzzerMutate(bytes + head, body, head > 1 ? body + 40 : body > 0 ? body : 1);
    if (head == 5) {
        bytes[1] = (uint8_t)body;
        bytes[2] = (uint8_t)(body >> 8);
    } else if (head == 2) {
        bytes[1] = (uint8_t)body;
    }
    return pickle_splice(data, size, max, op, bytes, head + body);
}

static inline size_t pickle_mutate(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    enum { OPS = 1024 };
    static const uint8_t plain[] = ".(N\x88\x89)}]t\x85\x86\x87QRbsuae";
    static pickle_op     ops[OPS];
    static uint8_t       copy[600];
    uint64_t             draw = fuzz_hash(FUZZ_HASH, &seed, sizeof seed);
    size_t               count = 0;
    for (size_t at = 0, len; at < size && count < OPS; at += len) {
        len = pickle_op_len(data + at, size - at);
        if (len == 0)
            break;
        ops[count++] = (pickle_op){at, len};
    }
    if (count == 0)
        return LLVMFuzzerMutate(data, size, max);
    pickle_op from = ops[(draw >> 8) % count], to = ops[(draw >> 24) % count];
    uint8_t   op = plain[(draw >> 40) % (sizeof plain - 1)];
    switch (draw % 8) {
    case 0: return LLVMFuzzerMutate(data, size, max);
    case 1: return pickle_splice(data, size, max, from, NULL, 0);
    case 2: return pickle_splice(data, size, max, from, &op, 1);
    case 3: return pickle_splice(data, size, max, (pickle_op){from.at, 0}, &op, 1);
    case 4:
    case 5: /* a copy, in place of another or before it */
        if (from.len > sizeof copy)
            return pickle_change(data, size, max, to);
        memcpy(copy, data + from.at, from.len);
        if (draw % 8 == 5)
            to.len = 0;
        return pickle_splice(data, size, max, to, copy, from.len);
    default: return pickle_change(data, size, max, from);
    }
}

#endif

/* The stack machine of pickles.
 *
 * One table says what each opcode is called and, for those that torch.save writes for plain tensors, what it does. A
 * mark is a height of the stack: nothing below the last mark can be popped. Tuples never change, so their items stand
 * side by side in one pool; dicts and lists grow, so theirs are chained. There is no recursion and no collection: what
 * was built stays until the pickle is closed, and the pools are bounded, so a hostile pickle is refused, not followed.
 *
 * Source: Lib/pickletools.py (opcode names), Lib/pickle.py (semantics); torch/_weights_only_unpickler.py for what may
 * be built on.
 */
#include "pickle.h"

#include "base/text.h"

#include <string.h>

typedef struct {
    bool     ordered, is_list;
    uint32_t first, last; /* nodes, counted from 1; 0: none */
} container;

typedef struct {
    nw_pickle_value key, value;
    uint32_t        next; /* counted from 1; 0: none */
} node;

struct nw_pickle {
    const nw_source       *source;
    const nw_pickle_calls *calls;
    void                  *user;
    nw_chunk               chunk;
    uint64_t               start, at, end;
    bool                   stopped;
    nw_names               names;
    size_t                 text_bytes;
    nw_pickle_value       *stack; /* NW_PICKLE_STACK_MAX */
    size_t                 depth;
    size_t                 marks[NW_PICKLE_MARKS_MAX]; /* heights of the stack */
    size_t                 mark_count;
    nw_pickle_value       *memo;
    size_t                 memo_count, memo_cap;
    nw_pickle_value       *items; /* of tuples */
    size_t                 item_count, item_cap;
    container             *containers;
    size_t                 container_count, container_cap;
    node                  *nodes;
    size_t                 node_count, node_cap;
};

nw_code nw_pickle_broken(const nw_pickle *p, const char *problem, nw_error *err)
{
    nw_code rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': its pickle is broken at byte %llu: %s", p->source->path,
                         (unsigned long long)(p->at - p->start), problem);
    if (err != NULL)
        err->offset = p->at;
    return rc;
}

/* -- bytes -- */

static nw_code take(nw_pickle *p, void *ret, size_t len, nw_error *err)
{
    if (len > p->end - p->at)
        return nw_pickle_broken(p, "it is cut short, or too long", err);
    nw_code rc = nw_chunk_copy(&p->chunk, p->at, ret, len, err);
    p->at += len;
    return rc;
}

static nw_code take_number(nw_pickle *p, size_t bytes, uint64_t *ret, nw_error *err)
{
    unsigned char raw[8];
    nw_code       rc = take(p, raw, bytes, err);
    if (rc == NW_OK)
        *ret = nw_le(raw, bytes);
    return rc;
}

/* A line without its newline, for GLOBAL. */
static nw_code take_line(nw_pickle *p, char *ret, size_t cap, nw_error *err)
{
    for (size_t len = 0; len < cap; len++) {
        nw_code rc = take(p, ret + len, 1, err);
        if (rc != NW_OK)
            return rc;
        if (ret[len] == '\n') {
            ret[len] = '\0';
            return NW_OK;
        }
        if ((unsigned char)ret[len] < 0x20)
            return nw_pickle_broken(p, "a global's name has control characters", err);
    }
    return nw_pickle_broken(p, "a global's name is too long", err);
}

/* -- the stack -- */

static size_t stack_floor(const nw_pickle *p)
{
    return p->mark_count > 0 ? p->marks[p->mark_count - 1] : 0;
}

static nw_code push(nw_pickle *p, nw_pickle_value value, nw_error *err)
{
    if (p->depth == NW_PICKLE_STACK_MAX)
        return nw_pickle_broken(p, "more than 4096 values on its stack", err);
    p->stack[p->depth++] = value;
    return NW_OK;
}

static nw_code push_number(nw_pickle *p, nw_pickle_kind kind, int64_t number, nw_error *err)
{
    return push(p, (nw_pickle_value){.kind = kind, .number = number}, err);
}

static nw_code pop(nw_pickle *p, nw_pickle_value *ret, nw_error *err)
{
    if (p->depth == stack_floor(p))
        return nw_pickle_broken(p, "its stack is empty", err);
    *ret = p->stack[--p->depth];
    return NW_OK;
}

/* Ends the part of the stack that began at the last mark; its values are still there, from *ret_first on. */
static nw_code pop_mark(nw_pickle *p, size_t *ret_first, size_t *ret_count, nw_error *err)
{
    if (p->mark_count == 0)
        return nw_pickle_broken(p, "there is no mark", err);
    *ret_first = p->marks[--p->mark_count];
    *ret_count = p->depth - *ret_first;
    p->depth = *ret_first;
    return NW_OK;
}

/* -- pools -- */

static nw_code fail_memory(const nw_pickle *p, size_t bytes, nw_error *err)
{
    return nw_memory_fail(p->source->mem, err, bytes, p->source->path);
}

static nw_code container_new(nw_pickle *p, container fresh, nw_pickle_value *ret, nw_error *err)
{
    if (p->container_count == NW_PICKLE_NODES_MAX)
        return nw_pickle_broken(p, "too many dicts and lists", err);
    container *grown =
        nw_array_grow(p->source->mem, p->containers, p->container_count, &p->container_cap, sizeof *grown);
    if (grown == NULL)
        return fail_memory(p, sizeof *grown * (p->container_cap * 2), err);
    p->containers = grown;
    *ret = (nw_pickle_value){.kind = fresh.is_list ? NW_PICKLE_LIST : NW_PICKLE_DICT,
                             .index = (uint32_t)p->container_count};
    p->containers[p->container_count++] = fresh;
    return NW_OK;
}

nw_code nw_pickle_dict(nw_pickle *p, bool ordered, nw_pickle_value *ret, nw_error *err)
{
    return container_new(p, (container){.ordered = ordered}, ret, err);
}

static nw_code container_add(nw_pickle *p, uint32_t index, nw_pickle_value key, nw_pickle_value value, nw_error *err)
{
    NW_CHECK(index < p->container_count);
    if (p->node_count == NW_PICKLE_NODES_MAX)
        return nw_pickle_broken(p, "too many items in dicts and lists", err);
    node *grown = nw_array_grow(p->source->mem, p->nodes, p->node_count, &p->node_cap, sizeof *grown);
    if (grown == NULL)
        return fail_memory(p, sizeof *grown * (p->node_cap * 2), err);
    p->nodes = grown;
    p->nodes[p->node_count++] = (node){.key = key, .value = value};
    container *c = &p->containers[index];
    if (c->last > 0)
        p->nodes[c->last - 1].next = (uint32_t)p->node_count;
    else
        c->first = (uint32_t)p->node_count;
    c->last = (uint32_t)p->node_count;
    return NW_OK;
}

bool nw_pickle_next(const nw_pickle *p, nw_pickle_value value, uint32_t *at, nw_pickle_value *ret_key,
                    nw_pickle_value *ret_value)
{
    NW_CHECK(value.kind == NW_PICKLE_DICT || value.kind == NW_PICKLE_LIST);
    NW_CHECK(value.index < p->container_count);
    const container *c = &p->containers[value.index];
    if (*at == 0 ? c->first == 0 : *at == c->last)
        return false;
    *at = *at == 0 ? c->first : p->nodes[*at - 1].next;
    *ret_key = p->nodes[*at - 1].key;
    if (ret_value != NULL)
        *ret_value = p->nodes[*at - 1].value;
    return true;
}

nw_pickle_value nw_pickle_item(const nw_pickle *p, nw_pickle_value tuple, size_t at)
{
    NW_CHECK(tuple.kind == NW_PICKLE_TUPLE && at < (uint64_t)tuple.number && tuple.index + at < p->item_count);
    return p->items[tuple.index + at];
}

bool nw_pickle_is(nw_pickle_value value, const char *text)
{
    return value.kind == NW_PICKLE_TEXT && strcmp(value.text, text) == 0;
}

/* Makes a tuple of values that stand on the stack, already popped, from `first` on. */
static nw_code tuple_new(nw_pickle *p, size_t first, size_t count, nw_error *err)
{
    if (count > NW_PICKLE_ITEMS_MAX - p->item_count)
        return nw_pickle_broken(p, "too many items in tuples", err);
    nw_pickle_value tuple = {.kind = NW_PICKLE_TUPLE, .index = (uint32_t)p->item_count, .number = (int64_t)count};
    for (size_t i = 0; i < count; i++) {
        nw_pickle_value *grown = nw_array_grow(p->source->mem, p->items, p->item_count, &p->item_cap, sizeof *grown);
        if (grown == NULL)
            return fail_memory(p, sizeof *grown * (p->item_cap * 2), err);
        p->items = grown;
        p->items[p->item_count++] = p->stack[first + i];
    }
    return push(p, tuple, err);
}

/* -- opcodes. Each is called with the machine behind its code. -- */

typedef nw_code (*op_fn)(nw_pickle *p, unsigned char code, nw_error *err);

static nw_code op_proto(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    uint64_t version = 0;
    nw_code  rc = take_number(p, 1, &version, err);
    if (rc == NW_OK && version != 2 && version != 3) {
        rc = nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': its pickle has protocol %u; torch.save writes 2", p->source->path,
                     (unsigned)version);
    }
    return rc;
}

static nw_code op_stop(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    if (p->depth != 1 || p->mark_count != 0)
        return nw_pickle_broken(p, "it ends with more or less than one value", err);
    p->stopped = true;
    return NW_OK;
}

static nw_code op_mark(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    if (p->mark_count == NW_PICKLE_MARKS_MAX)
        return nw_pickle_broken(p, "it is nested too deep", err);
    p->marks[p->mark_count++] = p->depth;
    return NW_OK;
}

/* None, False, True, the empty tuple. */
static nw_code op_constant(nw_pickle *p, unsigned char code, nw_error *err)
{
    if (code == ')')
        return tuple_new(p, p->depth, 0, err);
    return push_number(p, code == 'N' ? NW_PICKLE_NONE : NW_PICKLE_BOOL, code == 0x88, err);
}

/* BININT, BININT1, BININT2: little-endian, the first with a sign. */
static nw_code op_int(nw_pickle *p, unsigned char code, nw_error *err)
{
    uint64_t raw = 0;
    nw_code  rc = take_number(p, code == 'J' ? 4 : code == 'M' ? 2 : 1, &raw, err);
    if (rc != NW_OK)
        return rc;
    int64_t number = (int64_t)raw;
    if (code == 'J' && raw > INT32_MAX)
        number -= (int64_t)1 << 32;
    return push_number(p, NW_PICKLE_INT, number, err);
}

/* Sizes of 2^31 and more; nothing in a checkpoint needs more than 8 bytes. */
static nw_code op_long(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    uint64_t len = 0, raw = 0;
    nw_code  rc = take_number(p, 1, &len, err);
    if (rc != NW_OK)
        return rc;
    if (len > 8)
        return nw_pickle_broken(p, "a whole number of more than 8 bytes", err);
    if (len > 0)
        rc = take_number(p, (size_t)len, &raw, err);
    if (rc != NW_OK)
        return rc;
    if (len > 0 && len < 8 && (raw >> (len * 8 - 1)) != 0)
        raw |= UINT64_MAX << (len * 8); /* two's complement, shortest form */
    int64_t number;
    memcpy(&number, &raw, sizeof number);
    return push_number(p, NW_PICKLE_INT, number, err);
}

static nw_code op_float(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    unsigned char raw[8];
    nw_code       rc = take(p, raw, sizeof raw, err);
    return rc == NW_OK ? push_number(p, NW_PICKLE_FLOAT, 0, err) : rc;
}

/* Well-formed UTF-8 without NUL. */
static bool text_ok(const unsigned char *s, size_t len)
{
    for (size_t i = 0, step; i < len; i += step) {
        step = nw_utf8_length_at(s + i, len - i);
        if (step == 0 || s[i] == '\0')
            return false;
    }
    return true;
}

static nw_code op_text(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    unsigned char raw[NW_TENSOR_NAME_MAX];
    uint64_t      len = 0;
    nw_code       rc = take_number(p, 4, &len, err);
    if (rc != NW_OK)
        return rc;
    if (len > NW_PICKLE_TEXT_MAX)
        return nw_pickle_broken(p, "a string of more than 64 KiB", err);
    if (len > p->end - p->at)
        return nw_pickle_broken(p, "it is cut short, or too long", err);
    if (len > sizeof raw) {
        p->at += len;
        return push_number(p, NW_PICKLE_LONG_TEXT, 0, err);
    }
    rc = take(p, raw, (size_t)len, err);
    if (rc != NW_OK)
        return rc;
    if (!text_ok(raw, (size_t)len))
        return nw_pickle_broken(p, "a string is not UTF-8, or has a NUL", err);
    p->text_bytes += (size_t)len + 1;
    if (p->text_bytes > NW_PICKLE_TEXTS_MAX)
        return nw_pickle_broken(p, "more than 16 MiB of strings", err);
    const char *text = nw_names_add(&p->names, (const char *)raw, (size_t)len);
    if (text == NULL)
        return fail_memory(p, (size_t)len + 1, err);
    return push(p, (nw_pickle_value){.kind = NW_PICKLE_TEXT, .text = text}, err);
}

static nw_code op_global(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    char            module[256], name[256];
    nw_pickle_value value = {0};
    nw_code         rc = take_line(p, module, sizeof module, err);
    if (rc == NW_OK)
        rc = take_line(p, name, sizeof name, err);
    if (rc == NW_OK)
        rc = p->calls->global(p->user, module, name, &value, err);
    return rc == NW_OK ? push(p, value, err) : rc;
}

static nw_code op_container(nw_pickle *p, unsigned char code, nw_error *err)
{
    nw_pickle_value value = {0};
    nw_code         rc = container_new(p, (container){.is_list = code == ']'}, &value, err);
    return rc == NW_OK ? push(p, value, err) : rc;
}

/* TUPLE takes all since the mark; TUPLE1 to TUPLE3 that many. */
static nw_code op_tuple(nw_pickle *p, unsigned char code, nw_error *err)
{
    size_t first = 0, count = 0;
    if (code == 't') {
        nw_code rc = pop_mark(p, &first, &count, err);
        return rc == NW_OK ? tuple_new(p, first, count, err) : rc;
    }
    count = (size_t)code - 0x84;
    if (p->depth - stack_floor(p) < count)
        return nw_pickle_broken(p, "its stack is empty", err);
    p->depth -= count;
    return tuple_new(p, p->depth, count, err);
}

/* BINPUT, LONG_BINPUT: the value stays on the stack. */
static nw_code op_put(nw_pickle *p, unsigned char code, nw_error *err)
{
    uint64_t index = 0;
    nw_code  rc = take_number(p, code == 'r' ? 4 : 1, &index, err);
    if (rc != NW_OK)
        return rc;
    if (p->depth == stack_floor(p))
        return nw_pickle_broken(p, "its stack is empty", err);
    /* Pickles count their entries, so memory follows the file's size and not a number in it. */
    if (index > p->memo_count)
        return nw_pickle_broken(p, "a memo entry out of order", err);
    if (index == NW_PICKLE_MEMO_MAX)
        return nw_pickle_broken(p, "more than a million memo entries", err);
    if (index == p->memo_count) {
        nw_pickle_value *grown = nw_array_grow(p->source->mem, p->memo, p->memo_count, &p->memo_cap, sizeof *grown);
        if (grown == NULL)
            return fail_memory(p, sizeof *grown * (p->memo_cap * 2), err);
        p->memo = grown;
        p->memo_count++;
    }
    p->memo[index] = p->stack[p->depth - 1];
    return NW_OK;
}

static nw_code op_get(nw_pickle *p, unsigned char code, nw_error *err)
{
    uint64_t index = 0;
    nw_code  rc = take_number(p, code == 'j' ? 4 : 1, &index, err);
    if (rc != NW_OK)
        return rc;
    if (index >= p->memo_count)
        return nw_pickle_broken(p, "a memo entry that was never stored", err);
    return push(p, p->memo[index], err);
}

static nw_code op_persistent(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    nw_pickle_value id = {0}, value = {0};
    nw_code         rc = pop(p, &id, err);
    if (rc == NW_OK)
        rc = p->calls->persistent(p->user, p, id, &value, err);
    return rc == NW_OK ? push(p, value, err) : rc;
}

static nw_code op_reduce(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    nw_pickle_value arguments = {0}, callee = {0}, value = {0};
    nw_code         rc = pop(p, &arguments, err);
    if (rc == NW_OK)
        rc = pop(p, &callee, err);
    if (rc != NW_OK)
        return rc;
    if (arguments.kind != NW_PICKLE_TUPLE || callee.kind != NW_PICKLE_GLOBAL)
        return nw_pickle_broken(p, "it calls what cannot be called", err);
    rc = p->calls->call(p->user, p, callee, arguments, &value, err);
    return rc == NW_OK ? push(p, value, err) : rc;
}

/* Attributes of an OrderedDict (its _metadata), which say nothing about tensors. */
static nw_code op_build(nw_pickle *p, unsigned char code, nw_error *err)
{
    (void)code;
    nw_pickle_value state = {0};
    nw_code         rc = pop(p, &state, err);
    if (rc != NW_OK)
        return rc;
    if (p->depth == stack_floor(p))
        return nw_pickle_broken(p, "its stack is empty", err);
    nw_pickle_value on = p->stack[p->depth - 1];
    if (on.kind != NW_PICKLE_DICT || !p->containers[on.index].ordered || state.kind != NW_PICKLE_DICT)
        return nw_pickle_broken(p, "it sets attributes (BUILD) of something that is not an OrderedDict", err);
    return NW_OK;
}

/* SETITEM, SETITEMS: pairs for the dict below them. APPEND, APPENDS: values for the list below them. */
static nw_code op_add(nw_pickle *p, unsigned char code, nw_error *err)
{
    bool    list = code == 'a' || code == 'e';
    size_t  step = list ? 1 : 2;
    size_t  first = 0, count = step;
    nw_code rc = NW_OK;
    if (code == 'u' || code == 'e') {
        rc = pop_mark(p, &first, &count, err);
        if (rc != NW_OK)
            return rc;
    } else {
        if (p->depth - stack_floor(p) < step)
            return nw_pickle_broken(p, "its stack is empty", err);
        p->depth -= step;
        first = p->depth;
    }
    if (p->depth == stack_floor(p))
        return nw_pickle_broken(p, "its stack is empty", err);
    nw_pickle_value to = p->stack[p->depth - 1];
    if (to.kind != (list ? NW_PICKLE_LIST : NW_PICKLE_DICT) || count % step != 0) {
        return nw_pickle_broken(
            p, list ? "it appends to something that is not a list" : "it sets items of something that is not a dict",
            err);
    }
    for (size_t i = 0; i < count && rc == NW_OK; i += step)
        rc = container_add(p, to.index, p->stack[first + i],
                           list ? (nw_pickle_value){.kind = NW_PICKLE_NONE} : p->stack[first + i + 1], err);
    return rc;
}

/* -- the machine -- */

static const struct {
    unsigned char code;
    char          name[18];
    op_fn         fn; /* NULL: refused */
} ops[] = {
    {0x80, "PROTO", op_proto},
    {'.', "STOP", op_stop},
    {'(', "MARK", op_mark},
    {'N', "NONE", op_constant},
    {0x88, "NEWTRUE", op_constant},
    {0x89, "NEWFALSE", op_constant},
    {')', "EMPTY_TUPLE", op_constant},
    {'J', "BININT", op_int},
    {'K', "BININT1", op_int},
    {'M', "BININT2", op_int},
    {0x8a, "LONG1", op_long},
    {'G', "BINFLOAT", op_float},
    {'X', "BINUNICODE", op_text},
    {'c', "GLOBAL", op_global},
    {'}', "EMPTY_DICT", op_container},
    {']', "EMPTY_LIST", op_container},
    {'t', "TUPLE", op_tuple},
    {0x85, "TUPLE1", op_tuple},
    {0x86, "TUPLE2", op_tuple},
    {0x87, "TUPLE3", op_tuple},
    {'q', "BINPUT", op_put},
    {'r', "LONG_BINPUT", op_put},
    {'h', "BINGET", op_get},
    {'j', "LONG_BINGET", op_get},
    {'Q', "BINPERSID", op_persistent},
    {'R', "REDUCE", op_reduce},
    {'b', "BUILD", op_build},
    {'s', "SETITEM", op_add},
    {'u', "SETITEMS", op_add},
    {'a', "APPEND", op_add},
    {'e', "APPENDS", op_add},
    /* Known to Python, and refused. */
    {'I', "INT", NULL},
    {'L', "LONG", NULL},
    {0x8b, "LONG4", NULL},
    {'S', "STRING", NULL},
    {'T', "BINSTRING", NULL},
    {'U', "SHORT_BINSTRING", NULL},
    {'B', "BINBYTES", NULL},
    {'C', "SHORT_BINBYTES", NULL},
    {0x8e, "BINBYTES8", NULL},
    {0x96, "BYTEARRAY8", NULL},
    {0x97, "NEXT_BUFFER", NULL},
    {0x98, "READONLY_BUFFER", NULL},
    {'V', "UNICODE", NULL},
    {0x8c, "SHORT_BINUNICODE", NULL},
    {0x8d, "BINUNICODE8", NULL},
    {'F', "FLOAT", NULL},
    {'l', "LIST", NULL},
    {'d', "DICT", NULL},
    {0x8f, "EMPTY_SET", NULL},
    {0x90, "ADDITEMS", NULL},
    {0x91, "FROZENSET", NULL},
    {'0', "POP", NULL},
    {'2', "DUP", NULL},
    {'1', "POP_MARK", NULL},
    {'g', "GET", NULL},
    {'p', "PUT", NULL},
    {0x94, "MEMOIZE", NULL},
    {0x82, "EXT1", NULL},
    {0x83, "EXT2", NULL},
    {0x84, "EXT4", NULL},
    {0x93, "STACK_GLOBAL", NULL},
    {'i', "INST", NULL},
    {'o', "OBJ", NULL},
    {0x81, "NEWOBJ", NULL},
    {0x92, "NEWOBJ_EX", NULL},
    {0x95, "FRAME", NULL},
    {'P', "PERSID", NULL},
};

static nw_code step(nw_pickle *p, nw_error *err)
{
    unsigned char code = 0;
    nw_code       rc = take(p, &code, 1, err);
    if (rc != NW_OK)
        return rc;
    const char *name = "no opcode of Python's";
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (ops[i].code != code)
            continue;
        if (ops[i].fn != NULL)
            return ops[i].fn(p, code, err);
        name = ops[i].name;
    }
    return nw_fail(err, NW_E_UNSUPPORTED, 0,
                   "'%s': its pickle has opcode 0x%02x (%s) at byte %llu, which checkpoints of tensors have no use for",
                   p->source->path, code, name, (unsigned long long)(p->at - p->start - 1));
}

nw_code nw_pickle_run(nw_pickle *p, uint64_t offset, uint64_t end, nw_pickle_value *ret_root, uint64_t *ret_end,
                      nw_error *err)
{
    NW_CHECK(offset <= end && end <= p->source->file->size);
    p->start = p->at = offset;
    p->end = offset + nw_min_u64(end - offset, NW_PICKLE_BYTES_MAX);
    p->depth = p->mark_count = 0;
    p->stopped = false;
    p->memo_count = 0;
    nw_code rc = NW_OK;
    while (!p->stopped && rc == NW_OK)
        rc = step(p, err);
    if (rc != NW_OK)
        return rc;
    *ret_root = p->stack[0];
    if (ret_end != NULL)
        *ret_end = p->at;
    return NW_OK;
}

nw_code nw_pickle_open(const nw_source *source, const nw_pickle_calls *calls, void *user, nw_pickle **ret_pickle,
                       nw_error *err)
{
    nw_pickle *p = nw_memory_alloc(source->mem, NW_TAG_INDEX, 1, sizeof *p);
    if (p == NULL)
        return nw_memory_fail(source->mem, err, sizeof *p, source->path);
    *p = (nw_pickle){.source = source, .calls = calls, .user = user, .names.mem = source->mem};
    nw_code rc = nw_chunk_open(&p->chunk, source, NW_HEADER_CHUNK, err);
    if (rc == NW_OK) {
        p->stack = nw_memory_alloc(source->mem, NW_TAG_INDEX, NW_PICKLE_STACK_MAX, sizeof *p->stack);
        if (p->stack == NULL)
            rc = fail_memory(p, NW_PICKLE_STACK_MAX * sizeof *p->stack, err);
    }
    if (rc != NW_OK) {
        nw_pickle_close(p);
        return rc;
    }
    *ret_pickle = p;
    return NW_OK;
}

nw_pickle *nw_pickle_close(nw_pickle *p)
{
    if (p == NULL)
        return NULL;
    nw_memory *mem = p->source->mem;
    nw_chunk_close(&p->chunk);
    nw_names_free(&p->names);
    nw_memory_free(mem, NW_TAG_INDEX, p->stack, NW_PICKLE_STACK_MAX, sizeof *p->stack);
    nw_memory_free(mem, NW_TAG_INDEX, p->memo, p->memo_cap, sizeof *p->memo);
    nw_memory_free(mem, NW_TAG_INDEX, p->items, p->item_cap, sizeof *p->items);
    nw_memory_free(mem, NW_TAG_INDEX, p->containers, p->container_cap, sizeof *p->containers);
    nw_memory_free(mem, NW_TAG_INDEX, p->nodes, p->node_cap, sizeof *p->nodes);
    nw_memory_free(mem, NW_TAG_INDEX, p, 1, sizeof *p);
    return NULL;
}

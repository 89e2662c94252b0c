/* A strict streaming scan of JSON over yajl.
 *
 * yajl does the grammar and the splitting over calls, with memory that grows with depth and with the longest token.
 * What it does not do is done here, in two places. Before yajl, raw_step() walks over the bytes as written: lone
 * surrogates (yajl turns them into '?' or into another character, so that they cannot be seen afterwards) and the
 * length of strings and numbers, before yajl buffers them. After yajl, the callbacks check decoded text (NUL, strict
 * UTF-8: yajl accepts overlong forms), depth, and duplicate keys: per open object a set of 64-bit hashes, seeded anew
 * for each scan so that nobody can make two keys collide on purpose.
 *
 * yajl does not check what its allocator returns, so a refused allocation leaves yajl by longjmp; every block it holds
 * is in a list of ours, and closing frees the list instead of trusting a half-updated parser. Nothing of ours is
 * between the setjmp and the allocator: the callbacks never allocate through yajl.
 */
#include "base/json.h"

#include "base/text.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>
#include <yajl/yajl_parse.h>

#define NUMBER_LEN_MAX 64
#define DEPTH_MAX 32
#define MEMORY_MAX ((uint64_t)16 << 20)
#define STRING_LEN_MAX ((size_t)1 << 20)
#define KEY_SLOTS_KEPT 64 /* a larger table is given back when its object closes */

/* What yajl holds, so that it can be freed without yajl. */
typedef union block {
    struct {
        union block *prev, *next;
        size_t       size; /* of the payload */
    } link;
    max_align_t align;
} block;

/* The hashes of the keys of one open object: open addressing, 0 is a free slot. */
typedef struct {
    uint64_t *slots;
    size_t    cap, used; /* cap is 0 or a power of two */
} key_set;

typedef enum { RAW_VALUE, RAW_STRING, RAW_ESCAPE, RAW_HEX } raw_state;

typedef enum { REFUSED_NOT, REFUSED_BY_SCAN, REFUSED_BY_MEMORY } refusal;

struct nw_json {
    nw_memory     *mem;
    const char    *name;
    nw_json_limits limits;
    nw_json_fn     fn;
    void          *user;
    yajl_handle    yajl;
    block         *blocks;
    uint64_t       memory; /* held now, this struct included */
    jmp_buf        out_of_memory;
    refusal        refused;
    size_t         refused_bytes;
    nw_code        rc;  /* of the first failure */
    nw_error      *err; /* of the call at hand */
    uint64_t       fed; /* bytes of earlier calls to yajl */
    uint64_t       seed;
    key_set       *sets; /* [depth_max] */
    uint32_t       depth;
    char          *key; /* the member whose value comes next */
    size_t         key_len, key_cap;
    bool           key_pending;
    raw_state      raw;
    size_t         raw_len;   /* of the number at hand; of the string once decoded, at least */
    unsigned       hex_left;  /* digits of a \u escape still to come */
    unsigned       unit;      /* UTF-16 unit being read */
    bool           half_open; /* a high surrogate waits for its low one */
};

/* -- memory -- */

static void *take(nw_json *j, size_t count, size_t size)
{
    uint64_t bytes;
    if (!nw_mul_u64(count, size, &bytes) || bytes > j->limits.memory_max || j->memory > j->limits.memory_max - bytes) {
        j->refused = REFUSED_BY_SCAN;
        return NULL;
    }
    void *p = nw_memory_alloc(j->mem, NW_TAG_INDEX, count, size);
    if (p == NULL) {
        j->refused = REFUSED_BY_MEMORY;
        j->refused_bytes = (size_t)bytes;
        return NULL;
    }
    j->memory += bytes;
    return p;
}

static void give(nw_json *j, void *p, size_t count, size_t size)
{
    if (p == NULL)
        return;
    NW_CHECK(j->memory >= (uint64_t)count * size);
    j->memory -= (uint64_t)count * size;
    nw_memory_free(j->mem, NW_TAG_INDEX, p, count, size);
}

/* The error for what take() refused. */
static nw_code fail_refused(nw_json *j, nw_error *err)
{
    NW_CHECK(j->refused != REFUSED_NOT);
    if (j->refused == REFUSED_BY_SCAN) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': takes more than %llu bytes of memory to read", j->name,
                       (unsigned long long)j->limits.memory_max);
    }
    return nw_memory_fail(j->mem, err, j->refused_bytes, j->name);
}

static void *block_alloc(void *ctx, size_t size)
{
    nw_json *j = ctx;
    block   *b = size <= SIZE_MAX - sizeof *b ? take(j, 1, sizeof *b + size) : NULL;
    if (b == NULL)
        longjmp(j->out_of_memory, 1);
    b->link.size = size;
    b->link.next = j->blocks;
    if (j->blocks != NULL)
        j->blocks->link.prev = b;
    j->blocks = b;
    return b + 1;
}

static void block_free(void *ctx, void *p)
{
    nw_json *j = ctx;
    if (p == NULL)
        return;
    block *b = (block *)p - 1;
    if (b->link.prev != NULL)
        b->link.prev->link.next = b->link.next;
    else
        j->blocks = b->link.next;
    if (b->link.next != NULL)
        b->link.next->link.prev = b->link.prev;
    give(j, b, 1, sizeof *b + b->link.size);
}

static void *block_realloc(void *ctx, void *p, size_t size)
{
    void *fresh = block_alloc(ctx, size);
    if (p != NULL) {
        memcpy(fresh, p, nw_min_size(size, ((block *)p - 1)->link.size));
        block_free(ctx, p);
    }
    return fresh;
}

/* -- checks -- */

/* Records the first failure of the scan, at the byte where yajl stands. Returns 0, which makes yajl stop. */
static int fail_here(nw_json *j, const char *problem)
{
    uint64_t at = j->fed + yajl_get_bytes_consumed(j->yajl);
    j->rc = nw_fail(j->err, NW_E_FORMAT, 0, "'%s': %s at byte %llu", j->name, problem, (unsigned long long)at);
    if (j->err != NULL)
        j->err->offset = at;
    return 0;
}

/* What is wrong with a decoded string; NULL: nothing. */
static const char *text_problem(const nw_json *j, const unsigned char *text, size_t len)
{
    if (len > j->limits.string_len_max)
        return "a string is too long";
    for (size_t i = 0; i < len;) {
        if (text[i] == '\0')
            return "a NUL character in a string";
        size_t step = nw_utf8_length_at(text + i, len - i);
        if (step == 0)
            return "invalid UTF-8";
        i += step;
    }
    return NULL;
}

/* One more byte at least that a string will have once decoded. As written it has at most six times as many (\u0041). */
static const char *raw_count(nw_json *j)
{
    return ++j->raw_len > j->limits.string_len_max ? "a string is too long" : NULL;
}

/* One UTF-16 unit of a \u escape is complete. */
static const char *raw_unit(nw_json *j)
{
    bool low = (j->unit & 0xfc00) == 0xdc00;
    if (j->half_open != low)
        return "a lone surrogate";
    j->half_open = (j->unit & 0xfc00) == 0xd800;
    return raw_count(j);
}

/* Takes the document's next byte as written; returns what is wrong with it, NULL if nothing. Text that is no JSON may
 * lead this astray, which does not matter: yajl refuses it. */
static const char *raw_step(nw_json *j, unsigned char c)
{
    if (j->raw == RAW_VALUE) {
        bool number = (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
        j->raw_len = number ? j->raw_len + 1 : 0;
        if (c == '"')
            j->raw = RAW_STRING;
        return j->raw_len > NUMBER_LEN_MAX ? "a number is too long" : NULL;
    }
    if (j->raw == RAW_HEX) {
        unsigned digit = c <= '9' ? c - (unsigned)'0' : (c | 0x20u) - 'a' + 10u;
        j->unit = (j->unit << 4 | (digit & 15)) & 0xffff;
        if (--j->hex_left > 0)
            return NULL;
        j->raw = RAW_STRING;
        return raw_unit(j);
    }
    if (j->raw == RAW_ESCAPE && c == 'u') {
        j->raw = RAW_HEX;
        j->hex_left = 4;
        j->unit = 0;
        return NULL;
    }
    if (j->raw == RAW_STRING && c == '\\') {
        j->raw = RAW_ESCAPE;
        return NULL;
    }
    if (j->half_open)
        return "a lone surrogate";
    if (j->raw == RAW_STRING && c == '"') {
        j->raw = RAW_VALUE;
        j->raw_len = 0;
        return NULL;
    }
    j->raw = RAW_STRING;
    return raw_count(j);
}

/* Doubles a full set. */
static bool keys_grow(nw_json *j, key_set *set)
{
    size_t    cap = set->cap > 0 ? set->cap * 2 : 16;
    uint64_t *slots = take(j, cap, sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < set->cap; i++) {
        if (set->slots[i] == 0)
            continue;
        size_t at = (size_t)set->slots[i] & (cap - 1);
        while (slots[at] != 0)
            at = (at + 1) & (cap - 1);
        slots[at] = set->slots[i];
    }
    give(j, set->slots, set->cap, sizeof *slots);
    set->slots = slots;
    set->cap = cap;
    return true;
}

/* Adds a hash; false if it is there already. There must be a free slot. */
static bool keys_add(key_set *set, uint64_t hash)
{
    NW_CHECK(set->used < set->cap);
    size_t at = (size_t)hash & (set->cap - 1);
    while (set->slots[at] != 0) {
        if (set->slots[at] == hash)
            return false;
        at = (at + 1) & (set->cap - 1);
    }
    set->slots[at] = hash;
    set->used++;
    return true;
}

static void keys_clear(nw_json *j, key_set *set)
{
    if (set->cap > KEY_SLOTS_KEPT) {
        give(j, set->slots, set->cap, sizeof *set->slots);
        *set = (key_set){0};
    } else if (set->used > 0) {
        memset(set->slots, 0, set->cap * sizeof *set->slots);
        set->used = 0;
    }
}

/* -- yajl's callbacks: 1 goes on, 0 stops -- */

static int emit(nw_json *j, nw_json_event *event)
{
    event->depth = j->depth;
    if (j->key_pending) {
        event->key = j->key_len > 0 ? j->key : ""; /* an empty name is a name: there may be no buffer yet */
        event->key_len = j->key_len;
        j->key_pending = false;
    }
    j->rc = j->fn(j->user, event, j->err);
    return j->rc == NW_OK;
}

static int on_null(void *ctx)
{
    return emit(ctx, &(nw_json_event){.type = NW_JSON_NULL});
}

static int on_boolean(void *ctx, int value)
{
    const char *text = value ? "true" : "false";
    return emit(ctx, &(nw_json_event){.type = NW_JSON_BOOL, .text = text, .text_len = strlen(text)});
}

static int on_number(void *ctx, const char *text, size_t len)
{
    return emit(ctx, &(nw_json_event){.type = NW_JSON_NUMBER, .text = text, .text_len = len});
}

static int on_string(void *ctx, const unsigned char *text, size_t len)
{
    nw_json    *j = ctx;
    const char *problem = text_problem(j, text, len);
    if (problem != NULL)
        return fail_here(j, problem);
    /* yajl may pass NULL for an empty string. */
    return emit(j,
                &(nw_json_event){.type = NW_JSON_STRING, .text = len > 0 ? (const char *)text : "", .text_len = len});
}

static int on_key(void *ctx, const unsigned char *text, size_t len)
{
    nw_json *j = ctx;
    NW_CHECK(j->depth > 0 && !j->key_pending);
    const char *problem = text_problem(j, text, len);
    if (problem != NULL)
        return fail_here(j, problem);

    key_set *set = &j->sets[j->depth - 1];
    uint64_t hash = XXH3_64bits_withSeed(len > 0 ? (const void *)text : "", len, j->seed);
    bool     full = set->used + 1 > set->cap - set->cap / 4;
    if (full && !keys_grow(j, set)) {
        j->rc = fail_refused(j, j->err);
        return 0;
    }
    if (!keys_add(set, hash != 0 ? hash : 1)) {
        char problem_text[160];
        int  shown = (int)nw_min_size(len, 100);
        while (shown > 0 && (size_t)shown < len && (text[shown] & 0xc0) == 0x80) /* not half a character */
            shown--;
        snprintf(problem_text, sizeof problem_text, "duplicate key '%.*s'", shown, (const char *)text);
        return fail_here(j, problem_text);
    }

    if (len > j->key_cap) {
        size_t cap = nw_max_size(len, nw_max_size(64, nw_min_size(j->key_cap * 2, j->limits.string_len_max)));
        give(j, j->key, j->key_cap, 1);
        j->key_cap = 0;
        j->key = take(j, cap, 1);
        if (j->key == NULL) {
            j->rc = fail_refused(j, j->err);
            return 0;
        }
        j->key_cap = cap;
    }
    if (len > 0)
        memcpy(j->key, text, len);
    j->key_len = len;
    j->key_pending = true;
    return 1;
}

static int begin(nw_json *j, nw_json_type type)
{
    if (j->depth == j->limits.depth_max)
        return fail_here(j, "nested too deeply");
    int on = emit(j, &(nw_json_event){.type = type});
    j->depth++;
    return on;
}

static int end(nw_json *j, nw_json_type type)
{
    NW_CHECK(j->depth > 0);
    j->depth--;
    keys_clear(j, &j->sets[j->depth]);
    return emit(j, &(nw_json_event){.type = type});
}

static int on_object(void *ctx)
{
    return begin(ctx, NW_JSON_OBJECT_BEGIN);
}
static int on_object_end(void *ctx)
{
    return end(ctx, NW_JSON_OBJECT_END);
}
static int on_array(void *ctx)
{
    return begin(ctx, NW_JSON_ARRAY_BEGIN);
}
static int on_array_end(void *ctx)
{
    return end(ctx, NW_JSON_ARRAY_END);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number, /* raw text: yajl's own integers and doubles are not used */
    .yajl_string = on_string,
    .yajl_start_map = on_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_object_end,
    .yajl_start_array = on_array,
    .yajl_end_array = on_array_end,
};

/* -- the scan -- */

/* The three calls that allocate through yajl, each with the way out for a refused allocation. They are functions of
 * their own, without local variables, so that the jump can spoil none. */
static bool yajl_open(nw_json *j)
{
    yajl_alloc_funcs functions = {.malloc = block_alloc, .realloc = block_realloc, .free = block_free, .ctx = j};
    if (setjmp(j->out_of_memory) != 0)
        return false;
    j->yajl = yajl_alloc(&callbacks, &functions, j);
    return true;
}

static yajl_status yajl_step(nw_json *j, const unsigned char *bytes, size_t len)
{
    if (setjmp(j->out_of_memory) != 0)
        return yajl_status_error;
    return bytes != NULL ? yajl_parse(j->yajl, bytes, len) : yajl_complete_parse(j->yajl);
}

static void yajl_problem(nw_json *j, char *ret_text, size_t cap)
{
    ret_text[0] = '\0';
    if (setjmp(j->out_of_memory) != 0)
        return;
    unsigned char *text = yajl_get_error(j->yajl, 0, NULL, 0);
    if (text == NULL)
        return;
    snprintf(ret_text, cap, "%.*s", (int)strcspn((const char *)text, "\n"), (const char *)text);
    yajl_free_error(j->yajl, text);
}

/* A seed that whoever wrote the document cannot know. */
static uint64_t fresh_seed(const void *place)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed)
        return seed;
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return XXH3_64bits_withSeed(&now, sizeof now, (uint64_t)(uintptr_t)place);
}

nw_code nw_json_open(nw_memory *mem, const char *name, const nw_json_limits *limits, nw_json_fn fn, void *user,
                     nw_json **ret_json, nw_error *err)
{
    NW_CHECK(fn != NULL);
    nw_json *j = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *j);
    if (j == NULL)
        return nw_memory_fail(mem, err, sizeof *j, name);
    j->mem = mem;
    j->name = name;
    j->fn = fn;
    j->user = user;
    if (limits != NULL)
        j->limits = *limits;
    if (j->limits.depth_max == 0)
        j->limits.depth_max = DEPTH_MAX;
    if (j->limits.memory_max == 0)
        j->limits.memory_max = MEMORY_MAX;
    if (j->limits.string_len_max == 0)
        j->limits.string_len_max = STRING_LEN_MAX;
    j->memory = sizeof *j;
    j->seed = fresh_seed(j);
    j->sets = take(j, j->limits.depth_max, sizeof *j->sets);
    if (j->sets == NULL || !yajl_open(j)) {
        nw_code rc = fail_refused(j, err);
        nw_json_close(j);
        return rc;
    }
    NW_CHECK(j->yajl != NULL);
    *ret_json = j;
    return NW_OK;
}

/* Runs yajl over the bytes; NULL: the end of the document. */
static nw_code run(nw_json *j, const unsigned char *bytes, size_t len, nw_error *err)
{
    j->err = err;
    yajl_status status = yajl_step(j, bytes, len);
    j->err = NULL;
    if (status == yajl_status_ok) {
        j->fed += len;
        return NW_OK;
    }
    if (j->rc == NW_OK && j->refused != REFUSED_NOT)
        j->rc = fail_refused(j, err);
    if (j->rc == NW_OK) {
        char     text[160];
        uint64_t at = j->fed + (bytes != NULL ? yajl_get_bytes_consumed(j->yajl) : 0);
        yajl_problem(j, text, sizeof text);
        j->rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': invalid JSON at byte %llu: %s", j->name, (unsigned long long)at,
                        bytes == NULL ? "it is cut short" : text);
        if (err != NULL)
            err->offset = at;
    }
    return j->rc;
}

nw_code nw_json_feed(nw_json *json, const void *bytes, size_t len, nw_error *err)
{
    NW_CHECK(json->rc == NW_OK);
    const unsigned char *p = bytes;
    const char          *problem = NULL;
    size_t               good = 0;
    while (good < len && problem == NULL) {
        problem = raw_step(json, p[good]);
        good += problem == NULL;
    }
    /* What comes before the problem is scanned first, so that the events do not depend on how the document was split.
     */
    nw_code rc = good > 0 ? run(json, p, good, err) : NW_OK;
    if (rc != NW_OK || problem == NULL)
        return rc;
    json->rc =
        nw_fail(err, NW_E_FORMAT, 0, "'%s': %s at byte %llu", json->name, problem, (unsigned long long)json->fed);
    if (err != NULL)
        err->offset = json->fed;
    return json->rc;
}

nw_code nw_json_finish(nw_json *json, nw_error *err)
{
    NW_CHECK(json->rc == NW_OK);
    return run(json, NULL, 0, err);
}

nw_json *nw_json_close(nw_json *json)
{
    if (json == NULL)
        return NULL;
    while (json->blocks != NULL)
        block_free(json, json->blocks + 1);
    for (uint32_t i = 0; json->sets != NULL && i < json->limits.depth_max; i++)
        give(json, json->sets[i].slots, json->sets[i].cap, sizeof *json->sets[i].slots);
    give(json, json->sets, json->limits.depth_max, sizeof *json->sets);
    give(json, json->key, json->key_cap, 1);
    NW_CHECK(json->memory == sizeof *json);
    nw_memory_free(json->mem, NW_TAG_INDEX, json, 1, sizeof *json);
    return NULL;
}

nw_code nw_json_scan(nw_memory *mem, const char *name, const void *bytes, size_t len, const nw_json_limits *limits,
                     nw_json_fn fn, void *user, nw_error *err)
{
    nw_json *json = NULL;
    nw_code  rc = nw_json_open(mem, name, limits, fn, user, &json, err);
    if (rc == NW_OK)
        rc = nw_json_feed(json, bytes, len, err);
    if (rc == NW_OK)
        rc = nw_json_finish(json, err);
    nw_json_close(json);
    return rc;
}

/* -- values -- */

static bool is(const char *text, size_t len, const char *wanted)
{
    return text != NULL && len == strlen(wanted) && memcmp(text, wanted, len) == 0;
}

bool nw_json_key_is(const nw_json_event *event, const char *key)
{
    return is(event->key, event->key_len, key);
}

bool nw_json_text_is(const nw_json_event *event, const char *text)
{
    return is(event->text, event->text_len, text);
}

bool nw_json_u64(const nw_json_event *event, uint64_t *ret)
{
    if (event->type != NW_JSON_NUMBER || event->text_len == 0)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < event->text_len; i++) {
        char c = event->text[i];
        if (c < '0' || c > '9' || !nw_mul_u64(value, 10, &value) || !nw_add_u64(value, (uint64_t)(c - '0'), &value))
            return false;
    }
    *ret = value;
    return true;
}

bool nw_json_f64(const nw_json_event *event, double *ret)
{
    if (event->type != NW_JSON_NUMBER || event->text_len == 0 || event->text_len > NUMBER_LEN_MAX)
        return false;
    /* strtod reads the decimal point of the process's locale, which is not ours to set. */
    const char *point = localeconv()->decimal_point;
    size_t      point_len = strlen(point);
    char        text[NUMBER_LEN_MAX + 16];
    size_t      len = 0;
    if (point_len == 0 || point_len > 8)
        return false;
    for (size_t i = 0; i < event->text_len; i++) {
        if (event->text[i] == '.') {
            memcpy(text + len, point, point_len);
            len += point_len;
        } else {
            text[len++] = event->text[i];
        }
    }
    text[len] = '\0';
    char  *stop = NULL;
    double value = strtod(text, &stop);
    if (stop != text + len || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

/* The JSON scanner. What it accepts, another parser accepts too; its events are well formed, keys differ within an
 * object, and neither events nor result depend on how the document was split over calls; stricter limits never accept
 * more. */
#include "base/json.h"
#include "fuzz.h"

#include <math.h>

#include <cjson/cJSON.h>

#define DEPTH_MAX 32u
#define KEYS_MAX 64u /* of one object, whose keys are compared */
#define NUMBER_MAX 60u /* longer ones do not fit cJSON's buffer */

/* One scan as it is seen from outside. */
typedef struct {
    uint64_t hash;
    uint32_t depth; /* open containers */
    bool     array[DEPTH_MAX + 1];
    uint64_t keys[DEPTH_MAX + 1][KEYS_MAX];
    uint32_t key_count[DEPTH_MAX + 1];
    bool     long_number;
} scan;

static void check_key(scan *s, const nw_json_event *e)
{
    uint32_t at = s->depth - 1;
    uint64_t hash = fuzz_hash(FUZZ_HASH, e->key, e->key_len);
    NW_CHECK(fuzz_utf8(e->key, e->key_len));
    NW_CHECK(memchr(e->key, 0, e->key_len) == NULL);
    for (uint32_t i = 0; i < s->key_count[at]; i++)
        NW_CHECK(s->keys[at][i] != hash);
    if (s->key_count[at] < KEYS_MAX)
        s->keys[at][s->key_count[at]++] = hash;
}

static void check_number(scan *s, const nw_json_event *e)
{
    uint64_t whole = 0;
    double   real = 0;
    bool     is_whole = nw_json_u64(e, &whole), is_real = nw_json_f64(e, &real);
    NW_CHECK(e->text_len > 0);
    NW_CHECK(!is_real || isfinite(real));
    if (is_whole) {
        NW_CHECK(is_real);
        NW_CHECK(real == (double)whole);
        NW_CHECK(memchr(e->text, '.', e->text_len) == NULL && memchr(e->text, '-', e->text_len) == NULL);
    }
    s->long_number = s->long_number || e->text_len > NUMBER_MAX;
}

static nw_code on_event(void *user, const nw_json_event *e, nw_error *err)
{
    scan *s = user;
    (void)err;
    bool ends = e->type == NW_JSON_OBJECT_END || e->type == NW_JSON_ARRAY_END;
    bool begins = e->type == NW_JSON_OBJECT_BEGIN || e->type == NW_JSON_ARRAY_BEGIN;
    if (ends) {
        NW_CHECK(s->depth > 0);
        s->depth--;
        NW_CHECK(s->array[s->depth] == (e->type == NW_JSON_ARRAY_END));
        NW_CHECK(e->key == NULL);
    }
    NW_CHECK(e->depth == s->depth);
    if (!ends && s->depth > 0) {
        NW_CHECK((e->key == NULL) == s->array[s->depth - 1]);
        if (e->key != NULL)
            check_key(s, e);
    }
    NW_CHECK((e->text != NULL) == (e->type <= NW_JSON_STRING && e->type != NW_JSON_NULL));
    if (e->type == NW_JSON_STRING) {
        NW_CHECK(fuzz_utf8(e->text, e->text_len));
        NW_CHECK(memchr(e->text, 0, e->text_len) == NULL);
    } else if (e->type == NW_JSON_NUMBER) {
        check_number(s, e);
    }
    if (begins) {
        NW_CHECK(s->depth < DEPTH_MAX);
        s->array[s->depth] = e->type == NW_JSON_ARRAY_BEGIN;
        s->key_count[s->depth] = 0;
        s->depth++;
    }
    uint64_t fields[] = {(uint64_t)e->type, e->depth, e->key_len, e->text_len};
    s->hash = fuzz_hash(s->hash, fields, sizeof fields);
    s->hash = fuzz_hash(s->hash, e->key, e->key != NULL ? e->key_len : 0);
    s->hash = fuzz_hash(s->hash, e->text, e->text != NULL ? e->text_len : 0);
    return NW_OK;
}

/* Scans in pieces of 1 to `step_max` bytes. */
static nw_code run(scan *s, const uint8_t *data, size_t size, size_t step_max, const nw_json_limits *limits)
{
    nw_memory mem;
    nw_error  err = {0};
    nw_json  *json = NULL;
    uint64_t  draw = fuzz_hash(FUZZ_HASH, data, size);
    *s = (scan){.hash = FUZZ_HASH};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_json_open(&mem, "input", limits, on_event, s, &json, &err);
    for (size_t at = 0, step; at < size && rc == NW_OK; at += step) {
        draw = fuzz_hash(draw, &at, sizeof at);
        step = nw_min_size(size - at, 1 + (size_t)((draw >> 32) % step_max));
        rc = nw_json_feed(json, data + at, step, &err);
    }
    if (rc == NW_OK)
        rc = nw_json_finish(json, &err);
    nw_json_close(json);
    NW_CHECK(rc == NW_OK || rc == NW_E_FORMAT || (limits != NULL && rc == NW_E_MEMORY));
    if (fuzz_ok(rc, &err))
        NW_CHECK(s->depth == 0);
    fuzz_memory_check(&mem, size);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nw_json_limits strict = {.depth_max = 3, .memory_max = 65536, .string_len_max = 12};
    static scan                 whole, split, tight;
    nw_code                     rc = run(&whole, data, size, SIZE_MAX, NULL);
    nw_code                     split_rc = run(&split, data, size, 7, NULL);
    NW_CHECK(split_rc == rc);
    NW_CHECK(split.hash == whole.hash);
    nw_code tight_rc = run(&tight, data, size, 7, &strict);
    NW_CHECK(tight_rc != NW_OK || rc == NW_OK);
    if (tight_rc == NW_OK)
        NW_CHECK(tight.hash == whole.hash);
    if (rc == NW_OK && !whole.long_number) {
        cJSON *other = cJSON_ParseWithLength((const char *)data, size);
        NW_CHECK(other != NULL);
        cJSON_Delete(other);
    }
    return 0;
}

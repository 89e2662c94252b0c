/* A strict, streaming scan of JSON that nobody trusts.
 *
 * yajl does the grammar; this adds what it lacks: duplicate keys, NUL in strings, lone surrogates, depth and number
 * checks, and a bound on memory, all of it accounted. There is no tree: the caller sees each value with its key as it
 * goes past.
 */
#ifndef NW_BASE_JSON_H
#define NW_BASE_JSON_H

#include "base/memory.h"

typedef enum {
    NW_JSON_NULL,
    NW_JSON_BOOL,
    NW_JSON_NUMBER,
    NW_JSON_STRING,
    NW_JSON_OBJECT_BEGIN,
    NW_JSON_OBJECT_END,
    NW_JSON_ARRAY_BEGIN,
    NW_JSON_ARRAY_END,
} nw_json_type;

/* One value. `key` and `text` are not NUL-terminated and live only during the call. */
typedef struct {
    nw_json_type type;
    uint32_t     depth;   /* 0: the document's own value; its members have depth 1. An END has its BEGIN's depth */
    const char  *key;     /* the member's name; NULL in an array, at depth 0, and for an END */
    size_t       key_len; /* bytes */
    const char  *text;    /* STRING: decoded UTF-8; NUMBER: as written; BOOL: "true" or "false"; otherwise NULL */
    size_t       text_len;
} nw_json_event;

/* Called for each value, in document order; an error stops the scan and is returned from it. */
typedef nw_code (*nw_json_fn)(void *user, const nw_json_event *event, nw_error *err);

typedef struct {
    uint32_t depth_max;      /* nested containers; 0 means 32 */
    uint64_t memory_max;     /* bytes that the scan itself may hold; 0 means 16 MiB */
    size_t   string_len_max; /* bytes of one key or string; 0 means 1 MiB */
} nw_json_limits;

typedef struct nw_json nw_json;

/* Starts a scan.
 *
 * name    what messages call the document: a path; borrowed until nw_json_close.
 * limits  NULL for the defaults.
 * Errors  NW_E_MEMORY, NW_E_BUDGET.
 */
NW_MUST_USE nw_code nw_json_open(nw_memory *mem, const char *name, const nw_json_limits *limits, nw_json_fn fn,
                                 void *user, nw_json **ret_json, nw_error *err);

/* Scans the next bytes. Any split of a document over calls gives the same events.
 * Errors  NW_E_FORMAT with the offset; what `fn` returned; NW_E_MEMORY or NW_E_BUDGET. After an error only close. */
NW_MUST_USE nw_code nw_json_feed(nw_json *json, const void *bytes, size_t len, nw_error *err);

/* Says that the document ends here; NW_E_FORMAT if it is not complete. */
NW_MUST_USE nw_code nw_json_finish(nw_json *json, nw_error *err);

/* Takes NULL; returns NULL. */
nw_json *nw_json_close(nw_json *json);

/* All of the above for a document in memory. */
NW_MUST_USE nw_code nw_json_scan(nw_memory *mem, const char *name, const void *bytes, size_t len,
                                 const nw_json_limits *limits, nw_json_fn fn, void *user, nw_error *err);

/* True if the event's key (or text) equals the string. */
bool nw_json_key_is(const nw_json_event *event, const char *key);
bool nw_json_text_is(const nw_json_event *event, const char *text);

/* The number as a non-negative integer or as a double; false if it is not one, or does not fit. "1e3" is no integer. */
bool nw_json_u64(const nw_json_event *event, uint64_t *ret);
bool nw_json_f64(const nw_json_event *event, double *ret);

#endif

/* The strict scan: what must be refused is, what must pass does, the same for every split, within its memory. */
#include "base/json.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* All events as text: one line each. */
typedef struct {
    char   text[4096];
    size_t len;
    size_t stop_at; /* the event that fails; 0: none */
    size_t count;
} record;

static nw_code on_event(void *user, const nw_json_event *e, nw_error *err)
{
    static const char *const names[] = {"null", "bool", "num", "str", "{", "}", "[", "]"};
    record                  *r = user;
    if (++r->count == r->stop_at)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "stopped here");
    int len = snprintf(r->text + r->len, sizeof r->text - r->len, "%u %.*s%s%s%s%.*s\n", e->depth, (int)e->key_len,
                       e->key != NULL ? e->key : "", e->key != NULL ? ":" : "", names[e->type],
                       e->text != NULL ? " " : "", (int)e->text_len, e->text != NULL ? e->text : "");
    if (len > 0 && (size_t)len < sizeof r->text - r->len)
        r->len += (size_t)len;
    return NW_OK;
}

/* Scans in pieces of `step` bytes (0: one piece). */
static nw_code scan(nw_memory *mem, const char *doc, size_t len, size_t step, const nw_json_limits *limits, record *r,
                    nw_error *err)
{
    nw_json *json = NULL;
    nw_code  rc = nw_json_open(mem, "doc.json", limits, on_event, r, &json, err);
    for (size_t at = 0; at < len && rc == NW_OK;) {
        size_t part = nw_min_size(step > 0 ? step : len, len - at);
        /* A copy of its own, so that a sanitizer sees a read past the piece, or of an earlier one. */
        char *piece = malloc(part);
        assert_non_null(piece);
        memcpy(piece, doc + at, part);
        rc = nw_json_feed(json, piece, part, err);
        free(piece);
        at += part;
    }
    if (rc == NW_OK)
        rc = nw_json_finish(json, err);
    nw_json_close(json);
    return rc;
}

static nw_code scan_once(const char *doc, size_t len, const nw_json_limits *limits, record *r, nw_error *err)
{
    nw_memory m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    *r = (record){0};
    nw_code rc = scan(&m, doc, len, 0, limits, r, err);
    assert_int_equal(m.live, 0);
    return rc;
}

#define TEXT(s) s, sizeof s - 1

static void test_events(void **state)
{
    (void)state;
    static const char doc[] =
        " {\"a\": [1, -2.5e3, true, null, {}], \"b\\u00e9\\\"\": \"x\\ud83d\\ude00\\n\", \"\": \"\","
        "\"c\": {\"d\": false, \"a\": []}}\n";
    static const char expected[] = "0 {\n1 a:[\n2 num 1\n2 num -2.5e3\n2 bool true\n2 null\n2 {\n2 }\n1 ]\n"
                                   "1 b\xc3\xa9\":str x\xf0\x9f\x98\x80\n\n1 :str \n1 c:{\n2 d:bool false\n2 a:[\n2 ]\n"
                                   "1 }\n0 }\n";
    nw_memory         m;
    nw_memory_init(&m, UINT64_MAX, NULL);
    for (size_t step = 0; step < sizeof doc; step++) {
        record   r = {0};
        nw_error err = {0};
        assert_int_equal(scan(&m, TEXT(doc), step, NULL, &r, &err), NW_OK);
        assert_string_equal(r.text, expected);
        assert_int_equal(m.live, 0);
    }
}

/* An empty name is one, also before any other key was seen. */
static void test_empty_key(void **state)
{
    (void)state;
    record   r;
    nw_error err = {0};
    assert_int_equal(scan_once(TEXT("{\"\":1}"), NULL, &r, &err), NW_OK);
    assert_string_equal(r.text, "0 {\n1 :num 1\n0 }\n");
}

static void test_accepted(void **state)
{
    (void)state;
    static const char *const docs[] = {
        "{}",
        "[]",
        "0",
        "-0",
        "1e3",
        "\"\"",
        "null",
        " true ",
        "\t\r\n[ ]\n",
        "[\"\\u0001\\/\\b\"]",
        "1E-2",
        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}", /* one key in three objects */
        "[\"\\uD834\\uDd1e\"]",
        "[\"\xf4\x8f\xbf\xbf\xee\x80\x80\"]",
    };
    for (size_t i = 0; i < sizeof docs / sizeof *docs; i++) {
        record   r;
        nw_error err = {0};
        if (scan_once(docs[i], strlen(docs[i]), NULL, &r, &err) != NW_OK)
            fail_msg("%s: %s", docs[i], err.msg);
    }
}

static const struct {
    const char *doc;
    size_t      len;
} refused[] = {
    {TEXT("")},
    {TEXT(" \n")},
    {TEXT("{")},
    {TEXT("[1,")},
    {TEXT("\"a")},
    {TEXT("tru")},
    {TEXT("{} {}")},
    {TEXT("[] x")},
    {TEXT("1 2")},
    {TEXT("{}\0")},
    {TEXT("{}\0\0\0\0")},
    {TEXT("\xef\xbb\xbf{}")},
    {TEXT("[NaN]")},
    {TEXT("[Infinity]")},
    {TEXT("[-]")},
    {TEXT("[01]")},
    {TEXT("[-01]")},
    {TEXT("007")},
    {TEXT("[1.]")},
    {TEXT("[.5]")},
    {TEXT("[+1]")},
    {TEXT("[1e]")},
    {TEXT("[0x10]")},
    {TEXT("[1,]")},
    {TEXT("{\"a\":1,}")},
    {TEXT("{a:1}")},
    {TEXT("{'a':1}")},
    {TEXT("[1] // c")},
    {TEXT("/* c */ [1]")},
    {TEXT("{\"a\"}")},
    {TEXT("{1:2}")},
    {TEXT("]")},
    {TEXT("[}")},
    {TEXT("{]")},
    {TEXT("[\"\n\"]")},
    {TEXT("[\"\\x\"]")},
    {TEXT("[\"\\u12g4\"]")},
    {TEXT("[\"\\u12")},
    /* NUL, written both ways */
    {TEXT("[\"a\\u0000b\"]")},
    {TEXT("[\"a\0b\"]")},
    {TEXT("{\"a\\u0000b\":1}")},
    /* surrogates */
    {TEXT("[\"\\ud800\"]")},
    {TEXT("[\"\\udc00\"]")},
    {TEXT("[\"\\ud800x\"]")},
    {TEXT("[\"\\ud800\\n\"]")},
    {TEXT("[\"\\ud800\\u0041\"]")},
    {TEXT("[\"\\ud800\\ud800\"]")},
    {TEXT("[\"\\udc00\\ud800\"]")},
    {TEXT("[\"\\ud83d\\ude00\\ude00\"]")},
    {TEXT("{\"\\ud800\":1}")},
    {TEXT("[\"\xed\xa0\x80\"]")},
    /* UTF-8: a lone continuation, overlong forms, beyond U+10FFFF, cut short */
    {TEXT("[\"\x80\"]")},
    {TEXT("[\"\xc0\xaf\"]")},
    {TEXT("[\"\xc1\xbf\"]")},
    {TEXT("[\"\xe0\x80\xaf\"]")},
    {TEXT("[\"\xf0\x80\x80\xaf\"]")},
    {TEXT("[\"\xf4\x90\x80\x80\"]")},
    {TEXT("[\"\xf8\x88\x80\x80\x80\"]")},
    {TEXT("[\"\xe2\x82\"]")},
    {TEXT("[\"\xff\"]")},
    {TEXT("\xff[]")},
    /* duplicates, also when written differently */
    {TEXT("{\"a\":1,\"a\":1}")},
    {TEXT("{\"a\":1,\"\\u0061\":2}")},
    {TEXT("{\"\":1,\"\":1}")},
    {TEXT("[{\"k\":{\"z\":0,\"y\":0,\"z\":0}}]")},
    {TEXT("{\"a\":{\"b\":1},\"c\":2,\"a\":3}")},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        for (size_t step = 0; step < 4; step++) {
            nw_memory m;
            record    r = {0};
            nw_error  err = {0};
            nw_memory_init(&m, UINT64_MAX, NULL);
            nw_code rc = scan(&m, refused[i].doc, refused[i].len, step, NULL, &r, &err);
            if (rc != NW_E_FORMAT || err.code != NW_E_FORMAT || strstr(err.msg, "'doc.json'") == NULL)
                fail_msg("%s: %d '%s'", refused[i].doc, (int)rc, err.msg);
            assert_null(strchr(err.msg, '\n'));
            assert_true(err.offset <= refused[i].len);
            assert_int_equal(m.live, 0);
        }
    }
}

static void test_messages(void **state)
{
    (void)state;
    record   r;
    nw_error err = {0};
    assert_int_equal(scan_once(TEXT("{\"aa\":1,\"b\":2,\"aa\":3}"), NULL, &r, &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "duplicate key 'aa'"));
    assert_string_equal(r.text, "0 {\n1 aa:num 1\n1 b:num 2\n"); /* what came before has gone past */
    assert_int_equal(scan_once(TEXT("[1, \"\\ud800\"]"), NULL, &r, &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "surrogate"));
    assert_int_equal(err.offset, 11);
    assert_string_equal(r.text, "0 [\n1 num 1\n");
    assert_int_equal(scan_once(TEXT("[1, "), NULL, &r, &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "cut short"));
}

/* The caller's own error stops the scan and comes back as it is. */
static void test_stop(void **state)
{
    (void)state;
    for (size_t at = 1; at <= 5; at++) {
        nw_memory m;
        nw_error  err = {0};
        record    r = {.stop_at = at};
        nw_memory_init(&m, UINT64_MAX, NULL);
        assert_int_equal(nw_json_scan(&m, "d", TEXT("{\"a\":[1],\"b\":1}"), NULL, on_event, &r, &err),
                         NW_E_UNSUPPORTED);
        assert_string_equal(err.msg, "stopped here");
        assert_int_equal(r.count, at);
        assert_int_equal(m.live, 0);
    }
}

static void test_depth(void **state)
{
    (void)state;
    char   doc[200];
    record r;
    for (uint32_t max = 1; max <= 64; max += 31) {
        nw_json_limits limits = {.depth_max = max};
        for (size_t over = 0; over < 2; over++) {
            size_t n = max + over;
            memset(doc, '[', n);
            memset(doc + n, ']', n);
            nw_error err = {0};
            assert_int_equal(scan_once(doc, 2 * n, &limits, &r, &err), over ? NW_E_FORMAT : NW_OK);
        }
    }
    /* A hundred thousand levels neither overflow a stack nor take memory. */
    size_t n = 100000;
    char  *deep = malloc(n);
    assert_non_null(deep);
    memset(deep, '[', n);
    nw_memory m;
    nw_error  err = {0};
    r = (record){0};
    nw_memory_init(&m, UINT64_MAX, NULL);
    assert_int_equal(scan(&m, deep, n, 0, NULL, &r, &err), NW_E_FORMAT);
    assert_true(m.peak < 65536);
    free(deep);
}

static void test_lengths(void **state)
{
    (void)state;
    char     doc[512];
    record   r;
    nw_error err = {0};
    for (size_t digits = 63; digits <= 65; digits++) {
        memset(doc, '1', digits);
        assert_int_equal(scan_once(doc, digits, NULL, &r, &err), digits <= 64 ? NW_OK : NW_E_FORMAT);
    }
    nw_json_limits limits = {.string_len_max = 10};
    assert_int_equal(scan_once(TEXT("\"0123456789\""), &limits, &r, &err), NW_OK);
    assert_int_equal(scan_once(TEXT("\"\\u0041\\u0041\\u0041\\u0041\\u0041\\u0041\\u0041\\u0041\\u0041\\u0041\""),
                               &limits, &r, &err),
                     NW_OK);
    assert_int_equal(scan_once(TEXT("\"0123456789a\""), &limits, &r, &err), NW_E_FORMAT);
    assert_int_equal(scan_once(TEXT("{\"0123456789a\":1}"), &limits, &r, &err), NW_E_FORMAT);
}

/* Hostile bulk in pieces: refused without ever taking more than the limit. */
static void test_memory_max(void **state)
{
    (void)state;
    static char    block[65536];
    nw_json_limits limits = {.memory_max = 1 << 20};
    for (int kind = 0; kind < 2; kind++) { /* an endless string, an endless list of keys */
        nw_memory m;
        nw_error  err = {0};
        record    r = {0};
        nw_json  *json = NULL;
        uint64_t  key = 0;
        nw_memory_init(&m, UINT64_MAX, NULL);
        assert_int_equal(nw_json_open(&m, "d", &limits, on_event, &r, &json, &err), NW_OK);
        nw_code rc = nw_json_feed(json, kind == 0 ? "\"" : "{\"first\":1", kind == 0 ? 1 : 10, &err);
        for (int i = 0; i < 4000 && rc == NW_OK; i++) {
            size_t len = 0;
            if (kind == 0) {
                memset(block, 'a', sizeof block);
                len = sizeof block;
            } else {
                while (len < sizeof block - 64)
                    len += (size_t)snprintf(block + len, 64, ",\"%llu\":1", (unsigned long long)key++);
            }
            rc = nw_json_feed(json, block, len, &err);
        }
        assert_int_equal(rc, NW_E_FORMAT);
        assert_true(m.peak <= limits.memory_max);
        assert_true(kind == 0 || key > 10000); /* not refused too early either */
        nw_json_close(json);
        assert_int_equal(m.live, 0);
    }
}

/* Many keys, none of them taken for another; then one that is there. */
static void test_many_keys(void **state)
{
    (void)state;
    size_t cap = 4 << 20, len = 1;
    char  *doc = malloc(cap);
    assert_non_null(doc);
    doc[0] = '{';
    for (int i = 0; i < 200000; i++)
        len += (size_t)snprintf(doc + len, 32, "%s\"k%d\":0", i > 0 ? "," : "", i);
    size_t   open_len = len;
    record   r;
    nw_error err = {0};
    doc[len++] = '}';
    assert_int_equal(scan_once(doc, len, NULL, &r, &err), NW_OK);
    len = open_len + (size_t)snprintf(doc + open_len, 32, ",\"k77777\":0}");
    assert_int_equal(scan_once(doc, len, NULL, &r, &err), NW_E_FORMAT);
    assert_non_null(strstr(err.msg, "'k77777'"));
    free(doc);
}

/* Every allocation fails once, yajl's own included: a clean error, nothing leaked. */
static void test_every_allocation(void **state)
{
    (void)state;
    static const char doc[] =
        "{\"abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz0123456789\":[[[[1]]]],"
        "\"e\":\"\\n\\u00e9 a longer text with an escape, so that it is decoded in a buffer\","
        "\"1\":1,\"2\":1,\"3\":1,\"4\":1,\"5\":1,\"6\":1,\"7\":1,\"8\":1,\"9\":1,\"10\":1,\"11\":1,"
        "\"12\":1,\"13\":1,\"14\":1,\"15\":1,\"16\":1,\"17\":1}";
    for (size_t step = 0; step < 14; step += 13) {
        for (uint64_t at = 1;; at++) {
            assert_true(at < 1000);
            nw_memory_fault fault = {.fail_at = at};
            nw_memory       m;
            nw_error        err = {0};
            record          r = {0};
            nw_memory_init(&m, UINT64_MAX, &fault);
            nw_code rc = scan(&m, TEXT(doc), step, NULL, &r, &err);
            assert_int_equal(m.live, 0);
            if (!fault.fired) {
                assert_int_equal(rc, NW_OK);
                assert_true(at > 8);
                break;
            }
            assert_int_equal(rc, NW_E_MEMORY);
            assert_int_equal(err.code, NW_E_MEMORY);
        }
    }
    nw_memory small;
    nw_error  err = {0};
    record    r = {0};
    nw_memory_init(&small, 2500, NULL);
    assert_int_equal(scan(&small, TEXT(doc), 0, NULL, &r, &err), NW_E_BUDGET);
    assert_int_equal(small.live, 0);
}

static nw_json_event number(const char *text)
{
    return (nw_json_event){.type = NW_JSON_NUMBER, .text = text, .text_len = strlen(text)};
}

static void test_numbers(void **state)
{
    (void)state;
    uint64_t      u = 7;
    double        d = 7;
    nw_json_event e = number("18446744073709551615");
    assert_true(nw_json_u64(&e, &u));
    assert_true(u == UINT64_MAX);
    static const char *const not_u64[] = {
        "18446744073709551616", "99999999999999999999", "-1", "-0", "1.0", "1e3", "1E3"};
    for (size_t i = 0; i < sizeof not_u64 / sizeof *not_u64; i++) {
        e = number(not_u64[i]);
        u = 7;
        assert_false(nw_json_u64(&e, &u));
        assert_int_equal(u, 7);
    }
    e = number("-2.5e-3");
    assert_true(nw_json_f64(&e, &d));
    assert_true(d == -2.5e-3);
    e = number("1e400");
    assert_false(nw_json_f64(&e, &d));
    e = number("9007199254740993");
    assert_true(nw_json_u64(&e, &u) && u == 9007199254740993u);
    e = (nw_json_event){.type = NW_JSON_STRING, .text = "12", .text_len = 2};
    assert_false(nw_json_u64(&e, &u));
    assert_false(nw_json_f64(&e, &d));
    /* A process may have a locale with a decimal comma (where one is installed). */
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "C"};
    for (size_t i = 0; i < sizeof commas / sizeof *commas && setlocale(LC_NUMERIC, commas[i]) == NULL; i++)
        ;
    e = number("1.5");
    assert_true(nw_json_f64(&e, &d));
    assert_true(d == 1.5);
    setlocale(LC_NUMERIC, "C");
}

static void test_compare(void **state)
{
    (void)state;
    nw_json_event e = {.key = "abcd", .key_len = 3, .text = "xyz", .text_len = 3};
    assert_true(nw_json_key_is(&e, "abc"));
    assert_false(nw_json_key_is(&e, "ab"));
    assert_false(nw_json_key_is(&e, "abcd"));
    assert_false(nw_json_key_is(&e, "Abc"));
    assert_true(nw_json_text_is(&e, "xyz"));
    e = (nw_json_event){0};
    assert_false(nw_json_key_is(&e, ""));
    assert_false(nw_json_text_is(&e, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),           cmocka_unit_test(test_accepted),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_messages),         cmocka_unit_test(test_stop),       cmocka_unit_test(test_depth),
        cmocka_unit_test(test_lengths),          cmocka_unit_test(test_memory_max), cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_every_allocation), cmocka_unit_test(test_numbers),    cmocka_unit_test(test_compare),
        cmocka_unit_test(test_empty_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

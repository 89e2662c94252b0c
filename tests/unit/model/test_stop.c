/* Stop strings against a search over the whole text, with the text cut into every kind of pieces. */
#include "model/stop.h"

#include "draws.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static nw_stop_strings strings_of(const char *const *list, size_t count)
{
    nw_stop_strings s = {.count = (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        s.lens[i] = (uint16_t)strlen(list[i]);
        memcpy(s.text[i], list[i], s.lens[i]);
    }
    return s;
}

static bool ends_with(const char *text, size_t len, const nw_stop_strings *s, size_t i)
{
    return len >= s->lens[i] && memcmp(text + len - s->lens[i], s->text[i], s->lens[i]) == 0;
}

/* What is shown of the text, and where it stops: bytes, the stop string included; SIZE_MAX: nowhere. */
static size_t simple_shown(const char *text, size_t len, const nw_stop_strings *s, size_t *ret_end)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < s->count; i++) {
            if (ends_with(text, end, s, i) && s->lens[i] > longest)
                longest = s->lens[i];
        }
        if (longest > 0) {
            *ret_end = end;
            return end - longest;
        }
    }
    *ret_end = SIZE_MAX;
    return len;
}

/* Bytes at the end of a text without a stop string that could begin one. */
static size_t simple_held(const char *text, size_t len, const nw_stop_strings *s)
{
    for (size_t n = len < NW_STOP_BYTES_MAX ? len : NW_STOP_BYTES_MAX; n > 0; n--) {
        for (size_t i = 0; i < s->count; i++) {
            if (n < s->lens[i] && memcmp(text + len - n, s->text[i], n) == 0)
                return n;
        }
    }
    return 0;
}

/* Feeds text in pieces of drawn lengths, and checks after each what may be shown: no more, and no less. */
static void check_text(const char *text, size_t len, const nw_stop_strings *s, size_t piece_max)
{
    nw_stop m;
    char    shown[2048];
    size_t  end, shown_len = 0, fed = 0, whole = simple_shown(text, len, s, &end);
    nw_stop_init(&m, s);
    while (fed < len) {
        size_t n = 1 + random_below(piece_max), got = 0;
        n = n < len - fed ? n : len - fed;
        bool stopped = nw_stop_feed(&m, text + fed, n, shown + shown_len, &got);
        fed += n;
        shown_len += got;
        assert_int_equal(stopped, end <= fed);
        assert_int_equal(shown_len, stopped ? whole : fed - simple_held(text, fed, s));
    }
    shown_len += nw_stop_end(&m, shown + shown_len);
    assert_int_equal(shown_len, whole);
    assert_memory_equal(shown, text, whole);
    if (end != SIZE_MAX) {
        assert_true(m.stopped);
        assert_int_equal(whole + s->lens[m.which], end);
    }
}

static void test_drawn_texts(void **state)
{
    (void)state;
    random_state = 3;
    size_t stopped = 0;
    for (size_t round = 0; round < 20000; round++) {
        nw_stop_strings s = {.count = (uint32_t)random_below(4)};
        size_t          letters = 2 + random_below(2), len = random_below(60), end;
        char            text[64];
        for (size_t i = 0; i < s.count; i++) {
            s.lens[i] = (uint16_t)(1 + random_below(7));
            for (size_t j = 0; j < s.lens[i]; j++)
                s.text[i][j] = (char)('a' + random_below(letters));
        }
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + random_below(letters));
        check_text(text, len, &s, 1 + random_below(9));
        simple_shown(text, len, &s, &end);
        stopped += end != SIZE_MAX;
    }
    assert_in_range(stopped, 1000, 19000);
}

static void test_words(void **state)
{
    (void)state;
    static const char *const list[] = {"\n\n", "</s>", "STOP", "ab", "xabc"};
    nw_stop_strings          s = strings_of(list, 5);
    static const char *const texts[] = {"one\n\ntwo", "a </sa </s>", "STSTOP",  "xabc", "xa", "ST",
                                        "",           "\n",          "STO\n\nP"};
    random_state = 4;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (size_t piece = 1; piece < 12; piece++)
            check_text(texts[i], strlen(texts[i]), &s, piece);
    }
}

/* The longest string that is allowed, of one letter: all of it is held back, all but one byte given back. */
static void test_longest(void **state)
{
    (void)state;
    nw_stop_strings s = {.count = NW_STOP_STRINGS_MAX};
    char            text[1024];
    for (size_t i = 0; i < NW_STOP_STRINGS_MAX; i++) {
        s.lens[i] = NW_STOP_BYTES_MAX;
        memset(s.text[i], 'a', NW_STOP_BYTES_MAX);
        s.text[i][NW_STOP_BYTES_MAX - 1] = (char)('b' + i);
    }
    memset(text, 'a', sizeof text);
    check_text(text, sizeof text, &s, 100);
    text[700] = 'd';
    check_text(text, sizeof text, &s, 100);
    text[100] = 'd';
    check_text(text, sizeof text, &s, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drawn_texts),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_longest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

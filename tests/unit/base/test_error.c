/* An error's message, and a line of the log, is one line of UTF-8 that moves no cursor, whatever its parts are and
 * wherever they are cut. */
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect(const char *part, const char *shown)
{
    nw_error err = {0};
    assert_int_equal(nw_fail(&err, NW_E_FORMAT, 0, "'%s' is bad", part), NW_E_FORMAT);
    char wanted[64] = "'";
    strncat(wanted, shown, 40);
    strncat(wanted, "' is bad", 10);
    assert_string_equal(err.msg, wanted);
}

static void test_replaced(void **state)
{
    (void)state;
    expect("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    expect("a\nb\rc\x1b[2Jd\x7f", "a?b?c?[2Jd?");
    expect("\xc2\x9b" "2J \xc2\xa0", "??2J \xc2\xa0"); /* a control that some terminals obey; a space that none does */
    expect("\xc3", "?");
    expect("\xe2\x82", "??");
    expect("\xff\xfe", "??");
    expect("\xc0\x9b", "??");         /* overlong */
    expect("\xed\xa0\x80", "???");    /* a surrogate */
    expect("\xf4\x90\x80\x80x", "????x"); /* beyond Unicode */
    expect("\xe9t\xe9", "?t?");       /* a path in Latin-1 */
}

/* Characters that a cut goes through: of a part, and of the whole message. */
static void test_cut(void **state)
{
    (void)state;
    nw_error err = {0};
    assert_int_equal(nw_fail(&err, NW_E_FORMAT, 0, "'%.3s'", "\xc3\xa9\xc3\xa9"), NW_E_FORMAT);
    assert_string_equal(err.msg, "'\xc3\xa9?'");
    char text[sizeof err.msg + 2];
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 2; shift++) {
        assert_int_equal(nw_fail(&err, NW_E_FORMAT, EIO, "%.*s%s", shift, "x", text), NW_E_FORMAT);
        size_t len = strlen(err.msg);
        assert_int_equal(len, sizeof err.msg - 1);
        assert_true(memcmp(err.msg + len - 2, shift == 0 ? "\xa9?" : "\xc3\xa9", 2) == 0);
    }
}

/* A caller that adds to the message it got. */
static void test_wrapped(void **state)
{
    (void)state;
    nw_error err = {0};
    assert_int_equal(nw_fail(&err, NW_E_IO, ENOENT, "open '%s'", "x"), NW_E_IO);
    assert_int_equal(nw_fail(&err, NW_E_FORMAT, 0, "model: %s", err.msg), NW_E_FORMAT);
    assert_string_equal(err.msg, "model: open 'x': No such file or directory");
    assert_int_equal(err.code, NW_E_FORMAT);
    assert_int_equal(err.os_errno, 0);
    assert_int_equal(nw_fail(NULL, NW_E_ARG, 0, "nobody asked"), NW_E_ARG);
}

static void keep_line(void *user, nw_log_level level, const char *line)
{
    assert_int_equal(level, NW_LOG_INFO);
    snprintf(user, 512, "%s", line);
}

static void test_log(void **state)
{
    (void)state;
    char   line[512] = "";
    nw_log log = {.fn = keep_line, .user = line, .level = NW_LOG_INFO};
    nw_log_line(&log, NW_LOG_INFO, "'%s' and '%.3s'", "a\nb\x1b[2J", "\xc3\xa9\xc3\xa9");
    assert_string_equal(line, "'a?b?[2J' and '\xc3\xa9?'");
    line[0] = '\0';
    nw_log_line(&log, NW_LOG_DEBUG, "not asked for");
    assert_string_equal(line, "");
    nw_log_line(NULL, NW_LOG_INFO, "nobody listens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_wrapped),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

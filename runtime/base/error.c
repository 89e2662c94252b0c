/* Filling an nw_error. The message is made of parts that may come from a hostile file (tensor names, paths), and long
 * ones are cut, so whatever could move a terminal's cursor, break the one-line promise or is no UTF-8 (half a character
 * at a cut, too) is replaced here, once, for every message of the project. */
#include "base/error.h"

#include "utf8_length.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void replace_unprintable(char *text)
{
    unsigned char *c = (unsigned char *)text;
    size_t         left = strlen(text);
    while (left > 0) {
        size_t len = nw_utf8_length_at(c, left);
        bool   control = *c < 0x20 || *c == 0x7f;
        bool   c1 = len == 2 && c[0] == 0xc2 && c[1] < 0xa0; /* U+0080 to U+009F, which some terminals obey too */
        if (len == 0 || control || c1) {
            len = len > 0 ? len : 1;
            memset(c, '?', len);
        }
        c += len;
        left -= len;
    }
}

nw_code nw_fail(nw_error *err, nw_code code, int os_errno, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    /* The arguments may point into err->msg: a caller that adds context to an error it got. */
    char    msg[sizeof err->msg];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(msg, sizeof msg, fmt, args);
    va_end(args);
    if (len < 0)
        len = 0;
    if (os_errno > 0 && (size_t)len < sizeof msg) {
        char text[128];
        /* The XSI strerror_r; a failure leaves the number, which is good enough. */
        if (strerror_r(os_errno, text, sizeof text) != 0)
            snprintf(text, sizeof text, "error %d", os_errno);
        snprintf(msg + len, sizeof msg - (size_t)len, ": %s", text);
    }
    replace_unprintable(msg);
    *err = (nw_error){.code = code, .os_errno = os_errno, .block = NW_BLOCK_NONE};
    memcpy(err->msg, msg, sizeof msg);
    return code;
}

/* Filling an nw_error. The message is made of parts that may come from a hostile file (tensor names, paths), and long
 * ones are cut, so whatever could move a terminal's cursor, break the one-line promise or is no UTF-8 (half a character
 * at a cut, too) is replaced here, once, for every message of the project. */
#include "base/error.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    nw_text_clean(msg);
    *err = (nw_error){.code = code, .os_errno = os_errno, .block = NW_BLOCK_NONE};
    memcpy(err->msg, msg, sizeof msg);
    return code;
}

/* Formats one log line and hands it to the sink. Like an error's message it may quote files, and is cleaned alike. */
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

void nw_log_line(const nw_log *log, nw_log_level level, const char *fmt, ...)
{
    if (log == NULL || log->fn == NULL || level > log->level)
        return;
    char    line[401];
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (len < 0)
        return;
    nw_text_clean(line);
    log->fn(log->user, level, line);
}

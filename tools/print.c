/* The two streams and the exit status. A failure to write stdout is remembered here, so that callers need only stop: a
 * full disk is an I/O error with its line, a closed pipe is a quiet end. */
#include "print.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "utf8_text.h"

static struct {
    bool quiet, color, terminal;
    bool progress_drawn;
    int  out_errno; /* of the first failed write to stdout; 0: none */
} out;

void print_setup(color_when color, bool quiet)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    out.quiet = quiet;
    out.terminal = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    out.color =
        color == COLOR_ALWAYS || (color == COLOR_AUTO && out.terminal && (no_color == NULL || no_color[0] == '\0'));
}

int exit_status(nw_code code)
{
    switch (code) {
    case NW_OK: return EXIT_DONE;
    case NW_E_ARG: return EXIT_USAGE;
    case NW_E_BUDGET: return EXIT_BUDGET;
    case NW_E_MEMORY: return EXIT_INTERNAL;
    case NW_E_IO: return EXIT_IO;
    case NW_E_FORMAT:
    case NW_E_UNSUPPORTED: return EXIT_MODEL;
    case NW_E_TOKENIZER: return EXIT_TOKENIZER;
    case NW_E_CANCELLED: return EXIT_INTERRUPTED;
    }
    return EXIT_INTERNAL;
}

static void replace_controls(char *text, char keep)
{
    for (char *c = text; *c != '\0'; c++) {
        if (((unsigned char)*c < 0x20 || *c == 0x7f) && *c != keep)
            *c = '?';
    }
}

static void print_line(const char *color, const char *fmt, va_list args)
{
    char line[1024];
    vsnprintf(line, sizeof line, fmt, args);
    replace_controls(line, '\0');
    print_progress_clear();
    if (out.color)
        fprintf(stderr, "%snarrows:\033[0m %s\n", color, line);
    else
        fprintf(stderr, "narrows: %s\n", line);
}

void print_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    print_line("\033[1;31m", fmt, args);
    va_end(args);
}

void print_note(const char *fmt, ...)
{
    if (out.quiet)
        return;
    va_list args;
    va_start(args, fmt);
    print_line("\033[2m", fmt, args);
    va_end(args);
}

int print_failure(const nw_error *err)
{
    print_error("%s", err->msg);
    return exit_status(err->code);
}

int print_text_failure(const nw_error *err)
{
    if (err->code != NW_E_TOKENIZER)
        return print_failure(err);
    print_error("%s (--tokenizer names another, --input-ids needs none)", err->msg);
    return exit_status(err->code);
}

static void log_line(void *user, nw_log_level level, const char *line)
{
    (void)user;
    (void)level;
    print_note("%s", line);
}

nw_log print_log(int verbose)
{
    nw_log_level level = verbose >= 2 ? NW_LOG_DEBUG : verbose == 1 ? NW_LOG_INFO : NW_LOG_WARN;
    return (nw_log){.fn = log_line, .level = level};
}

bool print_progress_possible(void)
{
    return out.terminal && !out.quiet;
}

void print_progress(const char *line)
{
    if (out.color)
        fprintf(stderr, "\r\033[2m%s\033[0m\033[K", line);
    else
        fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    out.progress_drawn = true;
}

void print_progress_clear(void)
{
    if (!out.progress_drawn)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    out.progress_drawn = false;
}

static bool wrote(bool ok)
{
    if (!ok && out.out_errno == 0)
        out.out_errno = errno != 0 ? errno : EIO;
    return out.out_errno == 0;
}

bool print_bytes(const char *bytes, size_t len)
{
    if (out.out_errno != 0)
        return false;
    errno = 0;
    return wrote(fwrite(bytes, 1, len, stdout) == len);
}

/* JSON is UTF-8, and a path is whatever bytes it is: what is no character becomes U+FFFD. */
static bool print_utf8(const char *text, size_t len)
{
    size_t bad;
    while ((bad = utf8_invalid_at(text, len)) != SIZE_MAX) {
        if (!print_bytes(text, bad) || !print_bytes("\xef\xbf\xbd", 3))
            return false;
        text += bad + 1;
        len -= bad + 1;
    }
    return print_bytes(text, len);
}

bool print_text(const char *fmt, ...)
{
    char    text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    replace_controls(text, '\n');
    return print_bytes(text, strlen(text));
}

bool print_line_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        bool ok = text[i] == '\n' ? print_bytes("\\n", 2) : print_bytes(&text[i], 1);
        if (!ok)
            return false;
    }
    return out.out_errno == 0;
}

bool print_json_text(const char *text, size_t len)
{
    size_t plain = 0; /* what needs no escape, up to i, begins here */
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        char          escape[8];
        int           escape_len = 0;
        if (c == '"' || c == '\\')
            escape_len = snprintf(escape, sizeof escape, "\\%c", c);
        else if (c == '\n')
            escape_len = snprintf(escape, sizeof escape, "\\n");
        else if (c < 0x20 || c == 0x7f)
            escape_len = snprintf(escape, sizeof escape, "\\u%04x", c);
        if (escape_len == 0)
            continue;
        if (!print_utf8(text + plain, i - plain) || !print_bytes(escape, (size_t)escape_len))
            return false;
        plain = i + 1;
    }
    return print_utf8(text + plain, len - plain);
}

bool print_json_number(double value)
{
    char text[32];
    if (!isfinite(value))
        return print_bytes("null", 4);
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) < value || strtod(text, NULL) > value)
        snprintf(text, sizeof text, "%.17g", value);
    return print_bytes(text, strlen(text));
}

bool print_json_numbers(const double *values, size_t count)
{
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++)
        ok = (i == 0 || print_bytes(", ", 2)) && print_json_number(values[i]);
    return ok;
}

bool print_json_float(float value)
{
    char text[32];
    if (!isfinite(value))
        return print_bytes("null", 4);
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        float back = strtof(text, NULL);
        if (!(back < value || back > value))
            break;
    }
    return print_bytes(text, strlen(text));
}

bool print_json(const cJSON *json, bool pretty)
{
    char *text = json == NULL ? NULL : pretty ? cJSON_Print(json) : cJSON_PrintUnformatted(json);
    if (text == NULL) {
        errno = ENOMEM;
        return wrote(false);
    }
    bool ok = print_utf8(text, strlen(text));
    cJSON_free(text);
    return ok;
}

bool print_flush(void)
{
    if (out.out_errno != 0)
        return false;
    errno = 0;
    return wrote(fflush(stdout) == 0 && !ferror(stdout));
}

void print_whole(void)
{
    static char buffer[64 << 10];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
}

int print_finish(int status)
{
    print_progress_clear();
    print_flush();
    if (out.out_errno == 0)
        return status;
    if (out.out_errno == EPIPE)
        return EXIT_PIPE;
    print_error("cannot write to standard output: %s", strerror(out.out_errno));
    return out.out_errno == ENOMEM ? EXIT_INTERNAL : EXIT_IO;
}

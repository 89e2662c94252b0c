/* Everything that leaves the program: answers on stdout, all else on stderr, and the exit status.
 *
 * stdout  written by the functions that return bool; the first failure sticks, says so once on stderr and decides the
 * status. stderr  whole lines "narrows: MESSAGE"; control characters become '?', because a message may quote a hostile
 * file. At most one progress line stands below them; it is cleared before any other line is written.
 */
#ifndef NW_TOOLS_PRINT_H
#define NW_TOOLS_PRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "narrows.h"

struct cJSON;

enum {
    EXIT_DONE = 0,
    EXIT_INTERNAL = 1,
    EXIT_USAGE = 2,
    EXIT_BUDGET = 3,
    EXIT_MODEL = 4,
    EXIT_IO = 5,
    EXIT_TOKENIZER = 6,
    EXIT_INTERRUPTED = 130,
    EXIT_PIPE = 141, /* as a shell names death by SIGPIPE */
};

typedef enum { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER } color_when;

/* Before the first line. quiet: print_note and progress say nothing. */
void print_setup(color_when color, bool quiet);

int exit_status(nw_code code);

void print_error(const char *fmt, ...) NW_PRINTF(1, 2);
void print_note(const char *fmt, ...) NW_PRINTF(1, 2); /* warnings and remarks; silenced by --quiet */

/* Prints the error's line and returns its exit status. */
int print_failure(const nw_error *err);

/* The same where a text was to become ids: what is wrong with a tokenizer comes with what can be done about it. */
int print_text_failure(const nw_error *err);

/* A log sink for the libraries: warnings, and with `verbose` 1 and 2 more. */
nw_log print_log(int verbose);

/* Draws or redraws the one line of progress (terminals only); clears it. */
bool print_progress_possible(void);
void print_progress(const char *line);
void print_progress_clear(void);

/* stdout. False: it cannot be written; stop working. */
bool print_bytes(const char *bytes, size_t len);
bool print_text(const char *fmt, ...) NW_PRINTF(1, 2);  /* control characters but newline become '?' */
bool print_line_text(const char *text, size_t len);     /* newlines written as "\n", so that it stays one line */
bool print_json_text(const char *text, size_t len);     /* inside of a JSON string, whole characters, without quotes */
bool print_json_number(double value);                   /* shortest that reads back; null if not finite */
bool print_json_numbers(const double *values, size_t count); /* the same, separated by commas */
bool print_json_float(float value);                     /* the same, read back as a float */
bool print_json(const struct cJSON *json, bool pretty); /* a whole document; NULL (out of memory) is a failure */
bool print_flush(void);

/* Before anything is printed: what others print to stdout (argp's help) is then written by print_flush, which sees an
 * error. */
void print_whole(void);

/* Flushes stdout and returns `status`, or what a failure to write makes of it. The last call of a command. */
int print_finish(int status);

#endif

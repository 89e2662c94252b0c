/* The log sink: how the libraries tell a person something that is not an error. They never print. */
#ifndef NW_BASE_LOG_H
#define NW_BASE_LOG_H

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* There is no error level: the code that a call returns is the report. */
typedef enum { NW_LOG_WARN, NW_LOG_INFO, NW_LOG_DEBUG } nw_log_level;

/* A sink. fn may be NULL: nothing is logged. `line` has no newline and lives only during the call.
 * Called on the thread that called into the library. */
typedef struct {
    void (*fn)(void *user, nw_log_level level, const char *line);
    void        *user;
    nw_log_level level; /* the most talkative level that is passed on */
} nw_log;

/* Formats and passes on one line of at most 400 bytes. `log` may be NULL. */
void nw_log_line(const nw_log *log, nw_log_level level, const char *fmt, ...) NW_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif

/* Errors as values: every call that can fail returns an nw_code and fills an nw_error that its caller owns.
 *
 * The code says what a caller can do about it; the struct says what happened, in fields for programs and in one line
 * for people. There is no thread-local state and no macro that returns.
 */
#ifndef NW_BASE_ERROR_H
#define NW_BASE_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    NW_OK = 0,
    NW_E_ARG,         /* a call's arguments: ids out of range, options that exclude each other, an empty prompt */
    NW_E_BUDGET,      /* the budget is too small; nw_error.bytes_needed says what would do */
    NW_E_MEMORY,      /* an allocation failed although the budget allows it */
    NW_E_IO,          /* the kernel refused or failed to open, read or write; os_errno says how */
    NW_E_FORMAT,      /* a file is not what it claims to be, or is cut short */
    NW_E_UNSUPPORTED, /* a well-formed file that this version cannot run */
    NW_E_TOKENIZER,   /* the tokenizer's files are missing or unusable */
    NW_E_CANCELLED,   /* the caller asked to stop */
} nw_code;

#define NW_BLOCK_NONE UINT32_MAX

/* What went wrong. Zero-initialise it; nw_fail() fills it. */
typedef struct {
    nw_code  code;
    int      os_errno;     /* 0: the kernel was not involved */
    uint32_t block;        /* T5 block that was being worked on, or NW_BLOCK_NONE */
    uint64_t offset;       /* bytes from the start of the file, 0 if no file was involved */
    uint64_t bytes_needed; /* NW_E_BUDGET: the smallest budget that works, in bytes; otherwise 0 */
    char     msg[512];     /* one line of UTF-8 for people, without a newline; names the file */
} nw_error;

#if defined(__GNUC__)
#define NW_MUST_USE __attribute__((warn_unused_result))
#define NW_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define NW_MUST_USE
#define NW_PRINTF(fmt, args)
#endif

/* Fills `err` and returns `code`, so that `return nw_fail(...)` and `rc = nw_fail(...)` read alike.
 *
 * os_errno   0, or an errno whose description is appended to the message.
 * err        may be NULL when the caller does not want the details.
 * Control characters that reach the message through file names or file contents are replaced by '?'.
 */
nw_code nw_fail(nw_error *err, nw_code code, int os_errno, const char *fmt, ...) NW_PRINTF(4, 5);

#ifdef __cplusplus
}
#endif
#endif

/* The options that commands share, in three groups that a command's argp names as children.
 *
 * glibc's argp reports a mistake in two or three lines and under a name of its own choosing. Here one mistake is one
 * line with a hint, so argp's own messages are off: parsers report by options_fail, and options_parse explains what
 * getopt refused.
 */
#ifndef NW_TOOLS_OPTIONS_H
#define NW_TOOLS_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "narrows.h"
#include "print.h"

typedef struct {
    const char *name; /* of the command: "narrows run" */

    const char *model, *config, *tokenizer;

    const char        *budget;  /* as written; NULL: auto */
    nw_session_options session; /* budget_bytes is set by options_budget */
    nw_machine_memory  memory;  /* what options_budget has found, for `auto` */

    bool       json, quiet, helped;
    int        verbose;
    color_when color;

    bool reported;    /* a mistake has had its line */
    int  error_index; /* argv index behind what was refused; 0: none */
} options;

/* Children for a command's argp. Their input is the options struct. */
extern const struct argp options_model_argp;   /* -m, --config, --tokenizer */
extern const struct argp options_session_argp; /* -b, -n, -t and what else makes a plan */
extern const struct argp options_budget_argp;  /* -b and --force, for commands whose memory does not depend on it */
extern const struct argp options_output_argp;  /* --json, -q, -v, --color, --help */

/* Reports a mistake on one line with a hint at --help; returns what an argp parser returns then. */
error_t options_fail(options *o, const char *fmt, ...) NW_PRINTF(2, 3);

/* Parses argv. Returns -1 to go on, or the exit status: after a mistake (reported), or after --help. */
int options_parse(const struct argp *argp, int argc, char **argv, options *o, void *input);

/* Resolves the budget into session.budget_bytes. Returns -1 to go on, or the exit status. */
int options_budget(options *o);

/* The same for a command that takes what it needs: without -b there is no budget (0), and one above what the machine
 * has is refused here, unless --force is given; sessions refuse it themselves. */
int options_copying_budget(options *o);

/* Opens the model that the options name, under session.budget_bytes; then says on stderr what `auto` chose. Returns -1
 * to go on, or the exit status. */
int options_open_model(const options *o, nw_model **ret_model);

/* A whole decimal number from min to max. */
bool options_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

#endif

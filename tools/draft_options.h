/* A small model that guesses for another one: --draft. */
#ifndef NW_TOOLS_DRAFT_OPTIONS_H
#define NW_TOOLS_DRAFT_OPTIONS_H

#include "options.h"

/* Zero-initialise it. */
typedef struct {
    nw_model   *model;
    nw_session *session;
} draft_model;

/* Opens the model, from its headers alone. Returns -1, or the exit status after printing what is wrong. */
int draft_open(draft_model *d, const char *path, const options *o);

/* Opens its session for one with these options, all resident if half of that one's budget is enough. Returns as above.
 */
int draft_start(draft_model *d, const nw_session_options *o);

void draft_stop(draft_model *d); /* the session alone; the other one must be closed */
void draft_close(draft_model *d);

#endif

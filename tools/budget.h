/* Budgets, as commands that run a session hold themselves to them. */
#ifndef NW_TOOLS_BUDGET_H
#define NW_TOOLS_BUDGET_H

#include "options.h"

/* The smallest budget for a session with these options; 0: unknown. */
uint64_t budget_smallest(nw_model *model, const nw_session_options *session);

/* Ends what a command did with its session (NULL: it came to none), -1 having gone well: `summary` in one line, if the
 * work was interrupted or --verbose asks for it; and the promise is checked: a peak above the budget is a fault of this
 * program, whatever else happened. Returns the exit status. The session stays open. */
int budget_end(const nw_session *session, const options *o, int status, void (*summary)(const nw_stats *stats));

#endif

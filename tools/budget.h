/* Budgets, as commands that run a session hold themselves to them. */
#ifndef NW_TOOLS_BUDGET_H
#define NW_TOOLS_BUDGET_H

#include "narrows.h"

/* The smallest budget for a session with these options; 0: unknown. */
uint64_t budget_smallest(nw_model *model, const nw_session_options *session);

/* The promise is checked on every run: a peak above the budget is a fault of this program, whatever else happened.
 * Returns `status`, or the exit status after printing what is wrong. */
int budget_check_peak(uint64_t budget_bytes, int status);

#endif

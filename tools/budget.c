#include "budget.h"

#include "print.h"

uint64_t budget_smallest(nw_model *model, const nw_session_options *session)
{
    nw_plan  plan = {0};
    nw_error ignored = {0};
    nw_code  rc = nw_plan_make(model, session, &plan, &ignored);
    return rc == NW_OK || rc == NW_E_BUDGET ? plan.smallest : 0;
}

/* Returns `status`, or the exit status after printing what is wrong. */
static int check_peak(uint64_t budget_bytes, int status)
{
#ifdef NW_SANITIZED
    const bool counts = false; /* a sanitizer's shadow memory is no part of any plan */
#else
    const bool counts = true;
#endif
    char     peak_text[16], budget_text[16];
    uint64_t peak = nw_process_peak();
    if (!counts || peak <= budget_bytes)
        return status;
    print_error("internal: peak %s over the budget %s", nw_bytes_format(peak, true, peak_text),
                nw_bytes_format(budget_bytes, false, budget_text));
    return EXIT_INTERNAL;
}

int budget_end(const nw_session *session, const options *o, int status, void (*summary)(const nw_stats *stats))
{
    if (session != NULL && (status == EXIT_INTERRUPTED || o->verbose > 0)) {
        nw_stats stats;
        nw_session_stats(session, &stats);
        summary(&stats);
    }
    status = status == -1 ? EXIT_DONE : status;
    return session != NULL ? check_peak(o->session.budget_bytes, status) : status;
}

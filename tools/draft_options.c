#include "draft_options.h"

int draft_open(draft_model *d, const char *path, const options *o)
{
    options its = *o;
    its.model = path;
    its.config = its.tokenizer = NULL;
    return options_open_model(&its, &d->model);
}

int draft_start(draft_model *d, const nw_session_options *o)
{
    nw_plan            plan = {0};
    nw_error           err = {0};
    nw_session_options its = {.budget_bytes = o->budget_bytes / 2,
                              .max_input_tokens = o->max_input_tokens,
                              .max_output_tokens = o->max_output_tokens,
                              .max_lanes = o->max_lanes,
                              .max_columns = o->max_columns,
                              .threads = o->threads,
                              .io = o->io,
                              .kv_in_memory = true,
                              .force = true, /* the other session's budget is what is checked */
                              .kernels = o->kernels,
                              .log = o->log};
    nw_code            rc = nw_plan_make(d->model, &its, &plan, &err);
    if (rc == NW_OK && plan.budget_all_resident < its.budget_bytes)
        its.budget_bytes = plan.budget_all_resident;
    if (rc == NW_OK)
        rc = nw_session_open(d->model, &its, &d->session, &err);
    if (rc == NW_OK)
        return -1;
    print_error("--draft: of half of the budget for it: %s", err.msg);
    return exit_status(rc);
}

void draft_stop(draft_model *d)
{
    d->session = nw_session_close(d->session);
}

void draft_close(draft_model *d)
{
    draft_stop(d);
    d->model = nw_model_close(d->model);
}

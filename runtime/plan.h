/* The plan: what of the budget goes where, which tiles stay, and what a run will read. Made before anything is read. */
#ifndef NW_RUNTIME_PLAN_H
#define NW_RUNTIME_PLAN_H

#include "layout.h"

typedef struct {
    nw_plan           plan;
    nw_shape          shape;
    unsigned          threads;
    const nw_kernels *kernels;
    nw_io_options     io;
    uint64_t         *pin_at;   /* [steps of shape.pinned]: offset in the region, or NW_NOT_PINNED */
    uint64_t         *embed_at; /* [nw_embed_tiles] likewise */
    size_t            pin_count, embed_count;
    uint64_t          pin_room;   /* bytes of the region that pins may take */
    uint32_t          read_ahead; /* tiles of the next pass that are read before it begins */
    bool              pins_mixed; /* pins of a pack may stay packed or not, as is faster */
} nw_blueprint;

/* Makes the plan.
 * unforeseen  resident bytes of the process beyond what is declared, as a session measured them; 0 for a plan alone.
 * Memory      pin_at and embed_at are from the model's account; nw_blueprint_free gives them back, also after an error.
 * Errors      NW_E_BUDGET: ret->plan is filled all the same, as for the smallest budget; NW_E_ARG; NW_E_MEMORY. */
NW_MUST_USE nw_code nw_blueprint_make(nw_model *m, const nw_session_options *o, uint64_t unforeseen, nw_blueprint *ret,
                                      nw_error *err);
void                nw_blueprint_free(nw_model *m, nw_blueprint *b);

#endif

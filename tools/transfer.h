/* What a long copy says of itself while it works: on a terminal one line that is redrawn, elsewhere one each half
 * minute.
 */
#ifndef NW_TOOLS_TRANSFER_H
#define NW_TOOLS_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double start, drawn;
    bool   quiet;
} transfer;

transfer transfer_start(bool quiet);
double   transfer_seconds(const transfer *t);

/* For on_progress of nw_model_unpack and nw_model_pack; `user` is a transfer. False after ^C. */
bool transfer_progress(void *user, uint64_t done, uint64_t total);

#endif

/* What pack, unpack and verify share: from where to where, and what a long copy says of itself while it works: on a
 * terminal one line that is redrawn, elsewhere one each half minute. */
#ifndef NW_TOOLS_TRANSFER_H
#define NW_TOOLS_TRANSFER_H

#include "options.h"

/* SRC, which is the common options' model, DST, and the size of its files. */
typedef struct {
    options     common;
    const char *dir;
    uint64_t    shard_bytes_max; /* 0: the default */
} transfer_options;

/* A child for the argp of a command that writes a model: SRC DST and --max-shard-size. Its input is a
 * transfer_options. */
extern const struct argp transfer_argp;

typedef struct {
    double start, drawn;
    bool   quiet;
} transfer;

transfer transfer_start(bool quiet);
double   transfer_seconds(const transfer *t);

/* For on_progress of nw_model_unpack, nw_model_pack and nw_pack_check; `user` is a transfer. False after ^C. */
bool transfer_progress(void *user, uint64_t done, uint64_t total);

/* Prints an object of results, "seconds" added, and frees it. */
void transfer_print_json(struct cJSON *json, const transfer *t);

/* The exit status of what ended with `rc`, after printing what is wrong. */
int transfer_status(nw_code rc, const nw_error *err);

#endif

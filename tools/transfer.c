#include "transfer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <time.h>

#include "interrupt.h"
#include "print.h"

enum { KEY_SHARD_SIZE = 1024 };

static const struct argp_option transfer_argp_options[] = {
    {0, 0, 0, 0, "What is written:", 2},
    {"max-shard-size", KEY_SHARD_SIZE, "SIZE", 0,
     "The most that one file holds (default 2GB, of 1000); a block is not split unless it alone is larger", 2},
    {0},
};

static error_t parse_transfer(int key, char *arg, struct argp_state *state)
{
    transfer_options *o = (transfer_options *)state->input;
    switch (key) {
    case KEY_SHARD_SIZE:
        if (!nw_bytes_parse(arg, &o->shard_bytes_max) || o->shard_bytes_max == 0)
            return options_fail(&o->common, "--max-shard-size: '%s' is not a size (like 2GB)", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->common.model == NULL)
            o->common.model = arg;
        else if (o->dir == NULL)
            o->dir = arg;
        else
            return options_fail(&o->common, "more than a source and a destination");
        return 0;
    case ARGP_KEY_END:
        if (o->dir == NULL)
            return options_fail(&o->common, o->common.model == NULL ? "SRC and DST are missing" : "DST is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp transfer_argp = {.options = transfer_argp_options, .parser = parse_transfer};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

transfer transfer_start(bool quiet)
{
    double now = now_seconds();
    return (transfer){.start = now, .drawn = now, .quiet = quiet};
}

double transfer_seconds(const transfer *t)
{
    return now_seconds() - t->start;
}

bool transfer_progress(void *user, uint64_t done, uint64_t total)
{
    transfer *t = (transfer *)user;
    double    now = now_seconds(), seconds = now - t->start;
    bool      terminal = print_progress_possible();
    if (interrupted())
        return false;
    if (t->quiet || done == 0 || done == total || seconds < 0.3 || now - t->drawn < (terminal ? 0.1 : 30))
        return true;
    char   line[128];
    double rate = (double)done / seconds;
    t->drawn = now;
    snprintf(line, sizeof line, "%.0f%%, %.0f MB/s, %.0f s left", 100 * (double)done / (double)total, rate / 1e6,
             (double)(total - done) / rate);
    if (terminal)
        print_progress(line);
    else
        print_note("%s", line);
    return true;
}

int transfer_status(nw_code rc, const nw_error *err)
{
    return rc == NW_OK ? EXIT_DONE : rc == NW_E_CANCELLED ? EXIT_INTERRUPTED : print_failure(err);
}

void transfer_print_json(cJSON *json, const transfer *t)
{
    cJSON_AddNumberToObject(json, "seconds", transfer_seconds(t));
    if (print_json(json, true))
        print_bytes("\n", 1);
    cJSON_Delete(json);
}

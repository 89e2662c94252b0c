#include "transfer.h"

#include <stdio.h>
#include <time.h>

#include "interrupt.h"
#include "print.h"

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

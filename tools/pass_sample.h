/* What `bench` measures: passes, one sample each, and what becomes of them. All times in seconds. */
#ifndef NW_TOOLS_PASS_SAMPLE_H
#define NW_TOOLS_PASS_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "narrows.h"

enum { MEASURE_MAX = 4096 }; /* samples */

/* Where a pass's time went. restore to idle add up to it; those of workers are divided by their number. */
typedef struct {
    double read; /* with a read in flight, beside all else */
    double restore, product, attention;
    double other;  /* norms, choosing tokens, submitting and reaping reads */
    double waited; /* for weights that were not there yet */
    double idle;   /* workers that wait for the last of a job */
} time_parts;

/* A pass that repeats, and what was measured beside it. */
typedef struct {
    double     seconds;
    double     read_only;   /* of a pass that only reads; 0: none was made */
    double     memory_rate; /* bytes a second; 0: nothing is resident */
    time_parts parts;
    uint64_t   bytes;    /* of weights that it read */
    uint64_t   kv_bytes; /* of K and V, from the scratch file */
} pass_sample;

typedef struct {
    double low, median, high; /* quartiles */
} spread;

/* From what a session says before and after something that took so long. */
time_parts measure_parts(const nw_times *before, const nw_times *after, double seconds, unsigned threads);

/* All of a pass: what it did, waited and was idle. */
double measure_whole(const time_parts *p);

/* What workers and session did, without waiting for the disk or for each other. */
double measure_work(const time_parts *p);

/* Quartiles of a number of each sample, at most MEASURE_MAX; zeros if there are none. */
spread measure_spread(const pass_sample *samples, size_t count, double (*field)(const pass_sample *sample));

/* The mean of all parts. */
time_parts measure_mean(const pass_sample *samples, size_t count);

#endif

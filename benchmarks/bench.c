#define _DEFAULT_SOURCE
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double nw_bench_seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double nw_bench_thread_seconds(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double nw_bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof values[0], compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void *nw_bench_map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

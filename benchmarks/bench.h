/* What benchmarks have in common: clocks, the median, and memory on huge pages. */
#ifndef NW_BENCHMARKS_BENCH_H
#define NW_BENCHMARKS_BENCH_H

#include <stddef.h>

/* Seconds of a clock that never goes back. */
double nw_bench_seconds(void);

/* Seconds that this thread has had a processor for: other processes count only by their traffic. */
double nw_bench_thread_seconds(void);

/* Of `count` values, which it sorts, the least first; the mean of the middle two of an even number; 0 of none. */
double nw_bench_median(double *values, size_t count);

/* Zeros, on huge pages if the system gives them; munmap it, or never. Ends the program when there is no memory. */
void *nw_bench_map(size_t bytes);

#endif

#include "pass_sample.h"

#include <stdlib.h>

time_parts measure_parts(const nw_times *before, const nw_times *after, double seconds, unsigned threads)
{
    double     team = after->team - before->team, norm = (after->norm - before->norm) / threads;
    time_parts p = {.read = after->read - before->read,
                    .restore = (after->restore - before->restore) / threads,
                    .product = (after->product - before->product) / threads,
                    .attention = (after->attention - before->attention) / threads,
                    .waited = after->waited - before->waited};
    p.other = norm + seconds - team - p.waited;
    p.idle = team - norm - p.restore - p.product - p.attention;
    return p;
}

double measure_work(const time_parts *p)
{
    return p->restore + p->product + p->attention + p->other;
}

double measure_whole(const time_parts *p)
{
    return measure_work(p) + p->waited + p->idle;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

spread measure_spread(const pass_sample *samples, size_t count, double (*field)(const pass_sample *sample))
{
    static double sorted[MEASURE_MAX];
    if (count == 0)
        return (spread){0};
    for (size_t i = 0; i < count; i++)
        sorted[i] = field(&samples[i]);
    qsort(sorted, count, sizeof sorted[0], compare);
    return (spread){.low = sorted[count / 4],
                    .median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2,
                    .high = sorted[count - 1 - count / 4]};
}

time_parts measure_mean(const pass_sample *samples, size_t count)
{
    time_parts sum = {0};
    double     n = count > 0 ? (double)count : 1;
    for (size_t i = 0; i < count; i++) {
        const time_parts *p = &samples[i].parts;
        sum.read += p->read / n;
        sum.restore += p->restore / n;
        sum.product += p->product / n;
        sum.attention += p->attention / n;
        sum.other += p->other / n;
        sum.waited += p->waited / n;
        sum.idle += p->idle / n;
    }
    return sum;
}

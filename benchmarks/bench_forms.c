/* How many weights a second the matrix product takes in from memory, by the form the weights are kept in.
 *
 *   bench_forms [VARIANT [K [THREADS [COLS]]]]     VARIANT as for bench_kernels (best), K elements in a row (2048),
 *                                                  THREADS (2), COLS columns (1)
 *
 * Working set: 512 Mi normally distributed weights, 1 GiB as plain bf16, in strips of at most 128 Ki weights on huge
 * pages if the system gives them; each thread has its share of the strips. The forms take turns, so that all of them
 * see the same minutes of a shared machine; figures are medians, and the last column the median of the ratios to the
 * plain product of the same turn. Time is processor time, so that other processes count only by their traffic; a rate
 * is the sum of the threads' own. Encoding and checking are one thread's. CSV on stdout. */
#define _DEFAULT_SOURCE
#include "base/quant.h"
#include "base/slim.h"
#include "bench.h"
#include "model/kernels.h"
#include "normal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WEIGHTS ((size_t)512 << 20)
#define STRIP_WEIGHTS ((size_t)131072)
#define TURNS 7
#define THREADS_MAX 64

enum { PLAIN, SLIM3, SLIM4, Q8, Q4, FORMS };
static const char *const form_names[FORMS] = {"bf16", "slim3", "slim4", "q8", "q4"};

typedef struct {
    const nw_kernels *kernels;
    size_t            k, rows, strips, threads, cols; /* rows of one strip */
    unsigned char    *w[FORMS];
    size_t           *at[FORMS]; /* where each strip begins, and where the last one ends */
    float            *x, *y;     /* y: one for each thread */
} bench;

typedef struct {
    const bench *b;
    size_t       form, thread;
    double       rate; /* weights a second */
} share;

static void product(const bench *b, size_t form, size_t strip, float *y)
{
    const unsigned char *w = b->w[form] + b->at[form][strip];
    if (form == PLAIN)
        b->kernels->matmul[NW_BF16](y, b->rows, b->x, b->k, b->cols, w, b->k, b->rows, b->k, NULL);
    else if (form == Q8 || form == Q4)
        b->kernels->matmul_q[form == Q8 ? NW_Q8 : NW_Q4](y, b->rows, b->x, b->k, b->cols, w, b->k, b->rows, b->k, NULL);
    else
        b->kernels->matmul_slim(y, b->rows, b->x, b->k, b->cols, w, 0, b->rows, b->k, NULL);
}

static void *work(void *argument)
{
    share       *s = argument;
    const bench *b = s->b;
    float       *y = b->y + s->thread * b->rows * NW_COLS_MAX;
    size_t       first = b->strips * s->thread / b->threads, end = b->strips * (s->thread + 1) / b->threads;
    double       start = nw_bench_thread_seconds();
    for (size_t strip = first; strip < end; strip++)
        product(b, s->form, strip, y);
    s->rate = (double)((end - first) * b->rows * b->k) / (nw_bench_thread_seconds() - start);
    return NULL;
}

/* Weights a second. */
static double product_rate(const bench *b, size_t form)
{
    pthread_t threads[THREADS_MAX];
    share     shares[THREADS_MAX];
    double    rate = 0;
    for (size_t t = 0; t < b->threads; t++) {
        shares[t] = (share){.b = b, .form = form, .thread = t};
        if (pthread_create(&threads[t], NULL, work, &shares[t]) != 0)
            exit(1);
    }
    for (size_t t = 0; t < b->threads; t++) {
        (void)pthread_join(threads[t], NULL);
        rate += shares[t].rate;
    }
    return rate;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* A few strips of different weights, over and over: memory cannot tell. */
static void fill_plain(bench *b)
{
    size_t     strip = b->rows * b->k, varied = nw_min_size(b->strips, 16);
    nw_memory  memory;
    nw_normal *normal;
    nw_memory_init(&memory, UINT64_MAX, NULL);
    if (nw_normal_open(&memory, &normal, NULL) != NW_OK)
        exit(1);
    nw_normal_set(normal, NW_BF16, false, 0, 0.03);
    nw_normal_fill(normal, nw_normal_key(1, "weights"), 0, varied * strip, b->w[PLAIN]);
    normal = nw_normal_close(normal);
    for (size_t s = varied; s < b->strips; s++)
        memcpy(b->w[PLAIN] + s * strip * 2, b->w[PLAIN] + s % varied * strip * 2, strip * 2);
}

static size_t encode(const bench *b, size_t form, size_t strip, unsigned char *dst, float *values)
{
    size_t      n = b->rows * b->k;
    const void *src = b->w[PLAIN] + b->at[PLAIN][strip];
    if (form == SLIM3 || form == SLIM4)
        return b->kernels->slim_encode(dst, n * 2, src, b->rows, b->k, form == SLIM3 ? 3 : 4);
    nw_quant q = form == Q8 ? NW_Q8 : NW_Q4;
    size_t   bytes = n / NW_QUANT_BLOCK * nw_quant_block_bytes(q);
    if (strip >= 16) {
        memcpy(dst, b->w[form] + b->at[form][strip % 16], bytes);
        return bytes;
    }
    b->kernels->widen[NW_BF16](values, src, n);
    return nw_quant_encode(q, dst, values, n) ? bytes : 0;
}

/* Every strip at a multiple of 64 bytes. Prints what encoding and checking took. */
static void fill_form(bench *b, size_t form)
{
    float  *values = nw_bench_map(b->rows * b->k * sizeof values[0]);
    size_t *sizes = nw_bench_map(b->strips * sizeof sizes[0]);
    memset(b->w[form], 0, WEIGHTS * 2);
    double start = nw_bench_thread_seconds();
    for (size_t s = 0; s < b->strips; s++) {
        size_t bytes = sizes[s] = encode(b, form, s, b->w[form] + b->at[form][s], values);
        if (bytes == 0) {
            fprintf(stderr, "bench_forms: a strip does not fit its form\n");
            exit(1);
        }
        b->at[form][s + 1] = b->at[form][s] + nw_round_up(bytes, 64);
    }
    double encoded = nw_bench_thread_seconds();
    double plain = (double)b->at[PLAIN][b->strips], bits = (double)b->at[form][b->strips] / plain * 16;
    if (form == Q8 || form == Q4) {
        printf("%s,%.2f bits a weight\n", form_names[form], bits);
        return;
    }
    bool good = true;
    for (size_t s = 0; s < b->strips; s++)
        good = nw_slim_check(b->w[form] + b->at[form][s], sizes[s], b->rows, b->k) && good;
    if (!good)
        exit(1);
    printf("%s,%.2f bits a weight,encoded at %.2f GB/s of bf16,checked at %.2f\n", form_names[form], bits,
           plain / (encoded - start) * 1e-9, plain / (nw_bench_thread_seconds() - encoded) * 1e-9);
    (void)munmap(values, b->rows * b->k * sizeof values[0]);
}

static void make(bench *b)
{
    b->rows = STRIP_WEIGHTS / b->k;
    b->strips = WEIGHTS / (b->rows * b->k);
    b->x = nw_bench_map(NW_COLS_MAX * b->k * sizeof(float));
    b->y = nw_bench_map(b->threads * b->rows * NW_COLS_MAX * sizeof(float));
    for (size_t i = 0; i < NW_COLS_MAX * b->k; i++)
        b->x[i] = (float)(i % 101) * 0.01f - 0.5f;
    for (size_t f = 0; f < FORMS; f++) {
        b->at[f] = nw_bench_map((b->strips + 1) * sizeof b->at[f][0]);
        b->w[f] = nw_bench_map(WEIGHTS * 2);
        if (f == PLAIN) {
            for (size_t s = 0; s <= b->strips; s++)
                b->at[f][s] = s * b->rows * b->k * 2;
            fill_plain(b);
        } else {
            fill_form(b, f);
        }
    }
}

static void measure(const bench *b)
{
    double rate[FORMS][TURNS], ratio[FORMS][TURNS], weights = (double)(b->strips * b->rows * b->k);
    for (size_t turn = 0; turn < TURNS; turn++) {
        for (size_t f = 0; f < FORMS; f++) {
            rate[f][turn] = product_rate(b, f) * 1e-9;
            ratio[f][turn] = rate[f][turn] / rate[PLAIN][turn];
        }
    }
    printf("kernels,k,threads,cols,form,gweights_s,gb_s_of_bytes,times_bf16\n");
    for (size_t f = 0; f < FORMS; f++) {
        double middle = nw_bench_median(rate[f], TURNS), bytes = (double)b->at[f][b->strips] / weights;
        printf("%s,%zu,%zu,%zu,%s,%.2f,%.2f,%.2f\n", b->kernels->name, b->k, b->threads, b->cols, form_names[f], middle,
               middle * bytes, nw_bench_median(ratio[f], TURNS));
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "best";
    bench       b = {.kernels = strcmp(name, "best") == 0 ? nw_kernels_best() : nw_kernels_named(name)};
    b.k = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2048;
    b.threads = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 2;
    b.cols = argc > 4 ? (size_t)strtoul(argv[4], NULL, 10) : 1;
    if (b.kernels == NULL || b.k < 32 || b.k > STRIP_WEIGHTS || b.k % 32 != 0 || b.threads < 1 ||
        b.threads > THREADS_MAX || b.cols < 1 || b.cols > NW_COLS_MAX) {
        fprintf(stderr, "usage: bench_forms [VARIANT|best [K [THREADS [COLS]]]], K a multiple of 32\n");
        return 2;
    }
    make(&b);
    measure(&b);
    return 0;
}

/* One big matrix product, as an encoder's long inputs have: y [cols, rows] = w [rows, k] times x [cols, k], f32, by
 * this project's kernels and, where it is installed, by OpenBLAS. The rate that encoding is held against.
 *
 *   bench_product [THREADS [COLS]]      CSV: by, threads, rows, k, cols, gflop_s (medians of alternating runs)
 */
#include "bench.h"
#include "model/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROWS = 5120, K = 2048, STRIP = 64, RUNS = 7, THREADS_MAX = 256 };

typedef struct {
    const nw_kernels *kernels;
    const float      *w, *x;
    float            *y;
    float            *room; /* room_floats for each worker */
    size_t            cols, room_floats;
    _Atomic size_t    next, worker; /* strip, worker */
} job;

typedef void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);

static void *work(void *user)
{
    job   *j = user;
    size_t strip, worker = atomic_fetch_add(&j->worker, 1);
    while ((strip = atomic_fetch_add(&j->next, 1)) < ROWS / STRIP)
        j->kernels->matmul[NW_F32](j->y + strip * STRIP, ROWS, j->x, K, j->cols, j->w + strip * STRIP * K, K, STRIP, K,
                                   j->room + worker * j->room_floats);
    return NULL;
}

/* The other library's threads look for more work for a while before they sleep: that is waited for. */
static double kernels_seconds(job *j, size_t threads)
{
    const struct timespec while_they_look = {.tv_nsec = 300000000};
    pthread_t             thread[THREADS_MAX];
    size_t                started = 0;
    (void)nanosleep(&while_they_look, NULL);
    double start = nw_bench_seconds();
    j->next = j->worker = 0;
    while (started + 1 < threads && pthread_create(&thread[started], NULL, work, j) == 0)
        started++;
    work(j);
    for (size_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return nw_bench_seconds() - start;
}

/* Row-major (101), x not transposed (111) times w transposed (112). */
static double blas_seconds(const job *j, sgemm multiply)
{
    double start = nw_bench_seconds();
    multiply(101, 111, 112, (int)j->cols, ROWS, K, 1, j->x, K, j->w, K, 0, j->y, ROWS);
    return nw_bench_seconds() - start;
}

/* A function of OpenBLAS; NULL: it is not installed. */
static void *find(void *library, const char *name)
{
    return library != NULL ? dlsym(library, name) : NULL;
}

static void print_row(const char *by, size_t threads, size_t cols, double *seconds)
{
    printf("%s,%zu,%d,%d,%zu,%.1f\n", by, threads, ROWS, K, cols,
           2e-9 * ROWS * K * (double)cols / nw_bench_median(seconds, RUNS));
}

int main(int argc, char **argv)
{
    size_t threads = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 1;
    job    j = {.kernels = nw_kernels_best(), .cols = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 512};
    if (threads < 1 || threads > THREADS_MAX || j.cols < 1 || j.cols > 1 << 16) {
        fprintf(stderr, "usage: bench_product [THREADS [COLS]]\n");
        return 2;
    }
    float *w = nw_bench_map(sizeof(float) * ROWS * K), *x = nw_bench_map(sizeof(float) * j.cols * K);
    j.w = w;
    j.x = x;
    j.y = nw_bench_map(sizeof(float) * ROWS * j.cols);
    j.room_floats = (nw_matmul_room(j.cols, K) + 15) / 16 * 16;
    j.room = nw_bench_map(sizeof(float) * threads * j.room_floats + 1); /* there may be none */
    for (size_t i = 0; i < (size_t)ROWS * K; i++)
        w[i] = (float)(i % 103) * 0.01f - 0.5f;
    for (size_t i = 0; i < j.cols * K; i++)
        x[i] = (float)(i % 101) * 0.01f - 0.5f;

    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    union {
        void *object;
        sgemm function;
        void (*set_threads)(int count);
    } multiply = {find(library, "cblas_sgemm")}, set = {find(library, "openblas_set_num_threads")};
    if (set.object != NULL)
        set.set_threads((int)threads);
    double ours[RUNS], theirs[RUNS];
    for (int i = -1; i < RUNS; i++) { /* the first is not counted: code, tables, threads */
        double a = kernels_seconds(&j, threads);
        double b = multiply.object != NULL ? blas_seconds(&j, multiply.function) : 0;
        if (i >= 0) {
            ours[i] = a;
            theirs[i] = b;
        }
    }
    printf("by,threads,rows,k,cols,gflop_s\n");
    print_row("kernels", threads, j.cols, ours);
    if (multiply.object != NULL)
        print_row("openblas", threads, j.cols, theirs);
    return 0;
}

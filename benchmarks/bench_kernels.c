/* How fast the matrix product is for 1 to 512 columns, beside what limits it.
 *
 *   bench_kernels [VARIANT [K [THREADS [DTYPE]]]]     VARIANT portable, avx2, avx512, avx512_vbmi2 or "best" (default);
 *                                                     K elements in a row (2048); THREADS (2); DTYPE bf16, f16, f32
 *
 * Limits, each by the same threads in the same turn: the rate at which the same weights are read, the rate of
 * independent fused multiply-adds in registers, and one big sgemm of OpenBLAS over f32 weights of the same shape
 * (looked for at run time: 0 where the library is not installed).
 *
 * Weights lie in strips of at most 128 Ki, as the forward pass multiplies them: 1 GiB of bf16 for up to 16 columns, far
 * beyond any cache; 2048 rows for more. Time is processor time, so that other processes count only by their traffic; a
 * rate is the sum of the threads' own. Medians of 5 turns. CSV on stdout. */
#define _DEFAULT_SOURCE
#include "bench.h"
#include "model/kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHTS ((size_t)512 << 20)
#define STRIP_WEIGHTS ((size_t)131072)
#define MATRIX_ROWS ((size_t)2048)
#define COLS_MAX ((size_t)512)
#define TURNS 5
#define THREADS_MAX 64

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);

typedef struct {
    const nw_kernels *kernels;
    nw_dtype          dtype;
    size_t            k, threads;
    unsigned char    *w;
    float            *x, *y, *room, *matrix; /* y, room: one for each thread; matrix: f32 weights for sgemm */
    sgemm_fn          sgemm;
} bench;

typedef struct share share;
typedef double (*measured)(const share *s); /* does its share; returns how much that was */

struct share {
    const bench *b;
    measured     fn;
    size_t       thread, cols;
    double       rate; /* a second of this thread */
};

/* ---- what is measured -------------------------------------------------------------------------------------------- */

static size_t strip_rows(const bench *b)
{
    return STRIP_WEIGHTS / b->k;
}

/* Strips of one pass: of all weights, or of one matrix. */
static size_t strips(const bench *b, size_t cols)
{
    size_t strip = strip_rows(b) * b->k;
    return cols <= 16 ? WEIGHTS / strip : MATRIX_ROWS * b->k / strip;
}

static float *share_y(const share *s)
{
    return s->b->y + s->thread * MATRIX_ROWS * COLS_MAX;
}

/* Of one thread, for as many columns as there are. */
static size_t room_floats(const bench *b)
{
    return (nw_matmul_room(COLS_MAX, b->k) + 15) / 16 * 16;
}

/* Weights. */
static double multiply(const share *s)
{
    const bench *b = s->b;
    size_t       rows = strip_rows(b), strip = rows * b->k, count = strips(b, s->cols);
    size_t       first = count * s->thread / b->threads, end = count * (s->thread + 1) / b->threads;
    for (size_t i = first; i < end; i++)
        b->kernels->matmul[b->dtype](share_y(s), rows, b->x, b->k, s->cols, b->w + i * strip * nw_dtype_bytes(b->dtype),
                                     b->k, rows, b->k, b->room + s->thread * room_floats(b));
    return (double)((end - first) * strip);
}

/* Vectors and eight sums, so that the loads and not the additions are what is measured. Weights. */
typedef uint64_t words __attribute__((vector_size(16)));

static double read_weights(const share *s)
{
    const bench *b = s->b;
    size_t       size = nw_dtype_bytes(b->dtype), count = WEIGHTS * size / sizeof(words) / b->threads / 8 * 8;
    const words *at = (const words *)(const void *)b->w + s->thread * count;
    words        sums[8] = {{0}};
    for (size_t i = 0; i < count; i += 8) {
        for (size_t j = 0; j < 8; j++)
            sums[j] += at[i + j];
    }
    for (size_t j = 1; j < 8; j++)
        sums[0] += sums[j];
    memcpy(share_y(s), &sums[0], sizeof sums[0]); /* keeps the reads from being optimised away */
    return (double)(count * sizeof(words) / size);
}

/* One thread's part of the rows. Floating-point operations. */
static double big_sgemm(const share *s)
{
    enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 };
    const bench *b = s->b;
    size_t       rows = MATRIX_ROWS / b->threads, first = rows * s->thread;
    b->sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, (int)s->cols, (int)rows, (int)b->k, 1, b->x, (int)b->k,
             b->matrix + first * b->k, (int)b->k, 0, share_y(s), (int)rows);
    return 2.0 * (double)(s->cols * rows * b->k);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define FMA_ROUNDS ((size_t)1 << 21)
#define FMA_STEP(vector, n) __asm__ volatile("vfmadd213ps %1, %1, %0" : "+v"(sum[n]) : "v"(half));
#define FMA_LOOP(vector, set, lanes)                                                                                   \
    vector half = set(0.5f), sum[12];                                                                                  \
    (void)s;                                                                                                           \
    for (size_t n = 0; n < 12; n++)                                                                                    \
        sum[n] = half;                                                                                                 \
    for (size_t i = 0; i < FMA_ROUNDS; i++) {                                                                          \
        FMA_STEP(vector, 0)                                                                                            \
        FMA_STEP(vector, 1) FMA_STEP(vector, 2) FMA_STEP(vector, 3) FMA_STEP(vector, 4) FMA_STEP(vector, 5)            \
            FMA_STEP(vector, 6) FMA_STEP(vector, 7) FMA_STEP(vector, 8) FMA_STEP(vector, 9) FMA_STEP(vector, 10)       \
                FMA_STEP(vector, 11)                                                                                   \
    }                                                                                                                  \
    return 2.0 * (lanes)*12 * (double)FMA_ROUNDS;

__attribute__((target("avx2,fma"))) static double fma_8(const share *s)
{
    FMA_LOOP(__m256, _mm256_set1_ps, 8)
}
__attribute__((target("avx512f"))) static double fma_16(const share *s)
{
    FMA_LOOP(__m512, _mm512_set1_ps, 16)
}

static measured fused(const nw_kernels *kernels)
{
    return strncmp(kernels->name, "avx512", 6) == 0 ? fma_16 : strcmp(kernels->name, "avx2") == 0 ? fma_8 : NULL;
}
#else
static measured fused(const nw_kernels *kernels)
{
    (void)kernels;
    return NULL;
}
#endif

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void *work(void *argument)
{
    share *s = argument;
    double start = nw_bench_thread_seconds(), amount = s->fn(s);
    s->rate = amount / (nw_bench_thread_seconds() - start);
    return NULL;
}

/* The threads' rates together; 0 of nothing. */
static double rate_of(const bench *b, measured fn, size_t cols)
{
    pthread_t threads[THREADS_MAX];
    share     shares[THREADS_MAX];
    double    rate = 0;
    if (fn == NULL)
        return 0;
    for (size_t t = 0; t < b->threads; t++) {
        shares[t] = (share){.b = b, .fn = fn, .thread = t, .cols = cols};
        if (pthread_create(&threads[t], NULL, work, &shares[t]) != 0)
            exit(1);
    }
    for (size_t t = 0; t < b->threads; t++) {
        (void)pthread_join(threads[t], NULL);
        rate += shares[t].rate;
    }
    return rate;
}

static void measure(const bench *b, size_t cols)
{
    double product[TURNS], plain[TURNS], limit[TURNS], blas[TURNS], ratio[TURNS];
    (void)rate_of(b, multiply, cols); /* warm: code, x, page tables */
    for (size_t t = 0; t < TURNS; t++) {
        product[t] = rate_of(b, multiply, cols) * 1e-9;
        plain[t] = cols <= 16 ? rate_of(b, read_weights, cols) * 1e-9 : 0;
        limit[t] = rate_of(b, fused(b->kernels), cols) * 1e-9;
        blas[t] = b->sgemm != NULL ? rate_of(b, big_sgemm, cols) * 1e-9 : 0;
        ratio[t] = blas[t] > 0 ? product[t] * 2 * (double)cols / blas[t] : 0;
    }
    double size = (double)nw_dtype_bytes(b->dtype), taken = nw_bench_median(product, TURNS);
    printf("%s,%s,%zu,%zu,%zu,%.1f,%.2f,%.2f,%.1f,%.1f,%.1f,%.2f\n", b->kernels->name, nw_dtype_name(b->dtype), b->k,
           b->threads, cols, (double)WEIGHTS * 1e-6 / taken, taken * size, nw_bench_median(plain, TURNS) * size,
           taken * 2 * (double)cols, nw_bench_median(limit, TURNS), nw_bench_median(blas, TURNS),
           nw_bench_median(ratio, TURNS));
    fflush(stdout);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Small finite weights; a few strips over and over: memory cannot tell. Every byte is written, so every page is real.
 */
static void make(bench *b)
{
    size_t   size = nw_dtype_bytes(b->dtype), varied = 16 * STRIP_WEIGHTS;
    uint32_t state = 1;
    b->w = nw_bench_map(WEIGHTS * size);
    b->x = nw_bench_map(COLS_MAX * b->k * sizeof(float));
    b->y = nw_bench_map(b->threads * MATRIX_ROWS * COLS_MAX * sizeof(float));
    b->room = nw_bench_map(b->threads * room_floats(b) * sizeof(float));
    b->matrix = nw_bench_map(MATRIX_ROWS * b->k * sizeof(float));
    for (size_t i = 0; i < varied; i++) {
        state = state * 1664525u + 1013904223u;
        nw_dtype_from_f32(b->dtype, (float)(int32_t)state * 0x1p-36f, b->w + i * size);
    }
    for (size_t i = varied; i < WEIGHTS; i += varied)
        memcpy(b->w + i * size, b->w, varied * size);
    for (size_t i = 0; i < COLS_MAX * b->k; i++)
        b->x[i] = (float)(i % 101) * 0.01f - 0.5f;
    for (size_t i = 0; i < MATRIX_ROWS * b->k; i++)
        b->matrix[i] = (float)(i % 97) * 0.001f - 0.05f;
}

/* The compiler has no cast from an object's address to a function's, so the bits are copied. */
static void find_sgemm(bench *b)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void *sgemm = library != NULL ? dlsym(library, "cblas_sgemm") : NULL;
    void *set_threads = library != NULL ? dlsym(library, "openblas_set_num_threads") : NULL;
    void (*set)(int);
    if (sgemm == NULL || set_threads == NULL)
        return;
    memcpy(&b->sgemm, &sgemm, sizeof sgemm);
    memcpy(&set, &set_threads, sizeof set);
    set(1); /* each of our threads calls it for its own rows */
}

static bool parse(bench *b, int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "best", *dtype = argc > 4 ? argv[4] : "bf16";
    b->kernels = strcmp(name, "best") == 0 ? nw_kernels_best() : nw_kernels_named(name);
    b->k = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2048;
    b->threads = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 2;
    b->dtype = NW_DTYPE_COUNT;
    for (nw_dtype d = NW_F32; d < NW_DTYPE_COUNT; d++) {
        if (strcmp(dtype, nw_dtype_name(d)) == 0)
            b->dtype = d;
    }
    return b->kernels != NULL && b->k >= 1 && b->k <= STRIP_WEIGHTS && b->threads >= 1 && b->threads <= THREADS_MAX &&
           b->dtype != NW_DTYPE_COUNT;
}

int main(int argc, char **argv)
{
    static const size_t cols[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 128, 512};
    bench               b = {.sgemm = NULL};
    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "usage: bench_kernels [VARIANT|best [K [THREADS [bf16|f16|f32]]]]\n");
        return 2;
    }
    make(&b);
    find_sgemm(&b);
    printf(
        "kernels,dtype,k,threads,cols,ms_per_gib_of_bf16,weights_gb_s,read_gb_s,gflop_s,fma_gflop_s,sgemm_gflop_s,of_"
        "sgemm\n");
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++)
        measure(&b, cols[c]);
    return 0;
}

/* How fast the matrix product takes in weights, one thread, beside the plain read rate of the same memory.
 *
 *   bench_kernels [VARIANT [K]]     VARIANT portable, avx2, avx512 or "best" (default); K elements in a row (2048)
 *
 * Working set: 256 MiB of weights (far beyond any cache), multiplied tile by tile of 2 MiB as the forward pass does, on
 * huge pages if the system gives them. Each figure is the median of 5 runs; the read rate is measured right before each
 * product, because the memory of a shared machine is not equally fast at all times. CSV on stdout. */
#include "bench.h"
#include "model/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_BYTES ((size_t)256 << 20)
#define TILE_BYTES ((size_t)2 << 20)
#define RUNS 5

/* Small finite weights of the type; every byte is written, so that every page is real. */
static void fill_weights(nw_dtype d, void *w)
{
    size_t   size = nw_dtype_bytes(d);
    uint32_t state = 1;
    for (size_t i = 0; i < WEIGHT_BYTES / size; i++) {
        state = state * 1664525u + 1013904223u;
        nw_dtype_from_f32(d, (float)(int32_t)state * 0x1p-36f, (unsigned char *)w + i * size);
    }
}

/* Vectors and eight sums, so that the loads and not the additions are what is measured, whatever the compiler's flags.
 */
typedef uint64_t words __attribute__((vector_size(16)));

static double read_seconds(const words *at, uint64_t *sink)
{
    words  sums[8] = {{0}};
    double start = nw_bench_seconds();
    for (size_t i = 0; i < WEIGHT_BYTES / sizeof at[0]; i += 8) {
        for (size_t s = 0; s < 8; s++)
            sums[s] += at[i + s];
    }
    double end = nw_bench_seconds();
    for (size_t s = 0; s < 8; s++)
        *sink += sums[s][0] + sums[s][1];
    return end - start;
}

typedef struct {
    const nw_kernels *kernels;
    void             *w;
    float            *x, *y;
    size_t            k;
} bench;

static double product_seconds(const bench *b, nw_dtype d, size_t cols)
{
    size_t row_bytes = b->k * nw_dtype_bytes(d);
    size_t rows = TILE_BYTES / row_bytes;
    double start = nw_bench_seconds();
    for (size_t at = 0; at + rows * row_bytes <= WEIGHT_BYTES; at += TILE_BYTES)
        b->kernels->matmul[d](b->y, rows, b->x, b->k, cols, (const unsigned char *)b->w + at, b->k, rows, b->k);
    return nw_bench_seconds() - start;
}

static void measure(const bench *b, nw_dtype d, size_t cols, uint64_t *sink)
{
    double product[RUNS], plain[RUNS];
    (void)product_seconds(b, d, cols); /* warm: code, x, page tables */
    for (size_t r = 0; r < RUNS; r++) {
        plain[r] = read_seconds((const words *)b->w, sink);
        product[r] = product_seconds(b, d, cols);
    }
    size_t row_bytes = b->k * nw_dtype_bytes(d);
    double bytes = (double)(WEIGHT_BYTES / TILE_BYTES * (TILE_BYTES / row_bytes * row_bytes));
    double taken = nw_bench_median(product, RUNS);
    double flops = 2.0 * bytes / (double)nw_dtype_bytes(d) * (double)cols;
    printf("%s,%s,%zu,%zu,%.2f,%.2f,%.1f\n", b->kernels->name, nw_dtype_name(d), b->k, cols, bytes / taken * 1e-9,
           (double)WEIGHT_BYTES / nw_bench_median(plain, RUNS) * 1e-9, flops / taken * 1e-9);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "best";
    size_t      k = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2048;
    bench       b = {.kernels = strcmp(name, "best") == 0 ? nw_kernels_best() : nw_kernels_named(name), .k = k};
    if (b.kernels == NULL || k < 1 || k * 4 > TILE_BYTES) {
        fprintf(stderr,
                "usage: bench_kernels [portable|avx2|avx512|best [K]], a variant that this CPU runs, K 1..%zu\n",
                TILE_BYTES / 4);
        return 2;
    }
    b.w = nw_bench_map(WEIGHT_BYTES);
    b.x = nw_bench_map(NW_COLS_MAX * k * sizeof(float));
    b.y = nw_bench_map(NW_COLS_MAX * TILE_BYTES);
    for (size_t i = 0; i < NW_COLS_MAX * k; i++)
        b.x[i] = (float)(i % 101) * 0.01f - 0.5f;

    uint64_t              sink = 0;
    static const nw_dtype dtypes[] = {NW_BF16, NW_F32, NW_F16};
    static const size_t   cols[] = {1, 2, 4, 8, 16};
    printf("kernels,dtype,k,cols,weights_gb_s,read_gb_s,gflop_s\n");
    for (size_t d = 0; d < 3; d++) {
        fill_weights(dtypes[d], b.w);
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++)
            measure(&b, dtypes[d], cols[c], &sink);
    }
    fprintf(stderr, "checksum of the reads %016" PRIx64 "\n", sink); /* keeps them from being optimised away */
    return 0;
}

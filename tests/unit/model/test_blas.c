/* The BLAS that is linked must bear being called by several threads at once: Debian's single-threaded build does not
 * (its buffers have no locks), and gave wrong products in about one call of 250. */
#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 33, COLS = 40, K = 256, THREADS = 4, CALLS = 20000 };

static float x[ROWS * K], w[COLS * K], want[ROWS * COLS];

static void multiply(float *out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROWS, COLS, K, 1.0f, x, K, w, K, 0.0f, out, COLS);
}

static void *repeat(void *bad)
{
    float out[ROWS * COLS];
    for (int i = 0; i < CALLS; i++) {
        multiply(out);
        if (memcmp(out, want, sizeof out) != 0)
            ++*(long *)bad;
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    long      bad[THREADS] = {0}, total = 0;
    openblas_set_num_threads(1);
    srand(1);
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < COLS * K; i++)
        w[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    multiply(want);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, repeat, &bad[i]) != 0)
            return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += bad[i];
    }
    printf("%ld of %d products wrong\n", total, THREADS * CALLS);
    return total == 0 ? 0 : 1;
}

/* From scores to a draw. Sorting a vocabulary of 250,000 for each token would cost more than some models' whole head,
 * so nothing is sorted that need not be: top_k is a heap of k values, top_p takes from a heap over all ids as many as
 * the probability asks for. Both give what the reference's sort gives, equal scores included. */
#include "model/sampling.h"

#include <math.h>
#include <string.h>

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Philox4x32-10: constants and rounds of the paper, table 2; Random123's philox.h. */
void nw_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(ret, c, sizeof c);
}

double nw_draw_uniform(uint64_t seed, uint64_t sample, uint64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)sample, (uint32_t)(sample >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t bits[4];
    nw_philox4x32(counter, key, bits);
    return (double)(((uint64_t)bits[1] << 32 | bits[0]) >> 11) * 0x1p-53;
}

/* ---- warping ----------------------------------------------------------------------------------------------------- */

void nw_warp_layout(nw_warp_scratch *w, nw_arena *a, size_t vocab)
{
    w->vocab = vocab;
    w->values = nw_carve(a, vocab, sizeof *w->values, 64);
    w->order = nw_carve(a, vocab, sizeof *w->order, 64);
}

static void warp_temperature(float *row, size_t n, double temperature)
{
    float t = (float)temperature;
    for (size_t i = 0; i < n; i++)
        row[i] = isnan(row[i]) ? -INFINITY : row[i] / t;
}

/* heap[0] is the least; moves what is at `at` down to its place. */
static void sift_least(float *heap, size_t n, size_t at)
{
    float value = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

/* The k-th largest of row, k from 1 to n; equal values count each. */
static float kth_largest(const float *row, size_t n, size_t k, float *heap)
{
    memcpy(heap, row, k * sizeof *heap);
    for (size_t i = k / 2; i-- > 0;)
        sift_least(heap, k, i);
    for (size_t i = k; i < n; i++) {
        if (row[i] > heap[0]) {
            heap[0] = row[i];
            sift_least(heap, k, 0);
        }
    }
    return heap[0];
}

static void warp_top_k(float *row, size_t n, size_t k, float *heap)
{
    if (k >= n)
        return;
    float kth = kth_largest(row, n, k, heap);
    for (size_t i = 0; i < n; i++)
        row[i] = row[i] < kth ? -INFINITY : row[i];
}

/* Whether id a comes before id b when the most probable come first; of equal ones, the higher id, so that in ascending
 * order the lower id is first. */
static bool comes_first(const float *row, uint32_t a, uint32_t b)
{
    return row[a] != row[b] ? row[a] > row[b] : a > b;
}

static void sift_first(const float *row, uint32_t *heap, size_t n, size_t at)
{
    uint32_t id = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_first(row, heap[child + 1], heap[child]))
            child++;
        if (!comes_first(row, heap[child], id))
            break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* An id stays if the probability from the least up to and including it is above 1 - top_p: the total less what is above
 * it, so that only those that stay are ever ordered. */
static void warp_top_p(float *row, size_t n, double top_p, const float *probabilities, uint32_t *heap)
{
    double total = 0, above = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        total += (double)probabilities[i];
        if (row[i] > -INFINITY)
            heap[count++] = (uint32_t)i;
    }
    for (size_t i = count / 2; i-- > 0;)
        sift_first(row, heap, count, i);
    float limit = (float)(1 - top_p);
    bool  first = true;
    while (count > 0 && (first || (float)(total - above) > limit)) {
        above += (double)probabilities[heap[0]];
        heap[0] = heap[--count];
        if (count > 0)
            sift_first(row, heap, count, 0);
        first = false;
    }
    for (size_t i = 0; i < count; i++)
        row[heap[i]] = -INFINITY;
}

static void warp_min_p(float *row, size_t n, double min_p, const float *probabilities)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = probabilities[i] > largest ? probabilities[i] : largest;
    float limit = (float)min_p * largest;
    for (size_t i = 0; i < n; i++)
        row[i] = probabilities[i] < limit ? -INFINITY : row[i];
}

bool nw_probabilities(const nw_kernels *k, float *row, size_t vocab)
{
    float largest = row[k->argmax(row, vocab)];
    if (!isfinite(largest))
        return false;
    k->softmax(row, vocab);
    return true;
}

/* The probabilities of the row as it is now, in the scratch. */
static bool find_probabilities(const nw_kernels *k, const float *row, nw_warp_scratch *w)
{
    memcpy(w->values, row, w->vocab * sizeof *row);
    return nw_probabilities(k, w->values, w->vocab);
}

void nw_warp(const nw_kernels *k, const nw_generation_settings *s, float *row, nw_warp_scratch *w)
{
    size_t n = w->vocab;
    warp_temperature(row, n, s->temperature); /* also with 1: NaN goes */
    if (s->top_k > 0)
        warp_top_k(row, n, s->top_k, w->values);
    if (s->top_p < 1 && find_probabilities(k, row, w))
        warp_top_p(row, n, s->top_p, w->values, w->order);
    if (s->min_p > 0 && find_probabilities(k, row, w))
        warp_min_p(row, n, s->min_p, w->values);
}

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

uint32_t nw_draw(const float *probabilities, size_t vocab, uint64_t seed, uint64_t sample, uint64_t position)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < vocab; i++)
        total += (double)probabilities[i];
    NW_CHECK(total > 0);
    double target = nw_draw_uniform(seed, sample, position) * total;
    size_t last = 0;
    for (size_t i = 0; i < vocab; i++) {
        if (!(probabilities[i] > 0))
            continue;
        last = i;
        sum += (double)probabilities[i];
        if (sum > target)
            break;
    }
    return (uint32_t)last; /* the product may round up to the total: then the last one that can be drawn */
}

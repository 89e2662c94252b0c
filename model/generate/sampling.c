/* From scores to a draw. Sorting a vocabulary of 250,000 for each token would cost more than some models' whole head,
 * so nothing is sorted: top_k keeps a heap of k values, top_p finds the lowest score that stays by its digits. Both
 * give what the reference's sort gives, and for equal scores what the header says. */
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

/* A number that is ordered as the scores are. */
static uint32_t key_of(float score)
{
    uint32_t bits;
    float    value = score + 0.0f; /* -0 equals 0 */
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* What top_p is about: an id stays if the probability from the least up to and including it is above 1 - top_p, which
 * is the total less what is above it. */
typedef struct {
    const float *row, *probabilities;
    double       total, above; /* above: of all ids whose scores are higher than those looked at */
    float        limit;        /* 1 - top_p */
} nucleus;

static bool stays(const nucleus *u, double above)
{
    return (float)(u->total - above) > u->limit;
}

/* Of the ids, all of whose keys agree above the 8 bits at `shift`, leaves those with the lowest 8 bits whose first id
 * stays; the others are above them and stay, or below and go. Returns how many. */
static size_t narrow(nucleus *u, uint32_t *ids, size_t count, unsigned shift)
{
    double mass[256] = {0}, above = u->above;
    bool   there[256] = {false};
    size_t chosen = 256, kept = 0;
    for (size_t i = 0; i < count; i++) {
        size_t digit = key_of(u->row[ids[i]]) >> shift & 255;
        mass[digit] += (double)u->probabilities[ids[i]];
        there[digit] = true;
    }
    for (size_t digit = 256; digit-- > 0;) {
        if (!there[digit])
            continue;
        if (chosen < 256 && !stays(u, above))
            break;
        chosen = digit;
        u->above = above;
        above += mass[digit];
    }
    for (size_t i = 0; i < count; i++) {
        if ((key_of(u->row[ids[i]]) >> shift & 255) == chosen)
            ids[kept++] = ids[i];
    }
    return kept;
}

/* Finds the lowest score that stays, 8 bits of it at a time: a few passes whatever the scores are, and no sort. */
static void warp_top_p(float *row, size_t n, double top_p, const float *probabilities, uint32_t *ids)
{
    nucleus u = {.row = row, .probabilities = probabilities, .limit = (float)(1 - top_p)};
    size_t  count = 0;
    for (size_t i = 0; i < n; i++) {
        u.total += (double)probabilities[i];
        if (row[i] > -INFINITY)
            ids[count++] = (uint32_t)i;
    }
    for (unsigned shift = 32; shift > 0; shift -= 8)
        count = narrow(&u, ids, count, shift - 8);
    float lowest = row[ids[0]];
    for (size_t i = 0; i < n; i++)
        row[i] = row[i] < lowest ? -INFINITY : row[i];
    /* Of those that have it, the higher ids stay. */
    bool first = true;
    for (size_t i = count; i-- > 0; first = false) {
        if (!first && !stays(&u, u.above)) {
            row[ids[i]] = -INFINITY;
            continue;
        }
        u.above += (double)probabilities[ids[i]];
    }
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

/* Drawing is a hash and a table look-up: 64 bits of hash give four table indices (two for f32 with a full fraction), so
 * that a core fills more than a disk takes. The table holds quantiles, not draws: the cells have equal probability by
 * construction, and the share of each exponent, which decides how well weights compress, is that of the distribution.
 *
 * The hash is the finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
 * over a Weyl sequence that starts at the tensor's key. */
#include "normal.h"

#include <math.h>
#include <string.h>

#define CELL_COUNT ((size_t)65536)
#define WEYL UINT64_C(0x9e3779b97f4a7c15)

typedef enum { FORM_NONE, FORM_HALF, FORM_COARSE, FORM_FULL } form;

struct nw_normal {
    nw_memory *mem;
    form       form;
    nw_dtype   dtype;
    double     mean, sigma;
    float    edges[CELL_COUNT + 1]; /* of the cells: standard normal quantiles of i / CELL_COUNT; the ends are finite */
    float    scaled[CELL_COUNT + 1]; /* mean + sigma * edge */
    uint16_t half[CELL_COUNT];       /* the middle of each cell as a 16-bit type */
    float    single[CELL_COUNT];     /* the same, rounded to bf16 and stored as f32 */
};

/* Fills edges from the middle outwards. Newton's method on the upper tail, which is convex, from the left converges
 * without overshooting, and the edge before is a good start. */
static void fill_edges(nw_normal *normal)
{
    const double root_2 = 1.4142135623730951, root_2pi = 2.5066282746310002;
    size_t       middle = CELL_COUNT / 2;
    double       x = 0;
    normal->edges[middle] = 0;
    for (size_t i = 1; i <= middle; i++) {
        double tail = 0.5 - (double)i / (double)CELL_COUNT;
        if (i == middle)
            tail = 0.25 / (double)CELL_COUNT; /* the last cell would reach to infinity */
        for (int round = 0; round < 40; round++) {
            double step = (0.5 * erfc(x / root_2) - tail) * root_2pi * exp(0.5 * x * x);
            x += step;
            if (fabs(step) < 1e-13)
                break;
        }
        normal->edges[middle + i] = (float)x;
        normal->edges[middle - i] = (float)-x;
    }
}

nw_code nw_normal_open(nw_memory *mem, nw_normal **ret_normal, nw_error *err)
{
    nw_normal *normal = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *normal);
    if (normal == NULL)
        return nw_memory_fail(mem, err, sizeof *normal, "normal table");
    normal->mem = mem;
    fill_edges(normal);
    *ret_normal = normal;
    return NW_OK;
}

nw_normal *nw_normal_close(nw_normal *normal)
{
    if (normal != NULL)
        nw_memory_free(normal->mem, NW_TAG_INDEX, normal, 1, sizeof *normal);
    return NULL;
}

void nw_normal_set(nw_normal *normal, nw_dtype dtype, bool coarse, double mean, double sigma)
{
    NW_CHECK(dtype < NW_DTYPE_COUNT);
    NW_CHECK(sigma >= 0);
    form chosen = dtype != NW_F32 ? FORM_HALF : coarse ? FORM_COARSE : FORM_FULL;
    /* Exact comparison: the tables are kept only for the very same numbers. */
    if (normal->form == chosen && normal->dtype == dtype && !(normal->mean < mean) && !(normal->mean > mean) &&
        !(normal->sigma < sigma) && !(normal->sigma > sigma))
        return;
    normal->form = chosen;
    normal->dtype = dtype;
    normal->mean = mean;
    normal->sigma = sigma;
    for (size_t i = 0; i <= CELL_COUNT; i++)
        normal->scaled[i] = (float)(mean + sigma * (double)normal->edges[i]);
    for (size_t i = 0; i < CELL_COUNT && chosen != FORM_FULL; i++) {
        float middle = 0.5f * (normal->scaled[i] + normal->scaled[i + 1]);
        nw_dtype_from_f32(chosen == FORM_HALF ? dtype : NW_BF16, middle, &normal->half[i]);
        normal->single[i] = nw_dtype_to_f32(NW_BF16, &normal->half[i]);
    }
}

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t nw_normal_key(uint64_t seed, const char *name)
{
    uint64_t key = mix(seed + WEYL);
    for (; *name != '\0'; name++)
        key = mix((key ^ (unsigned char)*name) + WEYL);
    return key;
}

/* `group` is the index of the element divided by how many share one hash. */
static inline uint64_t draw(uint64_t key, uint64_t group)
{
    return mix(key + (group + 1) * WEYL);
}

static void fill_half(const uint16_t *table, uint64_t key, uint64_t first, size_t count, unsigned char *ret)
{
    uint64_t at = first, end = first + count;
    for (; at < end && (at & 3) != 0; at++, ret += 2)
        memcpy(ret, &table[(draw(key, at >> 2) >> (16 * (at & 3))) & 0xffff], 2);
    for (; end - at >= 4; at += 4, ret += 8) {
        uint64_t h = draw(key, at >> 2);
        uint64_t four = (uint64_t)table[h & 0xffff] | (uint64_t)table[(h >> 16) & 0xffff] << 16 |
                        (uint64_t)table[(h >> 32) & 0xffff] << 32 | (uint64_t)table[h >> 48] << 48;
        memcpy(ret, &four, sizeof four);
    }
    for (; at < end; at++, ret += 2)
        memcpy(ret, &table[(draw(key, at >> 2) >> (16 * (at & 3))) & 0xffff], 2);
}

static void fill_coarse(const float *table, uint64_t key, uint64_t first, size_t count, unsigned char *ret)
{
    uint64_t at = first, end = first + count;
    for (; at < end && (at & 3) != 0; at++, ret += 4)
        memcpy(ret, &table[(draw(key, at >> 2) >> (16 * (at & 3))) & 0xffff], 4);
    for (; end - at >= 4; at += 4, ret += 16) {
        uint64_t h = draw(key, at >> 2);
        float    four[4] = {table[h & 0xffff], table[(h >> 16) & 0xffff], table[(h >> 32) & 0xffff], table[h >> 48]};
        memcpy(ret, four, sizeof four);
    }
    for (; at < end; at++, ret += 4)
        memcpy(ret, &table[(draw(key, at >> 2) >> (16 * (at & 3))) & 0xffff], 4);
}

/* One element of 32 random bits: the upper half chooses the cell, the lower half the place in it. */
static inline float full_of(const float *edges, uint32_t bits)
{
    float low = edges[bits >> 16], high = edges[(bits >> 16) + 1];
    return low + (high - low) * ((float)(bits & 0xffff) * 0x1p-16f);
}

static void fill_full(const float *edges, uint64_t key, uint64_t first, size_t count, unsigned char *ret)
{
    uint64_t at = first, end = first + count;
    for (; at < end; ret += 4) {
        uint64_t h = draw(key, at >> 1);
        float    pair[2] = {full_of(edges, (uint32_t)h), full_of(edges, (uint32_t)(h >> 32))};
        if ((at & 1) == 0 && end - at >= 2) {
            memcpy(ret, pair, sizeof pair);
            ret += 4;
            at += 2;
            continue;
        }
        memcpy(ret, &pair[at & 1], 4);
        at++;
    }
}

void nw_normal_fill(const nw_normal *normal, uint64_t key, uint64_t first, size_t count, void *ret)
{
    switch (normal->form) {
    case FORM_HALF: fill_half(normal->half, key, first, count, ret); return;
    case FORM_COARSE: fill_coarse(normal->single, key, first, count, ret); return;
    case FORM_FULL: fill_full(normal->scaled, key, first, count, ret); return;
    case FORM_NONE: break;
    }
    nw_trap("nw_normal_set before nw_normal_fill", __FILE__, __LINE__);
}

/* Attention of many queries at once: every variant that this CPU runs gives the bits of the portable product, softmax
 * and mix of one query after the other. */
#define REGION_BYTES ((size_t)1 << 19)
#include "kernel_bench.h"

#define KEYS_MAX 90
#define D_MAX 140
#define GAP_MAX 5

static region region_out, region_q, region_k, region_v, region_bias, region_room;

typedef struct {
    size_t       queries, keys, d, ldo, ldq, ldk, ldv;
    const float *q, *k, *v, *bias;
} attention;

/* Values of all kinds; with `wild` also infinities, huge ones and zeros of both signs. */
static const float *random_floats(region r, size_t n, bool wild)
{
    float *x = region_end(r, n * sizeof x[0]);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(int32_t)random_u32() * 0x1p-30f;
        if (wild && random_below(24) == 0)
            x[i] = of_bits((random_u32() & 0x80000000u) |
                           (random_below(3) == 0 ? 0x7f800000u : random_u32() & 0x73ffffff));
    }
    return x;
}

static void one_query(const attention *a, size_t query, float *out)
{
    float scores[KEYS_MAX];
    portable->matmul[NW_F32](scores, 0, a->q + query * a->ldq, 0, 1, a->k, a->ldk, a->keys, a->d, NULL);
    for (size_t j = 0; j < a->keys; j++)
        scores[j] += a->bias[a->keys - 1 - j + query];
    portable->softmax(scores, a->keys);
    memset(out, 0, a->d * sizeof out[0]);
    portable->mix(out, 0, scores, 0, 1, a->v, a->ldv, a->keys, a->d);
}

static void check(const attention *a)
{
    for (size_t v = 0; v < variant_count; v++) {
        float *out = region_end(region_out, spread(a->queries, a->ldo, a->d) * sizeof out[0]);
        float *room = region_end(region_room, (a->keys + a->d) * 16 * sizeof room[0]);
        variants[v]->attend(out, a->ldo, a->q, a->ldq, a->queries, a->k, a->ldk, a->v, a->ldv, a->keys, a->d, a->bias,
                            room);
        assert_guarded(region_out, out, a->queries, a->ldo, a->d);
        assert_guarded(region_room, room, 1, 0, 0);
        for (size_t query = 0; query < a->queries; query++) {
            float expected[D_MAX];
            one_query(a, query, expected);
            for (size_t i = 0; i < a->d; i++)
                assert_same(variants[v], "attention", out[query * a->ldo + i], expected[i]);
        }
    }
}

static void test_attend(void **state)
{
    (void)state;
    for (size_t round = 0; round < 120; round++) {
        attention a = {.queries = 1 + random_below(16), .keys = 1 + random_below(KEYS_MAX)};
        a.d = round % 2 == 0 ? 64 : 1 + random_below(D_MAX);
        a.ldo = a.d + random_below(GAP_MAX);
        a.ldq = a.d + random_below(GAP_MAX);
        a.ldk = a.d + random_below(GAP_MAX);
        a.ldv = a.d + random_below(GAP_MAX);
        bool wild = round % 3 == 2;
        a.q = random_floats(region_q, spread(a.queries, a.ldq, a.d), wild);
        a.k = random_floats(region_k, spread(a.keys, a.ldk, a.d), wild);
        a.v = random_floats(region_v, spread(a.keys, a.ldv, a.d), wild);
        a.bias = random_floats(region_bias, a.keys + 15, wild);
        check(&a);
    }
}

int main(void)
{
    random_state = 512;
    if (!find_variants(true))
        return 1;
    region_out = region_new(), region_q = region_new(), region_k = region_new(), region_v = region_new();
    region_bias = region_new(), region_room = region_new();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

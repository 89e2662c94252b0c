/* How near the kernels' functions come to the real ones, over dense sweeps, against libm in double or long double.
 *
 * exp is seen through softmax: beside a 0, an x below -17.4 leaves the sum at exactly 1, so what comes out is exp(x)
 * itself. Its argument reduction is the same everywhere, so that range shows all of it, subnormal results included. */
#include "draws.h"
#include "model/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Every sweep is thinned under sanitizers, which look for other mistakes than a few units in the last place. */
#ifdef NW_SANITIZED
enum { SWEEP_STEP = 17 };
#else
enum { SWEEP_STEP = 1 };
#endif

/* The distance from `exact` in units of the last place of a float of that size. */
static double ulps(float got, double exact)
{
    int exponent;
    (void)frexp(exact, &exponent);
    double unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - exact) / unit;
}

static void check_exp(const nw_kernels *kernels)
{
    double worst = 0;
    float  x = -20.0f;
    while (x > -110.0f) {
        float in[16] = {0}, out[16];
        for (size_t l = 1; l < 16; l++, x *= 1 + 0x1p-19f)
            in[l] = x;
        memcpy(out, in, sizeof out);
        kernels->softmax(out, 16);
        assert_true(out[0] == 1.0f);
        for (size_t l = 1; l < 16; l++)
            worst = fmax(worst, ulps(out[l], exp((double)in[l])));
    }
    printf("%s: exp within %.3f ulp\n", kernels->name, worst);
    assert_true(worst <= 1.0);
}

static void check_exp_ends(const nw_kernels *kernels)
{
    static const float gone[] = {-104.0f, -200.0f, -1e30f, -INFINITY};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) {
        float pair[2] = {gone[i], 0};
        kernels->softmax(pair, 2);
        assert_true(pair[0] == 0 && !signbit(pair[0]) && pair[1] == 1.0f);
    }
    float last[2] = {-103.9f, 0}; /* rounds to the smallest subnormal */
    kernels->softmax(last, 2);
    assert_true(last[0] == 0x1p-149f);
    float nans[3] = {1, NAN, 2};
    kernels->softmax(nans, 3);
    assert_true(isnan(nans[0]) && isnan(nans[1]) && isnan(nans[2]));
}

static void check_softmax(const nw_kernels *kernels)
{
    float    x[333], y[333];
    uint32_t state = 1;
    for (size_t n = 1; n <= 333; n++) {
        double exact = 0, total = 0;
        float  max, sum;
        for (size_t i = 0; i < n; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = y[i] = (float)(int32_t)state * 0x1p-28f;
        }
        kernels->softmax(y, n);
        kernels->exp_sum(x, n, &max, &sum);
        for (size_t i = 0; i < n; i++)
            exact += exp((double)x[i] - (double)max);
        for (size_t i = 0; i < n; i++) {
            assert_true(ulps(y[i], exp((double)x[i] - (double)max) / exact) <= 20); /* x - max is rounded: 16 * 2^-24 */
            total += (double)y[i];
            assert_true(x[i] <= max);
        }
        assert_true(fabs(total - 1) <= 1e-6);
        assert_true(ulps(sum, exact) <= 20);
    }
}

static double exact_silu(double x)
{
    return x / (1 + exp(-x));
}
static double exact_gelu_erf(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}
static double exact_gelu_tanh(double x)
{
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

typedef struct {
    nw_activation act;
    const char   *name;
    double (*exact)(double x);
    double absolute_max;                /* largest error anywhere on -20 .. 20, per unit of max(1, |x|) */
    double relative_max, relative_from; /* largest relative error for x >= relative_from */
} activation_case;

static const activation_case activation_cases[] = {
    {NW_ACT_SILU, "silu", exact_silu, 2e-7, 3e-7, -80},
    {NW_ACT_GELU_TANH, "gelu_tanh", exact_gelu_tanh, 2e-7, 4e-7, -1},
    {NW_ACT_GELU_ERF, "gelu_erf", exact_gelu_erf, 2e-7, 6e-7, -12},
};

static void check_activation(const nw_kernels *kernels, const activation_case *c)
{
    double absolute = 0, relative = 0;
    for (int32_t first = -20 * 65536; first < 20 * 65536; first += 1024) {
        float in[1024], out[1024];
        for (int32_t i = 0; i < 1024; i++)
            in[i] = out[i] = (float)(first + i) * 0x1p-16f;
        kernels->activate(out, 1024, c->act);
        for (size_t i = 0; i < 1024; i++) {
            double x = (double)in[i], exact = c->exact(x), error = fabs((double)out[i] - exact);
            absolute = fmax(absolute, error / fmax(1, fabs(x)));
            if (x >= c->relative_from && x != 0)
                relative = fmax(relative, error / fabs(exact));
        }
    }
    printf("%s: %s within %.2e, relative %.2e from %g on\n", kernels->name, c->name, absolute, relative,
           c->relative_from);
    assert_true(absolute <= c->absolute_max);
    assert_true(relative <= c->relative_max);
}

/* Tiny, huge and special arguments. */
static void check_activation_ends(const nw_kernels *kernels, nw_activation act)
{
    float x[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-140f, 1e-30f, 1e30f, 3e38f, INFINITY, -1e30f, -3e38f, NAN};
    kernels->activate(x, sizeof x / sizeof x[0], act);
    assert_true(x[0] == 0 && x[1] == 0);
    assert_true(x[2] >= 0 && x[2] <= 0x1p-149f);
    assert_true(act == NW_ACT_RELU ? x[3] == 0 : fabsf(x[3] + 0x1p-141f) <= 0x1p-149f);
    assert_true(act == NW_ACT_RELU ? x[4] == 1e-30f : fabsf(x[4] - 0.5e-30f) <= 1e-36f);
    assert_true(x[5] == 1e30f && x[6] == 3e38f && x[7] == INFINITY);
    assert_true(x[8] == 0 && x[9] == 0);
    assert_true(isnan(x[10]));
}

/* What this CPU runs; the portable one is slow and equal bit for bit (test_kernels). */
static const nw_kernels *tested[8];
static size_t            tested_count;

static void test_exp(void **state)
{
    (void)state;
    for (size_t t = 0; t < tested_count; t++) {
        check_exp(tested[t]);
        check_exp_ends(tested[t]);
        check_softmax(tested[t]);
    }
}

static void test_activations(void **state)
{
    (void)state;
    for (size_t t = 0; t < tested_count; t++) {
        for (size_t c = 0; c < sizeof activation_cases / sizeof activation_cases[0]; c++)
            check_activation(tested[t], &activation_cases[c]);
        for (nw_activation act = NW_ACT_RELU; act <= NW_ACT_SILU; act++)
            check_activation_ends(tested[t], act);
    }
}

static double log_ulps(double x)
{
    int         exponent;
    long double exact = logl((long double)x);
    if (exact == 0)
        return nw_ln(x) == 0.0 ? 0 : 1e9;
    (void)frexpl(exact, &exponent);
    return (double)(fabsl((long double)nw_ln(x) - exact) / ldexpl(1.0L, exponent - 53));
}

static void test_log(void **state)
{
    (void)state;
    double   worst = 0;
    uint64_t random = 1;
    for (size_t i = 0; i < 2000000 / SWEEP_STEP;
         i++) { /* any positive double, subnormals included, and dense around 1 */
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = random >> 1;
        double   x;
        if (bits >= 0x7ff0000000000000u || i % 2 != 0)
            bits = 0x3fe0000000000000u + (random >> 11);
        if (i % 16 == 0)
            bits &= 0xfffffffffffffu;
        if (bits == 0)
            continue;
        memcpy(&x, &bits, sizeof x);
        worst = fmax(worst, log_ulps(x));
    }
    for (float x = 0x1p-126f; x < 0x1p127f; x *= 1 + 0x1p-13f)
        worst = fmax(worst, log_ulps((double)x));
    for (int k = -1074; k < 1024; k++)
        worst = fmax(worst, log_ulps(ldexp(1.0, k)));
    printf("log within %.3f ulp\n", worst);
    assert_true(worst <= 1.0);

    assert_true(nw_ln(1.0) == 0.0);
    assert_true(nw_ln(0x1.fffffffffffffp+1023) < 709.79);
    assert_true(nw_ln((double)INFINITY) == (double)INFINITY);
    assert_true(nw_ln(0.0) == -(double)INFINITY);
    assert_true(isnan(nw_ln(-1.0)) && isnan(nw_ln((double)NAN)));
    assert_true(nw_ln((double)of_bits(1)) < -103.2);
}

int main(void)
{
    for (const char *const *name = nw_kernels_names(); *name != NULL; name++) {
        const nw_kernels *kernels = nw_kernels_named(*name);
        if (kernels != NULL)
            tested[tested_count++] = kernels;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

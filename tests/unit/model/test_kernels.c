/* Every variant of the kernels that this CPU runs equals the portable one bit for bit, and the portable one equals the
 * definition of the numeric contract, written out here once more in the plainest way. */
#include "kernel_bench.h"

#include <stdlib.h>

#define K_MAX 70
#define ROWS_MAX 9
#define GAP_MAX 5

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

typedef enum { TAME, WILD, INFINITE } temper;

/* TAME: -4 .. 4. WILD: also zeros of both signs, subnormals, tiny and huge. INFINITE: also infinities. */
static float random_value(temper t)
{
    float    tame = (float)(int32_t)random_u32() * 0x1p-29f;
    uint32_t sign = random_u32() & 0x80000000u;
    switch (t == TAME ? 0 : random_below(t == WILD ? 12 : 40)) {
    case 1: return of_bits(sign);
    case 2: return of_bits(sign | (random_u32() & 0x7fffffu));
    case 3: return tame * 0x1p-70f;
    case 4: return tame * 0x1p60f;
    case 39: return of_bits(sign | 0x7f800000u);
    default: return tame;
    }
}

static void fill(float *x, size_t n, temper t)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_value(t);
}

static void fill_weights(nw_dtype d, unsigned char *w, size_t n, temper t)
{
    for (size_t i = 0; i < n; i++)
        nw_dtype_from_f32(d, random_value(t), w + i * nw_dtype_bytes(d));
}

/* ---- matrix product ---------------------------------------------------------------------------------------------- */

typedef struct {
    nw_dtype             d;
    size_t               rows, cols, k, ldw, ldx, ldy;
    const unsigned char *w;
    const float         *x;
} product;

/* Random sizes; w and x are laid at the end of their regions, w at any address. */
static product product_random(nw_dtype d, size_t k, temper t, region wr, region xr)
{
    product p = {.d = d, .k = k, .rows = 1 + random_below(ROWS_MAX), .cols = 1 + random_below(NW_COLS_MAX)};
    p.ldw = k + random_below(GAP_MAX);
    p.ldx = k + random_below(GAP_MAX);
    p.ldy = p.rows + random_below(GAP_MAX);
    size_t         w_count = spread(p.rows, p.ldw, k), x_count = spread(p.cols, p.ldx, k);
    unsigned char *w = region_end(wr, w_count * nw_dtype_bytes(d) + random_below(8));
    float         *x = region_end(xr, x_count * sizeof x[0]);
    fill_weights(d, w, w_count, t);
    fill(x, x_count, t);
    p.w = w;
    p.x = x;
    return p;
}

/* Runs it into the end of `yr`; nothing but the elements of y may change. */
static float *product_run(const product *p, const nw_kernels *kernels, region yr)
{
    size_t count = spread(p->cols, p->ldy, p->rows);
    float *y = region_end(yr, count * sizeof y[0]);
    kernels->matmul[p->d](y, p->ldy, p->x, p->ldx, p->cols, p->w, p->ldw, p->rows, p->k, NULL);
    assert_guarded(yr, y, p->cols, p->ldy, p->rows);
    return y;
}

/* The contract to the letter: 16 chains, then the tree. */
static float dot_by_definition(const product *p, size_t r, size_t c)
{
    float  lanes[16] = {0};
    size_t size = nw_dtype_bytes(p->d);
    for (size_t i = 0; i < (p->k + 15) / 16 * 16; i++) {
        float w = i < p->k ? nw_dtype_to_f32(p->d, p->w + (r * p->ldw + i) * size) : 0;
        float x = i < p->k ? p->x[c * p->ldx + i] : 0;
        lanes[i % 16] = fmaf(w, x, lanes[i % 16]);
    }
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    }
    return lanes[0];
}

static void assert_near_exact(const product *p, size_t r, size_t c, float got)
{
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < p->k; i++) {
        double term = (double)nw_dtype_to_f32(p->d, p->w + (r * p->ldw + i) * nw_dtype_bytes(p->d)) *
                      (double)p->x[c * p->ldx + i];
        sum += term;
        magnitude += fabs(term);
    }
    /* At most 5 roundings of a chain of 70 elements, 4 of the tree, 2^-24 each. */
    if (!(fabs((double)got - sum) <= 9 * 0x1p-24 * magnitude))
        fail_msg("%a is not %a", (double)got, sum);
}

static void test_matmul(void **state)
{
    (void)state;
    region wr = region_new(), xr = region_new(), yr = region_new(), zr = region_new();
    for (size_t round = 0; round < 12 * K_MAX * NW_DTYPE_COUNT; round++) {
        temper  t = (temper)(round / NW_DTYPE_COUNT % 3);
        product p = product_random((nw_dtype)(round % NW_DTYPE_COUNT), 1 + round / 9 % K_MAX, t, wr, xr);
        float  *y = product_run(&p, portable, yr);
        for (size_t at = 0; at < p.rows * p.cols; at++) {
            size_t r = at % p.rows, c = at / p.rows;
            assert_same(portable, "matmul by definition", y[c * p.ldy + r], dot_by_definition(&p, r, c));
            if (t == TAME)
                assert_near_exact(&p, r, c, y[c * p.ldy + r]);
        }
        for (size_t v = 0; v < variant_count; v++) {
            float *z = product_run(&p, variants[v], zr);
            for (size_t at = 0; at < p.rows * p.cols; at++) {
                size_t place = at / p.rows * p.ldy + at % p.rows;
                assert_same(variants[v], "matmul", z[place], y[place]);
            }
        }
    }
    region_free(wr), region_free(xr), region_free(yr), region_free(zr);
}

/* Long rows, so that every part of the loop over k runs, the parts that look ahead included. */
static void test_matmul_long_rows(void **state)
{
    (void)state;
    static const size_t lengths[] = {1024, 2048, 4096, 4097, 5120, 10247};
    static float        x[3 * 10248], y[3 * ROWS_MAX], z[3 * ROWS_MAX];
    static uint32_t     w[ROWS_MAX * 10250];
    for (size_t round = 0; round < 6 * NW_DTYPE_COUNT; round++) {
        nw_dtype d = (nw_dtype)(round % NW_DTYPE_COUNT);
        size_t   k = lengths[round / NW_DTYPE_COUNT];
        fill(x, 3 * k, TAME);
        for (size_t ldw = k; ldw <= k + 2; ldw += 2) {
            fill_weights(d, (unsigned char *)w, ROWS_MAX * ldw, TAME);
            portable->matmul[d](y, ROWS_MAX, x, k, 3, w, ldw, ROWS_MAX, k, NULL);
            for (size_t v = 0; v < variant_count; v++) {
                variants[v]->matmul[d](z, ROWS_MAX, x, k, 3, w, ldw, ROWS_MAX, k, NULL);
                assert_memory_equal(y, z, sizeof y);
            }
        }
    }
}

/* One column at a time, and the rows in two parts, give what all at once gives. */
static void check_splits(const product *p, const nw_kernels *kernels, region yr)
{
    static float whole[NW_COLS_MAX * (ROWS_MAX + GAP_MAX)];
    const float *y = product_run(p, kernels, yr);
    memcpy(whole, y, spread(p->cols, p->ldy, p->rows) * sizeof y[0]);
    for (size_t c = 0; c < p->cols; c++) {
        product one = *p;
        one.cols = 1;
        one.x = p->x + c * p->ldx;
        const float *column = product_run(&one, kernels, yr);
        for (size_t r = 0; r < p->rows; r++)
            assert_same(kernels, "matmul by columns", column[r], whole[c * p->ldy + r]);
    }
    size_t  cut = random_below(p->rows + 1);
    product upper = *p, lower = *p;
    upper.rows = cut;
    lower.rows = p->rows - cut;
    lower.w = p->w + cut * p->ldw * nw_dtype_bytes(p->d);
    for (size_t half = 0; half < 2; half++) {
        const product *q = half == 0 ? &upper : &lower;
        if (q->rows == 0)
            continue;
        const float *part = product_run(q, kernels, yr);
        for (size_t at = 0; at < q->rows * q->cols; at++) {
            size_t r = at % q->rows, c = at / q->rows;
            assert_same(kernels, "matmul by rows", part[c * q->ldy + r], whole[c * p->ldy + r + (half == 0 ? 0 : cut)]);
        }
    }
}

static void test_matmul_splits(void **state)
{
    (void)state;
    region wr = region_new(), xr = region_new(), yr = region_new();
    for (size_t round = 0; round < 120; round++) {
        product p = product_random((nw_dtype)(round % NW_DTYPE_COUNT), 1 + random_below(K_MAX), TAME, wr, xr);
        check_splits(&p, portable, yr);
        for (size_t v = 0; v < variant_count; v++)
            check_splits(&p, variants[v], yr);
    }
    region_free(wr), region_free(xr), region_free(yr);
}

/* ---- weighted sum of rows ---------------------------------------------------------------------------------------- */

typedef struct {
    size_t       q_count, j_count, d, ldo, ldp, ldv;
    const float *p, *v, *start;
} mixture;

static float *mixture_run(const mixture *m, const nw_kernels *kernels, region out_region)
{
    size_t count = spread(m->q_count, m->ldo, m->d);
    float *out = region_end(out_region, count * sizeof out[0]);
    for (size_t q = 0; q < m->q_count; q++)
        memcpy(out + q * m->ldo, m->start + q * m->d, m->d * sizeof out[0]);

    size_t first = m->j_count / 3; /* in two pages: the sum continues */
    kernels->mix(out, m->ldo, m->p, m->ldp, m->q_count, m->v, m->ldv, first, m->d);
    kernels->mix(out, m->ldo, m->p + first, m->ldp, m->q_count, m->v + first * m->ldv, m->ldv, m->j_count - first,
                 m->d);
    assert_guarded(out_region, out, m->q_count, m->ldo, m->d);
    return out;
}

static void check_mixture(const mixture *m, region a, region b)
{
    const float *expected = mixture_run(m, portable, a);
    for (size_t q = 0; q < m->q_count; q++) {
        for (size_t i = 0; i < m->d; i++) {
            float sum = m->start[q * m->d + i];
            for (size_t j = 0; j < m->j_count; j++)
                sum = fmaf(m->p[q * m->ldp + j], m->v[j * m->ldv + i], sum);
            assert_same(portable, "mix by definition", expected[q * m->ldo + i], sum);
        }
    }
    for (size_t v = 0; v < variant_count; v++) {
        const float *got = mixture_run(m, variants[v], b);
        for (size_t q = 0; q < m->q_count; q++) {
            for (size_t i = 0; i < m->d; i++)
                assert_same(variants[v], "mix", got[q * m->ldo + i], expected[q * m->ldo + i]);
        }
    }
}

static void test_mix(void **state)
{
    (void)state;
    region pr = region_new(), vr = region_new(), sr = region_new(), a = region_new(), b = region_new();
    for (size_t round = 0; round < 400; round++) {
        mixture m = {.q_count = 1 + random_below(NW_COLS_MAX), .j_count = random_below(40), .d = 1 + random_below(150)};
        temper  t = (temper)(round % 3);
        m.ldo = m.d + random_below(GAP_MAX);
        m.ldp = m.j_count + random_below(GAP_MAX);
        m.ldv = m.d + random_below(GAP_MAX);
        size_t p_count = spread(m.q_count, m.ldp, m.j_count);
        size_t v_count = m.j_count == 0 ? 0 : spread(m.j_count, m.ldv, m.d);
        float *p = region_end(pr, p_count * sizeof p[0]), *v = region_end(vr, v_count * sizeof v[0]);
        float *start = region_end(sr, m.q_count * m.d * sizeof start[0]);
        fill(p, p_count, t);
        fill(v, v_count, t);
        fill(start, m.q_count * m.d, t);
        m.p = p;
        m.v = v;
        m.start = start;
        check_mixture(&m, a, b);
    }
    region_free(pr), region_free(vr), region_free(sr), region_free(a), region_free(b);
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* One operation in place on n elements, so that all of them share one test. `other` is a second operand. */
typedef struct {
    const char *name;
    void (*run)(const nw_kernels *kernels, float *x, const float *other, size_t n);
} operation;

static void run_norm(const nw_kernels *kernels, float *x, const float *g, size_t n)
{
    kernels->norm(x, x, g, n, 1e-6f);
}
static void run_softmax(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->softmax(x, n);
}
static void run_none(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->activate(x, n, NW_ACT_NONE);
}
static void run_relu(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->activate(x, n, NW_ACT_RELU);
}
static void run_gelu_tanh(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->activate(x, n, NW_ACT_GELU_TANH);
}
static void run_gelu_erf(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->activate(x, n, NW_ACT_GELU_ERF);
}
static void run_silu(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    (void)o;
    kernels->activate(x, n, NW_ACT_SILU);
}
static void run_add(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    kernels->add(x, o, n);
}
static void run_multiply(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    kernels->multiply(x, o, n);
}
static void run_scale(const nw_kernels *kernels, float *x, const float *o, size_t n)
{
    kernels->scale(x, n > 0 ? o[0] : 1.0f, n);
}

static const operation operations[] = {
    {"norm", run_norm},           {"softmax", run_softmax},   {"no activation", run_none}, {"relu", run_relu},
    {"gelu_tanh", run_gelu_tanh}, {"gelu_erf", run_gelu_erf}, {"silu", run_silu},          {"add", run_add},
    {"multiply", run_multiply},   {"scale", run_scale},
};

#define OPERATION_COUNT (sizeof operations / sizeof operations[0])

static float *operation_run(const operation *op, const nw_kernels *kernels, const float *input, const float *other,
                            size_t n, region r)
{
    float *x = region_end(r, n * sizeof x[0]);
    memcpy(x, input, n * sizeof x[0]);
    op->run(kernels, x, other, n);
    assert_guarded(r, x, 1, n, n);
    return x;
}

static void test_vectors(void **state)
{
    (void)state;
    region ir = region_new(), or = region_new(), a = region_new(), b = region_new();
    for (size_t round = 0; round < 6 * 90; round++) {
        size_t n = 1 + round / 6;
        temper t = (temper)(round % 3);
        float *input = region_end(ir, n * sizeof input[0]), *other = region_end(or, n * sizeof other[0]);
        fill(input, n, t);
        fill(other, n, t);
        for (size_t o = 0; o < OPERATION_COUNT; o++) {
            const float *expected = operation_run(&operations[o], portable, input, other, n, a);
            for (size_t v = 0; v < variant_count; v++) {
                const float *got = operation_run(&operations[o], variants[v], input, other, n, b);
                for (size_t i = 0; i < n; i++)
                    assert_same(variants[v], operations[o].name, got[i], expected[i]);
            }
        }
        float max, sum, max_other, sum_other;
        portable->exp_sum(input, n, &max, &sum);
        for (size_t v = 0; v < variant_count; v++) {
            variants[v]->exp_sum(input, n, &max_other, &sum_other);
            assert_same(variants[v], "exp_sum max", max_other, max);
            assert_same(variants[v], "exp_sum sum", sum_other, sum);
            assert_int_equal(variants[v]->argmax(input, n), portable->argmax(input, n));
        }
    }
    region_free(ir), region_free(or), region_free(a), region_free(b);
}

/* The activations over the whole range of floats, every exponent and sign. */
static void test_activations_everywhere(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    static float expected[COUNT], got[COUNT];
    for (uint32_t block = 0; block < 64; block++) {
        for (nw_activation act = NW_ACT_NONE; act <= NW_ACT_SILU; act++) {
            for (uint32_t i = 0; i < COUNT; i++)
                expected[i] = of_bits((block * COUNT + i) * 16381u);
            for (size_t v = 0; v < variant_count; v++) {
                for (uint32_t i = 0; i < COUNT; i++)
                    got[i] = of_bits((block * COUNT + i) * 16381u);
                variants[v]->activate(got, COUNT, act);
                if (v == 0)
                    portable->activate(expected, COUNT, act);
                for (size_t i = 0; i < COUNT; i++)
                    assert_same(variants[v], "activation", got[i], expected[i]);
            }
        }
    }
}

/* Every 16-bit pattern of both 16-bit types, at an odd address, in pieces of every length. */
static void check_widen(const nw_kernels *kernels, nw_dtype d, region wr, region yr)
{
    for (uint32_t first = 0, n = 1; first < 65536; first += n, n = n % 37 + 1) {
        if (n > 65536 - first)
            n = 65536 - first;
        unsigned char *w = region_end(wr, n * nw_dtype_bytes(d) + n % 2);
        float         *y = region_end(yr, n * sizeof y[0]);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t half = (uint16_t)(first + i);
            uint32_t full = (first + i) * 65539u;
            if (d == NW_F32)
                memcpy(w + i * 4, &full, 4);
            else
                memcpy(w + i * 2, &half, 2);
        }
        kernels->widen[d](y, w, n);
        for (uint32_t i = 0; i < n; i++)
            assert_same(kernels, "widen", y[i], nw_dtype_to_f32(d, w + i * nw_dtype_bytes(d)));
        assert_int_equal(((unsigned char *)y)[-1], GUARD);
    }
}

static void test_widen(void **state)
{
    (void)state;
    region wr = region_new(), yr = region_new();
    for (nw_dtype d = NW_F32; d < NW_DTYPE_COUNT; d++) {
        check_widen(portable, d, wr, yr);
        for (size_t v = 0; v < variant_count; v++)
            check_widen(variants[v], d, wr, yr);
    }
    region_free(wr), region_free(yr);
}

static void check_argmax(const nw_kernels *kernels)
{
    float x[100];
    for (size_t n = 1; n <= 100; n++) {
        for (size_t i = 0; i < n; i++)
            x[i] = -INFINITY;
        assert_int_equal(kernels->argmax(x, n), 0);
        for (size_t i = 0; i < n; i++)
            x[i] = NAN;
        assert_int_equal(kernels->argmax(x, n), 0);
        size_t low = random_below(n), high = random_below(n);
        x[high] = -INFINITY; /* the only number */
        assert_int_equal(kernels->argmax(x, n), high);
        x[low] = 2.0f;
        x[high] = 2.0f;
        assert_int_equal(kernels->argmax(x, n), nw_min_size(low, high));
        for (size_t i = 0; i < n; i++)
            x[i] = i % 2 != 0 ? 0.0f : -0.0f; /* equal */
        assert_int_equal(kernels->argmax(x, n), 0);
        x[high] = INFINITY;
        assert_int_equal(kernels->argmax(x, n), high);
    }
}

static void test_argmax(void **state)
{
    (void)state;
    check_argmax(portable);
    for (size_t v = 0; v < variant_count; v++)
        check_argmax(variants[v]);
}

/* Against double precision, for the operations whose accuracy test_math does not look at. */
static void test_norm_value(void **state)
{
    (void)state;
    static float x[1000], g[1000], y[1000];
    for (size_t n = 1; n <= 1000; n += 37) {
        double squares = 0;
        fill(x, n, TAME);
        fill(g, n, TAME);
        portable->norm(y, x, g, n, 1e-6f);
        for (size_t i = 0; i < n; i++)
            squares += (double)x[i] * (double)x[i];
        double factor = 1 / sqrt(squares / (double)n + 1e-6);
        for (size_t i = 0; i < n; i++) {
            double expected = (double)g[i] * (double)x[i] * factor;
            assert_true(fabs((double)y[i] - expected) <= 1e-6 * fabs(expected) + 1e-30);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_null(nw_kernels_named("nonesuch"));
    assert_ptr_equal(nw_kernels_named("portable"), portable);
    assert_string_equal(nw_kernels_names()[0], "portable");
    assert_ptr_equal(nw_kernels_best(), variant_count > 0 ? variants[variant_count - 1] : portable);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        assert_non_null(nw_kernels_named("avx2"));
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        assert_non_null(nw_kernels_named("avx512"));
#elif defined(__aarch64__)
    assert_ptr_equal(nw_kernels_named("neon"), nw_kernels_best());
#endif
}

int main(void)
{
    random_state = 20240611;
    if (!find_variants(false))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_long_rows),
        cmocka_unit_test(test_matmul_splits),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_activations_everywhere),
        cmocka_unit_test(test_widen),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_norm_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The encoder as the paper and the reference implementation have it, in double precision, one number at a time: slow,
 * and shares nothing with the forward pass but the file reader. Masked keys are left out of the softmax.
 *
 * Source  T5 (Raffel et al. 2020) and transformers' modeling_t5.py, for its order of operations. */
#ifndef NW_TEST_REFERENCE_ENCODER_H
#define NW_TEST_REFERENCE_ENCODER_H

#include "model_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in the heap; its shape is the caller's to know. */
static inline double *reference_tensor(nw_model *m, const char *name)
{
    const nw_tensor *t = nw_checkpoint_find(m->checkpoint, name);
    if (t == NULL)
        return NULL;
    nw_error err = {0};
    nw_io   *io = NULL;
    size_t   size = nw_dtype_bytes(t->dtype), n = (size_t)t->bytes / size;
    char    *raw = malloc((size_t)t->bytes);
    double  *out = malloc(n * sizeof *out);
    NW_CHECK(nw_model_io_open(m, &io, &err) == NW_OK);
    NW_CHECK(nw_file_read(&m->memory, io, nw_checkpoint_file(m->checkpoint, t->file), name, t->offset, raw,
                          (size_t)t->bytes, NULL, &err) == NW_OK);
    for (size_t i = 0; i < n; i++) {
        float value;
        nw_kernels_named("portable")->widen[t->dtype](&value, raw + i * size, 1);
        out[i] = (double)value;
    }
    nw_io_close(io);
    free(raw);
    return out;
}

static inline double *reference_weight(nw_model *m, uint32_t block, const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "encoder.block.%u.layer.%s.weight", block, name);
    return reference_tensor(m, full);
}

/* y [n, rows] = x [n, cols] times w [rows, cols] transposed; takes w. */
static inline double *reference_product(const double *x, double *w, size_t n, size_t rows, size_t cols)
{
    NW_CHECK(w != NULL);
    double *y = calloc(n * rows, sizeof *y);
    for (size_t i = 0; i < n; i++) {
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < cols; c++)
                y[i * rows + r] += x[i * cols + c] * w[r * cols + c];
        }
    }
    free(w);
    return y;
}

/* Takes g. */
static inline double *reference_norm(const double *x, double *g, size_t n, size_t d, double epsilon)
{
    NW_CHECK(g != NULL);
    double *y = malloc(n * d * sizeof *y);
    for (size_t i = 0; i < n; i++) {
        double squares = 0;
        for (size_t c = 0; c < d; c++)
            squares += x[i * d + c] * x[i * d + c];
        for (size_t c = 0; c < d; c++)
            y[i * d + c] = g[c] * x[i * d + c] / sqrt(squares / (double)d + epsilon);
    }
    free(g);
    return y;
}

static inline size_t reference_bucket(const nw_config *c, size_t query, size_t key)
{
    size_t half = c->bucket_count / 2, exact = half / 2;
    size_t distance = key > query ? key - query : query - key, bucket = distance;
    if (distance >= exact) {
        double share = log((double)distance / (double)exact) / log((double)c->bucket_distance / (double)exact);
        bucket = exact + (size_t)(share * (double)(half - exact));
        bucket = bucket < half - 1 ? bucket : half - 1;
    }
    return bucket + (key > query ? half : 0);
}

static inline double reference_activate(const nw_config *c, double x)
{
    switch (c->activation) {
    case NW_ACT_RELU: return x > 0 ? x : 0;
    case NW_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case NW_ACT_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    case NW_ACT_SILU: return x / (1 + exp(-x));
    case NW_ACT_NONE: break;
    }
    return NAN;
}

/* a [n, inner] of one head. */
static inline void reference_head(const nw_config *c, const double *bias, const double *q, const double *k,
                                  const double *v, double *a, size_t head, size_t n, size_t keys)
{
    size_t  inner = nw_config_inner(c), d = c->d_kv;
    double *p = malloc(keys * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        double highest = -INFINITY, sum = 0;
        for (size_t j = 0; j < keys; j++) {
            p[j] = bias[reference_bucket(c, i, j) * c->head_count + head];
            for (size_t e = 0; e < d; e++)
                p[j] += q[i * inner + head * d + e] * k[j * inner + head * d + e];
            highest = p[j] > highest ? p[j] : highest;
        }
        for (size_t j = 0; j < keys; j++)
            sum += p[j] = exp(p[j] - highest);
        for (size_t j = 0; j < keys; j++) {
            for (size_t e = 0; e < d; e++)
                a[i * inner + head * d + e] += p[j] / sum * v[j * inner + head * d + e];
        }
    }
    free(p);
}

/* x += the attention of one block. */
static inline void reference_attention(nw_model *m, uint32_t block, double *x, size_t n, size_t keys)
{
    const nw_config *c = &m->config;
    size_t           d = c->d_model, inner = nw_config_inner(c);
    double          *h = reference_norm(x, reference_weight(m, block, "0.layer_norm"), n, d, (double)c->norm_epsilon);
    double          *q = reference_product(h, reference_weight(m, block, "0.SelfAttention.q"), n, inner, d);
    double          *k = reference_product(h, reference_weight(m, block, "0.SelfAttention.k"), n, inner, d);
    double          *v = reference_product(h, reference_weight(m, block, "0.SelfAttention.v"), n, inner, d);
    double          *a = calloc(n * inner, sizeof *a);
    double *bias = reference_weight(m, c->bias_per_block ? block : 0, "0.SelfAttention.relative_attention_bias");
    for (size_t head = 0; head < c->head_count; head++)
        reference_head(c, bias, q, k, v, a, head, n, keys);
    double *o = reference_product(a, reference_weight(m, block, "0.SelfAttention.o"), n, d, inner);
    for (size_t i = 0; i < n * d; i++)
        x[i] += o[i];
    free(h), free(q), free(k), free(v), free(a), free(bias), free(o);
}

/* x += the feed-forward part of one block. */
static inline void reference_feed_forward(nw_model *m, uint32_t block, double *x, size_t n)
{
    const nw_config *c = &m->config;
    size_t           d = c->d_model;
    double          *h = reference_norm(x, reference_weight(m, block, "1.layer_norm"), n, d, (double)c->norm_epsilon);
    double          *gate = reference_weight(m, block, "1.DenseReluDense.wi_1");
    double          *wi = reference_weight(m, block, gate != NULL ? "1.DenseReluDense.wi_0" : "1.DenseReluDense.wi");
    double          *ff = reference_product(h, wi, n, c->d_ff, d);
    double          *times = gate != NULL ? reference_product(h, gate, n, c->d_ff, d) : NULL;
    for (size_t i = 0; i < n * c->d_ff; i++)
        ff[i] = reference_activate(c, ff[i]) * (times != NULL ? times[i] : 1);
    double *o = reference_product(ff, reference_weight(m, block, "1.DenseReluDense.wo"), n, d, c->d_ff);
    for (size_t i = 0; i < n * d; i++)
        x[i] += o[i];
    free(h), free(ff), free(times), free(o);
}

/* States [n, d_model] of n ids, of which the first `keys` are attended to; free them. */
static inline double *reference_encode(nw_model *m, const uint32_t *ids, size_t n, size_t keys)
{
    const nw_config *c = &m->config;
    size_t           d = c->d_model;
    double          *embed = reference_tensor(m, "shared.weight");
    if (embed == NULL)
        embed = reference_tensor(m, "encoder.embed_tokens.weight");
    if (embed == NULL)
        embed = reference_tensor(m, "decoder.embed_tokens.weight");
    NW_CHECK(embed != NULL);
    double *x = malloc(n * d * sizeof *x);
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * d, embed + ids[i] * d, d * sizeof *x);
    for (uint32_t b = 0; b < c->encoder_blocks; b++) {
        reference_attention(m, b, x, n, keys);
        reference_feed_forward(m, b, x, n);
    }
    double *states =
        reference_norm(x, reference_tensor(m, "encoder.final_layer_norm.weight"), n, d, (double)c->norm_epsilon);
    free(embed), free(x);
    return states;
}

#endif

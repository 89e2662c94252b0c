/* The forward pass: norms and residual sums on whole rows, matrix products tile by tile (products.c), attention head by
 * head (attention.c). */
#include "attention.h"
#include "products.h"

#include <math.h>
#include <string.h>

/* ---- buffers ---- */

void nw_forward_layout(nw_forward *f, nw_arena *a)
{
    const nw_config *c = f->config;
    const nw_maxima *m = &f->maxima;
    size_t           inner = nw_config_inner(c);
    size_t           columns = c->decoder_blocks > 0 ? m->columns : 0;
    size_t           longest = nw_max_size(m->input_tokens, m->output_tokens);

    f->decode.x = nw_carve(a, columns * c->d_model, sizeof(float), 64);
    f->decode.h = nw_carve(a, columns * c->d_model, sizeof(float), 64);
    f->decode.q = nw_carve(a, columns * inner, sizeof(float), 64);
    f->decode.a = nw_carve(a, columns * inner, sizeof(float), 64);
    f->decode.ff = nw_carve(a, columns * c->d_ff, sizeof(float), 64);
    f->decode.scores = nw_carve(a, columns > 0 ? m->threads * longest : 0, sizeof(float), 64);

    f->decode.streamed = nw_carve(a, columns * c->head_count * nw_attention_streamed(m), sizeof(float), 64);

    /* Shared by both kinds of pass. */
    nw_products_layout(f, a);

    f->bucket_distances = nw_min_size(longest, c->bucket_distance + (size_t)1);
    f->bucket_encoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
    f->bucket_decoder = nw_carve(a, f->bucket_distances, sizeof(uint32_t), 64);
}

void nw_forward_encode_layout(nw_forward *f, nw_arena *a)
{
    const nw_config *c = f->config;
    size_t           t = f->maxima.encode_tokens;
    size_t           inner = nw_config_inner(c);
    f->encode.x = nw_carve(a, t * c->d_model, sizeof(float), 64);
    f->encode.h = nw_carve(a, t * c->d_model, sizeof(float), 64);
    /* Attention is over when the feed-forward layer begins. */
    size_t part = (size_t)nw_round_up(t * inner, 16);
    float *both = nw_carve(a, nw_max_size(4 * part, t * c->d_ff), sizeof(float), 64);
    f->encode.ff = f->encode.q = both;
    f->encode.k = both != NULL ? both + part : NULL;
    f->encode.v = both != NULL ? both + part * 2 : NULL;
    f->encode.a = both != NULL ? both + part * 3 : NULL;
    f->encode.scores = nw_carve(a, f->maxima.threads * nw_attention_floats(f), sizeof(float), 64);
}

void nw_forward_prepare(nw_forward *f)
{
    nw_bucket_table(f->config, true, f->bucket_encoder, f->bucket_distances);
    nw_bucket_table(f->config, false, f->bucket_decoder, f->bucket_distances);
}

/* ---- products ---- */

/* ff = act(wi h), and for a gated model ff *= wi_1 h, tile by tile in turn; then x += wo ff. */
static nw_code feed_forward(nw_forward *f, nw_stack stack, uint32_t block, const float *h, float *ff, float *x,
                            size_t columns, nw_error *err)
{
    const nw_config *c = f->config;
    nw_product       in = nw_product_make(f, h, columns, c->d_model, ff, c->d_ff, NW_JOIN_ACTIVATE);
    nw_product       gate = nw_product_make(f, h, columns, c->d_model, ff, c->d_ff, NW_JOIN_MULTIPLY);
    nw_product       out = nw_product_make(f, ff, columns, c->d_ff, x, c->d_model, NW_JOIN_ADD);
    nw_product_group both = {.products = {&in, &gate}, .count = c->gated ? 2 : 1, .in_turn = true};
    both.tensors[0] = nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI);
    if (c->gated)
        both.tensors[1] = nw_tensors_at(f->tensors, stack, block, NW_ROLE_WI1);
    nw_code rc = nw_multiply_group(&both, err);
    if (rc == NW_OK)
        rc = nw_multiply(&out, nw_tensors_at(f->tensors, stack, block, NW_ROLE_WO), err);
    return rc;
}

/* The queries, keys and values of a block's self-attention, which are made from the same columns. */
static nw_code multiply_qkv(const nw_product *q, const nw_product *k, const nw_product *v, nw_stack stack,
                            uint32_t block, nw_error *err)
{
    const nw_tensors *ts = q->f->tensors;
    nw_product_group  g = {.products = {q, k, v}, .count = 3};
    g.tensors[0] = nw_tensors_at(ts, stack, block, NW_ROLE_Q);
    g.tensors[1] = nw_tensors_at(ts, stack, block, NW_ROLE_K);
    g.tensors[2] = nw_tensors_at(ts, stack, block, NW_ROLE_V);
    return nw_multiply_group(&g, err);
}

/* ---- norms ---- */

typedef struct {
    const nw_forward *f;
    float            *y;
    const float      *x, *g;
} norm_job;

static void norm_row(void *ctx, size_t i, size_t worker)
{
    (void)worker;
    const norm_job *j = ctx;
    size_t          d = j->f->config->d_model;
    j->f->kernels->norm(j->y + i * d, j->x + i * d, j->g, d, j->f->config->norm_epsilon);
}

static void norm(nw_forward *f, float *y, const float *x, uint32_t tensor, size_t columns)
{
    norm_job j = {.f = f, .y = y, .x = x, .g = f->weights.vector(f->weights.user, tensor)};
    if (columns == 1)
        norm_row(&j, 0, 0); /* waking the workers would take longer */
    else
        f->team.run(f->team.user, NW_WORK_NORM, norm_row, &j, columns);
}

/* The bias table of a block: block 0's, unless every block has its own. */
static const float *bias_table(nw_forward *f, nw_stack stack, uint32_t block)
{
    uint32_t owner = f->config->bias_per_block ? block : 0;
    return f->weights.vector(f->weights.user, nw_tensors_at(f->tensors, stack, owner, NW_ROLE_BIAS));
}

/* ---- passes ---- */

static nw_code encode_block(nw_forward *f, uint32_t block, const nw_encode_input *inputs, size_t n, size_t rows,
                            nw_error *err)
{
    const nw_config  *c = f->config;
    const nw_tensors *ts = f->tensors;
    size_t            inner = nw_config_inner(c), d = c->d_model;
    nw_product        q = nw_product_make(f, f->encode.h, rows, d, f->encode.q, inner, NW_JOIN_STORE);
    nw_product        k = nw_product_make(f, f->encode.h, rows, d, f->encode.k, inner, NW_JOIN_STORE);
    nw_product        v = nw_product_make(f, f->encode.h, rows, d, f->encode.v, inner, NW_JOIN_STORE);

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_SELF), rows);
    nw_code rc = multiply_qkv(&q, &k, &v, NW_STACK_ENCODER, block, err);
    if (rc != NW_OK)
        return rc;

    nw_attend_encode(f, inputs, n, bias_table(f, NW_STACK_ENCODER, block));

    nw_product o = nw_product_make(f, f->encode.a, rows, inner, f->encode.x, d, NW_JOIN_ADD);
    rc = nw_multiply(&o, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_O), err);
    if (rc != NW_OK)
        return rc;

    norm(f, f->encode.h, f->encode.x, nw_tensors_at(ts, NW_STACK_ENCODER, block, NW_ROLE_NORM_FF), rows);
    return feed_forward(f, NW_STACK_ENCODER, block, f->encode.h, f->encode.ff, f->encode.x, rows, err);
}

/* The embeddings of an input's tokens and of its pads: x [count + pads, d_model]. */
static nw_code embed_input(nw_forward *f, const nw_encode_input *in, float *x, nw_error *err)
{
    size_t  d = f->config->d_model, rows = nw_input_rows(in);
    nw_code rc = f->weights.embed(f->weights.user, in->ids, in->count, x, err);
    if (rc == NW_OK && in->pads > 0)
        rc = f->weights.embed(f->weights.user, &in->pad_id, 1, x + in->count * d, err);
    for (size_t i = in->count + 1; i < rows && rc == NW_OK; i++)
        memcpy(x + i * d, x + in->count * d, d * sizeof *x);
    return rc;
}

nw_code nw_forward_encode(nw_forward *f, const nw_encode_input *inputs, size_t n, float **ret_states, nw_error *err)
{
    size_t  rows = 0;
    nw_code rc = NW_OK;
    NW_CHECK(n >= 1);
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        NW_CHECK(inputs[i].count >= 1 && inputs[i].pads <= f->maxima.input_tokens);
        NW_CHECK(nw_input_rows(&inputs[i]) <= f->maxima.input_tokens);
        NW_CHECK(rows + nw_input_rows(&inputs[i]) <= f->maxima.encode_tokens);
        rc = embed_input(f, &inputs[i], f->encode.x + rows * f->config->d_model, err);
        rows += nw_input_rows(&inputs[i]);
    }
    for (uint32_t b = 0; b < f->config->encoder_blocks && rc == NW_OK; b++)
        rc = encode_block(f, b, inputs, n, rows, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->encode.h, f->encode.x, nw_tensors_at(f->tensors, NW_STACK_ENCODER, 0, NW_ROLE_NORM_FINAL), rows);
    *ret_states = f->encode.h;
    return NW_OK;
}

/* K or V of a block for all inputs, made in `rows` [count, inner] and given away. */
static nw_code store_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t n, size_t count,
                           uint32_t block, bool values, float *rows, nw_error *err)
{
    uint32_t   tensor = nw_tensors_at(f->tensors, NW_STACK_DECODER, block, values ? NW_ROLE_CROSS_V : NW_ROLE_CROSS_K);
    size_t     inner = nw_config_inner(f->config);
    nw_product p = nw_product_make(f, states, count, f->config->d_model, rows, inner, NW_JOIN_STORE);
    nw_code    rc = nw_multiply(&p, tensor, err);
    for (size_t i = 0; i < n && rc == NW_OK; i++) {
        rc = f->weights.kv_store(f->weights.user, crosses[i], block, values, rows, err);
        rows += crosses[i]->length * inner;
    }
    return rc;
}

/* K or V of a block for all inputs, straight into their pages. */
static nw_code page_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t count, uint32_t block,
                          bool values, nw_error *err)
{
    nw_kv_target target = {.crosses = crosses, .block = block, .values = values};
    nw_product   p = nw_product_make(f, states, count, f->config->d_model, NULL, 0, NW_JOIN_STORE);
    p.kv = &target;
    return nw_multiply(
        &p, nw_tensors_at(f->tensors, NW_STACK_DECODER, block, values ? NW_ROLE_CROSS_V : NW_ROLE_CROSS_K), err);
}

nw_code nw_forward_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t n, nw_error *err)
{
    size_t  rows = 0;
    nw_code rc = NW_OK;
    NW_CHECK(n >= 1);
    for (size_t i = 0; i < n; i++) {
        const nw_kv *kv = &crosses[i]->kv;
        NW_CHECK(crosses[i]->length >= 1);
        NW_CHECK(f->maxima.stream_cross || crosses[i]->length <= (size_t)kv->page_count * kv->page_rows);
        rows += crosses[i]->length;
    }
    NW_CHECK(rows <= f->maxima.encode_tokens);
    for (uint32_t b = 0; b < f->config->decoder_blocks; b++) {
        for (int v = 0; v < 2 && rc == NW_OK; v++) {
            float *buffer = v == 1 ? f->encode.v : f->encode.k;
            rc = f->maxima.stream_cross ? store_cross(f, states, crosses, n, rows, b, v == 1, buffer, err)
                                        : page_cross(f, states, crosses, rows, b, v == 1, err);
        }
    }
    return rc;
}

/* q into its buffer; K and V straight into the columns' pages. */
static nw_code decode_self_inputs(nw_forward *f, uint32_t block, const nw_column *columns, size_t n, nw_error *err)
{
    size_t       d = f->config->d_model;
    nw_kv_target keys = {.columns = columns, .block = block, .values = false};
    nw_kv_target values = {.columns = columns, .block = block, .values = true};
    nw_product   q = nw_product_make(f, f->decode.h, n, d, f->decode.q, nw_config_inner(f->config), NW_JOIN_STORE);
    nw_product   k = nw_product_make(f, f->decode.h, n, d, NULL, 0, NW_JOIN_STORE);
    nw_product   v = k;
    k.kv = &keys;
    v.kv = &values;
    return multiply_qkv(&q, &k, &v, NW_STACK_DECODER, block, err);
}

/* x += o a */
static nw_code decode_attention_output(nw_forward *f, uint32_t block, nw_role role, size_t n, nw_error *err)
{
    nw_product p =
        nw_product_make(f, f->decode.a, n, nw_config_inner(f->config), f->decode.x, f->config->d_model, NW_JOIN_ADD);
    return nw_multiply(&p, nw_tensors_at(f->tensors, NW_STACK_DECODER, block, role), err);
}

static nw_code decode_block(nw_forward *f, uint32_t block, const nw_column *columns, size_t n, nw_error *err)
{
    const nw_tensors *ts = f->tensors;
    float            *x = f->decode.x, *h = f->decode.h;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_SELF), n);
    nw_code rc = decode_self_inputs(f, block, columns, n, err);
    if (rc != NW_OK)
        return rc;
    rc = nw_attend_decode(f, columns, n, block, bias_table(f, NW_STACK_DECODER, block), err);
    if (rc == NW_OK)
        rc = decode_attention_output(f, block, NW_ROLE_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_CROSS), n);
    nw_product q = nw_product_make(f, h, n, f->config->d_model, f->decode.q, nw_config_inner(f->config), NW_JOIN_STORE);
    rc = nw_multiply(&q, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_CROSS_Q), err);
    if (rc != NW_OK)
        return rc;
    rc = nw_attend_decode(f, columns, n, block, NULL, err);
    if (rc == NW_OK)
        rc = decode_attention_output(f, block, NW_ROLE_CROSS_O, n, err);
    if (rc != NW_OK)
        return rc;

    norm(f, h, x, nw_tensors_at(ts, NW_STACK_DECODER, block, NW_ROLE_NORM_FF), n);
    return feed_forward(f, NW_STACK_DECODER, block, h, f->decode.ff, x, n, err);
}

/* The embeddings of up to NW_COLS_MAX columns' tokens, in one batch. */
static nw_code embed_columns(nw_forward *f, const nw_column *columns, size_t n, float *x, nw_error *err)
{
    uint32_t ids[NW_COLS_MAX];
    for (size_t i = 0; i < n; i++)
        ids[i] = columns[i].token;
    return f->weights.embed(f->weights.user, ids, n, x, err);
}

nw_code nw_forward_decode(nw_forward *f, const nw_column *columns, size_t n, float *logits, nw_error *err)
{
    const nw_config *c = f->config;
    size_t           d = c->d_model;
    nw_code          rc = NW_OK;
    NW_CHECK(n >= 1 && n <= f->maxima.columns);
    for (size_t i = 0; i < n; i++) {
        const nw_column *o = &columns[i];
        NW_CHECK(o->branch < o->branches && o->position < f->maxima.output_tokens);
        NW_CHECK((size_t)o->position * o->branches + o->branch < (size_t)o->self->page_count * o->self->page_rows);
    }
    for (size_t i = 0; i < n && rc == NW_OK; i += NW_COLS_MAX)
        rc = embed_columns(f, columns + i, nw_min_size(NW_COLS_MAX, n - i), f->decode.x + i * d, err);
    for (uint32_t b = 0; b < c->decoder_blocks && rc == NW_OK; b++)
        rc = decode_block(f, b, columns, n, err);
    if (rc != NW_OK)
        return rc;
    norm(f, f->decode.h, f->decode.x, nw_tensors_at(f->tensors, NW_STACK_DECODER, 0, NW_ROLE_NORM_FINAL), n);
    if (c->scale_output)
        f->kernels->scale(f->decode.h, (float)(1 / sqrt((double)d)), n * d);
    nw_product head = nw_product_make(f, f->decode.h, n, d, logits, c->vocab_size, NW_JOIN_STORE);
    return nw_multiply(&head, f->tensors->head, err);
}

double nw_log_probability(const nw_kernels *k, const float *logits, size_t n, size_t index)
{
    float max, sum;
    NW_CHECK(index < n);
    k->exp_sum(logits, n, &max, &sum);
    return (double)logits[index] - (double)max - nw_ln((double)sum);
}

void nw_log_probabilities_top(const nw_kernels *k, const float *logits, size_t n, size_t count, uint32_t *ids,
                              double *logprobs)
{
    float  max, sum;
    size_t held = 0;
    NW_CHECK(count >= 1 && count <= n);
    k->exp_sum(logits, n, &max, &sum);
    for (size_t i = 0; i < n; i++) {
        double value = isnan(logits[i]) ? -HUGE_VAL : (double)logits[i];
        if (held == count && value <= logprobs[held - 1])
            continue;
        size_t at = held < count ? held++ : held - 1;
        for (; at > 0 && value > logprobs[at - 1]; at--) {
            logprobs[at] = logprobs[at - 1];
            ids[at] = ids[at - 1];
        }
        logprobs[at] = value;
        ids[at] = (uint32_t)i;
    }
    for (size_t i = 0; i < count; i++)
        logprobs[i] = (double)logits[ids[i]] - (double)max - nw_ln((double)sum);
}

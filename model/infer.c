/* The shapes of one block say nearly all: embedding [vocab, d_model], q [inner, d_model], bias table [buckets, heads],
 * wi [d_ff, d_model]. That the other tensors agree is checked where every tensor's shape is. */
#include "model/infer.h"

#include <stdio.h>
#include <string.h>

#define Q_NAME "encoder.block.0.layer.0.SelfAttention.q.weight"
#define BIAS_NAME "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
#define WI0_NAME "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
#define WI_NAME "encoder.block.0.layer.1.DenseReluDense.wi.weight"

enum { BLOCKS_MAX = 1024 };

typedef struct {
    const nw_tensor_lookup *lookup;
    nw_config               config;
    char                    embed_name[64];
    bool                    looks_madlad, looks_ul2;
} inference;

static bool has(const inference *f, const char *name)
{
    return f->lookup->has(f->lookup->user, name);
}

/* The two dimensions of a matrix, each inside what any size may be. */
static nw_code matrix(const inference *f, const char *name, uint32_t ret[2], nw_error *err)
{
    uint64_t dims[2] = {0, 0};
    uint32_t count = f->lookup->dims(f->lookup->user, name, dims);
    if (count == 0)
        return nw_fail(err, NW_E_FORMAT, 0, "tensor %s is missing", name);
    if (count != 2 || dims[0] == 0 || dims[1] == 0 || dims[0] > (1u << 24) || dims[1] > (1u << 24)) {
        return nw_fail(err, NW_E_FORMAT, 0,
                       "no sizes can be inferred from tensor %s: it has %u dimensions, [%llu, %llu]", name, count,
                       (unsigned long long)dims[0], (unsigned long long)dims[1]);
    }
    ret[0] = (uint32_t)dims[0];
    ret[1] = (uint32_t)dims[1];
    return NW_OK;
}

static nw_code infer_embedding(inference *f, nw_error *err)
{
    nw_tensor_need need = {.stack = NW_STACK_SHARED, .role = NW_ROLE_EMBED};
    uint32_t       dims[2], at = 0;
    char           name[64];
    while (nw_tensor_name(&f->config, &need, at, name, sizeof name) && !has(f, name))
        at++;
    if (!nw_tensor_name(&f->config, &need, at, f->embed_name, sizeof f->embed_name))
        return nw_fail(err, NW_E_FORMAT, 0, "tensor shared.weight is missing");
    nw_code rc = matrix(f, f->embed_name, dims, err);
    if (rc != NW_OK)
        return rc;
    f->config.vocab_size = dims[0];
    f->config.d_model = dims[1];
    /* google/madlad400 files hold the embedding under this name alone, and have these sizes of vocabulary. */
    f->looks_madlad =
        strcmp(f->embed_name, "decoder.embed_tokens.weight") == 0 && dims[0] >= 256000 && dims[0] <= 256384;
    return NW_OK;
}

static nw_code infer_attention(inference *f, nw_error *err)
{
    uint32_t q[2], bias[2];
    nw_code  rc = matrix(f, Q_NAME, q, err);
    if (rc == NW_OK)
        rc = matrix(f, BIAS_NAME, bias, err);
    if (rc != NW_OK)
        return rc;
    if (q[1] != f->config.d_model) {
        return nw_fail(err, NW_E_FORMAT, 0, "tensor " Q_NAME " has %u columns, and %s has %u", q[1], f->embed_name,
                       f->config.d_model);
    }
    if (q[0] % bias[1] != 0) {
        return nw_fail(err, NW_E_FORMAT, 0, "the %u rows of " Q_NAME " are not divisible by the %u heads of " BIAS_NAME,
                       q[0], bias[1]);
    }
    f->config.bucket_count = bias[0];
    f->config.head_count = bias[1];
    f->config.d_kv = q[0] / bias[1];
    return NW_OK;
}

static nw_code infer_feed_forward(inference *f, nw_error *err)
{
    uint32_t wi[2];
    f->config.gated = has(f, WI0_NAME);
    nw_code rc = matrix(f, f->config.gated ? WI0_NAME : WI_NAME, wi, err);
    if (rc == NW_OK)
        f->config.d_ff = wi[0];
    return rc;
}

static uint32_t count_blocks(const inference *f, const char *stack)
{
    uint32_t count = 0;
    char     name[96];
    for (; count < BLOCKS_MAX; count++) {
        snprintf(name, sizeof name, "%s.block.%u.layer.0.SelfAttention.q.weight", stack, count);
        if (!has(f, name))
            break;
    }
    return count;
}

static void infer_structure(inference *f)
{
    nw_config *c = &f->config;
    c->encoder_blocks = count_blocks(f, "encoder");
    c->decoder_blocks = count_blocks(f, "decoder");
    c->head_tied = !has(f, "lm_head.weight");
    c->bias_per_block = nw_tensors_bias_per_block(f->lookup);
    snprintf(c->model_type, sizeof c->model_type, c->bias_per_block ? "umt5" : "t5");
    /* Models with a plain feed-forward part are T5 v1.0, all of them tied and scaled; older files of theirs hold a
     * copy of the embedding as lm_head.weight. */
    c->scale_output = (c->head_tied || !c->gated) && !c->bias_per_block && c->decoder_blocks > 0;
    c->byte_tokens = c->vocab_size == 384;
}

/* What no tensor says. */
static void assume(inference *f)
{
    nw_config *c = &f->config;
    f->looks_ul2 = c->gated && c->d_model == 4096 && c->d_kv == 256 && c->d_ff == 16384 && c->vocab_size == 32128;
    c->activation = !c->gated ? NW_ACT_RELU : f->looks_ul2 ? NW_ACT_SILU : NW_ACT_GELU_TANH;
    c->bucket_distance = 128;
    c->norm_epsilon = 1e-6f;
    c->pad_id = f->looks_madlad ? 1 : 0;
    c->eos_ids[0] = f->looks_madlad ? 2 : 1;
    c->eos_count = 1;
    c->start_id = 0;
}

static void write_notes(const inference *f, nw_infer_notes *notes)
{
    const nw_config *c = &f->config;
    snprintf(notes->line[0], NW_INFER_LINE_BYTES,
             "no config.json; inferred from the tensors: vocab_size %u%s, d_model %u (%s); %u heads of %u, %u buckets "
             "(SelfAttention.q, relative_attention_bias); d_ff %u (DenseReluDense.%s)",
             c->vocab_size, c->byte_tokens ? ", so bytes (ByT5)" : "", c->d_model, f->embed_name, c->head_count,
             c->d_kv, c->bucket_count, c->d_ff, c->gated ? "wi_0" : "wi");
    char blocks[64], head[144] = "";
    if (c->decoder_blocks > 0) {
        snprintf(blocks, sizeof blocks, "%u encoder and %u decoder blocks", c->encoder_blocks, c->decoder_blocks);
        snprintf(head, sizeof head, "; head %s, its input %s",
                 c->head_tied ? "tied (no lm_head.weight)" : "separate (lm_head.weight)",
                 !c->scale_output ? "not scaled"
                 : c->head_tied   ? "scaled by d_model^-0.5"
                                  : "scaled by d_model^-0.5 as in every plain T5");
    } else {
        snprintf(blocks, sizeof blocks, "%u encoder blocks, no decoder", c->encoder_blocks);
    }
    snprintf(notes->line[1], NW_INFER_LINE_BYTES,
             "inferred too: %s; %s feed-forward; bias tables in %s, so model_type %s%s", blocks,
             c->gated ? "gated" : "plain", c->bias_per_block ? "each block" : "the first block", c->model_type, head);
    const char *activation = c->gated ? f->looks_ul2 ? "silu (the sizes are UL2's)" : "gelu_new" : "relu";
    snprintf(notes->line[2], NW_INFER_LINE_BYTES,
             "assumed, as tensors do not tell: activation %s, bucket distance %u, norm epsilon 1e-6, pad %u, end %u, "
             "start %u%s; a config.json (--config) would say",
             activation, c->bucket_distance, c->pad_id, c->eos_ids[0], c->start_id,
             f->looks_madlad ? " (it looks like MADLAD)" : "");
}

nw_code nw_config_infer(const nw_tensor_lookup *lookup, nw_config *ret, nw_infer_notes *ret_notes, nw_error *err)
{
    inference f = {.lookup = lookup};
    nw_code   rc = infer_embedding(&f, err);
    if (rc == NW_OK)
        rc = infer_attention(&f, err);
    if (rc == NW_OK)
        rc = infer_feed_forward(&f, err);
    if (rc != NW_OK)
        return rc;
    infer_structure(&f);
    assume(&f);
    rc = nw_config_check(&f.config, "inferred from the tensors", err);
    if (rc != NW_OK)
        return rc;
    write_notes(&f, ret_notes);
    *ret = f.config;
    return NW_OK;
}

/* Numbers from the config.json of each model. The last column is the published count of weights, and the sum over the
 * tensors that nw_shape_walk lists has to equal it (narrows-generate --list checks all): so neither a number nor a
 * tensor can be wrong unnoticed. */
#include "shapes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RELU "relu"
#define GELU "gated-gelu"
#define SILU "gated-silu"

/* Names, type, feed-forward, vocabulary, d_model, d_kv, d_ff, heads, encoder and decoder blocks, tied,
 * decoder_embedding, pad, eos, start, buckets, weights. */
static const nw_shape shapes[] = {
    {"t5-small", "t5", RELU, 32128, 512, 64, 2048, 8, 6, 6, true, false, 0, 1, 0, 32, 60506624},
    {"t5-base", "t5", RELU, 32128, 768, 64, 3072, 12, 12, 12, true, false, 0, 1, 0, 32, 222903552},
    {"t5-large", "t5", RELU, 32128, 1024, 64, 4096, 16, 24, 24, true, false, 0, 1, 0, 32, 737668096},
    {"t5-3b", "t5", RELU, 32128, 1024, 128, 16384, 32, 24, 24, true, false, 0, 1, 0, 32, 2851598336},
    {"t5-11b", "t5", RELU, 32128, 1024, 128, 65536, 128, 24, 24, true, false, 0, 1, 0, 32, 11307321344},
    {"t5-v1_1-small flan-t5-small", "t5", GELU, 32128, 512, 64, 1024, 6, 8, 8, false, false, 0, 1, 0, 32, 76961152},
    {"t5-v1_1-base flan-t5-base", "t5", GELU, 32128, 768, 64, 2048, 12, 12, 12, false, false, 0, 1, 0, 32, 247577856},
    {"t5-v1_1-large flan-t5-large", "t5", GELU, 32128, 1024, 64, 2816, 16, 24, 24, false, false, 0, 1, 0, 32,
     783150080},
    {"t5-v1_1-xl flan-t5-xl T0_3B flan-alpaca-xl flan-alpaca-gpt4-xl", "t5", GELU, 32128, 2048, 64, 5120, 32, 24, 24,
     false, false, 0, 1, 0, 32, 2849757184},
    {"t5-v1_1-xxl flan-t5-xxl T0pp flan-alpaca-xxl", "t5", GELU, 32128, 4096, 64, 10240, 64, 24, 24, false, false, 0, 1,
     0, 32, 11135332352},
    {"mt5-small", "mt5", GELU, 250112, 512, 64, 1024, 6, 8, 8, false, false, 0, 1, 0, 32, 300176768},
    {"mt5-base", "mt5", GELU, 250112, 768, 64, 2048, 12, 12, 12, false, false, 0, 1, 0, 32, 582401280},
    {"mt5-large", "mt5", GELU, 250112, 1024, 64, 2816, 16, 24, 24, false, false, 0, 1, 0, 32, 1229581312},
    {"mt5-xl mt0-xl", "mt5", GELU, 250112, 2048, 64, 5120, 32, 24, 24, false, false, 0, 1, 0, 32, 3742619648},
    {"mt5-xxl mt0-xxl aya-101", "mt5", GELU, 250112, 4096, 64, 10240, 64, 24, 24, false, false, 0, 1, 0, 32,
     12921057280},
    {"umt5-small", "umt5", GELU, 256384, 512, 64, 1024, 6, 8, 8, false, false, 0, 1, 0, 32, 306601984},
    {"umt5-base", "umt5", GELU, 256384, 768, 64, 2048, 12, 12, 12, false, false, 0, 1, 0, 32, 592043520},
    {"umt5-xl", "umt5", GELU, 256384, 2048, 64, 5120, 32, 24, 24, false, false, 0, 1, 0, 32, 3768356864},
    {"umt5-xxl", "umt5", GELU, 256384, 4096, 64, 10240, 64, 24, 24, false, false, 0, 1, 0, 32, 12972531712},
    {"byt5-small", "t5", GELU, 384, 1472, 64, 3584, 6, 12, 4, false, false, 0, 1, 0, 32, 299637760},
    {"byt5-base", "t5", GELU, 384, 1536, 64, 3968, 12, 18, 6, false, false, 0, 1, 0, 32, 581653248},
    {"byt5-large", "t5", GELU, 384, 1536, 64, 3840, 16, 36, 12, false, false, 0, 1, 0, 32, 1228183552},
    {"byt5-xl", "t5", GELU, 384, 2560, 64, 6720, 32, 36, 12, false, false, 0, 1, 0, 32, 3737801728},
    {"byt5-xxl", "t5", GELU, 384, 4672, 64, 12352, 64, 36, 12, false, false, 0, 1, 0, 32, 12906899328},
    {"madlad400-3b-mt", "t5", GELU, 256000, 1024, 128, 8192, 16, 32, 32, false, true, 1, 2, 0, 32, 2940374016},
    {"madlad400-7b-mt madlad400-7b-mt-bt", "t5", GELU, 256000, 2048, 128, 8192, 16, 48, 48, false, true, 1, 2, 0, 32,
     8296829952},
    {"madlad400-10b-mt", "t5", GELU, 256000, 2048, 128, 16384, 32, 32, 32, false, true, 1, 2, 0, 32, 10712586240},
    {"ul2 flan-ul2", "t5", SILU, 32128, 4096, 256, 16384, 16, 32, 32, true, false, 0, 1, 0, 32, 19459613696},
};

const nw_shape *nw_shape_at(size_t index)
{
    return index < sizeof shapes / sizeof shapes[0] ? &shapes[index] : NULL;
}

/* True if `name` is one of the words of `names`. */
static bool has_word(const char *names, const char *name)
{
    size_t len = strlen(name);
    while (*names != '\0') {
        size_t word = strcspn(names, " ");
        if (word == len && memcmp(names, name, len) == 0)
            return true;
        names += word;
        names += strspn(names, " ");
    }
    return false;
}

const nw_shape *nw_shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (has_word(shapes[i].names, name))
            return &shapes[i];
    }
    return NULL;
}

/* A walk over the tensors; `rc` keeps the first error, after which nothing more is visited. */
typedef struct {
    const nw_shape *shape;
    nw_shape_fn     fn;
    void           *user;
    nw_error       *err;
    nw_code         rc;
    char            prefix[48]; /* of names: "decoder.block.3.layer.1." or nothing */
    bool            new_group;
} walk;

static void visit(walk *w, const char *name, uint64_t rows, uint64_t cols, double mean, double sigma, bool is_head)
{
    if (w->rc != NW_OK)
        return;
    nw_shape_tensor tensor = {.dim_count = rows > 0 ? 2 : 1,
                              .rows = rows > 0 ? rows : 1,
                              .cols = cols,
                              .mean = mean,
                              .sigma = sigma,
                              .starts_group = w->new_group,
                              .is_head = is_head};
    int             len = snprintf(tensor.name, sizeof tensor.name, "%s%s", w->prefix, name);
    NW_CHECK(len > 0 && (size_t)len < sizeof tensor.name);
    w->new_group = false;
    w->rc = w->fn(w->user, &tensor, w->err);
}

static double inverse_root(double n)
{
    return 1.0 / sqrt(n);
}

static void visit_alone(walk *w, const char *name, uint64_t rows, uint64_t cols, double mean, double sigma,
                        bool is_head)
{
    w->prefix[0] = '\0';
    w->new_group = true;
    visit(w, name, rows, cols, mean, sigma, is_head);
}

/* Sigmas: each product of a state of variance 1 (after a norm) has variance 1, but for q, which takes up the missing
 * 1/sqrt(d_kv) of T5's scores. */
static void visit_attention(walk *w, const char *kind, bool with_bias)
{
    const nw_shape *s = w->shape;
    uint64_t        inner = (uint64_t)s->head_count * s->d_kv;
    double          of_model = inverse_root(s->d_model);
    struct {
        const char *name;
        uint64_t    rows, cols;
        double      sigma;
    } parts[] = {{"q", inner, s->d_model, of_model * inverse_root(s->d_kv)},
                 {"k", inner, s->d_model, of_model},
                 {"v", inner, s->d_model, of_model},
                 {"o", s->d_model, inner, inverse_root((double)inner)},
                 {"relative_attention_bias", s->bucket_count, s->head_count, of_model}};
    for (size_t i = 0; i < (with_bias ? 5 : 4); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s.weight", kind, parts[i].name);
        visit(w, name, parts[i].rows, parts[i].cols, 0, parts[i].sigma, false);
    }
}

static void visit_feed_forward(walk *w)
{
    const nw_shape *s = w->shape;
    double          of_model = inverse_root(s->d_model);
    if (strncmp(s->feed_forward, "gated-", 6) == 0) {
        visit(w, "DenseReluDense.wi_0.weight", s->d_ff, s->d_model, 0, of_model, false);
        visit(w, "DenseReluDense.wi_1.weight", s->d_ff, s->d_model, 0, of_model, false);
    } else {
        visit(w, "DenseReluDense.wi.weight", s->d_ff, s->d_model, 0, of_model, false);
    }
    visit(w, "DenseReluDense.wo.weight", s->d_model, s->d_ff, 0, inverse_root(s->d_ff), false);
}

static void visit_block(walk *w, bool decoder, uint32_t block)
{
    const nw_shape *s = w->shape;
    bool            with_bias = block == 0 || strcmp(s->model_type, "umt5") == 0;
    uint32_t        layers = decoder ? 3 : 2;
    w->new_group = true;
    for (uint32_t layer = 0; layer < layers; layer++) {
        snprintf(w->prefix, sizeof w->prefix, "%s.block.%u.layer.%u.", decoder ? "decoder" : "encoder", block, layer);
        if (layer == 0)
            visit_attention(w, "SelfAttention", with_bias);
        else if (layer + 1 < layers)
            visit_attention(w, "EncDecAttention", false);
        else
            visit_feed_forward(w);
        visit(w, "layer_norm.weight", 0, s->d_model, 1, 0.1, false);
    }
}

nw_code nw_shape_walk(const nw_shape *shape, nw_shape_fn fn, void *user, nw_error *err)
{
    walk w = {.shape = shape, .fn = fn, .user = user, .err = err, .rc = NW_OK};
    bool has_decoder = shape->decoder_blocks > 0;
    visit_alone(&w, shape->decoder_embedding ? "decoder.embed_tokens.weight" : "shared.weight", shape->vocab_size,
                shape->d_model, 0, 1, shape->tied && has_decoder);
    for (uint32_t block = 0; block < shape->encoder_blocks; block++)
        visit_block(&w, false, block);
    visit_alone(&w, "encoder.final_layer_norm.weight", 0, shape->d_model, 1, 0.1, false);
    for (uint32_t block = 0; block < shape->decoder_blocks; block++)
        visit_block(&w, true, block);
    if (has_decoder)
        visit_alone(&w, "decoder.final_layer_norm.weight", 0, shape->d_model, 1, 0.1, false);
    if (has_decoder && !shape->tied)
        visit_alone(&w, "lm_head.weight", shape->vocab_size, shape->d_model, 0, inverse_root(shape->d_model), true);
    return w.rc;
}

static nw_code add_params(void *user, const nw_shape_tensor *tensor, nw_error *err)
{
    (void)err;
    uint64_t *sum = user;
    *sum += tensor->rows * tensor->cols;
    return NW_OK;
}

uint64_t nw_shape_params(const nw_shape *shape)
{
    uint64_t sum = 0;
    nw_code  rc = nw_shape_walk(shape, add_params, &sum, NULL);
    NW_CHECK(rc == NW_OK);
    return sum;
}

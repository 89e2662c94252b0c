/* The shapes of the published T5 models, and the tensors that a checkpoint of a shape holds. */
#ifndef NW_BENCHMARKS_SHAPES_H
#define NW_BENCHMARKS_SHAPES_H

#include "base/check.h"
#include "base/error.h"

#define NW_SHAPE_DEFAULT_BUCKETS 32

typedef struct {
    const char *names;        /* separated by spaces: those on the hub, without the owner */
    const char *model_type;   /* "t5", "mt5", "umt5": umt5 has a bias table in every block */
    const char *feed_forward; /* "relu", or "gated-" and an activation */
    uint32_t    vocab_size, d_model, d_kv, d_ff, head_count;
    uint32_t    encoder_blocks, decoder_blocks; /* decoder_blocks 0: encoder only */
    bool        tied;                           /* the head is the embedding */
    bool        decoder_embedding;              /* the embedding is stored as decoder.embed_tokens, as in MADLAD */
    uint32_t    pad_id, eos_id, start_id;
    uint32_t    bucket_count;
    uint64_t    params; /* weights in all, as published; 0: not known */
} nw_shape;

/* The shape of that name; NULL if there is none. */
const nw_shape *nw_shape_find(const char *name);

/* The index-th published shape; NULL past the last. */
const nw_shape *nw_shape_at(size_t index);

typedef struct {
    char     name[96];
    uint32_t dim_count; /* 1: cols only */
    uint64_t rows, cols;
    double   mean, sigma;  /* of its weights in a random model whose states stay near 1 */
    bool     starts_group; /* first tensor of a block, or a tensor outside blocks */
    bool     is_head;      /* logits are its rows times a state: the head, or the embedding it is tied to */
} nw_shape_tensor;

/* Calls fn for each tensor, in the order of computing; stops at an error and returns it. */
typedef nw_code (*nw_shape_fn)(void *user, const nw_shape_tensor *tensor, nw_error *err);
NW_MUST_USE nw_code nw_shape_walk(const nw_shape *shape, nw_shape_fn fn, void *user, nw_error *err);

/* The sum over all tensors. */
uint64_t nw_shape_params(const nw_shape *shape);

#endif

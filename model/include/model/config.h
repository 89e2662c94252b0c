/* The configuration of a T5 family model: what config.json says, resolved.
 *
 * Covers T5 v1.0, v1.1, Flan, mT5, UMT5, ByT5, UL2, MADLAD and encoder-only checkpoints. Whether the feed-forward part
 * is gated and whether the head is a table of its own is decided by the tensors (nw_config_settle), because config
 * files in the wild contradict them.
 */
#ifndef NW_MODEL_CONFIG_H
#define NW_MODEL_CONFIG_H

#include "base/generation.h"
#include "base/memory.h"
#include "model/kernels.h"

typedef struct {
    char     model_type[16]; /* "t5", "mt5", "umt5" */
    uint32_t vocab_size;     /* rows of the embedding and of the head */
    uint32_t d_model, d_kv, d_ff, head_count;
    uint32_t encoder_blocks, decoder_blocks; /* decoder_blocks 0: encoder only */
    uint32_t bucket_count, bucket_distance;  /* relative attention: buckets per table, distance of the last one */
    float    norm_epsilon;
    nw_activation activation;
    bool     gated;          /* wo(act(wi_0 x) * wi_1 x); otherwise wo(act(wi x)) */
    bool     head_tied;      /* the head is the embedding */
    bool     scale_output;   /* the decoder's states times d_model^-0.5 before the head */
    bool     bias_per_block; /* UMT5: every block has its own bias table */
    bool     byte_tokens;    /* ByT5: the tokenizer needs no file */
    uint32_t pad_id, start_id;
    uint32_t eos_ids[NW_EOS_MAX];
    uint32_t eos_count; /* the first one is what the tokenizer appends */
} nw_config;

/* heads * d_kv: the width of q, k, v. Not d_model (T5.md part 1). */
static inline uint32_t nw_config_inner(const nw_config *c) { return c->head_count * c->d_kv; }

/* Reads config.json.
 *
 * name    what messages call the file.
 * Errors  NW_E_FORMAT: no JSON, a number missing, zero, out of range (each dimension at most 2^20 times 16, vocabulary
 *         2^24, blocks 1024); NW_E_UNSUPPORTED: a feed_forward_proj or model_type that this version cannot run, by its
 *         family's name if it is a known one. */
NW_MUST_USE nw_code nw_config_parse(nw_memory *mem, const char *name, const char *json, size_t bytes, nw_config *ret,
                                    nw_error *err);

/* Checks what must hold between the members, and their limits; nw_config_parse has done it.
 * name    said in front of messages.
 * Errors  NW_E_FORMAT. */
NW_MUST_USE nw_code nw_config_check(const nw_config *c, const char *name, nw_error *err);

bool nw_config_is_eos(const nw_config *c, uint32_t id);

/* First distance of each relative attention bucket, as integer thresholds (T5.md part 3).
 *
 * starts  room for bucket_count values: starts[b] is the smallest distance whose bucket is b, for one direction.
 * Returns how many buckets one direction has: bucket_count / 2 when bidirectional (encoder), bucket_count otherwise. */
uint32_t nw_bucket_starts(const nw_config *c, bool bidirectional, uint32_t *starts);

/* bucket[d] for d = 0 .. distances - 1, made from the thresholds. */
void nw_bucket_table(const nw_config *c, bool bidirectional, uint32_t *bucket, size_t distances);

#endif

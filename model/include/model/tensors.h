/* Which tensors a configuration needs, what they are called, and in what order a pass walks over their tiles.
 *
 * Pure functions of the configuration: the runtime joins them with the places that the loader found.
 */
#ifndef NW_MODEL_TENSORS_H
#define NW_MODEL_TENSORS_H

#include "base/tile.h"
#include "model/config.h"

typedef enum { NW_STACK_SHARED, NW_STACK_ENCODER, NW_STACK_DECODER } nw_stack;

typedef enum {
    NW_ROLE_EMBED, /* [vocab, d_model]; read by rows, never walked over unless the head is tied to it */
    NW_ROLE_HEAD,  /* [vocab, d_model] */
    NW_ROLE_NORM_FINAL,
    NW_ROLE_NORM_SELF, /* [d_model] */
    NW_ROLE_BIAS,      /* [buckets, heads] */
    NW_ROLE_Q,         /* [inner, d_model] */
    NW_ROLE_K,
    NW_ROLE_V,
    NW_ROLE_O, /* [d_model, inner] */
    NW_ROLE_NORM_CROSS,
    NW_ROLE_CROSS_Q,
    NW_ROLE_CROSS_K,
    NW_ROLE_CROSS_V,
    NW_ROLE_CROSS_O,
    NW_ROLE_NORM_FF,
    NW_ROLE_WI,  /* [d_ff, d_model]: wi, or wi_0 of a gated model */
    NW_ROLE_WI1, /* [d_ff, d_model]: gated only */
    NW_ROLE_WO,  /* [d_model, d_ff] */
    NW_ROLE_COUNT
} nw_role;

/* One tensor that the model needs. Its index in nw_tensors.list is the `tensor` of steps and of nw_weights. */
typedef struct {
    nw_stack stack;
    nw_role  role;
    uint32_t block; /* 0 outside blocks */
    uint64_t rows, cols; /* a vector of n has rows 1, cols n */
    bool     vector; /* norm or bias: small, kept resident as f32; never part of a schedule */
} nw_tensor_need;

typedef struct {
    nw_tensor_need *list;
    uint32_t        count;
    uint32_t        embed, head;   /* indices; the same when tied; head is UINT32_MAX without a decoder */
    /* For nw_tensors_at: where each role of blocks 0 and 1 stands ([stack][block][role], UINT32_MAX: not there), and
     * how many entries a block has from block 1 on. Block 0 is apart because it alone may have a bias table. */
    uint32_t at[3][2][NW_ROLE_COUNT];
    uint32_t stride[3];
} nw_tensors;

/* How many tensors nw_tensors_fill will list. */
uint32_t nw_tensors_count(const nw_config *c);

/* Fills `list` (room for nw_tensors_count). Borrows list. */
void nw_tensors_fill(const nw_config *c, nw_tensor_need *list, nw_tensors *ret);

/* Index of one tensor; traps if the configuration does not have it. */
uint32_t nw_tensors_at(const nw_tensors *t, nw_stack stack, uint32_t block, nw_role role);

/* The index-th name that files use for a tensor, best first; false when there are no more.
 * The embedding has three (shared, encoder.embed_tokens, decoder.embed_tokens), never lm_head. */
bool nw_tensor_name(const nw_config *c, const nw_tensor_need *need, uint32_t index, char *buf, size_t cap);

/* Where a tensor belongs by its name alone, whether or not a configuration needs it. Sorted by part, then block,
 * tensors stand as a run uses them: embeddings, encoder blocks, decoder blocks, head, all else. */
typedef enum {
    NW_PART_EMBED,
    NW_PART_ENCODER_BLOCK,
    NW_PART_ENCODER,
    NW_PART_DECODER_BLOCK,
    NW_PART_DECODER,
    NW_PART_HEAD,
    NW_PART_OTHER
} nw_part;
typedef struct {
    nw_part  part;
    uint32_t block; /* of a block's tensor; otherwise 0 */
} nw_name_place;
nw_name_place nw_tensor_name_place(const char *name);

/* True for the name of a tensor that the model needs, or that may lie beside them in a T5's file without meaning
 * anything: copies of the embedding, a head without a decoder, the decoder's part under a configuration that has none,
 * and the cross-attention bias table of T5 v1.0 files, which the reference ignores too. Anything else under encoder.,
 * decoder., shared. or lm_head. changes what the model computes. */
bool nw_tensor_expected(const nw_config *c, const char *name);

/* True for a tensor of a head that classifies or marks answers, which models of that kind have in the place of lm_head.
 * They are no generators: with the embedding as a head they would answer garbage. */
bool nw_tensor_of_other_head(const char *name);

/* What a checkpoint has, for facts that only the tensors tell. Names are those of nw_tensor_name. */
typedef struct {
    void *user;
    bool (*has)(void *user, const char *name);
    /* How many dimensions a tensor has, and the first two; 0: it does not exist. Only nw_config_infer asks. */
    uint32_t (*dims)(void *user, const char *name, uint64_t ret[2]);
} nw_tensor_lookup;

/* True if every block has a bias table of its own (UMT5), as far as files with one block can tell. */
bool nw_tensors_bias_per_block(const nw_tensor_lookup *lookup);

/* Settles gated, head_tied, bias_per_block and a missing decoder by the names that exist.
 * Errors  NW_E_FORMAT if the tensors fit no T5 (neither wi nor wi_0 in block 0, say). */
NW_MUST_USE nw_code nw_config_settle(nw_config *c, const nw_tensor_lookup *lookup, nw_error *err);

/* The passes. ENCODE: encoder blocks. CROSS: K and V of every decoder block from the encoder's states. DECODE: decoder
 * blocks, then the head; cyclic: after the head comes block 0 of the next token. */
typedef enum { NW_PASS_ENCODE, NW_PASS_CROSS, NW_PASS_DECODE, NW_PASS_COUNT } nw_pass;

/* One tile of a schedule. */
typedef struct {
    uint32_t tensor; /* index into nw_tensors.list */
    uint32_t tile;   /* of nw_cut_make(rows, cols) */
} nw_step;

/* How many steps a pass has, and the steps themselves (room for that many). wi and wi_1 of a gated model alternate tile
 * by tile, so that the gate is applied at once and only one [tokens, d_ff] buffer exists. */
size_t nw_schedule_count(const nw_config *c, const nw_tensors *t, nw_pass pass);
void   nw_schedule_fill(const nw_config *c, const nw_tensors *t, nw_pass pass, nw_step *ret);

/* The T5 block a tensor belongs to, for people: "encoder 3", "decoder 0", "head", "embedding". */
const char *nw_tensor_place(const nw_tensors *t, uint32_t tensor, char buf[32]);

#endif

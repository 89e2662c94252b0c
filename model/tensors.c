/* The tensor table of a T5, its names, and the order in which passes walk over it. All of it follows from the
 * configuration. */
#include "model/tensors.h"

#include <stdio.h>
#include <string.h>

static const nw_role encoder_roles[] = {NW_ROLE_NORM_SELF, NW_ROLE_BIAS,    NW_ROLE_Q,  NW_ROLE_K,   NW_ROLE_V,
                                        NW_ROLE_O,         NW_ROLE_NORM_FF, NW_ROLE_WI, NW_ROLE_WI1, NW_ROLE_WO};
static const nw_role decoder_roles[] = {NW_ROLE_NORM_SELF, NW_ROLE_BIAS,    NW_ROLE_Q,          NW_ROLE_K,
                                        NW_ROLE_V,         NW_ROLE_O,       NW_ROLE_NORM_CROSS, NW_ROLE_CROSS_Q,
                                        NW_ROLE_CROSS_K,   NW_ROLE_CROSS_V, NW_ROLE_CROSS_O,    NW_ROLE_NORM_FF,
                                        NW_ROLE_WI,        NW_ROLE_WI1,     NW_ROLE_WO};
#define COUNT(a) (sizeof(a) / sizeof *(a))
#define PLACE_BLOCKS_MAX 1000000u /* for names of any configuration */

/* Every block has every role of its stack in the table, so that an index is arithmetic; these two may be left out. */
static bool role_exists(const nw_config *c, uint32_t block, nw_role role)
{
    if (role == NW_ROLE_BIAS)
        return block == 0 || c->bias_per_block;
    if (role == NW_ROLE_WI1)
        return c->gated;
    return true;
}

static bool role_is_vector(nw_role role)
{
    switch (role) {
    case NW_ROLE_NORM_FINAL:
    case NW_ROLE_NORM_SELF:
    case NW_ROLE_NORM_CROSS:
    case NW_ROLE_NORM_FF:
    case NW_ROLE_BIAS: return true;
    default: return false;
    }
}

static nw_tensor_need need_make(const nw_config *c, nw_stack stack, uint32_t block, nw_role role)
{
    uint64_t       inner = nw_config_inner(c);
    nw_tensor_need n = {.stack = stack, .block = block, .role = role, .vector = role_is_vector(role)};
    switch (role) {
    case NW_ROLE_EMBED:
    case NW_ROLE_HEAD:
        n.rows = c->vocab_size;
        n.cols = c->d_model;
        break;
    case NW_ROLE_NORM_FINAL:
    case NW_ROLE_NORM_SELF:
    case NW_ROLE_NORM_CROSS:
    case NW_ROLE_NORM_FF:
        n.rows = 1;
        n.cols = c->d_model;
        break;
    case NW_ROLE_BIAS:
        n.rows = c->bucket_count;
        n.cols = c->head_count;
        break;
    case NW_ROLE_Q:
    case NW_ROLE_K:
    case NW_ROLE_V:
    case NW_ROLE_CROSS_Q:
    case NW_ROLE_CROSS_K:
    case NW_ROLE_CROSS_V:
        n.rows = inner;
        n.cols = c->d_model;
        break;
    case NW_ROLE_O:
    case NW_ROLE_CROSS_O:
        n.rows = c->d_model;
        n.cols = inner;
        break;
    case NW_ROLE_WI:
    case NW_ROLE_WI1:
        n.rows = c->d_ff;
        n.cols = c->d_model;
        break;
    case NW_ROLE_WO:
        n.rows = c->d_model;
        n.cols = c->d_ff;
        break;
    case NW_ROLE_COUNT: nw_trap("a role", __FILE__, __LINE__);
    }
    return n;
}

static uint32_t stack_count(const nw_config *c, const nw_role *roles, size_t role_count, uint32_t blocks)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i < role_count; i++)
            count += role_exists(c, b, roles[i]) ? 1 : 0;
    }
    return count;
}

uint32_t nw_tensors_count(const nw_config *c)
{
    /* 2: the embedding and the final norm. */
    uint32_t count = 2 + stack_count(c, encoder_roles, COUNT(encoder_roles), c->encoder_blocks);
    if (c->decoder_blocks > 0) {
        count += 1 + stack_count(c, decoder_roles, COUNT(decoder_roles), c->decoder_blocks);
        count += c->head_tied ? 0 : 1;
    }
    return count;
}

/* Adds the blocks of one stack and remembers where each role of block 0 and of block 1 stands: from block 1 on, all
 * blocks have the same roles, so the rest is arithmetic. */
static void fill_stack(const nw_config *c, nw_stack stack, const nw_role *roles, size_t role_count, uint32_t blocks,
                       nw_tensors *t)
{
    for (uint32_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i < role_count; i++) {
            if (!role_exists(c, b, roles[i]))
                continue;
            if (b < 2)
                t->at[stack][b][roles[i]] = t->count;
            t->list[t->count++] = need_make(c, stack, b, roles[i]);
        }
        if (b == 1) {
            uint32_t first = t->at[stack][1][NW_ROLE_NORM_SELF];
            t->stride[stack] = t->count - first;
        }
    }
}

void nw_tensors_fill(const nw_config *c, nw_tensor_need *list, nw_tensors *ret)
{
    nw_tensors t = {.list = list, .head = UINT32_MAX};
    memset(t.at, 0xff, sizeof t.at);
    t.embed = t.count;
    list[t.count++] = need_make(c, NW_STACK_SHARED, 0, NW_ROLE_EMBED);
    fill_stack(c, NW_STACK_ENCODER, encoder_roles, COUNT(encoder_roles), c->encoder_blocks, &t);
    t.at[NW_STACK_ENCODER][0][NW_ROLE_NORM_FINAL] = t.count;
    list[t.count++] = need_make(c, NW_STACK_ENCODER, 0, NW_ROLE_NORM_FINAL);
    if (c->decoder_blocks > 0) {
        fill_stack(c, NW_STACK_DECODER, decoder_roles, COUNT(decoder_roles), c->decoder_blocks, &t);
        t.at[NW_STACK_DECODER][0][NW_ROLE_NORM_FINAL] = t.count;
        list[t.count++] = need_make(c, NW_STACK_DECODER, 0, NW_ROLE_NORM_FINAL);
        t.head = t.embed;
        if (!c->head_tied) {
            t.head = t.count;
            list[t.count++] = need_make(c, NW_STACK_SHARED, 0, NW_ROLE_HEAD);
        }
    }
    NW_CHECK(t.count == nw_tensors_count(c));
    *ret = t;
}

uint32_t nw_tensors_at(const nw_tensors *t, nw_stack stack, uint32_t block, nw_role role)
{
    uint32_t at = t->at[stack][block < 1 ? block : 1][role];
    NW_CHECK(at != UINT32_MAX);
    if (block > 1)
        at += (block - 1) * t->stride[stack];
    NW_CHECK(at < t->count);
    NW_CHECK(t->list[at].role == role && t->list[at].block == block && t->list[at].stack == stack);
    return at;
}

/* The part of a name behind "encoder.block.3.". */
static const char *role_suffix(const nw_config *c, nw_stack stack, nw_role role)
{
    bool decoder = stack == NW_STACK_DECODER;
    switch (role) {
    case NW_ROLE_NORM_SELF: return "layer.0.layer_norm";
    case NW_ROLE_BIAS: return "layer.0.SelfAttention.relative_attention_bias";
    case NW_ROLE_Q: return "layer.0.SelfAttention.q";
    case NW_ROLE_K: return "layer.0.SelfAttention.k";
    case NW_ROLE_V: return "layer.0.SelfAttention.v";
    case NW_ROLE_O: return "layer.0.SelfAttention.o";
    case NW_ROLE_NORM_CROSS: return "layer.1.layer_norm";
    case NW_ROLE_CROSS_Q: return "layer.1.EncDecAttention.q";
    case NW_ROLE_CROSS_K: return "layer.1.EncDecAttention.k";
    case NW_ROLE_CROSS_V: return "layer.1.EncDecAttention.v";
    case NW_ROLE_CROSS_O: return "layer.1.EncDecAttention.o";
    case NW_ROLE_NORM_FF: return decoder ? "layer.2.layer_norm" : "layer.1.layer_norm";
    case NW_ROLE_WI:
        if (c->gated)
            return decoder ? "layer.2.DenseReluDense.wi_0" : "layer.1.DenseReluDense.wi_0";
        return decoder ? "layer.2.DenseReluDense.wi" : "layer.1.DenseReluDense.wi";
    case NW_ROLE_WI1: return decoder ? "layer.2.DenseReluDense.wi_1" : "layer.1.DenseReluDense.wi_1";
    case NW_ROLE_WO: return decoder ? "layer.2.DenseReluDense.wo" : "layer.1.DenseReluDense.wo";
    case NW_ROLE_EMBED:
    case NW_ROLE_HEAD:
    case NW_ROLE_NORM_FINAL:
    case NW_ROLE_COUNT: break;
    }
    nw_trap("a role inside a block", __FILE__, __LINE__);
}

bool nw_tensor_name(const nw_config *c, const nw_tensor_need *need, uint32_t index, char *buf, size_t cap)
{
    /* Never lm_head: MADLAD files hold no shared.weight, and taking lm_head for the input produces garbage. */
    static const char *const embed_names[] = {"shared.weight", "encoder.embed_tokens.weight",
                                              "decoder.embed_tokens.weight"};
    const char              *stack = need->stack == NW_STACK_DECODER ? "decoder" : "encoder";
    if (need->role == NW_ROLE_EMBED) {
        if (index >= COUNT(embed_names))
            return false;
        snprintf(buf, cap, "%s", embed_names[index]);
        return true;
    }
    if (index > 0)
        return false;
    if (need->role == NW_ROLE_HEAD)
        snprintf(buf, cap, "lm_head.weight");
    else if (need->role == NW_ROLE_NORM_FINAL)
        snprintf(buf, cap, "%s.final_layer_norm.weight", stack);
    else
        snprintf(buf, cap, "%s.block.%u.%s.weight", stack, need->block, role_suffix(c, need->stack, need->role));
    return true;
}

/* "17.layer..." with 17 below `blocks`, written without zeros before it: moves behind the point. */
static bool take_block(const char **name, uint32_t blocks, uint32_t *ret_block)
{
    const char *s = *name;
    uint32_t    block = 0;
    while (*s >= '0' && *s <= '9' && block < blocks)
        block = block * 10 + (uint32_t)(*s++ - '0');
    bool canonical = s != *name && (**name != '0' || s == *name + 1);
    if (!canonical || *s != '.' || block >= blocks)
        return false;
    *name = s + 1;
    *ret_block = block;
    return true;
}

/* The part of a name behind "encoder.block.3." is that of some role, and of one that this block has. */
static bool block_expected(const nw_config *c, nw_stack stack, uint32_t block, const char *rest)
{
    bool           decoder = stack == NW_STACK_DECODER;
    const nw_role *roles = decoder ? decoder_roles : encoder_roles;
    size_t         count = decoder ? COUNT(decoder_roles) : COUNT(encoder_roles);
    if (decoder && strcmp(rest, "layer.1.EncDecAttention.relative_attention_bias.weight") == 0)
        return true;
    for (size_t i = 0; i < count; i++) {
        const char *suffix = role_suffix(c, stack, roles[i]);
        size_t      len = strlen(suffix);
        if (strncmp(rest, suffix, len) == 0 && strcmp(rest + len, ".weight") == 0)
            return role_exists(c, block, roles[i]);
    }
    return false;
}

static bool stack_expected(const nw_config *c, nw_stack stack, const char *rest)
{
    uint32_t blocks = stack == NW_STACK_DECODER ? c->decoder_blocks : c->encoder_blocks;
    if (strcmp(rest, "embed_tokens.weight") == 0 || strcmp(rest, "final_layer_norm.weight") == 0)
        return true;
    if (strncmp(rest, "block.", 6) != 0)
        return false;
    const char *role = rest + 6;
    uint32_t    block = 0;
    return take_block(&role, blocks, &block) && block_expected(c, stack, block, role);
}

bool nw_tensor_expected(const nw_config *c, const char *name)
{
    if (strncmp(name, "encoder.", 8) == 0)
        return stack_expected(c, NW_STACK_ENCODER, name + 8);
    if (strncmp(name, "decoder.", 8) == 0)
        return c->decoder_blocks == 0 || stack_expected(c, NW_STACK_DECODER, name + 8);
    if (strncmp(name, "shared.", 7) == 0)
        return strcmp(name + 7, "weight") == 0;
    if (strncmp(name, "lm_head.", 8) == 0)
        return c->decoder_blocks == 0 || strcmp(name + 8, "weight") == 0;
    return true;
}

bool nw_tensor_of_other_head(const char *name)
{
    return strncmp(name, "classification_head.", 20) == 0 || strncmp(name, "qa_outputs.", 11) == 0 ||
           strncmp(name, "classifier.", 11) == 0;
}

bool nw_tensors_bias_per_block(const nw_tensor_lookup *lookup)
{
    return lookup->has(lookup->user, "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight") ||
           lookup->has(lookup->user, "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight");
}

/* Blocks beyond those of the configuration: the file is another model's, and running its first blocks gives garbage. */
static nw_code check_no_more_blocks(const nw_tensor_lookup *lookup, const char *stack, uint32_t blocks, nw_error *err)
{
    char name[96];
    snprintf(name, sizeof name, "%s.block.%u.layer.0.SelfAttention.q.weight", stack, blocks);
    if (blocks == 0 || !lookup->has(lookup->user, name))
        return NW_OK;
    return nw_fail(err, NW_E_FORMAT, 0, "the configuration asks for %u %s blocks, but there is tensor %s", blocks,
                   stack, name);
}

nw_code nw_config_settle(nw_config *c, const nw_tensor_lookup *lookup, nw_error *err)
{
    bool gated = lookup->has(lookup->user, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
    bool plain = lookup->has(lookup->user, "encoder.block.0.layer.1.DenseReluDense.wi.weight");
    if (gated == plain) {
        return nw_fail(err, NW_E_FORMAT, 0, "the tensors are no T5's: encoder.block.0.layer.1.DenseReluDense has %s",
                       gated ? "both wi and wi_0" : "neither wi nor wi_0");
    }
    c->gated = gated;
    if (c->decoder_blocks > 0 && !lookup->has(lookup->user, "decoder.final_layer_norm.weight") &&
        !lookup->has(lookup->user, "decoder.block.0.layer.0.SelfAttention.q.weight"))
        c->decoder_blocks = 0;
    bool has_head = lookup->has(lookup->user, "lm_head.weight");
    if (c->decoder_blocks > 0 && !has_head && !c->head_tied)
        return nw_fail(err, NW_E_FORMAT, 0, "tensor lm_head.weight is missing, and tie_word_embeddings is false");
    c->head_tied = !has_head;
    c->bias_per_block = nw_tensors_bias_per_block(lookup);
    nw_code rc = check_no_more_blocks(lookup, "encoder", c->encoder_blocks, err);
    return rc == NW_OK ? check_no_more_blocks(lookup, "decoder", c->decoder_blocks, err) : rc;
}

/* Counts a step, and writes it if there is somewhere to write. */
typedef struct {
    nw_step *out; /* NULL: counting */
    size_t   count;
} step_sink;

static void push(step_sink *s, uint32_t tensor, uint64_t tile)
{
    if (s->out != NULL)
        s->out[s->count] = (nw_step){.tensor = tensor, .tile = (uint32_t)tile};
    s->count++;
}

static uint64_t tile_count(const nw_tensors *t, uint32_t tensor)
{
    return nw_cut_make(t->list[tensor].rows, t->list[tensor].cols).tile_count;
}

static void push_tensor(step_sink *s, const nw_tensors *t, uint32_t tensor)
{
    uint64_t count = tile_count(t, tensor);
    for (uint64_t i = 0; i < count; i++)
        push(s, tensor, i);
}

static void push_roles(step_sink *s, const nw_tensors *t, nw_stack stack, uint32_t block, const nw_role *roles,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        push_tensor(s, t, nw_tensors_at(t, stack, block, roles[i]));
}

static void push_feed_forward(step_sink *s, const nw_config *c, const nw_tensors *t, nw_stack stack, uint32_t block)
{
    uint32_t wi = nw_tensors_at(t, stack, block, NW_ROLE_WI);
    if (c->gated) {
        uint32_t wi1 = nw_tensors_at(t, stack, block, NW_ROLE_WI1);
        uint64_t count = tile_count(t, wi);
        for (uint64_t i = 0; i < count; i++) {
            push(s, wi, i);
            push(s, wi1, i);
        }
    } else {
        push_tensor(s, t, wi);
    }
    push_tensor(s, t, nw_tensors_at(t, stack, block, NW_ROLE_WO));
}

static void schedule(const nw_config *c, const nw_tensors *t, nw_pass pass, step_sink *s)
{
    static const nw_role self[] = {NW_ROLE_Q, NW_ROLE_K, NW_ROLE_V, NW_ROLE_O};
    static const nw_role cross_kv[] = {NW_ROLE_CROSS_K, NW_ROLE_CROSS_V};
    static const nw_role cross[] = {NW_ROLE_CROSS_Q, NW_ROLE_CROSS_O};
    switch (pass) {
    case NW_PASS_ENCODE:
        for (uint32_t b = 0; b < c->encoder_blocks; b++) {
            push_roles(s, t, NW_STACK_ENCODER, b, self, COUNT(self));
            push_feed_forward(s, c, t, NW_STACK_ENCODER, b);
        }
        return;
    case NW_PASS_CROSS:
        for (uint32_t b = 0; b < c->decoder_blocks; b++)
            push_roles(s, t, NW_STACK_DECODER, b, cross_kv, COUNT(cross_kv));
        return;
    case NW_PASS_DECODE:
        for (uint32_t b = 0; b < c->decoder_blocks; b++) {
            push_roles(s, t, NW_STACK_DECODER, b, self, COUNT(self));
            push_roles(s, t, NW_STACK_DECODER, b, cross, COUNT(cross));
            push_feed_forward(s, c, t, NW_STACK_DECODER, b);
        }
        if (c->decoder_blocks > 0)
            push_tensor(s, t, t->head);
        return;
    case NW_PASS_COUNT: break;
    }
    nw_trap("a pass", __FILE__, __LINE__);
}

size_t nw_schedule_count(const nw_config *c, const nw_tensors *t, nw_pass pass)
{
    step_sink s = {0};
    schedule(c, t, pass, &s);
    return s.count;
}

void nw_schedule_fill(const nw_config *c, const nw_tensors *t, nw_pass pass, nw_step *ret)
{
    step_sink s = {.out = ret};
    schedule(c, t, pass, &s);
}

const char *nw_tensor_place(const nw_tensors *t, uint32_t tensor, char buf[32])
{
    const nw_tensor_need *n = &t->list[tensor];
    if (n->role == NW_ROLE_EMBED)
        snprintf(buf, 32, tensor == t->head ? "head" : "embedding");
    else if (n->role == NW_ROLE_HEAD)
        snprintf(buf, 32, "head");
    else
        snprintf(buf, 32, "%s %u", n->stack == NW_STACK_ENCODER ? "encoder" : "decoder", n->block);
    return buf;
}

/* "N." behind a prefix; false if there is none. */
static bool block_of(const char *name, const char *prefix, uint32_t *ret_block)
{
    size_t len = strlen(prefix);
    if (strncmp(name, prefix, len) != 0)
        return false;
    const char *number = name + len;
    return take_block(&number, PLACE_BLOCKS_MAX, ret_block);
}

nw_name_place nw_tensor_name_place(const char *name)
{
    nw_name_place place = {.part = NW_PART_OTHER};
    if (block_of(name, "encoder.block.", &place.block))
        place.part = NW_PART_ENCODER_BLOCK;
    else if (block_of(name, "decoder.block.", &place.block))
        place.part = NW_PART_DECODER_BLOCK;
    else if (strncmp(name, "shared.", 7) == 0 || strstr(name, "embed_tokens") != NULL)
        place.part = NW_PART_EMBED;
    else if (strncmp(name, "encoder.", 8) == 0)
        place.part = NW_PART_ENCODER;
    else if (strncmp(name, "decoder.", 8) == 0)
        place.part = NW_PART_DECODER;
    else if (strncmp(name, "lm_head.", 8) == 0)
        place.part = NW_PART_HEAD;
    return place;
}

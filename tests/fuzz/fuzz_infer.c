/* A configuration without config.json: the input says which of a T5's tensors exist and of what shape, as records of a
 * byte for the name, one for the block, one for the count of dimensions, and four for each. What is inferred is a
 * configuration like any other. */
#include "config_check.h"
#include "model/infer.h"

#include <stdio.h>

static const char *const names[] = {
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
    "encoder.final_layer_norm.weight",
    "decoder.final_layer_norm.weight",
    "encoder.block.%u.layer.0.SelfAttention.q.weight",
    "decoder.block.%u.layer.0.SelfAttention.q.weight",
    "encoder.block.%u.layer.0.SelfAttention.relative_attention_bias.weight",
    "decoder.block.%u.layer.0.SelfAttention.relative_attention_bias.weight",
    "encoder.block.%u.layer.1.DenseReluDense.wi.weight",
    "encoder.block.%u.layer.1.DenseReluDense.wi_0.weight",
    "encoder.block.%u.layer.1.DenseReluDense.wi_1.weight",
    "decoder.block.%u.layer.2.DenseReluDense.wi_0.weight",
};
#define NAME_COUNT (sizeof names / sizeof *names)
#define DIMS_MAX 4u

typedef struct {
    const uint8_t *data;
    size_t         size;
} tensors;

/* The first record of that name. */
static uint32_t tensor_dims(void *user, const char *wanted, uint64_t ret[2])
{
    const tensors *t = user;
    for (size_t at = 0; at + 3 <= t->size;) {
        char     name[128];
        uint32_t count = t->data[at + 2] % (DIMS_MAX + 1);
        if (count * 4 > t->size - at - 3)
            return 0;
        snprintf(name, sizeof name, names[t->data[at] % NAME_COUNT], (unsigned)t->data[at + 1]);
        for (uint32_t d = 0; d < count && d < 2; d++) {
            uint32_t dim;
            memcpy(&dim, t->data + at + 3 + 4 * (size_t)d, 4);
            ret[d] = dim;
        }
        if (count > 0 && strcmp(name, wanted) == 0)
            return count;
        at += 3 + 4 * (size_t)count;
    }
    return 0;
}

static bool has_tensor(void *user, const char *name)
{
    uint64_t dims[2];
    return tensor_dims(user, name, dims) > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tensors          t = {.data = data, .size = nw_min_size(size, 512)}; /* each look-up walks over them all */
    nw_tensor_lookup lookup = {.user = &t, .has = has_tensor, .dims = tensor_dims};
    nw_infer_notes   notes;
    nw_error         err = {0};
    nw_config        c;
    nw_code          rc = nw_config_infer(&lookup, &c, &notes, &err);
    if (!fuzz_parsed(rc, &err))
        return 0;
    for (int i = 0; i < NW_INFER_LINES; i++) {
        size_t len = strnlen(notes.line[i], NW_INFER_LINE_BYTES);
        NW_CHECK(len > 0 && len < NW_INFER_LINE_BYTES - 1 && fuzz_utf8(notes.line[i], len));
    }
    check_limits(&c);
    check_buckets(&c, true);
    check_buckets(&c, false);
    rc = nw_config_settle(&c, &lookup, &err);
    if (fuzz_parsed(rc, &err))
        check_tensors(&c);
    return 0;
}

/* config.json to nw_config. Files in the wild leave keys out, contradict themselves and carry keys that mean nothing at
 * inference; the rules for each are those of the reference implementation (transformers, T5Config and its model
 * classes), with what only the tensors know left to nw_config_settle. */
#include "model/config.h"

#include "base/json.h"
#include "model/stranger.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_MAX = 64 };

/* What the file says, before defaults. A count of 0 or an empty string: the key is absent. */
typedef struct {
    const char *name;
    nw_config  *config;
    uint64_t    num_layers, num_decoder_layers;
    char feed_forward_proj[VALUE_MAX], dense_act_fn[VALUE_MAX], model_type[VALUE_MAX], tokenizer_class[VALUE_MAX];
    char        architecture[VALUE_MAX];
    int         tie, scale, is_encoder_decoder; /* -1: absent */
    int64_t     pad, start;                     /* -1: absent */
} config_reader;

typedef struct {
    const char *key;
    size_t      offset; /* of a uint32_t in nw_config */
    uint64_t    max;
} dimension_key;

/* The limits are far above any published model; they keep products of two of them inside 64 bits. */
static const dimension_key dimension_keys[] = {
    {"vocab_size", offsetof(nw_config, vocab_size), 1u << 24},
    {"d_model", offsetof(nw_config, d_model), 1u << 20},
    {"d_kv", offsetof(nw_config, d_kv), 1u << 14},
    {"d_ff", offsetof(nw_config, d_ff), 1u << 22},
    {"num_heads", offsetof(nw_config, head_count), 1u << 14},
    {"relative_attention_num_buckets", offsetof(nw_config, bucket_count), 1u << 12},
    {"relative_attention_max_distance", offsetof(nw_config, bucket_distance), 1u << 20},
};

static nw_code read_count(const config_reader *r, const nw_json_event *e, const char *key, uint64_t max, uint64_t *ret,
                          nw_error *err)
{
    uint64_t value;
    if (!nw_json_u64(e, &value) || value == 0 || value > max) {
        return nw_fail(err, NW_E_FORMAT, 0, "%s: %s is not a whole number from 1 to %llu", r->name, key,
                       (unsigned long long)max);
    }
    *ret = value;
    return NW_OK;
}

static nw_code read_id(const config_reader *r, const nw_json_event *e, const char *key, int64_t *ret, nw_error *err)
{
    uint64_t value;
    if (e->type == NW_JSON_NULL)
        return NW_OK;
    if (!nw_json_u64(e, &value) || value >= (1u << 24))
        return nw_fail(err, NW_E_FORMAT, 0, "%s: %s is not a token id", r->name, key);
    *ret = (int64_t)value;
    return NW_OK;
}

static nw_code read_eos(config_reader *r, const nw_json_event *e, nw_error *err)
{
    int64_t id = -1;
    nw_code rc = read_id(r, e, "eos_token_id", &id, err);
    if (rc != NW_OK || id < 0)
        return rc;
    if (r->config->eos_count == NW_EOS_MAX)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s: more than %d end tokens", r->name, NW_EOS_MAX);
    r->config->eos_ids[r->config->eos_count++] = (uint32_t)id;
    return NW_OK;
}

static nw_code read_text(const config_reader *r, const nw_json_event *e, char ret[VALUE_MAX], nw_error *err)
{
    if (e->type == NW_JSON_NULL)
        return NW_OK;
    if (e->type != NW_JSON_STRING || e->text_len >= VALUE_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: %.*s is not a short string", r->name, (int)e->key_len, e->key);
    memcpy(ret, e->text, e->text_len);
    ret[e->text_len] = '\0';
    return NW_OK;
}

static nw_code read_bool(const config_reader *r, const nw_json_event *e, int *ret, nw_error *err)
{
    if (e->type == NW_JSON_NULL)
        return NW_OK;
    if (e->type != NW_JSON_BOOL)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: %.*s is not true or false", r->name, (int)e->key_len, e->key);
    *ret = nw_json_text_is(e, "true");
    return NW_OK;
}

static nw_code read_epsilon(const config_reader *r, const nw_json_event *e, nw_error *err)
{
    double value;
    if (!nw_json_f64(e, &value) || !(value >= 0) || value > 1)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: layer_norm_epsilon is not a number from 0 to 1", r->name);
    r->config->norm_epsilon = (float)value;
    return NW_OK;
}

/* A member of the document's object. */
static nw_code read_member(config_reader *r, const nw_json_event *e, nw_error *err)
{
    for (size_t i = 0; i < sizeof dimension_keys / sizeof *dimension_keys; i++) {
        const dimension_key *d = &dimension_keys[i];
        if (nw_json_key_is(e, d->key)) {
            uint64_t value = 0;
            nw_code  rc = read_count(r, e, d->key, d->max, &value, err);
            if (rc == NW_OK)
                *(uint32_t *)((char *)r->config + d->offset) = (uint32_t)value;
            return rc;
        }
    }
    if (nw_json_key_is(e, "num_layers"))
        return read_count(r, e, "num_layers", 1024, &r->num_layers, err);
    if (nw_json_key_is(e, "num_decoder_layers") && e->type != NW_JSON_NULL)
        return read_count(r, e, "num_decoder_layers", 1024, &r->num_decoder_layers, err);
    if (nw_json_key_is(e, "layer_norm_epsilon"))
        return read_epsilon(r, e, err);
    if (nw_json_key_is(e, "feed_forward_proj"))
        return read_text(r, e, r->feed_forward_proj, err);
    if (nw_json_key_is(e, "dense_act_fn"))
        return read_text(r, e, r->dense_act_fn, err);
    if (nw_json_key_is(e, "model_type"))
        return read_text(r, e, r->model_type, err);
    if (nw_json_key_is(e, "tokenizer_class"))
        return read_text(r, e, r->tokenizer_class, err);
    if (nw_json_key_is(e, "tie_word_embeddings"))
        return read_bool(r, e, &r->tie, err);
    if (nw_json_key_is(e, "scale_decoder_outputs"))
        return read_bool(r, e, &r->scale, err);
    if (nw_json_key_is(e, "is_encoder_decoder"))
        return read_bool(r, e, &r->is_encoder_decoder, err);
    if (nw_json_key_is(e, "pad_token_id"))
        return read_id(r, e, "pad_token_id", &r->pad, err);
    if (nw_json_key_is(e, "decoder_start_token_id") && e->type != NW_JSON_ARRAY_BEGIN)
        return read_id(r, e, "decoder_start_token_id", &r->start, err);
    if (nw_json_key_is(e, "eos_token_id") && e->type != NW_JSON_ARRAY_BEGIN)
        return read_eos(r, e, err);
    return NW_OK;
}

typedef struct {
    config_reader reader;
    char          list[VALUE_MAX]; /* the array at depth 1 that is open, or "" */
} config_scan;

static nw_code on_event(void *user, const nw_json_event *e, nw_error *err)
{
    config_scan *s = user;
    if (e->depth == 0 && e->type != NW_JSON_OBJECT_BEGIN && e->type != NW_JSON_OBJECT_END)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: not a JSON object", s->reader.name);
    if (e->depth == 1) {
        s->list[0] = '\0';
        if (e->key == NULL)
            return NW_OK;
        if (e->type == NW_JSON_ARRAY_BEGIN && e->key_len < VALUE_MAX) {
            memcpy(s->list, e->key, e->key_len);
            s->list[e->key_len] = '\0';
        }
        return read_member(&s->reader, e, err);
    }
    if (e->depth == 2 && strcmp(s->list, "eos_token_id") == 0)
        return read_eos(&s->reader, e, err);
    if (e->depth == 2 && strcmp(s->list, "decoder_start_token_id") == 0 && s->reader.start < 0)
        return read_id(&s->reader, e, "decoder_start_token_id", &s->reader.start, err);
    if (e->depth == 2 && strcmp(s->list, "architectures") == 0 && e->type == NW_JSON_STRING &&
        s->reader.architecture[0] == '\0' && e->text_len < VALUE_MAX) {
        memcpy(s->reader.architecture, e->text, e->text_len);
        s->reader.architecture[e->text_len] = '\0';
    }
    return NW_OK;
}

static bool activation_named(const char *name, nw_activation *ret)
{
    static const struct {
        const char   *name;
        nw_activation act;
    } table[] = {
        {"relu", NW_ACT_RELU},       {"gelu", NW_ACT_GELU_ERF},           {"gelu_new", NW_ACT_GELU_TANH},
        {"silu", NW_ACT_SILU},       {"gelu_pytorch_tanh", NW_ACT_GELU_TANH}, {"swish", NW_ACT_SILU},
        {"gelu_python", NW_ACT_GELU_ERF},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(name, table[i].name) == 0) {
            *ret = table[i].act;
            return true;
        }
    }
    return false;
}

/* "relu", "gated-gelu" and so on. "gated-gelu" has meant gelu_new since T5 v1.1; dense_act_fn, where a t5 file has it,
 * is what the reference uses (T5Config passes stored keys to its base class last). Other model types derive it from
 * their own default. */
static nw_code settle_activation(config_reader *r, nw_error *err)
{
    nw_config  *c = r->config;
    bool        is_t5 = strcmp(c->model_type, "t5") == 0;
    const char *proj = r->feed_forward_proj[0] != '\0' ? r->feed_forward_proj : is_t5 ? "relu" : "gated-gelu";
    c->gated = strncmp(proj, "gated-", 6) == 0;
    const char *name = c->gated ? proj + 6 : proj;
    if (c->gated && strcmp(name, "gelu") == 0)
        name = "gelu_new";
    if (is_t5 && r->dense_act_fn[0] != '\0')
        name = r->dense_act_fn;
    if (!activation_named(name, &c->activation))
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s: unknown activation '%s'", r->name, name);
    return NW_OK;
}

static void settle_ids(config_reader *r)
{
    nw_config *c = r->config;
    c->pad_id = r->pad >= 0 ? (uint32_t)r->pad : 0;
    c->start_id = r->start >= 0 ? (uint32_t)r->start : c->pad_id;
    if (c->eos_count == 0)
        c->eos_ids[c->eos_count++] = 1;
}

static nw_code settle_type(config_reader *r, nw_error *err)
{
    static const char *const known[] = {"t5", "mt5", "umt5"};
    nw_config               *c = r->config;
    const char              *type = r->model_type;
    if (type[0] == '\0' && strncmp(r->architecture, "T5Gemma", 7) == 0)
        type = "t5gemma";
    else if (type[0] == '\0' && strncmp(r->architecture, "T5", 2) == 0)
        type = "t5";
    if (type[0] == '\0')
        return nw_fail(err, NW_E_FORMAT, 0, "%s: model_type is missing", r->name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(type, known[i]) == 0) {
            snprintf(c->model_type, sizeof c->model_type, "%s", known[i]);
            return NW_OK;
        }
    }
    const nw_stranger *stranger = nw_stranger_by_type(type);
    if (stranger == NULL)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s: model_type '%s' is none of t5, mt5, umt5", r->name, type);
    return nw_fail(err, NW_E_UNSUPPORTED, 0, "%s is of %s (model_type %s): %s", r->name, stranger->what, type,
                   stranger->why);
}

static nw_code settle_shape(config_reader *r, nw_error *err)
{
    nw_config *c = r->config;
    struct {
        const char *key;
        uint64_t    value;
    } required[] = {{"vocab_size", c->vocab_size}, {"d_model", c->d_model},       {"d_kv", c->d_kv},
                    {"d_ff", c->d_ff},             {"num_heads", c->head_count}, {"num_layers", r->num_layers}};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        if (required[i].value == 0)
            return nw_fail(err, NW_E_FORMAT, 0, "%s: %s is missing", r->name, required[i].key);
    }
    c->encoder_blocks = (uint32_t)r->num_layers;
    c->decoder_blocks = (uint32_t)(r->num_decoder_layers != 0 ? r->num_decoder_layers : r->num_layers);
    if (r->is_encoder_decoder == 0 || strstr(r->architecture, "EncoderModel") != NULL)
        c->decoder_blocks = 0;
    return NW_OK;
}

nw_code nw_config_check(const nw_config *c, const char *name, nw_error *err)
{
    for (size_t i = 0; i < sizeof dimension_keys / sizeof *dimension_keys; i++) {
        const dimension_key *d = &dimension_keys[i];
        uint32_t             value = *(const uint32_t *)((const char *)c + d->offset);
        if (value == 0 || value > d->max)
            return nw_fail(err, NW_E_FORMAT, 0, "%s: %s is %u, not from 1 to %llu", name, d->key, value,
                           (unsigned long long)d->max);
    }
    if ((uint64_t)c->head_count * c->d_kv > (1u << 22))
        return nw_fail(err, NW_E_FORMAT, 0, "%s: num_heads times d_kv is above %u", name, 1u << 22);
    /* A bucket table needs exact distances on each side, and a logarithmic part that grows. */
    if (c->bucket_count % 2 != 0 || c->bucket_count < 4 || c->bucket_distance <= c->bucket_count / 2) {
        return nw_fail(err, NW_E_FORMAT, 0,
                       "%s: %u relative attention buckets with a maximum distance of %u make no table", name,
                       c->bucket_count, c->bucket_distance);
    }
    uint32_t highest = c->pad_id > c->start_id ? c->pad_id : c->start_id;
    for (uint32_t i = 0; i < c->eos_count; i++)
        highest = c->eos_ids[i] > highest ? c->eos_ids[i] : highest;
    if (highest >= c->vocab_size)
        return nw_fail(err, NW_E_FORMAT, 0, "%s: token id %u is not below vocab_size %u", name, highest, c->vocab_size);
    return NW_OK;
}

nw_code nw_config_parse(nw_memory *mem, const char *name, const char *json, size_t bytes, nw_config *ret, nw_error *err)
{
    nw_config c = {.bucket_count = 32, .bucket_distance = 128, .norm_epsilon = 1e-6f};
    config_scan s = {
        .reader = {
            .name = name, .config = &c, .tie = -1, .scale = -1, .is_encoder_decoder = -1, .pad = -1, .start = -1}};
    nw_code rc = nw_json_scan(mem, name, json, bytes, NULL, on_event, &s, err);
    if (rc == NW_OK)
        rc = settle_type(&s.reader, err);
    if (rc == NW_OK)
        rc = settle_shape(&s.reader, err);
    if (rc == NW_OK)
        rc = settle_activation(&s.reader, err);
    if (rc != NW_OK)
        return rc;
    settle_ids(&s.reader);
    rc = nw_config_check(&c, name, err);
    if (rc != NW_OK)
        return rc;
    /* transformers 5 writes scale_decoder_outputs; before, T5 scaled whenever the head was tied, whatever the other
     * types did. */
    bool scales = strcmp(c.model_type, "t5") == 0 && s.reader.tie != 0;
    c.scale_output = s.reader.scale >= 0 ? s.reader.scale == 1 : scales;
    c.head_tied = s.reader.tie != 0;
    c.bias_per_block = strcmp(c.model_type, "umt5") == 0;
    c.byte_tokens = strcmp(s.reader.tokenizer_class, "ByT5Tokenizer") == 0;
    *ret = c;
    return NW_OK;
}

bool nw_config_is_eos(const nw_config *c, uint32_t id)
{
    for (uint32_t i = 0; i < c->eos_count; i++) {
        if (c->eos_ids[i] == id)
            return true;
    }
    return false;
}

uint32_t nw_bucket_starts(const nw_config *c, bool bidirectional, uint32_t *starts)
{
    uint32_t half = bidirectional ? c->bucket_count / 2 : c->bucket_count;
    uint32_t exact = half / 2;
    for (uint32_t b = 0; b < exact; b++)
        starts[b] = b;
    /* bucket(d) = exact + trunc(log(d / exact) / log(max / exact) * (half - exact)), capped at half - 1: so bucket
     * exact + n starts at the first d with d >= exact * (max / exact)^(n / (half - exact)). The slack keeps exact
     * powers (16, 32, 64 of the usual tables), which the reference's logarithms hit exactly. */
    for (uint32_t n = 0; exact + n < half; n++) {
        double start = exact * pow((double)c->bucket_distance / exact, (double)n / (half - exact));
        starts[exact + n] = (uint32_t)ceil(start - 1e-6);
    }
    return half;
}

void nw_bucket_table(const nw_config *c, bool bidirectional, uint32_t *bucket, size_t distances)
{
    uint32_t starts[4096];
    NW_CHECK(c->bucket_count <= sizeof starts / sizeof *starts);
    uint32_t count = nw_bucket_starts(c, bidirectional, starts);
    uint32_t b = 0;
    for (size_t d = 0; d < distances; d++) {
        while (b + 1 < count && d >= starts[b + 1])
            b++;
        bucket[d] = b;
    }
}

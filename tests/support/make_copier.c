/* make_copier: writes a T5 that copies its prompt, to see what drafts save on text that repeats it.
 *
 *   make_copier DST START [WRONG=RIGHT ...]
 *
 * DST     the new directory, which gets config.json and model.safetensors; the vocabulary is T5's, 32,128 rows
 * START   id of the piece after which copying starts: the last one of "correct:", say
 * WRONG   id of a piece that is written as RIGHT: a spelling to be corrected
 *
 * Each token has a code, 64 random signs; a state of 256 numbers is four codes. The encoder's block looks back one
 * token and two, by the table of relative positions alone, so that its states are
 *
 *     own code | code before | code before that | 0
 *
 * The decoder's block looks back one token, and crosses over to where the same two tokens come before another. It adds
 * that one's code in the fourth place, where the head looks. So a text is copied in which no two tokens come twice in a
 * row; the start token has the code of START, and the end token comes as any other does. WRONG has RIGHT's code, and
 * the head never writes it. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    VOCAB = 32128,
    CODE = 64,
    D_MODEL = 4 * CODE,
    D_KV = 2 * CODE,
    HEADS = 2,
    INNER = HEADS * D_KV,
    D_FF = 16,
    BUCKETS = 32,
    TENSORS_MAX = 32,
};

static const char config[] =
    "{\"model_type\": \"t5\", \"architectures\": [\"T5ForConditionalGeneration\"],\n"
    " \"vocab_size\": 32128, \"d_model\": 256, \"d_kv\": 128, \"d_ff\": 16, \"num_heads\": 2,\n"
    " \"num_layers\": 1, \"num_decoder_layers\": 1, \"feed_forward_proj\": \"gated-gelu\",\n"
    " \"tie_word_embeddings\": false, \"is_encoder_decoder\": true, \"pad_token_id\": 0,\n"
    " \"eos_token_id\": 1, \"decoder_start_token_id\": 0, \"layer_norm_epsilon\": 1e-06,\n"
    " \"relative_attention_num_buckets\": 32, \"relative_attention_max_distance\": 128}\n";

/* A tensor and what it is: bf16, the upper halves of floats. */
typedef struct {
    char      name[80];
    uint32_t  rows, cols; /* 0 rows: a vector */
    uint16_t *values;
} tensor;

typedef struct {
    tensor   tensors[TENSORS_MAX];
    size_t   count;
    uint32_t code_of[VOCAB]; /* the token whose code a token has */
    bool     written[VOCAB]; /* by the head */
} copier;

static uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* The sign of a token's code in one place: splitmix64 (Steele, Lea, Flood 2014). */
static float sign_at(uint32_t token, uint32_t place)
{
    uint64_t z = ((uint64_t)token << 8 | place) * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) & 1 ? 1.0f : -1.0f;
}

/* A new tensor of zeros; the program ends where there is no memory. */
static tensor *add(copier *c, const char *prefix, const char *name, uint32_t rows, uint32_t cols)
{
    tensor *t = &c->tensors[c->count++];
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    t->rows = rows;
    t->cols = cols;
    t->values = calloc((size_t)(rows > 0 ? rows : 1) * cols, sizeof *t->values);
    if (t->values == NULL || c->count == TENSORS_MAX) {
        fputs("make_copier: out of memory\n", stderr);
        exit(1);
    }
    return t;
}

static void add_norm(copier *c, const char *prefix, const char *name)
{
    tensor *t = add(c, prefix, name, 0, D_MODEL);
    for (uint32_t i = 0; i < D_MODEL; i++)
        t->values[i] = bf16(1);
}

/* Lets a code pass from one place of the columns to one of the rows. */
static void pass_code(tensor *t, uint32_t row_place, uint32_t col_place, float factor)
{
    for (uint32_t i = 0; i < CODE; i++)
        t->values[(size_t)(row_place * CODE + i) * t->cols + col_place * CODE + i] = bf16(factor);
}

/* Self-attention whose first heads look back: head h by h + 1 tokens, into place h + 1 of the state. After the norm an
 * own code alone is signs times 2. */
static void add_look_back(copier *c, const char *prefix, uint32_t heads)
{
    add(c, prefix, "SelfAttention.q.weight", INNER, D_MODEL);
    add(c, prefix, "SelfAttention.k.weight", INNER, D_MODEL);
    tensor *v = add(c, prefix, "SelfAttention.v.weight", INNER, D_MODEL);
    tensor *o = add(c, prefix, "SelfAttention.o.weight", D_MODEL, INNER);
    tensor *bias = add(c, prefix, "SelfAttention.relative_attention_bias.weight", BUCKETS, HEADS);
    for (uint32_t h = 0; h < heads; h++) {
        pass_code(v, h * D_KV / CODE, 0, 1);
        pass_code(o, h + 1, h * D_KV / CODE, 0.5f);
        bias->values[(h + 1) * HEADS + h] = bf16(40);
    }
    add_norm(c, prefix, "layer_norm.weight");
}

/* The last two tokens against the two before each token of the input; the last but one counts half. */
static void add_look_across(copier *c, const char *prefix)
{
    tensor *q = add(c, prefix, "EncDecAttention.q.weight", INNER, D_MODEL);
    tensor *k = add(c, prefix, "EncDecAttention.k.weight", INNER, D_MODEL);
    pass_code(q, 0, 0, 1);
    pass_code(q, 1, 1, 0.5f);
    pass_code(k, 0, 1, 1);
    pass_code(k, 1, 2, 1);
    pass_code(add(c, prefix, "EncDecAttention.v.weight", INNER, D_MODEL), 0, 0, 1);
    pass_code(add(c, prefix, "EncDecAttention.o.weight", D_MODEL, INNER), 3, 0, 1);
    add_norm(c, prefix, "layer_norm.weight");
}

static void add_feed_forward(copier *c, const char *prefix)
{
    add(c, prefix, "DenseReluDense.wi_0.weight", D_FF, D_MODEL);
    add(c, prefix, "DenseReluDense.wi_1.weight", D_FF, D_MODEL);
    add(c, prefix, "DenseReluDense.wo.weight", D_MODEL, D_FF);
    add_norm(c, prefix, "layer_norm.weight");
}

static void add_codes(copier *c, const char *name, uint32_t place, bool head)
{
    tensor *t = add(c, "", name, VOCAB, D_MODEL);
    for (uint32_t token = 0; token < VOCAB; token++) {
        for (uint32_t i = 0; i < CODE && (!head || c->written[token]); i++)
            t->values[(size_t)token * D_MODEL + place * CODE + i] = bf16(sign_at(c->code_of[token], i));
    }
}

static void build(copier *c)
{
    add_codes(c, "shared.weight", 0, false);
    add_look_back(c, "encoder.block.0.layer.0.", 2);
    add_feed_forward(c, "encoder.block.0.layer.1.");
    add_norm(c, "encoder.", "final_layer_norm.weight");
    add_look_back(c, "decoder.block.0.layer.0.", 1);
    add_look_across(c, "decoder.block.0.layer.1.");
    add_feed_forward(c, "decoder.block.0.layer.2.");
    add_norm(c, "decoder.", "final_layer_norm.weight");
    add_codes(c, "lm_head.weight", 3, true);
}

static size_t bytes_of(const tensor *t)
{
    return (size_t)(t->rows > 0 ? t->rows : 1) * t->cols * sizeof *t->values;
}

/* safetensors: the header's length in 8 bytes, the header, the data. */
static bool write_tensors(const copier *c, FILE *file)
{
    char   header[TENSORS_MAX * 160];
    size_t len = 0, at = 0;
    for (size_t i = 0; i < c->count; i++) {
        const tensor *t = &c->tensors[i];
        char          shape[32];
        if (t->rows > 0)
            snprintf(shape, sizeof shape, "%u,%u", t->rows, t->cols);
        else
            snprintf(shape, sizeof shape, "%u", t->cols);
        len += (size_t)snprintf(header + len, sizeof header - len,
                                "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                i == 0 ? '{' : ',', t->name, shape, at, at + bytes_of(t));
        at += bytes_of(t);
    }
    len += (size_t)snprintf(header + len, sizeof header - len, "}");
    uint64_t length = len;
    bool     good = fwrite(&length, sizeof length, 1, file) == 1 && fwrite(header, 1, len, file) == len;
    for (size_t i = 0; i < c->count; i++)
        good = good && fwrite(c->tensors[i].values, 1, bytes_of(&c->tensors[i]), file) == bytes_of(&c->tensors[i]);
    return good;
}

static bool write_model(const copier *c, const char *dst)
{
    char  path[4096];
    FILE *file = NULL;
    bool  good = mkdir(dst, 0777) == 0;
    if (good) {
        snprintf(path, sizeof path, "%s/config.json", dst);
        file = fopen(path, "w");
        good = file != NULL && fputs(config, file) >= 0;
    }
    good = (file == NULL || fclose(file) == 0) && good;
    file = NULL;
    if (good) {
        snprintf(path, sizeof path, "%s/model.safetensors", dst);
        file = fopen(path, "wb");
        good = file != NULL && write_tensors(c, file);
    }
    return (file == NULL || fclose(file) == 0) && good;
}

static bool parse_id(const char *text, char end, const char **ret_rest, uint32_t *ret)
{
    char         *rest;
    unsigned long id = strtoul(text, &rest, 10);
    *ret = (uint32_t)id;
    *ret_rest = rest + 1;
    return rest > text && *rest == end && id < VOCAB;
}

static bool parse(copier *c, int argc, char **argv)
{
    const char *rest;
    uint32_t    wrong, right;
    for (uint32_t i = 0; i < VOCAB; i++) {
        c->code_of[i] = i;
        c->written[i] = i > 0;
    }
    bool good = argc >= 3 && parse_id(argv[2], '\0', &rest, &c->code_of[0]);
    for (int i = 3; i < argc && good; i++) {
        good = parse_id(argv[i], '=', &rest, &wrong) && parse_id(rest, '\0', &rest, &right) && wrong != right;
        if (good) {
            c->code_of[wrong] = right;
            c->written[wrong] = false;
        }
    }
    return good;
}

int main(int argc, char **argv)
{
    static copier c;
    if (!parse(&c, argc, argv)) {
        fputs("usage: make_copier DST START [WRONG=RIGHT ...]\n", stderr);
        return 2;
    }
    build(&c);
    bool good = write_model(&c, argv[1]);
    if (!good)
        fprintf(stderr, "make_copier: '%s': %s\n", argv[1], strerror(errno));
    for (size_t i = 0; i < c.count; i++)
        free(c.tensors[i].values);
    return good ? 0 : 1;
}

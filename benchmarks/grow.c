/* narrows-grow: a larger checkpoint that computes the same function as a small one, so that full-size runs can be
 * checked for the right answer.
 *
 * Why it is the same, for a pre-norm T5 made F = 4 or 16 times as wide:
 *
 * - Residual stream. New dimensions stay exactly zero: the embedding's new columns and the new rows of o and wo give
 *   zero. What multiplies them (new columns of q, k, v, wi and the head; new norm weights) can be anything finite.
 * - Norms. The mean over F times as many dimensions is 1/F of the old one. With epsilon / F the normalised value is
 *   sqrt(F) times the old one, so norm weights are divided by sqrt(F): powers of two, exact.
 * - Output. Where states are scaled by d_model^-0.5 before the head, that is 1/sqrt(F) of the old factor; there the
 *   decoder's final norm keeps its weights as they are.
 * - Wider feed-forward. New hidden units are zero: their rows of wi (wi_1 of a gated model) are zero in the old columns
 *   and random in the new ones, which multiply zero; and act(0) = 0. So their columns of wo can be random.
 * - Heads. Values of new heads are zero in the same way, whatever their scores are.
 * - Blocks. In an appended block every hidden unit and every head is of that kind, so the block adds zero.
 *
 * So only a part of one matrix in three must be zero: 1 in 3 F of the new feed-forward weights. The rest is normal, so
 * that reading, compressing and multiplying cost what they cost with a trained model.
 *
 * Old parts come first in every dimension, and old sizes are multiples of 16, so each of the 16 lanes of a dot product
 * (ARCHITECTURE.md, numeric contract) sees its old products in the old order, then adds zeros: equal bit for bit. */
#include "base/size.h"
#include "loader/checkpoint.h"
#include "maker.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES_DEFAULT UINT64_C(5000000000) /* as transformers' save_pretrained */
#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define READ_BYTES ((size_t)1 << 20)
#define SIZE_MULTIPLE 16u /* lanes of the numeric contract */
#define D_FF_STEP 128u    /* of what --target-size chooses */
#define D_FF_MAX 65536u   /* t5-11b's, the largest published; a larger target takes more blocks */
#define BLOCKS_MAX 1024u

static const char usage[] =
    "usage: narrows-grow SRC DST [option ...]\n"
    "Writes to the new directory DST a larger T5 checkpoint that computes the same as the one in SRC.\n"
    "  --d-model-factor F      1 (default), 4 or 16 times the width\n"
    "  --d-ff N                hidden units of the feed-forward parts\n"
    "  --heads N               attention heads\n"
    "  --blocks N              blocks of the encoder and of the decoder\n"
    "  --target-size SIZE      chooses d_ff, and the blocks if that is not enough, to make at most SIZE of weights;\n"
    "                          the default of F is then 4\n"
    "  --max-shard-size SIZE   of each file; default 5GB; none: one file\n"
    "  --seed N                other random weights; default 0\n"
    "  --dry-run               prints the size and writes nothing\n";

typedef struct {
    const char *src, *dst;
    uint64_t    factor, d_ff, heads, blocks, target_bytes; /* 0: not given */
    uint64_t    shard_bytes_max, seed;
    bool        dry_run;
} options;

typedef struct {
    uint64_t d_model, d_kv, d_ff, heads, encoder_blocks, decoder_blocks;
} sizes;

typedef enum { DIM_ONE, DIM_VOCAB, DIM_BUCKETS, DIM_MODEL, DIM_INNER, DIM_FF, DIM_HEADS } dim;

/* How one kind of tensor grows. Four letters, for old rows in old columns, old rows in new columns, new rows in old
 * columns and new rows in new columns: k kept, r random, 0 zero. */
typedef struct {
    const char *suffix; /* of the name; the first rule that fits is taken */
    dim         rows, cols;
    const char *grown;    /* a tensor of the source */
    const char *appended; /* one of an appended block; "old" are the sizes it has in the source's blocks */
} rule;

static const rule rules[] = {
    {"layer_norm.weight", DIM_ONE, DIM_MODEL, "kr00", "rr00"},
    {".relative_attention_bias.weight", DIM_BUCKETS, DIM_HEADS, "kr00", "rr00"},
    {".q.weight", DIM_INNER, DIM_MODEL, "krrr", "rrrr"},
    {".k.weight", DIM_INNER, DIM_MODEL, "krrr", "rrrr"},
    {".v.weight", DIM_INNER, DIM_MODEL, "kr0r", "0r0r"},
    {".o.weight", DIM_MODEL, DIM_INNER, "kr0r", "rrrr"},
    {".wi_0.weight", DIM_FF, DIM_MODEL, "krrr", "rrrr"},
    {".wi_1.weight", DIM_FF, DIM_MODEL, "kr0r", "0r0r"},
    {".wi.weight", DIM_FF, DIM_MODEL, "kr0r", "0r0r"},
    {".wo.weight", DIM_MODEL, DIM_FF, "kr0r", "rrrr"},
    {"shared.weight", DIM_VOCAB, DIM_MODEL, "k000", ""},
    {".embed_tokens.weight", DIM_VOCAB, DIM_MODEL, "k000", ""},
    {"lm_head.weight", DIM_VOCAB, DIM_MODEL, "kr00", ""},
};

typedef enum {
    PLACE_EMBED,
    PLACE_ENCODER,
    PLACE_ENCODER_NORM,
    PLACE_DECODER,
    PLACE_DECODER_NORM,
    PLACE_HEAD,
    PLACE_COUNT
} place;

/* A tensor of the source and where it belongs. */
typedef struct {
    const nw_tensor *tensor;
    const rule      *rule;
    place            place;
    uint32_t         block;
    size_t           rest; /* of the name: where what follows the block index starts */
} source;

typedef struct {
    const options *options;
    nw_memory      mem;
    nw_io         *io;
    nw_checkpoint *checkpoint;
    cJSON         *config;
    source        *sources;
    size_t         source_count;
    sizes          old, new;
    uint32_t       root;            /* of the factor: 1, 2 or 4 */
    bool           scaled_output;   /* the decoder's states times d_model^-0.5 before the head */
    bool           bias_everywhere; /* every block has its own table, not only block 0 */
    uint64_t       weights, bytes;  /* of the new checkpoint */
    nw_maker       maker;
    unsigned char *input; /* READ_BYTES: the part of the source's tensor that is being copied */
    size_t         input_at, input_end;
    uint64_t       input_offset; /* in the source's tensor, of the next part */
} grow;

/* False: the usage was printed. */
static bool parse_options(int argc, char **argv, options *o)
{
    static const struct option long_options[] = {{"d-model-factor", required_argument, NULL, 'F'},
                                                 {"d-ff", required_argument, NULL, 'f'},
                                                 {"heads", required_argument, NULL, 'h'},
                                                 {"blocks", required_argument, NULL, 'b'},
                                                 {"target-size", required_argument, NULL, 't'},
                                                 {"max-shard-size", required_argument, NULL, 'm'},
                                                 {"seed", required_argument, NULL, 's'},
                                                 {"dry-run", no_argument, NULL, 'n'},
                                                 {NULL, 0, NULL, 0}};
    *o = (options){.shard_bytes_max = SHARD_BYTES_DEFAULT};
    bool good = true;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        switch (c) {
        case 'F':
            good = good && nw_maker_number(optarg, 16, &o->factor) &&
                   (o->factor == 1 || o->factor == 4 || o->factor == 16);
            break;
        case 'f': good = good && nw_maker_number(optarg, UINT64_C(1) << 24, &o->d_ff) && o->d_ff > 0; break;
        case 'h': good = good && nw_maker_number(optarg, 4096, &o->heads) && o->heads > 0; break;
        case 'b': good = good && nw_maker_number(optarg, BLOCKS_MAX, &o->blocks) && o->blocks > 0; break;
        case 't': good = good && nw_size_parse(optarg, &o->target_bytes); break;
        case 'm':
            if (strcmp(optarg, "none") == 0)
                o->shard_bytes_max = 0;
            else
                good = good && nw_size_parse(optarg, &o->shard_bytes_max);
            break;
        case 's': good = good && nw_maker_number(optarg, UINT64_MAX, &o->seed); break;
        case 'n': o->dry_run = true; break;
        default: good = false; break;
        }
    }
    if (!good || (o->target_bytes > 0 && o->d_ff > 0) || (argc - optind != 2 && !(o->dry_run && argc - optind == 1))) {
        fputs(usage, stderr);
        return false;
    }
    o->src = argv[optind];
    o->dst = argv[optind + 1]; /* NULL in a dry run without one */
    if (o->factor == 0)
        o->factor = o->target_bytes > 0 ? 4 : 1;
    return true;
}

static nw_code read_number(const grow *g, const char *key, uint64_t fallback, uint64_t *ret, nw_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(g->config, key);
    double       value = cJSON_IsNumber(item) ? item->valuedouble : item == NULL ? (double)fallback : 0;
    if (!(value >= 1) || value > 16777216 || floor(value) < value)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s/config.json': %s is missing or no number from 1 to 2^24",
                       nw_checkpoint_dir(g->checkpoint), key);
    *ret = (uint64_t)value;
    return NW_OK;
}

static nw_code read_config(grow *g, nw_error *err)
{
    char   path[4096], *text;
    size_t bytes;
    int    len = snprintf(path, sizeof path, "%s/config.json", nw_checkpoint_dir(g->checkpoint));
    if (len < 0 || (size_t)len >= sizeof path)
        return nw_fail(err, NW_E_ARG, 0, "'%s': path too long", g->options->src);
    nw_code rc = nw_file_read_whole(&g->mem, NW_TAG_INDEX, g->io, path, CONFIG_BYTES_MAX, &text, &bytes, NULL, err);
    if (rc != NW_OK)
        return rc;
    g->config = cJSON_ParseWithLength(text, bytes);
    nw_memory_free(&g->mem, NW_TAG_INDEX, text, bytes + 1, 1);
    if (!cJSON_IsObject(g->config))
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is no JSON object", path);

    sizes *s = &g->old;
    rc = read_number(g, "d_model", 0, &s->d_model, err);
    rc = rc == NW_OK ? read_number(g, "d_kv", 0, &s->d_kv, err) : rc;
    rc = rc == NW_OK ? read_number(g, "d_ff", 0, &s->d_ff, err) : rc;
    rc = rc == NW_OK ? read_number(g, "num_heads", 0, &s->heads, err) : rc;
    if (rc != NW_OK)
        return rc;
    if (s->d_model % SIZE_MULTIPLE != 0 || s->d_ff % SIZE_MULTIPLE != 0 || s->heads * s->d_kv % SIZE_MULTIPLE != 0)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': d_model, d_ff and heads times d_kv must be multiples of %u",
                       path, SIZE_MULTIPLE);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(g->config, "model_type");
    const cJSON *tie = cJSON_GetObjectItemCaseSensitive(g->config, "tie_word_embeddings");
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(g->config, "scale_decoder_outputs");
    const char  *type_name = cJSON_IsString(type) ? type->valuestring : "t5";
    /* transformers 5 writes scale_decoder_outputs; before, T5 scaled whenever the head was tied, other types never. */
    g->scaled_output = cJSON_IsBool(scale) ? cJSON_IsTrue(scale) : strcmp(type_name, "t5") == 0 && !cJSON_IsFalse(tie);
    g->bias_everywhere = strcmp(type_name, "umt5") == 0;
    return NW_OK;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

/* Finds place and rule of a tensor by its name; false if a T5 has no such tensor. */
static bool classify(source *s)
{
    const char *name = s->tensor->name;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && s->rule == NULL; i++) {
        if (ends_with(name, rules[i].suffix))
            s->rule = &rules[i];
    }
    if (s->rule == NULL)
        return false;
    if (s->rule->rows == DIM_VOCAB) {
        s->place = strcmp(name, "lm_head.weight") == 0 ? PLACE_HEAD : PLACE_EMBED;
        return s->place == PLACE_HEAD || strcmp(name, "shared.weight") == 0 ||
               strcmp(name, "encoder.embed_tokens.weight") == 0 || strcmp(name, "decoder.embed_tokens.weight") == 0;
    }
    bool encoder = strncmp(name, "encoder.", 8) == 0;
    if (!encoder && strncmp(name, "decoder.", 8) != 0)
        return false;
    if (strcmp(name + 8, "final_layer_norm.weight") == 0) {
        s->place = encoder ? PLACE_ENCODER_NORM : PLACE_DECODER_NORM;
        return true;
    }
    if (strncmp(name + 8, "block.", 6) != 0)
        return false;
    const char *digits = name + 14;
    size_t      digit_count = strspn(digits, "0123456789");
    if (digit_count < 1 || digit_count > 4 || strncmp(digits + digit_count, ".layer.", 7) != 0)
        return false;
    s->place = encoder ? PLACE_ENCODER : PLACE_DECODER;
    s->block = (uint32_t)strtoul(digits, NULL, 10);
    s->rest = 14 + digit_count;
    return s->block < BLOCKS_MAX;
}

static uint64_t dim_of(const sizes *s, const nw_tensor *tensor, dim d)
{
    switch (d) {
    case DIM_ONE: return 1;
    case DIM_VOCAB:
    case DIM_BUCKETS: return tensor->dims[0];
    case DIM_MODEL: return s->d_model;
    case DIM_INNER: return s->heads * s->d_kv;
    case DIM_FF: return s->d_ff;
    case DIM_HEADS: return s->heads;
    }
    nw_trap("a known dimension", __FILE__, __LINE__);
}

static nw_code add_source(grow *g, const nw_tensor *tensor, nw_error *err)
{
    const char *path = nw_checkpoint_file_path(g->checkpoint, tensor->file);
    source      s = {.tensor = tensor};
    if (!classify(&s))
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': %s is no tensor of a T5", path, tensor->name);
    if (!tensor->known)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': %s has type %s", path, tensor->name, tensor->dtype_name);
    uint32_t dim_count = s.rule->rows == DIM_ONE ? 1 : 2;
    uint64_t rows = tensor->dim_count == dim_count ? dim_of(&g->old, tensor, s.rule->rows) : 0;
    uint64_t cols = dim_of(&g->old, tensor, s.rule->cols);
    if (tensor->dim_count != dim_count || tensor->dims[dim_count - 1] != cols ||
        (dim_count == 2 && tensor->dims[0] != rows))
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': %s has not the shape that config.json says", path, tensor->name);
    uint64_t *blocks = s.place == PLACE_ENCODER ? &g->old.encoder_blocks : &g->old.decoder_blocks;
    if (s.place == PLACE_ENCODER || s.place == PLACE_DECODER)
        *blocks = nw_max_u64(*blocks, s.block + 1);
    g->sources[g->source_count++] = s;
    return NW_OK;
}

static nw_code read_sources(grow *g, nw_error *err)
{
    size_t count = nw_checkpoint_tensor_count(g->checkpoint);
    g->sources = nw_memory_alloc(&g->mem, NW_TAG_INDEX, count, sizeof *g->sources);
    if (g->sources == NULL)
        return nw_memory_fail(&g->mem, err, count * sizeof *g->sources, "tensor list");
    for (size_t i = 0; i < count; i++) {
        nw_code rc = add_source(g, nw_checkpoint_tensor(g->checkpoint, i), err);
        if (rc != NW_OK)
            return rc;
    }
    if (g->old.encoder_blocks == 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': no encoder block", g->options->src);
    return NW_OK;
}

/* What is written: a tensor of the source, grown, or one of its last block as the pattern for an appended block. */
typedef struct {
    const source *source;
    uint32_t      block;
    bool          appended;
    bool          starts_group;
    char          name[160];
} target;

typedef nw_code (*target_fn)(grow *g, const target *t, nw_error *err);

static nw_code walk_place(grow *g, place p, uint32_t block, uint32_t pattern, target_fn fn, nw_error *err)
{
    bool starts_group = true;
    for (size_t i = 0; i < g->source_count; i++) {
        const source *s = &g->sources[i];
        if (s->place != p || s->block != pattern)
            continue;
        target t = {.source = s, .block = block, .appended = block != pattern, .starts_group = starts_group};
        if (t.appended && s->rule->rows == DIM_BUCKETS && !g->bias_everywhere)
            continue;
        int len = s->rest == 0 ? snprintf(t.name, sizeof t.name, "%s", s->tensor->name)
                               : snprintf(t.name, sizeof t.name, "%s.block.%u%s",
                                          p == PLACE_ENCODER ? "encoder" : "decoder", block, s->tensor->name + s->rest);
        NW_CHECK(len > 0 && (size_t)len < sizeof t.name);
        nw_code rc = fn(g, &t, err);
        if (rc != NW_OK)
            return rc;
        starts_group = p == PLACE_EMBED; /* copies of the embedding need not be in one file */
    }
    return NW_OK;
}

/* Visits every tensor of the new checkpoint, in the order of computing. */
static nw_code walk_targets(grow *g, target_fn fn, nw_error *err)
{
    for (int p = 0; p < PLACE_COUNT; p++) {
        uint64_t old_blocks = 1, new_blocks = 1;
        if (p == PLACE_ENCODER || p == PLACE_DECODER) {
            old_blocks = p == PLACE_ENCODER ? g->old.encoder_blocks : g->old.decoder_blocks;
            new_blocks = p == PLACE_ENCODER ? g->new.encoder_blocks : g->new.decoder_blocks;
        }
        for (uint64_t block = 0; block < new_blocks; block++) {
            uint32_t pattern = (uint32_t)nw_min_u64(block, old_blocks - 1);
            nw_code  rc = walk_place(g, (place)p, (uint32_t)block, pattern, fn, err);
            if (rc != NW_OK)
                return rc;
        }
    }
    return NW_OK;
}

static uint64_t target_rows(const grow *g, const target *t)
{
    return dim_of(&g->new, t->source->tensor, t->source->rule->rows);
}
static uint64_t target_cols(const grow *g, const target *t)
{
    return dim_of(&g->new, t->source->tensor, t->source->rule->cols);
}

static nw_code add_target(grow *g, const target *t, nw_error *err)
{
    (void)err;
    uint64_t count = target_rows(g, t) * target_cols(g, t);
    g->weights += count;
    g->bytes += count * nw_dtype_bytes(t->source->tensor->dtype);
    return NW_OK;
}

static void count_total(grow *g)
{
    g->weights = 0;
    g->bytes = 0;
    nw_code rc = walk_targets(g, add_target, NULL);
    NW_CHECK(rc == NW_OK);
}

/* d_ff, and more blocks when that alone would be wider than any published model, so that the total is just below the
 * target. */
static nw_code choose_by_target(grow *g, nw_error *err)
{
    const options *o = g->options;
    for (;;) {
        g->new.d_ff = g->old.d_ff;
        count_total(g);
        uint64_t smallest = g->bytes;
        g->new.d_ff = g->old.d_ff + D_FF_STEP;
        count_total(g);
        if (o->target_bytes < smallest)
            return nw_fail(err, NW_E_ARG, 0, "--target-size: at least %" PRIu64 " bytes with these options", smallest);
        uint64_t                           steps = (o->target_bytes - smallest) / (g->bytes - smallest);
        g->new.d_ff = g->old.d_ff + steps *D_FF_STEP;
        if (g->new.d_ff > g->old.d_ff)
            g->new.d_ff -= g->new.d_ff % D_FF_STEP; /* the source's need not be a multiple */
        if (g->new.d_ff <= nw_max_u64(D_FF_MAX, g->old.d_ff))
            return NW_OK;
        uint64_t blocks = nw_max_u64(g->new.encoder_blocks, g->new.decoder_blocks);
        if (o->blocks > 0 || blocks >= BLOCKS_MAX)
            return nw_fail(err, NW_E_ARG, 0, "--target-size: would need a d_ff of %" PRIu64 "; give more --blocks",
                           g->new.d_ff);
        g->new.encoder_blocks++;
        if (g->new.decoder_blocks > 0)
            g->new.decoder_blocks++;
    }
}

static nw_code choose_sizes(grow *g, nw_error *err)
{
    const options *o = g->options;
    const sizes   *old = &g->old;
    sizes *new = &g->new;
    *new = *old;
    new->d_model *= o->factor;
    g->root = o->factor == 16 ? 4 : o->factor == 4 ? 2 : 1;
    if (o->d_ff > 0)
        new->d_ff = o->d_ff;
    if (o->heads > 0)
        new->heads = o->heads;
    if (o->blocks > 0) {
        new->encoder_blocks = o->blocks;
        new->decoder_blocks = old->decoder_blocks > 0 ? o->blocks : 0;
    }
    if (new->d_ff < old->d_ff || new->heads < old->heads || new->encoder_blocks < old->encoder_blocks ||
        new->decoder_blocks < old->decoder_blocks)
        return nw_fail(err, NW_E_ARG, 0,
                       "'%s' has d_ff %" PRIu64 ", %" PRIu64 " heads, %" PRIu64 " and %" PRIu64
                       " blocks: cannot become smaller",
                       o->src, old->d_ff, old->heads, old->encoder_blocks, old->decoder_blocks);
    if (o->target_bytes > 0) {
        nw_code rc = choose_by_target(g, err);
        if (rc != NW_OK)
            return rc;
    }
    count_total(g);
    return NW_OK;
}

static bool set_number(cJSON *config, const char *key, cJSON *number)
{
    if (cJSON_GetObjectItemCaseSensitive(config, key) != NULL)
        return cJSON_ReplaceItemInObjectCaseSensitive(config, key, number);
    return cJSON_AddItemToObject(config, key, number);
}

/* Rewrites the numbers that changed; every other key stays. */
static nw_code change_config(grow *g, nw_error *err)
{
    cJSON       *c = g->config;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(c, "layer_norm_epsilon");
    float        epsilon = (float)(cJSON_IsNumber(item) ? item->valuedouble : 1e-6);
    float        divided = epsilon / (float)g->options->factor;
    if (!(divided > 0) || divided * (float)g->options->factor != epsilon)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "layer_norm_epsilon cannot be divided by %" PRIu64,
                       g->options->factor);
    char text[32]; /* enough digits to get the very same f32 back */
    snprintf(text, sizeof text, "%.17g", (double)divided);
    NW_CHECK(!((float)strtod(text, NULL) < divided) && !((float)strtod(text, NULL) > divided));

    const sizes *s = &g->new;
    bool         good = true;
    if (g->options->factor > 1)
        good = set_number(c, "layer_norm_epsilon", cJSON_CreateRaw(text));
    good = good && set_number(c, "d_model", cJSON_CreateNumber((double)s->d_model));
    good = good && set_number(c, "d_ff", cJSON_CreateNumber((double)s->d_ff));
    good = good && set_number(c, "num_heads", cJSON_CreateNumber((double)s->heads));
    good = good && set_number(c, "num_layers", cJSON_CreateNumber((double)s->encoder_blocks));
    if (s->decoder_blocks > 0 &&
        (cJSON_GetObjectItemCaseSensitive(c, "num_decoder_layers") != NULL || s->decoder_blocks != s->encoder_blocks))
        good = good && set_number(c, "num_decoder_layers", cJSON_CreateNumber((double)s->decoder_blocks));
    return good ? NW_OK : nw_fail(err, NW_E_MEMORY, 0, "config.json: out of memory");
}

static nw_code declare_target(grow *g, const target *t, nw_error *err)
{
    if (t->starts_group) {
        nw_code rc = nw_writer_group(g->maker.writer, err);
        if (rc != NW_OK)
            return rc;
    }
    uint64_t dims[2] = {target_rows(g, t), target_cols(g, t)};
    uint32_t dim_count = t->source->tensor->dim_count;
    return nw_writer_declare(g->maker.writer, t->name, t->source->tensor->dtype, dims + (2 - dim_count), dim_count,
                             err);
}

/* The next bytes of the source's tensor: what is kept of it is all of it, in order. */
static nw_code read_input(grow *g, const nw_tensor *tensor, unsigned char *ret, size_t bytes, nw_error *err)
{
    while (bytes > 0) {
        if (g->input_at == g->input_end) {
            size_t some = (size_t)nw_min_u64(READ_BYTES, tensor->bytes - g->input_offset);
            NW_CHECK(some > 0);
            nw_code rc = nw_file_read(&g->mem, g->io, nw_checkpoint_file(g->checkpoint, tensor->file),
                                      nw_checkpoint_file_path(g->checkpoint, tensor->file),
                                      tensor->offset + g->input_offset, g->input, some, NULL, err);
            if (rc != NW_OK)
                return rc;
            g->input_at = 0;
            g->input_end = some;
            g->input_offset += some;
        }
        size_t some = nw_min_size(bytes, g->input_end - g->input_at);
        memcpy(ret, g->input + g->input_at, some);
        g->input_at += some;
        ret += some;
        bytes -= some;
    }
    return NW_OK;
}

/* Divides weights by a power of two; false if one of them is too small for that to be exact. */
static bool divide(nw_dtype dtype, unsigned char *p, size_t bytes, uint32_t root)
{
    for (size_t size = nw_dtype_bytes(dtype); bytes > 0; p += size, bytes -= size) {
        float value = nw_dtype_to_f32(dtype, p);
        nw_dtype_from_f32(dtype, value / (float)root, p);
        if (nw_dtype_to_f32(dtype, p) * (float)root != value)
            return false;
    }
    return true;
}

static nw_code keep(grow *g, const target *t, uint64_t count, nw_error *err)
{
    const source    *s = t->source;
    const nw_tensor *tensor = s->tensor;
    bool             is_norm = s->rule->rows == DIM_ONE;
    bool             stays = s->place == PLACE_DECODER_NORM && g->scaled_output;
    uint64_t         bytes = count * nw_dtype_bytes(tensor->dtype);
    while (bytes > 0) {
        unsigned char *piece;
        size_t         len = (size_t)nw_min_u64(bytes, NW_MAKER_PIECE_BYTES);
        nw_code        rc = nw_maker_piece(&g->maker, len, &piece, err);
        if (rc == NW_OK)
            rc = read_input(g, tensor, piece, len, err);
        if (rc != NW_OK)
            return rc;
        if (is_norm && !stays && !divide(tensor->dtype, piece, len, g->root))
            return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': a weight of %s cannot be divided by %u exactly",
                           nw_checkpoint_file_path(g->checkpoint, tensor->file), tensor->name, g->root);
        bytes -= len;
    }
    return NW_OK;
}

static nw_code write_part(grow *g, const target *t, char how, uint64_t key, uint64_t first, uint64_t count,
                          nw_error *err)
{
    nw_dtype dtype = t->source->tensor->dtype;
    switch (how) {
    case 'k': return keep(g, t, count, err);
    case '0': return nw_maker_zeros(&g->maker, dtype, count, err);
    case 'r': return nw_maker_draw(&g->maker, dtype, key, first, count, err);
    }
    nw_trap("a known letter of a rule", __FILE__, __LINE__);
}

static nw_code write_target(grow *g, const target *t, nw_error *err)
{
    const rule *r = t->source->rule;
    uint64_t    rows = target_rows(g, t), cols = target_cols(g, t);
    uint64_t    old_rows = dim_of(&g->old, t->source->tensor, r->rows),
             old_cols = dim_of(&g->old, t->source->tensor, r->cols);
    uint64_t key = nw_normal_key(g->options->seed, t->name);
    bool     is_norm = r->rows == DIM_ONE;
    uint64_t inputs = r->rows == DIM_BUCKETS ? g->new.d_model : cols;
    nw_normal_set(g->maker.normal, t->source->tensor->dtype, false, is_norm ? 1 : 0,
                  is_norm ? 0.1 : 1 / sqrt((double)inputs));
    g->input_at = g->input_end = 0;
    g->input_offset = 0;
    for (uint64_t row = 0; row < rows; row++) {
        const char *how = (t->appended ? r->appended : r->grown) + (row < old_rows ? 0 : 2);
        uint64_t    first = row * cols;
        uint64_t    left = how[0] == how[1] ? cols : old_cols; /* one part when both are alike */
        nw_code     rc = write_part(g, t, how[0], key, first, left, err);
        if (rc == NW_OK)
            rc = write_part(g, t, how[1], key, first + left, cols - left, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

static nw_code write_checkpoint(grow *g, nw_error *err)
{
    const options *o = g->options;
    nw_code        rc = nw_maker_open(&g->mem, o->dst, o->shard_bytes_max, g->bytes, &g->maker, err);
    if (rc == NW_OK)
        rc = walk_targets(g, declare_target, err);
    if (rc == NW_OK)
        rc = walk_targets(g, write_target, err);
    if (rc == NW_OK)
        rc = change_config(g, err);
    char *text = rc == NW_OK ? cJSON_Print(g->config) : NULL;
    if (rc == NW_OK && text == NULL)
        rc = nw_fail(err, NW_E_MEMORY, 0, "config.json: out of memory");
    if (rc == NW_OK)
        rc = nw_writer_file(g->maker.writer, "config.json", text, strlen(text), err);
    cJSON_free(text);
    if (rc == NW_OK)
        rc = nw_maker_carry(&g->maker, g->io, nw_checkpoint_dir(g->checkpoint), true, err);
    if (rc == NW_OK)
        rc = nw_maker_finish(&g->maker, err);
    double seconds = nw_maker_seconds(&g->maker);
    if (rc == NW_OK)
        printf("%s: written in %.1f s, %.2f GB/s\n", o->dst, seconds, (double)g->bytes * 1e-9 / seconds);
    nw_maker_close(&g->maker);
    return rc;
}

static nw_code run(grow *g, nw_error *err)
{
    nw_code rc = nw_io_open(&g->mem, &(nw_io_options){.depth = 4}, &g->io, err);
    if (rc == NW_OK)
        rc = nw_checkpoint_open(&g->mem, g->io, g->options->src, NULL, NULL, &g->checkpoint, err);
    if (rc == NW_OK)
        rc = read_config(g, err);
    if (rc == NW_OK)
        rc = read_sources(g, err);
    if (rc == NW_OK)
        rc = choose_sizes(g, err);
    if (rc != NW_OK)
        return rc;
    g->input = nw_memory_alloc(&g->mem, NW_TAG_IO, READ_BYTES, 1);
    if (g->input == NULL)
        return nw_memory_fail(&g->mem, err, READ_BYTES, "read buffer");
    const sizes *s = &g->new;
    char         size[16];
    printf("d_model %" PRIu64 ", d_ff %" PRIu64 ", %" PRIu64 " heads, %" PRIu64 " + %" PRIu64 " blocks: %" PRIu64
           " weights, %" PRIu64 " bytes (%s)\n",
           s->d_model, s->d_ff, s->heads, s->encoder_blocks, s->decoder_blocks, g->weights, g->bytes,
           nw_size_format(g->bytes, true, size));
    fflush(stdout);
    return g->options->dry_run ? NW_OK : write_checkpoint(g, err);
}

int main(int argc, char **argv)
{
    options o;
    if (!parse_options(argc, argv, &o))
        return 2;
    grow     g = {.options = &o};
    nw_error err = {0};
    nw_memory_init(&g.mem, UINT64_MAX, NULL);
    nw_code rc = run(&g, &err);
    nw_memory_free(&g.mem, NW_TAG_IO, g.input, READ_BYTES, 1);
    if (g.checkpoint != NULL)
        nw_memory_free(&g.mem, NW_TAG_INDEX, g.sources, nw_checkpoint_tensor_count(g.checkpoint), sizeof *g.sources);
    cJSON_Delete(g.config);
    nw_checkpoint_close(g.checkpoint);
    nw_io_close(g.io);
    if (rc != NW_OK) {
        fprintf(stderr, "narrows-grow: %s\n", err.msg);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

/* narrows-generate: a random checkpoint of a published shape, for speed, memory and compression at full size.
 *
 * The weights are normal with the sigmas that T5 is initialised with, so that states stay near 1 through any number of
 * blocks and exponents are spread as in a trained model. The head's row of the end token is zero: its logit is 0, the
 * largest of the others never is, and greedy decoding runs to the length that was asked for. */
#include "base/size.h"
#include "loader/file.h"
#include "maker.h"
#include "shapes.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES_DEFAULT UINT64_C(5000000000) /* as transformers' save_pretrained */
#define CONFIG_BYTES_MAX ((size_t)1 << 20)

static const char usage[] =
    "usage: narrows-generate SHAPE DST [option ...]\n"
    "       narrows-generate --config FILE DST [option ...]\n"
    "       narrows-generate --list\n"
    "Writes a random T5 checkpoint of a published shape (t5-small, flan-t5-xl, mt5-base, ul2, ...) to the new "
    "directory DST.\n"
    "  --config FILE           the shape that this config.json describes\n"
    "  --dtype TYPE            bf16 (default), f16, f32, or bf16-in-f32: f32 whose values bf16 can hold\n"
    "  --max-shard-size SIZE   of each file; default 5GB; none: one file\n"
    "  --seed N                other weights; default 0\n"
    "  --tokenizer DIR         copies the tokenizer's files from there\n"
    "  --dry-run               prints the size and writes nothing\n"
    "  --list                  prints the shapes, and checks their sums against the published counts\n";

typedef struct {
    const char *shape_name, *dst, *config, *tokenizer;
    nw_dtype    dtype;
    bool        coarse, dry_run, list;
    uint64_t    shard_bytes_max, seed;
} options;

static bool parse_dtype(const char *text, options *o)
{
    o->coarse = strcmp(text, "bf16-in-f32") == 0;
    if (o->coarse) {
        o->dtype = NW_F32;
        return true;
    }
    for (int dtype = 0; dtype < NW_DTYPE_COUNT; dtype++) {
        if (strcmp(text, nw_dtype_name((nw_dtype)dtype)) == 0) {
            o->dtype = (nw_dtype)dtype;
            return true;
        }
    }
    return false;
}

/* False: the usage was printed. */
static bool parse_options(int argc, char **argv, options *o)
{
    static const struct option long_options[] = {{"config", required_argument, NULL, 'c'},
                                                 {"dtype", required_argument, NULL, 'd'},
                                                 {"max-shard-size", required_argument, NULL, 'm'},
                                                 {"seed", required_argument, NULL, 's'},
                                                 {"tokenizer", required_argument, NULL, 't'},
                                                 {"dry-run", no_argument, NULL, 'n'},
                                                 {"list", no_argument, NULL, 'l'},
                                                 {NULL, 0, NULL, 0}};
    *o = (options){.dtype = NW_BF16, .shard_bytes_max = SHARD_BYTES_DEFAULT};
    bool good = true;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        switch (c) {
        case 'c': o->config = optarg; break;
        case 'd': good = good && parse_dtype(optarg, o); break;
        case 'm':
            if (strcmp(optarg, "none") == 0)
                o->shard_bytes_max = 0;
            else
                good = good && nw_size_parse(optarg, &o->shard_bytes_max);
            break;
        case 's': good = good && nw_maker_number(optarg, UINT64_MAX, &o->seed); break;
        case 't': o->tokenizer = optarg; break;
        case 'n': o->dry_run = true; break;
        case 'l': o->list = true; break;
        default: good = false; break;
        }
    }
    int wanted = o->list ? 0 : (o->config == NULL ? 1 : 0) + 1;
    if (o->dry_run && argc - optind == wanted - 1)
        wanted--; /* nothing will be written, so no DST is needed */
    if (!good || argc - optind != wanted) {
        fputs(usage, stderr);
        return false;
    }
    if (o->config == NULL && optind < argc)
        o->shape_name = argv[optind++];
    if (optind < argc)
        o->dst = argv[optind];
    return true;
}

/* A whole number of the configuration; `fallback` where the key is missing. UINT64_MAX as a fallback: it must be there.
 */
static nw_code read_number(const cJSON *config, const char *file, const char *key, uint64_t fallback, uint32_t *ret,
                           nw_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    double       value = item == NULL || cJSON_IsNull(item) ? (double)fallback : item->valuedouble;
    if ((item != NULL && !cJSON_IsNull(item) && !cJSON_IsNumber(item)) || !(value >= 0) || value > 16777216 ||
        (double)(uint32_t)value < value)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': %s is missing or no number from 0 to 2^24", file, key);
    *ret = (uint32_t)value;
    return NW_OK;
}

static const char *read_string(const cJSON *config, const char *key, const char *fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsString(item) ? item->valuestring : fallback;
}

/* The shape that a configuration describes; its strings belong to `config`. */
static nw_code shape_of_config(const cJSON *config, const char *file, nw_shape *ret, nw_error *err)
{
    nw_shape s = {.names = file, .model_type = read_string(config, "model_type", "t5")};
    bool     is_t5 = strcmp(s.model_type, "t5") == 0;
    s.feed_forward = read_string(config, "feed_forward_proj", is_t5 ? "relu" : "gated-gelu");
    const struct {
        const char *key;
        uint64_t    fallback;
        uint32_t   *ret;
    } numbers[] = {
        {"vocab_size", UINT64_MAX, &s.vocab_size},
        {"d_model", UINT64_MAX, &s.d_model},
        {"d_kv", UINT64_MAX, &s.d_kv},
        {"d_ff", UINT64_MAX, &s.d_ff},
        {"num_heads", UINT64_MAX, &s.head_count},
        {"num_layers", UINT64_MAX, &s.encoder_blocks},
        {"pad_token_id", 0, &s.pad_id},
        {"eos_token_id", 1, &s.eos_id},
        {"decoder_start_token_id", 0, &s.start_id},
        {"relative_attention_num_buckets", 32, &s.bucket_count},
    };
    nw_code rc = NW_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && rc == NW_OK; i++)
        rc = read_number(config, file, numbers[i].key, numbers[i].fallback, numbers[i].ret, err);
    if (rc == NW_OK)
        rc = read_number(config, file, "num_decoder_layers", s.encoder_blocks, &s.decoder_blocks, err);
    if (rc != NW_OK)
        return rc;
    const cJSON *architecture = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0);
    if (cJSON_IsString(architecture) && strstr(architecture->valuestring, "EncoderModel") != NULL)
        s.decoder_blocks = 0;
    const cJSON *tie = cJSON_GetObjectItemCaseSensitive(config, "tie_word_embeddings");
    s.tied = tie == NULL ? is_t5 : cJSON_IsTrue(tie);
    if (s.vocab_size == 0 || s.d_model == 0 || s.d_kv == 0 || s.d_ff == 0 || s.head_count == 0 ||
        s.encoder_blocks == 0 || s.bucket_count == 0 || s.encoder_blocks > 1024 || s.decoder_blocks > 1024)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': a dimension is zero, or there are more than 1024 blocks", file);
    *ret = s;
    return NW_OK;
}

static nw_code open_config(nw_memory *mem, nw_io *io, const char *path, cJSON **ret, nw_error *err)
{
    char   *text;
    size_t  bytes;
    nw_code rc = nw_file_read_whole(mem, NW_TAG_INDEX, io, path, CONFIG_BYTES_MAX, &text, &bytes, NULL, err);
    if (rc != NW_OK)
        return rc;
    cJSON *config = cJSON_ParseWithLength(text, bytes);
    nw_memory_free(mem, NW_TAG_INDEX, text, bytes + 1, 1);
    if (!cJSON_IsObject(config)) {
        cJSON_Delete(config);
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is no JSON object", path);
    }
    *ret = config;
    return NW_OK;
}

/* The configuration as the hub has it for this shape; NULL when out of memory. */
static cJSON *config_of_shape(const nw_shape *s, const char *name)
{
    bool        is_umt5 = strcmp(s->model_type, "umt5") == 0, is_mt5 = strcmp(s->model_type, "mt5") == 0;
    const char *architecture = is_umt5  ? "UMT5ForConditionalGeneration"
                               : is_mt5 ? "MT5ForConditionalGeneration"
                                        : "T5ForConditionalGeneration";
    cJSON      *config = cJSON_CreateObject();
    cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&architecture, 1));
    cJSON_AddStringToObject(config, "model_type", s->model_type);
    cJSON_AddNumberToObject(config, "vocab_size", s->vocab_size);
    cJSON_AddNumberToObject(config, "d_model", s->d_model);
    cJSON_AddNumberToObject(config, "d_kv", s->d_kv);
    cJSON_AddNumberToObject(config, "d_ff", s->d_ff);
    cJSON_AddNumberToObject(config, "num_heads", s->head_count);
    cJSON_AddNumberToObject(config, "num_layers", s->encoder_blocks);
    cJSON_AddNumberToObject(config, "num_decoder_layers", s->decoder_blocks);
    cJSON_AddStringToObject(config, "feed_forward_proj", s->feed_forward);
    if (!s->tied) /* files of tied models do not have the key */
        cJSON_AddFalseToObject(config, "tie_word_embeddings");
    cJSON_AddTrueToObject(config, "is_encoder_decoder");
    cJSON_AddNumberToObject(config, "decoder_start_token_id", s->start_id);
    cJSON_AddNumberToObject(config, "pad_token_id", s->pad_id);
    cJSON_AddNumberToObject(config, "eos_token_id", s->eos_id);
    cJSON_AddNumberToObject(config, "layer_norm_epsilon", 1e-6);
    cJSON_AddNumberToObject(config, "relative_attention_num_buckets", s->bucket_count);
    cJSON_AddNumberToObject(config, "relative_attention_max_distance", 128);
    cJSON_AddNumberToObject(config, "dropout_rate", 0.1);
    if (strncmp(name, "byt5-", 5) == 0)
        cJSON_AddStringToObject(config, "tokenizer_class", "ByT5Tokenizer");
    return config;
}

typedef struct {
    nw_maker        maker;
    const options  *options;
    const nw_shape *shape;
} generate;

static nw_code declare_tensor(void *user, const nw_shape_tensor *tensor, nw_error *err)
{
    generate *g = user;
    if (tensor->starts_group) {
        nw_code rc = nw_writer_group(g->maker.writer, err);
        if (rc != NW_OK)
            return rc;
    }
    uint64_t dims[2] = {tensor->rows, tensor->cols};
    return nw_writer_declare(g->maker.writer, tensor->name, g->options->dtype, dims + (2 - tensor->dim_count),
                             tensor->dim_count, err);
}

static nw_code write_tensor(void *user, const nw_shape_tensor *tensor, nw_error *err)
{
    generate *g = user;
    nw_dtype  dtype = g->options->dtype;
    uint64_t  count = tensor->rows * tensor->cols;
    uint64_t  key = nw_normal_key(g->options->seed, tensor->name);
    nw_normal_set(g->maker.normal, dtype, g->options->coarse, tensor->mean, tensor->sigma);
    if (!tensor->is_head || g->shape->eos_id >= tensor->rows)
        return nw_maker_draw(&g->maker, dtype, key, 0, count, err);
    uint64_t first = g->shape->eos_id * tensor->cols, after = first + tensor->cols;
    nw_code  rc = nw_maker_draw(&g->maker, dtype, key, 0, first, err);
    if (rc == NW_OK)
        rc = nw_maker_zeros(&g->maker, dtype, tensor->cols, err);
    return rc == NW_OK ? nw_maker_draw(&g->maker, dtype, key, after, count - after, err) : rc;
}

static nw_code write_config(generate *g, cJSON *config, nw_error *err)
{
    static const char *const torch_names[NW_DTYPE_COUNT] = {
        [NW_F32] = "float32", [NW_BF16] = "bfloat16", [NW_F16] = "float16"};
    cJSON_DeleteItemFromObjectCaseSensitive(config, "torch_dtype");
    cJSON_AddStringToObject(config, "torch_dtype", torch_names[g->options->dtype]);
    char *text = cJSON_Print(config);
    if (text == NULL)
        return nw_fail(err, NW_E_MEMORY, 0, "config.json: out of memory");
    nw_code rc = nw_writer_file(g->maker.writer, "config.json", text, strlen(text), err);
    cJSON_free(text);
    return rc;
}

static nw_code write_checkpoint(generate *g, nw_memory *mem, nw_io *io, cJSON *config, uint64_t bytes, nw_error *err)
{
    const options *o = g->options;
    nw_code        rc = nw_maker_open(mem, o->dst, o->shard_bytes_max, bytes, &g->maker, err);
    if (rc == NW_OK)
        rc = nw_shape_walk(g->shape, declare_tensor, g, err);
    if (rc == NW_OK)
        rc = nw_shape_walk(g->shape, write_tensor, g, err);
    if (rc == NW_OK)
        rc = write_config(g, config, err);
    if (rc == NW_OK && o->tokenizer != NULL)
        rc = nw_maker_carry(&g->maker, io, o->tokenizer, false, err);
    if (rc == NW_OK)
        rc = nw_maker_finish(&g->maker, err);
    double seconds = nw_maker_seconds(&g->maker);
    if (rc == NW_OK)
        printf("%s: written in %.1f s, %.2f GB/s\n", o->dst, seconds, (double)bytes * 1e-9 / seconds);
    nw_maker_close(&g->maker);
    return rc;
}

static nw_code run(const options *o, nw_error *err)
{
    nw_memory mem;
    nw_io    *io = NULL;
    cJSON    *config = NULL;
    nw_shape  shape;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_io_open(&mem, &(nw_io_options){.depth = 4}, &io, err);
    if (rc == NW_OK && o->config != NULL) {
        rc = open_config(&mem, io, o->config, &config, err);
        if (rc == NW_OK)
            rc = shape_of_config(config, o->config, &shape, err);
    } else if (rc == NW_OK) {
        const nw_shape *found = nw_shape_find(o->shape_name);
        if (found == NULL) {
            rc =
                nw_fail(err, NW_E_ARG, 0, "no shape is called '%s'; narrows-generate --list prints all", o->shape_name);
        } else {
            shape = *found;
            config = config_of_shape(&shape, o->shape_name);
        }
    }
    if (rc == NW_OK) {
        uint64_t params = nw_shape_params(&shape), bytes = params * nw_dtype_bytes(o->dtype);
        NW_CHECK(shape.params == 0 || shape.params == params);
        char size[16];
        printf("%s: %" PRIu64 " weights, %" PRIu64 " bytes (%s)\n", o->config != NULL ? o->config : o->shape_name,
               params, bytes, nw_size_format(bytes, true, size));
        fflush(stdout);
        generate g = {.options = o, .shape = &shape};
        if (!o->dry_run)
            rc = write_checkpoint(&g, &mem, io, config, bytes, err);
    }
    cJSON_Delete(config);
    nw_io_close(io);
    return rc;
}

static int list_shapes(void)
{
    int             status = EXIT_SUCCESS;
    const nw_shape *s;
    for (size_t i = 0; (s = nw_shape_at(i)) != NULL; i++) {
        uint64_t params = nw_shape_params(s);
        printf("%14" PRIu64 "  %s\n", params, s->names);
        if (params != s->params) {
            fprintf(stderr, "narrows-generate: %s: %" PRIu64 " weights were published\n", s->names, s->params);
            status = EXIT_FAILURE;
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    options o;
    if (!parse_options(argc, argv, &o))
        return 2;
    if (o.list)
        return list_shapes();
    nw_error err = {0};
    if (run(&o, &err) != NW_OK) {
        fprintf(stderr, "narrows-generate: %s\n", err.msg);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

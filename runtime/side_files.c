#include "side_files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES_MAX ((size_t)64 << 10) /* of a config.json whose type is rewritten: real ones have 1 to 3 KB */

static nw_code copy_pieces(const nw_side_files *f, const char *path, const char *as, nw_pack_hash *hash, nw_error *err)
{
    nw_file     file = {.fd = -1};
    const void *bytes;
    size_t      len = 0;
    nw_code     rc = nw_file_open(path, &file, err);
    if (rc != NW_OK)
        return rc;
    nw_stream_begin(f->stream, &file, path, 0, file.size);
    do {
        rc = nw_stream_next(f->stream, &bytes, &len, f->read_bytes, err);
        if (rc == NW_OK && len > 0) {
            nw_pack_hash_add(hash, bytes, len);
            rc = f->put(f->user, as, bytes, len, err);
        }
    } while (rc == NW_OK && len > 0);
    nw_file_close(&file);
    return rc == NW_OK ? nw_pack_hash_check(hash, path, err) : rc;
}

/* Copies one file if it is there. A pack's is compared with what its manifest says on the way. */
static nw_code copy_file(const nw_side_files *f, const char *dir, const char *name, const char *as, nw_error *err)
{
    char           path[4096];
    struct stat    st;
    const nw_pack *pack = nw_checkpoint_pack(f->model->checkpoint);
    nw_pack_hash  *hash = NULL;
    nw_code        rc = NW_OK;
    int            path_len = snprintf(path, sizeof path, "%s%s%s", dir, name[0] != '\0' ? "/" : "", name);
    if (path_len < 0 || (size_t)path_len >= sizeof path || stat(path, &st) != 0 || st.st_size == 0)
        return NW_OK;
    if (pack != NULL)
        rc = nw_pack_hash_open(pack, &f->model->memory, path, &hash, err);
    if (rc == NW_OK)
        rc = copy_pieces(f, path, as, hash, err);
    nw_pack_hash_close(hash);
    return rc;
}

/* The configuration says which type the weights have, for loaders that are asked to follow it. */
static void set_type(cJSON *config, const char *key, nw_type type)
{
    static const char *const names[] = {
        [NW_TYPE_F32] = "float32", [NW_TYPE_BF16] = "bfloat16", [NW_TYPE_F16] = "float16"};
    if (cJSON_GetObjectItemCaseSensitive(config, key) != NULL)
        cJSON_ReplaceItemInObjectCaseSensitive(config, key, cJSON_CreateString(names[type]));
}

static void add_inferred_sizes(cJSON *json, const nw_config *c)
{
    const struct {
        const char *key;
        uint32_t    value;
    } numbers[] = {{"vocab_size", c->vocab_size},
                   {"d_model", c->d_model},
                   {"d_kv", c->d_kv},
                   {"d_ff", c->d_ff},
                   {"num_heads", c->head_count},
                   {"num_layers", c->encoder_blocks},
                   {"relative_attention_num_buckets", c->bucket_count},
                   {"relative_attention_max_distance", c->bucket_distance},
                   {"pad_token_id", c->pad_id},
                   {"eos_token_id", c->eos_ids[0]},
                   {"decoder_start_token_id", c->start_id}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    if (c->decoder_blocks > 0)
        cJSON_AddNumberToObject(json, "num_decoder_layers", c->decoder_blocks);
    cJSON_AddNumberToObject(json, "layer_norm_epsilon", 1e-6);
}

/* A config.json for weights that came without: what was inferred and assumed, which nw_config_infer keeps to these few
 * possibilities. A scaled output is the mark of a tied head (model_type t5), whether or not the file holds a copy. */
static nw_code write_inferred_config(const nw_side_files *f, nw_error *err)
{
    const nw_config *c = &f->model->config;
    cJSON           *json = cJSON_CreateObject();
    const char      *kind = c->decoder_blocks > 0 ? "ForConditionalGeneration" : "EncoderModel";
    char             architecture[64];
    snprintf(architecture, sizeof architecture, "%s%s", c->bias_per_block ? "UMT5" : "T5", kind);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "architectures"), cJSON_CreateString(architecture));
    cJSON_AddStringToObject(json, "model_type", c->model_type);
    add_inferred_sizes(json, c);
    cJSON_AddStringToObject(json, "feed_forward_proj",
                            !c->gated                      ? "relu"
                            : c->activation == NW_ACT_SILU ? "gated-silu"
                                                           : "gated-gelu");
    cJSON_AddBoolToObject(json, "is_encoder_decoder", c->decoder_blocks > 0);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", c->head_tied || c->scale_output);
    if (c->byte_tokens)
        cJSON_AddStringToObject(json, "tokenizer_class", "ByT5Tokenizer");
    char *printed = cJSON_Print(json);
    cJSON_Delete(json);
    if (printed == NULL)
        return nw_memory_fail(&f->model->memory, err, CONFIG_BYTES_MAX, "config.json");
    nw_code rc = f->put(f->user, "config.json", printed, strlen(printed), err);
    cJSON_free(printed);
    return rc;
}

static nw_code write_config(const nw_side_files *f, const char *path, nw_error *err)
{
    struct stat st;
    nw_memory  *mem = &f->model->memory;
    if (path == NULL)
        return write_inferred_config(f, err);
    if (f->type == NW_TYPE_KEEP || f->type > NW_TYPE_F16 || stat(path, &st) != 0 ||
        (uint64_t)st.st_size > CONFIG_BYTES_MAX)
        return copy_file(f, path, "", "config.json", err);
    char   *text = NULL;
    size_t  bytes = 0;
    nw_code rc =
        nw_file_read_whole(mem, NW_TAG_INDEX, f->io, path, CONFIG_BYTES_MAX, &text, &bytes, f->read_bytes, err);
    if (rc != NW_OK)
        return rc;
    if (nw_checkpoint_pack(f->model->checkpoint) != NULL)
        rc = nw_pack_file_check(nw_checkpoint_pack(f->model->checkpoint), path, text, bytes, err);
    if (rc != NW_OK) {
        nw_memory_free(mem, NW_TAG_INDEX, text, bytes + 1, 1);
        return rc;
    }
    cJSON *json = cJSON_ParseWithLength(text, bytes); /* the strict scan has passed it when the model was opened */
    nw_memory_free(mem, NW_TAG_INDEX, text, bytes + 1, 1);
    set_type(json, "torch_dtype", f->type);
    set_type(json, "dtype", f->type);
    char *printed = cJSON_Print(json);
    cJSON_Delete(json);
    if (printed == NULL)
        return nw_memory_fail(mem, err, bytes, path);
    rc = f->put(f->user, "config.json", printed, strlen(printed), err);
    cJSON_free(printed);
    return rc;
}

nw_code nw_side_files_copy(const nw_side_files *f, nw_error *err)
{
    static const char *const names[] = {
        "spiece.model",      "tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json",      "merges.txt"};
    const nw_model *m = f->model;
    const char     *dir = nw_checkpoint_dir(m->checkpoint);
    const char     *tokenizer = m->tokenizer != NULL ? m->tokenizer : dir;
    struct stat     st;
    nw_code         rc = write_config(f, m->config_path, err);
    if (rc == NW_OK)
        rc = copy_file(f, dir, "generation_config.json", "generation_config.json", err);
    if (rc == NW_OK && stat(tokenizer, &st) == 0 && !S_ISDIR(st.st_mode))
        return copy_file(f, tokenizer, "", "spiece.model", err);
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == NW_OK; i++)
        rc = copy_file(f, tokenizer, names[i], names[i], err);
    return rc;
}

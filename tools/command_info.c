/* info: what a model is, from its headers alone. */
#include "commands.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

enum { KEY_TENSORS = 512 };

typedef struct {
    options common;
    bool    tensors;
} info_options;

static const struct argp_option info_argp_options[] = {
    {"tensors", KEY_TENSORS, 0, 0, "List every tensor (so does --verbose)", 6},
    {0},
};

static error_t parse_info(int key, char *arg, struct argp_state *state)
{
    info_options *o = (info_options *)state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->child_inputs[1] = &o->common; return 0;
    case KEY_TENSORS: o->tensors = true; return 0;
    case ARGP_KEY_ARG:
        if (o->common.model != NULL)
            return options_fail(&o->common, "more than one model");
        o->common.model = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->common.model == NULL)
            return options_fail(&o->common, "no model: MODEL is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

static const struct argp info_argp = {
    .options = info_argp_options,
    .parser = parse_info,
    .args_doc = "MODEL",
    .doc = "Says what a model is: family, sizes, types, files, tokenizer, and how many bytes each phase of a run "
           "reads. No weights "
           "are read."
           "\vExamples:\n"
           "  narrows info flan-t5-xl\n"
           "  narrows info google/flan-t5-small --json --tensors",
    .children = children,
};

typedef struct {
    nw_model         *model;
    nw_model_info     info;
    nw_tokenizer_info tokenizer;
    nw_pack_info      pack; /* if it is one */
    bool              tensors;
} facts;

static const char *const type_names[NW_STORED_TYPES] = {"f32", "bf16", "f16", "q8", "q4"};
static const char *const form_names[NW_STORED_FORMS] = {"plain", "packed", "slim3", "slim4", "q8", "q4"};

/* ---- for people
 * ------------------------------------------------------------------------------------------------------- */

static void print_bytes_row(const char *name, uint64_t bytes, const char *remark)
{
    char size[16];
    print_text("%-14s%s%s\n", name, nw_bytes_format(bytes, false, size), remark);
}

static void print_tensors(const facts *f)
{
    nw_tensor_info t;
    print_text("\n");
    for (size_t i = 0; nw_model_tensor(f->model, i, &t); i++) {
        char   shape[128] = "", size[16];
        size_t used = 0;
        for (uint32_t d = 0; d < t.dim_count && d < 8 && used < sizeof shape; d++) {
            int len =
                snprintf(shape + used, sizeof shape - used, d == 0 ? "%llu" : "x%llu", (unsigned long long)t.dims[d]);
            used += len > 0 ? (size_t)len : 0;
        }
        print_text("%s  %s [%s]  %s  %s at %llu%s%s\n", t.name, t.dtype, shape, nw_bytes_format(t.bytes, false, size),
                   t.file, (unsigned long long)t.offset, t.used ? "" : "  (unused)",
                   nw_model_pack_kept(f->model, i) ? "  (keeps its type)" : "");
    }
}

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static void print_pack(const facts *f)
{
    const nw_pack_info *p = &f->pack;
    char                stored[16], source[16];
    print_text("%-14sof '%s' by %s, --compress %s, %s\n", "pack", p->name, p->tool, p->compress,
               p->lossy ? "lossy" : "lossless");
    for (size_t i = 0; i < NW_STORED_TYPES; i++) {
        if (p->source_bytes[i] > 0)
            print_text("%-14s%s of %s, %.3f of the %s that these had before%s\n", "",
                       nw_bytes_format(p->stored_bytes[i], false, stored), type_names[i],
                       share(p->stored_bytes[i], p->source_bytes[i]),
                       nw_bytes_format(p->source_bytes[i], false, source), p->lossy_type[i] ? " (lossy)" : "");
    }
    for (size_t i = 0; i < NW_STORED_FORMS; i++) {
        if (p->form_bytes[i] > 0)
            print_text("%-14s%s in the form %s\n", "", nw_bytes_format(p->form_bytes[i], false, stored), form_names[i]);
    }
    if (p->kept_count > 0)
        print_text("%-14s%zu tensor%s no whole blocks of 32 and keep%s the type: see --tensors\n", "", p->kept_count,
                   p->kept_count == 1 ? " has" : "s have", p->kept_count == 1 ? "s" : "");
}

/* True if one block follows another: encoder.3 and encoder.4. */
static bool follows(const char *block, const char *next)
{
    const char *a = strrchr(block, '.'), *b = next != NULL ? strrchr(next, '.') : NULL;
    return a != NULL && b != NULL && a - block == b - next && strncmp(block, next, (size_t)(a - block)) == 0 &&
           strtoul(b + 1, NULL, 10) == strtoul(a + 1, NULL, 10) + 1;
}

/* The blocks of a file, in one line; of a run of them, the first and the last. */
static void print_blocks(const facts *f, size_t file)
{
    const char *block, *next;
    char        name[32], next_name[32];
    bool        inside = false; /* a run */
    for (size_t i = 0; (block = nw_model_block(f->model, file, i, name)) != NULL; i++) {
        next = nw_model_block(f->model, file, i + 1, next_name);
        if (!inside)
            print_text(i == 0 ? "%-14s  %s" : "%s%s", i == 0 ? "" : ", ", block);
        else if (!follows(block, next))
            print_text(" to %s", block);
        inside = follows(block, next);
        if (next == NULL)
            print_text("\n");
    }
}

static void print_files(const facts *f)
{
    const nw_model_info *m = &f->info;
    const char          *file;
    uint64_t             bytes;
    print_text("%-14s%zu in %zu %s%s\n", "tensors", m->tensor_count, m->file_count, m->is_pack ? "shard" : "file",
               m->file_count == 1 ? "" : "s");
    for (size_t i = 0; (file = nw_model_file(f->model, i, &bytes)) != NULL; i++) {
        char size[16];
        print_text("%-14s%s  %s\n", "", nw_bytes_format(bytes, false, size), file);
        print_blocks(f, i);
    }
}

static void print_facts(const facts *f)
{
    const nw_model_info *m = &f->info;
    const char          *name = m->path;
    print_text("%-14s%s\n", "model", name);
    print_text("%-14s%s (model_type %s)\n", "family", m->family, m->model_type);
    if (m->config_path == NULL)
        print_text("%-14snone: inferred from the tensors\n", "config");
    if (m->name_prefix[0] != '\0')
        print_text("%-14s%s... in the files\n", "tensor names", m->name_prefix);
    if (m->decoder_blocks == 0)
        print_text("%-14s%u encoder (encoder only)\n", "blocks", m->encoder_blocks);
    else
        print_text("%-14s%u encoder + %u decoder\n", "blocks", m->encoder_blocks, m->decoder_blocks);
    print_text("%-14sd_model %u, d_ff %u, %u heads of %u\n", "sizes", m->d_model, m->d_ff, m->heads, m->d_kv);
    print_text("%-14s%s\n", "activation", m->activation);
    print_text("%-14s%u pieces; %s head\n", "vocabulary", m->vocab_size, m->head_tied ? "tied" : "separate");
    print_text("%-14s%u buckets to distance %u, %s\n", "position bias", m->relative_buckets, m->relative_distance,
               m->bias_per_block ? "in each block" : "in the first block");
    print_text("%-14spad %u, start %u, end %u\n", "special ids", m->pad_id, m->start_id, m->eos_id);
    if (strcmp(f->tokenizer.kind, "none") == 0)
        print_text("%-14snone: runs from --input-ids (%s)\n", "tokenizer", f->tokenizer.problem);
    else
        print_text("%-14s%s, %u pieces, %u extra ids%s%s\n", "tokenizer", f->tokenizer.kind, f->tokenizer.pieces,
                   f->tokenizer.extra_ids, f->tokenizer.path != NULL ? ", " : "",
                   f->tokenizer.path != NULL ? f->tokenizer.path : "");
    print_text("%-14s%llu (%.3g billion)\n", "parameters", (unsigned long long)m->parameters,
               (double)m->parameters / 1e9);
    print_bytes_row("weights", m->weight_bytes, "");
    for (size_t i = 0; i < NW_STORED_TYPES && !m->is_pack; i++) {
        char of[16];
        snprintf(of, sizeof of, " of %s", type_names[i]);
        if (m->type_bytes[i] > 0)
            print_bytes_row("", m->type_bytes[i], of);
    }
    if (m->is_pack)
        print_pack(f);
    print_bytes_row("encoder", m->encoder_bytes, ", once a prompt");
    print_bytes_row("cross K/V", m->cross_bytes, ", once a prompt");
    print_bytes_row("decoder", m->decode_bytes, ", each token, less what stays resident");
    print_files(f);
    if (f->tensors)
        print_tensors(f);
}

/* ---- for programs
 * ----------------------------------------------------------------------------------------------------- */

static void add_tensors(cJSON *json, const facts *f)
{
    nw_tensor_info t;
    cJSON         *list = cJSON_AddArrayToObject(json, "tensors");
    for (size_t i = 0; nw_model_tensor(f->model, i, &t); i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(list, item);
        cJSON_AddStringToObject(item, "name", t.name);
        cJSON_AddStringToObject(item, "dtype", t.dtype);
        cJSON *shape = cJSON_AddArrayToObject(item, "shape");
        for (uint32_t d = 0; d < t.dim_count && d < 8; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t.dims[d]));
        cJSON_AddNumberToObject(item, "bytes", (double)t.bytes);
        cJSON_AddStringToObject(item, "file", t.file);
        cJSON_AddNumberToObject(item, "offset", (double)t.offset);
        cJSON_AddBoolToObject(item, "used", t.used);
        if (f->info.is_pack)
            cJSON_AddBoolToObject(item, "kept", nw_model_pack_kept(f->model, i));
    }
}

static void add_tokenizer(cJSON *json, const nw_tokenizer_info *tokenizer)
{
    cJSON *item = cJSON_AddObjectToObject(json, "tokenizer");
    cJSON_AddStringToObject(item, "kind", tokenizer->kind);
    if (tokenizer->path != NULL)
        cJSON_AddStringToObject(item, "path", tokenizer->path);
    else
        cJSON_AddNullToObject(item, "path");
    cJSON_AddNumberToObject(item, "pieces", tokenizer->pieces);
    cJSON_AddNumberToObject(item, "extra_ids", tokenizer->extra_ids);
    if (tokenizer->problem != NULL)
        cJSON_AddStringToObject(item, "problem", tokenizer->problem);
    else
        cJSON_AddNullToObject(item, "problem");
}

static void add_sizes(cJSON *json, const nw_model_info *m)
{
    const struct {
        const char *name;
        uint32_t    value;
    } sizes[] = {
        {"vocab_size", m->vocab_size},
        {"d_model", m->d_model},
        {"d_kv", m->d_kv},
        {"d_ff", m->d_ff},
        {"heads", m->heads},
        {"encoder_blocks", m->encoder_blocks},
        {"decoder_blocks", m->decoder_blocks},
        {"relative_buckets", m->relative_buckets},
        {"relative_distance", m->relative_distance},
        {"pad_id", m->pad_id},
        {"start_id", m->start_id},
        {"eos_id", m->eos_id},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        cJSON_AddNumberToObject(json, sizes[i].name, sizes[i].value);
    cJSON_AddStringToObject(json, "activation", m->activation);
    cJSON_AddBoolToObject(json, "head_tied", m->head_tied);
    cJSON_AddBoolToObject(json, "bias_per_block", m->bias_per_block);
}

static void add_pack(cJSON *json, const facts *f)
{
    const nw_pack_info *p = &f->pack;
    if (!f->info.is_pack) {
        cJSON_AddNullToObject(json, "pack");
        return;
    }
    cJSON *item = cJSON_AddObjectToObject(json, "pack");
    cJSON_AddStringToObject(item, "name", p->name);
    cJSON_AddStringToObject(item, "tool", p->tool);
    cJSON_AddStringToObject(item, "compress", p->compress);
    cJSON_AddBoolToObject(item, "lossy", p->lossy);
    cJSON_AddNumberToObject(item, "bytes", (double)p->bytes);
    cJSON_AddNumberToObject(item, "kept_count", (double)p->kept_count);
    cJSON *types = cJSON_AddObjectToObject(item, "types");
    for (size_t i = 0; i < NW_STORED_TYPES; i++) {
        if (p->source_bytes[i] == 0)
            continue;
        cJSON *type = cJSON_AddObjectToObject(types, type_names[i]);
        cJSON_AddNumberToObject(type, "bytes", (double)p->stored_bytes[i]);
        cJSON_AddNumberToObject(type, "source_bytes", (double)p->source_bytes[i]);
        cJSON_AddNumberToObject(type, "ratio", share(p->stored_bytes[i], p->source_bytes[i]));
        cJSON_AddBoolToObject(type, "lossy", p->lossy_type[i]);
    }
    cJSON *forms = cJSON_AddObjectToObject(item, "form_bytes");
    for (size_t i = 0; i < NW_STORED_FORMS; i++) {
        if (p->form_bytes[i] > 0)
            cJSON_AddNumberToObject(forms, form_names[i], (double)p->form_bytes[i]);
    }
}

static void add_files(cJSON *json, const facts *f)
{
    cJSON      *files = cJSON_AddArrayToObject(json, "files");
    const char *file, *block;
    char        name[32];
    uint64_t    bytes;
    for (size_t i = 0; (file = nw_model_file(f->model, i, &bytes)) != NULL; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(files, item);
        cJSON_AddStringToObject(item, "path", file);
        cJSON_AddNumberToObject(item, "bytes", (double)bytes);
        cJSON *blocks = cJSON_AddArrayToObject(item, "blocks");
        for (size_t b = 0; (block = nw_model_block(f->model, i, b, name)) != NULL; b++)
            cJSON_AddItemToArray(blocks, cJSON_CreateString(block));
    }
}

static void print_facts_json(const facts *f)
{
    const nw_model_info *m = &f->info;
    cJSON               *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "path", m->path);
    cJSON_AddStringToObject(json, "family", m->family);
    cJSON_AddStringToObject(json, "model_type", m->model_type);
    if (m->config_path != NULL)
        cJSON_AddStringToObject(json, "config", m->config_path);
    else
        cJSON_AddNullToObject(json, "config");
    cJSON_AddStringToObject(json, "name_prefix", m->name_prefix);
    cJSON_AddBoolToObject(json, "encoder_only", m->decoder_blocks == 0);
    add_sizes(json, m);
    cJSON_AddNumberToObject(json, "parameters", (double)m->parameters);
    cJSON_AddNumberToObject(json, "weight_bytes", (double)m->weight_bytes);
    cJSON_AddNumberToObject(json, "encoder_bytes", (double)m->encoder_bytes);
    cJSON_AddNumberToObject(json, "cross_bytes", (double)m->cross_bytes);
    cJSON_AddNumberToObject(json, "decode_bytes", (double)m->decode_bytes);
    cJSON *types = cJSON_AddObjectToObject(json, "type_bytes");
    for (size_t i = 0; i < NW_STORED_TYPES; i++)
        cJSON_AddNumberToObject(types, type_names[i], (double)m->type_bytes[i]);
    add_tokenizer(json, &f->tokenizer);
    add_pack(json, f);
    add_files(json, f);
    cJSON_AddNumberToObject(json, "tensor_count", (double)m->tensor_count);
    if (f->tensors)
        add_tensors(json, f);
    if (print_json(json, true))
        print_bytes("\n", 1);
    cJSON_Delete(json);
}

int command_info(int argc, char **argv)
{
    info_options o = {.common.name = "narrows info"};
    int          status = options_parse(&info_argp, argc, argv, &o.common, &o);
    if (status != -1)
        return status;
    facts    f = {.tensors = o.tensors || o.common.verbose > 0};
    nw_error err = {0};
    status = options_open_model(&o.common, &f.model);
    if (status == -1) {
        nw_model_describe(f.model, &f.info);
        nw_model_pack_describe(f.model, &f.pack);
        if (nw_model_tokenizer_describe(f.model, &f.tokenizer, &err) != NW_OK)
            status = print_failure(&err);
    }
    if (status == -1) {
        if (o.common.json)
            print_facts_json(&f);
        else
            print_facts(&f);
        status = EXIT_DONE;
    }
    nw_model_close(f.model);
    return print_finish(status);
}

/* pack: any model that runs, rewritten so that later runs read less, in order, and notice a damaged byte. */
#include "commands.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "interrupt.h"
#include "transfer.h"

enum { KEY_DTYPE = 512, KEY_COMPRESS };

typedef struct {
    transfer_options to;
    nw_pack_options  pack;
    transfer         transfer;
} pack_options;

static const struct argp_option pack_argp_options[] = {
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "keep (default), bf16, f16 or f32; or, smaller and lossy, q8 or q4: blocks of 32 weights with one scale", 2},
    {"compress", KEY_COMPRESS, "HOW", 0,
     "packed (default): smallest; slim: a little larger, for fast disks and few cores; off. None loses a bit", 2},
    {"threads", 't', "N", 0, "Threads that compress (default: as many as this process may use)", 2},
    {0},
};

static error_t parse_dtype(pack_options *o, const char *arg)
{
    static const struct {
        const char *name;
        nw_type     type;
    } types[] = {{"keep", NW_TYPE_KEEP}, {"f32", NW_TYPE_F32}, {"bf16", NW_TYPE_BF16},
                 {"f16", NW_TYPE_F16},   {"q8", NW_TYPE_Q8},   {"q4", NW_TYPE_Q4}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(arg, types[i].name) == 0) {
            o->pack.type = types[i].type;
            return 0;
        }
    }
    return options_fail(&o->to.common, "--dtype: '%s' is not keep, bf16, f16, f32, q8 or q4", arg);
}

static error_t parse_compress(pack_options *o, const char *arg)
{
    static const char *const names[] = {
        [NW_COMPRESS_PACKED] = "packed", [NW_COMPRESS_SLIM] = "slim", [NW_COMPRESS_OFF] = "off"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(arg, names[i]) == 0) {
            o->pack.compress = (nw_compress)i;
            return 0;
        }
    }
    return options_fail(&o->to.common, "--compress: '%s' is not packed, slim or off", arg);
}

static error_t parse_pack(int key, char *arg, struct argp_state *state)
{
    pack_options *o = (pack_options *)state->input;
    uint64_t      threads;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->to;
        for (size_t i = 1; i < 4; i++)
            state->child_inputs[i] = &o->to.common;
        return 0;
    case KEY_DTYPE: return parse_dtype(o, arg);
    case KEY_COMPRESS: return parse_compress(o, arg);
    case 't':
        if (!options_number(arg, 1, 256, &threads))
            return options_fail(&o->to.common, "--threads: '%s' is not a number from 1 to 256", arg);
        o->pack.threads = (unsigned)threads;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&transfer_argp, 0, NULL, 0},
                                             {&options_model_argp, 0, NULL, 0},
                                             {&options_budget_argp, 0, NULL, 0},
                                             {&options_output_argp, 0, NULL, 0},
                                             {0}};

static const struct argp pack_argp = {
    .options = pack_argp_options,
    .parser = parse_pack,
    .args_doc = "SRC DST",
    .doc =
        "Writes a model as a pack: its weights in the order in which a run needs them, compressed without loss unless "
        "--dtype says otherwise, each strip with a checksum. A pack runs wherever a model does. DST must be new, and "
        "appears when it is complete."
        "\vExamples:\n"
        "  narrows pack flan-t5-xl flan-t5-xl.pack\n"
        "  narrows pack google/flan-t5-xl xl.q8 --dtype q8",
    .children = children,
};

static void print_result(const pack_options *o, const nw_pack_result *r, double seconds)
{
    print_note("'%s': %zu tensors, %.3f GB of %.3f GB in %u shard%s, %.0f MB/s", o->to.dir, r->tensor_count,
               (double)r->stored_bytes / 1e9, (double)r->source_bytes / 1e9, r->shard_count,
               r->shard_count == 1 ? "" : "s", seconds > 0 ? (double)r->source_bytes / seconds / 1e6 : 0);
    if (o->pack.type == NW_TYPE_Q8 || o->pack.type == NW_TYPE_Q4)
        print_note("lossy: weights are %s", o->pack.type == NW_TYPE_Q8 ? "q8" : "q4, embedding and head q8");
    else if (r->rounded > 0)
        print_note("lossy: %llu weights were rounded", (unsigned long long)r->rounded);
    if (r->alias_count > 0)
        print_note("%zu name%s of tied tensors %s in the manifest", r->alias_count, r->alias_count == 1 ? "" : "s",
                   r->alias_count == 1 ? "is" : "are");
    if (r->kept_count > 0)
        print_note("%zu tensors keep their type: their rows are no whole blocks of 32", r->kept_count);
    if (r->skipped_count > 0)
        print_note("%zu tensors of types that cannot be run are left out", r->skipped_count);
}

/* What the choices are, before anything is written. `user` is a pack_options. */
static void print_estimate(void *user, const nw_pack_estimate *e)
{
    static const struct {
        nw_type     type;
        const char *name;
    } rows[] = {{NW_TYPE_KEEP, "keep"}, {NW_TYPE_BF16, "bf16"}, {NW_TYPE_Q8, "q8"}, {NW_TYPE_Q4, "q4"}};
    const nw_pack_options *o = &((pack_options *)user)->pack;
    print_note("now %.3f GB, %.3f GB read for each token at the smallest budget", (double)e->plain_bytes / 1e9,
               (double)e->plain_token_bytes / 1e9);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        print_note("  %-5s about %.3f GB, %.3f GB for each token", rows[i].name, (double)e->bytes[rows[i].type] / 1e9,
                   (double)e->token_bytes[rows[i].type] / 1e9);
    print_note("this pack needs %.3f GB of free space", (double)nw_pack_space(e, o->type, o->compress) / 1e9);
    if (e->bf16_in_f32 && o->type != NW_TYPE_BF16)
        print_note("its f32 weights are bf16 values, as far as looked: --dtype bf16 loses nothing then");
}

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    return transfer_progress(&((pack_options *)user)->transfer, done, total);
}

static void print_result_json(const pack_options *o, const nw_pack_result *r)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "path", o->to.dir);
    cJSON_AddNumberToObject(json, "tensor_count", (double)r->tensor_count);
    cJSON_AddNumberToObject(json, "alias_count", (double)r->alias_count);
    cJSON_AddNumberToObject(json, "kept_count", (double)r->kept_count);
    cJSON_AddNumberToObject(json, "skipped_count", (double)r->skipped_count);
    cJSON_AddNumberToObject(json, "shard_count", r->shard_count);
    cJSON_AddNumberToObject(json, "source_bytes", (double)r->source_bytes);
    cJSON_AddNumberToObject(json, "stored_bytes", (double)r->stored_bytes);
    cJSON_AddNumberToObject(json, "read_bytes", (double)r->read_bytes);
    cJSON_AddNumberToObject(json, "rounded", (double)r->rounded);
    transfer_print_json(json, &o->transfer);
}

int command_pack(int argc, char **argv)
{
    pack_options o = {.to.common.name = "narrows pack"};
    int          status = options_parse(&pack_argp, argc, argv, &o.to.common, &o);
    if (status != -1)
        return status;
    interrupt_setup();
    nw_model      *model = NULL;
    nw_error       err = {0};
    nw_pack_result result;
    status = options_copying_budget(&o.to.common);
    if (status == -1)
        status = options_open_model(&o.to.common, &model);
    if (status == -1) {
        interrupt_hold();
        o.transfer = transfer_start(o.to.common.quiet);
        o.pack.dir = o.to.dir;
        o.pack.shard_bytes_max = o.to.shard_bytes_max;
        o.pack.budget_bytes = o.to.common.session.budget_bytes;
        o.pack.on_estimate = print_estimate;
        o.pack.on_progress = on_progress;
        o.pack.user = &o;
        nw_code rc = nw_model_pack(model, &o.pack, &result, &err);
        print_progress_clear();
        if (rc == NW_OK)
            print_result(&o, &result, transfer_seconds(&o.transfer));
        if (rc == NW_OK && o.to.common.json)
            print_result_json(&o, &result);
        status = transfer_status(rc, &err);
    }
    nw_model_close(model);
    return print_finish(status);
}

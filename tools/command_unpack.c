/* unpack: any model that runs, as Hugging Face safetensors. Its memory is a constant of some 20 MiB; the budget, if
 * given, is only checked against that. */
#include "commands.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "interrupt.h"
#include "transfer.h"

enum { KEY_DTYPE = 512 };

typedef struct {
    transfer_options  to;
    nw_unpack_options unpack;
} unpack_options;

static const struct argp_option unpack_argp_options[] = {
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "Convert the weights: bf16, f16 or f32 (default: each as it is, or was when it was packed; q8 and q4 as f32)", 2},
    {0},
};

static error_t parse_dtype(unpack_options *o, const char *arg)
{
    static const struct {
        const char *name;
        nw_type     type;
    } types[] = {{"f32", NW_TYPE_F32},       {"float32", NW_TYPE_F32}, {"bf16", NW_TYPE_BF16},
                 {"bfloat16", NW_TYPE_BF16}, {"f16", NW_TYPE_F16},     {"float16", NW_TYPE_F16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(arg, types[i].name) == 0) {
            o->unpack.type = types[i].type;
            return 0;
        }
    }
    return options_fail(&o->to.common, "--dtype: '%s' is not bf16, f16 or f32", arg);
}

static error_t parse_unpack(int key, char *arg, struct argp_state *state)
{
    unpack_options *o = (unpack_options *)state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->to;
        for (size_t i = 1; i < 4; i++)
            state->child_inputs[i] = &o->to.common;
        return 0;
    case KEY_DTYPE: return parse_dtype(o, arg);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&transfer_argp, 0, NULL, 0},
                                             {&options_model_argp, 0, NULL, 0},
                                             {&options_budget_argp, 0, NULL, 0},
                                             {&options_output_argp, 0, NULL, 0},
                                             {0}};

static const struct argp unpack_argp = {
    .options = unpack_argp_options,
    .parser = parse_unpack,
    .args_doc = "SRC DST",
    .doc = "Writes a model as Hugging Face safetensors: shards of at most SIZE with their index, the configuration and "
           "the tokenizer's files. SRC is anything that runs; DST must be new. DST appears when it is complete."
           "\vExamples:\n"
           "  narrows unpack flan-alpaca-xl flan-alpaca-xl-safetensors --max-shard-size 2GB\n"
           "  narrows unpack flan-t5-xl flan-t5-xl-bf16 --dtype bf16",
    .children = children,
};

/* ---- together ---- */

static void print_result(const unpack_options *o, const nw_unpack_result *r, double seconds)
{
    print_note("'%s': %zu tensors, %.3f GB in %u file%s, %.0f MB/s", o->to.dir, r->tensor_count,
               (double)r->written_bytes / 1e9, r->shard_count, r->shard_count == 1 ? "" : "s",
               seconds > 0 ? (double)r->written_bytes / seconds / 1e6 : 0);
    if (r->alias_count > 0)
        print_note("%zu name%s of tied tensors %s in the metadata", r->alias_count, r->alias_count == 1 ? "" : "s",
                   r->alias_count == 1 ? "is" : "are");
    if (r->lossy)
        print_note("lossy: the pack does not hold all weights as they were before it was made");
    if (r->converted > 0 && r->rounded > 0)
        print_note("lossy: %llu of %llu converted weights were rounded", (unsigned long long)r->rounded,
                   (unsigned long long)r->converted);
    else if (r->converted > 0)
        print_note("all %llu converted weights have kept their values", (unsigned long long)r->converted);
}

static void print_result_json(const unpack_options *o, const nw_unpack_result *r, const transfer *t)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "path", o->to.dir);
    cJSON_AddNumberToObject(json, "tensor_count", (double)r->tensor_count);
    cJSON_AddNumberToObject(json, "alias_count", (double)r->alias_count);
    cJSON_AddNumberToObject(json, "shard_count", r->shard_count);
    cJSON_AddNumberToObject(json, "written_bytes", (double)r->written_bytes);
    cJSON_AddNumberToObject(json, "read_bytes", (double)r->read_bytes);
    cJSON_AddNumberToObject(json, "converted", (double)r->converted);
    cJSON_AddNumberToObject(json, "rounded", (double)r->rounded);
    cJSON_AddBoolToObject(json, "lossy", r->lossy);
    transfer_print_json(json, t);
}

int command_unpack(int argc, char **argv)
{
    unpack_options o = {.to.common.name = "narrows unpack"};
    int            status = options_parse(&unpack_argp, argc, argv, &o.to.common, &o);
    if (status != -1)
        return status;
    interrupt_setup();
    nw_model        *model = NULL;
    nw_error         err = {0};
    nw_unpack_result result;
    status = options_copying_budget(&o.to.common);
    if (status == -1)
        status = options_open_model(&o.to.common, &model);
    if (status == -1) {
        transfer t = transfer_start(o.to.common.quiet);
        interrupt_hold();
        o.unpack.dir = o.to.dir;
        o.unpack.shard_bytes_max = o.to.shard_bytes_max;
        o.unpack.budget_bytes = o.to.common.session.budget_bytes;
        o.unpack.on_progress = transfer_progress;
        o.unpack.user = &t;
        nw_code rc = nw_model_unpack(model, &o.unpack, &result, &err);
        print_progress_clear();
        if (rc == NW_OK)
            print_result(&o, &result, transfer_seconds(&t));
        if (rc == NW_OK && o.to.common.json)
            print_result_json(&o, &result, &t);
        status = transfer_status(rc, &err);
    }
    nw_model_close(model);
    return print_finish(status);
}

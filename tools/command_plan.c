/* plan: what a run under this budget would keep, read and take, without running. */
#include "commands.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "budget.h"
#include "buffer.h"
#include "generation_options.h"
#include "options.h"
#include "workload.h"

enum { KEY_MEMORY_RATE = 512, KEY_EMBED, KEY_ENCODE_TOKENS };
enum { ENCODE_TOKENS_MAX = 1 << 20 };

typedef struct {
    options                common;
    generation_options     generation;
    nw_generation_settings settings;
    double                 memory_rate;
} plan_options;

static const struct argp_option plan_argp_options[] = {
    {"embed", KEY_EMBED, 0, 0, "Plan embed, not run: the encoder alone", 2},
    {"encode-tokens", KEY_ENCODE_TOKENS, "N", 0,
     "With --embed: texts of up to N tokens go through the encoder together", 2},
    {"memory-rate", KEY_MEMORY_RATE, "SIZE", 0, "Predict with memory that reads SIZE a second (default: an assumption)",
     5},
    {0},
};

static error_t parse_rate(plan_options *o, const char *option, const char *arg, double *ret)
{
    uint64_t bytes;
    if (!nw_bytes_parse(arg, &bytes))
        return options_fail(&o->common, "%s: '%s' is not a size (like 2G)", option, arg);
    *ret = (double)bytes;
    return 0;
}

static error_t parse_plan(int key, char *arg, struct argp_state *state)
{
    plan_options *o = (plan_options *)state->input;
    uint64_t      count;
    switch (key) {
    case ARGP_KEY_INIT:
        o->generation.common = &o->common;
        for (size_t i = 0; i < 3; i++)
            state->child_inputs[i] = &o->common;
        state->child_inputs[3] = &o->generation;
        return 0;
    case KEY_EMBED: o->common.session.encode_only = true; return 0;
    case KEY_ENCODE_TOKENS:
        if (!options_number(arg, 1, ENCODE_TOKENS_MAX, &count))
            return options_fail(&o->common, "--encode-tokens: '%s' is not a number from 1 to %d", arg,
                                ENCODE_TOKENS_MAX);
        o->common.session.max_encode_tokens = (size_t)count;
        return 0;
    case KEY_MEMORY_RATE: return parse_rate(o, "--memory-rate", arg, &o->memory_rate);
    case ARGP_KEY_ARG:
        if (o->common.model != NULL)
            return options_fail(&o->common, "more than one model: '%s'", arg);
        o->common.model = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->common.model == NULL)
            return options_fail(&o->common, "no model: -m MODEL is missing");
        if (o->common.session.encode_only && (generation_given(&o->generation) || o->generation.lanes > 0))
            return options_fail(&o->common, "--embed is the encoder alone: no options of generation go with it");
        if (o->generation.draft != NULL)
            return options_fail(&o->common, "--draft: a plan is for one model");
        if (!o->common.session.encode_only && o->common.session.max_encode_tokens > 0)
            return options_fail(&o->common, "--encode-tokens needs --embed");
        o->common.session.memory_rate = o->memory_rate;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_model_argp, 0, NULL, 0},
    {&options_session_argp, 0, NULL, 0},
    {&options_output_argp, 0, NULL, 0},
    {&generation_argp, 0, NULL, 0},
    {0},
};

static const struct argp plan_argp = {
    .options = plan_argp_options,
    .parser = parse_plan,
    .args_doc = "[MODEL]",
    .doc =
        "Says where a budget would go, which weights would stay resident, how much each phase would read, and how "
        "long it would "
        "take; and the smallest budget that works. Nothing is run and no weights are read. Prompts are taken to "
        "have up to 512 "
        "tokens (--max-input-tokens) and answers up to 256 (-n, or what the model's files say). There is one prompt, "
        "or with --lanes as many as there are lanes for."
        "\vExamples:\n"
        "  narrows plan -m flan-t5-xl -b 1G\n"
        "  narrows plan -m flan-t5-xl -b 60% -n 64 --disk-rate 2G",
    .children = children,
};

typedef struct {
    const options *o;
    nw_model_info  info;
    nw_plan        plan;
    bool           enough; /* the budget works; otherwise the plan is that of the smallest one */
    bool           rates_given[2];
    nw_plan_block *blocks;
    size_t         block_count;
} outline;

/* ---- for people
 * ------------------------------------------------------------------------------------------------------- */

static void print_part(const char *name, uint64_t bytes, const char *remark)
{
    char size[16];
    if (bytes > 0)
        print_text("  %-22s%8s%s%s\n", name, nw_bytes_format(bytes, true, size), remark[0] != '\0' ? "  " : "", remark);
}

static void print_parts(const nw_plan *p)
{
    char slots[64], overlay[96], size[16];
    snprintf(slots, sizeof slots, "%u slots of %s", p->slot_count, nw_bytes_format(p->slot_bytes, true, size));
    snprintf(overlay, sizeof overlay, "an encoder pass takes %s of it", nw_bytes_format(p->part.encode, true, size));
    print_text("memory\n");
    print_part("process", p->part.process, "program and libraries");
    print_part("threads", p->part.threads, "");
    print_part("reading", p->part.io, "rings and their buffers");
    print_part("tokenizer", p->part.tokenizer, "table of pieces");
    print_part("index", p->part.index, "tensors, tiles, schedules");
    print_part("vectors", p->part.vectors, "norms and biases");
    print_part("K and V of the answer", p->part.kv_self,
               p->read.kv_page > 0 ? "its last positions: the others are in a scratch file" : "");
    print_part("K and V of the prompt", p->part.kv_cross,
               p->read.kv > 0 ? "on their way: they are in a scratch file" : "");
    print_part("activations", p->part.activations, "");
    print_part("window", p->part.window, slots);
    print_part("resident weights", p->part.pins, overlay);
    print_part("kernel's share", p->part.reserve, "");
    uint64_t used = p->part.process + p->part.threads + p->part.io + p->part.tokenizer + p->part.index +
                    p->part.vectors + p->part.kv_self + p->part.kv_cross + p->part.activations + p->part.window +
                    p->part.pins + p->part.reserve;
    print_part("not needed", p->budget > used ? p->budget - used : 0, "");
    print_part("(while tokenizing)", p->tokenizer_peak, "before all the rest");
}

/* "encoder 3" is of kind "encoder": its length without the number, 0 if it has none. */
static size_t kind_length(const char *name)
{
    size_t len = strlen(name);
    while (len > 0 && name[len - 1] >= '0' && name[len - 1] <= '9')
        len--;
    return name[len] != '\0' ? len : 0;
}

/* Blocks of one kind and size. Pins are spread tile by tile, so how much of each stays differs a little: the range is
 * shown. */
static size_t print_block_range(const outline *l, size_t first)
{
    const nw_plan_block *b = &l->blocks[first];
    size_t               kind = kind_length(b->name), last = first;
    uint64_t             low = b->pinned_bytes, high = b->pinned_bytes;
    while (kind > 0 && last + 1 < l->block_count) {
        const nw_plan_block *next = &l->blocks[last + 1];
        bool                 resident = next->pinned_bytes == next->bytes;
        if (kind_length(next->name) != kind || strncmp(next->name, b->name, kind) != 0 || next->bytes != b->bytes ||
            resident != (b->pinned_bytes == b->bytes))
            break;
        low = next->pinned_bytes < low ? next->pinned_bytes : low;
        high = next->pinned_bytes > high ? next->pinned_bytes : high;
        last++;
    }
    char name[80], size[16], from[16], to[16];
    snprintf(name, sizeof name, "%s%s%s", b->name, last > first ? "-" : "",
             last > first ? l->blocks[last].name + kind : "");
    print_text("  %-22s%8s%s  ", name, nw_bytes_format(b->bytes, true, size), last > first ? " each" : "     ");
    nw_bytes_format(low, false, from);
    nw_bytes_format(high, false, to);
    const char *again = l->plan.encode_only ? "read again for each text" : "read again for each token";
    if (strncmp(b->name, "encoder", 7) == 0 && !l->plan.encode_only)
        print_text("read once a prompt\n");
    else if (high == 0)
        print_text("%s\n", again);
    else if (low == b->bytes)
        print_text("resident\n");
    else if (strcmp(from, to) == 0)
        print_text("%s resident, the rest %s\n", from, again);
    else
        print_text("%s to %s resident, the rest %s\n", from, to, again);
    return last + 1;
}

static void print_reads(const nw_plan *p)
{
    print_text("\nbytes read\n");
    print_part("opening", p->read.open, "headers and configuration");
    print_part("tokenizer", p->read.tokenizer, "");
    print_part("vectors", p->read.vectors, "");
    print_part("encoder", p->read.encode, "once a prompt");
    print_part("cross-attention", p->read.cross, "once a prompt");
    print_part(p->encode_only ? "first text" : "first token", p->read.first_pass,
               "which also fills what stays resident");
    print_part("refilling", p->read.refill, "once a prompt, after the first: what encoding displaced");
    print_text("  %-22s", p->encode_only ? "each later text" : "each later token");
    char size[16];
    print_text("%8s\n", p->read.next_pass == 0 ? "0" : nw_bytes_format(p->read.next_pass, true, size));
    print_part("K and V", p->read.kv, "each token, of prompts of this length in all lanes: from the scratch file");
    print_part("K and V", p->read.kv_answers, "each token, in the mean of answers of this length: from there too");
    print_part("embedding row", p->read.embedding_row,
               p->embedding_resident ? "each, until the table is resident" : "each, when it is not cached");
}

static void print_outline(const outline *l)
{
    const nw_plan *p = &l->plan;
    const char    *stack = p->encode_only ? "encoder" : "decoder";
    char           budget[16], smallest[16], all[16], disk[16], memory[16], out[64] = "";
    if (!p->encode_only)
        snprintf(out, sizeof out, ", %zu out", l->o->session.max_output_tokens);
    if (!p->encode_only && l->o->session.max_lanes > 1)
        snprintf(out + strlen(out), sizeof out - strlen(out), ", %zu lanes", l->o->session.max_lanes);
    print_text("budget %s%s for %zu tokens in%s; smallest that works: %s\n\n",
               nw_bytes_format(p->budget, !l->enough, budget), l->enough ? "" : " (the smallest)",
               l->o->session.max_input_tokens, out, nw_bytes_format(p->smallest, true, smallest));
    print_parts(p);
    print_text("\nweights\n");
    for (size_t i = 0; i < l->block_count;)
        i = print_block_range(l, i);
    print_text("  %llu of %llu tiles of the %s resident%s\n", (unsigned long long)p->pinned_tiles,
               (unsigned long long)p->pass_tiles, stack, p->embedding_resident ? ", and the embedding" : "");
    if (p->packed_tiles > 0)
        print_text("  of these, %llu stay packed\n", (unsigned long long)p->packed_tiles);
    print_reads(p);
    print_text("\ntime, with a disk of %s/s (%s), memory of %s/s (%s), %u thread%s\n",
               nw_bytes_format((uint64_t)p->disk_rate, false, disk), l->rates_given[0] ? "given" : "assumed",
               nw_bytes_format((uint64_t)p->memory_rate, false, memory), l->rates_given[1] ? "given" : "assumed",
               p->threads, p->threads == 1 ? "" : "s");
    print_text("  %-22s%8.3g s\n  %-22s%8.3g s\n", p->encode_only ? "the first text" : "to the first token",
               p->seconds_first_token, p->encode_only ? "each later text" : "each later token", p->seconds_per_token);
    if (p->read.next_pass > 0)
        print_text("\nnext step: with %s all of the %s stays resident\n",
                   nw_bytes_format(p->budget_all_resident, true, all), stack);
    else
        print_text("\nall of the %s stays resident\n", stack);
}

/* ---- for programs
 * ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    uint64_t    value;
} field;

static void add_fields(cJSON *json, const field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++)
        cJSON_AddNumberToObject(json, fields[i].name, (double)fields[i].value);
}

static void add_parts(cJSON *json, const nw_plan *p)
{
    const field parts[] = {
        {"process", p->part.process},     {"threads", p->part.threads},   {"io", p->part.io},
        {"tokenizer", p->part.tokenizer}, {"index", p->part.index},       {"vectors", p->part.vectors},
        {"kv_self", p->part.kv_self},     {"kv_cross", p->part.kv_cross}, {"activations", p->part.activations},
        {"encode", p->part.encode},       {"window", p->part.window},     {"pins", p->part.pins},
        {"reserve", p->part.reserve},
    };
    const field reads[] = {
        {"open", p->read.open},
        {"tokenizer", p->read.tokenizer},
        {"vectors", p->read.vectors},
        {"encode", p->read.encode},
        {"cross", p->read.cross},
        {"first_pass", p->read.first_pass},
        {"next_pass", p->read.next_pass},
        {"ahead", p->read.ahead},
        {"kv", p->read.kv},
        {"kv_page", p->read.kv_page},
        {"kv_answers", p->read.kv_answers},
        {"refill", p->read.refill},
        {"embedding_row", p->read.embedding_row},
    };
    add_fields(cJSON_AddObjectToObject(json, "part"), parts, sizeof parts / sizeof parts[0]);
    add_fields(cJSON_AddObjectToObject(json, "read"), reads, sizeof reads / sizeof reads[0]);
}

/* What lives where between passes, by the modules' names: the counterpart of accelerate's device_map. */
static void add_map(cJSON *json, const outline *l)
{
    cJSON *map = cJSON_AddObjectToObject(json, "map");
    if (!l->info.head_tied || l->plan.encode_only) /* otherwise the head is the embedding */
        cJSON_AddStringToObject(map, "shared", l->plan.embedding_resident ? "pinned" : "streamed");
    for (size_t i = 0; i < l->block_count; i++) {
        const nw_plan_block *b = &l->blocks[i];
        char                 module[64];
        const char          *number = strchr(b->name, ' ');
        if (number != NULL)
            snprintf(module, sizeof module, "%.*s.block.%s", (int)(number - b->name), b->name, number + 1);
        else
            snprintf(module, sizeof module, l->info.head_tied ? "shared" : "lm_head");
        cJSON_AddStringToObject(map, module,
                                b->pinned_bytes == 0          ? "streamed"
                                : b->pinned_bytes == b->bytes ? "pinned"
                                                              : "part");
    }
    cJSON_AddStringToObject(map, "encoder.final_layer_norm", "pinned"); /* norms and bias tables always are */
    if (!l->plan.encode_only)
        cJSON_AddStringToObject(map, "decoder.final_layer_norm", "pinned");
}

static void print_outline_json(const outline *l)
{
    const nw_plan *p = &l->plan;
    cJSON         *json = cJSON_CreateObject();
    const field    sizes[] = {
           {"budget", p->budget},
           {"smallest", p->smallest},
           {"budget_all_resident", p->budget_all_resident},
           {"max_input_tokens", l->o->session.max_input_tokens},
           {"max_output_tokens", l->o->session.max_output_tokens},
           {"max_lanes", l->o->session.max_lanes},
           {"max_columns", l->o->session.max_columns},
           {"max_encode_tokens", l->o->session.max_encode_tokens},
           {"tokenizer_peak", p->tokenizer_peak},
           {"slot_count", p->slot_count},
           {"slot_bytes", p->slot_bytes},
           {p->encode_only ? "encode_tiles" : "decode_tiles", p->pass_tiles},
           {"pinned_tiles", p->pinned_tiles},
           {"packed_tiles", p->packed_tiles},
           {"pinned_bytes", p->pinned_bytes},
           {"threads", p->threads},
    };
    cJSON_AddBoolToObject(json, "enough", l->enough);
    add_fields(json, sizes, sizeof sizes / sizeof sizes[0]);
    cJSON_AddBoolToObject(json, "encode_only", p->encode_only);
    cJSON_AddBoolToObject(json, "embedding_resident", p->embedding_resident);
    add_parts(json, p);
    cJSON_AddNumberToObject(json, "disk_rate", p->disk_rate);
    cJSON_AddNumberToObject(json, "memory_rate", p->memory_rate);
    cJSON_AddNumberToObject(json, "seconds_first_token", p->seconds_first_token);
    cJSON_AddNumberToObject(json, "seconds_per_token", p->seconds_per_token);
    cJSON *blocks = cJSON_AddArrayToObject(json, "blocks");
    for (size_t i = 0; i < l->block_count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(blocks, item);
        cJSON_AddStringToObject(item, "name", l->blocks[i].name);
        cJSON_AddNumberToObject(item, "bytes", (double)l->blocks[i].bytes);
        cJSON_AddNumberToObject(item, "pinned_bytes", (double)l->blocks[i].pinned_bytes);
    }
    add_map(json, l);
    if (print_json(json, true))
        print_bytes("\n", 1);
    cJSON_Delete(json);
}

/* ---- together ---- */

static int read_blocks(nw_model *model, const nw_session_options *session, outline *l, buffer *room)
{
    nw_error err = {0};
    size_t   count = 0;
    if (nw_plan_blocks(model, session, NULL, 0, &count, &err) != NW_OK)
        return print_failure(&err);
    if (!buffer_reserve(room, count * sizeof(nw_plan_block), SIZE_MAX)) {
        print_error("out of memory");
        return EXIT_INTERNAL;
    }
    l->blocks = room->data;
    if (nw_plan_blocks(model, session, l->blocks, count, &l->block_count, &err) != NW_OK)
        return print_failure(&err);
    if (l->block_count > count)
        l->block_count = count;
    return -1;
}

static int make_outline(nw_model *model, const plan_options *o, buffer *room)
{
    nw_session_options session = o->common.session;
    outline            l = {.o = &o->common, .rates_given = {o->common.session.disk_rate > 0, o->memory_rate > 0}};
    nw_error           err = {0};
    nw_code            rc = nw_plan_make(model, &session, &l.plan, &err);
    if (rc != NW_OK && (rc != NW_E_BUDGET || l.plan.smallest == 0))
        return print_failure(&err);
    l.enough = rc == NW_OK;
    if (l.enough && !session.encode_only) { /* without what is only there because there is room for it */
        nw_session_options bare = session;
        bare.max_columns = bare.max_lanes;
        bare.max_encode_tokens = 0;
        l.plan.smallest = budget_smallest(model, &bare);
    }
    if (!l.enough)
        session.budget_bytes = l.plan.smallest;
    nw_model_describe(model, &l.info);
    int status = read_blocks(model, &session, &l, room);
    if (status != -1)
        return status;
    if (o->common.json)
        print_outline_json(&l);
    else
        print_outline(&l);
    return l.enough || !print_flush() ? EXIT_DONE : print_failure(&err);
}

/* Sets the options of the session as run would. Returns -1 or the exit status. */
static int set_session(nw_model *model, plan_options *o)
{
    nw_session_options *session = &o->common.session;
    nw_model_info       info;
    nw_model_describe(model, &info);
    if (session->max_input_tokens == 0)
        session->max_input_tokens = 512;
    if (session->encode_only || info.decoder_blocks == 0) {
        session->max_output_tokens = session->max_output_tokens == 0 ? 256 : session->max_output_tokens;
        return -1;
    }
    int status = generation_settle(&o->generation, model, &o->settings);
    if (status == -1)
        status = generation_resolve(&o->generation, model, &o->settings);
    nw_model_tokenizer_release(model);
    if (status != -1)
        return status;
    size_t         width = generation_width(&o->settings), lanes = o->generation.lanes;
    const workload work = {.count = lanes > width ? lanes / width : 1,
                           .width = width,
                           .lanes = lanes,
                           .passes = generation_passes(&o->settings),
                           .columns_more = generation_columns(&o->generation, &o->settings)};
    session->max_output_tokens = o->settings.max_new_tokens;
    session->generation = &o->settings;
    (void)lanes_fill(model, &work, session); /* a plan that does not fit is shown too */
    return -1;
}

int command_plan(int argc, char **argv)
{
    plan_options o = {.common.name = "narrows plan"};
    int          status = options_parse(&plan_argp, argc, argv, &o.common, &o);
    if (status != -1) {
        generation_free(&o.generation);
        return status;
    }
    status = options_budget(&o.common);
    nw_model *model = NULL;
    buffer    room = {0};
    options   opened = o.common;
    opened.session.budget_bytes =
        0; /* the budget is for the run; saying that it is too small must be possible under any */
    if (status == -1)
        status = options_open_model(&opened, &model);
    if (status == -1)
        status = set_session(model, &o);
    if (status == -1)
        status = make_outline(model, &o, &room);
    nw_model_close(model);
    generation_free(&o.generation);
    buffer_free(&room);
    return print_finish(status);
}

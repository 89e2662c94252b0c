/* verify: every byte of a pack against its checksums. What is bad goes to standard output, a line each. */
#include "commands.h"

#include <string.h>

#include "interrupt.h"
#include "options.h"
#include "transfer.h"

static error_t parse_verify(int key, char *arg, struct argp_state *state)
{
    options *o = (options *)state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->child_inputs[1] = o; return 0;
    case ARGP_KEY_ARG:
        if (o->model != NULL)
            return options_fail(o, "more than one pack");
        o->model = arg;
        return 0;
    case ARGP_KEY_END: return o->model != NULL ? 0 : options_fail(o, "no pack: PACK is missing");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&options_budget_argp, 0, NULL, 0}, {&options_output_argp, 0, NULL, 0}, {0}};

static const struct argp verify_argp = {
    .parser = parse_verify,
    .args_doc = "PACK",
    .doc = "Reads all of a pack and compares every checksum. Each damaged strip gets a line: shard, block, tensor, "
           "rows. A run checks what it reads, too; this finds damage before it is met."
           "\vThe exit status is 0 if the pack is whole, 5 if it is damaged, 4 if it is none.\n\n"
           "Examples:\n"
           "  narrows verify flan-t5-xl.pack\n"
           "  narrows verify flan-t5-xl.pack --json",
    .children = children,
};

typedef struct {
    const options *o;
    transfer       transfer;
    bool           begun; /* the JSON object */
    bool           any;   /* of its list of faults */
} verify;

/* ---- JSON, as it comes: a pack may have as many faults as strips ---- */

static void json_text(const char *text)
{
    if (text == NULL) {
        print_bytes("null", 4);
        return;
    }
    print_bytes("\"", 1);
    print_json_text(text, strlen(text));
    print_bytes("\"", 1);
}

static void json_begin(verify *v)
{
    if (v->begun)
        return;
    v->begun = true;
    print_text("{\"path\": ");
    json_text(v->o->model);
    print_text(", \"faults\": [");
}

static void json_fault(verify *v, const nw_pack_bad *b)
{
    json_begin(v);
    print_text(v->any ? ",\n  {\"file\": " : "\n  {\"file\": ");
    v->any = true;
    json_text(b->path);
    print_text(", \"tensor\": ");
    json_text(b->tensor);
    if (b->tensor != NULL) {
        print_text(", \"block\": ");
        json_text(b->block);
        print_text(", \"tile\": %u, \"strip\": %u, \"rows\": [%llu, %llu]", b->tile, b->strip,
                   (unsigned long long)b->row_first, (unsigned long long)(b->row_first + b->row_count));
    }
    print_text(", \"why\": ");
    json_text(b->why);
    print_text("}");
}

static void json_end(verify *v, const nw_pack_check_result *r, nw_code rc, const nw_error *err)
{
    json_begin(v);
    print_text("%s], \"fault_count\": %llu, \"whole\": %s", v->any ? "\n" : "", (unsigned long long)r->fault_count,
               rc == NW_OK && r->fault_count == 0 ? "true" : "false");
    print_text(", \"bytes\": %llu, \"read_bytes\": %llu, \"shard_count\": %zu, \"tensor_count\": %zu, \"seconds\": ",
               (unsigned long long)r->bytes, (unsigned long long)r->read_bytes, r->shard_count, r->tensor_count);
    print_json_number(transfer_seconds(&v->transfer));
    print_text(", \"error\": ");
    json_text(rc == NW_OK ? NULL : err->msg);
    print_text("}\n");
}

/* ---- for people ---- */

static void print_fault(verify *v, const nw_pack_bad *b)
{
    const char *slash = strrchr(b->path, '/');
    const char *file = slash != NULL ? slash + 1 : b->path;
    print_progress_clear();
    if (b->tensor == NULL)
        print_text("%s: %s\n", file, b->why);
    else
        print_text("%s: block %s, tensor %s, rows %llu to %llu (tile %u, strip %u): %s\n", file, b->block, b->tensor,
                   (unsigned long long)b->row_first, (unsigned long long)(b->row_first + b->row_count - 1), b->tile,
                   b->strip, b->why);
    print_flush();
    (void)v;
}

static void on_fault(void *user, const nw_pack_bad *bad)
{
    verify *v = (verify *)user;
    if (v->o->json)
        json_fault(v, bad);
    else
        print_fault(v, bad);
}

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    verify *v = (verify *)user;
    return transfer_progress(&v->transfer, done, total);
}

/* ---- together ---- */

static int finish(const verify *v, const nw_pack_check_result *r)
{
    double seconds = transfer_seconds(&v->transfer);
    if (r->fault_count > 0) {
        print_error("'%s' is damaged: %llu fault%s", v->o->model, (unsigned long long)r->fault_count,
                    r->fault_count == 1 ? "" : "s");
        return EXIT_IO;
    }
    print_note("'%s' is whole: %zu tensors, %.3f GB in %zu shard%s, %.0f MB/s", v->o->model, r->tensor_count,
               (double)r->bytes / 1e9, r->shard_count, r->shard_count == 1 ? "" : "s",
               seconds > 0 ? (double)r->read_bytes / seconds / 1e6 : 0);
    return EXIT_DONE;
}

int command_verify(int argc, char **argv)
{
    options o = {.name = "narrows verify"};
    int     status = options_parse(&verify_argp, argc, argv, &o, &o);
    if (status != -1)
        return status;
    interrupt_setup();
    status = options_copying_budget(&o);
    if (status != -1)
        return print_finish(status);
    verify                v = {.o = &o, .transfer = transfer_start(o.quiet)};
    nw_error              err = {0};
    nw_pack_check_result  result;
    nw_pack_check_options check = {.budget_bytes = o.session.budget_bytes,
                                   .log = o.session.log,
                                   .on_fault = on_fault,
                                   .on_progress = on_progress,
                                   .user = &v};
    nw_code               rc = nw_pack_check(o.model, &check, &result, &err);
    print_progress_clear();
    /* A program gets its object whatever the pack is; not for a mistake of its own. */
    if (o.json && (v.begun || rc == NW_OK || rc == NW_E_IO || rc == NW_E_FORMAT || rc == NW_E_UNSUPPORTED))
        json_end(&v, &result, rc, &err);
    if (rc == NW_OK)
        status = finish(&v, &result);
    else
        status = transfer_status(rc, &err);
    return print_finish(status);
}

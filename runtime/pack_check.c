/* Checking all of a pack without opening it as a model: a pack that nothing can run, for its configuration is damaged
 * or for what it holds, can still be looked at. */
#include "declared.h"
#include "hooks.h"
#include "loader/checkpoint.h"
#include "loader/io.h"
#include "loader/stream.h"
#include "narrows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A budget below this still gets to hear what would do: as nw_model_open. */
#define TABLES_ROOM ((uint64_t)4 << 20)

/* While shards are checked, beside the stream: the order of tiles, and what is being hashed. */
enum { TILE_BYTES = 24, HASH_BYTES = 16 << 10 };

typedef struct {
    const nw_pack_check_options *options;
    nw_memory                    memory;
    nw_io                       *io;
    nw_pack                     *pack;
} check;

/* The block that a tensor of a T5 is of, as shards call it. */
static const char *block_name(const char *tensor, char *buf, size_t cap)
{
    static const struct {
        const char *begin, *block;
    } names[] = {
        {"encoder.final_layer_norm", "encoder"}, {"decoder.final_layer_norm", "decoder"}, {"shared.", "embedding"},
        {"encoder.embed_tokens", "embedding"},   {"decoder.embed_tokens", "embedding"},   {"lm_head.", "head"}};
    static const char *const stacks[] = {"encoder", "decoder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(tensor, names[i].begin, strlen(names[i].begin)) == 0)
            return names[i].block;
    }
    for (size_t i = 0; i < 2; i++) {
        char   begin[32];
        size_t len = (size_t)snprintf(begin, sizeof begin, "%s.block.", stacks[i]);
        char  *end = NULL;
        if (strncmp(tensor, begin, len) != 0 || tensor[len] < '0' || tensor[len] > '9')
            continue;
        unsigned long block = strtoul(tensor + len, &end, 10);
        if (*end != '.')
            continue;
        snprintf(buf, cap, "%s.%lu", stacks[i], block);
        return buf;
    }
    return "other";
}

static void pass_fault(void *user, const nw_pack_fault *f)
{
    const check *c = (const check *)user;
    char         block[32];
    nw_pack_bad  bad = {.path = f->path,
                        .tensor = f->tensor,
                        .block = f->tensor != NULL ? block_name(f->tensor, block, sizeof block) : NULL,
                        .tile = f->tile,
                        .strip = f->strip,
                        .row_first = f->row_first,
                        .row_count = f->row_count,
                        .why = f->why};
    if (c->options->on_fault != NULL)
        c->options->on_fault(c->options->user, &bad);
}

static bool pass_progress(void *user, uint64_t done, uint64_t all)
{
    const check *c = (const check *)user;
    return c->options->on_progress == NULL || c->options->on_progress(c->options->user, done, all);
}

static nw_code check_budget(const check *c, const nw_io_options *io, nw_error *err)
{
    uint64_t budget = c->options->budget_bytes;
    uint64_t needed = NW_DECLARED_PROCESS + nw_io_declared_bytes(io) + c->memory.live + nw_stream_bytes() +
                      nw_pack_tile_count(c->pack) * TILE_BYTES + HASH_BYTES;
    needed += NW_RESERVE(needed);
    if (budget == 0 || budget >= needed)
        return NW_OK;
    char    have[16], need[16];
    nw_code rc =
        nw_fail(err, NW_E_BUDGET, 0, "budget %s is too small: checking '%s' needs %s",
                nw_bytes_format(budget, false, have), nw_pack_dir(c->pack), nw_bytes_format(needed, true, need));
    if (err != NULL)
        err->bytes_needed = needed;
    return rc;
}

static nw_io_options io_options(const nw_pack_check_options *o)
{
    return (nw_io_options){
        .choice = (nw_io_choice)o->io, .depth = NW_STREAM_DEPTH, .threads = NW_STREAM_DEPTH, .log = &o->log};
}

static nw_code check_all(check *c, const char *name, nw_pack_check_result *ret, nw_error *err)
{
    const nw_pack_check_options *o = c->options;
    const nw_pack_verify_options verify = {.fault = pass_fault, .progress = pass_progress, .user = c};
    nw_io_options                io = io_options(o);
    char                         path[4096];
    nw_code                      rc = nw_model_path_find(name, path, sizeof path, err);
    if (rc != NW_OK)
        return rc;
    if (!nw_pack_is(path))
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is no pack: it holds no manifest.json", path);
    if (o->hooks != NULL && o->hooks->io != NULL)
        rc = nw_io_fake_open(&c->memory, o->hooks->io, NW_STREAM_DEPTH, &c->io, err);
    else
        rc = nw_io_open(&c->memory, &io, &c->io, err);
    if (rc == NW_OK)
        rc = nw_pack_open(&c->memory, c->io, path, &ret->read_bytes, &c->pack, err);
    if (rc == NW_OK)
        rc = check_budget(c, &io, err);
    if (rc != NW_OK)
        return rc;
    ret->bytes = nw_pack_about(c->pack)->bytes;
    ret->shard_count = nw_pack_shard_count(c->pack);
    ret->tensor_count = nw_pack_tensor_count(c->pack);
    return nw_pack_verify(&c->memory, c->io, c->pack, &verify, &ret->read_bytes, &ret->fault_count, err);
}

nw_code nw_pack_check(const char *path, const nw_pack_check_options *options, nw_pack_check_result *ret, nw_error *err)
{
    check    c = {.options = options};
    uint64_t limit = options->budget_bytes != 0 ? nw_max_u64(options->budget_bytes, TABLES_ROOM) : UINT64_MAX;
    *ret = (nw_pack_check_result){0};
    if (path == NULL || path[0] == '\0')
        return nw_fail(err, NW_E_ARG, 0, "no pack given");
    nw_memory_init(&c.memory, limit, options->hooks != NULL ? options->hooks->memory : NULL);
    nw_code rc = check_all(&c, path, ret, err);
    nw_pack_close(c.pack);
    nw_io_close(c.io);
    NW_CHECK(c.memory.live == 0);
    return rc;
}

/* Checking all of a pack without opening it as a model: a pack that nothing can run, for its configuration is damaged
 * or for what it holds, can still be looked at. */
#include "copying.h"
#include "declared.h"
#include "loader/checkpoint.h"
#include "model/tensors.h"

#include <stdio.h>

/* While shards are checked, beside the stream: the order of tiles, and what is being hashed. */
enum { TILE_BYTES = 24, HASH_BYTES = 16 << 10 };

typedef struct {
    const nw_pack_check_options *options;
    nw_memory                    memory;
    nw_io                       *io;
    nw_pack                     *pack;
} check;

/* The block that a tensor of a T5 is of. */
static const char *block_name(const char *tensor, char *buf, size_t cap)
{
    nw_name_place place = nw_tensor_name_place(tensor);
    switch (place.part) {
    case NW_PART_EMBED: return "embedding";
    case NW_PART_ENCODER_BLOCK: snprintf(buf, cap, "encoder.%u", place.block); return buf;
    case NW_PART_ENCODER: return "encoder";
    case NW_PART_DECODER_BLOCK: snprintf(buf, cap, "decoder.%u", place.block); return buf;
    case NW_PART_DECODER: return "decoder";
    case NW_PART_HEAD: return "head";
    case NW_PART_OTHER: break;
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

static nw_code check_all(check *c, const char *name, nw_pack_check_result *ret, nw_error *err)
{
    const nw_pack_check_options *o = c->options;
    const nw_pack_verify_options verify = {.fault = pass_fault, .progress = pass_progress, .user = c};
    nw_io_options                io = nw_copying_io((nw_io_choice)o->io, &o->log);
    char                         path[4096];
    nw_code                      rc = nw_model_path_find(name, path, sizeof path, err);
    if (rc != NW_OK)
        return rc;
    if (!nw_pack_is(path))
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is no pack: it holds no manifest.json", path);
    rc = nw_device_open(&c->memory, o->hooks, &io, &c->io, err);
    if (rc == NW_OK)
        rc = nw_pack_open(&c->memory, c->io, path, &ret->read_bytes, &c->pack, err);
    if (rc == NW_OK)
        rc = nw_copying_check_budget(o->budget_bytes,
                                     c->memory.live + nw_pack_tile_count(c->pack) * TILE_BYTES + HASH_BYTES, &io,
                                     "checking", path, err);
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
    uint64_t limit = options->budget_bytes != 0 ? nw_max_u64(options->budget_bytes, NW_TABLES_ROOM) : UINT64_MAX;
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

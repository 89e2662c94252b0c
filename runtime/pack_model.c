/* pack: any model that opens, rewritten in the order in which a run needs it, smaller, checked.
 *
 * One walk over blocks and tiles, made of the same schedules that a run follows, is taken twice: to declare, and to
 * write. A tile is read while the one before it is encoded, its strips by all workers at once. Memory is two tiles and
 * what the encoders need, whatever the model's size.
 *
 * The embedding is read by rows, so its strips stand at equal distances. How far apart is known when all have been
 * encoded: they are encoded once before the rest, and not kept.
 */
#include "pack_encode.h"

#include "copying.h"
#include "declared.h"
#include "loader/pack_writer.h"
#include "side_files.h"
#include "system.h"
#include "ties.h"

#include <stdio.h>
#include <string.h>

#define SHARD_BYTES_USUAL ((uint64_t)2000000000)

/* What a walk does with each block and each of its tiles; `tensor` is an index of the checkpoint. */
typedef struct packing packing;
typedef struct {
    nw_code (*block)(packing *p, const char *name, nw_error *err);
    nw_code (*tile)(packing *p, uint32_t tensor, uint32_t tile, nw_error *err);
} visitor;

struct packing {
    nw_model              *model;
    const nw_pack_options *options;
    nw_pack_result        *result;
    nw_pack_encoder       *encoder;
    nw_io                 *io;
    nw_stream             *stream;
    nw_pack_writer        *writer;
    uint32_t              *declared; /* [tensors of the checkpoint]: as the writer calls it, or NOT_STORED */
    uint32_t              *kept;     /* [tensors of the checkpoint]: nw_ties_find */
    bool                  *placed;   /* [tensors of the checkpoint]: the schedules have it */
    size_t                 count;
    nw_progress            progress; /* bytes of the source */
    /* the tile that comes next, which is read ahead */
    bool     has_next;
    uint32_t next_tensor, next_tile;
};

#define NOT_STORED UINT32_MAX

/* ---- the walk ---- */

static uint32_t checkpoint_index(const packing *p, uint32_t need)
{
    return (uint32_t)nw_checkpoint_index(p->model->checkpoint, p->model->places[need].tensor);
}

static nw_code visit_all(packing *p, const visitor *v, uint32_t tensor, nw_error *err)
{
    nw_code  rc = NW_OK;
    uint64_t tiles = nw_pack_cut(nw_checkpoint_tensor(p->model->checkpoint, tensor)).tile_count;
    for (uint64_t t = 0; t < tiles && rc == NW_OK; t++)
        rc = v->tile(p, tensor, (uint32_t)t, err);
    return rc;
}

/* The vectors of a block, or (block UINT32_MAX) a stack's final norm. */
static nw_code visit_vectors(packing *p, const visitor *v, nw_stack stack, uint32_t block, nw_error *err)
{
    nw_code rc = NW_OK;
    for (uint32_t i = 0; i < p->model->tensors.count && rc == NW_OK; i++) {
        const nw_tensor_need *n = &p->model->tensors.list[i];
        bool                  final = n->role == NW_ROLE_NORM_FINAL;
        if (n->vector && n->stack == stack && (final ? block == UINT32_MAX : n->block == block))
            rc = visit_all(p, v, checkpoint_index(p, i), err);
    }
    return rc;
}

static nw_code visit_pass(packing *p, const visitor *v, nw_pass pass, const char *name, nw_error *err)
{
    const nw_model *m = p->model;
    uint32_t        block = UINT32_MAX;
    bool            in_head = false;
    nw_code         rc = NW_OK;
    for (size_t i = 0; i < m->step_count[pass] && rc == NW_OK; i++) {
        nw_step               step = m->steps[pass][i];
        const nw_tensor_need *n = &m->tensors.list[step.tensor];
        bool                  head = step.tensor == m->tensors.head;
        char                  text[32];
        if (head ? !in_head : n->block != block) {
            block = n->block;
            snprintf(text, sizeof text, head ? "head" : "%s.%u", name, block);
            rc = v->block(p, text, err);
            if (rc == NW_OK && pass != NW_PASS_CROSS && !head)
                rc = visit_vectors(p, v, n->stack, block, err);
            in_head = head;
        }
        if (rc == NW_OK)
            rc = v->tile(p, checkpoint_index(p, step.tensor), step.tile, err);
    }
    return rc;
}

/* What the model does not run with: copies of the embedding, other networks. */
static nw_code visit_others(packing *p, const visitor *v, nw_error *err)
{
    nw_code rc = NW_OK;
    bool    any = false;
    for (uint32_t i = 0; i < p->count && rc == NW_OK; i++) {
        if (p->placed[i] || p->declared[i] == NOT_STORED)
            continue;
        rc = any ? NW_OK : v->block(p, "other", err);
        any = true;
        if (rc == NW_OK)
            rc = visit_all(p, v, i, err);
    }
    return rc;
}

static nw_code walk(packing *p, const visitor *v, nw_error *err)
{
    const nw_model *m = p->model;
    bool            decodes = m->config.decoder_blocks > 0;
    nw_code         rc = NW_OK;
    if (m->tensors.embed != m->tensors.head) {
        rc = v->block(p, "embedding", err);
        if (rc == NW_OK)
            rc = visit_all(p, v, checkpoint_index(p, m->tensors.embed), err);
    }
    if (rc == NW_OK)
        rc = visit_pass(p, v, NW_PASS_ENCODE, "encoder", err);
    if (rc == NW_OK)
        rc = v->block(p, "encoder", err);
    if (rc == NW_OK)
        rc = visit_vectors(p, v, NW_STACK_ENCODER, UINT32_MAX, err);
    if (rc == NW_OK && decodes)
        rc = visit_pass(p, v, NW_PASS_CROSS, "cross", err);
    if (rc == NW_OK && decodes)
        rc = v->block(p, "decoder", err);
    if (rc == NW_OK && decodes)
        rc = visit_vectors(p, v, NW_STACK_DECODER, UINT32_MAX, err);
    if (rc == NW_OK && decodes)
        rc = visit_pass(p, v, NW_PASS_DECODE, "decoder", err);
    return rc == NW_OK ? visit_others(p, v, err) : rc;
}

/* ---- declaring ---- */

/* Which tensors are tied, and how much there is to read. */
static nw_code list_tensors(packing *p, nw_error *err)
{
    const nw_checkpoint *c = p->model->checkpoint;
    nw_code              rc = nw_ties_find(p->model, &p->kept, err);
    for (uint32_t i = 0; i < p->count && rc == NW_OK; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        const char      *name = nw_model_tensor_name(p->model, t);
        p->progress.total += name != NULL && name[0] != '\0' && p->kept[i] == i && nw_pack_can_store(t) ? t->bytes : 0;
    }
    return rc;
}

static nw_code declare_tensors(packing *p, nw_error *err)
{
    const nw_model *m = p->model;
    nw_code         rc = NW_OK;
    for (uint32_t i = 0; i < m->tensors.count; i++)
        p->placed[checkpoint_index(p, i)] = true;
    for (uint32_t i = 0; i < p->count && rc == NW_OK; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, i);
        const char      *name = nw_model_tensor_name(m, t);
        p->declared[i] = NOT_STORED;
        if (name == NULL || name[0] == '\0' || p->kept[i] != i)
            continue;
        if (!nw_pack_can_store(t)) {
            p->result->skipped_count++;
            continue;
        }
        nw_pack_storage     how = nw_pack_encoder_storage(p->encoder, i);
        nw_pack_declaration d = {.name = name,
                                 .source = t->dtype,
                                 .stored = how.stored,
                                 .lossy = how.lossy,
                                 .dim_count = t->dim_count,
                                 .dims = {t->dims[0], t->dim_count > 1 ? t->dims[1] : 0},
                                 .stride = how.stride};
        p->result->kept_count += how.kept;
        p->result->tensor_count++;
        p->result->source_bytes += t->bytes;
        rc = nw_pack_writer_declare(p->writer, &d, &p->declared[i], err);
    }
    return rc;
}

/* Tied tensors are stored once; that they had other names too is recorded. */
static nw_code declare_aliases(packing *p, nw_error *err)
{
    const nw_model *m = p->model;
    nw_code         rc = NW_OK;
    for (uint32_t i = 0; i < p->count && rc == NW_OK; i++) {
        if (p->kept[i] == i || p->declared[p->kept[i]] == NOT_STORED)
            continue;
        const char *name = nw_model_tensor_name(m, nw_checkpoint_tensor(m->checkpoint, i));
        p->result->alias_count++;
        rc = nw_pack_writer_alias(p->writer, name, p->declared[p->kept[i]], err);
    }
    return rc;
}

static nw_code declare_all(packing *p, nw_error *err)
{
    nw_code rc = declare_tensors(p, err);
    return rc == NW_OK ? declare_aliases(p, err) : rc;
}

static nw_code schedule_block(packing *p, const char *name, nw_error *err)
{
    return nw_pack_writer_block(p->writer, name, err);
}

static nw_code schedule_tile(packing *p, uint32_t tensor, uint32_t tile, nw_error *err)
{
    return nw_pack_writer_schedule(p->writer, p->declared[tensor], tile, err);
}

/* ---- writing ---- */

/* Encodes and writes the tile that is being read, while `tensor`'s next one is. */
static nw_code finish_tile(packing *p, bool more, uint32_t tensor, uint32_t tile, nw_error *err)
{
    nw_code rc = NW_OK;
    if (p->has_next) {
        nw_pack_encoded e;
        rc = nw_pack_encoder_wait(p->encoder, err);
        if (more)
            nw_pack_encoder_read(p->encoder, tensor, tile);
        if (rc == NW_OK)
            rc = nw_pack_encoder_encode(p->encoder, p->next_tensor, p->next_tile, &e, err);
        if (rc == NW_OK)
            rc = nw_pack_writer_tile(p->writer, e.strips, e.strip_count, err);
        if (rc == NW_OK) {
            p->progress.done += e.source_bytes;
            p->result->stored_bytes += e.stored_bytes;
            rc = nw_progress_report(&p->progress, err);
        }
    } else if (more) {
        nw_pack_encoder_read(p->encoder, tensor, tile);
    }
    p->has_next = more;
    p->next_tensor = tensor;
    p->next_tile = tile;
    return rc;
}

static nw_code write_block(packing *p, const char *name, nw_error *err)
{
    (void)p, (void)name, (void)err;
    return NW_OK;
}

static nw_code write_tile(packing *p, uint32_t tensor, uint32_t tile, nw_error *err)
{
    return finish_tile(p, true, tensor, tile, err);
}

static nw_code put_file(void *user, const char *name, const void *bytes, size_t len, nw_error *err)
{
    return nw_pack_writer_file(((packing *)user)->writer, name, bytes, len, err);
}

static nw_code write_side_files(packing *p, nw_error *err)
{
    nw_side_files files = {.model = p->model,
                           .io = p->io,
                           .stream = p->stream,
                           .type = p->options->type,
                           .read_bytes = &p->result->read_bytes,
                           .put = put_file,
                           .user = p};
    return nw_side_files_copy(&files, err);
}

/* ---- together ---- */

static nw_code check_budget(const packing *p, const nw_io_options *io, unsigned threads, nw_error *err)
{
    const nw_model *m = p->model;
    uint64_t        tiles, strips;
    nw_pack_count(m, &tiles, &strips);
    uint64_t bytes = threads * nw_declared_thread() + m->memory.live + nw_pack_encoder_bytes(m, threads) +
                     p->count * 5 + nw_ties_bytes(p->count) + nw_pack_writer_declared_bytes(p->count, tiles, strips);
    return nw_copying_check_budget(p->options->budget_bytes, bytes, io, "packing", m->path, err);
}

static nw_code open_writer(packing *p, nw_error *err)
{
    static const char *const compress[] = {"packed", "slim", "off"};
    const char              *slash = strrchr(p->model->path, '/');
    bool                     named = slash != NULL && slash[1] != '\0';
    nw_pack_writer_options   o = {.model = named ? slash + 1 : p->model->path,
                                  .tool = "narrows " NW_VERSION,
                                  .compress = compress[p->options->compress],
                                  .shard_bytes_max =
                                    p->options->shard_bytes_max != 0 ? p->options->shard_bytes_max : SHARD_BYTES_USUAL};
    return nw_pack_writer_open(&p->model->memory, p->options->dir, &o, &p->writer, err);
}

/* What there is to expect, said to the caller and asked of the disk. */
static nw_code estimate(packing *p, nw_error *err)
{
    const nw_pack_options *o = p->options;
    nw_pack_estimate       e;
    nw_code                rc = nw_model_pack_estimate(p->model, &e, err);
    if (rc != NW_OK)
        return rc;
    if (o->on_estimate != NULL)
        o->on_estimate(o->user, &e);
    nw_pack_writer_expect(p->writer, nw_pack_space(&e, o->type, o->compress));
    return NW_OK;
}

static nw_code open_parts(packing *p, nw_error *err)
{
    nw_model     *m = p->model;
    nw_io_options io = nw_copying_io(m->io, &m->log);
    unsigned      threads = p->options->threads != 0 ? p->options->threads : nw_system_cpus("/proc", "/sys/fs/cgroup");
    p->count = nw_checkpoint_tensor_count(m->checkpoint);
    nw_code rc = nw_model_check_files(m, err);
    if (rc == NW_OK)
        rc = check_budget(p, &io, threads, err);
    if (rc != NW_OK)
        return rc;
    p->declared = nw_memory_alloc(&m->memory, NW_TAG_INDEX, p->count, sizeof *p->declared);
    p->placed = nw_memory_alloc(&m->memory, NW_TAG_INDEX, p->count, sizeof *p->placed);
    if (p->declared == NULL || p->placed == NULL)
        return nw_memory_fail(&m->memory, err, p->count * 5, m->path);
    rc = open_writer(p, err);
    if (rc == NW_OK)
        rc = estimate(p, err);
    if (rc == NW_OK)
        rc = nw_device_open(&m->memory, m->hooks, &io, &p->io, err);
    if (rc == NW_OK)
        rc = nw_stream_open(&m->memory, p->io, &p->stream, err);
    if (rc == NW_OK)
        rc = nw_pack_encoder_open(m, p->io, p->options->type, p->options->compress, threads, &p->result->read_bytes,
                                  &p->encoder, err);
    return rc;
}

static void close_parts(packing *p)
{
    nw_memory *mem = &p->model->memory;
    if (p->encoder != NULL)
        p->result->rounded = nw_pack_encoder_rounded(p->encoder);
    nw_pack_encoder_close(p->encoder);
    nw_ties_free(p->model, p->kept);
    nw_stream_close(p->stream);
    nw_io_close(p->io);
    nw_pack_writer_close(p->writer);
    nw_memory_free(mem, NW_TAG_INDEX, p->placed, p->count, sizeof *p->placed);
    nw_memory_free(mem, NW_TAG_INDEX, p->declared, p->count, sizeof *p->declared);
}

nw_code nw_model_pack(nw_model *m, const nw_pack_options *options, nw_pack_result *ret, nw_error *err)
{
    static const visitor schedule = {.block = schedule_block, .tile = schedule_tile};
    static const visitor write = {.block = write_block, .tile = write_tile};
    packing              p = {.model = m,
                              .options = options,
                              .result = ret,
                              .progress = {.on_progress = options->on_progress, .user = options->user}};
    *ret = (nw_pack_result){0};
    if (options->dir == NULL || options->dir[0] == '\0')
        return nw_fail(err, NW_E_ARG, 0, "no directory to write to");
    if (nw_checkpoint_pack(m->checkpoint) != NULL)
        return nw_fail(err, NW_E_ARG, 0, "'%s' is a pack; unpack it first", m->path);
    nw_model_tokenizer_release(m);
    nw_code rc = open_parts(&p, err);
    if (rc == NW_OK)
        rc = list_tensors(&p, err);
    if (rc == NW_OK)
        rc = nw_pack_encoder_measure(p.encoder, &p.progress, err);
    if (rc == NW_OK)
        rc = declare_all(&p, err);
    if (rc == NW_OK)
        rc = walk(&p, &schedule, err);
    if (rc == NW_OK)
        rc = walk(&p, &write, err);
    if (rc == NW_OK)
        rc = finish_tile(&p, false, 0, 0, err);
    if (rc == NW_OK)
        rc = write_side_files(&p, err);
    if (rc == NW_OK)
        rc = nw_model_check_files(m, err); /* what was read is what was opened */
    if (rc == NW_OK)
        rc = nw_pack_writer_finish(p.writer, err);
    if (rc == NW_OK)
        ret->shard_count = nw_pack_writer_shards(p.writer);
    close_parts(&p);
    return rc;
}

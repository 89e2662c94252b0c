/* What packs of a model would be, from a sample: one strip in the middle of every matrix, read and packed. */
#include "loader/packed.h"
#include "model_state.h"

#include <string.h>

typedef struct {
    nw_model  *model;
    nw_io     *io;
    nw_packed *packed;
    void      *workspace, *values, *dst; /* of a strip at most */
    size_t     workspace_bytes, room;
    bool       all_bf16, any_f32;
} sampling;

/* Bytes a weight, packed: as it is, and as bf16. */
typedef struct {
    double keep, bf16;
} ratio;

static nw_code sample(sampling *s, uint32_t need, ratio *ret, nw_error *err)
{
    const nw_model *m = s->model;
    const nw_place *p = &m->places[need];
    nw_step         step = {.tensor = need, .tile = (uint32_t)(p->cut.tile_count / 2)};
    size_t          rows = (size_t)nw_min_u64(p->cut.strip_rows, nw_cut_rows(&p->cut, step.tile));
    size_t          n = rows * (size_t)p->cut.cols, bytes = rows * (size_t)p->row_bytes, len;
    uint64_t        offset = p->tensor->offset + nw_cut_first(&p->cut, step.tile) * p->row_bytes;
    uint64_t        rounded = 0, infinite = 0;
    unsigned char  *values = s->values;
    nw_code rc = nw_file_read(&s->model->memory, s->io, nw_model_tile_file(m, step), nw_model_tile_path(m, step),
                              offset, values, bytes, NULL, err);
    if (rc != NW_OK)
        return rc;
    len = nw_packed_encode(s->packed, p->tensor->dtype, values, n, s->dst);
    ret->keep = (double)(len > 0 ? len : bytes) / (double)n;
    unsigned char *bf16 = values + s->room / 2;
    nw_dtype_convert(NW_BF16, bf16, p->tensor->dtype, values, n, &rounded, &infinite);
    len = nw_packed_encode(s->packed, NW_BF16, bf16, n, s->dst);
    ret->bf16 = (double)(len > 0 ? len : n * 2) / (double)n;
    s->any_f32 |= p->tensor->dtype == NW_F32;
    s->all_bf16 &= p->tensor->dtype != NW_F32 || rounded == 0;
    return NW_OK;
}

/* Adds a matrix of `weights` weights: to all bytes, and to those of a decoded token. */
static void add(const nw_model *m, uint32_t need, const ratio *r, bool token, nw_pack_estimate *e)
{
    const nw_tensor_need *n = &m->tensors.list[need];
    const nw_place       *p = &m->places[need];
    double weights = (double)n->rows * (double)n->cols, plain = weights * (double)nw_dtype_bytes(p->tensor->dtype);
    bool   blocks = n->cols % NW_QUANT_BLOCK == 0, table = need == m->tensors.embed || need == m->tensors.head;
    double q8 = blocks ? (double)nw_quant_block_bytes(NW_Q8) / NW_QUANT_BLOCK : r->keep;
    double q4 = table || !blocks ? q8 : (double)nw_quant_block_bytes(NW_Q4) / NW_QUANT_BLOCK;
    const double each[] = {[NW_TYPE_KEEP] = r->keep, [NW_TYPE_BF16] = r->bf16, [NW_TYPE_Q8] = q8, [NW_TYPE_Q4] = q4};
    e->weights += n->rows * n->cols;
    e->plain_bytes += (uint64_t)plain;
    e->plain_token_bytes += token ? (uint64_t)plain : 0;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        e->bytes[i] += (uint64_t)(weights * each[i]);
        e->token_bytes[i] += token ? (uint64_t)(weights * each[i]) : 0;
    }
}

static bool decodes(const nw_model *m, uint32_t need)
{
    const nw_tensor_need *n = &m->tensors.list[need];
    bool                  cross = n->role == NW_ROLE_CROSS_K || n->role == NW_ROLE_CROSS_V;
    return need == m->tensors.head || (n->stack == NW_STACK_DECODER && !cross);
}

static nw_code take_rooms(sampling *s, nw_error *err)
{
    nw_memory *mem = &s->model->memory;
    uint64_t   largest = 0;
    for (uint32_t i = 0; i < s->model->tensors.count; i++) {
        const nw_place *p = &s->model->places[i];
        largest = nw_max_u64(largest, nw_min_u64(p->cut.strip_rows, s->model->tensors.list[i].rows) * p->cut.cols);
    }
    s->room = (size_t)nw_round_up(largest * 8, 64);
    s->workspace_bytes = nw_packed_workspace_bytes(NW_PACKED_ENCODE);
    s->workspace = nw_memory_map(mem, NW_TAG_SESSION, s->workspace_bytes, false);
    s->values = nw_memory_map(mem, NW_TAG_SESSION, s->room, false);
    s->dst = nw_memory_map(mem, NW_TAG_SESSION, s->room, false);
    if (s->workspace == NULL || s->values == NULL || s->dst == NULL)
        return nw_memory_fail(mem, err, s->workspace_bytes + 2 * s->room, "an estimate");
    s->packed = nw_packed_init(s->workspace, s->workspace_bytes, NW_PACKED_ENCODE);
    return nw_model_io_open(s->model, &s->io, err);
}

static void give_rooms(sampling *s)
{
    nw_memory *mem = &s->model->memory;
    nw_io_close(s->io);
    nw_memory_unmap(mem, NW_TAG_SESSION, s->dst, s->room);
    nw_memory_unmap(mem, NW_TAG_SESSION, s->values, s->room);
    nw_memory_unmap(mem, NW_TAG_SESSION, s->workspace, s->workspace_bytes);
}

nw_code nw_model_pack_estimate(nw_model *m, nw_pack_estimate *ret, nw_error *err)
{
    sampling s = {.model = m, .all_bf16 = true};
    *ret = (nw_pack_estimate){0};
    if (nw_checkpoint_pack(m->checkpoint) != NULL)
        return nw_fail(err, NW_E_ARG, 0, "'%s' is a pack", m->path);
    nw_code rc = take_rooms(&s, err);
    for (uint32_t i = 0; i < m->tensors.count && rc == NW_OK; i++) {
        ratio r;
        if (m->tensors.list[i].vector)
            continue;
        rc = sample(&s, i, &r, err);
        if (rc == NW_OK)
            add(m, i, &r, decodes(m, i), ret);
    }
    ret->bf16_in_f32 = s.any_f32 && s.all_bf16;
    give_rooms(&s);
    return rc;
}

uint64_t nw_pack_space(const nw_pack_estimate *e, nw_type type, nw_compress compress)
{
    bool     sampled = type != NW_TYPE_F32 && type != NW_TYPE_F16;
    uint64_t bytes = type == NW_TYPE_KEEP ? e->plain_bytes : e->weights * (type == NW_TYPE_F32 ? 4 : 2);
    if (type >= NW_TYPE_Q8 || (sampled && compress == NW_COMPRESS_PACKED))
        bytes = e->bytes[type];
    return bytes + bytes / 16 + ((uint64_t)1 << 20);
}

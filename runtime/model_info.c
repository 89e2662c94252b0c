/* What a model is, for people and programs: nw_model_describe and the listings. */
#include "model_state.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Checkpoints do not say which published family they belong to; these are the marks that tell them apart. */
static const char *family(const nw_config *c)
{
    if (c->byte_tokens)
        return "ByT5";
    if (strcmp(c->model_type, "umt5") == 0 || c->bias_per_block)
        return "UMT5";
    if (strcmp(c->model_type, "mt5") == 0)
        return "mT5";
    if (!c->gated)
        return "T5 v1.0";
    if (c->activation == NW_ACT_SILU)
        return "UL2";
    return c->pad_id == 1 && c->eos_ids[0] == 2 ? "MADLAD" : "T5 v1.1 / Flan-T5";
}

static const char *activation_name(const nw_config *c)
{
    switch (c->activation) {
    case NW_ACT_NONE: return "none";
    case NW_ACT_RELU: return c->gated ? "gated-relu" : "relu";
    case NW_ACT_GELU_TANH: return c->gated ? "gated-gelu" : "gelu-tanh";
    case NW_ACT_GELU_ERF: return c->gated ? "gated-gelu-exact" : "gelu-exact";
    case NW_ACT_SILU: return c->gated ? "gated-silu" : "silu";
    }
    nw_trap("an activation", __FILE__, __LINE__);
}

/* Bytes of the weights that a pass multiplies (not of the aligned reads that fetch them), of a pack as stored. */
static uint64_t pass_bytes(const nw_model *m, nw_pass pass)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    uint64_t       bytes = 0;
    for (size_t i = 0; i < m->step_count[pass]; i++) {
        nw_step         step = m->steps[pass][i];
        const nw_place *p = &m->places[step.tensor];
        bytes += pack != NULL ? nw_pack_tile_at(pack, (size_t)p->tile_first + step.tile).bytes
                              : nw_model_tile_rows(m, step) * p->row_bytes;
    }
    return bytes;
}

static nw_stored stored_type(const nw_model *m, const nw_tensor *t)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    return pack != NULL ? nw_pack_tensor_at(pack, nw_checkpoint_index(m->checkpoint, t)).stored
                        : nw_stored_of(t->dtype);
}

/* True if an earlier tensor has the same bytes of the same file: tied tensors of a PyTorch checkpoint. In a pack no two
 * tiles overlap. */
static bool is_repeated(const nw_model *m, uint32_t index)
{
    const nw_tensor *t = m->places[index].tensor;
    for (uint32_t i = 0; i < index; i++) {
        const nw_tensor *other = m->places[i].tensor;
        if (other->file == t->file && other->offset == t->offset && other->bytes == t->bytes)
            return true;
    }
    return false;
}

void nw_model_describe(const nw_model *m, nw_model_info *ret)
{
    const nw_config *c = &m->config;
    *ret = (nw_model_info){
        .path = m->path,
        .family = family(c),
        .model_type = c->model_type,
        .config_path = m->config_path,
        .name_prefix = m->name_prefix,
        .vocab_size = c->vocab_size,
        .d_model = c->d_model,
        .d_kv = c->d_kv,
        .d_ff = c->d_ff,
        .heads = c->head_count,
        .encoder_blocks = c->encoder_blocks,
        .decoder_blocks = c->decoder_blocks,
        .relative_buckets = c->bucket_count,
        .relative_distance = c->bucket_distance,
        .activation = activation_name(c),
        .head_tied = c->head_tied,
        .bias_per_block = c->bias_per_block,
        .pad_id = c->pad_id,
        .start_id = c->start_id,
        .eos_id = c->eos_ids[0],
        .encoder_bytes = pass_bytes(m, NW_PASS_ENCODE),
        .cross_bytes = pass_bytes(m, NW_PASS_CROSS),
        .decode_bytes = pass_bytes(m, NW_PASS_DECODE),
        .is_pack = nw_checkpoint_pack(m->checkpoint) != NULL,
        .file_count = nw_checkpoint_file_count(m->checkpoint),
        .tensor_count = nw_checkpoint_tensor_count(m->checkpoint),
    };
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        const nw_tensor *t = m->places[i].tensor;
        if (is_repeated(m, i))
            continue;
        ret->parameters += m->tensors.list[i].rows * m->tensors.list[i].cols;
        ret->weight_bytes += t->bytes;
        ret->type_bytes[stored_type(m, t)] += t->bytes;
    }
}

bool nw_model_tensor(const nw_model *m, size_t index, nw_tensor_info *ret)
{
    if (index >= nw_checkpoint_tensor_count(m->checkpoint))
        return false;
    const nw_tensor *t = nw_checkpoint_tensor(m->checkpoint, index);
    *ret = (nw_tensor_info){.name = t->name,
                            .dtype = t->dtype_name,
                            .file = nw_checkpoint_file_path(m->checkpoint, t->file),
                            .dim_count = t->dim_count,
                            .bytes = t->bytes,
                            .offset = t->offset};
    memcpy(ret->dims, t->dims, sizeof ret->dims);
    ret->used = nw_model_need(m, t) != UINT32_MAX;
    return true;
}

const char *nw_model_file(const nw_model *m, size_t index, uint64_t *ret_bytes)
{
    if (index >= nw_checkpoint_file_count(m->checkpoint))
        return NULL;
    *ret_bytes = nw_checkpoint_file(m->checkpoint, index)->size;
    return nw_checkpoint_file_path(m->checkpoint, index);
}

/* ---- blocks of a file ---- */

static bool same_block(const nw_tensor_need *a, const nw_tensor_need *b)
{
    bool final = a->role == NW_ROLE_NORM_FINAL;
    return a->stack == b->stack && a->block == b->block && final == (b->role == NW_ROLE_NORM_FINAL) &&
           (a->stack != NW_STACK_SHARED || a->role == b->role);
}

static const char *block_name(const nw_tensors *ts, uint32_t tensor, char buf[32])
{
    const nw_tensor_need *n = &ts->list[tensor];
    const char           *stack = n->stack == NW_STACK_ENCODER ? "encoder" : "decoder";
    if (n->stack == NW_STACK_SHARED)
        snprintf(buf, 32, "%s", tensor == ts->head ? "head" : "embedding");
    else if (n->role == NW_ROLE_NORM_FINAL)
        snprintf(buf, 32, "%s", stack);
    else
        snprintf(buf, 32, "%s.%u", stack, n->block);
    return buf;
}

/* Whether a file has more tensors than the `used` that the model runs with. */
static bool has_others(const nw_model *m, size_t file, size_t used)
{
    size_t count = 0;
    for (size_t i = 0; i < nw_checkpoint_tensor_count(m->checkpoint); i++)
        count += nw_checkpoint_tensor(m->checkpoint, i)->file == file ? 1 : 0;
    return count > used;
}

/* What the model needs is listed block by block. */
static const char *checkpoint_block(const nw_model *m, size_t file, size_t index, char buf[32])
{
    const nw_tensor_need *last = NULL;
    size_t                count = 0, used = 0;
    for (uint32_t i = 0; i < m->tensors.count; i++) {
        const nw_tensor_need *n = &m->tensors.list[i];
        if (m->places[i].tensor->file != file)
            continue;
        used++;
        if (last != NULL && same_block(last, n))
            continue;
        if (count++ == index)
            return block_name(&m->tensors, i, buf);
        last = n;
    }
    if (index != count || !has_others(m, file, used))
        return NULL;
    snprintf(buf, 32, "other");
    return buf;
}

const char *nw_model_block(const nw_model *m, size_t file, size_t index, char buf[32])
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    if (pack == NULL)
        return checkpoint_block(m, file, index, buf);
    bool more = file < nw_pack_shard_count(pack) && index < nw_pack_block_count(pack, file);
    return more ? nw_pack_block(pack, file, index) : NULL;
}

/* ---- packs ---- */

static_assert(NW_STORED_TYPES == (int)NW_STORED_COUNT, "narrows.h counts the stored types");
static_assert(NW_STORED_FORMS == (int)NW_FORM_COUNT - 1, "narrows.h counts the forms");

bool nw_model_pack_kept(const nw_model *m, size_t tensor)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    if (pack == NULL || tensor >= nw_pack_tensor_count(pack))
        return false;
    uint32_t quantised = 1u << NW_FORM_Q8 | 1u << NW_FORM_Q4;
    return (nw_pack_about(pack)->forms & quantised) != 0 &&
           !nw_stored_is_quantised(nw_pack_tensor_at(pack, tensor).stored) &&
           !nw_model_is_vector(m, nw_checkpoint_tensor(m->checkpoint, tensor));
}

static void add_tensor(const nw_pack *pack, size_t tensor, nw_pack_info *ret)
{
    nw_pack_tensor t = nw_pack_tensor_at(pack, tensor);
    ret->source_bytes[t.stored] += t.rows * t.cols * nw_dtype_bytes(t.source);
    ret->lossy_type[t.stored] |= t.lossy;
    for (uint32_t i = 0; i < t.tile_count; i++) {
        nw_pack_tile tile = nw_pack_tile_at(pack, (size_t)t.tile_first + i);
        for (uint32_t k = 0; k < tile.strip_count; k++) {
            nw_pack_strip strip = nw_pack_strip_at(pack, (size_t)tile.strip_first + k);
            ret->form_bytes[strip.form - NW_FORM_PLAIN] += strip.bytes;
        }
    }
}

bool nw_model_pack_describe(const nw_model *m, nw_pack_info *ret)
{
    const nw_pack *pack = nw_checkpoint_pack(m->checkpoint);
    *ret = (nw_pack_info){0};
    if (pack == NULL)
        return false;
    const nw_pack_summary *about = nw_pack_about(pack);
    *ret = (nw_pack_info){.name = about->model,
                          .tool = about->tool,
                          .compress = about->compress,
                          .lossy = about->lossy,
                          .bytes = about->bytes};
    memcpy(ret->stored_bytes, about->stored_bytes, sizeof ret->stored_bytes);
    for (size_t i = 0; i < nw_pack_tensor_count(pack); i++) {
        add_tensor(pack, i, ret);
        ret->kept_count += nw_model_pack_kept(m, i);
    }
    return true;
}

#include "ties.h"

#include "base/sort.h"
#include "model/tensors.h"

#include <string.h>

typedef struct {
    const nw_tensor *tensor;
    const char      *name; /* without the model's prefix */
    uint32_t         index, part;
    bool             needed; /* the model runs with it, by this name */
} tie;

uint64_t nw_ties_bytes(size_t tensor_count)
{
    return tensor_count * (sizeof(tie) + sizeof(uint32_t));
}

void nw_ties_free(nw_model *model, uint32_t *kept)
{
    size_t count = nw_checkpoint_tensor_count(model->checkpoint);
    nw_memory_free(&model->memory, NW_TAG_INDEX, kept, count, sizeof *kept);
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Tensors of one place in the source stand together, best name first. */
static int compare_sources(const void *a, const void *b)
{
    const tie *x = a, *y = b;
    int        order = compare_u64(x->tensor->file, y->tensor->file);
    if (order == 0)
        order = compare_u64(x->tensor->offset, y->tensor->offset);
    if (order == 0)
        order = compare_u64(x->tensor->bytes, y->tensor->bytes);
    if (order == 0)
        order = compare_u64(y->needed, x->needed);
    if (order == 0)
        order = compare_u64(x->part, y->part);
    return order != 0 ? order : strcmp(x->name, y->name);
}

static bool same_source(const nw_tensor *a, const nw_tensor *b)
{
    return a->bytes > 0 && a->file == b->file && a->offset == b->offset && a->bytes == b->bytes &&
           a->dim_count == b->dim_count && memcmp(a->dims, b->dims, a->dim_count * sizeof *a->dims) == 0 &&
           strcmp(a->dtype_name, b->dtype_name) == 0;
}

nw_code nw_ties_find(nw_model *model, uint32_t **ret_kept, nw_error *err)
{
    nw_memory *mem = &model->memory;
    size_t     count = nw_checkpoint_tensor_count(model->checkpoint), used = 0;
    uint32_t  *kept = nw_memory_alloc(mem, NW_TAG_INDEX, count, sizeof *kept);
    tie       *ties = nw_memory_alloc(mem, NW_TAG_INDEX, count, sizeof *ties);
    if (kept == NULL || ties == NULL) {
        nw_memory_free(mem, NW_TAG_INDEX, ties, count, sizeof *ties);
        nw_ties_free(model, kept);
        return nw_memory_fail(mem, err, (size_t)nw_ties_bytes(count), model->path);
    }
    for (uint32_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(model->checkpoint, i);
        const char      *name = nw_model_tensor_name(model, t);
        kept[i] = i;
        if (name != NULL && name[0] != '\0')
            ties[used++] = (tie){.tensor = t,
                                 .name = name,
                                 .index = i,
                                 .part = nw_tensor_name_place(name).part,
                                 .needed = nw_model_need(model, t) != UINT32_MAX};
    }
    nw_sort(ties, used, sizeof *ties, compare_sources);
    const tie *first = NULL;
    for (size_t i = 0; i < used; i++) {
        if (first != NULL && !ties[i].needed && same_source(first->tensor, ties[i].tensor))
            kept[ties[i].index] = first->index;
        else
            first = &ties[i];
    }
    nw_memory_free(mem, NW_TAG_INDEX, ties, count, sizeof *ties);
    *ret_kept = kept;
    return NW_OK;
}

/* Storages and tensors, as torch.save describes them.
 *
 * A tensor is a call of _rebuild_tensor_v2 on a storage, which is a persistent id: here both become entries of a table,
 * and nothing is rebuilt. A few wrappers (parameters, tensors with attributes) stand for the tensor inside. What is
 * wrong with a tensor is told when the dict is walked, because only then its name is known.
 *
 * Source: torch/_utils.py, torch/_tensor.py (Tensor.__reduce_ex__), torch/serialization.py (persistent_load).
 */
#include "torch_object.h"

#include <string.h>

struct nw_torch_tensor {
    uint32_t    storage;
    uint32_t    dim_count;
    uint64_t    dims[NW_TENSOR_DIMS_MAX];
    uint64_t    offset;  /* elements from the start of the storage */
    const char *problem; /* NULL: none */
};

typedef struct {
    char     module[20], name[24];
    char     dtype_name[12]; /* of a storage's elements, as safetensors calls it */
    uint32_t bytes;          /* of an element; 0: not a storage */
    bool     known;
    nw_dtype dtype;
} global;

enum { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, REBUILD_FROM_TYPE, TYPE_TENSOR, TYPE_PARAMETER };

static const global globals[] = {
    [ORDERED_DICT] = {.module = "collections", .name = "OrderedDict"},
    [REBUILD_TENSOR] = {.module = "torch._utils", .name = "_rebuild_tensor_v2"},
    [REBUILD_PARAMETER] = {.module = "torch._utils", .name = "_rebuild_parameter"},
    [REBUILD_FROM_TYPE] = {.module = "torch._tensor", .name = "_rebuild_from_type_v2"},
    [TYPE_TENSOR] = {.module = "torch", .name = "Tensor"},
    [TYPE_PARAMETER] = {.module = "torch.nn.parameter", .name = "Parameter"},
    {"torch", "FloatStorage", "F32", 4, true, NW_F32},
    {"torch", "HalfStorage", "F16", 2, true, NW_F16},
    {"torch", "BFloat16Storage", "BF16", 2, true, NW_BF16},
    {"torch", "DoubleStorage", "F64", 8, false, 0},
    {"torch", "LongStorage", "I64", 8, false, 0},
    {"torch", "IntStorage", "I32", 4, false, 0},
    {"torch", "ShortStorage", "I16", 2, false, 0},
    {"torch", "CharStorage", "I8", 1, false, 0},
    {"torch", "ByteStorage", "U8", 1, false, 0},
    {"torch", "BoolStorage", "BOOL", 1, false, 0},
};

static nw_code find_global(void *user, const char *module, const char *name, nw_pickle_value *ret, nw_error *err)
{
    const nw_torch_objects *o = user;
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        if (strcmp(globals[i].module, module) == 0 && strcmp(globals[i].name, name) == 0) {
            *ret = (nw_pickle_value){.kind = NW_PICKLE_GLOBAL, .index = (uint32_t)i};
            return NW_OK;
        }
    }
    return nw_fail(err, NW_E_UNSUPPORTED, 0,
                   "'%s': its pickle asks for '%.100s %.100s', which tensors do not need; nothing of it was run",
                   o->source->path, module, name);
}

/* -- storages -- */

static bool key_ok(const char *key)
{
    size_t len = strlen(key);
    return len > 0 && len <= 64 && nw_tensor_name_ok(key, len) && strchr(key, '/') == NULL;
}

/* ('storage', type, key, location, numel[, view]). */
static nw_code find_storage(void *user, nw_pickle *pickle, nw_pickle_value id, nw_pickle_value *ret, nw_error *err)
{
    nw_torch_objects *o = user;
    size_t            count = o->views ? 6 : 5;
    if (id.kind != NW_PICKLE_TUPLE || (uint64_t)id.number != count ||
        !nw_pickle_is(nw_pickle_item(pickle, id, 0), "storage"))
        return nw_pickle_broken(pickle, "a persistent id that is not a storage", err);
    nw_pickle_value type = nw_pickle_item(pickle, id, 1), key = nw_pickle_item(pickle, id, 2);
    nw_pickle_value location = nw_pickle_item(pickle, id, 3), numel = nw_pickle_item(pickle, id, 4);
    if (type.kind != NW_PICKLE_GLOBAL || globals[type.index].bytes == 0)
        return nw_pickle_broken(pickle, "a storage's type is not one", err);
    if (key.kind != NW_PICKLE_TEXT || !key_ok(key.text) || location.kind != NW_PICKLE_TEXT)
        return nw_pickle_broken(pickle, "a storage's key or location is not a name", err);
    if (numel.kind != NW_PICKLE_INT || numel.number < 0)
        return nw_pickle_broken(pickle, "a storage's count of elements is not one", err);
    if (o->views && nw_pickle_item(pickle, id, 5).kind != NW_PICKLE_NONE)
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': storage '%s' is a view of another", o->source->path, key.text);

    nw_torch_storage s = {.key = key.text, .type = type.index, .elt_bytes = globals[type.index].bytes};
    s.numel = (uint64_t)numel.number;
    if (!nw_mul_u64(s.numel, s.elt_bytes, &s.bytes))
        return nw_pickle_broken(pickle, "a storage is too large", err);
    if (o->storage_count == NW_TORCH_STORAGES_MAX)
        return nw_pickle_broken(pickle, "more than 100000 storages", err);
    nw_torch_storage *grown =
        nw_array_grow(o->source->mem, o->storages, o->storage_count, &o->storage_cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(o->source->mem, err, o->storage_cap * 2 * sizeof *grown, o->source->path);
    o->storages = grown;
    *ret = (nw_pickle_value){.kind = NW_PICKLE_STORAGE, .index = (uint32_t)o->storage_count};
    o->storages[o->storage_count++] = s;
    return NW_OK;
}

/* -- tensors -- */

/* Row-major, as torch's is_contiguous has it: the strides of dimensions of one element do not matter, nor do any if
 * there is no element at all. `have` are the strides; false also if they are no numbers. */
static bool is_contiguous(const nw_pickle *pickle, const nw_torch_tensor *t, nw_pickle_value have)
{
    uint64_t expected = 1;
    bool     fits = true;
    for (uint32_t d = 0; d < t->dim_count; d++) {
        if (t->dims[d] == 0)
            return true;
    }
    for (uint32_t d = t->dim_count; d > 0; d--) {
        nw_pickle_value stride = nw_pickle_item(pickle, have, d - 1);
        if (stride.kind != NW_PICKLE_INT || stride.number < 0)
            return false;
        if (t->dims[d - 1] != 1 && fits && (uint64_t)stride.number != expected)
            return false;
        fits = fits && nw_mul_u64(expected, t->dims[d - 1], &expected);
    }
    return true; /* what does not fit is refused as too large */
}

static nw_code tensor_add(nw_torch_objects *o, const nw_torch_tensor *t, nw_pickle_value *ret, nw_error *err)
{
    if (o->tensor_count == NW_TENSOR_COUNT_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': more than %zu tensors", o->source->path, NW_TENSOR_COUNT_MAX);
    nw_torch_tensor *grown = nw_array_grow(o->source->mem, o->tensors, o->tensor_count, &o->tensor_cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(o->source->mem, err, o->tensor_cap * 2 * sizeof *grown, o->source->path);
    o->tensors = grown;
    *ret = (nw_pickle_value){.kind = NW_PICKLE_TENSOR, .index = (uint32_t)o->tensor_count};
    o->tensors[o->tensor_count++] = *t;
    return NW_OK;
}

/* (storage, offset, size, stride, requires_grad, hooks[, metadata]). */
static nw_code rebuild_tensor(nw_torch_objects *o, nw_pickle *pickle, nw_pickle_value args, nw_pickle_value *ret,
                              nw_error *err)
{
    if (args.number != 6 && args.number != 7)
        return nw_pickle_broken(pickle, "a tensor with too few or too many parts", err);
    nw_pickle_value storage = nw_pickle_item(pickle, args, 0), offset = nw_pickle_item(pickle, args, 1);
    nw_pickle_value size = nw_pickle_item(pickle, args, 2), stride = nw_pickle_item(pickle, args, 3);
    if (storage.kind != NW_PICKLE_STORAGE || offset.kind != NW_PICKLE_INT || offset.number < 0)
        return nw_pickle_broken(pickle, "a tensor without a storage, or with an impossible offset", err);
    if (size.kind != NW_PICKLE_TUPLE || stride.kind != NW_PICKLE_TUPLE || size.number != stride.number)
        return nw_pickle_broken(pickle, "a tensor whose size and stride do not match", err);
    nw_torch_tensor t = {.storage = storage.index, .offset = (uint64_t)offset.number};
    if (size.number > NW_TENSOR_DIMS_MAX) {
        t.problem = "has more than 8 dimensions";
        return tensor_add(o, &t, ret, err);
    }
    t.dim_count = (uint32_t)size.number;
    for (uint32_t d = 0; d < t.dim_count; d++) {
        nw_pickle_value dim = nw_pickle_item(pickle, size, d);
        if (dim.kind != NW_PICKLE_INT || dim.number < 0)
            return nw_pickle_broken(pickle, "a tensor's size is not one", err);
        t.dims[d] = (uint64_t)dim.number;
    }
    if (!is_contiguous(pickle, &t, stride))
        t.problem = "is not contiguous; save it after .contiguous()";
    return tensor_add(o, &t, ret, err);
}

static nw_code call(void *user, nw_pickle *pickle, nw_pickle_value callee, nw_pickle_value args, nw_pickle_value *ret,
                    nw_error *err)
{
    nw_torch_objects *o = user;
    nw_pickle_value   first = {0}, second = {0};
    if (args.number > 0)
        first = nw_pickle_item(pickle, args, 0);
    if (args.number > 1)
        second = nw_pickle_item(pickle, args, 1);
    switch (callee.index) {
    case ORDERED_DICT:
        if (args.number != 0)
            return nw_pickle_broken(pickle, "an OrderedDict made of something else than its items", err);
        return nw_pickle_dict(pickle, true, ret, err);
    case REBUILD_TENSOR: return rebuild_tensor(o, pickle, args, ret, err);
    case REBUILD_PARAMETER: /* (tensor, requires_grad, hooks) */
        if (args.number != 3 || first.kind != NW_PICKLE_TENSOR)
            return nw_pickle_broken(pickle, "a parameter without a tensor", err);
        *ret = first;
        return NW_OK;
    case REBUILD_FROM_TYPE: /* (function, type, its arguments, state) */
        if (args.number != 4 || first.kind != NW_PICKLE_GLOBAL || first.index != REBUILD_TENSOR ||
            second.kind != NW_PICKLE_GLOBAL || (second.index != TYPE_TENSOR && second.index != TYPE_PARAMETER) ||
            nw_pickle_item(pickle, args, 2).kind != NW_PICKLE_TUPLE)
            return nw_pickle_broken(pickle, "a tensor of another type than Tensor", err);
        return rebuild_tensor(o, pickle, nw_pickle_item(pickle, args, 2), ret, err);
    default:
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': its pickle calls '%s %s', which is not done to tensors",
                       o->source->path, globals[callee.index].module, globals[callee.index].name);
    }
}

const nw_pickle_calls nw_torch_calls = {.global = find_global, .call = call, .persistent = find_storage};

void nw_torch_objects_free(nw_torch_objects *o)
{
    nw_memory_free(o->source->mem, NW_TAG_INDEX, o->storages, o->storage_cap, sizeof *o->storages);
    nw_memory_free(o->source->mem, NW_TAG_INDEX, o->tensors, o->tensor_cap, sizeof *o->tensors);
    *o = (nw_torch_objects){.source = o->source, .views = o->views};
}

/* -- the state dict -- */

/* Bytes of the tensor within its storage; the reason if it has no place there. */
static const char *place(const nw_torch_tensor *t, const nw_torch_storage *s, uint64_t *ret_offset, uint64_t *ret_bytes)
{
    if (t->problem != NULL)
        return t->problem;
    uint64_t count = 1, end = 0;
    bool     fits = true;
    for (uint32_t d = 0; d < t->dim_count && fits; d++)
        fits = nw_mul_u64(count, t->dims[d], &count);
    if (!fits)
        return "its shape is too large";
    if (!nw_add_u64(t->offset, count, &end) || end > s->numel)
        return "lies outside its storage";
    *ret_offset = s->offset + t->offset * s->elt_bytes; /* within the storage, so within the file */
    *ret_bytes = count * s->elt_bytes;
    return NULL;
}

static nw_code add(const nw_torch_objects *o, const char *name, const nw_torch_tensor *have, uint32_t file,
                   nw_tensor_table *table, nw_name_fn name_fn, void *name_user, nw_error *err)
{
    const nw_torch_storage *s = &o->storages[have->storage];
    const global           *type = &globals[s->type];
    nw_tensor t = {.known = type->known, .dtype = type->dtype, .dim_count = have->dim_count, .file = file};
    memcpy(t.dtype_name, type->dtype_name, sizeof t.dtype_name);
    memcpy(t.dims, have->dims, sizeof t.dims);
    nw_code rc = nw_tensor_table_name(table, name, strlen(name), name_fn, name_user, o->source->path, &t.name, err);
    if (rc != NW_OK)
        return rc;
    const char *problem = place(have, s, &t.offset, &t.bytes);
    if (problem != NULL) {
        bool ours = problem == have->problem;
        return nw_fail(err, ours ? NW_E_UNSUPPORTED : NW_E_FORMAT, 0, "'%s': tensor '%.200s': %s", o->source->path,
                       t.name, problem);
    }
    return nw_tensor_table_add(table, &t, o->source->path, err);
}

nw_code nw_torch_tensors(const nw_torch_objects *o, const nw_pickle *pickle, nw_pickle_value root, uint32_t file,
                         nw_tensor_table *table, nw_name_fn name_fn, void *name_user, nw_error *err)
{
    if (root.kind != NW_PICKLE_DICT) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': holds no dict of tensors (a state dict), but something else",
                       o->source->path);
    }
    nw_pickle_value key, value;
    nw_code         rc = NW_OK;
    for (uint32_t at = 0; rc == NW_OK && nw_pickle_next(pickle, root, &at, &key, &value);) {
        const char *name = key.kind == NW_PICKLE_TEXT ? key.text : NULL;
        switch (value.kind) {
        case NW_PICKLE_TENSOR:
            if (name == NULL)
                return nw_fail(err, NW_E_FORMAT, 0, "'%s': a tensor's name is not a short string", o->source->path);
            rc = add(o, name, &o->tensors[value.index], file, table, name_fn, name_user, err);
            break;
        case NW_PICKLE_NONE:
        case NW_PICKLE_BOOL:
        case NW_PICKLE_INT:
        case NW_PICKLE_FLOAT:
        case NW_PICKLE_TEXT:
        case NW_PICKLE_LONG_TEXT: break;
        default:
            rc = nw_fail(err, NW_E_UNSUPPORTED, 0,
                         "'%s': '%.100s' in it is a %s, not a tensor: a training checkpoint; save its state dict alone",
                         o->source->path, name != NULL ? name : "an entry",
                         value.kind == NW_PICKLE_DICT ? "dict" : "collection");
        }
    }
    return rc;
}

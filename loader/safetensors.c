/* Reading the header of a safetensors file.
 *
 * The header is a JSON object of up to 100 MB. It goes through a strict scan chunk by chunk and never stands in memory
 * as a whole: what stays is one nw_tensor and one name per entry. The entries come in any order, so what concerns one
 * tensor is checked as it goes past, and that the data is exactly covered, without holes, overlaps or rests, once the
 * entries are sorted by offset. After that no later read can leave the file or see another tensor's bytes.
 *
 * Source: safetensors/src/tensor.rs (SafeTensors::read_metadata, Metadata::validate). Stricter than it: duplicate
 * names, control characters in names and more than 8 dimensions are refused.
 */
#include "safetensors.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    char     name[12];
    uint32_t bits;
    bool     known;
    nw_dtype dtype;
} dtype_entry;

static const dtype_entry dtypes[] = {
    {"F32", 32, true, NW_F32},    {"BF16", 16, true, NW_BF16},  {"F16", 16, true, NW_F16}, {"BOOL", 8, false, 0},
    {"F4", 4, false, 0},          {"F6_E2M3", 6, false, 0},     {"F6_E3M2", 6, false, 0},  {"U8", 8, false, 0},
    {"I8", 8, false, 0},          {"F8_E5M2", 8, false, 0},     {"F8_E4M3", 8, false, 0},  {"F8_E8M0", 8, false, 0},
    {"F8_E4M3FNUZ", 8, false, 0}, {"F8_E5M2FNUZ", 8, false, 0}, {"I16", 16, false, 0},     {"U16", 16, false, 0},
    {"I32", 32, false, 0},        {"U32", 32, false, 0},        {"C64", 64, false, 0},     {"F64", 64, false, 0},
    {"I64", 64, false, 0},        {"U64", 64, false, 0},
};

typedef enum { IN_DOCUMENT, IN_METADATA, IN_TENSOR, IN_SHAPE, IN_OFFSETS } place;

/* The state of one header's scan. */
typedef struct {
    const nw_source *source;
    nw_tensor_table *table;
    nw_name_fn       name_fn;
    void            *name_user;
    uint64_t         data_offset, data_bytes;
    place            place;
    nw_tensor        tensor; /* being read */
    uint32_t         bits;   /* per element; 0: no dtype yet */
    bool             has_shape, has_offsets;
    uint32_t         offset_count;
    uint64_t         offsets[2];
} header;

static nw_code fail_tensor(const header *h, nw_code code, const char *problem, nw_error *err)
{
    return nw_fail(err, code, 0, "'%s': tensor '%.200s': %s", h->source->path, h->tensor.name, problem);
}

static nw_code tensor_begin(header *h, const nw_json_event *e, nw_error *err)
{
    const char *name = NULL;
    nw_code     rc =
        nw_tensor_table_name(h->table, e->key, e->key_len, h->name_fn, h->name_user, h->source->path, &name, err);
    if (rc != NW_OK)
        return rc;
    h->tensor = (nw_tensor){.name = name};
    h->bits = 0;
    h->has_shape = h->has_offsets = false;
    h->offset_count = 0;
    h->place = IN_TENSOR;
    return NW_OK;
}

/* The entry is complete: checks it by itself and adds it to the table. */
static nw_code tensor_end(header *h, uint32_t file, nw_error *err)
{
    nw_tensor *t = &h->tensor;
    if (h->bits == 0 || !h->has_shape || !h->has_offsets || h->offset_count != 2)
        return fail_tensor(h, NW_E_FORMAT, "needs dtype, shape and two data_offsets", err);

    uint64_t bits = h->bits;
    uint64_t count = 1;
    bool     fits = true;
    for (uint32_t d = 0; d < t->dim_count && fits; d++)
        fits = nw_mul_u64(count, t->dims[d], &count);
    if (!fits || !nw_mul_u64(bits, count, &bits))
        return fail_tensor(h, NW_E_FORMAT, "its shape is too large", err);
    if (bits % 8 != 0)
        return fail_tensor(h, NW_E_FORMAT, "does not end at a whole byte", err);
    if (h->offsets[0] > h->offsets[1] || h->offsets[1] > h->data_bytes) {
        return nw_fail(err, NW_E_FORMAT, 0,
                       "'%s': tensor '%.200s': its data [%llu, %llu) is not within the %llu bytes of data",
                       h->source->path, t->name, (unsigned long long)h->offsets[0], (unsigned long long)h->offsets[1],
                       (unsigned long long)h->data_bytes);
    }
    t->bytes = h->offsets[1] - h->offsets[0];
    if (t->bytes != bits / 8) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s': has %llu bytes where its shape and dtype make %llu",
                       h->source->path, t->name, (unsigned long long)t->bytes, (unsigned long long)(bits / 8));
    }
    t->file = file;
    t->offset = h->data_offset + h->offsets[0]; /* within the file, so it cannot overflow */
    return nw_tensor_table_add(h->table, t, h->source->path, err);
}

static nw_code take_dtype(header *h, const nw_json_event *e, nw_error *err)
{
    for (size_t i = 0; e->type == NW_JSON_STRING && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (!nw_json_text_is(e, dtypes[i].name))
            continue;
        h->bits = dtypes[i].bits;
        h->tensor.known = dtypes[i].known;
        h->tensor.dtype = dtypes[i].dtype;
        memcpy(h->tensor.dtype_name, dtypes[i].name, sizeof h->tensor.dtype_name);
        return NW_OK;
    }
    return fail_tensor(h, NW_E_FORMAT, "has a dtype that safetensors does not know", err);
}

/* A member of a tensor's entry. */
static nw_code take_member(header *h, const nw_json_event *e, nw_error *err)
{
    if (nw_json_key_is(e, "dtype"))
        return take_dtype(h, e, err);
    if (nw_json_key_is(e, "shape") && e->type == NW_JSON_ARRAY_BEGIN) {
        h->has_shape = true;
        h->place = IN_SHAPE;
        return NW_OK;
    }
    if (nw_json_key_is(e, "data_offsets") && e->type == NW_JSON_ARRAY_BEGIN) {
        h->has_offsets = true;
        h->place = IN_OFFSETS;
        return NW_OK;
    }
    return fail_tensor(h, NW_E_FORMAT, "has a member that is not a dtype, shape or data_offsets", err);
}

/* An element of shape or data_offsets. */
static nw_code take_number(header *h, const nw_json_event *e, nw_error *err)
{
    uint64_t value = 0;
    if (!nw_json_u64(e, &value))
        return fail_tensor(h, NW_E_FORMAT, "its shape or data_offsets hold something that is no size", err);
    if (h->place == IN_SHAPE) {
        if (h->tensor.dim_count == NW_TENSOR_DIMS_MAX)
            return fail_tensor(h, NW_E_UNSUPPORTED, "has more than 8 dimensions", err);
        h->tensor.dims[h->tensor.dim_count++] = value;
    } else {
        if (h->offset_count == 2)
            return fail_tensor(h, NW_E_FORMAT, "has more than two data_offsets", err);
        h->offsets[h->offset_count++] = value;
    }
    return NW_OK;
}

static nw_code take_top(header *h, const nw_json_event *e, nw_error *err)
{
    if (e->depth == 0) {
        if (e->type == NW_JSON_OBJECT_BEGIN || e->type == NW_JSON_OBJECT_END)
            return NW_OK;
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': its header is not a JSON object", h->source->path);
    }
    if (e->type != NW_JSON_OBJECT_BEGIN) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': '%.*s' in its header is not an object", h->source->path,
                       (int)nw_min_size(e->key_len, 100), e->key);
    }
    if (nw_json_key_is(e, "__metadata__")) {
        h->place = IN_METADATA;
        return NW_OK;
    }
    return tensor_begin(h, e, err);
}

typedef struct {
    header   header;
    uint32_t file;
} header_scan;

static nw_code on_value(void *user, const nw_json_event *e, nw_error *err)
{
    header_scan *scan = user;
    header      *h = &scan->header;
    nw_code      rc;
    switch (h->place) {
    case IN_DOCUMENT: return take_top(h, e, err);
    case IN_METADATA:
        if (e->type == NW_JSON_OBJECT_END && e->depth == 1)
            h->place = IN_DOCUMENT;
        else if (e->type != NW_JSON_STRING)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': __metadata__ holds more than strings", h->source->path);
        return NW_OK;
    case IN_TENSOR:
        if (e->type != NW_JSON_OBJECT_END)
            return take_member(h, e, err);
        rc = tensor_end(h, scan->file, err);
        h->place = IN_DOCUMENT;
        return rc;
    case IN_SHAPE:
    case IN_OFFSETS:
        if (e->type != NW_JSON_ARRAY_END)
            return take_number(h, e, err);
        h->place = IN_TENSOR;
        return NW_OK;
    }
    nw_trap("a known place", __FILE__, __LINE__);
}

static int compare_offsets(const void *a, const void *b)
{
    const nw_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The data must be covered exactly: what no tensor names could hide another file, what two name is a lie about one. */
static nw_code check_cover(const header *h, size_t first, nw_error *err)
{
    const nw_tensor *t = h->table->tensors;
    uint64_t         at = h->data_offset;
    if (h->table->count > first)
        nw_sort(h->table->tensors + first, h->table->count - first, sizeof *t, compare_offsets);
    for (size_t i = first; i < h->table->count; i++) {
        if (t[i].offset != at) {
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s': its data %s", h->source->path, t[i].name,
                           t[i].offset < at ? "overlaps another tensor's" : "comes after a hole");
        }
        at += t[i].bytes;
    }
    uint64_t end = h->data_offset + h->data_bytes;
    if (at != end) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': %llu bytes at its end belong to no tensor", h->source->path,
                       (unsigned long long)(end - at));
    }
    return NW_OK;
}

/* What begins with a number that no header can have is some other file, and the number means nothing. */
static nw_code fail_length(const nw_source *source, uint64_t len, nw_error *err)
{
    if (len > NW_HEADER_BYTES_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is not a safetensors file, and no PyTorch one (zip or pickle)",
                       source->path);
    return nw_fail(err, NW_E_FORMAT, 0,
                   "'%s' is not a safetensors file, or is cut short: a header of %llu bytes in a file of %llu",
                   source->path, (unsigned long long)len, (unsigned long long)source->file->size);
}

nw_code nw_safetensors_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                            void *name_user, nw_error *err)
{
    if (source->file->size < 8)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is too short for a safetensors file", source->path);

    nw_chunk             c;
    const unsigned char *p = NULL;
    size_t               len = 0;
    size_t               first = table->count;
    uint64_t             header_bytes = 0;
    header_scan          scan = {0};
    char                 label[600];
    nw_code              rc = nw_chunk_open(&c, source, NW_HEADER_CHUNK, err);
    if (rc == NW_OK)
        rc = nw_chunk_fetch(&c, 0, &p, &len, err);
    if (rc != NW_OK)
        goto done;

    NW_CHECK(len >= 8);
    header_bytes = nw_le(p, 8);
    if (header_bytes > NW_HEADER_BYTES_MAX || header_bytes > source->file->size - 8) {
        rc = fail_length(source, header_bytes, err);
        goto done;
    }
    scan.file = file;
    scan.header = (header){.source = source,
                           .table = table,
                           .name_fn = name_fn,
                           .name_user = name_user,
                           .data_offset = 8 + header_bytes,
                           .data_bytes = source->file->size - 8 - header_bytes};
    snprintf(label, sizeof label, "%.500s (header)", source->path);
    rc = nw_chunk_scan(&c, label, 8, header_bytes, on_value, &scan, err);
    if (rc == NW_OK)
        rc = check_cover(&scan.header, first, err);
done:
    nw_chunk_close(&c);
    return rc;
}

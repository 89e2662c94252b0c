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

/* -- tables -- */

#define NAMES_BLOCK_BYTES ((size_t)16384)
#define NAME_LEN_MAX ((size_t)4096)

struct nw_names_block {
    nw_names_block *next;
    size_t          used;
    char            text[NAMES_BLOCK_BYTES];
};

const char *nw_names_add(nw_names *names, const char *text, size_t len)
{
    NW_CHECK(len <= NAME_LEN_MAX);
    nw_names_block *b = names->blocks;
    if (b == NULL || len + 1 > NAMES_BLOCK_BYTES - b->used) {
        b = nw_memory_alloc(names->mem, NW_TAG_INDEX, 1, sizeof *b);
        if (b == NULL)
            return NULL;
        b->next = names->blocks;
        names->blocks = b;
    }
    char *copy = b->text + b->used;
    memcpy(copy, text, len);
    copy[len] = '\0';
    b->used += len + 1;
    return copy;
}

void nw_names_free(nw_names *names)
{
    while (names->blocks != NULL) {
        nw_names_block *b = names->blocks;
        names->blocks = b->next;
        nw_memory_free(names->mem, NW_TAG_INDEX, b, 1, sizeof *b);
    }
}

void nw_tensor_table_free(nw_tensor_table *table)
{
    nw_memory_free(table->names.mem, NW_TAG_INDEX, table->tensors, table->cap, sizeof *table->tensors);
    table->tensors = NULL;
    table->count = table->cap = 0;
    nw_names_free(&table->names);
}

void *nw_array_grow(nw_memory *mem, void *array, size_t count, size_t *cap, size_t size)
{
    if (count < *cap)
        return array;
    size_t fresh_cap = *cap > 0 ? *cap * 2 : 32;
    void  *fresh = nw_memory_alloc(mem, NW_TAG_INDEX, fresh_cap, size);
    if (fresh == NULL)
        return NULL;
    if (count > 0)
        memcpy(fresh, array, count * size);
    nw_memory_free(mem, NW_TAG_INDEX, array, *cap, size);
    *cap = fresh_cap;
    return fresh;
}

bool nw_tensor_name_ok(const char *text, size_t len)
{
    if (len == 0 || len > NW_TENSOR_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        bool          c1 = c == 0xc2 && i + 1 < len && (unsigned char)text[i + 1] < 0xa0; /* U+0080 to U+009F */
        if (c < 0x20 || c == 0x7f || c1)
            return false;
    }
    return true;
}

/* -- reading -- */

/* The chunk at hand. */
typedef struct {
    const nw_source *source;
    unsigned char   *buf; /* NW_HEADER_CHUNK bytes */
    uint64_t         offset;
    size_t           bytes; /* valid from offset on */
} chunk;

static nw_code chunk_open(chunk *c, const nw_source *source, nw_error *err)
{
    *c = (chunk){.source = source, .buf = nw_memory_map(source->mem, NW_TAG_INDEX, NW_HEADER_CHUNK, false)};
    return c->buf != NULL ? NW_OK : nw_memory_fail(source->mem, err, NW_HEADER_CHUNK, source->path);
}

static void chunk_close(chunk *c)
{
    if (c->buf != NULL)
        nw_memory_unmap(c->source->mem, NW_TAG_INDEX, c->buf, NW_HEADER_CHUNK);
}

/* Makes the byte at `pos` available, and as many after it as one aligned read gives. */
static nw_code chunk_fetch(chunk *c, uint64_t pos, const unsigned char **ret_bytes, size_t *ret_len, nw_error *err)
{
    const nw_file *file = c->source->file;
    NW_CHECK(pos < file->size);
    NW_CHECK(file->align > 0 && file->align <= NW_HEADER_CHUNK);
    if (pos < c->offset || pos - c->offset >= c->bytes) {
        uint64_t  start = nw_round_down(pos, file->align);
        nw_extent extent = nw_file_extent(file, start, nw_min_u64(NW_HEADER_CHUNK, file->size - start));
        NW_CHECK(extent.bytes <= NW_HEADER_CHUNK && extent.skip == 0);
        nw_io_op op = {.kind = NW_IO_READ,
                       .fd = file->fd,
                       .offset = extent.offset,
                       .buf = c->buf,
                       .bytes = extent.bytes,
                       .bytes_needed = extent.bytes_needed};
        c->bytes = 0;
        nw_code rc = nw_io_run(c->source->io, &op, c->source->path, err);
        if (rc != NW_OK)
            return rc;
        nw_file_drop(file, extent.offset, extent.bytes);
        if (c->source->read_bytes != NULL)
            *c->source->read_bytes += extent.bytes_counted;
        c->offset = extent.offset;
        c->bytes = extent.bytes_needed;
    }
    *ret_bytes = c->buf + (pos - c->offset);
    *ret_len = c->bytes - (size_t)(pos - c->offset);
    return NW_OK;
}

static nw_code chunk_scan(chunk *c, const char *label, uint64_t offset, uint64_t bytes, nw_json_fn fn, void *user,
                          nw_error *err)
{
    /* yajl looks at an unfinished string again with each chunk, so a header full of long ones would take long. */
    static const nw_json_limits limits = {.string_len_max = (size_t)256 << 10};
    nw_json                    *json = NULL;
    nw_code                     rc = nw_json_open(c->source->mem, label, &limits, fn, user, &json, err);
    for (uint64_t done = 0; done < bytes && rc == NW_OK;) {
        const unsigned char *p = NULL;
        size_t               len = 0;
        rc = chunk_fetch(c, offset + done, &p, &len, err);
        if (rc != NW_OK)
            break;
        len = (size_t)nw_min_u64(len, bytes - done);
        rc = nw_json_feed(json, p, len, err);
        done += len;
    }
    if (rc == NW_OK)
        rc = nw_json_finish(json, err);
    nw_json_close(json);
    return rc;
}

nw_code nw_source_scan(const nw_source *source, const char *label, uint64_t offset, uint64_t bytes, nw_json_fn fn,
                       void *user, nw_error *err)
{
    NW_CHECK(offset <= source->file->size && bytes <= source->file->size - offset);
    chunk   c;
    nw_code rc = chunk_open(&c, source, err);
    if (rc == NW_OK)
        rc = chunk_scan(&c, label, offset, bytes, fn, user, err);
    chunk_close(&c);
    return rc;
}

/* -- the header -- */

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
    if (!nw_tensor_name_ok(e->key, e->key_len)) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': '%.*s' cannot be the name of a tensor", h->source->path,
                       (int)nw_min_size(e->key_len, 100), e->key);
    }
    if (h->table->count == NW_TENSOR_COUNT_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': more than %zu tensors", h->source->path, NW_TENSOR_COUNT_MAX);
    const char *name = NULL;
    if (h->name_fn != NULL) {
        nw_code rc = h->name_fn(h->name_user, e->key, e->key_len, &name, err);
        if (rc != NW_OK)
            return rc;
    } else {
        name = nw_names_add(&h->table->names, e->key, e->key_len);
        if (name == NULL)
            return nw_memory_fail(h->source->mem, err, sizeof(nw_names_block), h->source->path);
    }
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

    nw_tensor_table *table = h->table;
    nw_tensor       *grown = nw_array_grow(h->source->mem, table->tensors, table->count, &table->cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(h->source->mem, err, table->cap * 2 * sizeof *grown, h->source->path);
    table->tensors = grown;
    table->tensors[table->count++] = *t;
    return NW_OK;
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

/* The length is impossible: says what the file is instead, if its first bytes tell. */
static nw_code fail_length(const nw_source *source, const unsigned char first[8], uint64_t len, nw_error *err)
{
    const char *what = memcmp(first, "GGUF", 4) == 0      ? "a GGUF file"
                       : memcmp(first, "PK\3\4", 4) == 0  ? "a zip archive, as PyTorch writes"
                       : memcmp(first, "\x80\2", 2) == 0  ? "a Python pickle, as PyTorch writes"
                       : memcmp(first, "\x89HDF", 4) == 0 ? "an HDF5 file"
                                                          : NULL;
    if (what != NULL) {
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s' is %s; only safetensors can be read", source->path, what);
    }
    return nw_fail(err, NW_E_FORMAT, 0,
                   "'%s' is not a safetensors file, or is cut short: a header of %llu bytes in a file of %llu",
                   source->path, (unsigned long long)len, (unsigned long long)source->file->size);
}

static uint64_t u64_le(const unsigned char *p)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

nw_code nw_safetensors_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                            void *name_user, nw_error *err)
{
    if (source->file->size < 8)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is too short for a safetensors file", source->path);

    chunk                c;
    const unsigned char *p = NULL;
    size_t               len = 0;
    size_t               first = table->count;
    uint64_t             header_bytes = 0;
    header_scan          scan = {0};
    char                 label[600];
    nw_code              rc = chunk_open(&c, source, err);
    if (rc == NW_OK)
        rc = chunk_fetch(&c, 0, &p, &len, err);
    if (rc != NW_OK)
        goto done;

    NW_CHECK(len >= 8);
    header_bytes = u64_le(p);
    if (header_bytes > NW_HEADER_BYTES_MAX || header_bytes > source->file->size - 8) {
        rc = fail_length(source, p, header_bytes, err);
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
    rc = chunk_scan(&c, label, 8, header_bytes, on_value, &scan, err);
    if (rc == NW_OK)
        rc = check_cover(&scan.header, first, err);
done:
    chunk_close(&c);
    return rc;
}

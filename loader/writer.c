/* Writing a checkpoint as Hugging Face safetensors.
 *
 * Headers stand before data, so everything is declared first; the first byte of data (or the end) fixes which tensor
 * goes to which shard. From then on bytes pass through one buffer, in order, and are never looked at again. A header is
 * made by the same function that measures it.
 *
 * All files go through an nw_output: a shard is complete only with its last tensor, the index comes after the last
 * shard, and DST appears by one rename after everything is on the disk. Whatever is left by a crash does not open.
 */
#include "loader/writer.h"

#include "base/bytes.h"
#include "output.h"
#include "safetensors.h"

#include <stdio.h>
#include <string.h>

#define SHARDS_MAX 99999 /* five digits in their names */
#define INDEX_NAME "model.safetensors.index.json"
#define GROUP_NONE 0
#define DATA_BYTES_MAX ((uint64_t)1 << 62)

typedef struct {
    const char *name;
    char        dtype_name[12];
    uint32_t    dim_count;
    uint64_t    dims[NW_TENSOR_DIMS_MAX];
    uint64_t    bytes;
    uint64_t    group; /* GROUP_NONE: alone */
    uint32_t    shard;
} declared;

typedef struct {
    const char *name, *kept;
} alias;

struct nw_writer {
    nw_memory *mem;
    nw_output  out;
    uint64_t   shard_bytes_max; /* 0: one shard */
    nw_names   names;
    declared  *tensors;
    size_t     count, cap;
    uint64_t   group_last;
    alias     *aliases;
    size_t     alias_count, alias_cap;
    /* from the layout on */
    bool             laid_out;
    const declared **by_name;
    uint32_t         shard_count;
    uint64_t         bytes_total;
    size_t           next;      /* tensor being written */
    uint64_t         next_done; /* of its bytes */
    uint32_t         shard;     /* being written, unless none is */
};

/* -- paths -- */

/* "model.safetensors" or "model-00001-of-00003.safetensors". */
static void shard_name(const nw_writer *w, uint32_t shard, char ret_name[64])
{
    if (w->shard_count == 1)
        snprintf(ret_name, 64, "model.safetensors");
    else
        snprintf(ret_name, 64, "model-%05u-of-%05u.safetensors", shard + 1, w->shard_count);
}

/* -- text, measured or written -- */

/* The header of the shard whose tensors are [first, end), padded with spaces so that the data is aligned to 8 bytes. */
static void text_header(const nw_writer *w, nw_text *t, size_t first, size_t end)
{
    uint64_t offset = 0;
    nw_text_say(t, "{\"__metadata__\":{\"format\":\"pt\"");
    for (size_t i = 0; i < w->alias_count; i++) {
        nw_text_say(t, ",");
        nw_text_string(t, w->aliases[i].name);
        nw_text_say(t, ":");
        nw_text_string(t, w->aliases[i].kept);
    }
    nw_text_say(t, "}");
    for (size_t i = first; i < end; i++) {
        const declared *d = &w->tensors[i];
        nw_text_say(t, ",");
        nw_text_string(t, d->name);
        nw_text_say(t, ":{\"dtype\":\"");
        nw_text_say(t, d->dtype_name);
        nw_text_say(t, "\",\"shape\":[");
        for (uint32_t k = 0; k < d->dim_count; k++) {
            nw_text_say(t, k > 0 ? "," : "");
            nw_text_u64(t, d->dims[k]);
        }
        nw_text_say(t, "],\"data_offsets\":[");
        nw_text_u64(t, offset);
        nw_text_say(t, ",");
        offset += d->bytes;
        nw_text_u64(t, offset);
        nw_text_say(t, "]}");
    }
    nw_text_say(t, "}");
    nw_text_put(t, "       ", (size_t)(nw_round_up(t->bytes, 8) - t->bytes));
}

/* As transformers writes it: two spaces, keys sorted. */
static void text_index(const nw_writer *w, nw_text *t)
{
    char name[64];
    nw_text_say(t, "{\n  \"metadata\": {\n    \"total_size\": ");
    nw_text_u64(t, w->bytes_total);
    nw_text_say(t, "\n  },\n  \"weight_map\": {");
    for (size_t i = 0; i < w->count; i++) {
        nw_text_say(t, i > 0 ? ",\n    " : "\n    ");
        nw_text_string(t, w->by_name[i]->name);
        shard_name(w, w->by_name[i]->shard, name);
        nw_text_say(t, ": ");
        nw_text_string(t, name);
    }
    nw_text_say(t, "\n  }\n}\n");
}

/* -- layout -- */

static int compare_names(const void *a, const void *b)
{
    const declared *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Bytes of the tensors from `first` on that go together; *ret_end is behind the last. */
static uint64_t unit_bytes(const nw_writer *w, size_t first, size_t *ret_end)
{
    const declared *d = w->tensors;
    uint64_t        bytes = d[first].bytes;
    size_t          end = first + 1;
    for (; d[first].group != GROUP_NONE && end < w->count && d[end].group == d[first].group; end++)
        bytes += d[end].bytes;
    if (bytes > w->shard_bytes_max) { /* too large to stay together */
        end = first + 1;
        bytes = d[first].bytes;
    }
    *ret_end = end;
    return bytes;
}

static void assign_shards(nw_writer *w)
{
    uint64_t used = 0;
    uint32_t shard = 0;
    for (size_t i = 0, end; i < w->count; i = end) {
        uint64_t bytes = unit_bytes(w, i, &end);
        uint64_t room = w->shard_bytes_max - nw_min_u64(used, w->shard_bytes_max);
        bool     fits = w->shard_bytes_max == 0 || bytes <= room;
        if (!fits && used > 0) {
            shard++;
            used = 0;
        }
        used += bytes;
        for (size_t k = i; k < end; k++)
            w->tensors[k].shard = shard;
    }
    w->shard_count = shard + 1;
}

/* All is declared: names are unique, shards are known, there is room. */
static nw_code lay_out(nw_writer *w, nw_error *err)
{
    if (w->count == 0)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "no tensors to write", "");
    w->by_name = nw_memory_alloc(w->mem, NW_TAG_INDEX, w->count, sizeof *w->by_name);
    if (w->by_name == NULL) {
        w->out.failed = true;
        return nw_memory_fail(w->mem, err, w->count * sizeof *w->by_name, w->out.dir);
    }
    w->laid_out = true;
    for (size_t i = 0; i < w->count; i++)
        w->by_name[i] = &w->tensors[i];
    nw_sort(w->by_name, w->count, sizeof *w->by_name, compare_names);
    for (size_t i = 1; i < w->count; i++) {
        if (strcmp(w->by_name[i - 1]->name, w->by_name[i]->name) == 0)
            return nw_output_fail(&w->out, err, NW_E_ARG, 0, "declared twice:", w->by_name[i]->name);
    }
    assign_shards(w);
    if (w->shard_count > SHARDS_MAX)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "more than 99999 shards", "");

    nw_text headers = {0}, metadata = {0}; /* every shard repeats the metadata */
    text_header(w, &headers, 0, w->count);
    text_header(w, &metadata, 0, 0);
    uint64_t needed = w->bytes_total + 2 * headers.bytes + w->shard_count * (metadata.bytes + 2 * NW_OUTPUT_BLOCK);
    return nw_output_room(&w->out, needed, err);
}

/* Makes the file of the shard that begins with tensor `next`, up to its data. */
static nw_code shard_begin(nw_writer *w, nw_error *err)
{
    char   name[64];
    size_t end = w->next;
    w->shard = w->tensors[w->next].shard;
    while (end < w->count && w->tensors[end].shard == w->shard)
        end++;
    nw_text measure = {0};
    text_header(w, &measure, w->next, end);
    if (measure.bytes > NW_HEADER_BYTES_MAX)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "a header of more than 100000000 bytes", "");

    shard_name(w, w->shard, name);
    nw_code rc = nw_output_begin(&w->out, name, err);
    if (rc != NW_OK)
        return rc;
    unsigned char len[8];
    nw_put_u64(len, measure.bytes);
    nw_text text = {.out = &w->out, .err = err};
    text.rc = nw_output_put(&w->out, len, sizeof len, err);
    text_header(w, &text, w->next, end);
    NW_CHECK(text.bytes == measure.bytes);
    return text.rc;
}

/* Moves on over tensors that are complete, empty ones included: ends shards, begins the next. */
static nw_code advance(nw_writer *w, nw_error *err)
{
    nw_code rc = NW_OK;
    if (!w->laid_out)
        rc = lay_out(w, err);
    while (rc == NW_OK && w->next < w->count) {
        if (w->out.fd < 0 && (rc = shard_begin(w, err)) != NW_OK)
            break;
        if (w->next_done < w->tensors[w->next].bytes)
            break;
        w->next++;
        w->next_done = 0;
        if (w->next == w->count || w->tensors[w->next].shard != w->shard)
            rc = nw_output_end(&w->out, err);
    }
    return rc;
}

/* -- the interface -- */

nw_code nw_writer_open(nw_memory *mem, const char *dir, uint64_t shard_bytes_max, nw_writer **ret_writer, nw_error *err)
{
    nw_writer *w = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *w);
    if (w == NULL)
        return nw_memory_fail(mem, err, sizeof *w, dir);
    w->mem = mem;
    w->names.mem = mem;
    w->shard_bytes_max = shard_bytes_max;
    nw_code rc = nw_output_open(&w->out, mem, dir, err);
    if (rc != NW_OK) {
        nw_writer_close(w);
        return rc;
    }
    *ret_writer = w;
    return NW_OK;
}

/* Adds a tensor whose type, shape and bytes are in `d`. */
static nw_code declare(nw_writer *w, const char *name, declared d, nw_error *err)
{
    NW_CHECK(!w->out.failed && !w->laid_out);
    uint64_t total = 0;
    d.group = w->group_last;
    if (!nw_tensor_name_ok(name, strlen(name)) || strcmp(name, "__metadata__") == 0)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "this cannot be the name of a tensor:", name);
    if (!nw_add_u64(w->bytes_total, d.bytes, &total) || total > DATA_BYTES_MAX)
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "this tensor is too large:", name);

    declared *grown = nw_array_grow(w->mem, w->tensors, w->count, &w->cap, sizeof *grown);
    if (grown != NULL) {
        w->tensors = grown;
        d.name = nw_names_add(&w->names, name, strlen(name));
    }
    if (d.name == NULL) {
        w->out.failed = true;
        return nw_memory_fail(w->mem, err, sizeof d * (w->cap + 1), w->out.dir);
    }
    w->tensors[w->count++] = d;
    w->bytes_total = total;
    return NW_OK;
}

nw_code nw_writer_declare(nw_writer *writer, const char *name, nw_dtype dtype, const uint64_t *dims, uint32_t dim_count,
                          nw_error *err)
{
    static const char *const names[NW_DTYPE_COUNT] = {[NW_F32] = "F32", [NW_BF16] = "BF16", [NW_F16] = "F16"};
    NW_CHECK(dim_count == 1 || dim_count == 2);
    declared d = {.dim_count = dim_count, .bytes = nw_dtype_bytes(dtype)};
    bool     fits = true;
    snprintf(d.dtype_name, sizeof d.dtype_name, "%s", names[dtype]);
    for (uint32_t i = 0; i < dim_count && fits; i++) {
        d.dims[i] = dims[i];
        fits = nw_mul_u64(d.bytes, dims[i], &d.bytes);
    }
    if (!fits)
        return nw_output_fail(&writer->out, err, NW_E_ARG, 0, "this tensor is too large:", name);
    return declare(writer, name, d, err);
}

nw_code nw_writer_declare_like(nw_writer *writer, const char *name, const nw_tensor *like, nw_error *err)
{
    declared d = {.dim_count = like->dim_count, .bytes = like->bytes};
    memcpy(d.dtype_name, like->dtype_name, sizeof d.dtype_name);
    memcpy(d.dims, like->dims, sizeof d.dims);
    return declare(writer, name, d, err);
}

nw_code nw_writer_alias(nw_writer *writer, const char *name, const char *kept, nw_error *err)
{
    nw_writer *w = writer;
    NW_CHECK(!w->out.failed && !w->laid_out);
    if (strcmp(name, "format") == 0) /* that key of the metadata is taken */
        return nw_output_fail(&w->out, err, NW_E_ARG, 0, "this cannot be another name for a tensor:", name);
    alias *grown = nw_array_grow(w->mem, w->aliases, w->alias_count, &w->alias_cap, sizeof *grown);
    if (grown != NULL) {
        w->aliases = grown;
        alias a = {.name = nw_names_add(&w->names, name, strlen(name)),
                   .kept = nw_names_add(&w->names, kept, strlen(kept))};
        if (a.name != NULL && a.kept != NULL) {
            w->aliases[w->alias_count++] = a;
            return NW_OK;
        }
    }
    w->out.failed = true;
    return nw_memory_fail(w->mem, err, strlen(name) + strlen(kept), w->out.dir);
}

uint64_t nw_writer_declared_bytes(size_t tensor_count)
{
    /* The table doubles as it grows: the old and the new one stand side by side. */
    return sizeof(nw_writer) + NW_OUTPUT_BUFFER_BYTES +
           tensor_count * (3 * sizeof(declared) + sizeof(declared *) + 100);
}

uint32_t nw_writer_shard_count(const nw_writer *writer)
{
    return writer->shard_count;
}

nw_code nw_writer_group(nw_writer *writer, nw_error *err)
{
    (void)err;
    NW_CHECK(!writer->out.failed && !writer->laid_out);
    writer->group_last++;
    return NW_OK;
}

nw_code nw_writer_data(nw_writer *writer, const void *bytes, size_t len, nw_error *err)
{
    nw_writer           *w = writer;
    const unsigned char *p = bytes;
    NW_CHECK(!w->out.failed);
    nw_code rc = advance(w, err);
    while (len > 0 && rc == NW_OK) {
        NW_CHECK(w->next < w->count); /* no more than was declared */
        size_t part = (size_t)nw_min_u64(len, w->tensors[w->next].bytes - w->next_done);
        rc = nw_output_put(&w->out, p, part, err);
        if (rc != NW_OK)
            break;
        p += part;
        len -= part;
        w->next_done += part;
        rc = advance(w, err);
    }
    return rc;
}

nw_code nw_writer_file(nw_writer *writer, const char *name, const void *bytes, size_t len, nw_error *err)
{
    return nw_output_small(&writer->out, name, bytes, len, err);
}

nw_code nw_writer_finish(nw_writer *writer, nw_error *err)
{
    nw_writer *w = writer;
    NW_CHECK(!w->out.failed);
    nw_code rc = advance(w, err);
    if (rc != NW_OK)
        return rc;
    NW_CHECK(w->next == w->count); /* all data was written */
    if (w->shard_count > 1) {
        rc = nw_output_begin(&w->out, INDEX_NAME, err);
        if (rc != NW_OK)
            return rc;
        nw_text text = {.out = &w->out, .err = err};
        text_index(w, &text);
        rc = text.rc == NW_OK ? nw_output_end(&w->out, err) : text.rc;
        if (rc != NW_OK)
            return rc;
    }
    return nw_output_commit(&w->out, err);
}

nw_writer *nw_writer_close(nw_writer *writer)
{
    nw_writer *w = writer;
    if (w == NULL)
        return NULL;
    nw_output_close(&w->out);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->by_name, w->count, sizeof *w->by_name);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->aliases, w->alias_cap, sizeof *w->aliases);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->tensors, w->cap, sizeof *w->tensors);
    nw_names_free(&w->names);
    nw_memory_free(w->mem, NW_TAG_INDEX, w, 1, sizeof *w);
    return NULL;
}

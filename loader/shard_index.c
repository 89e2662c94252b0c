/* Reading a shard index.
 *
 * Only weight_map counts: metadata.total_size is wrong in published checkpoints, and everything else is for other
 * programs. Shard names are the one place where a checkpoint names files, so they must be plain names in its own
 * directory. The list of shards stays sorted while it grows, so that a hostile index of a million entries costs a
 * search each and not a walk.
 */
#include "shard_index.h"

#include <string.h>

typedef struct {
    const nw_source *source;
    nw_names        *names;
    nw_shard_index  *index;
    bool             in_map, has_map;
} scan;

static bool shard_name_ok(const char *text, size_t len)
{
    if (len == 0 || len > 255 || !nw_tensor_name_ok(text, len) || memchr(text, '/', len) != NULL)
        return false;
    return text[0] != '.'; /* ".", "..", and nothing hidden */
}

/* Orders text of a known length against a string. */
static int compare_text(const char *text, size_t len, const char *string)
{
    size_t string_len = strlen(string);
    int    order = memcmp(text, string, nw_min_size(len, string_len));
    return order != 0 ? order : (len > string_len) - (len < string_len);
}

/* The first shard that is not before the text. */
static size_t shard_place(const nw_shard_index *x, const char *text, size_t len)
{
    size_t low = 0, high = x->shard_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_text(text, len, x->shards[middle]) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The shard's name as the index keeps it. */
static nw_code shard_add(scan *s, const char *text, size_t len, const char **ret_name, nw_error *err)
{
    nw_shard_index *x = s->index;
    size_t          at = shard_place(x, text, len);
    if (at < x->shard_count && compare_text(text, len, x->shards[at]) == 0) {
        *ret_name = x->shards[at];
        return NW_OK;
    }
    if (x->shard_count == NW_SHARD_COUNT_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': names more than %zu files", x->path, NW_SHARD_COUNT_MAX);
    const char **grown = nw_array_grow(x->mem, x->shards, x->shard_count, &x->shard_cap, sizeof *grown);
    const char  *name = NULL;
    if (grown != NULL) {
        x->shards = grown;
        name = nw_names_add(s->names, text, len);
    }
    if (name == NULL)
        return nw_memory_fail(x->mem, err, len + 1, x->path);
    memmove(x->shards + at + 1, x->shards + at, (x->shard_count - at) * sizeof *x->shards);
    x->shards[at] = name;
    x->shard_count++;
    *ret_name = name;
    return NW_OK;
}

static nw_code entry_add(scan *s, const nw_json_event *e, nw_error *err)
{
    nw_shard_index *x = s->index;
    if (!nw_tensor_name_ok(e->key, e->key_len)) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': '%.*s' cannot be the name of a tensor", x->path,
                       (int)nw_min_size(e->key_len, 100), e->key);
    }
    if (e->type != NW_JSON_STRING || !shard_name_ok(e->text, e->text_len)) {
        int shown = e->type == NW_JSON_STRING ? (int)nw_min_size(e->text_len, 100) : 0;
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.*s': '%.*s' is not a plain file name", x->path,
                       (int)nw_min_size(e->key_len, 200), e->key, shown, shown > 0 ? e->text : "");
    }
    if (x->count == NW_TENSOR_COUNT_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': more than %zu tensors", x->path, NW_TENSOR_COUNT_MAX);

    nw_shard_entry  entry = {0};
    nw_code         rc = shard_add(s, e->text, e->text_len, &entry.shard_name, err);
    nw_shard_entry *grown;
    if (rc != NW_OK)
        return rc;
    entry.name = nw_names_add(s->names, e->key, e->key_len);
    grown = entry.name != NULL ? nw_array_grow(x->mem, x->entries, x->count, &x->cap, sizeof *grown) : NULL;
    if (grown == NULL)
        return nw_memory_fail(x->mem, err, sizeof *grown * (x->cap + 1), x->path);
    x->entries = grown;
    x->entries[x->count++] = entry;
    return NW_OK;
}

static nw_code on_value(void *user, const nw_json_event *e, nw_error *err)
{
    scan *s = user;
    if (e->depth == 0 && e->type != NW_JSON_OBJECT_BEGIN && e->type != NW_JSON_OBJECT_END)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is not a JSON object", s->index->path);
    if (s->in_map) {
        if (e->depth == 1) /* the end of the map */
            s->in_map = false;
        else
            return entry_add(s, e, err);
    } else if (e->depth == 1 && nw_json_key_is(e, "weight_map")) {
        if (e->type != NW_JSON_OBJECT_BEGIN)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': weight_map is not an object", s->index->path);
        s->in_map = s->has_map = true;
    }
    return NW_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const nw_shard_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

nw_code nw_shard_index_read(const nw_source *source, nw_names *names, nw_shard_index *index, nw_error *err)
{
    *index = (nw_shard_index){.mem = source->mem, .path = source->path};
    scan s = {.source = source, .names = names, .index = index};
    if (source->file->size > NW_HEADER_BYTES_MAX) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': an index of more than %llu bytes", source->path,
                       (unsigned long long)NW_HEADER_BYTES_MAX);
    }
    nw_code rc = nw_source_scan(source, source->path, 0, source->file->size, on_value, &s, err);
    if (rc != NW_OK)
        return rc;
    if (!s.has_map || index->count == 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': has no weight_map, or an empty one", source->path);

    nw_sort(index->entries, index->count, sizeof *index->entries, compare_entries);
    for (size_t i = 0; i < index->count; i++) {
        const char *name = index->entries[i].shard_name;
        index->entries[i].shard = (uint32_t)shard_place(index, name, strlen(name));
    }
    return NW_OK;
}

void nw_shard_index_free(nw_shard_index *index)
{
    nw_memory_free(index->mem, NW_TAG_INDEX, index->entries, index->cap, sizeof *index->entries);
    nw_memory_free(index->mem, NW_TAG_INDEX, index->shards, index->shard_cap, sizeof *index->shards);
    *index = (nw_shard_index){0};
}

nw_shard_entry *nw_shard_index_find(const nw_shard_index *index, const char *name, size_t len)
{
    size_t low = 0, high = index->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int    order = compare_text(name, len, index->entries[middle].name);
        if (order == 0)
            return &index->entries[middle];
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

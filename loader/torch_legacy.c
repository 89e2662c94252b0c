/* The older form of torch.save: pickles of a magic number, a protocol version, facts about the machine, the object, and
 * a list of storage keys; then for each key, in that order, its count of elements (int64) and its data.
 *
 * Only the counts are read here. They must agree with the pickle, and the last storage must end where the file does.
 *
 * Source: torch/serialization.py, _legacy_save and _legacy_load.
 */
#include "torch_legacy.h"

#include "torch_object.h"

#include <string.h>

#define PROTOCOL "\x80\x02\x4d\xe9\x03\x2e" /* a pickle of 1001 */

typedef struct {
    const nw_source *source;
    nw_pickle       *pickle;
    nw_torch_objects objects;
    uint64_t         at;
} legacy;

static nw_code expect(legacy *l, nw_chunk *chunk, const char *bytes, size_t len, nw_error *err)
{
    char have[16];
    NW_CHECK(len <= sizeof have);
    if (len > l->source->file->size - l->at)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is cut short", l->source->path);
    nw_code rc = nw_chunk_copy(chunk, l->at, have, len, err);
    if (rc == NW_OK && memcmp(have, bytes, len) != 0)
        rc = nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': not the form that torch.save wrote before 1.6", l->source->path);
    l->at += len;
    return rc;
}

/* The machine's facts: a dict that says, among others, little_endian. */
static nw_code check_machine(legacy *l, nw_error *err)
{
    nw_pickle_value root = {0}, key, value;
    nw_code         rc = nw_pickle_run(l->pickle, l->at, l->source->file->size, &root, &l->at, err);
    if (rc != NW_OK)
        return rc;
    if (root.kind != NW_PICKLE_DICT)
        return nw_pickle_broken(l->pickle, "facts about the machine are not a dict", err);
    for (uint32_t at = 0; nw_pickle_next(l->pickle, root, &at, &key, &value);) {
        if (nw_pickle_is(key, "little_endian") && (value.kind != NW_PICKLE_BOOL || value.number != 1))
            return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': its byte order is not little-endian", l->source->path);
    }
    return NW_OK;
}

static int compare_storages(const void *a, const void *b)
{
    const nw_torch_storage *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* The first mention of a key, or where it would stand. */
static size_t find_storage(nw_torch_storage *const *sorted, size_t count, const char *key)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(sorted[middle]->key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The storage at hand: its count of elements, then its data. All mentions of it get its place. */
static nw_code place_one(legacy *l, nw_chunk *chunk, nw_torch_storage *const *sorted, const char *key, nw_error *err)
{
    const char   *path = l->source->path;
    uint64_t      size = l->source->file->size;
    size_t        count = l->objects.storage_count, i = find_storage(sorted, count, key);
    unsigned char raw[8];
    if (i == count || strcmp(sorted[i]->key, key) != 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%.64s' belongs to no tensor", path, key);
    if (size - l->at < sizeof raw)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is cut short before storage '%s'", path, key);
    nw_code rc = nw_chunk_copy(chunk, l->at, raw, sizeof raw, err);
    if (rc != NW_OK)
        return rc;
    l->at += sizeof raw;
    nw_torch_storage *first = sorted[i];
    if (nw_le(raw, 8) != first->numel)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' has another size than its tensors say", path, key);
    if (first->bytes > size - l->at)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is cut short in storage '%s'", path, key);
    if (first->offset != 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' is there twice", path, key);
    for (; i < count && strcmp(sorted[i]->key, key) == 0; i++) {
        if (sorted[i]->type != first->type || sorted[i]->numel != first->numel)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' has two types or sizes", path, key);
        sorted[i]->offset = l->at;
    }
    l->at += first->bytes;
    return NW_OK;
}

static nw_code place_storages(legacy *l, nw_pickle_value keys, nw_torch_storage **sorted, nw_error *err)
{
    size_t count = l->objects.storage_count;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &l->objects.storages[i];
    if (count > 0)
        nw_sort(sorted, count, sizeof(nw_torch_storage *), compare_storages);
    nw_chunk        chunk;
    nw_pickle_value key;
    nw_code         rc = nw_chunk_open(&chunk, l->source, NW_SMALL_CHUNK, err);
    for (uint32_t at = 0; rc == NW_OK && nw_pickle_next(l->pickle, keys, &at, &key, NULL);) {
        rc = key.kind == NW_PICKLE_TEXT ? place_one(l, &chunk, sorted, key.text, err)
                                        : nw_pickle_broken(l->pickle, "a storage's key is not a string", err);
    }
    nw_chunk_close(&chunk);
    for (size_t i = 0; i < count && rc == NW_OK; i++) {
        if (sorted[i]->offset == 0) {
            rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': storage '%s' is not in the file", l->source->path, sorted[i]->key);
        }
    }
    if (rc == NW_OK && l->at != l->source->file->size)
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': there is something behind its last storage", l->source->path);
    return rc;
}

/* The object, then the list of keys, then the storages. */
static nw_code read_object(legacy *l, nw_pickle_value *ret_root, nw_error *err)
{
    uint64_t        size = l->source->file->size;
    nw_pickle_value keys = {0};
    nw_code         rc = nw_pickle_run(l->pickle, l->at, size, ret_root, &l->at, err);
    if (rc == NW_OK)
        rc = nw_pickle_run(l->pickle, l->at, size, &keys, &l->at, err);
    if (rc != NW_OK)
        return rc;
    if (keys.kind != NW_PICKLE_LIST)
        return nw_pickle_broken(l->pickle, "storage keys are not a list", err);
    nw_memory         *mem = l->source->mem;
    size_t             count = l->objects.storage_count;
    nw_torch_storage **sorted = nw_memory_alloc(mem, NW_TAG_INDEX, count, sizeof(nw_torch_storage *));
    if (sorted == NULL)
        return nw_memory_fail(mem, err, count * sizeof(nw_torch_storage *), l->source->path);
    rc = place_storages(l, keys, sorted, err);
    nw_memory_free(mem, NW_TAG_INDEX, sorted, count, sizeof(nw_torch_storage *));
    return rc;
}

nw_code nw_torch_legacy_read(const nw_source *source, uint32_t file, nw_tensor_table *table, nw_name_fn name_fn,
                             void *name_user, nw_error *err)
{
    legacy          l = {.source = source, .objects = {.source = source, .views = true}};
    nw_pickle_value root = {0};
    nw_chunk        chunk;
    nw_code         rc = nw_chunk_open(&chunk, source, NW_SMALL_CHUNK, err);
    if (rc == NW_OK)
        rc = expect(&l, &chunk, NW_TORCH_LEGACY_MAGIC, sizeof NW_TORCH_LEGACY_MAGIC - 1, err);
    if (rc == NW_OK)
        rc = expect(&l, &chunk, PROTOCOL, sizeof PROTOCOL - 1, err);
    nw_chunk_close(&chunk);
    if (rc == NW_OK)
        rc = nw_pickle_open(source, &nw_torch_calls, &l.objects, &l.pickle, err);
    if (rc == NW_OK)
        rc = check_machine(&l, err);
    if (rc == NW_OK)
        rc = read_object(&l, &root, err);
    if (rc == NW_OK)
        rc = nw_torch_tensors(&l.objects, l.pickle, root, file, table, name_fn, name_user, err);
    nw_torch_objects_free(&l.objects);
    nw_pickle_close(l.pickle);
    return rc;
}

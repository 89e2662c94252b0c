/* A pickle of tensors, behind one byte whose lowest bit chooses the older form of persistent ids: what the machine
 * accepts can be walked, and the tensors that are made of it lie within the file. */
#include "fuzz_file.h"
#include "torch_object.h"

#define WALK_MAX 2000u /* values */
#define DEPTH_MAX 6u

/* A value and, to some depth, what it holds. */
static void walk(const nw_pickle *p, nw_pickle_value v, unsigned depth, unsigned *left)
{
    nw_pickle_value key, value;
    uint32_t        at = 0;
    if (*left == 0 || depth == DEPTH_MAX)
        return;
    (*left)--;
    switch (v.kind) {
    case NW_PICKLE_TEXT: NW_CHECK(fuzz_utf8(v.text, strlen(v.text))); break;
    case NW_PICKLE_TUPLE:
        NW_CHECK(v.number >= 0);
        for (int64_t i = 0; i < v.number && *left > 0; i++)
            walk(p, nw_pickle_item(p, v, (size_t)i), depth + 1, left);
        break;
    case NW_PICKLE_LIST:
    case NW_PICKLE_DICT:
        while (*left > 0 && nw_pickle_next(p, v, &at, &key, &value)) {
            walk(p, key, depth + 1, left);
            walk(p, value, depth + 1, left);
        }
        break;
    default: NW_CHECK(v.kind > NW_PICKLE_UNSET && v.kind <= NW_PICKLE_TENSOR); break;
    }
}

static void check_table(const nw_tensor_table *table, size_t size)
{
    for (size_t i = 0; i < table->count; i++) {
        const nw_tensor *t = &table->tensors[i];
        uint64_t         count = 1;
        NW_CHECK(nw_tensor_name_ok(t->name, strlen(t->name)));
        NW_CHECK(t->dim_count <= NW_TENSOR_DIMS_MAX);
        for (uint32_t d = 0; d < t->dim_count; d++)
            NW_CHECK(nw_mul_u64(count, t->dims[d], &count));
        NW_CHECK(!t->known || count * nw_dtype_bytes(t->dtype) == t->bytes);
        NW_CHECK(t->offset <= size && t->bytes <= size - t->offset);
    }
}

/* As a container does it, with all storages at the start of the file. */
static void take_tensors(nw_torch_objects *o, const nw_pickle *p, nw_pickle_value root)
{
    nw_error        err = {0};
    nw_tensor_table table = {.names.mem = o->source->mem};
    for (size_t i = 0; i < o->storage_count; i++) {
        nw_torch_storage *s = &o->storages[i];
        NW_CHECK(s->elt_bytes > 0 && s->numel <= UINT64_MAX / s->elt_bytes && s->bytes == s->numel * s->elt_bytes);
        NW_CHECK(fuzz_utf8(s->key, strlen(s->key)));
        s->offset = 0;
        if (s->bytes > o->source->file->size)
            return;
    }
    nw_code rc = nw_torch_tensors(o, p, root, 0, &table, NULL, NULL, &err);
    if (fuzz_parsed(rc, &err))
        check_table(&table, (size_t)o->source->file->size);
    nw_tensor_table_free(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file = {.fd = -1};
    nw_memory        mem;
    nw_error         err = {0};
    nw_file          opened;
    nw_pickle       *pickle = NULL;
    nw_pickle_value  root = {0};
    uint64_t         end = 0;
    if (file.fd < 0)
        file = fuzz_file_make();
    fuzz_file_set(&file, data, size);
    nw_code rc = nw_file_open(file.path, &opened, &err);
    if (!fuzz_parsed(rc, &err))
        return 0;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_source        source = {.mem = &mem, .io = fuzz_io(), .file = &opened, .path = "input.bin"};
    nw_torch_objects objects = {.source = &source, .views = (data[0] & 1) != 0};
    rc = nw_pickle_open(&source, &nw_torch_calls, &objects, &pickle, &err);
    NW_CHECK(rc == NW_OK);
    rc = nw_pickle_run(pickle, 1, size, &root, &end, &err);
    if (fuzz_parsed(rc, &err)) {
        unsigned left = WALK_MAX;
        NW_CHECK(end > 1 && end <= size);
        walk(pickle, root, 0, &left);
        take_tensors(&objects, pickle, root);
    }
    nw_torch_objects_free(&objects);
    nw_pickle_close(pickle);
    nw_file_close(&opened);
    fuzz_memory_check(&mem, size);
    return 0;
}

#ifdef NW_FUZZ
#include "pickle_mutator.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
    if (size < 2)
        return LLVMFuzzerMutate(data, size, max);
    if (seed % 64 == 0)
        data[0] ^= 1;
    return 1 + pickle_mutate(data + 1, size - 1, max - 1, seed);
}
#endif

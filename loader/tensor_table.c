/* What all formats fill: names, growing arrays, the table of tensors.
 *
 * Everything is from the account, in blocks that never move or arrays that double, so that a hostile file costs what
 * its entries cost and no more.
 */
#include "tensor_table.h"

#include <string.h>

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

nw_code nw_tensor_table_name(nw_tensor_table *table, const char *text, size_t len, nw_name_fn name_fn, void *name_user,
                             const char *path, const char **ret_name, nw_error *err)
{
    if (!nw_tensor_name_ok(text, len)) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': '%.*s' cannot be the name of a tensor", path,
                       (int)nw_min_size(len, 100), text);
    }
    if (table->count == NW_TENSOR_COUNT_MAX)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': more than %zu tensors", path, NW_TENSOR_COUNT_MAX);
    if (name_fn != NULL)
        return name_fn(name_user, text, len, ret_name, err);
    *ret_name = nw_names_add(&table->names, text, len);
    return *ret_name != NULL ? NW_OK : nw_memory_fail(table->names.mem, err, sizeof(nw_names_block), path);
}

nw_code nw_tensor_table_add(nw_tensor_table *table, const nw_tensor *tensor, const char *path, nw_error *err)
{
    nw_memory *mem = table->names.mem;
    nw_tensor *grown = nw_array_grow(mem, table->tensors, table->count, &table->cap, sizeof *grown);
    if (grown == NULL)
        return nw_memory_fail(mem, err, table->cap * 2 * sizeof *grown, path);
    table->tensors = grown;
    table->tensors[table->count++] = *tensor;
    return NW_OK;
}

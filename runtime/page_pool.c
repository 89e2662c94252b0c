#include "page_pool.h"

void nw_page_pool_layout(nw_page_pool *pool, nw_arena *a, const nw_config *c, size_t count, uint32_t page_rows)
{
    size_t floats = nw_kv_page_floats(c, page_rows);
    *pool = (nw_page_pool){.count = count, .free_count = count, .page_rows = page_rows};
    pool->free = nw_carve(a, count, sizeof *pool->free, 64);
    float *pages = floats > 0 ? nw_carve(a, count * floats, sizeof(float), 64) : NULL;
    for (size_t i = 0; i < count && pages != NULL; i++)
        pool->free[i] = pages + (count - 1 - i) * floats; /* taken from the end: the first pages first */
}

size_t nw_page_pool_need(const nw_page_pool *pool, size_t rows)
{
    return (rows + pool->page_rows - 1) / pool->page_rows;
}

bool nw_page_pool_take(nw_page_pool *pool, size_t rows, float **table, nw_kv *kv)
{
    size_t need = nw_page_pool_need(pool, rows);
    if (need > pool->free_count)
        return false;
    for (size_t i = 0; i < need; i++)
        table[i] = pool->free[--pool->free_count];
    *kv = (nw_kv){.pages = table, .page_rows = pool->page_rows, .page_count = (uint32_t)need};
    return true;
}

void nw_page_pool_give(nw_page_pool *pool, nw_kv *kv)
{
    for (uint32_t i = kv->page_count; i > 0; i--)
        pool->free[pool->free_count++] = kv->pages[i - 1];
    NW_CHECK(pool->free_count <= pool->count);
    *kv = (nw_kv){0};
}

#include "page_pool.h"

void nw_page_pool_layout(nw_page_pool *pool, nw_arena *a, const nw_config *c, size_t count, uint32_t page_rows,
                         uint32_t ring)
{
    size_t floats = nw_kv_page_floats(c, page_rows);
    *pool = (nw_page_pool){.count = count, .free_count = count, .page_rows = page_rows, .ring = ring};
    pool->free = nw_carve(a, count, sizeof *pool->free, 64);
    float *pages = floats > 0 ? nw_carve(a, count * floats, sizeof(float), 64) : NULL;
    for (size_t i = 0; i < count && pages != NULL; i++)
        pool->free[i] = pages + (count - 1 - i) * floats; /* taken from the end: the first pages first */
}

size_t nw_page_pool_need(const nw_page_pool *pool, size_t rows)
{
    return (rows + pool->page_rows - 1) / pool->page_rows;
}

/* Pages from `first` on that a request with `need` pages in all holds. */
static size_t held(const nw_page_pool *pool, size_t first, size_t need)
{
    return pool->ring != 0 ? nw_min_size(pool->ring, need - first) : need - first;
}

bool nw_page_pool_take(nw_page_pool *pool, size_t rows, float **table, nw_kv *kv)
{
    size_t need = nw_page_pool_need(pool, rows), count = held(pool, 0, need);
    if (count > pool->free_count)
        return false;
    for (size_t i = 0; i < need; i++)
        table[i] = i < count ? pool->free[--pool->free_count] : NULL;
    *kv = (nw_kv){.pages = table, .page_rows = pool->page_rows, .page_count = (uint32_t)need};
    return true;
}

void nw_page_pool_turn(nw_page_pool *pool, nw_kv *kv)
{
    size_t first = kv->streamed / kv->page_rows, next = first + pool->ring;
    NW_CHECK(pool->ring != 0 && first + 1 < kv->page_count);
    if (next < kv->page_count)
        kv->pages[next] = kv->pages[first];
    else
        pool->free[pool->free_count++] = kv->pages[first];
    kv->pages[first] = NULL;
    kv->streamed += kv->page_rows;
}

void nw_page_pool_give(nw_page_pool *pool, nw_kv *kv)
{
    size_t first = kv->page_count > 0 ? kv->streamed / kv->page_rows : 0;
    for (size_t i = first + held(pool, first, kv->page_count); i > first; i--)
        pool->free[pool->free_count++] = kv->pages[i - 1];
    NW_CHECK(pool->free_count <= pool->count);
    *kv = (nw_kv){0};
}

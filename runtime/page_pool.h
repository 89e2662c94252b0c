/* Pages of K and V, lent to requests and given back. Which pages a request gets is of no effect on its output.
 *
 * Where answers may be longer than memory, a request holds its last pages only (`ring` of them): what is before them is
 * streamed.
 */
#ifndef NW_RUNTIME_PAGE_POOL_H
#define NW_RUNTIME_PAGE_POOL_H

#include "model/forward.h"

typedef struct {
    float  **free; /* [count] the first free_count are to be had */
    size_t   free_count, count;
    uint32_t page_rows;
    uint32_t ring; /* pages that a request holds at most; 0: all of its rows' */
} nw_page_pool;

/* Carves `count` pages of page_rows rows and the list of them; all are free. With no base: measures. */
void nw_page_pool_layout(nw_page_pool *pool, nw_arena *a, const nw_config *c, size_t count, uint32_t page_rows,
                         uint32_t ring);

/* Pages that `rows` rows take. */
size_t nw_page_pool_need(const nw_page_pool *pool, size_t rows);

/* Lends pages for `rows` rows, or for the first of them: kv gets them in `table`, which has room for nw_page_pool_need.
 * False, with nothing lent: there are too few. */
bool nw_page_pool_take(nw_page_pool *pool, size_t rows, float **table, nw_kv *kv);

/* The first page in memory is streamed from now on, and its memory that of the page behind the last. */
void nw_page_pool_turn(nw_page_pool *pool, nw_kv *kv);
void nw_page_pool_give(nw_page_pool *pool, nw_kv *kv); /* takes an empty one */

#endif

/* Products of a pass's columns with matrices, tile by tile. Internal to the forward pass. */
#ifndef NW_MODEL_PRODUCTS_H
#define NW_MODEL_PRODUCTS_H

#include "model/forward.h"

typedef enum {
    NW_JOIN_STORE,    /* y = product */
    NW_JOIN_ADD,      /* y += product: the residual stream */
    NW_JOIN_ACTIVATE, /* y = act(product): wi */
    NW_JOIN_MULTIPLY, /* y *= product: wi_1 of a gated model */
} nw_join;

/* Where the rows of K or V go: behind page tables. */
typedef struct {
    const nw_column *columns; /* one row for each; NULL: of encoder states, for `crosses` one behind the other */
    nw_cross *const *crosses;
    uint32_t         block;
    bool             values; /* V, not K */
} nw_kv_target;

typedef struct {
    nw_forward         *f;
    const float        *x; /* [columns, k] */
    size_t              columns, k;
    float              *y; /* [columns, ldy]; unused when kv is set */
    size_t              ldy;
    const nw_kv_target *kv;
    nw_join             join;
} nw_product;

nw_product nw_product_make(nw_forward *f, const float *x, size_t columns, size_t k, float *y, size_t ldy, nw_join how);

/* Products of tensors of one shape with the same columns, in the order in which the schedule has their tiles. */
typedef struct {
    const nw_product *products[3];
    uint32_t          tensors[3];
    size_t            count;
    /* The first tile of each, then the second of each, and so on; else all tiles of one, then all of the next. What
     * is joined to the same output must be in turn: then one worker takes the strips of both, one after the other. */
    bool in_turn;
} nw_product_group;

/* Walks over the tiles of a group's tensors, or of one tensor. Errors: what weights.acquire and release gave. */
NW_MUST_USE nw_code nw_multiply_group(const nw_product_group *g, nw_error *err);
NW_MUST_USE nw_code nw_multiply(const nw_product *p, uint32_t tensor, nw_error *err);

/* A row of K (or V) of a block: [inner], in its page. */
float *nw_kv_row(const nw_config *c, const nw_kv *kv, uint32_t block, bool values, size_t row);

/* Carves the workers' buffers; part of nw_forward_layout. */
void nw_products_layout(nw_forward *f, nw_arena *a);

#endif

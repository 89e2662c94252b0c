/* The forward pass, written like the paper: norm, q k v, attention, o, add.
 *
 * It asks for weights tile by tile, in the order of the schedule, through nw_weights, and hands rows to nw_team. The
 * runtime implements both. Nothing here allocates, reads or prints: all buffers are carved from the caller's arena.
 */
#ifndef NW_MODEL_FORWARD_H
#define NW_MODEL_FORWARD_H

#include "base/arena.h"
#include "model/tensors.h"

/* What a strip's rows are multiplied from. */
typedef enum {
    NW_ROWS_PLAIN, /* [rows, cols] of dtype, row-major, at any address */
    NW_ROWS_SLIM,  /* a slim strip of bf16 (base/slim.h), checked */
    NW_ROWS_Q8,    /* blocks (base/quant.h) */
    NW_ROWS_Q4
} nw_rows_form;

typedef struct {
    nw_rows_form form;
    nw_dtype     dtype; /* of PLAIN */
    const void  *data;
} nw_rows;

/* What a job is made of, for whoever measures. */
typedef enum { NW_WORK_PRODUCT, NW_WORK_ATTENTION, NW_WORK_NORM } nw_work;

/* Workers. run calls fn(ctx, i, worker) once for every i < n, worker < thread_count, and returns when all are done. */
typedef struct {
    void  *user;
    size_t thread_count;
    void (*run)(void *user, nw_work work, void (*fn)(void *ctx, size_t i, size_t worker), void *ctx, size_t n);
} nw_team;

/* A tile in use: `rows` whole rows of a tensor, from row `first`. */
typedef struct {
    uint32_t    tensor, tile;
    uint64_t    first, rows, cols;
    uint64_t    strip_rows, strips; /* rows of a strip but the last; strips in this tile */
    const void *data;               /* as it was read, at any address; its form is the matter of nw_weights.rows */
    bool        fresh;              /* nothing has looked at it since it was read: nw_weights.rows checks it */
    /* If its strips lie in memory ready to be multiplied: the rows of the first, and bytes from each to the next. Data
     * is NULL otherwise, and nw_weights.rows has to be asked. */
    nw_rows ready;
    size_t  ready_stride;
} nw_tile;

/* K and V of one stack of attention: numbered rows, one for each position of each sequence, in pages behind a table.
 * Rows are written once and never moved. A page has, for each decoder block, K [page_rows, inner] and then V
 * [page_rows, inner], f32. What does not fit in memory comes in tiles (nw_weights.kv): the first rows of all. */
#define NW_PAGE_ROWS 64
typedef struct {
    float  **pages;      /* page table: the page of rows p * page_rows ..; borrowed */
    uint32_t page_rows;  /* rows in a page: 64, or fewer where a whole sequence is shorter */
    uint32_t page_count; /* entries of the table; those of streamed rows are not looked at */
    uint32_t streamed;   /* rows that come in tiles: whole pages, or all that there are */
    uint32_t place;      /* of the caller: where those are */
} nw_kv;

/* f32 elements of one page. */
static inline size_t nw_kv_page_floats(const nw_config *c, uint32_t page_rows)
{
    return (size_t)c->decoder_blocks * 2 * page_rows * nw_config_inner(c);
}

/* K [page_rows, inner] of a block in a page; or V. */
static inline float *nw_kv_page_part(const nw_config *c, const nw_kv *kv, size_t page, uint32_t block, bool values)
{
    NW_ASSERT(page < kv->page_count && kv->pages[page] != NULL);
    return kv->pages[page] + ((size_t)block * 2 + (values ? 1 : 0)) * kv->page_rows * nw_config_inner(c);
}

/* The encoder's K and V of one input: row i is position i. They are all in memory, or all streamed. */
typedef struct {
    nw_kv    kv;
    uint32_t length; /* positions written */
} nw_cross;

/* One column of a decode pass: a token, and the past that it sees. The sequences of one request share self, and through
 * paths also what they have in common: the row of position p in branch b is p * branches + b. So choosing among beams
 * changes paths only. */
typedef struct {
    uint32_t        token;    /* the token to feed: the start token, then what was chosen or is guessed */
    uint32_t        position; /* of the token; the past are those below */
    const nw_kv    *self;
    uint32_t        branches, branch; /* where the token's own row goes */
    const uint16_t *path;             /* [position] the branch of each row of the past; NULL: its own branch */
    const nw_cross *cross;
} nw_column;

/* Where weights come from. All of it is called by the pass's thread; acquire and release strictly in schedule order,
 * one tile in use at a time, and those that `more` adds. */
typedef struct {
    void *user;
    /* Waits until the tile is there. Errors: NW_E_IO, NW_E_FORMAT, NW_E_CANCELLED. */
    nw_code (*acquire)(void *user, uint32_t tensor, uint32_t tile, nw_tile *ret, nw_error *err);
    /* Takes tiles into use that follow the one in use in the schedule and are ready: their number, at most
     * `most`, which together with that one makes a multiple of `multiple`; or 0. One job for many tiles spares the
     * workers most of their waiting for each other. */
    size_t (*more)(void *user, size_t most, size_t multiple, nw_tile *ret);
    /* The rows of strip `strip` of a tile in use, until `worker` asks for others or the tile is released. Called by
     * all workers at once, each strip once. False: it cannot be had, and `release` will say why. */
    bool (*rows)(void *user, const nw_tile *tile, size_t strip, size_t worker, nw_rows *ret);
    /* Gives back all [count] tiles in use; the data may be overwritten at once. Errors: NW_E_CANCELLED; NW_E_IO, if one
     * of their strips was damaged: what was made of them is garbage then. */
    nw_code (*release)(void *user, const nw_tile *tiles, size_t count, nw_error *err);
    /* A resident vector or table as f32, [rows, cols] of its need. */
    const float *(*vector)(void *user, uint32_t tensor);
    /* Embedding rows as f32: out [count, d_model]. Errors as acquire. */
    nw_code (*embed)(void *user, const uint32_t *ids, size_t count, float *out, nw_error *err);
    /* Where K and V are streamed. kv: waits for the next tile of K, then of V: *ret_rows [*ret_count, inner] are rows
     * `first` and following of a block. kv_release gives it back. In a block's self-attention, then in its
     * cross-attention, each nw_kv that the pass's columns see has its tiles of K in turn, then those of V, in the order
     * of columns. kv_store, with maxima.stream_cross, takes K or V [length, inner] of a block of an input, before the
     * states of the next block are multiplied. Errors as acquire. */
    nw_code (*kv)(void *user, const nw_kv *kv, uint32_t block, bool values, uint32_t first, const float **ret_rows,
                  size_t *ret_count, nw_error *err);
    void (*kv_release)(void *user);
    nw_code (*kv_store)(void *user, const nw_cross *cross, uint32_t block, bool values, const float *rows,
                        nw_error *err);
} nw_weights;

/* The most that one session will ask for. */
typedef struct {
    size_t input_tokens;  /* of one prompt */
    size_t encode_tokens; /* of all prompts of an encoder pass, pads included; at least input_tokens */
    size_t output_tokens; /* positions of the decoder's K and V */
    size_t columns;       /* of a decode pass; 0: nothing is decoded, and no buffer of decoding is carved */
    bool   stream_cross;  /* the encoder's K and V are not in memory */
    bool   stream_self;   /* nor need the decoder's own be, but for their last pages */
    size_t threads;
} nw_maxima;

typedef struct nw_forward nw_forward; /* its parts are carved; see nw_forward_layout */

struct nw_forward {
    const nw_config  *config;
    const nw_tensors *tensors;
    const nw_kernels *kernels;
    nw_weights        weights;
    nw_team           team;
    nw_maxima         maxima;
    /* Buffers of a decode pass; always resident. T = columns. */
    struct {
        float *x, *h;  /* [T, d_model] residual stream; normed */
        float *q, *a;  /* [T, inner] queries; what attention gives */
        float *ff;     /* [T, d_ff] */
        float *scores; /* [threads, the longest K]; for what is streamed also [T, heads, the longest that may be]: */
        float *streamed;
    } decode;
    /* Buffers of an encode pass, over the encoder scratch (nw_forward_encode_layout); T = encode_tokens. */
    struct {
        float *x, *h, *q, *k, *v, *a;
        float *ff;     /* where q, k, v and a were */
        float *scores; /* [threads] scores of 16 queries, and what else encoder attention needs */
    } encode;
    /* [threads, out_floats] a strip's products [some columns, strip rows], before they are joined to the output. */
    float    *out;
    size_t    out_floats;
    float    *room; /* [threads, room_floats] for nw_matmul_room; in encoder attention, for K and V of a head */
    size_t    room_floats;
    uint32_t *bucket_encoder, *bucket_decoder; /* [bucket_distances] bucket of a distance */
    size_t    bucket_distances;                /* distances that have an entry; beyond, the last one holds */
};

/* Carves what is always resident. Also used for measuring: the arena may have no base. f is filled; config, tensors,
 * kernels and maxima must be set before. */
void nw_forward_layout(nw_forward *f, nw_arena *a);

/* Carves what only an encode pass needs: the caller may overlay it with other things between passes. */
void nw_forward_encode_layout(nw_forward *f, nw_arena *a);

/* Fills the bucket tables, after nw_forward_layout with a base. */
void nw_forward_prepare(nw_forward *f);

/* One input of an encoder pass: `count` tokens, and `pads` times the pad token behind them. */
typedef struct {
    const uint32_t *ids;   /* [count], each < vocab_size */
    size_t          count; /* at least 1 */
    size_t          pads;  /* count + pads <= maxima.input_tokens */
    uint32_t        pad_id;
    bool            mask; /* pads are not keys: they see the tokens, and nothing sees them */
} nw_encode_input;

/* Encoder states of `inputs` [n], after the final norm: *ret_states [rows, d_model], inside the encode buffers; the
 * rows are count + pads of each input, one input behind the other, in all at most maxima.encode_tokens. Inputs do not
 * see each other: the states of each have the bits that they have alone. Walks NW_PASS_ENCODE once. With `mask` the
 * tokens' states have the same bits as without pads. Without, all have those of an input that has the pads among its
 * ids.
 * Errors  what weights.acquire gave; the buffers then hold nothing of use. */
NW_MUST_USE nw_code nw_forward_encode(nw_forward *f, const nw_encode_input *inputs, size_t n, float **ret_states,
                                      nw_error *err);

/* Cross-attention K and V of every decoder block from states, which are the rows of the `crosses` [n] one behind the
 * other: crosses[i].length positions each, for which its pages have room. Walks NW_PASS_CROSS once. */
NW_MUST_USE nw_code nw_forward_cross(nw_forward *f, const float *states, nw_cross *const *crosses, size_t n,
                                     nw_error *err);

/* Logits [n, vocab_size] of n columns (1 <= n <= maxima.columns), each of which leaves its row in its self K and V.
 * A column sees the rows of its past, which earlier passes have made or columns before it in this one: a sequence may
 * have several columns, at ascending positions. Otherwise columns do not see each other: their logits have the same
 * bits whatever runs beside them. Walks NW_PASS_DECODE once. */
NW_MUST_USE nw_code nw_forward_decode(nw_forward *f, const nw_column *columns, size_t n, float *logits, nw_error *err);

/* Natural log of the softmax of logits [n] at `index`: log p(index). */
double nw_log_probability(const nw_kernels *k, const float *logits, size_t n, size_t index);

/* The `count` (1 to n) most probable of logits [n]: ids and logprobs [count], most probable first, of equal ones the
 * lower index first, as argmax chooses. NaN comes last. */
void nw_log_probabilities_top(const nw_kernels *k, const float *logits, size_t n, size_t count, uint32_t *ids,
                              double *logprobs);

#endif

/* Attention, head by head: scores of all keys, softmax, values in the order of positions. Each head of a column, or of
 * a block of queries, is computed by one worker, so threads change no bit. Internal to the forward pass.
 */
#ifndef NW_MODEL_ATTENTION_H
#define NW_MODEL_ATTENTION_H

#include "model/forward.h"

static inline size_t nw_input_rows(const nw_encode_input *in)
{
    return in->count + in->pads;
}

/* Encoder self-attention of `inputs` [n]: from encode.q, k and v to encode.a. bias: [buckets, heads]. */
void nw_attend_encode(nw_forward *f, const nw_encode_input *inputs, size_t n, const float *bias);

/* Attention of `columns` [n] of a decode pass: from decode.q to decode.a, over what each sees of its own K and V, with
 * bias [buckets, heads]; NULL: over those of the encoder, where every position is seen and there is no bias. The same
 * bits whether K and V are in memory or come in tiles. Errors: what weights.kv gave. */
NW_MUST_USE nw_code nw_attend_decode(nw_forward *f, const nw_column *columns, size_t n, uint32_t block,
                                     const float *bias, nw_error *err);

/* f32 elements that one worker needs beside the buffers of an encode pass. */
size_t nw_attention_floats(const nw_forward *f);

/* Scores of one head of one column that are kept while K and V come in tiles; 0: they never do. */
size_t nw_attention_streamed(const nw_maxima *m);

#endif

/* Encoder states, from the session to a file of tensors or to stdout. */
#ifndef NW_TOOLS_EMBEDDING_H
#define NW_TOOLS_EMBEDDING_H

#include <stdbool.h>

#include "buffer.h"
#include "narrows.h"
#include "prompts.h"
#include "tensor_file.h"

/* What is written of each text. */
typedef struct {
    nw_session  *session;
    tensor_file *file; /* NULL: JSON on stdout, one object a text; then `pool` must be set */
    size_t       d_model;
    uint32_t     pad_id, eos_id; /* a text without ids is one end token */
    size_t       pad_to;         /* 0: texts have their own length */
    bool         attend_pads, zero_pads;
    bool         pool, normalize; /* one vector: the mean over the tokens; of length 1 */
    bool         lines;           /* several texts, maybe; not just one */
    bool         stats;           /* in JSON */
    size_t       encode_tokens;   /* that one pass takes, of one or several texts */

    double *sums; /* [d_model], in the room */
    float  *pooled;
} embedding_style;

/* Takes the room for a pooled vector, at most `limit` bytes. False if that is more than the limit. */
bool embedding_room(embedding_style *style, buffer *room, uint64_t limit);

/* Tokens that the session must take at once for texts of up to `longest` tokens, none longer than pad_to. */
size_t embedding_tokens_max(const embedding_style *style, size_t longest);

/* Tokens that are computed for all texts. */
size_t embedding_rows(const embedding_style *style, const prompts *texts);

/* Tensors that embedding_write_all will put into the file. */
size_t embedding_tensor_count(const embedding_style *style, size_t text_count);

/* Encodes all texts and writes what is asked for; the file is then ready to be finished. Returns -1, or the exit status
 * after printing what is wrong. A failure to write stdout ends it early with -1: print_finish knows. */
int embedding_write_all(embedding_style *style, const prompts *texts);

#endif

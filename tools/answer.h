/* Answers: from a session's tokens to what stands on stdout. */
#ifndef NW_TOOLS_ANSWER_H
#define NW_TOOLS_ANSWER_H

#include <stdbool.h>

#include "buffer.h"
#include "narrows.h"
#include "progress.h"
#include "tensor_file.h"

/* How answers are written. */
typedef struct {
    nw_model   *model;
    nw_session *session;
    progress   *progress;
    bool        json, logprobs;
    bool        lines;    /* one line each: a newline in an answer is written as \n */
    bool        has_text; /* the model has a tokenizer; otherwise ids are written */
    bool        terminal; /* stdout is one: progress hides while an answer stands there */
    size_t      max_new_tokens;
    size_t      top_count; /* with json: candidates shown with each token */
    /* Where the scores of each sequence go, as "scores.0" and so on; NULL: nowhere. */
    tensor_file  *scores;
    bool          scores_processed; /* what tokens were chosen from, rather than the model's raw logits */
    size_t        sequences;        /* written so far */
    uint32_t      vocab_size;
    uint32_t     *ids; /* room for max_new_tokens with json */
    double       *logprob_list;
    nw_candidate *candidates; /* [max_new_tokens, top_count] */
} answer_style;

/* Takes the room for JSON answers, at most `limit` bytes, resident from now on: before the session opens, so that it is
 * counted. False if that is more than the limit. */
bool answer_room(answer_style *style, buffer *room, uint64_t limit);

/* Generates the answer to one prompt and writes it. No ids (an empty line): an empty answer. Returns -1, or the exit
 * status after printing what is wrong. A failure to write stdout ends it early with -1: print_finish knows. */
int answer_prompt(answer_style *style, const uint32_t *ids, size_t count);

#endif

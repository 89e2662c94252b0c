/* Answers: kept as ids until their turn comes, and how they are written to stdout. */
#ifndef NW_TOOLS_ANSWER_H
#define NW_TOOLS_ANSWER_H

#include <stdbool.h>

#include "buffer.h"
#include "narrows.h"
#include "progress.h"
#include "prompts.h"
#include "targets.h"
#include "tensor_file.h"

/* What is asked for, and how answers are written. */
typedef struct {
    nw_model   *model;
    nw_session *session;
    progress   *progress;
    /* In force; end tokens and max_new_tokens filled in. */
    const nw_generation_settings *settings;
    uint64_t                      seed;
    bool                          lookup_off;
    const char                   *draft; /* the model that guesses, as named; NULL: none */
    const targets                *targets; /* answers to be judged; NULL: none, they are generated */
    bool                          json, logprobs;
    bool                          lines;     /* one line each: a newline in an answer is written as \n */
    bool                          has_text;  /* the model has a tokenizer; otherwise ids are written */
    bool                          stream;    /* text is written as it comes: one sequence at a time, no JSON */
    bool                          terminal;  /* stdout is one: progress hides while an answer stands there */
    size_t                        sequences; /* of one answer */
    size_t                        chunk;     /* targets that one request judges */
    size_t                        top_count; /* with json: candidates shown with each token */
    /* Where the scores of each sequence go, as "scores.0" and so on; NULL: nowhere. */
    tensor_file *scores;
    bool         scores_processed; /* what tokens were chosen from, rather than the model's raw logits */
    uint32_t     vocab_size;
} answer_style;

/* One sequence; of a target, only what depends on the prompt. */
typedef struct {
    uint32_t     *ids;        /* NULL: not kept */
    double       *logprobs;   /* NULL: not asked for */
    nw_candidate *candidates; /* [tokens, top_count] */
    size_t        count;
    double        score; /* of a beam; of a target: its log-probability, never NaN; otherwise NaN */
    nw_finish     finish;
} answer_sequence;

/* A target and what it has come to, for sorting. */
typedef struct {
    double score;
    size_t index;
} answer_rank;

/* The answer to one prompt, or the place for one. */
typedef struct {
    size_t           prompt, prompt_tokens;
    prompt_fault     fault;
    size_t           left;  /* sequences still to come */
    bool             begun; /* something of it is on stdout */
    answer_sequence *sequences;
    answer_rank     *ranks; /* [sequences] of targets */
} answer;

/* Places for answers, which later prompts' wait in until the earlier ones' are written. */
typedef struct {
    answer *list; /* [count] */
    size_t  count;
} answers;

/* Makes room for up to `count` answers, and at least one, in at most `limit` bytes unless one alone takes more; all
 * resident from now on: before the session opens, so that it is counted. False if one takes more than `most` bytes. */
bool answers_open(answers *a, const answer_style *style, size_t count, size_t limit, size_t most, buffer *room);

/* Writes one token of an answer that streams. False: stdout cannot be written. */
bool answer_stream(const answer_style *style, answer *a, const nw_token *token);

/* Writes a complete answer, or what is missing of one that has streamed, and flushes it. A failure to write stdout is
 * known to print_finish. */
void answer_write(const answer_style *style, answer *a);

/* Ends the line of an answer that was broken off, if it had begun. */
void answer_break(const answer_style *style, answer *a);

#endif

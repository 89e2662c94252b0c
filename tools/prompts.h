/* Prompts: read from an argument, a file or standard input, checked, and turned into ids.
 *
 * Only ids are kept. Text is read one prompt at a time, so that a large file of lines costs what its ids cost; both
 * have limits that follow from the budget.
 */
#ifndef NW_TOOLS_PROMPTS_H
#define NW_TOOLS_PROMPTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "buffer.h"
#include "narrows.h"

/* Where text comes from: `text`, else `file` ("-": standard input), else standard input. */
typedef struct {
    const char *text, *file;
    bool        lines; /* each line is a prompt of its own */

    /* Reading state; prompts_open sets it. */
    const char *name; /* for messages */
    FILE       *stream;
    const char *rest;
    uint64_t    line; /* of the prompt at hand, from 1 */
    bool        ended;
} prompt_source;

/* Why a prompt cannot be answered though others can. */
typedef enum { PROMPT_FINE, PROMPT_NOT_UTF8, PROMPT_NOT_IDS, PROMPT_TOO_LONG } prompt_fault;

/* Opens the source; prints what is wrong. Returns -1 to go on, or the exit status. */
int  prompts_open(prompt_source *source);
void prompts_close(prompt_source *source);

/* Reads the next prompt, without its newline, into `text`. Checks that it is UTF-8 and at most `limit` bytes.
 * Returns -1, or the exit status after printing what is wrong; *ret_more is false when there is none left.
 * ret_fault  may be NULL; what is wrong with this prompt alone: the next one can be read. Otherwise PROMPT_FINE. */
int prompts_next(prompt_source *source, buffer *text, uint64_t limit, bool *ret_more, prompt_fault *ret_fault);

/* The ids of all prompts, one behind the other. */
typedef struct {
    buffer ids;     /* uint32_t */
    buffer ends;    /* size_t: ids up to the end of each prompt */
    buffer faults;  /* unsigned char: prompt_fault of each; what has one has no ids, or they are not used */
    size_t count;   /* prompts; an empty line is one of no ids */
    size_t longest; /* ids */
    int    status;  /* exit status of the last fault; -1: there is none */
} prompts;

typedef struct {
    bool     as_ids;           /* the text is numbers: ids as they are */
    bool     empty_allowed;    /* an empty prompt has no ids; otherwise it is an error */
    uint64_t budget_bytes;     /* 0: none */
    size_t   max_input_tokens; /* longer ones are cut, keeping the end token; 0: never */
    uint32_t vocab_size;
    bool     faults_allowed; /* of several prompts: one that is wrong is marked, and the others go on */
    /* What is put before each text that is not empty; NULL: nothing. */
    const char *prefix;
    size_t      prefix_len;
} prompt_rules;

/* Encodes one text and appends it as a prompt. Returns -1, or the exit status after printing what is wrong.
 * source   may be NULL; names the line in messages. */
int prompts_add(prompts *p, nw_model *model, const prompt_rules *rules, const prompt_source *source, const char *text,
                size_t len);

/* Reads and encodes all of a source. Returns as prompts_add; faults that the rules allow are printed, and none. */
int prompts_read(prompts *p, nw_model *model, const prompt_rules *rules, prompt_source *source);

/* The same for the next prompt of an open source; *ret_more: there was one. text: room to read it into. */
int prompts_read_one(prompts *p, nw_model *model, const prompt_rules *rules, prompt_source *source, buffer *text,
                     bool *ret_more);

/* The ids of prompt `index` (below count); none if it has a fault. */
const uint32_t *prompts_ids(const prompts *p, size_t index, size_t *ret_count);
prompt_fault    prompts_fault(const prompts *p, size_t index);

/* Marks prompts of more than `most` ids as too long, each with its line. */
void prompts_drop_longer(prompts *p, const prompt_source *source, size_t most);

void prompts_clear(prompts *p); /* keeps the room */
void prompts_free(prompts *p);

/* Parses "13 959 1" (separated by blanks or commas), each below vocab_size, into uint32_t behind ids->used.
 * where   said in front of messages: "line 3: " or "". Returns as prompts_add. */
int ids_parse(buffer *ids, const char *text, size_t len, uint32_t vocab_size, size_t limit, const char *where);


/* The most bytes of text of one prompt under a budget. Tokenising takes a few dozen times its text. */
uint64_t prompts_text_limit(uint64_t budget_bytes);

#endif

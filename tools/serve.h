/* Prompts through a session, as many at a time as it takes; answers in their order. */
#ifndef NW_TOOLS_SERVE_H
#define NW_TOOLS_SERVE_H

#include "answer.h"

enum { SERVE_CHUNK_MAX = 64 }; /* targets of one request */

/* Answers all prompts and writes the answers, each as soon as all before it are written. A prompt without ids gets an
 * empty answer. Returns -1, or the exit status after printing what is wrong; faults of single prompts are the caller's.
 * A failure to write stdout ends it early with -1: print_finish knows.
 * room  taken by serve_open. */
typedef struct {
    answer_style *style;
    answers       answers;
    void         *parts; /* [answers, requests for one] */
    size_t        part_count;
    int           status;
    bool          failed; /* stdout cannot be written */
} server;

/* Makes room, before the session opens (answers_open). */
bool serve_open(server *s, answer_style *style, size_t count, size_t limit, size_t most, buffer room[2]);

int serve_all(server *s, const prompts *p);

#endif

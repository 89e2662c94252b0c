/* What a run says of itself while it works: on a terminal one line that is redrawn, elsewhere a plain line each 30 s.
 */
#ifndef NW_TOOLS_PROGRESS_H
#define NW_TOOLS_PROGRESS_H

#include <stdbool.h>

#include "narrows.h"

typedef struct {
    bool     quiet;
    bool     texts;         /* counts texts, where a run counts tokens; set after progress_start */
    bool     hidden;        /* an answer is being written to the terminal: no line may come between */
    double   drawn_seconds; /* when the last line came; 0: none yet */
    double   rate_seconds;  /* start of the stretch that the rate is taken over */
    uint64_t rate_bytes;
    double   rate; /* bytes a second of the last whole stretch */
    /* Of many prompts, how many are done; 0 of them: one is not counted. Set after progress_start. */
    size_t lines, lines_done;
    double start_seconds;
} progress;

/* Before work starts, and again after a pause. */
void progress_start(progress *p, bool quiet, const nw_session *session);

/* For nw_session_on_progress; `user` is a progress. */
void progress_update(void *user, const nw_stats *stats);

/* One line that sums up a run, or what was encoded. */
void progress_summary(const nw_stats *stats);
void progress_summary_texts(const nw_stats *stats);

#endif

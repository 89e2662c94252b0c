/* Given answers, judged: --score writes one number a prompt, --choices a ranking. */
#ifndef NW_TOOLS_RANKING_H
#define NW_TOOLS_RANKING_H

#include "answer.h"

/* Text: of --score the log-probability; of --choices, best first, the answer, its log-probability, and the mean over
 * its tokens, separated by tabs; each on a line of its own, or with --lines one after the other. */
void ranking_write(const answer_style *style, answer *a);

/* "choices": [...], best first. Returns false when stdout cannot be written. */
bool ranking_write_json(const answer_style *style, answer *a);

#endif

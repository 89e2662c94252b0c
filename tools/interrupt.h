/* ^C, SIGTERM and SIGHUP. The first one asks what is being done to stop, a second one kills; where there is nothing to
 * stop and nothing to clean up, the first one ends the program at once with status 130. */
#ifndef NW_TOOLS_INTERRUPT_H
#define NW_TOOLS_INTERRUPT_H

#include <stdbool.h>

#include "narrows.h"

void interrupt_setup(void);

/* From now on a signal is only remembered: something unfinished is on the disk, which its maker must remove. Whoever
 * calls this looks at interrupted(). */
void interrupt_hold(void);

/* The session that a signal stops (at once, if one has come); NULL: none. */
void interrupt_watch(nw_session *session);

bool interrupted(void);

#endif

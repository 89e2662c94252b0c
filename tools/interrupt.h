/* ^C and SIGTERM. The first asks the session to stop, a second one kills; where there is nothing to stop, the first one
 * ends the program at once with status 130. */
#ifndef NW_TOOLS_INTERRUPT_H
#define NW_TOOLS_INTERRUPT_H

#include <stdbool.h>

#include "narrows.h"

void interrupt_setup(void);

/* The session that a signal stops; NULL: the program simply ends. */
void interrupt_watch(nw_session *session);

bool interrupted(void);

#endif

/* The timeline of a session that traces, as a file for Perfetto or chrome://tracing: a JSON array of complete events,
 * a track for each thread and for each of the reads in flight at once. */
#ifndef NW_TOOLS_TIMELINE_H
#define NW_TOOLS_TIMELINE_H

#include <stdio.h>

#include "narrows.h"

/* Opens the file for writing, so that a mistake in its name shows before the work; NULL: it was said. */
FILE *timeline_open(const char *path);

/* Writes all events and closes the file (NULL: nothing is done). Says how many there were no room for. Returns -1 to go
 * on, or the exit status. */
int timeline_write(FILE *file, const char *path, const nw_session *session);

#endif

/* Remarks on standard error about what a run reads, each at most once. */
#ifndef NW_TOOLS_ADVICE_H
#define NW_TOOLS_ADVICE_H

#include "narrows.h"

/* Says of a lossy pack that it is one, and of which types its weights are. */
void note_lossy(const nw_model *model);

/* If tokens will be read from the disk, and from no pack: which command makes how much less of it.
 * name     the model as the user called it.
 * session  the options of the session that will be opened. */
void advise_pack(nw_model *model, const char *name, const nw_session_options *session);

#endif

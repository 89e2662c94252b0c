/* Which pins of a pack stay packed, by what a session measures: the rate of its disk while its first prompt is encoded,
 * and that of its workers. The pins are placed anew before any is filled (pin_plan.h); the arena stays as it is.
 *
 * An encoder pass reads as much as some decode passes: too much for a disk's bursts to mislead. If it waited for the
 * disk for less than half of its time (but for the cores, or for memory of pins), the disk is faster than it showed:
 * how fast, some tiles of the decoder tell that are read for nothing else (nw_stats.probe_bytes; 67 MB of bf16, 20 to
 * 50 ms). Nothing is measured, and pins are slim, if that pass reads little, and in a session that only encodes: its
 * first pass fills them. Nor is it if the disk's rate was given: then the plan has made the choice. */
#ifndef NW_RUNTIME_PIN_CHOICE_H
#define NW_RUNTIME_PIN_CHOICE_H

#include "model_state.h"

typedef struct {
    bool     made;    /* or not to be made any more */
    uint64_t bytes;   /* read when the encoder pass began */
    double   seconds; /* when it began */
    double   waited;  /* seconds, for the disk, until then */
} nw_pin_choice;

/* Before each pass of a session: measures from the last encoder pass before the first decode pass on, and makes the
 * choice behind it, before cross-attention. A pass that fills pins ends it. */
void nw_pin_choice_begin(nw_session *s, nw_pass pass);

#endif

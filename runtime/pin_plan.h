/* Which tiles stay, which of a pack's stay packed, and what passes therefore read: a part of making a plan, and what a
 * session does once more when it has measured its disk (pin_choice.h).
 *
 * Pins are spread evenly over the schedule, so that reading and computing overlap all along: between two streamed tiles
 * there is always about the same amount of resident work. And they are nested: more budget only adds pins.
 *
 * A pin that stays packed holds a twentieth more of a model than a slim one, and has to be restored in each pass: it
 * spares the disk and costs the cores. The best mix is where a pass takes both as long.
 */
#ifndef NW_RUNTIME_PIN_PLAN_H
#define NW_RUNTIME_PIN_PLAN_H

#include "plan.h"

/* A pass must be shorter by this for pins to stay packed: less may come by chance. */
#define NW_PINS_WORTH_IT 0.98

/* What decides about it. */
typedef struct {
    double disk;    /* bytes a second */
    double restore; /* bytes of plain weights that a core restores from their packed form, a second */
} nw_pin_rates;

/* Bytes that a tile is read as, from files that may be aligned to nothing. */
uint64_t nw_counted_bytes(const nw_model *m, nw_step step);

/* Bytes of the pins of all tiles, if none stays packed that need not: of the schedule, and of the embedding's. */
uint64_t nw_pins_bytes(const nw_model *m, const nw_shape *s);
uint64_t nw_embed_pins_bytes(const nw_model *m, const nw_shape *s);

/* Whether there is anything to choose: some tile is packed, and its pin need not be. Pins of f32 and f16 always are. */
bool nw_pins_may_mix(const nw_model *m, const nw_shape *s);

/* Places pins in b->pin_room bytes of the region, by b->shape.pinning; and counts what passes then read: plan.pinned_*,
 * embedding_resident and of plan.read all from first_pass on. */
void nw_pins_place(const nw_model *m, nw_blueprint *b);

/* Bytes of a later pass, in the mean. */
uint64_t nw_pass_bytes(const nw_plan *p);

/* Places the pins anew, with the mix of slim and packed ones whose passes are the shortest, if some may stay packed and
 * something has to be read. Returns the seconds of such a pass, without what all mixes have in common. */
double nw_pins_mix(const nw_model *m, const nw_pin_rates *rates, nw_blueprint *b);

#endif

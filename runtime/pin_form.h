/* In which form a tile stays. As it is stored, it is read straight into its pin. Slim, which holds 1.4 times as much of
 * a bf16 model and is multiplied faster than plain, or plain, for what a pack has packed: then the tile is read into a
 * slot of the window, and the workers that multiply it the first time write its strips into the pin, at equal
 * distances.
 */
#ifndef NW_RUNTIME_PIN_FORM_H
#define NW_RUNTIME_PIN_FORM_H

#include "restore.h"

enum { NW_SHARE_ALL = 256 };

/* What pins of a session are, where tiles allow it. */
typedef struct {
    nw_pin_form form;         /* STORED, SLIM or PLAIN */
    unsigned    slim_width;   /* bits of a code */
    unsigned    packed_share; /* of NW_SHARE_ALL: packed tiles that stay packed all the same, STORED */
    bool        aligned;    /* plain tiles of a checkpoint whose rows lie across cache lines are copied to where they do
                             * not: kernels take a fifth longer for those (measured, AVX-512) */
} nw_pinning;

/* What AUTO means with these kernels: slim, where they multiply it faster. */
nw_pinning nw_pinning_make(nw_pin_form asked, const nw_kernels *kernels);

/* The pin of one tile. */
typedef struct {
    nw_pin_form form;
    unsigned    slim_width;
    nw_dtype    dtype;  /* of the weights */
    size_t      stride; /* bytes from one strip to the next, unless STORED */
    size_t      bytes;  /* in all, a multiple of the alignment */
} nw_pin_shape;

/* Whether tile `index` of the schedule is among the share of those that stay packed, if it is packed: they are spread
 * evenly over the schedule, and over the pins of any budget. */
bool nw_pin_stays_packed(const nw_pinning *p, size_t index);

/* stays_packed  as nw_pin_stays_packed says.
 * align         of what is read into. */
nw_pin_shape nw_pin_shape_of(const nw_model *m, const nw_pinning *p, bool stays_packed, nw_step step, size_t align);

/* Whether a tile is packed as it is stored: restored whenever it is used, unless its pin has another form. */
bool nw_pin_is_packed(const nw_model *m, nw_step step);

/* Writes the plain rows of a strip, [row_count, cols], into its place in a pin, and points *rows there. False, with
 * both as they were: they do not fit. For any worker. */
bool nw_pin_fill(const nw_pin_shape *shape, const nw_kernels *kernels, size_t strip, size_t row_count, size_t cols,
                 unsigned char *pin, nw_rows *rows);

/* The rows of a strip of a filled pin that is not STORED. */
nw_rows nw_pin_rows(const nw_pin_shape *shape, size_t strip, const unsigned char *pin);

#endif

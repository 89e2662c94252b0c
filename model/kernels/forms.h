/* What forms.inc.h is written over, besides the lanes: one header per instruction set (forms_<name>.h).
 *
 * Each of them defines, all static inline, all with the same result bit for bit on every instruction set:
 *
 *   form_constants                 what decoding keeps in registers
 *   slim_constants(f, table)       for a strip of that width, with the 16 bytes of its table
 *   quant_constants()              for blocks
 *   slim_load(f, w, raw, codes, escapes, c)   one group: weights 16 j + l to lane l of w[j], j 0..3; returns how many
 *                                  escapes it used. May read 32 bytes from codes and 64 from escapes on
 *   q8_load(w, block, c), q4_load  one block: weights 16 j + l to lane l of w[j], j 0..1
 *   v16_first(a, n)                lanes 0..n-1 of a, the others +0. n 0..16
 *
 * and its register blocking, which changes no result:
 *
 *   FORM_ROWS_ONE, FORM_ROWS_MORE  rows that one tile takes, for one column and for more
 *   FORM_ROWS                      the larger of them
 *   FORM_COLS                      columns that one tile takes at most
 *   FORM_EACH(F, f)                F(f, 1) .. F(f, FORM_COLS)
 *   FORM_SUMS                      accumulators of the largest tile: a multiple of 4, at least rows times columns
 *   FORM_FAR_BYTES, FORM_NEAR_BYTES   how far ahead the largest plane is fetched to the second and to the first cache;
 *                                  0: not at all
 */
#ifndef NW_KERNELS_FORMS_H
#define NW_KERNELS_FORMS_H

#include "base/quant.h"
#include "base/slim.h"
#include "lanes.h"
#include "variants.h"

typedef enum { FORM_SLIM3, FORM_SLIM4, FORM_Q8, FORM_Q4, FORM_COUNT } form;

#endif

/* Storage types of weights. Every one of them is an exact f32 value once read. */
#ifndef NW_BASE_DTYPE_H
#define NW_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { NW_F32, NW_BF16, NW_F16, NW_DTYPE_COUNT } nw_dtype;

/* Bytes of one element. */
size_t nw_dtype_bytes(nw_dtype dtype);

/* "f32", "bf16", "f16": as --dtype and `narrows info` write them. */
const char *nw_dtype_name(nw_dtype dtype);

/* The exact f32 value of one stored element of any type; `p` needs no alignment. */
float nw_dtype_to_f32(nw_dtype dtype, const void *p);

/* Rounds to the nearest, ties to even (IEEE 754), and stores one element; NaN stays NaN. `p` needs no alignment. */
void nw_dtype_from_f32(nw_dtype dtype, float value, void *p);

/* Converts n elements between any two types, as nw_dtype_from_f32 rounds. No alignment is needed; no overlap.
 * rounded    elements whose value did not survive are added to it
 * infinite   finite elements that became infinite are added to it; they count as rounded too */
void nw_dtype_convert(nw_dtype to, void *dst, nw_dtype from, const void *src, size_t n, uint64_t *rounded,
                      uint64_t *infinite);

#endif

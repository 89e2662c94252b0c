/* How a weight is stored in a pack: its type, and the form of each strip of it. */
#ifndef NW_LOADER_FORM_H
#define NW_LOADER_FORM_H

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/quant.h"

/* The values that are stored. q8 and q4: blocks of 32 weights of a row with an f16 scale, as GGUF's Q8_0 and Q4_0. The
 * numbers stand in files; those of f32, bf16 and f16 are those of nw_dtype. */
typedef enum { NW_STORED_F32, NW_STORED_BF16, NW_STORED_F16, NW_STORED_Q8, NW_STORED_Q4, NW_STORED_COUNT } nw_stored;

/* What the bytes of a strip are. Of f32, bf16 and f16: plain, or packed (loader/packed.h); of bf16 also slim, with
 * codes of 3 or 4 bits. q8 and q4 have one form each. The numbers stand in files; 0 is none. */
typedef enum {
    NW_FORM_PLAIN = 1,
    NW_FORM_PACKED,
    NW_FORM_SLIM3,
    NW_FORM_SLIM4,
    NW_FORM_Q8,
    NW_FORM_Q4,
    NW_FORM_COUNT,
} nw_form;

static inline bool nw_stored_is_quantised(nw_stored stored)
{
    return stored == NW_STORED_Q8 || stored == NW_STORED_Q4;
}

const char *nw_stored_name(nw_stored stored); /* "f32", "bf16", "f16", "q8", "q4": as --dtype and `info` write them */
const char *nw_form_name(nw_form form);       /* "plain", "packed", "slim3", "slim4", "q8", "q4" */

/* The stored type that holds a source type as it is. */
nw_stored nw_stored_of(nw_dtype dtype);

/* Bytes of rows * cols elements in the type's largest form (plain, or its only one). False, with *ret_bytes as it was:
 * does not fit in 62 bits, or cols is no multiple of a block. rows and cols are at least 1. */
NW_MUST_USE bool nw_stored_bytes(nw_stored stored, uint64_t rows, uint64_t cols, uint64_t *ret_bytes);

/* True if a strip of rows * cols elements can have this form and this many bytes. */
bool nw_form_possible(nw_stored stored, nw_form form, uint64_t rows, uint64_t cols, uint64_t bytes);

#endif

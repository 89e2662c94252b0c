/* The tables that kernels.c chooses from, one per kernels_<name>.c, and what they are made of. */
#ifndef NW_KERNELS_VARIANTS_H
#define NW_KERNELS_VARIANTS_H

#include "model/kernels.h"

extern const nw_kernels nw_kernels_portable;
#if defined(NW_KERNELS_X86)
extern const nw_kernels nw_kernels_avx2;
extern const nw_kernels nw_kernels_avx512;       /* with the forms of avx2 */
extern const nw_kernels nw_kernels_avx512_vbmi2; /* the same, with forms of its own */
#elif defined(NW_KERNELS_NEON)
extern const nw_kernels nw_kernels_neon;
#endif

/* Entries for weights in other forms, from kernels_forms_<name>.c; model/kernels.h has their contracts. */
#define FORMS_DECLARE(name)                                                                                            \
    void nw_matmul_slim_##name(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *strip,       \
                               size_t first_row, size_t rows, size_t k, float *room);                                  \
    void nw_matmul_q8_##name(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w, size_t ldw, \
                             size_t rows, size_t k, float *room);                                                      \
    void nw_matmul_q4_##name(float *y, size_t ldy, const float *x, size_t ldx, size_t cols, const void *w, size_t ldw, \
                             size_t rows, size_t k, float *room);                                                      \
    void nw_widen_slim_##name(float *y, const void *strip, size_t first_row, size_t rows);                             \
    void nw_widen_q8_##name(float *y, const void *w, size_t n);                                                        \
    void nw_widen_q4_##name(float *y, const void *w, size_t n);

FORMS_DECLARE(portable)
#if defined(NW_KERNELS_X86)
FORMS_DECLARE(avx2)
FORMS_DECLARE(avx512)
size_t nw_slim_encode_avx2(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width);
size_t nw_slim_encode_avx512(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width);
#elif defined(NW_KERNELS_NEON)
FORMS_DECLARE(neon)
size_t nw_slim_encode_neon(void *dst, size_t cap, const void *src, size_t rows, size_t k, unsigned width);
#endif

#endif

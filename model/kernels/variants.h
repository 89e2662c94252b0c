/* The tables that kernels.c chooses from, one per kernels_<name>.c. */
#ifndef NW_KERNELS_VARIANTS_H
#define NW_KERNELS_VARIANTS_H

#include "model/kernels.h"

extern const nw_kernels nw_kernels_portable;
#if defined(NW_KERNELS_X86)
extern const nw_kernels nw_kernels_avx2;
extern const nw_kernels nw_kernels_avx512;
#endif

#endif

/* The kernels for AVX2, FMA and F16C: kernels.inc.h over lanes_avx2.h. */
#include "lanes_avx2.h"
#include "variants.h"

#include "kernels.inc.h"

KERNELS_TABLE(avx2, avx2, 4, true, nw_slim_encode_avx2)

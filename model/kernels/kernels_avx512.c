/* The kernels for AVX-512 F, BW, DQ and VL: kernels.inc.h over lanes_avx512.h. */
#include "lanes_avx512.h"
#include "variants.h"

#include "kernels.inc.h"

KERNELS_TABLE(avx512, avx2, 4, true, nw_slim_encode_avx2)
KERNELS_TABLE(avx512_vbmi2, avx512, 3, true, nw_slim_encode_avx512)

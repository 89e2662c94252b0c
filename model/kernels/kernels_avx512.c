/* The kernels for AVX-512 F, BW, DQ and VL: kernels.inc.h over lanes_avx512.h. */
#include "lanes_avx512.h"
#include "variants.h"

#define KERNELS_NAME avx512
#include "kernels.inc.h"

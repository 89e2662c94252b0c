/* The kernels for AVX2, FMA and F16C: kernels.inc.h over lanes_avx2.h. */
#include "lanes_avx2.h"
#include "variants.h"

#define KERNELS_NAME avx2
#include "kernels.inc.h"

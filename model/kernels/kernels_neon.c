/* The kernels for AArch64: kernels.inc.h over lanes_neon.h. */
#include "lanes_neon.h"
#include "variants.h"

#include "kernels.inc.h"

/* Whether slim pins are faster than plain ones has not been measured on any such CPU, so nobody gets them unasked. */
KERNELS_TABLE(neon, neon, 4, false, nw_slim_encode_neon)

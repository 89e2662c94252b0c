/* The kernels for plain C, the reference: kernels.inc.h over lanes_portable.h. */
#include "lanes_portable.h"
#include "variants.h"

#include "kernels.inc.h"

KERNELS_TABLE(portable, portable, 4, false, nw_slim_encode)

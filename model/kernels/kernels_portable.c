/* The kernels for plain C, the reference: kernels.inc.h over lanes_portable.h. */
#include "lanes_portable.h"
#include "variants.h"

#define KERNELS_NAME portable
#include "kernels.inc.h"

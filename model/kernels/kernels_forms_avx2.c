/* Products over weights in other forms for AVX2, FMA and F16C: forms.inc.h over forms_avx2.h. */
#include "forms_avx2.h"

#define FORMS_NAME avx2
#include "forms.inc.h"

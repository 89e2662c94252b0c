/* Products over weights in other forms for AVX-512 with VBMI and VBMI2: forms.inc.h over forms_avx512.h. */
#include "forms_avx512.h"

#define FORMS_NAME avx512
#include "forms.inc.h"

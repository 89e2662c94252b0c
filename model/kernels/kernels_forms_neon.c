/* Products over weights in other forms for AArch64: forms.inc.h over forms_neon.h. */
#include "forms_neon.h"

#define FORMS_NAME neon
#include "forms.inc.h"

/* Products over weights in other forms for plain C: forms.inc.h over forms_portable.h. */
#include "forms_portable.h"

#define FORMS_NAME portable
#include "forms.inc.h"

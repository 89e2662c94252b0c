#include "base/text.h"

#include <stdbool.h>
#include <string.h>

void nw_text_clean(char *text)
{
    unsigned char *c = (unsigned char *)text;
    size_t         left = strlen(text);
    while (left > 0) {
        size_t len = nw_utf8_length_at(c, left);
        bool   control = *c < 0x20 || *c == 0x7f;
        bool   c1 = len == 2 && c[0] == 0xc2 && c[1] < 0xa0; /* U+0080 to U+009F, which some terminals obey too */
        if (len == 0 || control || c1) {
            len = len > 0 ? len : 1;
            memset(c, '?', len);
        }
        c += len;
        left -= len;
    }
}

#include "utf8_text.h"

#include <stdint.h>

size_t utf8_invalid_at(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        /* Unicode 15, table 3-7: what the second byte may be depends on the first; all later ones are 80..BF. */
        unsigned char c = s[i], low = 0x80, high = 0xbf;
        size_t        more;
        if (c < 0x80) {
            i++;
            continue;
        }
        if (c >= 0xc2 && c <= 0xdf)
            more = 1;
        else if (c >= 0xe0 && c <= 0xef)
            more = 2;
        else if (c >= 0xf0 && c <= 0xf4)
            more = 3;
        else
            return i;
        if (c == 0xe0)
            low = 0xa0;
        else if (c == 0xed)
            high = 0x9f;
        else if (c == 0xf0)
            low = 0x90;
        else if (c == 0xf4)
            high = 0x8f;
        for (size_t k = 1; k <= more; k++) {
            if (i + k >= len || s[i + k] < low || s[i + k] > high)
                return i;
            low = 0x80;
            high = 0xbf;
        }
        i += more + 1;
    }
    return SIZE_MAX;
}

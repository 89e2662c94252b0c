/* Text that came from outside, looked at strictly. */
#ifndef NW_BASE_TEXT_H
#define NW_BASE_TEXT_H

#include <stddef.h>

/* Bytes of the well-formed UTF-8 sequence at p (Unicode 15, table 3-7), of which `left` bytes (at least 1) are there; 0
 * if there is none. */
static inline size_t nw_utf8_length_at(const unsigned char *p, size_t left)
{
    unsigned char c = p[0];
    int           two = c >= 0xc2 && c <= 0xdf, three = (c & 0xf0) == 0xe0, four = c >= 0xf0 && c <= 0xf4;
    size_t        len = c < 0x80 ? 1 : two ? 2 : three ? 3 : four ? 4 : 0;
    if (len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    int overlong = (c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90);
    int surrogate = c == 0xed && p[1] > 0x9f;
    int beyond = c == 0xf4 && p[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : len;
}

/* Makes of a message one line of UTF-8 that moves no cursor: every byte of what is no UTF-8, and of control characters,
 * becomes '?'. */
void nw_text_clean(char *text);

#endif

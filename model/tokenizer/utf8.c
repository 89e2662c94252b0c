/* UTF-8 as RFC 3629 has it. Everything goes through the two tables of first and second bytes (Unicode, table 3-7), so
 * that a character that arrives byte by byte and one that lies in memory are judged by the same rule. */
#include "utf8.h"

size_t nw_utf8_length(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF)
        return 2;
    if (first >= 0xE0 && first <= 0xEF)
        return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

bool nw_utf8_follows(const unsigned char *held, size_t count, unsigned char byte)
{
    NW_CHECK(count >= 1 && count <= 3);
    unsigned low = 0x80, high = 0xBF;
    if (count == 1) {
        switch (held[0]) {
        case 0xE0: low = 0xA0; break;  /* overlong below */
        case 0xED: high = 0x9F; break; /* surrogates above */
        case 0xF0: low = 0x90; break;  /* overlong below */
        case 0xF4: high = 0x8F; break; /* beyond U+10FFFF above */
        default: break;
        }
    }
    return byte >= low && byte <= high;
}

size_t nw_utf8_next(const unsigned char *p, size_t len, uint32_t *ret_point)
{
    size_t need = len > 0 ? nw_utf8_length(p[0]) : 0;
    if (need == 0 || need > len)
        return 0;
    uint32_t point = need == 1 ? p[0] : (uint32_t)p[0] & (0xFFu >> (need + 1));
    for (size_t i = 1; i < need; i++) {
        if (!nw_utf8_follows(p, i, p[i]))
            return 0;
        point = point << 6 | (p[i] & 0x3Fu);
    }
    *ret_point = point;
    return need;
}

bool nw_utf8_valid(const unsigned char *p, size_t len)
{
    uint32_t point;
    for (size_t i = 0; i < len;) {
        size_t step = nw_utf8_next(p + i, len - i, &point);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}

bool nw_utf8_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

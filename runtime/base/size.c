#include "base/size.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The factor that a unit stands for; 0 if it is none. */
static uint64_t unit_factor(const char *unit)
{
    static const char letters[] = "KMGT";
    if (unit[0] == '\0' || strcasecmp(unit, "B") == 0)
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)unit[0]));
    if (letter == NULL)
        return 0;
    bool binary = unit[1] == '\0' || strcasecmp(unit + 1, "iB") == 0;
    if (!binary && strcasecmp(unit + 1, "B") != 0)
        return 0;
    uint64_t factor = 1;
    for (const char *l = letters; l <= letter; l++)
        factor *= binary ? 1024 : 1000;
    return factor;
}

/* Whole numbers throughout: strtod would read the locale's decimal point, and a double rounds what is exact. */
bool nw_size_parse(const char *text, uint64_t *ret_bytes)
{
    size_t      digits = strspn(text, "0123456789");
    const char *fraction = text + digits;
    size_t      fraction_digits = 0;
    if (*fraction == '.') {
        fraction++;
        fraction_digits = strspn(fraction, "0123456789");
        if (fraction_digits == 0)
            return false;
    }
    const char *unit = fraction + fraction_digits;
    while (*unit == ' ')
        unit++;
    uint64_t factor = unit_factor(unit);
    if (digits == 0 || factor == 0 || (factor == 1 && fraction_digits > 0))
        return false;

    uint64_t bytes = 0;
    for (size_t i = 0; i < digits; i++) {
        if (!nw_mul_u64(bytes, 10, &bytes) || !nw_add_u64(bytes, (uint64_t)(text[i] - '0'), &bytes))
            return false;
    }
    /* From the last digit on: the floor of each step gives the floor of the whole, exactly. */
    uint64_t part = 0;
    for (size_t i = fraction_digits; i-- > 0;)
        part = ((uint64_t)(fraction[i] - '0') * factor + part) / 10;
    if (!nw_mul_u64(bytes, factor, &bytes) || !nw_add_u64(bytes, part, &bytes))
        return false;
    if (bytes == 0 || bytes >= (uint64_t)1 << 62)
        return false;
    *ret_bytes = bytes;
    return true;
}

/* bytes in parts of 1 / scale (at most 100) of a unit, rounded. */
static uint64_t in_parts(uint64_t bytes, uint64_t unit_bytes, uint64_t scale, bool up)
{
    uint64_t whole = bytes / unit_bytes, rest = bytes % unit_bytes;
    if (unit_bytes > (uint64_t)1 << 50) { /* 100 times the rest of an exabyte would not fit */
        rest = (rest >> 10) + (up && (rest & 1023) != 0);
        unit_bytes >>= 10;
    }
    return whole * scale + (rest * scale + (up ? unit_bytes - 1 : unit_bytes / 2)) / unit_bytes;
}

const char *nw_size_format(uint64_t bytes, bool up, char buf[16])
{
    static const char units[][2] = {"", "K", "M", "G", "T", "P", "E"};
    size_t            unit = 0;
    uint64_t          unit_bytes = 1;
    while (unit + 1 < sizeof units / sizeof *units && in_parts(bytes, unit_bytes, 1, up) >= 1024) {
        unit++;
        unit_bytes <<= 10;
    }
    uint64_t scale = unit == 0 ? 1 : 100;
    while (scale > 1 && in_parts(bytes, unit_bytes, scale, up) >= 1000)
        scale /= 10;
    uint64_t value = in_parts(bytes, unit_bytes, scale, up);
    while (scale > 1 && value % 10 == 0) { /* "1.50" says no more than "1.5", "2.00" no more than "2" */
        value /= 10;
        scale /= 10;
    }
    /* Not %f, which writes the locale's decimal point. */
    unsigned whole = (unsigned)(value / scale), rest = (unsigned)(value % scale);
    if (scale == 1)
        snprintf(buf, 16, "%u%s", whole, units[unit]);
    else
        snprintf(buf, 16, "%u.%0*u%s", whole, scale == 100 ? 2 : 1, rest, units[unit]);
    return buf;
}

#ifndef NW_TOOLS_UTF8_TEXT_H
#define NW_TOOLS_UTF8_TEXT_H

#include <stddef.h>

/* Where the text is no UTF-8: the offset of the first byte that does not belong; SIZE_MAX: it is. */
size_t utf8_invalid_at(const char *text, size_t len);

#endif

/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef NW_MODEL_UTF8_H
#define NW_MODEL_UTF8_H

#include "base/check.h"

/* Bytes of the character at p (1 to 4) and its code point; 0 if the bytes are no character or are cut short. */
size_t nw_utf8_next(const unsigned char *p, size_t len, uint32_t *ret_point);

/* Bytes that a character with this first byte has; 0 if none begins so. */
size_t nw_utf8_length(unsigned char first);

/* Whether `byte` may follow the `count` (1 to 3) bytes of a character that is not complete. */
bool nw_utf8_follows(const unsigned char *held, size_t count, unsigned char byte);

bool nw_utf8_valid(const unsigned char *p, size_t len);

/* Unicode's White_Space, which is what the reference strips beside special tokens. */
bool nw_utf8_is_space(uint32_t point);

#endif

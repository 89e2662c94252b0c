/* Sizes as people write them. */
#ifndef NW_BASE_SIZE_H
#define NW_BASE_SIZE_H

#include "base/check.h"

/* Parses "900M", "1.5G", "2GB", "2GiB", "4096" into bytes.
 *
 * Units    K M G T, KiB .. TiB and a bare K .. T are 2^10 based (as in systemd); KB .. TB are 10^3 based (as in
 *          accelerate). Upper or lower case. B or nothing: bytes. A fraction needs a unit.
 * Returns  false if `text` is not such a size, is 0, negative, or does not fit; *ret_bytes is left alone then.
 */
bool nw_size_parse(const char *text, uint64_t *ret_bytes);

/* Writes bytes for people: "192M", "1.5G", "3.9G", 2^10 based, at most three significant digits (1000 to 1023 have
 * four). Returns buf.
 * With `up` set the number is rounded up, so that what it names is never too small. */
const char *nw_size_format(uint64_t bytes, bool up, char buf[16]);

#endif

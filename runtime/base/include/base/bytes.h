/* Little-endian numbers in files, at any address. Written out without loops: so compilers make one load or store of
 * each, which matters where many are read. */
#ifndef NW_BASE_BYTES_H
#define NW_BASE_BYTES_H

#include <stdint.h>

static inline uint32_t nw_get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t nw_get_u64(const unsigned char *p)
{
    return nw_get_u32(p) | (uint64_t)nw_get_u32(p + 4) << 32;
}

static inline void nw_put_u32(unsigned char *p, uint32_t value)
{
    p[0] = (unsigned char)value;
    p[1] = (unsigned char)(value >> 8);
    p[2] = (unsigned char)(value >> 16);
    p[3] = (unsigned char)(value >> 24);
}

static inline void nw_put_u64(unsigned char *p, uint64_t value)
{
    nw_put_u32(p, (uint32_t)value);
    nw_put_u32(p + 4, (uint32_t)(value >> 32));
}

#endif

/* Drawn numbers, the same in every run from the same state, and the bits of floats. */
#ifndef NW_TEST_DRAWS_H
#define NW_TEST_DRAWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t random_state; /* a program sets it before it draws */

static inline uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static inline size_t random_below(size_t n)
{
    return random_u32() % n;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif

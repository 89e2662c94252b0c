/* Weights in other forms, in plain C: the reference. */
#ifndef NW_KERNELS_FORMS_PORTABLE_H
#define NW_KERNELS_FORMS_PORTABLE_H

#include "forms.h"
#include "lanes_portable.h"

#define FORM_FAR_BYTES ((size_t)0)
#define FORM_NEAR_BYTES ((size_t)4096)
#define FORM_ROWS_ONE 2
#define FORM_ROWS_MORE 2
#define FORM_ROWS 2
#define FORM_COLS 2
#define FORM_EACH(F, f) F(f, 1) F(f, 2)
#define FORM_SUMS 4

typedef struct {
    uint8_t table[16];
} form_constants;

LANES_INLINE form_constants slim_constants(form f, const uint8_t table[16])
{
    form_constants c;
    (void)f;
    memcpy(c.table, table, sizeof c.table);
    return c;
}

LANES_INLINE form_constants quant_constants(void)
{
    return (form_constants){{0}};
}

LANES_INLINE v16 v16_first(v16 a, size_t n)
{
    for (size_t l = n; l < 16; l++)
        a.lane[l] = 0;
    return a;
}

/* The codes of a group, one a byte, in the order of positions. */
LANES_INLINE void portable_codes(form f, uint8_t code[64], const uint8_t *codes)
{
    if (f == FORM_SLIM4) {
        for (size_t b = 0; b < 32; b++) {
            code[b] = codes[b] & 15;
            code[32 + b] = codes[b] >> 4;
        }
        return;
    }
    for (size_t q = 0; q < 8; q++, codes += 3) {
        uint32_t bits = codes[0] | (uint32_t)codes[1] << 8 | (uint32_t)codes[2] << 16;
        for (size_t b = 0; b < 8; b++)
            code[8 * q + b] = bits >> (3 * b) & 7;
    }
}

LANES_INLINE size_t slim_load(form f, v16 w[4], const uint8_t *raw, const uint8_t *codes, const uint8_t *escapes,
                              const form_constants *c)
{
    uint8_t  code[64];
    uint32_t weight[64];
    size_t   used = 0, escape = f == FORM_SLIM3 ? 7 : 15;
    portable_codes(f, code, codes);
    for (size_t p = 0; p < 64; p++) {
        uint32_t coded = code[p] == escape ? escapes[used++] : c->table[code[p]];
        uint32_t both = raw[p] | coded << 8;
        weight[p] = (f == FORM_SLIM3 ? both >> 1 | both << 15 : both) << 16;
    }
    for (size_t j = 0; j < 4; j++) {
        v16i      bits;
        EACH_LANE bits.lane[l] = weight[nw_slim_place(16 * j + l)];
        w[j] = v16_of_bits(bits);
    }
    return used;
}

LANES_INLINE float portable_scale(const uint8_t *block)
{
    uint32_t bits = portable_f16_bits((uint16_t)(block[0] | block[1] << 8));
    float    scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

LANES_INLINE void q8_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    float scale = portable_scale(block);
    (void)c;
    EACH_LANE w[0].lane[l] = scale * (float)(int8_t)block[2 + l];
    EACH_LANE w[1].lane[l] = scale * (float)(int8_t)block[18 + l];
}

LANES_INLINE void q4_load(v16 w[4], const uint8_t *block, const form_constants *c)
{
    float scale = portable_scale(block);
    (void)c;
    EACH_LANE w[0].lane[l] = scale * (float)((block[2 + l] & 15) - 8);
    EACH_LANE w[1].lane[l] = scale * (float)((block[2 + l] >> 4) - 8);
}

#endif

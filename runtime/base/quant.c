/* Blocks of 32 quantised weights: encoding by a search over scales, decoding. base/quant.h has the layout. */
#include "base/quant.h"

#include "base/dtype.h"

#include <math.h>
#include <string.h>

#define BLOCK 32
#define SCALE_MAX 65504.0f /* the largest finite f16 */

/* Quantised values are low .. high, in units of the scale. */
static int lowest(nw_quant type)
{
    return type == NW_Q8 ? -127 : -8;
}

static int highest(nw_quant type)
{
    return type == NW_Q8 ? 127 : 7;
}

/* A block quantised by one scale, and how good that is. */
typedef struct {
    float  scale; /* an f16 value */
    int8_t q[BLOCK];
    double error; /* sum of squares */
    double refit; /* the best scale for these q, 0 if all are zero */
} trial;

static float to_f16(float value)
{
    uint16_t half;
    nw_dtype_from_f32(NW_F16, value, &half);
    return nw_dtype_to_f32(NW_F16, &half);
}

static trial try_scale(nw_quant type, const float x[BLOCK], float wanted)
{
    trial  t = {.scale = to_f16(fmaxf(-SCALE_MAX, fminf(wanted, SCALE_MAX)))};
    float  low = (float)lowest(type), high = (float)highest(type);
    float  divisor = t.scale == 0.0f ? INFINITY : t.scale; /* all of them are then 0 */
    double xq = 0, qq = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        /* A true division: a reciprocal may overflow where the scale is subnormal. Adding 1.5 * 2^23 rounds to an
         * integer, ties to even. */
        float q = x[i] / divisor;
        q = q < low ? low : q;
        q = q > high ? high : q;
        q = (q + 0x1.8p23f) - 0x1.8p23f;
        double miss = (double)x[i] - (double)(q * t.scale);
        t.q[i] = (int8_t)q;
        t.error += miss * miss;
        xq += (double)x[i] * (double)q;
        qq += (double)q * (double)q;
    }
    t.refit = qq > 0 ? xq / qq : 0;
    return t;
}

/* Tries a scale and the best one for the q that it gave; keeps the better in *best. */
static void improve(nw_quant type, const float x[BLOCK], float wanted, trial *best)
{
    for (size_t pass = 0; pass < 2; pass++) {
        trial t = try_scale(type, x, wanted);
        if (t.error < best->error)
            *best = t;
        wanted = (float)t.refit;
    }
}

/* q8: the largest weight takes 127 steps, or a little more or less. q4 has one more step below zero than above, so the
 * largest weight may be -8 of either sign of the scale, or 7; clipping it a little often pays. */
static trial search(nw_quant type, const float x[BLOCK], float largest)
{
    static const float eights[] = {125.5f, 126.5f, 127.0f, 127.5f};
    static const float fours[] = {-8.75f, -8.0f, -7.25f, 6.25f, 7.0f, 7.75f};
    size_t             count = type == NW_Q8 ? sizeof eights / sizeof eights[0] : sizeof fours / sizeof fours[0];
    trial              best = {.error = HUGE_VAL};
    for (size_t c = 0; c < count; c++)
        improve(type, x, largest / (type == NW_Q8 ? eights[c] : fours[c]), &best);
    return best;
}

static void put_block(nw_quant type, uint8_t *out, const trial *t)
{
    nw_dtype_from_f32(NW_F16, t->scale, out);
    for (size_t i = 0; type == NW_Q8 && i < BLOCK; i++)
        out[2 + i] = (uint8_t)t->q[i];
    for (size_t i = 0; type == NW_Q4 && i < BLOCK / 2; i++)
        out[2 + i] = (uint8_t)((t->q[i] + 8) | (t->q[i + 16] + 8) << 4);
}

bool nw_quant_encode(nw_quant type, void *dst, const float *src, size_t n)
{
    uint8_t *out = dst;
    NW_CHECK(type == NW_Q8 || type == NW_Q4);
    NW_CHECK(n % BLOCK == 0);
    for (size_t at = 0; at < n; at += BLOCK, out += nw_quant_block_bytes(type)) {
        float largest = 0;
        for (size_t i = 0; i < BLOCK; i++) {
            if (!(fabsf(src[at + i]) <= SCALE_MAX * (float)highest(type)))
                return false;
            if (fabsf(src[at + i]) > fabsf(largest))
                largest = src[at + i];
        }
        trial best = search(type, src + at, largest);
        put_block(type, out, &best);
    }
    return true;
}

void nw_quant_decode(nw_quant type, float *dst, const void *src, size_t n)
{
    const uint8_t *in = src;
    NW_CHECK(type == NW_Q8 || type == NW_Q4);
    NW_CHECK(n % BLOCK == 0);
    for (size_t at = 0; at < n; at += BLOCK, in += nw_quant_block_bytes(type)) {
        float scale = nw_dtype_to_f32(NW_F16, in);
        for (size_t i = 0; i < BLOCK; i++) {
            int q = type == NW_Q8 ? (int8_t)in[2 + i] : (in[2 + i % 16] >> (i < 16 ? 0 : 4) & 15) - 8;
            dst[at + i] = scale * (float)q;
        }
    }
}

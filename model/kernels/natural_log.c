/* log(x) in double: the same bits on every machine, which a libm does not promise.
 *
 * x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2). With s = f / (2 + f), log(1 + f) = 2 atanh(s), an odd
 * series in s, written as f - f^2/2 + s (f^2/2 + R(s^2)) so that the leading terms are exact. The reduction and the
 * polynomial are those of FreeBSD's msun e_log.c (Sun Microsystems, 1993; error below 1 ulp); the code is our own.
 * Plain operations only: the build forbids contraction, so none is fused. */
#include "model/kernels.h"

#include <math.h>
#include <string.h>

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double nw_ln(double x)
{
    const double ln2_high = 0x1.62e42feep-1; /* 21 trailing zero bits: k * ln2_high is exact */
    const double ln2_low = 0x1.a39ef35793c76p-33;
    if (!(x > 0.0))
        return x == 0.0 ? -(double)INFINITY : (double)NAN;
    if (x == (double)INFINITY)
        return x;

    int k = 0;
    if (x < 0x1p-1022) { /* subnormal: make it normal */
        x *= 0x1p54;
        k = -54;
    }
    uint64_t bits = bits_of(x);
    uint64_t fraction = bits & 0xfffffffffffffu;
    bool     above = fraction > 0x6a09e667f3bccu; /* of sqrt(2) */
    k += (int)(bits >> 52) - 1023 + (above ? 1 : 0);
    double f = of_bits(fraction | (above ? 0x3fe0000000000000u : 0x3ff0000000000000u)) - 1.0;

    double s = f / (2.0 + f);
    double z = s * s, w = z * z;
    double even = w * (0x1.999999997fa04p-2 + w * (0x1.c71c51d8e78afp-3 + w * 0x1.39a09d078c69fp-3));
    double odd =
        z * (0x1.5555555555593p-1 + w * (0x1.2492494229359p-2 + w * (0x1.7466496cb03dep-3 + w * 0x1.2f112df3e5244p-3)));
    double half_square = 0.5 * f * f;
    double tail = s * (half_square + (even + odd));
    double scale = (double)k;
    return scale * ln2_high - ((half_square - (tail + scale * ln2_low)) - f);
}

/* Counts what does not hold against the reference vectors, and prints the first of it: for programs with too many
 * checks for a test framework's messages. */
#ifndef NW_TEST_GOLDEN_CHECK_H
#define NW_TEST_GOLDEN_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The reference's own two versions differ by up to 2e-5 (goldens/README.md). */
#define TOLERANCE 1e-4

static unsigned failures, checks;
static double   worst; /* difference seen */

static inline void check(bool ok, const char *name, const char *what, size_t index)
{
    checks++;
    if (!ok && failures++ < 20)
        printf("FAILED %s: %s %zu\n", name, what, index);
}

static inline void check_near(double have, double want, const char *name, const char *what, size_t index)
{
    double d = fabs(have - want);
    worst = d > worst || d != d ? d : worst;
    check(d <= TOLERANCE, name, what, index);
}

#endif

/* The declared table: resident bytes of what we do not allocate ourselves, so that a plan can answer without running.
 *
 * Each figure is measured on Debian 12 (x86-64) with room above it; a session checks at its start that what it measures
 * is not above (plan.h), and tests/budget holds whole runs to it.
 */
#ifndef NW_RUNTIME_DECLARED_H
#define NW_RUNTIME_DECLARED_H

#include <stdint.h>

/* Program, libc, libstdc++, sentencepiece, OpenBLAS, yajl, liburing, malloc's own: 6 to 8 MiB seen after warming up. */
#define NW_DECLARED_PROCESS ((uint64_t)10 << 20)

/* Stack and thread control block of one worker: 20 to 40 KiB seen. */
#define NW_DECLARED_THREAD ((uint64_t)64 << 10)

/* What sgemm touches of its packing buffers in one thread, for strips of at most 128 Ki weights: at most P x Q + Q x N
 * floats of OpenBLAS's blocking (1 to 2 MiB seen). Only inputs longer than NW_OWN_TOKENS_MAX use it. */
#define NW_DECLARED_BLAS_THREAD ((uint64_t)3 << 20)

/* Address space, not memory: OpenBLAS maps a buffer of this size for each thread that multiplies, and if a limit on
 * address space (ulimit -v) refuses it, tries again for ever. */
#define NW_DECLARED_BLAS_ADDRESS ((uint64_t)128 << 20)

/* The kernel's share of a memory cgroup: page tables (1/512), rings, stacks. */
#define NW_RESERVE(budget) ((budget) / 512 + ((uint64_t)1 << 20))

#endif

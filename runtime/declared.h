/* The declared table: resident bytes of what we do not allocate ourselves, so that a plan can answer without running.
 *
 * Each figure is measured on Debian 12 (x86-64) with room above it; a session checks at its start that what it measures
 * is not above (plan.h), and tests/budget holds whole runs to it.
 */
#ifndef NW_RUNTIME_DECLARED_H
#define NW_RUNTIME_DECLARED_H

#include <stdint.h>
#include <unistd.h>

/* Program, libc, libstdc++, sentencepiece, yajl, liburing, malloc's own: 6 to 8 MiB seen after warming up. */
#define NW_DECLARED_PROCESS ((uint64_t)10 << 20)

/* Stack and thread control block of one worker: 20 to 40 KiB seen, three times that for what was not; in up to three
 * pages, which may be larger. */
static inline uint64_t nw_declared_thread(void)
{
    const uint64_t room = (uint64_t)128 << 10, pages = 3 * (uint64_t)sysconf(_SC_PAGESIZE);
    return pages > room ? pages : room;
}

/* A budget below the program's own size cannot run anything, but its user should be told what would: room to look at
 * the model's headers, which take less than half of it for the largest published model. */
#define NW_TABLES_ROOM ((uint64_t)4 << 20)

/* The kernel's share of a memory cgroup: page tables (1/512), rings, stacks. */
#define NW_RESERVE(budget) ((budget) / 512 + ((uint64_t)1 << 20))

#endif

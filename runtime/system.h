/* What the kernel says of this machine and this process: memory left, CPUs, resident size. The only reader of /proc and
 * /sys/fs/cgroup. Roots are parameters so that tests can show made-up machines. */
#ifndef NW_RUNTIME_SYSTEM_H
#define NW_RUNTIME_SYSTEM_H

#include "narrows.h"

/* proc, cgroup   "/proc" and "/sys/fs/cgroup" of the machine to look at.
 * Walks every control group above the process (v2: memory.max, memory.high; v1: memory.limit_in_bytes), as the mounts
 * in proc/self/mountinfo and proc/self/cgroup place it; available = min over them of limit - (current - reclaimable
 * file pages), and of MemAvailable. Never fails: what cannot be read is no limit. */
void nw_system_memory(const char *proc, const char *cgroup, nw_machine_memory *ret);

/* Threads that this process can keep busy: the affinity mask, cut by the CPU quota (v2 cpu.max, v1 cpu.cfs_quota_us) of
 * every group above, rounded up; at least 1. */
unsigned nw_system_cpus(const char *proc, const char *cgroup);

/* A line "key: N kB" of proc/self/status in bytes; 0 if it is not there. */
uint64_t nw_system_status_bytes(const char *proc, const char *key);

/* Monotonic clock. */
uint64_t nw_system_nanoseconds(void);
double   nw_system_seconds(void);

#endif

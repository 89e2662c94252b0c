/* The process as a whole: its settings, what it has resident, and the budgets that people ask for.
 *
 * Thin over system.h (what the kernel says) and base/size.h (how sizes are written). The settings are those that make
 * the resident size follow what is in use: memory that is freed goes back at once, and none is resident that was not
 * asked for. Each is a help, not a need: the run measures its resident size in any case, so no failure here is fatal.
 */
#include "narrows.h"

#include <fcntl.h>
#include <malloc.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/size.h"
#include "system.h"

#define KIB ((uint64_t)1024)
#define MIB ((uint64_t)1024 * 1024)
#define MILLION ((uint64_t)1000000)

/* The least that a budget can be parsed to. It is too small for any run, so it is refused by a message that names the
 * smallest one that works; 0 would mean `auto`. */
#define BUDGET_MIN MIB

/* From linux/prctl.h of Linux 6.18. */
#ifndef PR_THP_DISABLE_EXCEPT_ADVISED
#define PR_THP_DISABLE_EXCEPT_ADVISED (1UL << 1)
#endif

/* True if the kernel gives huge pages to mappings that have not asked: "[always] madvise never". */
static bool huge_pages_always(void)
{
    char text[64] = {0};
    int  fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    return count > 0 && strstr(text, "[always]") != NULL;
}

/* A huge page makes 2 MiB resident where one byte was touched: heap, stacks and libraries' buffers must not have them,
 * the arena asks for them. Kernels before 6.18 know only all or none (EINVAL for the flag); then, where they would be
 * given unasked, none: a budget that holds is worth more than the arena's few percent. The setting passes to children.
 */
static void huge_pages_where_asked(void)
{
    if (prctl(PR_SET_THP_DISABLE, 1UL, PR_THP_DISABLE_EXCEPT_ADVISED, 0UL, 0UL) == 0)
        return;
    if (huge_pages_always())
        (void)prctl(PR_SET_THP_DISABLE, 1UL, 0UL, 0UL, 0UL);
}

void nw_process_setup(void)
{
    /* glibc gives every thread an arena of its own, and raises the mmap threshold to the largest block that was freed
     * (up to 32 MiB), after which such blocks stay in the heap. Setting any of the thresholds also stops that. */
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_MMAP_THRESHOLD, (int)(128 * KIB));
    (void)mallopt(M_TRIM_THRESHOLD, (int)(128 * KIB));
    (void)mallopt(M_TOP_PAD, (int)(16 * KIB));
    huge_pages_where_asked();
}

uint64_t nw_process_resident(void)
{
    return nw_system_status_bytes("/proc", "VmRSS");
}

uint64_t nw_process_peak(void)
{
    uint64_t peak = nw_system_status_bytes("/proc", "VmHWM");
    if (peak > 0)
        return peak;
    /* Sandboxes such as gVisor leave VmHWM out. This one survives exec, so it may be another program's: second choice.
     */
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * KIB : 0;
}

void nw_machine_memory_read(nw_machine_memory *ret)
{
    NW_CHECK(ret != NULL);
    nw_system_memory("/proc", "/sys/fs/cgroup", ret);
}

uint64_t nw_budget_auto(const nw_machine_memory *memory)
{
    NW_CHECK(memory != NULL);
    uint64_t reserve = nw_max_u64(memory->available / 8, 64 * MIB);
    return nw_max_u64(memory->available - nw_min_u64(memory->available, reserve), BUDGET_MIN);
}

/* "60%", "12.5%": 1 to 100, in millionths of a percent. In integers, so that no locale decides about the point. */
static bool percent_parse(const char *text, uint64_t *ret_millionths)
{
    size_t   whole_len = strspn(text, "0123456789");
    uint64_t millionths = 0;
    if (whole_len == 0 || whole_len > 3)
        return false;
    for (size_t i = 0; i < whole_len; i++)
        millionths = millionths * 10 + (uint64_t)(text[i] - '0') * MILLION;
    text += whole_len;
    if (*text == '.') {
        text++;
        size_t len = strspn(text, "0123456789");
        if (len == 0)
            return false;
        uint64_t unit = MILLION / 10;
        for (size_t i = 0; i < len; i++, unit /= 10)
            millionths += (uint64_t)(text[i] - '0') * unit;
        text += len;
    }
    if (strcmp(text, "%") != 0 || millionths < MILLION || millionths > 100 * MILLION)
        return false;
    *ret_millionths = millionths;
    return true;
}

bool nw_budget_parse(const char *text, const nw_machine_memory *memory, uint64_t *ret_bytes)
{
    NW_CHECK(text != NULL && memory != NULL && ret_bytes != NULL);
    uint64_t millionths;
    if (strcmp(text, "auto") == 0) {
        *ret_bytes = nw_budget_auto(memory);
        return true;
    }
    if (!percent_parse(text, &millionths))
        return nw_size_parse(text, ret_bytes);
    const uint64_t all = 100 * MILLION; /* in two parts, so that no product overflows */
    uint64_t       bytes = memory->available / all * millionths + memory->available % all * millionths / all;
    *ret_bytes = nw_max_u64(bytes, BUDGET_MIN);
    return true;
}

bool nw_bytes_parse(const char *text, uint64_t *ret_bytes)
{
    NW_CHECK(text != NULL && ret_bytes != NULL);
    return nw_size_parse(text, ret_bytes);
}

const char *nw_bytes_format(uint64_t bytes, bool up, char buf[16])
{
    return nw_size_format(bytes, up, buf);
}

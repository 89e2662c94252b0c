/* Chooses among the variants of the kernels at run time.
 *
 * The tables are in order from the plainest to the fastest. A variant is usable when the CPU has its instructions and
 * the system saves its registers on a task switch: the compiler's own test asks for both. Nothing here is built with
 * the flags of a variant, so this file runs anywhere. */
#include "variants.h"
#include "wide_cut.h"

#include <string.h>

#if defined(NW_KERNELS_X86)
#include <cpuid.h>

static bool cpu_has_avx2(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return false;
    /* F16C has no name that every compiler knows; it uses the registers that avx2 has just vouched for. */
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool cpu_has_avx512_vbmi2(void)
{
    return cpu_has_avx512() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#endif

/* What the compiler may use without asking: C, and Advanced SIMD on AArch64. */
static bool cpu_has_baseline(void)
{
    return true;
}

typedef struct {
    const nw_kernels *kernels;
    bool (*usable)(void);
} variant;

static const variant variants[] = {
    {&nw_kernels_portable, cpu_has_baseline},
#if defined(NW_KERNELS_X86)
    {&nw_kernels_avx2, cpu_has_avx2},
    {&nw_kernels_avx512, cpu_has_avx512},
    {&nw_kernels_avx512_vbmi2, cpu_has_avx512_vbmi2},
#elif defined(NW_KERNELS_NEON)
    {&nw_kernels_neon, cpu_has_baseline},
#endif
};

#define VARIANT_COUNT (sizeof variants / sizeof variants[0])

const nw_kernels *nw_kernels_best(void)
{
    size_t v = VARIANT_COUNT - 1;
    while (!variants[v].usable())
        v--;
    return variants[v].kernels;
}

const nw_kernels *nw_kernels_named(const char *name)
{
    for (size_t v = 0; v < VARIANT_COUNT; v++) {
        if (strcmp(variants[v].kernels->name, name) == 0)
            return variants[v].usable() ? variants[v].kernels : NULL;
    }
    return NULL;
}

_Static_assert(NW_COLS_MAX <= WIDE_FEW, "callers with up to NW_COLS_MAX columns give no room");

size_t nw_matmul_room(size_t cols, size_t k)
{
    wide_cut cut = wide_cut_make(cols, k);
    return cols <= WIDE_FEW ? 0 : wide_panel_floats(&cut, k) + wide_chain_floats(&cut, k);
}

const char *const *nw_kernels_names(void)
{
    static const char *const names[] = {
        "portable",
#if defined(NW_KERNELS_X86)
        "avx2",
        "avx512",
        "avx512_vbmi2",
#elif defined(NW_KERNELS_NEON)
        "neon",
#endif
        NULL,
    };
    return names;
}

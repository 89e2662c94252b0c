/* Which forms there are, and what can be said of their sizes without looking at the bytes. */
#include "loader/form.h"

#include <assert.h>

#define BYTES_MAX ((uint64_t)1 << 62)

/* Converted by casts, here and elsewhere, and both stand in files. */
static_assert((int)NW_STORED_F32 == (int)NW_F32, "as in nw_dtype");
static_assert((int)NW_STORED_BF16 == (int)NW_BF16, "as in nw_dtype");
static_assert((int)NW_STORED_F16 == (int)NW_F16, "as in nw_dtype");

const char *nw_stored_name(nw_stored stored)
{
    static const char *const names[NW_STORED_COUNT] = {"f32", "bf16", "f16", "q8", "q4"};
    NW_CHECK((unsigned)stored < NW_STORED_COUNT);
    return names[stored];
}

const char *nw_form_name(nw_form form)
{
    static const char *const names[NW_FORM_COUNT] = {"none", "plain", "packed", "slim3", "slim4", "q8", "q4"};
    NW_CHECK((unsigned)form < NW_FORM_COUNT);
    return names[form];
}

nw_stored nw_stored_of(nw_dtype dtype)
{
    NW_CHECK((unsigned)dtype < NW_DTYPE_COUNT);
    return (nw_stored)dtype;
}

bool nw_stored_bytes(nw_stored stored, uint64_t rows, uint64_t cols, uint64_t *ret_bytes)
{
    NW_CHECK((unsigned)stored < NW_STORED_COUNT);
    NW_CHECK(rows > 0 && cols > 0);
    uint64_t units = cols, bytes = stored == NW_STORED_F32 ? 4 : 2;
    if (nw_stored_is_quantised(stored)) {
        if (cols % NW_QUANT_BLOCK != 0)
            return false;
        units = cols / NW_QUANT_BLOCK;
        bytes = nw_quant_block_bytes(stored == NW_STORED_Q8 ? NW_Q8 : NW_Q4);
    }
    if (!nw_mul_u64(units, rows, &units) || !nw_mul_u64(units, bytes, &bytes) || bytes > BYTES_MAX)
        return false;
    *ret_bytes = bytes;
    return true;
}

bool nw_form_possible(nw_stored stored, nw_form form, uint64_t rows, uint64_t cols, uint64_t bytes)
{
    uint64_t most = 0;
    if (!nw_stored_bytes(stored, rows, cols, &most))
        return false;
    bool quant = nw_stored_is_quantised(stored);
    switch (form) {
    case NW_FORM_PLAIN: return !quant && bytes == most;
    case NW_FORM_PACKED: return !quant && bytes > 0 && bytes < most;
    case NW_FORM_SLIM3:
    case NW_FORM_SLIM4: return stored == NW_STORED_BF16 && bytes > 0 && bytes < most;
    case NW_FORM_Q8: return stored == NW_STORED_Q8 && bytes == most;
    case NW_FORM_Q4: return stored == NW_STORED_Q4 && bytes == most;
    case NW_FORM_COUNT: break;
    }
    return false;
}

#include "advice.h"

#include <stdio.h>
#include <string.h>

#include "print.h"

/* In the order of nw_model_info's type_bytes. */
enum { F32, BF16, F16, Q8, Q4 };

/* What packing leaves of bf16 weights of a trained model: the exponents carry 2.6 bits. */
#define BF16_PACKED 0.67

void note_lossy(const nw_model *model)
{
    static const char *const names[NW_STORED_TYPES] = {"f32", "bf16", "f16", "q8", "q4"};
    nw_pack_info             pack;
    char                     types[64] = "";
    size_t                   used = 0;
    if (!nw_model_pack_describe(model, &pack) || !pack.lossy)
        return;
    for (size_t i = NW_STORED_TYPES; i-- > 0;) { /* the coarsest first */
        if (pack.lossy_type[i])
            used += (size_t)snprintf(types + used, sizeof types - used, used == 0 ? "%s" : ", %s", names[i]);
    }
    print_note("lossy: weights are %s", types);
}

/* Where a pack of the model could be: beside it, or here if it is in the cache. */
static void pack_name(const char *name, const nw_model_info *info, char *buf, size_t cap)
{
    size_t      len = strlen(name);
    const char *slash = strrchr(name, '/');
    while (len > 1 && name[len - 1] == '/')
        len--;
    if (strncmp(info->path, name, len) != 0 && slash != NULL) {
        name = slash + 1;
        len = strlen(name);
    }
    snprintf(buf, cap, "%.*s.pack", (int)len, name);
}

void advise_pack(nw_model *model, const char *name, const nw_session_options *session)
{
    nw_model_info info;
    nw_plan       plan = {0};
    nw_error      ignored = {0};
    char          dst[512];
    nw_model_describe(model, &info);
    if (info.is_pack || nw_plan_make(model, session, &plan, &ignored) != NW_OK || plan.read.next_pass == 0)
        return;
    double gb = (double)plan.read.next_pass / 1e9;
    pack_name(name, &info, dst, sizeof dst);
    if (info.type_bytes[F32] > info.weight_bytes / 2)
        print_note("each token reads %.3g GB; 'narrows pack %s %s --dtype bf16' would make that less than half", gb,
                   name, dst);
    else if (info.type_bytes[BF16] > info.weight_bytes / 2)
        print_note("each token reads %.3g GB; 'narrows pack %s %s' would make that about %.2g GB", gb, name, dst,
                   gb * BF16_PACKED);
    else
        print_note("each token reads %.3g GB; 'narrows pack %s %s' would make that less", gb, name, dst);
}

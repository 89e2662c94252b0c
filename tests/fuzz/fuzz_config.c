/* config.json. What is accepted is within the declared limits, and everything that is made from a configuration can be
 * made: bucket tables, the list of tensors and their names, settled with tensors that the input chooses, and the
 * schedules where they are short enough to walk over. */
#include "config_check.h"

/* A checkpoint that has about half of all names, or all that a T5 has. */
typedef struct {
    uint64_t seed;
} names;

static bool has_name(void *user, const char *name)
{
    const names *n = user;
    if (n->seed % 4 == 0) /* as the file of a gated model with a head of its own */
        return strstr(name, ".wi.weight") == NULL && strstr(name, "block.1024.") == NULL;
    return fuzz_hash(n->seed, name, strlen(name)) >> 60 < 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nw_memory mem;
    nw_error  err = {0};
    nw_config c;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_config_parse(&mem, "config.json", (const char *)data, size, &c, &err);
    fuzz_memory_check(&mem, size);
    if (!fuzz_parsed(rc, &err))
        return 0;
    check_limits(&c);
    check_buckets(&c, true);
    check_buckets(&c, false);
    names            n = {.seed = fuzz_hash(FUZZ_HASH, data, size)};
    nw_tensor_lookup lookup = {.user = &n, .has = has_name};
    rc = nw_config_settle(&c, &lookup, &err);
    if (fuzz_parsed(rc, &err))
        check_tensors(&c);
    return 0;
}

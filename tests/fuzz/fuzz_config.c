/* config.json. What is accepted is within the declared limits, and everything that is made from a configuration can be
 * made: bucket tables, the list of tensors and their names, settled with tensors that the input chooses, and the
 * schedules where they are short enough to walk over. */
#include "fuzz.h"
#include "model/tensors.h"

#define TENSORS_MAX 40000u
#define STEPS_MAX UINT64_C(100000)

static void check_limits(const nw_config *c)
{
    NW_CHECK(c->vocab_size >= 1 && c->vocab_size <= 1u << 24);
    NW_CHECK(c->d_model >= 1 && c->d_model <= 1u << 20);
    NW_CHECK(c->d_kv >= 1 && c->head_count >= 1);
    NW_CHECK((uint64_t)c->d_kv * c->head_count <= 1u << 22);
    NW_CHECK(c->d_ff >= 1 && c->d_ff <= 1u << 22);
    NW_CHECK(c->encoder_blocks >= 1 && c->encoder_blocks <= 1024 && c->decoder_blocks <= 1024);
    NW_CHECK(c->norm_epsilon >= 0 && c->norm_epsilon <= 1);
    NW_CHECK(c->pad_id < c->vocab_size && c->start_id < c->vocab_size);
    NW_CHECK(c->eos_count >= 1 && c->eos_count <= NW_EOS_MAX);
    for (uint32_t i = 0; i < c->eos_count; i++)
        NW_CHECK(c->eos_ids[i] < c->vocab_size && nw_config_is_eos(c, c->eos_ids[i]));
    NW_CHECK(strcmp(c->model_type, "t5") == 0 || strcmp(c->model_type, "mt5") == 0 ||
             strcmp(c->model_type, "umt5") == 0);
}

/* Thresholds rise, and the table agrees with them. */
static void check_buckets(const nw_config *c, bool bidirectional)
{
    static uint32_t starts[4096], table[512];
    uint32_t        count = nw_bucket_starts(c, bidirectional, starts);
    NW_CHECK(count >= 2 && count <= c->bucket_count);
    for (uint32_t b = 1; b < count; b++)
        NW_CHECK(starts[b] >= starts[b - 1]);
    nw_bucket_table(c, bidirectional, table, sizeof table / sizeof *table);
    NW_CHECK(starts[0] == 0 && table[0] == 0);
    for (uint32_t d = 0; d < sizeof table / sizeof *table; d++) {
        uint32_t b = table[d];
        NW_CHECK(b < count && starts[b] <= d);
        NW_CHECK(b + 1 == count || d < starts[b + 1]);
    }
}

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

static void check_schedules(const nw_config *c, const nw_tensors *t)
{
    static nw_step steps[STEPS_MAX];
    uint64_t       tiles = 0;
    for (uint32_t i = 0; i < t->count; i++)
        tiles += nw_cut_make(t->list[i].rows, t->list[i].cols).tile_count;
    if (tiles > STEPS_MAX)
        return;
    for (int pass = 0; pass < NW_PASS_COUNT; pass++) {
        size_t count = nw_schedule_count(c, t, (nw_pass)pass);
        NW_CHECK(count <= tiles);
        nw_schedule_fill(c, t, (nw_pass)pass, steps);
        for (size_t i = 0; i < count; i++) {
            NW_CHECK(steps[i].tensor < t->count);
            const nw_tensor_need *need = &t->list[steps[i].tensor];
            NW_CHECK(steps[i].tile < nw_cut_make(need->rows, need->cols).tile_count);
            NW_CHECK(!need->vector);
        }
    }
}

static void check_tensors(const nw_config *c)
{
    static nw_tensor_need list[TENSORS_MAX];
    nw_tensors            t;
    char                  name[128], place[32];
    uint32_t              count = nw_tensors_count(c);
    NW_CHECK(count <= TENSORS_MAX);
    nw_tensors_fill(c, list, &t);
    NW_CHECK(t.count == count && t.embed < count && (t.head < count || c->decoder_blocks == 0));
    for (uint32_t i = 0; i < count; i++) {
        NW_CHECK(list[i].rows >= 1 && list[i].cols >= 1);
        NW_CHECK(nw_tensor_name(c, &list[i], 0, name, sizeof name));
        NW_CHECK(strlen(name) + 1 < sizeof name);
        NW_CHECK(nw_tensor_place(&t, i, place)[0] != '\0');
        if (list[i].role != NW_ROLE_EMBED && list[i].role != NW_ROLE_HEAD)
            NW_CHECK(nw_tensors_at(&t, list[i].stack, list[i].block, list[i].role) == i);
    }
    check_schedules(c, &t);
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

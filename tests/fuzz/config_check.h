/* What must hold of every configuration, wherever it came from, and of all that is made from it. */
#ifndef NW_FUZZ_CONFIG_CHECK_H
#define NW_FUZZ_CONFIG_CHECK_H

#include "fuzz.h"
#include "model/tensors.h"

#define TENSORS_MAX 40000u
#define STEPS_MAX UINT64_C(100000)

static inline void check_limits(const nw_config *c)
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
static inline void check_buckets(const nw_config *c, bool bidirectional)
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

static inline void check_schedules(const nw_config *c, const nw_tensors *t)
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

static inline void check_tensors(const nw_config *c)
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

#endif

/* Tensor tables, schedules and bucket tables against published facts: parameter counts of every published model, the
 * relative attention buckets of the reference, each tile of a pass exactly once. */
#include "../../../benchmarks/shapes.h"
#include "model/tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static nw_config config_of(const nw_shape *s)
{
    char      json[512];
    nw_memory mem;
    nw_error  err = {0};
    nw_config c;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    snprintf(json, sizeof json,
             "{\"model_type\":\"%s\",\"vocab_size\":%u,\"d_model\":%u,\"d_kv\":%u,\"d_ff\":%u,\"num_heads\":%u,"
             "\"num_layers\":%u,\"num_decoder_layers\":%u,\"feed_forward_proj\":\"%s\",\"tie_word_embeddings\":%s,"
             "\"pad_token_id\":%u,\"eos_token_id\":%u,\"decoder_start_token_id\":%u}",
             s->model_type, s->vocab_size, s->d_model, s->d_kv, s->d_ff, s->head_count, s->encoder_blocks,
             s->decoder_blocks, s->feed_forward, s->tied ? "true" : "false", s->pad_id, s->eos_id, s->start_id);
    assert_int_equal(nw_config_parse(&mem, s->names, json, strlen(json), &c, &err), NW_OK);
    assert_int_equal(mem.live, 0);
    return c;
}

static void test_published_counts(void **state)
{
    (void)state;
    size_t count = 0;
    for (const nw_shape *s; (s = nw_shape_at(count)) != NULL; count++) {
        nw_config       c = config_of(s);
        nw_tensors      t;
        nw_tensor_need *list = calloc(nw_tensors_count(&c), sizeof *list);
        uint64_t        weights = 0;
        nw_tensors_fill(&c, list, &t);
        for (uint32_t i = 0; i < t.count; i++)
            weights += list[i].rows * list[i].cols;
        if (weights != s->params)
            print_error("%s: %llu\n", s->names, (unsigned long long)weights);
        assert_true(weights == s->params);
        for (uint32_t i = 0; i < t.count; i++) {
            if (list[i].role == NW_ROLE_EMBED || list[i].role == NW_ROLE_HEAD)
                continue;
            assert_int_equal(nw_tensors_at(&t, list[i].stack, list[i].block, list[i].role), i);
        }
        free(list);
    }
    assert_true(count >= 28);
}

static bool in_pass(const nw_tensors *t, uint32_t tensor, nw_pass pass)
{
    const nw_tensor_need *n = &t->list[tensor];
    bool                  cross_kv = n->role == NW_ROLE_CROSS_K || n->role == NW_ROLE_CROSS_V;
    if (n->vector)
        return false;
    if (pass == NW_PASS_CROSS)
        return cross_kv;
    if (pass == NW_PASS_ENCODE)
        return n->stack == NW_STACK_ENCODER;
    return tensor == t->head || (n->stack == NW_STACK_DECODER && !cross_kv);
}

/* Each tile of each matrix of the pass exactly once, in row order, wi and wi_1 in turn. */
static void check_pass(const nw_config *c, const nw_tensors *t, nw_pass pass)
{
    size_t    count = nw_schedule_count(c, t, pass);
    nw_step  *steps = calloc(count + 1, sizeof *steps);
    uint32_t *next = calloc(t->count, sizeof *next);
    nw_schedule_fill(c, t, pass, steps);
    for (size_t i = 0; i < count; i++) {
        const nw_tensor_need *n = &t->list[steps[i].tensor];
        assert_false(n->vector);
        assert_int_equal(steps[i].tile, next[steps[i].tensor]++);
        if (n->role == NW_ROLE_WI1) { /* the gate's tile just before */
            assert_int_equal(steps[i - 1].tile, steps[i].tile);
            assert_int_equal(t->list[steps[i - 1].tensor].role, NW_ROLE_WI);
        }
    }
    for (uint32_t i = 0; i < t->count; i++) {
        const nw_tensor_need *n = &t->list[i];
        uint64_t              tiles = in_pass(t, i, pass) ? nw_cut_make(n->rows, n->cols).tile_count : 0;
        assert_int_equal(next[i], tiles);
    }
    free(steps);
    free(next);
}

static void test_schedules(void **state)
{
    (void)state;
    static const char *const names[] = {"t5-small", "flan-t5-xl", "mt5-small", "umt5-small", "byt5-base", "ul2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        nw_config       c = config_of(nw_shape_find(names[i]));
        nw_tensors      t;
        nw_tensor_need *list = calloc(nw_tensors_count(&c), sizeof *list);
        nw_tensors_fill(&c, list, &t);
        for (int pass = 0; pass < NW_PASS_COUNT; pass++)
            check_pass(&c, &t, (nw_pass)pass);
        free(list);
    }
}

/* First distances of the usual table (32 buckets, maximum distance 128), as three evaluations of the reference agree
 * on. */
static void test_usual_buckets(void **state)
{
    (void)state;
    static const uint32_t encoder[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const uint32_t decoder[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    nw_config             c = config_of(nw_shape_find("t5-small"));
    uint32_t              starts[32], bucket[4097];
    assert_int_equal(nw_bucket_starts(&c, true, starts), 16);
    assert_memory_equal(starts, encoder, sizeof encoder);
    assert_int_equal(nw_bucket_starts(&c, false, starts), 32);
    assert_memory_equal(starts, decoder, sizeof decoder);
    nw_bucket_table(&c, false, bucket, 4097);
    for (uint32_t d = 0; d <= 4096; d++) {
        uint32_t b = 31;
        while (decoder[b] > d)
            b--;
        assert_int_equal(bucket[d], b);
    }
    nw_bucket_table(&c, true, bucket, 4097);
    for (uint32_t d = 0; d <= 4096; d++) {
        uint32_t b = 15;
        while (encoder[b] > d)
            b--;
        assert_int_equal(bucket[d], b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_counts),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_usual_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A small model whose tensors have several tiles and strips, in several shards and of all three types: what the tiny
 * golden models lack. Random weights from a seed; the end token's logit is always 0, so that answers have their full
 * length. */
#ifndef NW_TEST_MANY_TILES_H
#define NW_TEST_MANY_TILES_H

#include "loader/writer.h"
#include "model/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_TILES_VOCAB = 4500, MANY_TILES_END = 1 };

static inline uint64_t many_tiles_draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 (Steele, Lea, Flood 2014) */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline float many_tiles_scale(const nw_tensor_need *need)
{
    switch (need->role) {
    case NW_ROLE_EMBED:
    case NW_ROLE_HEAD: return 1.0f;
    case NW_ROLE_BIAS: return 0.5f;
    case NW_ROLE_Q:
    case NW_ROLE_CROSS_Q: return 0.02f; /* scores have no 1 / sqrt(d_kv) */
    default: return (float)(1.7 / sqrt((double)need->cols));
    }
}

/* The data of one tensor, through a buffer of one row. */
static inline void many_tiles_data(nw_writer *w, const nw_tensor_need *need, nw_dtype dtype, uint64_t *state)
{
    nw_error err = {0};
    size_t   size = nw_dtype_bytes(dtype), row_bytes = (size_t)need->cols * size;
    bool     norm = need->vector && need->role != NW_ROLE_BIAS;
    float    scale = many_tiles_scale(need);
    char    *row = malloc(row_bytes);
    NW_CHECK(row != NULL);
    for (uint64_t r = 0; r < need->rows; r++) {
        bool end = r == MANY_TILES_END && (need->role == NW_ROLE_EMBED || need->role == NW_ROLE_HEAD);
        for (size_t i = 0; i < need->cols; i++) {
            float v = (float)((double)(many_tiles_draw(state) >> 11) * 0x1p-52 - 1.0);
            nw_dtype_from_f32(dtype, end ? 0.0f : norm ? 1.0f + v * 0.25f : v * scale, row + i * size);
        }
        NW_CHECK(nw_writer_data(w, row, row_bytes, &err) == NW_OK);
    }
    free(row);
}

/* Type of a tensor: mostly the small ones, now and then the large one. */
static inline nw_dtype many_tiles_dtype(uint32_t index)
{
    static const nw_dtype types[] = {NW_BF16, NW_F16, NW_BF16, NW_BF16, NW_F32, NW_F16};
    return types[index % (sizeof types / sizeof *types)];
}

/* Writes the model to a new directory. The embedding is the first tensor of the first shard. */
static inline void many_tiles_write(const char *dir, bool tied, uint64_t seed)
{
    char json[1024];
    snprintf(
        json, sizeof json,
        "{\"model_type\":\"t5\",\"vocab_size\":%d,\"d_model\":256,\"d_kv\":64,\"d_ff\":4500,\"num_heads\":4,"
        "\"num_layers\":2,\"num_decoder_layers\":2,\"feed_forward_proj\":\"gated-gelu\",\"tie_word_embeddings\":%s,"
        "\"decoder_start_token_id\":0,\"pad_token_id\":0,\"eos_token_id\":%d}",
        MANY_TILES_VOCAB, tied ? "true" : "false", MANY_TILES_END);
    nw_memory mem;
    nw_error  err = {0};
    nw_config config;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    NW_CHECK(nw_config_parse(&mem, "config.json", json, strlen(json), &config, &err) == NW_OK);
    nw_tensor_need list[128];
    nw_tensors     tensors;
    NW_CHECK(nw_tensors_count(&config) <= sizeof list / sizeof *list);
    nw_tensors_fill(&config, list, &tensors);
    nw_writer *w = NULL;
    NW_CHECK(nw_writer_open(&mem, dir, 4 << 20, &w, &err) == NW_OK);
    for (uint32_t i = 0; i < tensors.count; i++) {
        char     name[128];
        bool     flat = list[i].vector && list[i].role != NW_ROLE_BIAS;
        uint64_t dims[2] = {flat ? list[i].cols : list[i].rows, list[i].cols};
        NW_CHECK(nw_tensor_name(&config, &list[i], 0, name, sizeof name));
        NW_CHECK(nw_writer_declare(w, name, many_tiles_dtype(i), dims, flat ? 1 : 2, &err) == NW_OK);
    }
    for (uint32_t i = 0; i < tensors.count; i++)
        many_tiles_data(w, &list[i], many_tiles_dtype(i), &seed);
    NW_CHECK(nw_writer_file(w, "config.json", json, strlen(json), &err) == NW_OK);
    NW_CHECK(nw_writer_finish(w, &err) == NW_OK);
    nw_writer_close(w);
}

#endif

/* The vectors of the bundled model: tests/data/numbers-t5/vectors.jsonl, one object a line. */
#ifndef NW_TEST_VECTORS_H
#define NW_TEST_VECTORS_H

#include "base/check.h"
#include "golden.h"

#include <stdint.h>

enum { VECTOR_IDS_MAX = 256 };

typedef struct {
    cJSON  *list;   /* of the lines' objects */
    cJSON **greedy; /* those that the reference answered greedily; belong to `list` */
    size_t  greedy_count;
} vectors;

/* Exits the test program on failure: without vectors there is nothing to test. */
static inline vectors vectors_open(void)
{
    vectors v = {.list = cJSON_CreateArray()};
    char   *text = golden_read_text(NW_TEST_DATA "/numbers-t5/vectors.jsonl");
    golden_need(text != NULL, "vectors.jsonl", NULL);
    size_t lines = 1;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    v.greedy = malloc(lines * sizeof(cJSON *));
    golden_need(v.greedy != NULL, "vectors.jsonl: memory", NULL);
    const char *end = text;
    for (const char *at = text; *(at += strspn(at, "\n")) != '\0'; at = end) {
        cJSON *object = cJSON_ParseWithOpts(at, &end, false);
        golden_need(cJSON_IsObject(object), "a line of vectors.jsonl", NULL);
        cJSON_AddItemToArray(v.list, object);
        if (!cJSON_HasObjectItem(object, "num_beams"))
            v.greedy[v.greedy_count++] = object;
    }
    free(text);
    golden_need(v.greedy_count > 0 && v.greedy_count < (size_t)cJSON_GetArraySize(v.list), "greedy and other vectors",
                NULL);
    return v;
}

static inline void vectors_close(vectors *v)
{
    free(v->greedy);
    cJSON_Delete(v->list);
}

static inline const char *vector_text(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    const char  *text = cJSON_GetStringValue(cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item);
    golden_need(text != NULL, key, NULL);
    return text;
}

/* An array of ids, or the first of an array of such arrays; returns how many. */
static inline size_t vector_ids(const cJSON *object, const char *key, uint32_t ids[VECTOR_IDS_MAX])
{
    const cJSON *item = cJSON_GetObjectItem(object, key), *id;
    size_t       count = 0;
    if (cJSON_IsArray(cJSON_GetArrayItem(item, 0)))
        item = cJSON_GetArrayItem(item, 0);
    cJSON_ArrayForEach(id, item)
    {
        golden_need(cJSON_IsNumber(id) && count < VECTOR_IDS_MAX, key, NULL);
        ids[count++] = (uint32_t)id->valueint;
    }
    golden_need(count > 0, key, NULL);
    return count;
}

#endif

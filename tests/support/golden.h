/* Reference vectors: the tensors of a golden.safetensors, read with the project's own reader into the heap. */
#ifndef NW_TEST_GOLDEN_H
#define NW_TEST_GOLDEN_H

#include "loader/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

typedef struct {
    nw_memory      mem;
    nw_io         *io;
    nw_checkpoint *file;
    cJSON         *json;
    char           dir[512];
} golden;

static inline char *golden_read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return NULL;
    char  *text = NULL;
    size_t used = 0, cap = 0, got;
    do {
        cap += 1 << 16;
        text = realloc(text, cap + 1);
        got = fread(text + used, 1, cap - used, f);
        used += got;
    } while (got > 0);
    text[used] = '\0';
    fclose(f);
    return text;
}

/* Exits the test program on failure: without vectors there is nothing to test. */
static inline void golden_need(bool ok, const char *what, const nw_error *err)
{
    if (ok)
        return;
    fprintf(stderr, "golden: %s: %s\n", what, err != NULL ? err->msg : "");
    exit(1);
}

static inline void golden_open(golden *g, const char *name)
{
    char     path[600];
    nw_error err = {0};
    snprintf(g->dir, sizeof g->dir, "%s/goldens/%s", NW_TEST_DATA, name);
    nw_memory_init(&g->mem, UINT64_MAX, NULL);
    golden_need(nw_io_open(&g->mem, &(nw_io_options){.depth = 1}, &g->io, &err) == NW_OK, name, &err);
    snprintf(path, sizeof path, "%s/golden.safetensors", g->dir);
    golden_need(nw_checkpoint_open(&g->mem, g->io, path, NULL, NULL, &g->file, &err) == NW_OK, path, &err);
    snprintf(path, sizeof path, "%s/golden.json", g->dir);
    char *text = golden_read_text(path);
    golden_need(text != NULL, path, NULL);
    g->json = cJSON_Parse(text);
    free(text);
    golden_need(g->json != NULL, path, NULL);
}

static inline void golden_close(golden *g)
{
    cJSON_Delete(g->json);
    nw_checkpoint_close(g->file);
    nw_io_close(g->io);
}

/* A tensor's data, in the heap (free it); NULL if there is none. dims gets its shape, 1 beyond its rank. */
static inline void *golden_tensor(golden *g, const char *name, size_t dims[2])
{
    const nw_tensor *t = nw_checkpoint_find(g->file, name);
    dims[0] = dims[1] = 0;
    if (t == NULL)
        return NULL;
    dims[0] = t->dim_count > 0 ? (size_t)t->dims[0] : 1;
    dims[1] = t->dim_count > 1 ? (size_t)t->dims[1] : 1;
    nw_error err = {0};
    void    *data = malloc((size_t)t->bytes + 1);
    golden_need(nw_file_read(&g->mem, g->io, nw_checkpoint_file(g->file, t->file), name, t->offset, data,
                             (size_t)t->bytes, NULL, &err) == NW_OK,
                name, &err);
    return data;
}

/* golden_tensor for "prefix.index". */
static inline void *golden_tensor_of(golden *g, const char *prefix, size_t index, size_t dims[2])
{
    char name[64];
    snprintf(name, sizeof name, "%s.%zu", prefix, index);
    return golden_tensor(g, name, dims);
}

#endif

/* A checkpoint's weights without their config.json, as people pass single files around: linked into an empty directory,
 * or rewritten with a path before each name and another network's tensors beside them. */
#ifndef NW_TEST_BARE_WEIGHTS_H
#define NW_TEST_BARE_WEIGHTS_H

#include "temp_dir.h"

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* Links what of the weights' files there is; returns the path to name: the file, or the index of several. */
static inline temp_path bare_weights_link(const temp_dir *dir, const char *from)
{
    DIR                 *listing = opendir(from);
    const struct dirent *entry;
    temp_path            named = {""};
    NW_CHECK(listing != NULL);
    while ((entry = readdir(listing)) != NULL) {
        if (strncmp(entry->d_name, "model", 5) != 0 && strncmp(entry->d_name, "pytorch_model", 13) != 0)
            continue;
        char      target[1024];
        temp_path path = temp_dir_path(dir, entry->d_name);
        int       len = snprintf(target, sizeof target, "%s/%s", from, entry->d_name);
        NW_CHECK(len > 0 && (size_t)len < sizeof target);
        NW_CHECK(symlink(target, path.text) == 0);
        if (strcmp(entry->d_name, "model.safetensors") == 0 || strcmp(entry->d_name, "pytorch_model.bin") == 0 ||
            strstr(entry->d_name, ".index.json") != NULL)
            named = path;
    }
    closedir(listing);
    NW_CHECK(named.text[0] != '\0');
    return named;
}

static inline cJSON *bare_weights_header(FILE *file, size_t *ret_bytes)
{
    unsigned char length[8];
    NW_CHECK(fread(length, 1, 8, file) == 8);
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | length[i];
    char *text = malloc((size_t)bytes + 1);
    NW_CHECK(text != NULL && fread(text, 1, (size_t)bytes, file) == bytes);
    text[bytes] = '\0';
    cJSON *header = cJSON_Parse(text);
    free(text);
    NW_CHECK(header != NULL);
    *ret_bytes = (size_t)bytes;
    return header;
}

/* A tensor of another network: 4 bytes at the end of `data_bytes` bytes of data. */
static inline void bare_weights_add(cJSON *header, const char *name, uint64_t data_bytes)
{
    cJSON *t = cJSON_AddObjectToObject(header, name), *offsets;
    cJSON_AddStringToObject(t, "dtype", "F32");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(t, "shape"), cJSON_CreateNumber(1));
    offsets = cJSON_AddArrayToObject(t, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)data_bytes));
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)data_bytes + 4));
}

/* Writes `dir`/repack.safetensors: the file's tensors with `prefix` before their names, and two of other networks. */
static inline temp_path bare_weights_repack(const temp_dir *dir, const char *from, const char *prefix)
{
    size_t header_bytes;
    FILE  *in = fopen(from, "rb");
    NW_CHECK(in != NULL);
    cJSON *header = bare_weights_header(in, &header_bytes), *repacked = cJSON_CreateObject(), *t, *next;
    for (t = header->child; t != NULL; t = next) {
        char name[256];
        next = t->next;
        snprintf(name, sizeof name, "%s%s", strcmp(t->string, "__metadata__") == 0 ? "" : prefix, t->string);
        cJSON_AddItemReferenceToObject(repacked, name, t);
    }
    struct stat st;
    NW_CHECK(fstat(fileno(in), &st) == 0);
    size_t data_bytes = (size_t)st.st_size - 8 - header_bytes;
    char  *data = malloc(data_bytes + 8);
    NW_CHECK(data != NULL && fread(data, 1, data_bytes, in) == data_bytes);
    memset(data + data_bytes, 0, 8);
    bare_weights_add(repacked, "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.bias", data_bytes);
    bare_weights_add(repacked, "first_stage_model.encoder.conv_in.bias", data_bytes + 4);
    char         *text = cJSON_PrintUnformatted(repacked);
    uint64_t      bytes = strlen(text);
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bytes >> (8 * i));
    temp_path path = temp_dir_path(dir, "repack.safetensors");
    FILE     *out = fopen(path.text, "wb");
    NW_CHECK(out != NULL && fwrite(length, 1, 8, out) == 8 && fwrite(text, 1, bytes, out) == bytes);
    NW_CHECK(fwrite(data, 1, data_bytes + 8, out) == data_bytes + 8);
    NW_CHECK(fclose(out) == 0 && fclose(in) == 0);
    free(data);
    cJSON_free(text);
    cJSON_Delete(repacked);
    cJSON_Delete(header);
    return path;
}

#endif

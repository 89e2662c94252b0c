/* A shard index: read by itself, and opened as a checkpoint in a directory with two shards. What is accepted names only
 * plain files, each tensor once, and agrees with the shards to the tensor. */
#include "fuzz_file.h"
#include "shard_index.h"
#include "temp_dir.h"

#define SHARD_A "a.safetensors"
#define SHARD_B "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"

static temp_dir  dir;
static temp_path index_path;

static void put_shard(const char *name, const char *header)
{
    unsigned char bytes[512] = {(unsigned char)strlen(header)};
    NW_CHECK(strlen(header) < 256);
    memcpy(bytes + 8, header, strlen(header));
    temp_dir_write(&dir, name, bytes, 8 + strlen(header) + 8);
}

static void remove_dir(void)
{
    temp_dir_remove(&dir);
}

static void make_dir(void)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    dir = temp_dir_make();
    put_shard(SHARD_A, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                       "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]}}");
    put_shard(SHARD_B, "{\"c\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}");
    index_path = temp_dir_path(&dir, INDEX);
    atexit(remove_dir);
}

static void check_index(const nw_shard_index *x)
{
    NW_CHECK(x->count > 0 && x->shard_count > 0 && x->shard_count <= x->count);
    for (size_t i = 0; i < x->shard_count; i++) {
        const char *name = x->shards[i];
        NW_CHECK(name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= 255);
        NW_CHECK(fuzz_utf8(name, strlen(name)));
        NW_CHECK(i == 0 || strcmp(x->shards[i - 1], name) < 0);
    }
    for (size_t i = 0; i < x->count; i++) {
        const nw_shard_entry *e = &x->entries[i];
        NW_CHECK(e->name[0] != '\0' && fuzz_utf8(e->name, strlen(e->name)));
        NW_CHECK(i == 0 || strcmp(x->entries[i - 1].name, e->name) < 0);
        NW_CHECK(e->shard < x->shard_count && x->shards[e->shard] == e->shard_name);
        NW_CHECK(nw_shard_index_find(x, e->name, strlen(e->name)) == e);
    }
    NW_CHECK(nw_shard_index_find(x, "", 0) == NULL);
}

/* Returns whether the index was read. */
static bool read_alone(const uint8_t *data, size_t size)
{
    static fuzz_file file = {.fd = -1};
    nw_memory        mem;
    nw_error         err = {0};
    nw_file          opened;
    if (file.fd < 0)
        file = fuzz_file_make();
    fuzz_file_set(&file, data, size);
    nw_code rc = nw_file_open(file.path, &opened, &err);
    if (!fuzz_parsed(rc, &err))
        return false;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_source      source = {.mem = &mem, .io = fuzz_io(), .file = &opened, .path = "index.json"};
    nw_names       names = {.mem = &mem};
    nw_shard_index index = {.mem = &mem};
    rc = nw_shard_index_read(&source, &names, &index, &err);
    bool good = fuzz_parsed(rc, &err);
    if (good)
        check_index(&index);
    nw_shard_index_free(&index);
    nw_names_free(&names);
    nw_file_close(&opened);
    fuzz_memory_check(&mem, size);
    return good;
}

static void open_beside_shards(const uint8_t *data, size_t size)
{
    nw_memory      mem;
    nw_error       err = {0};
    nw_checkpoint *c = NULL;
    temp_dir_write(&dir, INDEX, data, size);
    nw_memory_init(&mem, UINT64_MAX, NULL);
    nw_code rc = nw_checkpoint_open(&mem, fuzz_io(), index_path.text, NULL, NULL, &c, &err);
    NW_CHECK(rc == NW_OK || rc == NW_E_IO || rc == NW_E_FORMAT); /* NW_E_IO: a shard that is not there */
    if (fuzz_ok(rc, &err)) {
        bool a = nw_checkpoint_find(c, "a") != NULL, b = nw_checkpoint_find(c, "b") != NULL;
        bool has_c = nw_checkpoint_find(c, "c") != NULL;
        NW_CHECK(a == b && (a || has_c));
        NW_CHECK(nw_checkpoint_tensor_count(c) == (a ? 2u : 0u) + (has_c ? 1u : 0u));
        NW_CHECK(nw_checkpoint_file_count(c) == (a && has_c ? 2u : 1u));
        nw_checkpoint_close(c);
    }
    fuzz_memory_check(&mem, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (dir.path[0] == '\0')
        make_dir();
    if (read_alone(data, size))
        open_beside_shards(data, size);
    return 0;
}

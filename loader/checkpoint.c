/* Opening a checkpoint: finds its files, reads their headers, joins them into one table sorted by name.
 *
 * Which files: as transformers looks, safetensors before PyTorch, one file before an index. The index decides: a shard
 * holds exactly the tensors that the index says it holds, no more and no fewer, so that every name has one meaning. All
 * files are opened once and stay open, so that what was checked is what is read later.
 */
#include "loader/checkpoint.h"

#include "shard_index.h"
#include "weights.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* In the order in which transformers looks for them. */
static const char *const weights_names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                            "pytorch_model.bin.index.json"};
#define WEIGHTS_NAMES "model.safetensors or pytorch_model.bin, and no index of them,"

struct nw_checkpoint {
    nw_memory      *mem;
    char           *dir; /* dir_bytes with its NUL */
    size_t          dir_bytes;
    nw_file        *files;
    char          **paths;
    size_t          file_count;
    nw_tensor_table table;
    nw_pack        *pack; /* NULL: none; otherwise its shards are the files */
};

/* What opening needs besides the checkpoint itself. */
typedef struct {
    nw_checkpoint *checkpoint;
    nw_io         *io;
    uint64_t      *read_bytes;
} opening;

/* -- paths -- */

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

/* "dir/name" from the account; freed with its strlen() + 1. */
static char *path_join(nw_memory *mem, const char *dir, const char *name)
{
    size_t bytes = strlen(dir) + 1 + strlen(name) + 1;
    char  *path = nw_memory_alloc(mem, NW_TAG_INDEX, bytes, 1);
    if (path != NULL) {
        const char *slash = ends_with(dir, "/") ? "" : "/";
        snprintf(path, bytes, "%s%s%s", dir, slash, name);
    }
    return path;
}

static void path_free(nw_memory *mem, const char *dir, const char *name, char *path)
{
    nw_memory_free(mem, NW_TAG_INDEX, path, strlen(dir) + 1 + strlen(name) + 1, 1);
}

/* Keeps the directory part of a file's path, or the directory itself. */
static nw_code set_dir(nw_checkpoint *c, const char *path, bool is_dir, nw_error *err)
{
    const char *slash = strrchr(path, '/');
    size_t      len = is_dir ? strlen(path) : slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    const char *text = len > 0 ? path : ".";
    len = len > 0 ? len : 1;
    c->dir = nw_memory_alloc(c->mem, NW_TAG_INDEX, len + 1, 1);
    if (c->dir == NULL)
        return nw_memory_fail(c->mem, err, len + 1, path);
    c->dir_bytes = len + 1;
    memcpy(c->dir, text, len);
    return NW_OK;
}

/* True if the directory has an entry of that name, even a link that leads nowhere (whose opening then says so). */
static nw_code has_entry(const nw_checkpoint *c, const char *name, bool *ret_has, nw_error *err)
{
    char *path = path_join(c->mem, c->dir, name);
    if (path == NULL)
        return nw_memory_fail(c->mem, err, PATH_MAX, c->dir);
    struct stat st;
    *ret_has = lstat(path, &st) == 0;
    path_free(c->mem, c->dir, name, path);
    return NW_OK;
}

/* -- files -- */

static nw_code files_alloc(nw_checkpoint *c, size_t count, nw_error *err)
{
    c->files = nw_memory_alloc(c->mem, NW_TAG_INDEX, count, sizeof *c->files);
    if (c->files == NULL)
        return nw_memory_fail(c->mem, err, count * sizeof *c->files, c->dir);
    for (size_t i = 0; i < count; i++)
        c->files[i].fd = -1;
    c->file_count = count;
    c->paths = nw_memory_alloc(c->mem, NW_TAG_INDEX, count, sizeof *c->paths);
    return c->paths != NULL ? NW_OK : nw_memory_fail(c->mem, err, count * sizeof *c->paths, c->dir);
}

/* Opens one file under its path and reads its header. */
static nw_code file_read(opening *o, size_t index, const char *path, nw_name_fn name_fn, void *name_user, nw_error *err)
{
    nw_checkpoint *c = o->checkpoint;
    size_t         bytes = strlen(path) + 1;
    c->paths[index] = nw_memory_alloc(c->mem, NW_TAG_INDEX, bytes, 1);
    if (c->paths[index] == NULL)
        return nw_memory_fail(c->mem, err, bytes, path);
    memcpy(c->paths[index], path, bytes);

    nw_file file = {.fd = -1};
    nw_code rc = nw_file_open(path, &file, err);
    if (rc != NW_OK)
        return rc;
    c->files[index] = file;
    nw_source source = {
        .mem = c->mem, .io = o->io, .file = &c->files[index], .path = c->paths[index], .read_bytes = o->read_bytes};
    return nw_weights_read(&source, (uint32_t)index, &c->table, name_fn, name_user, err);
}

/* -- shards -- */

typedef struct {
    nw_shard_index *index;
    uint32_t        shard;
    const char     *path;
} shard_reader;

/* The index must list each tensor of the shard, for this shard. */
static nw_code shard_name(void *user, const char *name, size_t len, const char **ret_name, nw_error *err)
{
    shard_reader   *r = user;
    nw_shard_entry *entry = nw_shard_index_find(r->index, name, len);
    int             shown = (int)nw_min_size(len, 200);
    if (entry == NULL)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.*s' is not in the index", r->path, shown, name);
    if (entry->shard != r->shard) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.*s' is in this file, and by the index in '%.100s'",
                       r->path, shown, name, entry->shard_name);
    }
    entry->seen = true;
    *ret_name = entry->name;
    return NW_OK;
}

static nw_code shards_read(opening *o, nw_shard_index *index, nw_error *err)
{
    nw_checkpoint *c = o->checkpoint;
    nw_code        rc = files_alloc(c, index->shard_count, err);
    for (size_t i = 0; i < index->shard_count && rc == NW_OK; i++) {
        char *path = path_join(c->mem, c->dir, index->shards[i]);
        if (path == NULL)
            return nw_memory_fail(c->mem, err, PATH_MAX, c->dir);
        shard_reader reader = {.index = index, .shard = (uint32_t)i, .path = path};
        rc = file_read(o, i, path, shard_name, &reader, err);
        path_free(c->mem, c->dir, index->shards[i], path);
    }
    for (size_t i = 0; i < index->count && rc == NW_OK; i++) {
        if (!index->entries[i].seen) {
            rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s' is not in '%.100s'", index->path,
                         index->entries[i].name, index->entries[i].shard_name);
        }
    }
    return rc;
}

static nw_code index_open(opening *o, const char *path, nw_error *err)
{
    nw_checkpoint *c = o->checkpoint;
    nw_file        file = {.fd = -1};
    nw_shard_index index = {.mem = c->mem};
    nw_code        rc = nw_file_open(path, &file, err);
    if (rc != NW_OK)
        return rc;
    nw_source source = {.mem = c->mem, .io = o->io, .file = &file, .path = path, .read_bytes = o->read_bytes};
    rc = nw_shard_index_read(&source, &c->table.names, &index, err);
    nw_file_close(&file);
    if (rc == NW_OK)
        rc = shards_read(o, &index, err);
    nw_shard_index_free(&index);
    return rc;
}

/* -- what to open -- */

static bool ends_with_any(const char *name, const char *const *ends)
{
    while (*ends != NULL && !ends_with(name, *ends))
        ends++;
    return *ends != NULL;
}

/* Weights of another format, by the names that transformers and llama.cpp give them. */
static bool other_weights(const char *name)
{
    static const char *const others[] = {".gguf", ".msgpack", ".h5", NULL};
    return ends_with_any(name, others);
}

/* Weights under another name than a directory's weights have; a training_args.bin is none. */
static bool loose_weights(const char *name)
{
    static const char *const ends[] = {".safetensors", ".pt", ".pth", ".ckpt", NULL};
    return ends_with_any(name, ends) || (ends_with(name, ".bin") && strncmp(name, "pytorch_model", 13) == 0);
}

/* A low-rank adapter (LoRA) is a difference to a model, not a model. */
static bool is_adapter(const char *name)
{
    return strcmp(name, "adapter_config.json") == 0 || strncmp(name, "adapter_model.", 14) == 0;
}

static nw_code fail_adapter(const char *path, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_UNSUPPORTED, 0,
                   "'%s' is a LoRA adapter ('%.100s'), not a model: merge it into its base model first "
                   "(merge_and_unload in peft) and save the result",
                   path, what);
}

/* None of the names is there: says what is. */
static nw_code fail_nothing(const char *dir, nw_error *err)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return nw_fail(err, NW_E_IO, errno, "open '%s'", dir);
    char           found[3][256] = {"", "", ""}; /* an adapter, other weights, loose ones */
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        int         kind = is_adapter(name) ? 0 : other_weights(name) ? 1 : loose_weights(name) ? 2 : -1;
        /* The first by name, so that the message does not depend on the directory's order. */
        if (kind >= 0 && (found[kind][0] == '\0' || strcmp(name, found[kind]) < 0))
            snprintf(found[kind], sizeof found[kind], "%s", name);
    }
    closedir(d);
    if (found[0][0] != '\0')
        return fail_adapter(dir, found[0], err);
    if (found[1][0] != '\0') {
        return nw_fail(err, NW_E_UNSUPPORTED, 0,
                       "'%s' has '%.100s' but no " WEIGHTS_NAMES " and only safetensors and PyTorch can be read", dir,
                       found[1]);
    }
    if (found[2][0] != '\0') {
        return nw_fail(err, NW_E_FORMAT, 0, "no " WEIGHTS_NAMES " in '%s'; to open '%.100s', name that file", dir,
                       found[2]);
    }
    return nw_fail(err, NW_E_FORMAT, 0, "no " WEIGHTS_NAMES " in '%s'", dir);
}

static nw_code file_open(opening *o, const char *path, nw_error *err)
{
    static const char *const indexes[] = {".safetensors.index.json", ".bin.index.json", NULL};
    if (ends_with_any(path, indexes))
        return index_open(o, path, err);
    nw_code rc = files_alloc(o->checkpoint, 1, err);
    return rc == NW_OK ? file_read(o, 0, path, NULL, NULL, err) : rc;
}

/* A pack's tensors as a table, which has their order: sorted by name. */
static nw_code pack_open(opening *o, nw_error *err)
{
    static const char *const labels[NW_STORED_COUNT] = {"F32", "BF16", "F16", "Q8", "Q4"};
    nw_checkpoint           *c = o->checkpoint;
    nw_code                  rc = nw_pack_open(c->mem, o->io, c->dir, o->read_bytes, &c->pack, err);
    if (rc != NW_OK)
        return rc;
    size_t count = nw_pack_tensor_count(c->pack);
    c->table.tensors = nw_memory_alloc(c->mem, NW_TAG_INDEX, count, sizeof *c->table.tensors);
    if (c->table.tensors == NULL)
        return nw_memory_fail(c->mem, err, count * sizeof *c->table.tensors, c->dir);
    c->table.cap = c->table.count = count;
    for (size_t i = 0; i < count; i++) {
        nw_pack_tensor p = nw_pack_tensor_at(c->pack, i);
        nw_pack_tile   first = nw_pack_tile_at(c->pack, p.tile_first);
        nw_tensor     *t = &c->table.tensors[i];
        *t = (nw_tensor){.name = p.name,
                         .known = true,
                         .dtype = nw_stored_is_quantised(p.stored) ? NW_F32 : (nw_dtype)p.stored,
                         .dim_count = p.dim_count,
                         .dims = {p.dims[0], p.dims[1]},
                         .file = first.shard,
                         .offset = first.offset + nw_pack_strip_at(c->pack, first.strip_first).offset};
        snprintf(t->dtype_name, sizeof t->dtype_name, "%s", labels[p.stored]);
        for (uint32_t k = 0; k < p.tile_count; k++) {
            nw_pack_tile tile = nw_pack_tile_at(c->pack, (size_t)p.tile_first + k);
            for (uint32_t s = 0; s < tile.strip_count; s++)
                t->bytes += nw_pack_strip_at(c->pack, (size_t)tile.strip_first + s).bytes;
        }
    }
    return NW_OK;
}

static nw_code dir_open(opening *o, nw_error *err)
{
    if (nw_pack_is(o->checkpoint->dir))
        return pack_open(o, err);

    nw_checkpoint *c = o->checkpoint;
    for (size_t i = 0; i < sizeof weights_names / sizeof *weights_names; i++) {
        bool    has = false;
        nw_code rc = has_entry(c, weights_names[i], &has, err);
        if (rc != NW_OK)
            return rc;
        if (!has)
            continue;
        char *path = path_join(c->mem, c->dir, weights_names[i]);
        if (path == NULL)
            return nw_memory_fail(c->mem, err, PATH_MAX, c->dir);
        rc = file_open(o, path, err);
        path_free(c->mem, c->dir, weights_names[i], path);
        return rc;
    }
    return fail_nothing(c->dir, err);
}

static int compare_names(const void *a, const void *b)
{
    const nw_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorts the table by name. A name has one meaning: JSON refuses two, a pickle's dict may hold them. */
static nw_code table_finish(nw_checkpoint *c, const char *path, nw_error *err)
{
    nw_tensor *t = c->table.tensors;
    if (c->table.count > 0)
        nw_sort(t, c->table.count, sizeof *t, compare_names);
    for (size_t i = 0; i < c->table.count; i++) {
        if (i > 0 && strcmp(t[i - 1].name, t[i].name) == 0)
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s' is there twice", path, t[i].name);
    }
    return NW_OK;
}

nw_code nw_checkpoint_open(nw_memory *mem, nw_io *io, const char *path, const nw_log *log, uint64_t *read_bytes,
                           nw_checkpoint **ret_checkpoint, nw_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return nw_fail(err, NW_E_IO, errno, "open '%s'", path);
    nw_checkpoint *c = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *c);
    if (c == NULL)
        return nw_memory_fail(mem, err, sizeof *c, path);
    c->mem = mem;
    c->table.names.mem = mem;

    bool    is_dir = S_ISDIR(st.st_mode);
    opening o = {.checkpoint = c, .io = io, .read_bytes = read_bytes};
    nw_code rc = set_dir(c, path, is_dir, err);
    if (rc == NW_OK)
        rc = is_dir ? dir_open(&o, err) : file_open(&o, path, err);
    if (rc == NW_OK)
        rc = table_finish(c, path, err);
    if (rc != NW_OK) {
        nw_checkpoint_close(c);
        return rc;
    }

    nw_log_line(log, NW_LOG_DEBUG, "'%s': %zu tensors in %zu files", path, c->table.count, c->file_count);
    *ret_checkpoint = c;
    return NW_OK;
}

nw_checkpoint *nw_checkpoint_close(nw_checkpoint *checkpoint)
{
    nw_checkpoint *c = checkpoint;
    if (c == NULL)
        return NULL;
    for (size_t i = 0; i < c->file_count; i++) {
        nw_file_close(&c->files[i]);
        if (c->paths != NULL && c->paths[i] != NULL)
            nw_memory_free(c->mem, NW_TAG_INDEX, c->paths[i], strlen(c->paths[i]) + 1, 1);
    }
    nw_memory_free(c->mem, NW_TAG_INDEX, c->files, c->file_count, sizeof *c->files);
    nw_memory_free(c->mem, NW_TAG_INDEX, c->paths, c->file_count, sizeof *c->paths);
    nw_memory_free(c->mem, NW_TAG_INDEX, c->dir, c->dir_bytes, 1);
    nw_tensor_table_free(&c->table);
    nw_pack_close(c->pack);
    nw_memory_free(c->mem, NW_TAG_INDEX, c, 1, sizeof *c);
    return NULL;
}

size_t nw_checkpoint_tensor_count(const nw_checkpoint *checkpoint)
{
    return checkpoint->table.count;
}

const nw_tensor *nw_checkpoint_tensor(const nw_checkpoint *checkpoint, size_t index)
{
    NW_CHECK(index < checkpoint->table.count);
    return &checkpoint->table.tensors[index];
}

size_t nw_checkpoint_index(const nw_checkpoint *checkpoint, const nw_tensor *tensor)
{
    NW_CHECK(tensor >= checkpoint->table.tensors && tensor < checkpoint->table.tensors + checkpoint->table.count);
    return (size_t)(tensor - checkpoint->table.tensors);
}

const nw_tensor *nw_checkpoint_find(const nw_checkpoint *checkpoint, const char *name)
{
    size_t low = 0, high = checkpoint->table.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int    order = strcmp(name, checkpoint->table.tensors[middle].name);
        if (order == 0)
            return &checkpoint->table.tensors[middle];
        if (order > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

size_t nw_checkpoint_file_count(const nw_checkpoint *checkpoint)
{
    return checkpoint->pack != NULL ? nw_pack_shard_count(checkpoint->pack) : checkpoint->file_count;
}

const nw_file *nw_checkpoint_file(const nw_checkpoint *checkpoint, size_t index)
{
    NW_CHECK(index < nw_checkpoint_file_count(checkpoint));
    return checkpoint->pack != NULL ? nw_pack_shard(checkpoint->pack, index) : &checkpoint->files[index];
}

const char *nw_checkpoint_file_path(const nw_checkpoint *checkpoint, size_t index)
{
    NW_CHECK(index < nw_checkpoint_file_count(checkpoint));
    return checkpoint->pack != NULL ? nw_pack_shard_path(checkpoint->pack, index) : checkpoint->paths[index];
}

const nw_pack *nw_checkpoint_pack(const nw_checkpoint *checkpoint)
{
    return checkpoint->pack;
}

const char *nw_checkpoint_dir(const nw_checkpoint *checkpoint)
{
    return checkpoint->dir;
}

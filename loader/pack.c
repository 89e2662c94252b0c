/* Opening a pack, and looking things up in it.
 *
 * The index stays in memory as it is in the file; a record is read out of it where it is asked for. All shards are
 * opened once and stay open, so that what was checked is what is read later.
 */
#define XXH_STATIC_LINKING_ONLY /* a state that is a member */
#include "pack_state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <xxhash.h>

bool nw_pack_is(const char *dir)
{
    char        path[PATH_MAX];
    struct stat st;
    int         len = snprintf(path, sizeof path, "%s/" NW_PACK_MANIFEST, dir);
    return len > 0 && (size_t)len < sizeof path && lstat(path, &st) == 0;
}

void nw_pack_path(const nw_pack *pack, const char *name, char ret_path[PATH_MAX])
{
    int len = snprintf(ret_path, PATH_MAX, "%s/%s", pack->dir, name);
    NW_CHECK(len > 0 && len < PATH_MAX);
}

/* -- opening -- */

static nw_code fail_memory(const nw_pack *p, nw_error *err)
{
    return nw_memory_fail(p->mem, err, PATH_MAX, p->dir != NULL ? p->dir : "");
}

/* A path that stays; NULL: no memory. */
static const char *keep_path(nw_pack *p, const char *name)
{
    char path[PATH_MAX];
    nw_pack_path(p, name, path);
    return nw_names_add(&p->names, path, strlen(path));
}

static nw_code set_paths(nw_pack *p, const char *dir, nw_error *err)
{
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    if (len == 0 || len > PATH_MAX - 300)
        return nw_fail(err, NW_E_IO, ENAMETOOLONG, "open '%.200s'", dir);
    p->dir = nw_names_add(&p->names, dir, len);
    if (p->dir == NULL)
        return fail_memory(p, err);
    p->manifest_path = keep_path(p, NW_PACK_MANIFEST);
    p->index_path = keep_path(p, NW_PACK_INDEX);
    return p->manifest_path != NULL && p->index_path != NULL ? NW_OK : fail_memory(p, err);
}

/* Whether a file is the shard that it is called. */
static nw_code check_shard(const nw_pack *p, size_t shard, nw_error *err)
{
    const nw_file *file = &p->shards[shard];
    const char    *path = p->shard_paths[shard], *why = NULL;
    unsigned char  h[NW_PACK_ALIGN];
    if (file->size != p->shard_files[shard].bytes) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' has %llu bytes, and by the manifest %llu", path,
                       (unsigned long long)file->size, (unsigned long long)p->shard_files[shard].bytes);
    }
    nw_code rc = nw_file_read(p->mem, p->io, file, path, 0, h, sizeof h, p->read_bytes, err);
    if (rc != NW_OK)
        return rc;
    if (memcmp(h, NW_PACK_SHARD_MAGIC, 8) != 0)
        why = "is not a shard of a pack, or was never finished";
    else if (nw_get_u32(h + 8) != NW_PACK_VERSION)
        why = "is a shard of a version that this one does not read";
    if (why != NULL)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' %s", path, why);
    if (XXH3_64bits(h, NW_PACK_SHARD_CHECK) != nw_get_u64(h + NW_PACK_SHARD_CHECK))
        return nw_fail(err, NW_E_IO, 0, "'%s': its header's checksum is wrong: the file is damaged", path);
    if (nw_get_u64(h + 40) != p->index_file.xxh3)
        why = "is a shard of another pack";
    else if (nw_get_u32(h + 12) != shard || nw_get_u32(h + 16) != p->shard_count)
        why = "is another shard of this pack";
    else if (nw_get_u64(h + 24) != file->size || nw_get_u64(h + 32) != p->shard_files[shard].xxh3)
        why = "is not the shard that the manifest names";
    return why == NULL ? NW_OK : nw_fail(err, NW_E_FORMAT, 0, "'%s' %s", path, why);
}

static nw_code open_shards(nw_pack *p, nw_error *err)
{
    p->shards = nw_memory_alloc(p->mem, NW_TAG_INDEX, p->shard_count, sizeof *p->shards);
    p->shard_paths = nw_memory_alloc(p->mem, NW_TAG_INDEX, p->shard_count, sizeof *p->shard_paths);
    for (size_t i = 0; i < p->shard_count && p->shards != NULL; i++)
        p->shards[i].fd = -1;
    if (p->shards == NULL || p->shard_paths == NULL)
        return fail_memory(p, err);
    for (size_t i = 0; i < p->shard_count; i++) {
        p->shard_paths[i] = keep_path(p, p->shard_files[i].name);
        if (p->shard_paths[i] == NULL)
            return fail_memory(p, err);
        nw_file file = {.fd = -1};
        nw_code rc = nw_file_open(p->shard_paths[i], &file, err);
        if (rc != NW_OK)
            return rc;
        p->shards[i] = file;
        rc = check_shard(p, i, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

/* The files beside are there and of the right size; what is in them is for nw_pack_verify and their readers. */
static nw_code check_files(nw_pack *p, nw_error *err)
{
    for (size_t i = 0; i < p->file_count; i++) {
        char        path[PATH_MAX];
        struct stat st;
        nw_pack_path(p, p->files[i].name, path);
        if (stat(path, &st) != 0)
            return nw_fail(err, NW_E_IO, errno, "open '%s'", path);
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != p->files[i].bytes) {
            return nw_fail(err, NW_E_FORMAT, 0, "'%s' is not of the size that the manifest says: %llu bytes", path,
                           (unsigned long long)p->files[i].bytes);
        }
    }
    return NW_OK;
}

nw_code nw_pack_open(nw_memory *mem, nw_io *io, const char *dir, uint64_t *read_bytes, nw_pack **ret_pack,
                     nw_error *err)
{
    nw_pack *p = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *p);
    if (p == NULL)
        return nw_memory_fail(mem, err, sizeof *p, dir);
    p->mem = p->names.mem = mem;
    p->io = io;
    p->read_bytes = read_bytes;
    nw_code rc = set_paths(p, dir, err);
    if (rc == NW_OK)
        rc = nw_pack_read_manifest(p, err);
    if (rc == NW_OK)
        rc = nw_pack_read_index(p, err);
    if (rc == NW_OK)
        rc = open_shards(p, err);
    if (rc == NW_OK)
        rc = check_files(p, err);
    if (rc != NW_OK) {
        nw_pack_close(p);
        return rc;
    }
    p->io = NULL;
    p->read_bytes = NULL;
    *ret_pack = p;
    return NW_OK;
}

nw_pack *nw_pack_close(nw_pack *pack)
{
    nw_pack *p = pack;
    if (p == NULL)
        return NULL;
    for (size_t i = 0; i < p->shard_count && p->shards != NULL; i++)
        nw_file_close(&p->shards[i]);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->shards, p->shard_count, sizeof *p->shards);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->shard_paths, p->shard_count, sizeof *p->shard_paths);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->shard_files, p->shard_cap, sizeof *p->shard_files);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->files, p->file_cap, sizeof *p->files);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->aliases, p->alias_cap, sizeof *p->aliases);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->holdings, p->holding_cap, sizeof *p->holdings);
    nw_memory_free(p->mem, NW_TAG_INDEX, p->index, p->index_bytes, 1);
    nw_names_free(&p->names);
    nw_memory_free(p->mem, NW_TAG_INDEX, p, 1, sizeof *p);
    return NULL;
}

/* -- records -- */

const char *nw_pack_dir(const nw_pack *pack)
{
    return pack->dir;
}

const nw_pack_summary *nw_pack_about(const nw_pack *pack)
{
    return &pack->about;
}

size_t nw_pack_tensor_count(const nw_pack *pack)
{
    return (size_t)pack->tensor_count;
}

nw_pack_tensor nw_pack_tensor_at(const nw_pack *pack, size_t index)
{
    const unsigned char *r = nw_pack_tensor_record(pack, index);
    nw_pack_tensor       t = {0};
    t.name = nw_pack_names(pack) + nw_get_u32(r);
    t.tile_first = nw_get_u32(r + 4);
    t.tile_count = nw_get_u32(r + 8);
    t.stride = nw_get_u32(r + 12);
    t.dims[0] = nw_get_u64(r + 16);
    t.dims[1] = nw_get_u64(r + 24);
    t.dim_count = r[32];
    t.source = (nw_dtype)r[33];
    t.stored = (nw_stored)r[34];
    t.lossy = (r[35] & NW_PACK_LOSSY) != 0;
    t.rows = t.dim_count == 1 ? 1 : t.dims[0];
    t.cols = t.dim_count == 1 ? t.dims[0] : t.dims[1];
    return t;
}

size_t nw_pack_tile_count(const nw_pack *pack)
{
    return (size_t)pack->tile_count;
}

nw_pack_tile nw_pack_tile_at(const nw_pack *pack, size_t index)
{
    const unsigned char *r = nw_pack_tile_record(pack, index);
    return (nw_pack_tile){
        .offset = nw_get_u64(r),
        .bytes = nw_get_u32(r + 8),
        .shard = nw_get_u32(r + 12),
        .tensor = nw_get_u32(r + 16),
        .tile = nw_get_u32(r + 20),
        .strip_first = nw_get_u32(r + 24),
        .strip_count = nw_get_u32(r + 28),
    };
}

nw_pack_strip nw_pack_strip_at(const nw_pack *pack, size_t index)
{
    const unsigned char *r = nw_pack_strip_record(pack, index);
    uint32_t             bytes_form = nw_get_u32(r + 12);
    return (nw_pack_strip){
        .xxh3 = nw_get_u64(r),
        .offset = nw_get_u32(r + 8),
        .bytes = bytes_form & (uint32_t)NW_PACK_STRIP_BYTES_MAX,
        .form = (nw_form)(bytes_form >> 24),
    };
}

size_t nw_pack_alias_count(const nw_pack *pack)
{
    return pack->alias_count;
}

nw_pack_alias nw_pack_alias_at(const nw_pack *pack, size_t index)
{
    NW_CHECK(index < pack->alias_count);
    return pack->aliases[index];
}

size_t nw_pack_shard_count(const nw_pack *pack)
{
    return pack->shard_count;
}

const nw_file *nw_pack_shard(const nw_pack *pack, size_t shard)
{
    NW_CHECK(shard < pack->shard_count);
    return &pack->shards[shard];
}

const char *nw_pack_shard_path(const nw_pack *pack, size_t shard)
{
    NW_CHECK(shard < pack->shard_count);
    return pack->shard_paths[shard];
}

size_t nw_pack_block_count(const nw_pack *pack, size_t shard)
{
    size_t count = 0;
    for (size_t i = 0; i < pack->holding_count; i++)
        count += pack->holdings[i].shard == shard;
    return count;
}

const char *nw_pack_block(const nw_pack *pack, size_t shard, size_t index)
{
    size_t at = 0;
    while (at < pack->holding_count && pack->holdings[at].shard < shard)
        at++;
    NW_CHECK(index < pack->holding_count - at && pack->holdings[at + index].shard == shard);
    return pack->holdings[at + index].name;
}

/* -- files beside -- */

/* The record of a file by its path; NULL: it is none of the pack's. */
static const nw_pack_file *find_file(const nw_pack *p, const char *path)
{
    size_t dir = strlen(p->dir);
    if (strncmp(path, p->dir, dir) != 0 || path[dir] != '/')
        return NULL;
    const char *name = path + dir + strspn(path + dir, "/");
    for (size_t i = 0; i < p->file_count; i++) {
        if (strcmp(p->files[i].name, name) == 0)
            return &p->files[i];
    }
    return NULL;
}

static nw_code check_file(const nw_pack_file *f, const char *path, uint64_t bytes, uint64_t xxh3, nw_error *err)
{
    if (f->bytes == bytes && f->xxh3 == xxh3)
        return NW_OK;
    return nw_fail(err, NW_E_IO, 0, "'%s': its checksum is wrong: the file is damaged, or not the one packed", path);
}

nw_code nw_pack_file_check(const nw_pack *pack, const char *path, const void *bytes, size_t len, nw_error *err)
{
    const nw_pack_file *f = find_file(pack, path);
    return f != NULL ? check_file(f, path, len, XXH3_64bits(bytes, len), err) : NW_OK;
}

struct nw_pack_hash {
    XXH3_state_t        state; /* wants more alignment than the heap gives: a mapping */
    nw_memory          *mem;
    const nw_pack_file *file;
    uint64_t            bytes;
};
static_assert(sizeof(struct nw_pack_hash) <= NW_PACK_HASH_BYTES, "it takes what it says");

nw_code nw_pack_hash_open(const nw_pack *pack, nw_memory *mem, const char *path, nw_pack_hash **ret_hash, nw_error *err)
{
    const nw_pack_file *f = find_file(pack, path);
    *ret_hash = NULL;
    if (f == NULL)
        return NW_OK;
    nw_pack_hash *h = nw_memory_map(mem, NW_TAG_INDEX, NW_PACK_HASH_BYTES, false);
    if (h == NULL)
        return nw_memory_fail(mem, err, NW_PACK_HASH_BYTES, path);
    h->mem = mem;
    h->file = f;
    XXH3_64bits_reset(&h->state);
    *ret_hash = h;
    return NW_OK;
}

void nw_pack_hash_add(nw_pack_hash *hash, const void *bytes, size_t len)
{
    if (hash == NULL)
        return;
    XXH3_64bits_update(&hash->state, bytes, len);
    hash->bytes += len;
}

nw_code nw_pack_hash_check(const nw_pack_hash *hash, const char *path, nw_error *err)
{
    if (hash == NULL)
        return NW_OK;
    return check_file(hash->file, path, hash->bytes, XXH3_64bits_digest(&hash->state), err);
}

nw_pack_hash *nw_pack_hash_close(nw_pack_hash *hash)
{
    if (hash != NULL)
        nw_memory_unmap(hash->mem, NW_TAG_INDEX, hash, NW_PACK_HASH_BYTES);
    return NULL;
}

/* -- strips -- */

uint64_t nw_pack_strip_seed(uint32_t tensor, uint32_t tile, uint32_t strip)
{
    NW_CHECK(tensor < 1u << 24 && strip < 1u << 8);
    return (uint64_t)tensor << 40 | (uint64_t)tile << 8 | strip;
}

uint64_t nw_pack_strip_hash(uint32_t tensor, uint32_t tile, uint32_t strip, const void *bytes, size_t len)
{
    return XXH3_64bits_withSeed(bytes, len, nw_pack_strip_seed(tensor, tile, strip));
}

bool nw_pack_strip_check(const nw_pack *pack, size_t tile, uint32_t strip, const void *bytes)
{
    nw_pack_tile t = nw_pack_tile_at(pack, tile);
    NW_CHECK(strip < t.strip_count);
    nw_pack_strip s = nw_pack_strip_at(pack, t.strip_first + strip);
    return nw_pack_strip_hash(t.tensor, t.tile, strip, bytes, s.bytes) == s.xxh3;
}

nw_code nw_pack_strip_fail(const nw_pack *pack, size_t tile, uint32_t strip, const char *why, nw_error *err)
{
    nw_pack_tile   t = nw_pack_tile_at(pack, tile);
    nw_pack_tensor tensor = nw_pack_tensor_at(pack, t.tensor);
    nw_code        rc =
        nw_fail(err, NW_E_IO, 0, "'%s': tensor '%.200s', tile %u, strip %u: %s", nw_pack_shard_path(pack, t.shard),
                tensor.name, t.tile, strip, why != NULL ? why : "its checksum is wrong: the file is damaged");
    if (err != NULL)
        err->offset = t.offset + nw_pack_strip_at(pack, t.strip_first + strip).offset;
    return rc;
}

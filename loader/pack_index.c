/* Reading tiles.idx, and believing none of it.
 *
 * Everything that follows from something else is checked against it: how many tiles and strips a shape gives, where a
 * strip begins after the one before, where a tile begins after the one before it in its shard. So what is accepted
 * covers each shard exactly, without holes or overlaps, and no later read can leave its file.
 */
#include "pack_state.h"

#include <xxhash.h>

#define BYTES_MAX ((uint64_t)1 << 32)

static nw_code fail(const nw_pack *p, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': %s", p->index_path, what);
}

static nw_code fail_tensor(const nw_pack *p, size_t index, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s': %s", p->index_path, nw_pack_tensor_at(p, index).name,
                   what);
}

static nw_code fail_tile(const nw_pack *p, const nw_pack_tensor *t, uint64_t tile, const char *what, nw_error *err)
{
    return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s', tile %llu: %s", p->index_path, t->name,
                   (unsigned long long)tile, what);
}

static bool all_zero(const unsigned char *p, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (p[i] != 0)
            return false;
    }
    return true;
}

/* -- the file -- */

static nw_code read_file(nw_pack *p, nw_error *err)
{
    nw_file file = {.fd = -1};
    nw_code rc = nw_file_open(p->index_path, &file, err);
    if (rc != NW_OK)
        return rc;
    if (file.size != p->index_file.bytes) {
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' has %llu bytes, and by the manifest %llu", p->index_path,
                     (unsigned long long)file.size, (unsigned long long)p->index_file.bytes);
    } else if (file.size < NW_PACK_HEADER_BYTES + NW_PACK_CHECK_BYTES || file.size > BYTES_MAX) {
        rc = fail(p, "cannot be an index of this size", err);
    } else {
        p->index_bytes = (size_t)file.size;
        p->index = nw_memory_alloc(p->mem, NW_TAG_INDEX, p->index_bytes, 1);
        rc = p->index == NULL
                 ? nw_memory_fail(p->mem, err, p->index_bytes, p->index_path)
                 : nw_file_read(p->mem, p->io, &file, p->index_path, 0, p->index, p->index_bytes, p->read_bytes, err);
    }
    nw_file_close(&file);
    return rc;
}

/* What the file is, whether it is whole, and how many records of each kind it has. */
static nw_code read_header(nw_pack *p, nw_error *err)
{
    const unsigned char *h = p->index;
    if (memcmp(h, NW_PACK_INDEX_MAGIC, 8) != 0)
        return fail(p, "is not the index of a pack", err);
    if (nw_get_u32(h + 8) != NW_PACK_VERSION) {
        return nw_fail(err, NW_E_UNSUPPORTED, 0, "'%s': an index of version %u, and this one reads version %d",
                       p->index_path, nw_get_u32(h + 8), NW_PACK_VERSION);
    }
    size_t   checked = p->index_bytes - NW_PACK_CHECK_BYTES;
    uint64_t xxh3 = XXH3_64bits(p->index, checked);
    if (xxh3 != nw_get_u64(p->index + checked))
        return nw_fail(err, NW_E_IO, 0, "'%s': its checksum is wrong: the file is damaged", p->index_path);
    if (xxh3 != p->index_file.xxh3)
        return fail(p, "is not the index that the manifest names: it belongs to another pack", err);

    p->tensor_count = nw_get_u64(h + 16);
    p->tile_count = nw_get_u64(h + 24);
    p->strip_count = nw_get_u64(h + 32);
    p->name_bytes = nw_get_u64(h + 40);
    uint64_t size = NW_PACK_HEADER_BYTES + NW_PACK_CHECK_BYTES, part = 0;
    bool fits = p->tensor_count > 0 && p->tensor_count <= NW_TENSOR_COUNT_MAX && p->tile_count <= NW_PACK_TILES_MAX &&
                p->strip_count <= NW_PACK_TILES_MAX;
    fits = fits && nw_mul_u64(p->tensor_count, NW_PACK_TENSOR_BYTES, &part) && nw_add_u64(size, part, &size);
    fits = fits && nw_mul_u64(p->tile_count, NW_PACK_TILE_BYTES, &part) && nw_add_u64(size, part, &size);
    fits = fits && nw_mul_u64(p->strip_count, NW_PACK_STRIP_BYTES, &part) && nw_add_u64(size, part, &size);
    fits = fits && nw_add_u64(size, p->name_bytes, &size);
    if (!fits || size != p->index_bytes || nw_get_u64(h + 48) != size)
        return fail(p, "its size is not that of the records it claims to have", err);
    if (nw_get_u32(h + 12) != p->shard_count)
        return fail(p, "has another number of shards than the manifest", err);
    return all_zero(h + 56, 8) ? NW_OK : fail(p, "has fields in its header that are not known", err);
}

/* -- tensors -- */

/* Names stand one behind the other in the order of the records, sorted. */
static nw_code check_name(const nw_pack *p, size_t index, uint64_t *name_at, const char **last, nw_error *err)
{
    const unsigned char *r = nw_pack_tensor_record(p, index);
    if (nw_get_u32(r) != *name_at || *name_at >= p->name_bytes)
        return fail(p, "the name of a tensor is not where it should be", err);
    const char *name = nw_pack_names(p) + *name_at;
    const char *end = memchr(name, '\0', (size_t)(p->name_bytes - *name_at));
    if (end == NULL || !nw_tensor_name_ok(name, (size_t)(end - name)))
        return fail(p, "the name of a tensor is none", err);
    if (*last != NULL && strcmp(*last, name) >= 0)
        return nw_fail(err, NW_E_FORMAT, 0, "'%s': tensor '%.200s' is there twice, or out of order", p->index_path,
                       name);
    *name_at += (uint64_t)(end - name) + 1;
    *last = name;
    return NW_OK;
}

static nw_code check_tensor(const nw_pack *p, size_t index, uint64_t tile_first, nw_error *err)
{
    const unsigned char *r = nw_pack_tensor_record(p, index);
    uint64_t             dim_count = r[32], bytes = 0, strip = 0;
    if (r[33] >= NW_DTYPE_COUNT || r[34] >= NW_STORED_COUNT)
        return fail(p, "a tensor has a type that is not known", err);
    if ((r[35] & ~NW_PACK_LOSSY) != 0 || !all_zero(r + 36, NW_PACK_TENSOR_BYTES - 36))
        return fail(p, "a tensor has fields that are not known", err);
    if (dim_count < 1 || dim_count > 2 || nw_get_u64(r + 16) == 0 || (nw_get_u64(r + 24) == 0) != (dim_count == 1))
        return fail(p, "a tensor has a shape that cannot be", err);
    nw_pack_tensor t = nw_pack_tensor_at(p, index);
    if (!nw_stored_bytes(t.stored, t.rows, t.cols, &bytes))
        return fail_tensor(p, index, "its shape cannot be stored as its type", err);
    nw_cut cut = nw_cut_make(t.rows, t.cols);
    if (!nw_stored_bytes(t.stored, nw_min_u64(t.rows, cut.strip_rows), t.cols, &strip) ||
        strip > NW_PACK_STRIP_BYTES_MAX)
        return fail_tensor(p, index, "its rows are too long", err);
    if (t.tile_first != tile_first || t.tile_count != cut.tile_count || t.tile_count > p->tile_count - tile_first)
        return fail_tensor(p, index, "its shape gives another number of tiles", err);
    if (t.stride % NW_PACK_ALIGN != 0 || t.stride > NW_PACK_STRIP_BYTES_MAX + 1)
        return fail_tensor(p, index, "its strips cannot stand at such distances", err);
    return NW_OK;
}

/* -- tiles -- */

/* Strips of one tile: forms, sizes and offsets. */
static nw_code check_strips(const nw_pack *p, const nw_pack_tensor *t, const nw_cut *cut, const nw_pack_tile *tile,
                            nw_error *err)
{
    uint64_t rows = nw_cut_rows(cut, tile->tile), end = 0;
    for (uint32_t i = 0; i < tile->strip_count; i++) {
        uint64_t strip_rows = nw_min_u64(cut->strip_rows, rows - i * cut->strip_rows);
        uint32_t form = nw_get_u32(nw_pack_strip_record(p, tile->strip_first + i) + 12) >> 24;
        if (form == 0 || form >= NW_FORM_COUNT)
            return fail_tile(p, t, tile->tile, "a strip has a form that is not known", err);
        nw_pack_strip s = nw_pack_strip_at(p, tile->strip_first + i);
        if (!nw_form_possible(t->stored, s.form, strip_rows, cut->cols, s.bytes))
            return fail_tile(p, t, tile->tile, "a strip cannot have so many bytes in its form", err);
        if (t->stride > 0 && s.bytes > t->stride)
            return fail_tile(p, t, tile->tile, "a strip is larger than its place", err);
        if (s.offset != (t->stride > 0 ? (uint64_t)i * t->stride : nw_round_up(end, NW_PACK_STRIP_ALIGN)))
            return fail_tile(p, t, tile->tile, "a strip is not where it should be", err);
        end = (uint64_t)s.offset + s.bytes;
    }
    if (tile->bytes != (t->stride > 0 ? (uint64_t)tile->strip_count * t->stride : end))
        return fail_tile(p, t, tile->tile, "its strips have another number of bytes", err);
    return NW_OK;
}

static nw_code check_tiles(const nw_pack *p, size_t index, uint64_t *strip_next, nw_error *err)
{
    nw_pack_tensor t = nw_pack_tensor_at(p, index);
    nw_cut         cut = nw_cut_make(t.rows, t.cols);
    for (uint32_t k = 0; k < t.tile_count; k++) {
        nw_pack_tile tile = nw_pack_tile_at(p, t.tile_first + k);
        if (tile.tensor != index || tile.tile != k)
            return fail_tile(p, &t, k, "another tile's record is in its place", err);
        if (tile.strip_first != *strip_next || tile.strip_count != nw_cut_strips(&cut, nw_cut_rows(&cut, k)) ||
            tile.strip_count > p->strip_count - *strip_next)
            return fail_tile(p, &t, k, "its rows give other strips", err);
        if (tile.shard >= p->shard_count)
            return fail_tile(p, &t, k, "there is no such shard", err);
        uint64_t size = p->shard_files[tile.shard].bytes;
        if (tile.offset % NW_PACK_ALIGN != 0 || tile.offset < NW_PACK_ALIGN || tile.offset > size || tile.bytes == 0 ||
            nw_round_up(tile.bytes, NW_PACK_ALIGN) > size - tile.offset)
            return fail_tile(p, &t, k, "it does not lie within its shard", err);
        *strip_next += tile.strip_count;
        nw_code rc = check_strips(p, &t, &cut, &tile, err);
        if (rc != NW_OK)
            return rc;
    }
    return NW_OK;
}

static int compare_places(const void *a, const void *b)
{
    const nw_pack_place *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

nw_code nw_pack_places(nw_memory *mem, const nw_pack *pack, nw_pack_place **ret_places, nw_error *err)
{
    size_t         count = (size_t)pack->tile_count;
    nw_pack_place *places = nw_memory_alloc(mem, NW_TAG_INDEX, count, sizeof *places);
    if (places == NULL)
        return nw_memory_fail(mem, err, count * sizeof *places, pack->index_path);
    for (size_t i = 0; i < count; i++) {
        nw_pack_tile t = nw_pack_tile_at(pack, i);
        places[i] = (nw_pack_place){t.offset, t.offset + nw_round_up(t.bytes, NW_PACK_ALIGN), t.shard, (uint32_t)i};
    }
    nw_sort(places, count, sizeof *places, compare_places);
    *ret_places = places;
    return NW_OK;
}

/* Tiles cover each shard from its header to its end. */
static nw_code check_cover(const nw_pack *p, nw_error *err)
{
    nw_pack_place *places = NULL;
    nw_code        rc = nw_pack_places(p->mem, p, &places, err);
    if (rc != NW_OK)
        return rc;
    size_t at = 0;
    for (size_t shard = 0; shard < p->shard_count && rc == NW_OK; shard++) {
        uint64_t end = NW_PACK_ALIGN;
        for (; at < p->tile_count && places[at].shard == shard && places[at].offset == end; at++)
            end = places[at].end;
        if (end != p->shard_files[shard].bytes || end == NW_PACK_ALIGN) {
            rc = nw_fail(err, NW_E_FORMAT, 0, "'%s': tiles overlap in '%s', or do not fill it", p->index_path,
                         p->shard_files[shard].name);
        }
    }
    nw_memory_free(p->mem, NW_TAG_INDEX, places, (size_t)p->tile_count, sizeof *places);
    return rc;
}

/* What the manifest says of the contents. */
static nw_code check_summary(const nw_pack *p, nw_error *err)
{
    uint64_t stored[NW_STORED_COUNT] = {0}, bytes = p->index_bytes;
    uint32_t forms = 0;
    bool     lossy = false;
    for (size_t i = 0; i < p->tensor_count; i++) {
        nw_pack_tensor t = nw_pack_tensor_at(p, i);
        nw_pack_tile   last = nw_pack_tile_at(p, t.tile_first + t.tile_count - 1);
        uint32_t       end = last.strip_first + last.strip_count;
        for (uint32_t s = nw_pack_tile_at(p, t.tile_first).strip_first; s < end; s++) {
            nw_pack_strip strip = nw_pack_strip_at(p, s);
            stored[t.stored] += strip.bytes;
            forms |= 1u << strip.form;
        }
        lossy = lossy || t.lossy;
    }
    for (size_t i = 0; i < p->shard_count; i++)
        bytes += p->shard_files[i].bytes;
    bool same = memcmp(stored, p->about.stored_bytes, sizeof stored) == 0;
    if (!same || lossy != p->about.lossy || bytes != p->about.bytes ||
        (forms & ~(1u << NW_FORM_PLAIN)) != p->about.forms) {
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' does not say what the index says of types, forms and bytes",
                       p->manifest_path);
    }
    return NW_OK;
}

/* -- other names -- */

static bool has_tensor(const nw_pack *p, const char *name)
{
    size_t first = 0, end = (size_t)p->tensor_count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        int    order = strcmp(nw_pack_tensor_at(p, middle).name, name);
        if (order == 0)
            return true;
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return false;
}

static int compare_aliases(const void *a, const void *b)
{
    const nw_pack_alias *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The manifest's: each for a tensor that there is, none of them a tensor's own. The scan has seen to it that none is
 * there twice. */
static nw_code check_aliases(nw_pack *p, nw_error *err)
{
    nw_sort(p->aliases, p->alias_count, sizeof *p->aliases, compare_aliases);
    for (size_t i = 0; i < p->alias_count; i++) {
        const nw_pack_alias *a = &p->aliases[i];
        const char          *why = !has_tensor(p, a->kept)  ? "there is no such tensor"
                                   : has_tensor(p, a->name) ? "there is a tensor of this name"
                                                            : NULL;
        if (why != NULL) {
            return nw_fail(err, NW_E_FORMAT, 0, "'%s': alias '%.200s' of '%.200s': %s", p->manifest_path,
                           a->name, a->kept, why);
        }
    }
    return NW_OK;
}

nw_code nw_pack_read_index(nw_pack *pack, nw_error *err)
{
    nw_pack *p = pack;
    nw_code  rc = read_file(p, err);
    if (rc == NW_OK)
        rc = read_header(p, err);
    uint64_t    name_at = 0, tile_next = 0, strip_next = 0;
    const char *last = NULL;
    for (size_t i = 0; i < p->tensor_count && rc == NW_OK; i++) {
        rc = check_name(p, i, &name_at, &last, err);
        if (rc == NW_OK)
            rc = check_tensor(p, i, tile_next, err);
        if (rc == NW_OK)
            rc = check_tiles(p, i, &strip_next, err);
        if (rc == NW_OK)
            tile_next += nw_pack_tensor_at(p, i).tile_count;
    }
    if (rc != NW_OK)
        return rc;
    if (name_at != p->name_bytes || tile_next != p->tile_count || strip_next != p->strip_count)
        return fail(p, "has records or names that belong to no tensor", err);
    rc = check_cover(p, err);
    if (rc == NW_OK)
        rc = check_summary(p, err);
    return rc == NW_OK ? check_aliases(p, err) : rc;
}

/* Checking all of a pack, at the speed of the disk.
 *
 * Each shard is read once from start to end. Its tiles cover it without holes (pack_index.c), so that every byte is the
 * header's, a strip's, or between strips, where it must be zero.
 */
#define XXH_STATIC_LINKING_ONLY /* states that are members */
#include "loader/stream.h"
#include "pack_state.h"

#include <xxhash.h>

#define REPORT_BYTES ((uint64_t)4 << 20) /* between two calls of progress */

typedef struct {
    XXH3_state_t                  shard_hash, strip_hash; /* want more alignment than the heap gives: a mapping */
    const nw_pack                *pack;
    const nw_pack_verify_options *options;
    nw_stream                    *stream;
    uint64_t                     *read_bytes;
    nw_pack_place                *places;
    uint64_t                      faults, done, all, reported;
    /* in the shard at hand */
    size_t        shard;
    uint64_t      faults_before;
    size_t        place; /* of the tile at hand */
    nw_pack_tile  tile;
    uint32_t      strip;  /* of the tile: at hand, or next */
    bool          inside; /* the strip; otherwise before it, or behind the last */
    nw_pack_strip record;
    uint64_t      pos, end; /* in the shard: of what was read, of the part at hand */
    bool          gap_bad;
} verify;

static void report(verify *v, const nw_pack_fault *fault)
{
    v->faults++;
    if (v->options->fault != NULL)
        v->options->fault(v->options->user, fault);
}

static void report_file(verify *v, const char *path, const char *why)
{
    nw_pack_fault fault = {.path = path, .why = why};
    report(v, &fault);
}

static void report_strip(verify *v, const char *why)
{
    nw_pack_tensor tensor = nw_pack_tensor_at(v->pack, v->tile.tensor);
    nw_cut         cut = nw_cut_make(tensor.rows, tensor.cols);
    uint64_t       first = v->strip * cut.strip_rows;
    nw_pack_fault  fault = {
         .path = nw_pack_shard_path(v->pack, v->shard),
         .tensor = tensor.name,
         .tile = v->tile.tile,
         .strip = v->strip,
         .row_first = nw_cut_first(&cut, v->tile.tile) + first,
         .row_count = nw_min_u64(cut.strip_rows, nw_cut_rows(&cut, v->tile.tile) - first),
         .why = why,
    };
    report(v, &fault);
}

static nw_code advance(verify *v, uint64_t bytes, nw_error *err)
{
    v->done += bytes;
    if (v->options->progress == NULL || (v->done - v->reported < REPORT_BYTES && v->done < v->all))
        return NW_OK;
    v->reported = v->done;
    if (v->options->progress(v->options->user, v->done, v->all))
        return NW_OK;
    return nw_fail(err, NW_E_CANCELLED, 0, "stopped");
}

/* -- one shard -- */

/* The gap before the strip at hand, or behind the tile's last. */
static void gap_begin(verify *v)
{
    v->inside = false;
    v->gap_bad = false;
    if (v->strip < v->tile.strip_count) {
        v->record = nw_pack_strip_at(v->pack, v->tile.strip_first + v->strip);
        v->end = v->tile.offset + v->record.offset;
    } else {
        v->end = v->places[v->place].end;
    }
}

static void tile_begin(verify *v)
{
    v->tile = nw_pack_tile_at(v->pack, v->places[v->place].tile);
    v->strip = 0;
    gap_begin(v);
}

/* The part at hand is complete: on to the next. False: that was the shard's last. */
static bool part_end(verify *v)
{
    if (v->inside) {
        if (XXH3_64bits_digest(&v->strip_hash) != v->record.xxh3)
            report_strip(v, "its checksum is wrong");
        v->strip++;
        gap_begin(v);
        return true;
    }
    if (v->gap_bad)
        report_file(v, nw_pack_shard_path(v->pack, v->shard), "bytes between strips are not zero");
    if (v->strip < v->tile.strip_count) {
        v->inside = true;
        v->end += v->record.bytes;
        XXH3_64bits_reset_withSeed(&v->strip_hash, nw_pack_strip_seed(v->tile.tensor, v->tile.tile, v->strip));
        return true;
    }
    v->place++;
    if (v->place == v->pack->tile_count || v->places[v->place].shard != v->shard)
        return false;
    tile_begin(v);
    return true;
}

static void piece(verify *v, const unsigned char *p, size_t len)
{
    if (v->pos == 0) {
        NW_CHECK(len >= NW_PACK_ALIGN);
        bool good = XXH3_64bits(p, NW_PACK_SHARD_CHECK) == nw_get_u64(p + NW_PACK_SHARD_CHECK);
        if (!good || nw_get_u64(p + 40) != v->pack->index_file.xxh3)
            report_file(v, nw_pack_shard_path(v->pack, v->shard), "its header is damaged");
        v->pos = NW_PACK_ALIGN;
        p += NW_PACK_ALIGN;
        len -= NW_PACK_ALIGN;
    }
    XXH3_64bits_update(&v->shard_hash, p, len);
    bool more = true;
    while (more && (len > 0 || v->pos == v->end)) {
        size_t part = (size_t)nw_min_u64(len, v->end - v->pos);
        if (v->inside)
            XXH3_64bits_update(&v->strip_hash, p, part);
        for (size_t i = 0; i < part && !v->inside; i++)
            v->gap_bad = v->gap_bad || p[i] != 0;
        v->pos += part;
        p += part;
        len -= part;
        if (v->pos == v->end)
            more = part_end(v);
    }
}

static nw_code verify_shard(verify *v, size_t shard, nw_error *err)
{
    const nw_file *file = nw_pack_shard(v->pack, shard);
    const char    *path = nw_pack_shard_path(v->pack, shard);
    v->shard = shard;
    v->pos = 0;
    v->faults_before = v->faults;
    XXH3_64bits_reset(&v->shard_hash);
    tile_begin(v);
    nw_stream_begin(v->stream, file, path, 0, file->size);
    for (;;) {
        const void *bytes = NULL;
        size_t      len = 0;
        nw_code     rc = nw_stream_next(v->stream, &bytes, &len, v->read_bytes, err);
        if (rc != NW_OK)
            return rc;
        if (len == 0)
            break;
        piece(v, bytes, len);
        rc = advance(v, len, err);
        if (rc != NW_OK)
            return rc;
    }
    NW_CHECK(v->pos == file->size);
    if (v->faults == v->faults_before && XXH3_64bits_digest(&v->shard_hash) != v->pack->shard_files[shard].xxh3)
        report_file(v, path, "its checksum is wrong");
    return NW_OK;
}

/* -- a file beside -- */

static nw_code verify_file(verify *v, const nw_pack_file *f, nw_error *err)
{
    char    path[PATH_MAX];
    nw_file file = {.fd = -1};
    nw_pack_path(v->pack, f->name, path);
    if (f->bytes == 0) /* its size was checked */
        return NW_OK;
    nw_code rc = nw_file_open(path, &file, err);
    if (rc != NW_OK)
        return rc;
    XXH3_64bits_reset(&v->shard_hash);
    nw_stream_begin(v->stream, &file, path, 0, file.size);
    for (;;) {
        const void *bytes = NULL;
        size_t      len = 0;
        rc = nw_stream_next(v->stream, &bytes, &len, v->read_bytes, err);
        if (rc != NW_OK || len == 0)
            break;
        XXH3_64bits_update(&v->shard_hash, bytes, len);
    }
    if (rc == NW_OK && (file.size != f->bytes || XXH3_64bits_digest(&v->shard_hash) != f->xxh3))
        report_file(v, path, "its checksum is wrong");
    nw_file_close(&file);
    return rc == NW_OK ? advance(v, f->bytes, err) : rc;
}

static nw_code verify_all(verify *v, nw_memory *mem, nw_io *io, nw_error *err)
{
    nw_code rc = nw_pack_places(mem, v->pack, &v->places, err);
    if (rc == NW_OK)
        rc = nw_stream_open(mem, io, &v->stream, err);
    for (size_t i = 0; i < v->pack->shard_count; i++)
        v->all += v->pack->shard_files[i].bytes;
    for (size_t i = 0; i < v->pack->file_count; i++)
        v->all += v->pack->files[i].bytes;
    for (size_t i = 0; i < v->pack->shard_count && rc == NW_OK; i++)
        rc = verify_shard(v, i, err);
    for (size_t i = 0; i < v->pack->file_count && rc == NW_OK; i++)
        rc = verify_file(v, &v->pack->files[i], err);
    v->stream = nw_stream_close(v->stream);
    nw_memory_free(mem, NW_TAG_INDEX, v->places, (size_t)v->pack->tile_count, sizeof *v->places);
    return rc;
}

nw_code nw_pack_verify(nw_memory *mem, nw_io *io, const nw_pack *pack, const nw_pack_verify_options *options,
                       uint64_t *read_bytes, uint64_t *ret_faults, nw_error *err)
{
    verify *v = nw_memory_map(mem, NW_TAG_INDEX, sizeof *v, false);
    if (v == NULL)
        return nw_memory_fail(mem, err, sizeof *v, pack->dir);
    v->pack = pack;
    v->options = options;
    v->read_bytes = read_bytes;
    nw_code rc = verify_all(v, mem, io, err);
    if (rc == NW_OK)
        *ret_faults = v->faults;
    nw_memory_unmap(mem, NW_TAG_INDEX, v, sizeof *v);
    return rc;
}

#include "pack_read.h"

#include "copying.h"
#include "restore.h"

struct nw_pack_reader {
    const nw_pack       *pack;
    const nw_checkpoint *checkpoint;
    nw_memory           *mem;
    size_t               plain_room, codec_room; /* bytes: of a strip, of the decoder */
    unsigned char       *plain;                  /* [plain_room], then [codec_room] */
    nw_packed           *codec;
    nw_ahead             ahead;
    size_t               next_tile;
    size_t               tile;  /* that was waited for last */
    const unsigned char *bytes; /* of it */
};

/* ---- sizes ---- */

static nw_extent tile_extent(const nw_checkpoint *c, size_t tile)
{
    nw_pack_tile t = nw_pack_tile_at(nw_checkpoint_pack(c), tile);
    return nw_file_extent(nw_checkpoint_file(c, t.shard), t.offset, t.bytes);
}

/* Rooms for the largest tile as read, and the largest strip as restored. */
static void find_rooms(const nw_checkpoint *c, size_t *ret_read, size_t *ret_plain, size_t *ret_codec)
{
    const nw_pack *pack = nw_checkpoint_pack(c);
    *ret_read = *ret_plain = 0;
    for (size_t i = 0; i < nw_pack_tile_count(pack); i++)
        *ret_read = nw_max_size(*ret_read, tile_extent(c, i).bytes);
    for (size_t i = 0; i < nw_pack_tensor_count(pack); i++) {
        nw_pack_tensor t = nw_pack_tensor_at(pack, i);
        nw_cut         cut = nw_cut_make(t.rows, t.cols);
        size_t         elements = (size_t)(nw_min_u64(cut.strip_rows, t.rows) * t.cols);
        *ret_plain = nw_max_size(*ret_plain, elements * nw_dtype_bytes(nw_checkpoint_tensor(c, i)->dtype));
    }
    *ret_read = (size_t)nw_round_up(*ret_read, 65536);
    *ret_plain = (size_t)nw_round_up(*ret_plain, 64);
    *ret_codec = (size_t)nw_round_up(nw_packed_workspace_bytes(NW_PACKED_DECODE), 64);
}

uint64_t nw_pack_reader_bytes(const nw_model *m)
{
    size_t read, plain, codec;
    find_rooms(m->checkpoint, &read, &plain, &codec);
    return sizeof(nw_pack_reader) + 2 * (uint64_t)read + plain + codec;
}

/* ---- open and close ---- */

nw_code nw_pack_reader_open(nw_model *m, nw_io *io, uint64_t *read_bytes, nw_pack_reader **ret_reader, nw_error *err)
{
    nw_memory      *mem = &m->memory;
    nw_pack_reader *r = nw_memory_alloc(mem, NW_TAG_SESSION, 1, sizeof *r);
    if (r == NULL)
        return nw_memory_fail(mem, err, sizeof *r, m->path);
    r->checkpoint = m->checkpoint;
    r->pack = nw_checkpoint_pack(m->checkpoint);
    r->mem = mem;
    NW_CHECK(r->pack != NULL);
    size_t read_room;
    find_rooms(m->checkpoint, &read_room, &r->plain_room, &r->codec_room);
    nw_code rc = nw_ahead_open(&r->ahead, mem, io, read_room, read_bytes, err);
    if (rc == NW_OK) {
        r->plain = nw_memory_map(mem, NW_TAG_SESSION, r->plain_room + r->codec_room, false);
        if (r->plain == NULL)
            rc = nw_memory_fail(mem, err, r->plain_room + r->codec_room, m->path);
    }
    if (rc != NW_OK) {
        nw_pack_reader_close(r);
        return rc;
    }
    r->codec = nw_packed_init(r->plain + r->plain_room, r->codec_room, NW_PACKED_DECODE);
    *ret_reader = r;
    return NW_OK;
}

nw_pack_reader *nw_pack_reader_close(nw_pack_reader *r)
{
    if (r == NULL)
        return NULL;
    nw_ahead_close(&r->ahead);
    nw_memory_unmap(r->mem, NW_TAG_SESSION, r->plain, r->plain_room + r->codec_room);
    nw_memory_free(r->mem, NW_TAG_SESSION, r, 1, sizeof *r);
    return NULL;
}

/* ---- tiles and strips ---- */

void nw_pack_reader_start(nw_pack_reader *r, size_t tile)
{
    uint32_t shard = nw_pack_tile_at(r->pack, tile).shard;
    r->next_tile = tile;
    nw_ahead_start(&r->ahead, nw_checkpoint_file(r->checkpoint, shard), nw_checkpoint_file_path(r->checkpoint, shard),
                   tile_extent(r->checkpoint, tile));
}

nw_code nw_pack_reader_wait(nw_pack_reader *r, nw_error *err)
{
    const char *tensor = nw_pack_tensor_at(r->pack, nw_pack_tile_at(r->pack, r->next_tile).tensor).name;
    r->tile = r->next_tile;
    return nw_ahead_wait(&r->ahead, tensor, &r->bytes, err);
}

nw_code nw_pack_reader_strip(nw_pack_reader *r, uint32_t strip, const void **ret_values, size_t *ret_elements,
                             nw_error *err)
{
    nw_pack_tile   tile = nw_pack_tile_at(r->pack, r->tile);
    nw_pack_tensor tensor = nw_pack_tensor_at(r->pack, tile.tensor);
    nw_cut         cut = nw_cut_make(tensor.rows, tensor.cols);
    nw_dtype       dtype = nw_checkpoint_tensor(r->checkpoint, tile.tensor)->dtype;
    uint64_t       first = strip * cut.strip_rows, tile_rows = nw_cut_rows(&cut, tile.tile);
    NW_CHECK(strip < tile.strip_count && first < tile_rows);
    nw_pack_strip        s = nw_pack_strip_at(r->pack, (size_t)tile.strip_first + strip);
    size_t               rows = (size_t)nw_min_u64(cut.strip_rows, tile_rows - first), cols = (size_t)cut.cols;
    const unsigned char *bytes = r->bytes + s.offset;
    NW_CHECK(rows * cols * nw_dtype_bytes(dtype) <= r->plain_room);
    if (!nw_pack_strip_check(r->pack, r->tile, strip, bytes))
        return nw_pack_strip_fail(r->pack, r->tile, strip, NULL, err);
    const char *why = nw_restore_plain(r->codec, s.form, dtype, bytes, s.bytes, rows, cols, r->plain);
    if (why != NULL)
        return nw_pack_strip_fail(r->pack, r->tile, strip, why, err);
    *ret_values = r->plain;
    *ret_elements = rows * cols;
    return NW_OK;
}

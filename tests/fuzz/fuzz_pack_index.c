/* The index of a pack: 64 bytes that stand for the manifest, and tiles.idx, whose checksum is made right first. What is
 * accepted has each tile in its shard, apart from every other, and each strip in its tile.
 *
 * The 64 bytes: number of shards (1), lossy (1), forms (2), shard sizes in units of 4096 (4 times 2), unused (4), bytes
 * of each stored type (5 times 8), bytes of all (8).
 */
#include "fuzz_file.h"

#include "pack_state.h"

#include <stdlib.h>
#include <xxhash.h>

enum { HEAD = 64, SHARDS_MAX = 4 };

static void check_index(const nw_pack *p)
{
    for (size_t i = 0; i < nw_pack_tensor_count(p); i++) {
        nw_pack_tensor t = nw_pack_tensor_at(p, i);
        NW_CHECK(i == 0 || strcmp(nw_pack_tensor_at(p, i - 1).name, t.name) < 0);
        NW_CHECK(t.tile_count > 0 && t.rows > 0 && t.cols > 0);
        NW_CHECK((uint64_t)t.tile_first + t.tile_count <= nw_pack_tile_count(p));
    }
    for (size_t i = 0; i < nw_pack_tile_count(p); i++) {
        nw_pack_tile a = nw_pack_tile_at(p, i);
        NW_CHECK(a.shard < p->shard_count && a.offset >= 4096 && a.offset % 4096 == 0);
        NW_CHECK(a.bytes > 0 && a.offset + a.bytes <= p->shard_files[a.shard].bytes);
        for (size_t k = 0; k < i && i < 100; k++) {
            nw_pack_tile b = nw_pack_tile_at(p, k);
            NW_CHECK(a.shard != b.shard || a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes);
        }
        uint64_t end = 0;
        for (uint32_t s = 0; s < a.strip_count; s++) {
            nw_pack_strip strip = nw_pack_strip_at(p, a.strip_first + s);
            NW_CHECK(strip.offset >= end && strip.bytes > 0);
            end = (uint64_t)strip.offset + strip.bytes;
            NW_CHECK(end <= a.bytes);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file = {.fd = -1};
    if (size < HEAD + NW_PACK_HEADER_BYTES + NW_PACK_CHECK_BYTES || size > 1 << 20)
        return 0;
    if (file.fd < 0)
        file = fuzz_file_make();
    size_t         len = size - HEAD;
    unsigned char *index = malloc(len);
    NW_CHECK(index != NULL);
    memcpy(index, data + HEAD, len);
    uint64_t xxh3 = XXH3_64bits(index, len - NW_PACK_CHECK_BYTES);
    nw_put_u64(index + len - NW_PACK_CHECK_BYTES, xxh3);
    fuzz_file_set(&file, index, len);
    free(index);

    nw_memory    mem;
    nw_error     err = {0};
    nw_pack_file shards[SHARDS_MAX] = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    for (size_t i = 0; i < SHARDS_MAX; i++)
        shards[i].bytes = (uint64_t)4096 * (data[4 + 2 * i] | (uint64_t)data[5 + 2 * i] << 8);
    nw_pack p = {.mem = &mem,
                 .io = fuzz_io(),
                 .manifest_path = "manifest.json",
                 .index_path = file.path,
                 .index_file = {.name = "tiles.idx", .bytes = len, .xxh3 = xxh3},
                 .shard_files = shards,
                 .shard_count = 1 + data[0] % SHARDS_MAX};
    p.about.lossy = data[1] % 2 != 0;
    p.about.forms = data[2] | (uint32_t)data[3] << 8;
    for (size_t i = 0; i < NW_STORED_COUNT; i++)
        p.about.stored_bytes[i] = nw_get_u64(data + 16 + 8 * i);
    p.about.bytes = nw_get_u64(data + 56);
    nw_code rc = nw_pack_read_index(&p, &err);
    if (fuzz_parsed(rc, &err))
        check_index(&p);
    nw_memory_free(&mem, NW_TAG_INDEX, p.index, p.index_bytes, 1);
    fuzz_memory_check(&mem, size);
    return 0;
}

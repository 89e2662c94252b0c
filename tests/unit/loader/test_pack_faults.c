/* A small pack, damaged in every way: each byte of it changed, each cut, files that are missing, exchanged or of
 * another pack, and files that lie with all their checksums right. It does not open, or what is wrong is found before
 * it is used. */
#define _DEFAULT_SOURCE
#include "loader/pack.h"

#include "loader/io_fake.h"
#include "make_pack.h"
#include "temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <xxhash.h>

#include <cmocka.h>

static const pack_tensor tensors[] = {
    {"a.v", NW_STORED_F32, 1, {5}, 0, "one", false},
    {"b.m", NW_STORED_BF16, 2, {3, 400}, 0, NULL, false},
    {"c.m", NW_STORED_BF16, 2, {3, 400}, 0, NULL, false},
    {"d.e", NW_STORED_F16, 2, {2, 4}, 0, "two", false},
};
enum { COUNT = 4, SHARDS = 2, HEADER = 4096, INDEX_HEADER = 64, TENSOR = 48, TILE = 32, STRIP = 16 };
#define SHARD_MAX 16384 /* block one with its header */

/* All files of a pack, in memory; changed here, then written. */
typedef struct {
    temp_dir      dir;
    temp_path     path;
    char          manifest[8192];
    unsigned char index[2048], shards[SHARDS][SHARD_MAX];
    size_t        manifest_len, index_len, shard_len[SHARDS];
} tiny;

static const char *const shard_names[SHARDS] = {"p/pack-00001-of-00002.nwp", "p/pack-00002-of-00002.nwp"};

static size_t load(const tiny *t, const char *name, void *to, size_t cap)
{
    FILE *f = fopen(temp_dir_path(&t->dir, name).text, "rb");
    assert_non_null(f);
    size_t len = fread(to, 1, cap, f);
    assert_true(len < cap || cap == SHARD_MAX);
    fclose(f);
    return len;
}

static void tiny_make(tiny *t, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    pack_model m = {tensors, COUNT, SHARD_MAX, seed};
    nw_memory  mem;
    nw_error   err = {0};
    t->dir = temp_dir_make();
    t->path = temp_dir_path(&t->dir, "p");
    nw_memory_init(&mem, UINT64_MAX, NULL);
    if (pack_make(&mem, t->path.text, &m, &err) != NW_OK)
        fail_msg("%s", err.msg);
    t->manifest_len = load(t, "p/manifest.json", t->manifest, sizeof t->manifest);
    t->index_len = load(t, "p/tiles.idx", t->index, sizeof t->index);
    for (size_t i = 0; i < SHARDS; i++)
        t->shard_len[i] = load(t, shard_names[i], t->shards[i], SHARD_MAX);
}

static void tiny_write(const tiny *t)
{
    temp_dir_write(&t->dir, "p/manifest.json", t->manifest, t->manifest_len);
    temp_dir_write(&t->dir, "p/tiles.idx", t->index, t->index_len);
    for (size_t i = 0; i < SHARDS; i++)
        temp_dir_write(&t->dir, shard_names[i], t->shards[i], t->shard_len[i]);
}

/* -- checksums that are right again -- */

static void put_u64(unsigned char *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(value >> (8 * i));
}

static void put_hex(char *p, uint64_t value)
{
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)value);
    memcpy(p, digits, 16);
}

static void seal_manifest(tiny *t)
{
    put_hex(t->manifest + t->manifest_len - 20, XXH3_64bits(t->manifest, t->manifest_len - 20));
}

static void seal_shard(tiny *t, size_t shard)
{
    put_u64(t->shards[shard] + HEADER - 8, XXH3_64bits(t->shards[shard], HEADER - 8));
}

static void seal_index(tiny *t)
{
    uint64_t xxh3 = XXH3_64bits(t->index, t->index_len - 8);
    put_u64(t->index + t->index_len - 8, xxh3);
    char *entry = strstr(t->manifest, "\"tiles.idx\"");
    assert_non_null(entry);
    put_hex(strstr(entry, "\"xxh3\": \"") + 9, xxh3);
    seal_manifest(t);
    for (size_t i = 0; i < SHARDS; i++) {
        put_u64(t->shards[i] + 40, xxh3);
        seal_shard(t, i);
    }
}

/* -- what becomes of it -- */

typedef struct {
    nw_code  rc; /* of opening; NW_OK, and then: */
    uint64_t faults;
    bool     decodes; /* every packed strip, as the shapes are said to be */
    char     msg[512], fault_tensor[64], fault_path[512];
} outcome;

static void keep_fault(void *user, const nw_pack_fault *fault)
{
    outcome *o = user;
    snprintf(o->fault_tensor, sizeof o->fault_tensor, "%s", fault->tensor != NULL ? fault->tensor : "");
    snprintf(o->fault_path, sizeof o->fault_path, "%s", fault->path);
    assert_non_null(fault->why);
}

static bool decode_all(nw_memory *mem, nw_io *io, const nw_pack *p)
{
    size_t     place = nw_packed_workspace_bytes(NW_PACKED_DECODE);
    void      *workspace = aligned_alloc(64, place);
    nw_packed *codec = nw_packed_init(workspace, place, NW_PACKED_DECODE);
    bool       good = true;
    for (size_t i = 0; i < nw_pack_tile_count(p); i++) {
        nw_pack_tile   tile = nw_pack_tile_at(p, i);
        nw_pack_tensor t = nw_pack_tensor_at(p, tile.tensor);
        nw_cut         cut = nw_cut_make(t.rows, t.cols);
        for (uint32_t s = 0; s < tile.strip_count; s++) {
            nw_pack_strip strip = nw_pack_strip_at(p, tile.strip_first + s);
            uint64_t      rows = nw_min_u64(cut.strip_rows, nw_cut_rows(&cut, tile.tile) - s * cut.strip_rows);
            nw_dtype      dtype = t.stored == NW_STORED_F32 ? NW_F32 : t.stored == NW_STORED_BF16 ? NW_BF16 : NW_F16;
            if (strip.form != NW_FORM_PACKED)
                continue;
            void *stored = malloc(strip.bytes), *out = malloc(rows * cut.cols * nw_dtype_bytes(dtype));
            assert_int_equal(nw_file_read(mem, io, nw_pack_shard(p, tile.shard), "shard", tile.offset + strip.offset,
                                          stored, strip.bytes, NULL, NULL),
                             NW_OK);
            good = nw_packed_decode(codec, dtype, stored, strip.bytes, out, rows * cut.cols) == NULL && good;
            free(stored);
            free(out);
        }
    }
    free(workspace);
    return good;
}

static outcome try_open(const tiny *t)
{
    outcome    o = {0};
    nw_memory  mem;
    nw_io_fake fake = {.seed = 3};
    nw_io     *io = NULL;
    nw_pack   *pack = NULL;
    nw_error   err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(nw_io_fake_open(&mem, &fake, 4, &io, &err), NW_OK);
    o.rc = nw_pack_open(&mem, io, t->path.text, NULL, &pack, &err);
    assert_true(mem.peak < 4 << 20);
    if (o.rc == NW_OK) {
        nw_pack_verify_options options = {.fault = keep_fault, .user = &o};
        assert_int_equal(nw_pack_verify(&mem, io, pack, &options, NULL, &o.faults, &err), NW_OK);
        o.decodes = o.faults > 0 || decode_all(&mem, io, pack);
    } else {
        assert_true(o.rc == NW_E_FORMAT || o.rc == NW_E_IO || o.rc == NW_E_UNSUPPORTED);
        if (strstr(err.msg, t->path.text) == NULL)
            fail_msg("names no file: %s", err.msg);
    }
    snprintf(o.msg, sizeof o.msg, "%s", err.msg);
    nw_pack_close(pack);
    nw_io_close(io);
    assert_int_equal(mem.live, 0);
    return o;
}

static void check_good(const tiny *t)
{
    outcome o = try_open(t);
    if (o.rc != NW_OK)
        fail_msg("%s", o.msg);
    assert_true(o.faults == 0 && o.decodes);
}

static void check_refused(const tiny *t, const char *words)
{
    outcome o = try_open(t);
    if (o.rc == NW_OK || strstr(o.msg, words) == NULL)
        fail_msg("expected '%s', got %d '%s'", words, o.rc, o.msg);
}

/* -- damage -- */

static void test_flipped(void **state)
{
    (void)state;
    static tiny t;
    tiny_make(&t, 1);
    check_good(&t);
    struct {
        const char    *name;
        unsigned char *bytes;
        size_t         len;
    } files[] = {{"p/manifest.json", (unsigned char *)t.manifest, t.manifest_len},
                 {"p/tiles.idx", t.index, t.index_len}};
    for (size_t f = 0; f < 2; f++) {
        for (size_t i = 0; i < files[f].len; i++) {
            unsigned char kept = files[f].bytes[i];
            files[f].bytes[i] = (unsigned char)(kept ^ 1 << i % 8);
            temp_dir_write(&t.dir, files[f].name, files[f].bytes, files[f].len);
            if (try_open(&t).rc == NW_OK)
                fail_msg("%s opens with byte %zu changed", files[f].name, i);
            files[f].bytes[i] = kept;
        }
        temp_dir_write(&t.dir, files[f].name, files[f].bytes, files[f].len);
    }
    check_good(&t);
    for (size_t s = 0; s < SHARDS; s++) {
        for (size_t i = 0; i < t.shard_len[s]; i++) {
            unsigned char *p = &t.shards[s][i];
            *p = (unsigned char)(*p ^ 1 << i % 8);
            temp_dir_write(&t.dir, shard_names[s], t.shards[s], t.shard_len[s]);
            outcome o = try_open(&t);
            *p = (unsigned char)(*p ^ 1 << i % 8);
            if ((o.rc == NW_OK) != (i >= HEADER) || (o.rc == NW_OK && o.faults != 1))
                fail_msg("%s: byte %zu changed: %d, %llu faults", shard_names[s], i, o.rc,
                         (unsigned long long)o.faults);
            assert_true(o.rc != NW_OK || strstr(o.fault_path, shard_names[s] + 2) != NULL);
            if (s == 0 && i >= 2 * HEADER && i < 2 * HEADER + 1000) /* the second tile's strip */
                assert_string_equal(o.fault_tensor, "b.m");
        }
        temp_dir_write(&t.dir, shard_names[s], t.shards[s], t.shard_len[s]);
    }
    check_good(&t);
    temp_dir_write(&t.dir, "p/config.json", "{\"a\": 2}\n", 9);
    outcome o = try_open(&t);
    assert_true(o.rc == NW_OK && o.faults == 1 && strstr(o.fault_path, "config.json") != NULL);
    temp_dir_remove(&t.dir);
}

static void test_cut(void **state)
{
    (void)state;
    static tiny t;
    tiny_make(&t, 1);
    for (size_t len = 0; len < t.manifest_len; len++) {
        temp_dir_write(&t.dir, "p/manifest.json", t.manifest, len);
        check_refused(&t, "manifest.json");
    }
    temp_dir_write(&t.dir, "p/manifest.json", t.manifest, t.manifest_len);
    for (size_t len = 0; len < t.index_len; len++) {
        temp_dir_write(&t.dir, "p/tiles.idx", t.index, len);
        check_refused(&t, "tiles.idx");
    }
    temp_dir_write(&t.dir, "p/tiles.idx", t.index, t.index_len);
    for (size_t len = 0; len < t.shard_len[1]; len += 211) {
        temp_dir_write(&t.dir, shard_names[1], t.shards[1], len);
        check_refused(&t, "pack-00002-of-00002.nwp");
    }
    temp_dir_write(&t.dir, shard_names[1], t.shards[1], t.shard_len[1] - 1);
    check_refused(&t, "pack-00002-of-00002.nwp");
    temp_dir_remove(&t.dir);
}

static void test_files(void **state)
{
    (void)state;
    static tiny t, other;
    tiny_make(&t, 1);
    tiny_make(&other, 2);
    static const char *const names[] = {"p/tiles.idx", "p/pack-00001-of-00002.nwp", "p/pack-00002-of-00002.nwp",
                                        "p/config.json", "p/manifest.json"};
    for (size_t i = 0; i < 5; i++) { /* missing, a directory, a link that leads nowhere */
        temp_path path = temp_dir_path(&t.dir, names[i]), aside = temp_dir_path(&t.dir, "aside");
        assert_int_equal(rename(path.text, aside.text), 0);
        check_refused(&t, names[i] + 2);
        assert_int_equal(mkdir(path.text, 0755), 0);
        check_refused(&t, names[i] + 2);
        assert_int_equal(rmdir(path.text), 0);
        assert_int_equal(symlink("nowhere", path.text), 0);
        check_refused(&t, names[i] + 2);
        assert_int_equal(unlink(path.text), 0);
        assert_int_equal(rename(aside.text, path.text), 0);
    }
    check_good(&t);

    /* another pack's, of the same shapes */
    temp_dir_write(&t.dir, shard_names[1], other.shards[1], other.shard_len[1]);
    check_refused(&t, "another pack");
    temp_dir_write(&t.dir, shard_names[1], t.shards[1], t.shard_len[1]);
    temp_dir_write(&t.dir, "p/tiles.idx", other.index, other.index_len);
    check_refused(&t, "tiles.idx");
    temp_dir_write(&t.dir, "p/manifest.json", other.manifest, other.manifest_len);
    outcome o = try_open(&t); /* now the manifest's and the index's shards are not those that are there */
    assert_true(o.rc != NW_OK);
    tiny_write(&t);

    /* one shard twice; of the right size, so that only its header can tell */
    static unsigned char doubled[SHARD_MAX];
    memcpy(doubled, t.shards[0], t.shard_len[1]);
    temp_dir_write(&t.dir, shard_names[1], doubled, t.shard_len[1]);
    check_refused(&t, "another shard");
    put_u64(doubled + 8, 1 | (uint64_t)1 << 32); /* its number put right, and sealed again */
    put_u64(doubled + HEADER - 8, XXH3_64bits(doubled, HEADER - 8));
    temp_dir_write(&t.dir, shard_names[1], doubled, t.shard_len[1]);
    check_refused(&t, "not the shard");
    put_u64(doubled + 24, t.shard_len[1]); /* as if it were the shard, with other data */
    memcpy(doubled + 32, t.shards[1] + 32, 8);
    put_u64(doubled + HEADER - 8, XXH3_64bits(doubled, HEADER - 8));
    temp_dir_write(&t.dir, shard_names[1], doubled, t.shard_len[1]);
    o = try_open(&t);
    assert_true(o.rc == NW_OK && o.faults > 0);
    assert_non_null(strstr(o.fault_path, "pack-00002"));

    /* two tiles exchanged */
    tiny_write(&t);
    unsigned char tile[4096];
    memcpy(tile, t.shards[0] + 2 * HEADER, 4096);
    memcpy(t.shards[0] + 2 * HEADER, t.shards[0] + 3 * HEADER, 4096);
    memcpy(t.shards[0] + 3 * HEADER, tile, 4096);
    temp_dir_write(&t.dir, shard_names[0], t.shards[0], t.shard_len[0]);
    o = try_open(&t);
    assert_true(o.rc == NW_OK && o.faults >= 2);
    temp_dir_remove(&t.dir);
    temp_dir_remove(&other.dir);
}

/* -- lies -- */

/* Every byte of the index changed in turn, with all checksums right again: what is accepted has nothing changed that
 * matters, or does not pass for what it says. */
static void test_lying_index(void **state)
{
    (void)state;
    static tiny t, good;
    tiny_make(&t, 1);
    good = t;
    size_t names = t.index_len - 8 - 16; /* four names of three letters */
    size_t tensors_end = INDEX_HEADER + COUNT * TENSOR, tiles_end = tensors_end + COUNT * TILE;
    assert_int_equal(tiles_end + COUNT * STRIP, names);
    size_t opened = 0;
    for (size_t i = 0; i < t.index_len - 8; i++) {
        for (int how = 0; how < 4; how++) {
            unsigned char kept = t.index[i];
            unsigned char bad[] = {(unsigned char)(kept ^ 1), (unsigned char)(kept + 2), 0xff, 0};
            if (bad[how] == kept)
                continue;
            t.index[i] = bad[how];
            seal_index(&t);
            tiny_write(&t);
            outcome o = try_open(&t);
            bool    source = i < tensors_end && i >= INDEX_HEADER && (i - INDEX_HEADER) % TENSOR == 33;
            bool    known = o.rc != NW_OK || o.faults > 0 || !o.decodes;
            opened += o.rc == NW_OK;
            if (!known && !source && i < names)
                fail_msg("byte %zu as %d passes", i, bad[how]);
            if (i >= tensors_end && i < tiles_end && o.rc == NW_OK)
                fail_msg("byte %zu of a tile's record as %d passes", i, bad[how]);
            t.index[i] = kept;
        }
    }
    assert_true(opened > 0);
    t = good;
    tiny_write(&t);
    check_good(&t);
    temp_dir_remove(&t.dir);
}

/* Counts and sizes as large as can be. */
static void test_huge_counts(void **state)
{
    (void)state;
    static const uint64_t values[] = {
        0, 1u << 20, UINT32_MAX, (uint64_t)1 << 32, (uint64_t)1 << 61, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 63};
    static tiny t, good;
    tiny_make(&t, 1);
    good = t;
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        for (size_t field = 16; field <= 48; field += 8) {
            put_u64(t.index + field, values[v]);
            seal_index(&t);
            tiny_write(&t);
            check_refused(&t, "tiles.idx");
            t = good;
        }
        for (size_t field = INDEX_HEADER + TENSOR; field < INDEX_HEADER + 2 * TENSOR; field += 8) {
            if (memcmp(t.index + field, "\0\0\0\0\0\0\0\0", 8) == 0 && values[v] == 0)
                continue;
            put_u64(t.index + field, values[v]);
            seal_index(&t);
            tiny_write(&t);
            check_refused(&t, "tiles.idx");
            t = good;
        }
    }
    temp_dir_remove(&t.dir);
}

static void replace(tiny *t, const char *from, const char *to)
{
    char *at = strstr(t->manifest, from);
    if (at == NULL)
        fail_msg("no '%s' in the manifest", from);
    size_t rest = t->manifest_len - (size_t)(at - t->manifest) - strlen(from);
    assert_true(t->manifest_len + strlen(to) < sizeof t->manifest);
    memmove(at + strlen(to), at + strlen(from), rest);
    memcpy(at, to, strlen(to));
    t->manifest_len = t->manifest_len + strlen(to) - strlen(from);
    t->manifest[t->manifest_len] = '\0';
}

/* One member of the manifest changed, with its checksum right again, and words of the refusal. */
static const struct {
    const char *from, *to, *words;
} lies[] = {
    {"\"version\": 1", "\"version\": 2", "version 2"},
    {"\"version\": 1", "\"version\": 1.0", "version 1.0"},
    {"\"version\": 1", "\"version\": \"1\"", "version"},
    {"narrows-pack", "narrows-puck", "narrows-pack"},
    {"[\"packed\"", "[\"packed\", \"slim9\"", "'slim9'"},
    {"[\"packed\"", "[\"packed\", \"plain\"", "'plain'"},
    {"[\"packed\"", "[\"packed\", \"q4\"", "index says"},
    {"[\"packed\", ", "[", "index says"},
    {"[\"packed\"", "[7", "feature"},
    {"[\"packed\", \"aliases\"]", "\"packed\"", "required"},
    {"\"packed\", \"aliases\"]", "\"packed\"]", "require aliases"},
    {"\"aliases\": {", "\"alibis\": {", "require aliases"},
    {"\"aliases\": {", "\"aliases\": 5, \"more\": {", "'aliases'"},
    {"\"0.alias\": \"d.e\"", "\"0.alias\": \"d.f\"", "'0.alias' of 'd.f': there is no such tensor"},
    {"\"0.alias\"", "\"b.m\"", "'b.m' of 'd.e': there is a tensor of this name"},
    {"\"0.alias\"", "\"zz.alias\"", "zz.alias"},
    {"\"0.alias\"", "\"\"", "alias"},
    {"\"0.alias\"", "\"a\\nb\"", "alias"},
    {"\"0.alias\": \"d.e\"", "\"0.alias\": 5", "alias"},
    {"\"0.alias\": \"d.e\"", "\"0.alias\": {\"x\": \"d.e\"}", "alias"},
    {"\"0.alias\": \"d.e\"", "\"0.alias\": [\"d.e\"]", "alias"},
    {"\"lossy\": false", "\"lossy\": true", "index says"},
    {"\"lossy\": false", "\"lossy\": 0", "lossy"},
    {"\"bf16\": ", "\"bf16\": 1", "index says"},
    {"\"bf16\": ", "\"bf17\": ", "bf17"},
    {"\"bf16\": ", "\"f32\": ", "manifest.json"},
    {"\"bytes\": 16384", "\"bytes\": 12288", "'c.m'"},
    {"\"bytes\": 16384", "\"bytes\": 20480", "fill"},
    {"\"bytes\": 16384", "\"bytes\": 18446744073709551616", "number"},
    {"\"bytes\": 16384", "\"bytes\": -4096", "number"},
    {"\"bytes\": 16384", "\"bytes\": 16384.0", "number"},
    {"\"bytes\": 16384", "\"bites\": 16384", "no name, bytes or xxh3"},
    {"\"bytes\": 8192", "\"bytes\": 18446744073709547520", "'"},
    {"pack-00001-of-00002.nwp", "../../../../etc/passwd", "passwd"},
    {"pack-00001-of-00002.nwp", "pack-00002-of-00002.nwp", "pack-00002"},
    {"pack-00002-of-00002.nwp", "pack-00001-of-00002.nwp", "pack-00001"},
    {"tiles.idx", "tiles.idy", "index"},
    {"config.json", "../../fig.json", "fig.json"},
    {"config.json", ".", "'.'"},
    {"config.json", "empty.txt", "empty.txt"},
    {"config.json", "nothing.json", "nothing.json"},
    {"\"bytes\": 9", "\"bytes\": 10", "config.json"},
    {"\"model\"", "\"modem\"", "'model'"},
    {"\"tool\"", "\"model\"", "manifest.json"},
    {"\"shards\": [", "\"shards\": [5, ", "list of files"},
    {"\"shards\": [", "\"shards\": [], \"charts\": [", "shards"},
    {"\"shards\": [", "\"shards\": {}, \"charts\": [", "shards"},
    {"[\"one\"]", "[[\"one\"]]", "block"},
    {"\"xxh3\": \"", "\"xxh3\": \"A", "16 hexadecimal"},
    {"\"manifest_xxh3\"", "\"manifest_xxh4\"", "manifest_xxh3"},
    {"\"format\"", "\"manifest_xxh3\": \"0000000000000000\", \"format\"", "manifest.json"},
    {"{", "[", "manifest.json"},
};

static void test_lying_manifest(void **state)
{
    (void)state;
    static tiny t, good;
    tiny_make(&t, 1);
    good = t;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        replace(&t, lies[i].from, lies[i].to);
        seal_manifest(&t);
        tiny_write(&t);
        check_refused(&t, lies[i].words);
        t = good;
    }
    /* What is not known, and not required, is skipped, whatever it is. */
    replace(&t, "\"model\"", "\"new\": {\"x\": [{\"name\": [1]}, 2]}, \"model\"");
    replace(&t, "\"blocks\": [\"one\"]", "\"new\": [[\"x\"], {\"name\": 1}], \"blocks\": [\"one\"], \"more\": [\"x\"]");
    seal_manifest(&t);
    tiny_write(&t);
    check_good(&t);
    /* Deep, and long. */
    t = good;
    static char deep[3000];
    memset(deep, '[', 2000);
    memcpy(deep + 2000, "\"model\"", 8);
    replace(&t, "\"model\"", deep);
    tiny_write(&t);
    check_refused(&t, "manifest.json");
    t = good;
    memset(deep, 'x', 2500);
    memcpy(deep, "\"model\": \"", 10);
    deep[2500] = '\0';
    replace(&t, "\"model\": \"", deep);
    tiny_write(&t);
    check_refused(&t, "manifest.json");
    /* Two packs' files with matching names, one of another size. */
    t = good;
    tiny_write(&t);
    check_good(&t);
    temp_dir_remove(&t.dir);
}

/* A strip that is not what its form says, in a pack that is right in all else: decoding says so, and the message where.
 */
static void test_hostile_strip(void **state)
{
    (void)state;
    temp_dir               dir = temp_dir_make();
    temp_path              path = temp_dir_path(&dir, "p");
    nw_pack_writer_options options = {.model = "m", .tool = "t", .compress = "packed"};
    nw_pack_declaration    d = {
           .name = "x.weight", .source = NW_BF16, .stored = NW_STORED_BF16, .dim_count = 2, .dims = {9, 100}};
    /* a frame of 900 bytes with a window of 128 MiB */
    unsigned char      strip[12 + 12 + 900] = {1,    0,    0,    0,    12,   0,    0,    0, 0x84, 3,    0, 0,
                                               0x28, 0xb5, 0x2f, 0xfd, 0x40, 0x88, 0x84, 2, 0x23, 0x1c, 0, 7};
    nw_pack_strip_data data = {NW_FORM_PACKED, strip, sizeof strip};
    nw_memory          mem;
    nw_pack_writer    *w = NULL;
    nw_error           err = {0};
    uint32_t           id = 0;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(nw_pack_writer_open(&mem, path.text, &options, &w, &err), NW_OK);
    assert_int_equal(nw_pack_writer_declare(w, &d, &id, &err), NW_OK);
    assert_int_equal(nw_pack_writer_block(w, "b", &err), NW_OK);
    assert_int_equal(nw_pack_writer_schedule(w, id, 0, &err), NW_OK);
    assert_int_equal(nw_pack_writer_tile(w, &data, 1, &err), NW_OK);
    assert_int_equal(nw_pack_writer_finish(w, &err), NW_OK);
    nw_pack_writer_close(w);

    nw_io_fake fake = {.seed = 3};
    nw_io     *io = NULL;
    nw_pack   *pack = NULL;
    assert_int_equal(nw_io_fake_open(&mem, &fake, 4, &io, &err), NW_OK);
    assert_int_equal(nw_pack_open(&mem, io, path.text, NULL, &pack, &err), NW_OK);
    size_t               bytes = nw_packed_workspace_bytes(NW_PACKED_DECODE);
    void                *place = aligned_alloc(64, bytes);
    nw_packed           *codec = nw_packed_init(place, bytes, NW_PACKED_DECODE);
    static unsigned char out[1800];
    assert_true(nw_pack_strip_check(pack, 0, 0, strip));
    const char *why = nw_packed_decode(codec, NW_BF16, strip, sizeof strip, out, 900);
    assert_true(why != NULL && strstr(why, "window") != NULL);
    assert_int_equal(nw_pack_strip_fail(pack, 0, 0, why, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, "pack-00001-of-00001.nwp"));
    assert_non_null(strstr(err.msg, "x.weight"));
    assert_non_null(strstr(err.msg, "window"));
    assert_int_equal(nw_pack_strip_fail(pack, 0, 0, NULL, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, "checksum"));
    free(place);
    nw_pack_close(pack);
    nw_io_close(io);
    assert_int_equal(mem.live, 0);
    temp_dir_remove(&dir);
}

int main(void)
{
    /* Thousands of small files, each written again and again: memory will do, and a disk would be waited for. */
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flipped),       cmocka_unit_test(test_cut),         cmocka_unit_test(test_files),
        cmocka_unit_test(test_lying_index),   cmocka_unit_test(test_huge_counts), cmocka_unit_test(test_lying_manifest),
        cmocka_unit_test(test_hostile_strip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Packs: what is written opens with the same tensors, bit for bit, whatever the size of shards; blocks stay together;
 * and what is not finished does not open, however it ended. */
#define _DEFAULT_SOURCE
#include "../../../loader/pack_state.h"

#include "loader/io_fake.h"
#include "make_pack.h"
#include "unfinished.h"

/* cols of 70000: a strip is one row, a tile eight. */
static const pack_tensor tensors[] = {
    {"shared", NW_STORED_BF16, 2, {1000, 512}, 262144, "embedding", false},
    {"b0.norm", NW_STORED_F32, 1, {513}, 0, "block 0", false},
    {"b0.wi_0", NW_STORED_BF16, 2, {20, 70000}, 0, NULL, false},
    {"b0.slim", NW_STORED_BF16, 2, {20, 70000}, 0, NULL, true},
    {"b1.wo", NW_STORED_F32, 2, {9, 70000}, 0, "block 1", false},
    {"b1.half", NW_STORED_F16, 2, {129, 1024}, 0, NULL, false},
    {"b1.bias", NW_STORED_F16, 1, {3}, 0, NULL, false},
    {"b2.q8", NW_STORED_Q8, 2, {70, 64}, 0, "block 2", false},
    {"b2.q4", NW_STORED_Q4, 2, {5000, 32}, 0, NULL, false},
    {"a.last", NW_STORED_BF16, 2, {1, 1}, 0, NULL, false},
};
enum { COUNT = sizeof tensors / sizeof *tensors };

typedef struct {
    nw_memory  mem;
    nw_io_fake fake;
    nw_io     *io;
    nw_pack   *pack;
    nw_error   err;
} reader;

static nw_code reader_open(reader *r, const char *path)
{
    *r = (reader){.fake = {.seed = 7, .short_percent = 30, .retry_percent = 10}};
    nw_memory_init(&r->mem, UINT64_MAX, NULL);
    assert_int_equal(nw_io_fake_open(&r->mem, &r->fake, 4, &r->io, &r->err), NW_OK);
    uint64_t read_bytes = 0;
    nw_code  rc = nw_pack_open(&r->mem, r->io, path, &read_bytes, &r->pack, &r->err);
    assert_true(rc != NW_OK || read_bytes > 4096);
    return rc;
}

static void reader_close(reader *r)
{
    nw_pack_close(r->pack);
    nw_io_close(r->io);
    assert_int_equal(r->mem.live, 0);
}

static void check_refused(const char *path)
{
    reader r;
    if (reader_open(&r, path) == NW_OK)
        fail_msg("'%s' opens", path);
    reader_close(&r);
}

/* The tensor's index; the number of all if there is none of this name. */
static size_t find(const nw_pack *pack, const char *name)
{
    size_t at = 0;
    while (at < nw_pack_tensor_count(pack) && strcmp(nw_pack_tensor_at(pack, at).name, name) != 0)
        at++;
    return at;
}

static void check_tensor(reader *r, nw_packed *codec, const pack_model *m, size_t index)
{
    const pack_tensor *t = &m->tensors[index];
    size_t             at = find(r->pack, t->name);
    assert_true(at < nw_pack_tensor_count(r->pack));
    nw_pack_tensor p = nw_pack_tensor_at(r->pack, at);
    nw_cut         cut = pack_cut(t);
    assert_true(p.stored == t->stored && p.dim_count == t->dim_count && p.dims[0] == t->dims[0]);
    assert_true(p.lossy == (t->stored >= NW_STORED_Q8) && p.stride == t->stride);
    assert_int_equal(p.tile_count, cut.tile_count);
    for (uint32_t k = 0; k < p.tile_count; k++) {
        nw_pack_tile tile = nw_pack_tile_at(r->pack, p.tile_first + k);
        uint64_t     rows = nw_cut_rows(&cut, k);
        assert_true(tile.tensor == at && tile.tile == k && tile.offset % 4096 == 0);
        assert_int_equal(tile.strip_count, nw_cut_strips(&cut, rows));
        for (uint32_t s = 0; s < tile.strip_count; s++) {
            nw_pack_strip  strip = nw_pack_strip_at(r->pack, tile.strip_first + s);
            uint64_t       first = s * cut.strip_rows, count = nw_min_u64(cut.strip_rows, rows - first);
            size_t         bytes = 0;
            unsigned char *want = pack_rows(m, index, nw_cut_first(&cut, k) + first, count, &bytes);
            unsigned char *stored = malloc(strip.bytes + 1), *got = malloc(bytes);
            assert_int_equal(nw_file_read(&r->mem, r->io, nw_pack_shard(r->pack, tile.shard), "shard",
                                          tile.offset + strip.offset, stored, strip.bytes, NULL, &r->err),
                             NW_OK);
            assert_true(nw_pack_strip_check(r->pack, p.tile_first + k, s, stored));
            assert_true(t->stride == 0 || (tile.offset + strip.offset) % 4096 == 0);
            nw_dtype dtype = t->stored == NW_STORED_F32 ? NW_F32 : t->stored == NW_STORED_BF16 ? NW_BF16 : NW_F16;
            if (strip.form == NW_FORM_PACKED)
                assert_null(nw_packed_decode(codec, dtype, stored, strip.bytes, got, count * cut.cols));
            else if (strip.form == NW_FORM_SLIM3 || strip.form == NW_FORM_SLIM4) {
                assert_true(nw_slim_check(stored, strip.bytes, count, cut.cols));
                assert_int_equal(nw_slim_width(stored), strip.form == NW_FORM_SLIM3 ? 3 : 4);
                nw_slim_decode(got, stored, 0, count);
            } else
                memcpy(got, stored, bytes);
            assert_memory_equal(got, want, bytes);
            /* no bit of it can change, and it is in no other place */
            stored[s % strip.bytes] ^= 1;
            assert_false(nw_pack_strip_check(r->pack, p.tile_first + k, s, stored));
            stored[s % strip.bytes] ^= 1;
            assert_true(nw_pack_strip_hash((uint32_t)at, k, s + 1, stored, strip.bytes) != strip.xxh3);
            assert_true(nw_pack_strip_hash((uint32_t)at, k + 1, s, stored, strip.bytes) != strip.xxh3);
            assert_true(nw_pack_strip_hash((uint32_t)at + 1, k, s, stored, strip.bytes) != strip.xxh3);
            free(want);
            free(stored);
            free(got);
        }
    }
}

/* Which shards hold a block: each once, in order. */
static size_t shards_of(const nw_pack *p, const char *block)
{
    size_t count = 0;
    for (size_t s = 0; s < nw_pack_shard_count(p); s++) {
        for (size_t b = 0; b < nw_pack_block_count(p, s); b++)
            count += strcmp(nw_pack_block(p, s, b), block) == 0;
    }
    return count;
}

static void test_round_trip(void **state)
{
    (void)state;
    static const struct {
        uint64_t shard_max;
        size_t   shards; /* 0: does not matter */
    } cases[] = {{0, 1}, {1, 0}, {4000000, 0}, {7000000, 0}, {100000000, 1}};
    temp_dir   dir = temp_dir_make();
    size_t     place = nw_packed_workspace_bytes(NW_PACKED_DECODE);
    void      *workspace = aligned_alloc(64, place);
    nw_packed *codec = nw_packed_init(workspace, place, NW_PACKED_DECODE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pack_model m = {tensors, COUNT, cases[i].shard_max, 1};
        char       name[32];
        snprintf(name, sizeof name, "pack-%zu%s", i, i % 2 ? "//" : "");
        temp_path path = temp_dir_path(&dir, name);
        nw_memory mem;
        nw_error  err = {0};
        nw_memory_init(&mem, UINT64_MAX, NULL);
        if (pack_make(&mem, path.text, &m, &err) != NW_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(mem.live, 0);
        assert_true(mem.peak < nw_pack_writer_declared_bytes(COUNT, 30, 200));
        assert_true(nw_pack_is(path.text));

        reader r;
        if (reader_open(&r, path.text) != NW_OK)
            fail_msg("%s", r.err.msg);
        assert_true(r.mem.peak < r.pack->index_bytes + 24 * nw_pack_tile_count(r.pack) + (1 << 20));
        const nw_pack_summary *about = nw_pack_about(r.pack);
        assert_string_equal(about->model, "te\"st?model");
        assert_string_equal(about->compress, "packed");
        uint32_t forms =
            1u << NW_FORM_PACKED | 1u << NW_FORM_SLIM3 | 1u << NW_FORM_SLIM4 | 1u << NW_FORM_Q8 | 1u << NW_FORM_Q4;
        assert_true(about->lossy && about->forms == forms);
        assert_int_equal(about->stored_bytes[NW_STORED_Q8], 70 * 2 * 34);
        assert_int_equal(nw_pack_tensor_count(r.pack), COUNT);
        for (size_t t = 0; t < COUNT; t++)
            check_tensor(&r, codec, &m, t);
        assert_int_equal(find(r.pack, "b1.h"), COUNT);
        assert_int_equal(nw_pack_alias_count(r.pack), 2);
        assert_string_equal(nw_pack_alias_at(r.pack, 0).name, "0.alias");
        assert_string_equal(nw_pack_alias_at(r.pack, 0).kept, tensors[COUNT - 1].name);
        assert_string_equal(nw_pack_alias_at(r.pack, 1).name, "zz.alias");
        assert_string_equal(nw_pack_alias_at(r.pack, 1).kept, tensors[0].name);
        assert_int_equal(r.pack->file_count, 2);
        assert_string_equal(r.pack->files[0].name, "config.json");
        assert_int_equal(r.pack->files[0].bytes, 9);

        uint64_t shards = 0, faults = 1;
        for (size_t s = 0; s < nw_pack_shard_count(r.pack); s++) {
            uint64_t size = nw_pack_shard(r.pack, s)->size;
            shards += size;
            assert_true(cases[i].shard_max < 2 || size <= cases[i].shard_max);
        }
        assert_true(cases[i].shards == 0 || nw_pack_shard_count(r.pack) == cases[i].shards);
        assert_true(about->bytes > shards && about->bytes < shards + 10000);
        assert_int_equal(shards_of(r.pack, "block 2"), cases[i].shard_max == 1 ? 3 : 1);
        if (cases[i].shard_max == 7000000) /* no block is larger, so none is cut */
            assert_true(shards_of(r.pack, "block 0") == 1 && shards_of(r.pack, "block 1") == 1);
        nw_pack_verify_options options = {0};
        assert_int_equal(nw_pack_verify(&r.mem, r.io, r.pack, &options, NULL, &faults, &r.err), NW_OK);
        assert_int_equal(faults, 0);
        reader_close(&r);
    }
    free(workspace);
    temp_dir_remove(&dir);
}

/* The same values give the same bytes, and other values another pack. */
static void test_same_bytes(void **state)
{
    (void)state;
    temp_dir    dir = temp_dir_make();
    nw_memory   mem;
    static char bytes[3][1 << 16];
    size_t      len[3];
    nw_memory_init(&mem, UINT64_MAX, NULL);
    for (size_t i = 0; i < 3; i++) {
        static const char *const names[] = {"a", "b", "c"};
        char                     file[16];
        pack_model               m = {tensors, COUNT, 3000000, i == 2 ? 2 : 1};
        assert_int_equal(pack_make(&mem, temp_dir_path(&dir, names[i]).text, &m, NULL), NW_OK);
        snprintf(file, sizeof file, "%s/tiles.idx", names[i]);
        FILE *f = fopen(temp_dir_path(&dir, file).text, "rb");
        assert_non_null(f);
        len[i] = fread(bytes[i], 1, sizeof bytes[i], f);
        fclose(f);
    }
    assert_true(len[0] == len[1] && len[1] == len[2] && len[0] < sizeof bytes[0]);
    assert_memory_equal(bytes[0], bytes[1], len[0]);
    assert_memory_not_equal(bytes[0], bytes[2], len[0]);
    temp_dir_remove(&dir);
}

/* -- what is not finished -- */

static void test_abandoned(void **state)
{
    (void)state;
    temp_dir   dir = temp_dir_make();
    temp_path  path = temp_dir_path(&dir, "p");
    pack_model m = {tensors, COUNT, 3000000, 1};
    for (uint64_t tiles = 0; tiles < 14; tiles += 3) {
        nw_memory mem;
        nw_error  err = {0};
        nw_memory_init(&mem, UINT64_MAX, NULL);
        assert_int_equal(pack_make_with(&mem, path.text, &m, tiles, pack_write_one, &err), NW_E_CANCELLED);
        assert_int_equal(temp_dir_count(dir.path), 0);
        assert_int_equal(mem.live, 0);
    }
    temp_dir_remove(&dir);
}

typedef struct {
    const char *path;
    uint64_t    tiles;
} killed;

static nw_code write_or_die(void *user, size_t tensor, uint64_t tile, nw_error *err)
{
    pack_maker *k = user;
    if (k->tiles_max == 0)
        raise(SIGKILL);
    return pack_write_one(user, tensor, tile, err);
}

static int write_killed(void *user)
{
    const killed *k = user;
    pack_model    m = {tensors, COUNT, 3000000, 1};
    nw_memory     mem;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    (void)pack_make_with(&mem, k->path, &m, k->tiles, write_or_die, NULL);
    return 1;
}

static void check_no_pack(const char *path)
{
    check_refused(path);
    assert_false(nw_pack_is(path));
}

/* Killed at a few tiles. */
static void test_killed(void **state)
{
    (void)state;
    for (uint64_t tiles = 0; tiles < 12; tiles += 5) {
        temp_dir  dir = temp_dir_make();
        temp_path path = temp_dir_path(&dir, "p");
        check_killed(write_killed, &(killed){path.text, tiles}, &dir, "p", check_no_pack);
        temp_dir_remove(&dir);
    }
}

static nw_code write_all(nw_memory *mem, const char *path, nw_error *err)
{
    return pack_make(mem, path, &(pack_model){tensors, COUNT, 0, 1}, err);
}

static void test_no_room(void **state)
{
    (void)state;
    check_no_room(write_all, 2 << 20);
}

static void test_target(void **state)
{
    (void)state;
    temp_dir   dir = temp_dir_make();
    temp_path  path = temp_dir_path(&dir, "p");
    pack_model m = {tensors + 7, 3, 0, 1};
    nw_memory  mem;
    nw_error   err = {0};
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(mkdir(path.text, 0755), 0);
    assert_int_equal(pack_make(&mem, path.text, &m, &err), NW_OK);
    assert_int_equal(pack_make(&mem, path.text, &m, &err), NW_E_IO);
    assert_non_null(strstr(err.msg, path.text));
    reader r;
    assert_int_equal(reader_open(&r, path.text), NW_OK);
    reader_close(&r);
    assert_int_equal(temp_dir_count(dir.path), 1);
    assert_int_equal(mem.live, 0);
    temp_dir_remove(&dir);
}

/* What cannot be written is refused when it is declared, or when all is known. */
static void test_refused(void **state)
{
    (void)state;
    static const nw_pack_declaration bad[] = {
        {.name = "", .dim_count = 1, .dims = {1}},
        {.name = "a\nb", .dim_count = 1, .dims = {1}},
        {.name = "zero", .dim_count = 2, .dims = {0, 1}},
        {.name = "zero", .dim_count = 2, .dims = {1, 0}},
        {.name = "huge", .dim_count = 2, .dims = {UINT64_MAX, 8}},
        {.name = "long", .dim_count = 2, .dims = {2, 5000000}},
        {.name = "odd", .stored = NW_STORED_Q8, .dim_count = 2, .dims = {2, 33}},
        {.name = "odd", .stored = NW_STORED_Q4, .dim_count = 2, .dims = {2, 31}},
    };
    static const char *const files[] = {"",          ".",           "..", "a/b", "x.nwp", "manifest.json",
                                        "tiles.idx", "caf\xc3\xa9", "a b"};
    temp_dir                 dir = temp_dir_make();
    temp_path                path = temp_dir_path(&dir, "p");
    nw_pack_writer_options   options = {.model = "m", .tool = "t", .compress = "off"};
    nw_memory                mem;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    for (size_t i = 0; i < 8 + 9 + 6; i++) {
        nw_pack_writer *w = NULL;
        nw_error        err = {0};
        uint32_t        id = 0;
        unsigned char   byte[2] = {1, 2};
        assert_int_equal(nw_pack_writer_open(&mem, path.text, &options, &w, &err), NW_OK);
        if (i == 18)
            nw_pack_writer_expect(w, (uint64_t)1 << 60);
        nw_pack_declaration good = {.name = "x", .stored = NW_STORED_F16, .dim_count = 1, .dims = {1}};
        nw_pack_strip_data  data = {NW_FORM_PLAIN, byte, 2};
        if (i < 8) {
            assert_int_equal(nw_pack_writer_declare(w, &bad[i], &id, &err), NW_E_ARG);
            assert_true(bad[i].name[0] == '\0' || i == 1 || strstr(err.msg, bad[i].name) != NULL);
        } else if (i < 17) {
            assert_int_equal(nw_pack_writer_file(w, files[i - 8], "x", 1, &err), NW_E_ARG);
        } else {
            assert_int_equal(nw_pack_writer_declare(w, &good, &id, &err), NW_OK);
            assert_int_equal(nw_pack_writer_block(w, "b", &err), NW_OK);
            assert_int_equal(nw_pack_writer_schedule(w, id, 0, &err), NW_OK);
            if (i == 17) {
                assert_int_equal(nw_pack_writer_declare(w, &good, &id, &err), NW_OK);
                assert_int_equal(nw_pack_writer_schedule(w, id, 0, &err), NW_OK);
                assert_int_equal(nw_pack_writer_tile(w, &data, 1, &err), NW_E_ARG);
                assert_non_null(strstr(err.msg, "twice"));
            } else if (i == 18) {
                assert_int_equal(nw_pack_writer_tile(w, &data, 1, &err), NW_E_IO);
                assert_non_null(strstr(err.msg, "free"));
            } else if (i == 19) {
                assert_int_equal(nw_pack_writer_alias(w, "", id, &err), NW_E_ARG);
            } else if (i < 22) {
                assert_int_equal(nw_pack_writer_alias(w, i == 20 ? "x" : "y", id, &err), NW_OK);
                assert_int_equal(nw_pack_writer_alias(w, i == 20 ? "z" : "y", id, &err), NW_OK);
                assert_int_equal(nw_pack_writer_tile(w, &data, 1, &err), NW_E_ARG);
                assert_non_null(strstr(err.msg, "twice"));
            } else {
                assert_int_equal(nw_pack_writer_file(w, "a", "x", 1, &err), NW_OK);
                assert_int_equal(nw_pack_writer_file(w, "b", "x", 1, &err), NW_OK);
                assert_int_equal(nw_pack_writer_file(w, "a", "x", 1, &err), NW_E_ARG);
            }
        }
        nw_pack_writer_close(w);
        assert_int_equal(temp_dir_count(dir.path), 0);
        assert_int_equal(mem.live, 0);
    }
    temp_dir_remove(&dir);
}

static nw_code write_small(nw_memory *mem, const char *path, nw_error *err)
{
    return pack_make(mem, path, &(pack_model){tensors + 7, COUNT - 7, 1, 1}, err);
}

/* Opens and verifies a whole pack while each of its reads, or of its allocations, fails once for good. */
static void check_verify_faults(const char *path, bool reads)
{
    bool fired = true;
    for (uint64_t at = 1; fired; at++) {
        assert_true(at < (reads ? 100 : 200));
        nw_memory_fault        fault = {0};
        nw_io_fake             fake = {.seed = at, .fail_at = reads ? at : 0, .fail_errno = at % 2 ? 5 : NW_IO_EOF};
        nw_pack_verify_options options = {0};
        nw_memory              mem;
        nw_error               err = {0};
        nw_io                 *io = NULL;
        nw_pack               *pack = NULL;
        uint64_t               faults = 0;
        nw_memory_init(&mem, UINT64_MAX, &fault);
        assert_int_equal(nw_io_fake_open(&mem, &fake, 4, &io, &err), NW_OK);
        fault.seen = 0;
        fault.fail_at = reads ? 0 : at;
        nw_code rc = nw_pack_open(&mem, io, path, NULL, &pack, &err);
        if (rc == NW_OK)
            rc = nw_pack_verify(&mem, io, pack, &options, NULL, &faults, &err);
        nw_pack_close(pack);
        nw_io_close(io);
        assert_int_equal(mem.live, 0);
        fired = reads ? fake.fired : fault.fired;
        if (!fired) {
            assert_int_equal(rc, NW_OK);
            assert_true(at > 8);
        } else if (reads) {
            assert_true(rc == NW_E_IO || rc == NW_E_FORMAT);
            assert_non_null(strstr(err.msg, path));
        } else {
            assert_int_equal(rc, NW_E_MEMORY);
        }
    }
}

static void test_every_allocation(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    temp_path path = temp_dir_path(&dir, "p");
    check_every_allocation(write_small, &dir, path.text, 8, 200);
    check_verify_faults(path.text, false);
    temp_dir_remove(&dir);
}

static void test_every_read(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    temp_path path = temp_dir_path(&dir, "p");
    nw_memory mem;
    nw_memory_init(&mem, UINT64_MAX, NULL);
    assert_int_equal(write_small(&mem, path.text, NULL), NW_OK);
    check_verify_faults(path.text, true);
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_same_bytes),       cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_killed),     cmocka_unit_test(test_no_room),          cmocka_unit_test(test_target),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_every_allocation), cmocka_unit_test(test_every_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

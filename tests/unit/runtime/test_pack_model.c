/* pack and unpack together: what comes back is what went in, bit for bit, or exactly what its lossy type can hold;
 * blocks stay together; and whatever fails leaves nothing. */
#include "base/quant.h"
#include "many_tiles.h"
#include "pack_checks.h"

#ifdef NW_SANITIZED
enum { FAULT_STRIDE = 5 };
#else
enum { FAULT_STRIDE = 1 };
#endif

static bool pack(const char *name, const char *src, const nw_pack_options *o, nw_pack_result *r)
{
    nw_error err = {0};
    nw_code  rc = model_pack(src, o, NULL, r, &err);
    check(rc == NW_OK, name, err.msg);
    return rc == NW_OK;
}

static bool unpack(const char *name, const char *src, const nw_unpack_options *o, nw_unpack_result *r)
{
    nw_error err = {0};
    nw_code  rc = model_unpack(src, o, NULL, r, &err);
    check(rc == NW_OK, name, err.msg);
    return rc == NW_OK;
}

/* ---- bit for bit ---- */

/* Packed, slim and plain, in one shard and in several, and back. */
static void round_trip(const temp_dir *dir, const char *name, const char *src)
{
    for (nw_compress compress = NW_COMPRESS_PACKED; compress <= NW_COMPRESS_OFF; compress++) {
        char             why[200];
        nw_pack_result   p;
        nw_unpack_result u;
        temp_path        packed = temp_dir_path(dir, "packed"), back = temp_dir_path(dir, "back");
        nw_pack_options  po = {.dir = packed.text, .compress = compress, .threads = 2};
        po.shard_bytes_max = compress == NW_COMPRESS_SLIM ? 150000 : 0;
        nw_unpack_options uo = {.dir = back.text};
        if (!pack(name, src, &po, &p) || !unpack(name, packed.text, &uo, &u))
            continue;
        check(p.rounded == 0 && p.kept_count == 0 && p.skipped_count == 0, name, "something was not packed as it is");
        check(!u.lossy && u.converted == 0 && u.rounded == 0 && u.alias_count == 0, name, "unpacking says it is lossy");
        check(u.tensor_count == p.tensor_count && u.written_bytes == p.source_bytes, name, "another number of bytes");
        if (!tensor_files_equal(src, back.text, 0, why))
            check(false, name, why);
        /* In less memory and several shards: the same. */
        temp_path small = temp_dir_path(dir, "small");
        nw_error  err = {0};
        uo = (nw_unpack_options){.dir = small.text, .budget_bytes = 1 << 20, .shard_bytes_max = 200000};
        check(model_unpack(packed.text, &uo, NULL, &u, &err) == NW_E_BUDGET, name, "a budget of 1 MiB is enough");
        uo.budget_bytes = err.bytes_needed;
        check(err.bytes_needed < 64 << 20, name, "unpacking needs too much");
        if (unpack(name, packed.text, &uo, &u) && !tensor_files_equal(src, small.text, 0, why))
            check(false, name, why);
        temp_dir_empty(dir->path);
    }
}

static void test_round_trips(const temp_dir *dir)
{
    char src[1024];
    for (size_t i = 0; i < GOLDEN_CASES; i++) {
        golden_dir(golden_cases[i], src);
        round_trip(dir, golden_cases[i], src);
    }
    golden_dir("numbers-t5", src);
    round_trip(dir, "numbers-t5", src);
    temp_dir many = temp_dir_make();
    for (int tied = 0; tied < 2; tied++) {
        temp_path path = temp_dir_path(&many, tied ? "tied" : "own-head");
        many_tiles_write(path.text, tied, 5);
        round_trip(dir, "many tiles", path.text);
    }
    temp_dir_remove(&many);
}

/* ---- other types ---- */

/* Every f32 of `source` is in `back` as the nearest bf16. */
static void check_nearest(const char *source, const char *back)
{
    tensor_files a, b;
    tensor_files_open(&a, source);
    tensor_files_open(&b, back);
    size_t matrices = 0;
    for (size_t i = 0; i < nw_checkpoint_tensor_count(a.c); i++) {
        const nw_tensor *x = nw_checkpoint_tensor(a.c, i), *y = nw_checkpoint_find(b.c, x->name);
        check(y != NULL && (y->dtype == NW_BF16 || y->dtype == x->dtype), "bf16", x->name);
        if (y == NULL || y->dtype != NW_BF16)
            continue;
        unsigned char *p = tensor_files_read(&a, x), *q = tensor_files_read(&b, y);
        matrices++;
        for (size_t k = 0; k < x->bytes / 4; k++) {
            unsigned char want[2];
            float         value;
            memcpy(&value, p + 4 * k, sizeof value);
            nw_dtype_from_f32(NW_BF16, value, want);
            if (memcmp(want, q + 2 * k, sizeof want) != 0) {
                check(false, "bf16: not the nearest", x->name);
                break;
            }
        }
        free(p);
        free(q);
    }
    check(matrices > 20, "bf16", "hardly any tensor was converted");
    tensor_files_close(&a);
    tensor_files_close(&b);
}

static void test_types(const temp_dir *dir)
{
    char             src[1024], why[200];
    nw_pack_result   p;
    nw_unpack_result u;
    temp_path        packed = temp_dir_path(dir, "packed"), back = temp_dir_path(dir, "back");
    /* f32 that became bf16 is lossy, and stays bf16. */
    golden_dir("t5-v1.1", src);
    if (pack("bf16", src, &(nw_pack_options){.dir = packed.text, .type = NW_TYPE_BF16, .threads = 2}, &p) &&
        unpack("bf16", packed.text, &(nw_unpack_options){.dir = back.text}, &u)) {
        check(p.rounded > 0 && u.lossy && u.converted == 0, "bf16", "it does not say that bits were lost");
        check_nearest(src, back.text);
        check(file_has(back.text, "config.json", "bfloat16"), "bf16", "config.json does not say so");
    }
    temp_dir_empty(dir->path);
    /* bf16 and f16 that became f32 become what they were. */
    static const char *const wider[][2] = {{"flan-bf16-shards", "bfloat16"}, {"flan-f16", "float16"}};
    for (size_t i = 0; i < 2; i++) {
        golden_dir(wider[i][0], src);
        if (pack("f32", src, &(nw_pack_options){.dir = packed.text, .type = NW_TYPE_F32, .threads = 2}, &p) &&
            unpack("f32", packed.text, &(nw_unpack_options){.dir = back.text}, &u)) {
            check(p.rounded == 0 && !u.lossy, "f32", "nothing was lost");
            check(file_has(packed.text, "config.json", "float32"), "f32", "the pack's config.json does not say f32");
            check(file_has(back.text, "config.json", wider[i][1]), "f32", "config.json does not say what it was");
            check(tensor_files_equal(src, back.text, 0, why), "f32 and back", why);
        }
        temp_dir_empty(dir->path);
    }
    /* Converted as it is unpacked: the same as converting the checkpoint. */
    temp_path direct = temp_dir_path(dir, "direct");
    golden_dir("umt5", src);
    if (pack("f16", src, &(nw_pack_options){.dir = packed.text, .threads = 1}, &p) &&
        unpack("f16", packed.text, &(nw_unpack_options){.dir = back.text, .type = NW_TYPE_F16}, &u) &&
        unpack("f16", src, &(nw_unpack_options){.dir = direct.text, .type = NW_TYPE_F16}, &u))
        check(u.rounded > 0 && tensor_files_equal(direct.text, back.text, 0, why), "converted", why);
    temp_dir_empty(dir->path);
}

/* ---- q8 and q4 ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* How a tensor of the source is to be stored. */
static nw_stored stored_as(const nw_tensor *t, nw_stored asked, size_t *kept)
{
    /* Cross-attention has no bias; some checkpoints hold one all the same. */
    bool vector = t->dim_count == 1 ||
                  (ends_with(t->name, "relative_attention_bias.weight") && strstr(t->name, "EncDecAttention") == NULL);
    if (!vector && t->dims[1] % NW_QUANT_BLOCK != 0)
        ++*kept;
    if (vector || t->dims[1] % NW_QUANT_BLOCK != 0)
        return nw_stored_of(t->dtype);
    return strcmp(t->name, "shared.weight") == 0 || strcmp(t->name, "lm_head.weight") == 0 ? NW_STORED_Q8 : asked;
}

/* What a quantised tensor is worth: its weights as f32, encoded and decoded. The caller frees it. */
static float *quantised(const nw_tensor *t, const unsigned char *bytes, nw_quant type)
{
    size_t   n = (size_t)(t->dims[0] * t->dims[1]);
    uint64_t ignored = 0;
    float   *values = malloc(n * sizeof *values);
    void    *blocks = malloc(n / NW_QUANT_BLOCK * nw_quant_block_bytes(type));
    NW_CHECK(values != NULL && blocks != NULL);
    nw_dtype_convert(NW_F32, values, t->dtype, bytes, n, &ignored, &ignored);
    NW_CHECK(nw_quant_encode(type, blocks, values, n));
    nw_quant_decode(type, values, blocks, n);
    free(blocks);
    return values;
}

static void compare_quantised(const char *name, const char *src, const char *packed, const char *back, nw_stored asked,
                              size_t kept)
{
    tensor_files a, p, b;
    size_t       quantised_count = 0, want_kept = 0;
    tensor_files_open(&a, src);
    tensor_files_open(&p, packed);
    tensor_files_open(&b, back);
    for (size_t i = 0; i < nw_checkpoint_tensor_count(a.c); i++) {
        const nw_tensor *x = nw_checkpoint_tensor(a.c, i), *y = nw_checkpoint_find(b.c, x->name);
        const nw_tensor *in_pack = nw_checkpoint_find(p.c, x->name);
        check(in_pack != NULL && y != NULL, name, x->name);
        if (in_pack == NULL || y == NULL)
            continue;
        size_t         index = (size_t)(in_pack - nw_checkpoint_tensor(p.c, 0));
        nw_stored      stored = stored_as(x, asked, &want_kept);
        nw_pack_tensor t = nw_pack_tensor_at(nw_checkpoint_pack(p.c), index);
        bool           blocks = stored >= NW_STORED_Q8;
        check(t.stored == stored && t.lossy == blocks && t.source == x->dtype, x->name, nw_stored_name(t.stored));
        check(y->dtype == (blocks ? NW_F32 : x->dtype), x->name, "unpacked in another type");
        unsigned char *source = tensor_files_read(&a, x), *have = tensor_files_read(&b, y);
        if (blocks) {
            float *want = quantised(x, source, stored == NW_STORED_Q8 ? NW_Q8 : NW_Q4);
            check(memcmp(want, have, (size_t)y->bytes) == 0, x->name, "other values than its blocks have");
            free(want);
            quantised_count++;
        } else {
            check(x->bytes == y->bytes && memcmp(source, have, (size_t)x->bytes) == 0, x->name, "is not kept as it is");
        }
        free(source);
        free(have);
    }
    check(quantised_count > 15, name, "hardly any tensor was quantised");
    check(kept == want_kept, name, "another number of tensors kept their type");
    tensor_files_close(&a);
    tensor_files_close(&p);
    tensor_files_close(&b);
}

static void test_quantised(const temp_dir *dir)
{
    static const char *const names[] = {"t5-v1.1",  "t5-v1.0-tied", "flan-bf16-shards",
                                        "flan-f16", "odd-sizes",    "numbers-t5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char src[1024];
        golden_dir(names[i], src);
        for (int four = 0; four < 2; four++) {
            nw_pack_result   p;
            nw_unpack_result u;
            temp_path        packed = temp_dir_path(dir, "packed"), back = temp_dir_path(dir, "back");
            nw_pack_options  o = {.dir = packed.text, .type = four ? NW_TYPE_Q4 : NW_TYPE_Q8, .threads = 2};
            if (pack(names[i], src, &o, &p) &&
                unpack(names[i], packed.text, &(nw_unpack_options){.dir = back.text}, &u)) {
                check(u.lossy, names[i], "unpacking does not say that the pack is lossy");
                check(file_has(back.text, "config.json", "float32"), names[i], "config.json does not say f32");
                check(strcmp(names[i], "odd-sizes") != 0 || p.kept_count > 0, names[i], "no tensor kept its type");
                compare_quantised(names[i], src, packed.text, back.text, four ? NW_STORED_Q4 : NW_STORED_Q8,
                                  p.kept_count);
            }
            temp_dir_empty(dir->path);
        }
    }
}

/* ---- shards ---- */

/* A block in several shards fills all of them but the first and the last, and has more bytes than fit in one. Returns
 * how many such blocks there are. */
static size_t check_block(const nw_pack *k, const char *name, uint64_t max)
{
    size_t   first = SIZE_MAX, last = 0;
    uint64_t bytes = 0;
    for (size_t s = 0; s < nw_pack_shard_count(k); s++) {
        for (size_t i = 0; i < nw_pack_block_count(k, s); i++) {
            if (strcmp(nw_pack_block(k, s, i), name) != 0)
                continue;
            first = first == SIZE_MAX ? s : first;
            last = s;
            bytes += nw_pack_shard(k, s)->size;
        }
    }
    for (size_t s = first + 1; s <= last; s++)
        check(strcmp(nw_pack_block(k, s, 0), name) == 0, name, "does not go on in the next shard");
    check(first == last || bytes > max, name, "is in two shards, and would fit in one");
    for (size_t s = first + 1; s < last; s++)
        check(nw_pack_block_count(k, s) == 1, name, "shares a shard in its midst");
    return first != last;
}

static void test_shards(const temp_dir *dir)
{
    static const uint64_t sizes[] = {60000, 150000, 400000, 1 << 20, 6 << 20, 20 << 20};
    char                  src[1024];
    temp_path             many = temp_dir_path(dir, "many"), packed = temp_dir_path(dir, "packed");
    size_t                split = 0, whole = 0;
    many_tiles_write(many.text, false, 5);
    golden_dir("t5-v1.1", src);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        nw_pack_result p;
        tensor_files   f;
        if (!pack("shards", i < 3 ? src : many.text,
                  &(nw_pack_options){.dir = packed.text, .shard_bytes_max = sizes[i], .threads = 2}, &p))
            continue;
        tensor_files_open(&f, packed.text);
        const nw_pack *k = nw_checkpoint_pack(f.c);
        check(nw_pack_shard_count(k) == p.shard_count && p.shard_count > 1, "shards", "another number of shards");
        size_t tiles[512] = {0};
        NW_CHECK(p.shard_count <= 512);
        for (size_t t = 0; t < nw_pack_tile_count(k); t++)
            tiles[nw_pack_tile_at(k, t).shard]++;
        for (size_t s = 0; s < nw_pack_shard_count(k); s++) {
            check(nw_pack_shard(k, s)->size <= sizes[i] || tiles[s] == 1, "shards", "a shard is too large");
            for (size_t b = 0; b < nw_pack_block_count(k, s); b++) {
                bool is_split = check_block(k, nw_pack_block(k, s, b), sizes[i]) > 0;
                split += is_split;
                whole += !is_split;
            }
        }
        tensor_files_close(&f);
        temp_dir_empty(packed.text);
        NW_CHECK(rmdir(packed.text) == 0);
    }
    check(split > 0 && whole > 20, "shards", "no block was split, or hardly any was whole");
    temp_dir_empty(dir->path);
}

/* ---- what fails ---- */

/* Stops at once. `user` gets what was done and all. */
static bool stop_at_once(void *user, uint64_t done, uint64_t total)
{
    uint64_t *seen = user;
    seen[0] = done;
    seen[1] = total;
    return false;
}

static void test_refused(const temp_dir *dir)
{
    uint64_t         seen[2] = {1, 0};
    char             src[1024];
    nw_pack_result   p;
    nw_unpack_result u;
    nw_error         err = {0};
    temp_path        packed = temp_dir_path(dir, "packed"), out = temp_dir_path(dir, "out");
    nw_pack_options  o = {.dir = packed.text, .on_progress = stop_half_way, .threads = 2};
    golden_dir("numbers-t5", src);
    check(model_pack(src, &o, NULL, &p, &err) == NW_E_CANCELLED, "stopped", err.msg);
    check(temp_dir_count(dir->path) == 0, "stopped", "something is left");
    o = (nw_pack_options){.dir = packed.text, .on_progress = stop_at_once, .user = seen, .threads = 2};
    check(model_pack(src, &o, NULL, &p, &err) == NW_E_CANCELLED, "stopped at once", err.msg);
    check(seen[0] == 0 && seen[1] == 5117952, "stopped at once", "it was not before the first tile is written");
    check(temp_dir_count(dir->path) == 0, "stopped at once", "something is left");
    o = (nw_pack_options){.dir = packed.text, .threads = 2, .budget_bytes = 4 << 20};
    check(model_pack(src, &o, NULL, &p, &err) == NW_E_BUDGET && err.bytes_needed > o.budget_bytes, "budget", err.msg);
    check(temp_dir_count(dir->path) == 0, "budget", "something is left");
    o.budget_bytes = err.bytes_needed;
    check(model_pack(src, &o, NULL, &p, &err) == NW_OK, "budget", err.msg);
    check(model_pack(src, &o, NULL, &p, &err) == NW_E_IO && strstr(err.msg, "exists") != NULL, "exists", err.msg);
    o.dir = out.text;
    check(model_pack(packed.text, &o, NULL, &p, &err) == NW_E_ARG, "a pack of a pack", err.msg);
    nw_unpack_options uo = {.dir = out.text, .on_progress = stop_half_way};
    check(model_unpack(packed.text, &uo, NULL, &u, &err) == NW_E_CANCELLED, "stopped unpacking", err.msg);
    uo = (nw_unpack_options){.dir = out.text, .type = NW_TYPE_Q8};
    check(model_unpack(packed.text, &uo, NULL, &u, &err) == NW_E_ARG, "unpacked as q8", err.msg);
    check(temp_dir_count(dir->path) == 1, "refused", "something is left");
    temp_dir_empty(dir->path);
}

/* One byte of a strip, of every kind of strip: unpacking names shard, tensor and strip, and leaves nothing. */
static void test_damaged(const temp_dir *dir)
{
    char             src[1024];
    nw_pack_result   p;
    nw_unpack_result u;
    temp_path        packed = temp_dir_path(dir, "packed"), out = temp_dir_path(dir, "out");
    golden_dir("flan-bf16-shards", src);
    for (int kind = 0; kind < 5; kind++) {
        nw_pack_options o = {.dir = packed.text, .threads = 2};
        o.compress = kind < 3 ? (nw_compress)kind : NW_COMPRESS_PACKED;
        o.type = kind < 3 ? NW_TYPE_KEEP : kind == 3 ? NW_TYPE_Q8 : NW_TYPE_Q4;
        if (!pack("damaged", src, &o, &p))
            continue;
        tensor_files f;
        tensor_files_open(&f, packed.text);
        const nw_pack   *k = nw_checkpoint_pack(f.c);
        const nw_tensor *t = nw_checkpoint_find(f.c, "decoder.block.1.layer.2.DenseReluDense.wo.weight");
        NW_CHECK(t != NULL);
        size_t        index = (size_t)(t - nw_checkpoint_tensor(f.c, 0));
        nw_pack_tile  tile = nw_pack_tile_at(k, nw_pack_tensor_at(k, index).tile_first);
        nw_pack_strip strip = nw_pack_strip_at(k, tile.strip_first);
        char          path[1100];
        snprintf(path, sizeof path, "%s", nw_pack_shard_path(k, tile.shard));
        tensor_files_close(&f);
        flip(path, tile.offset + strip.offset + strip.bytes / 2);
        nw_error err = {0};
        nw_code  rc = model_unpack(packed.text, &(nw_unpack_options){.dir = out.text}, NULL, &u, &err);
        check(rc == NW_E_IO, "damaged", err.msg);
        check(strstr(err.msg, path) != NULL && strstr(err.msg, "layer.2.DenseReluDense.wo.weight") != NULL &&
                  strstr(err.msg, "strip 0") != NULL,
              "damaged", err.msg);
        check(temp_dir_count(dir->path) == 1, "damaged", "something is left");
        temp_dir_empty(dir->path);
    }
}

/* Any allocation and any read may fail: the target is not there then, and nothing of it beside it. */
static void test_faults(const temp_dir *dir, const char *name, const char *src, faulty_run run)
{
    fault_points points = check_faults(name, FAULT_STRIDE, run, &(faulty_source){name, src, dir});
    check(points.allocations > 20 && points.reads > 40 / FAULT_STRIDE, name, "hardly any point was reached");
}

int main(void)
{
    temp_dir       dir = temp_dir_make(), kept = temp_dir_make();
    char           src[1024];
    temp_path      packed = temp_dir_path(&kept, "packed");
    nw_pack_result p;
    test_round_trips(&dir);
    test_types(&dir);
    test_quantised(&dir);
    test_shards(&dir);
    test_refused(&dir);
    test_damaged(&dir);
    golden_dir("three-embeddings", src);
    test_faults(&dir, "faults, packing", src, faulty_pack);
    if (pack("faults", src, &(nw_pack_options){.dir = packed.text, .threads = 2}, &p))
        test_faults(&dir, "faults, unpacking", packed.text, faulty_unpack);
    temp_dir_remove(&dir);
    temp_dir_remove(&kept);
    printf("%u failures\n", failures);
    return failures == 0 ? 0 : 1;
}

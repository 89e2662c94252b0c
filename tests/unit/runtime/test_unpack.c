/* unpack: what is written opens in the strict reader, holds the source's bytes under the source's names, keeps blocks
 * together, converts exactly where it says so, and is not there at all when anything fails. */
#include "pack_checks.h"

#include <math.h>

/* Every tensor of the source is there with its type, shape and bytes, or its metadata says under which name. */
static void compare(const char *name, const char *src, const char *dst, size_t aliases)
{
    char why[200];
    if (!tensor_files_equal(src, dst, aliases, why))
        check(false, name, why);
}

/* Shards are at most the limit unless one block (or tensor outside) is larger, and no block is in two. */
static void check_shards(const char *name, const char *dst, uint64_t max)
{
    tensor_files f;
    uint32_t     block_file[2][64];
    memset(block_file, 0xff, sizeof block_file);
    tensor_files_open(&f, dst);
    for (size_t i = 0; i < nw_checkpoint_tensor_count(f.c); i++) {
        const nw_tensor *t = nw_checkpoint_tensor(f.c, i);
        unsigned         block;
        bool             decoder = strncmp(t->name, "decoder", 7) == 0;
        if (sscanf(t->name, "%*[a-z].block.%u.", &block) != 1)
            continue;
        NW_CHECK(block < 64);
        if (block_file[decoder][block] == UINT32_MAX)
            block_file[decoder][block] = t->file;
        check(block_file[decoder][block] == t->file, name, "a block is in two shards");
    }
    for (size_t i = 0; i < nw_checkpoint_file_count(f.c); i++)
        check(nw_checkpoint_file(f.c, i)->size <= max + 16384, name, "a shard is too large");
    tensor_files_close(&f);
}

static void test_goldens(const temp_dir *dir)
{
    for (size_t i = 0; i < GOLDEN_CASES; i++) {
        char             src[1024];
        nw_unpack_result r;
        nw_error         err = {0};
        golden_dir(golden_cases[i], src);
        temp_path         whole = temp_dir_path(dir, "whole"), parts = temp_dir_path(dir, "parts");
        nw_unpack_options o = {.dir = whole.text};
        nw_code           rc = model_unpack(src, &o, NULL, &r, &err);
        check(rc == NW_OK && r.shard_count == 1 && r.converted == 0, golden_cases[i],
              rc == NW_OK ? "one shard" : err.msg);
        compare(golden_cases[i], src, whole.text, r.alias_count);
        o = (nw_unpack_options){.dir = parts.text, .shard_bytes_max = 400000};
        rc = model_unpack(src, &o, NULL, &r, &err);
        check(rc == NW_OK, golden_cases[i], err.msg);
        compare(golden_cases[i], src, parts.text, r.alias_count);
        check_shards(golden_cases[i], parts.text, 400000);
        /* And again from what was written: the same files, byte for byte. */
        temp_path again = temp_dir_path(dir, "again");
        o = (nw_unpack_options){.dir = again.text};
        rc = model_unpack(parts.text, &o, NULL, &r, &err);
        check(rc == NW_OK, golden_cases[i], err.msg);
        compare(golden_cases[i], whole.text, again.text, 0);
        nw_model *m = NULL;
        check(nw_model_open(&(nw_model_options){.path = again.text}, &m, &err) == NW_OK, golden_cases[i], err.msg);
        nw_model_close(m);
        temp_dir_empty(dir->path);
    }
}

/* ---- types ---- */

static void test_types(const temp_dir *dir)
{
    char             src[1024];
    nw_unpack_result r;
    nw_error         err = {0};
    temp_path bf16 = temp_dir_path(dir, "bf16"), f32 = temp_dir_path(dir, "f32"), f16 = temp_dir_path(dir, "f16");
    golden_dir("t5-v1.1", src);
    nw_unpack_options o = {.dir = bf16.text, .type = NW_TYPE_BF16};
    check(model_unpack(src, &o, NULL, &r, &err) == NW_OK, "bf16", err.msg);
    check(r.rounded > 0 && r.rounded <= r.converted, "bf16", "it does not say that bits were lost");
    check(file_has(bf16.text, "config.json", "bfloat16"), bf16.text, "config.json does not say the new type");

    /* Every element is the nearest. */
    tensor_files a, b;
    tensor_files_open(&a, src);
    tensor_files_open(&b, bf16.text);
    uint64_t rounded = 0;
    for (size_t i = 0; i < nw_checkpoint_tensor_count(a.c); i++) {
        const nw_tensor *x = nw_checkpoint_tensor(a.c, i), *y = nw_checkpoint_find(b.c, x->name);
        check(y != NULL && y->dtype == NW_BF16 && y->bytes * 2 == x->bytes, "bf16", x->name);
        float         *p = tensor_files_read(&a, x);
        unsigned char *q = tensor_files_read(&b, y);
        for (size_t k = 0; k < x->bytes / 4; k++) {
            unsigned char want[2];
            nw_dtype_from_f32(NW_BF16, p[k], want);
            check(memcmp(want, q + 2 * k, 2) == 0, "bf16", "an element is not the nearest");
            float kept = nw_dtype_to_f32(NW_BF16, q + 2 * k);
            rounded += kept < p[k] || kept > p[k];
        }
        free(p);
        free(q);
    }
    check(rounded == r.rounded, "bf16", "another number of weights was rounded");
    tensor_files_close(&a);
    tensor_files_close(&b);

    /* To f32 and back is exact, and said to be. */
    o = (nw_unpack_options){.dir = f32.text, .type = NW_TYPE_F32};
    check(model_unpack(bf16.text, &o, NULL, &r, &err) == NW_OK && r.rounded == 0 && r.converted > 0, "f32",
          "not exact");
    temp_path back = temp_dir_path(dir, "back");
    o = (nw_unpack_options){.dir = back.text, .type = NW_TYPE_BF16};
    check(model_unpack(f32.text, &o, NULL, &r, &err) == NW_OK && r.rounded == 0 && r.converted > 0, "back",
          "not exact");
    compare("back", bf16.text, back.text, 0);
    /* f16 and back is not, but close. */
    o = (nw_unpack_options){.dir = f16.text, .type = NW_TYPE_F16};
    check(model_unpack(src, &o, NULL, &r, &err) == NW_OK && r.rounded > 0, "f16", err.msg);
    check(file_has(f16.text, "config.json", "float16"), f16.text, "config.json does not say the new type");
    temp_dir_empty(dir->path);
}

static void test_conversions(void)
{
    static const float values[] = {0.0f,  -0.0f,         1.0f,    -1.5f, 65504.0f, 65519.9f, 65520.0f,
                                   1e-8f, 3.3895314e38f, 6.1e-5f, 5e-8f, NAN,      INFINITY};
    enum { COUNT = sizeof values / sizeof *values };
    unsigned char to[COUNT * 4];
    for (int type = 0; type < NW_DTYPE_COUNT; type++) {
        uint64_t rounded = 0, infinite = 0, want_rounded = 0, want_infinite = 0;
        nw_dtype_convert((nw_dtype)type, to, NW_F32, values, COUNT, &rounded, &infinite);
        for (size_t i = 0; i < COUNT; i++) {
            unsigned char one[4];
            size_t        bytes = nw_dtype_bytes((nw_dtype)type);
            nw_dtype_from_f32((nw_dtype)type, values[i], one);
            check(memcmp(one, to + i * bytes, bytes) == 0, "convert", "differs from one at a time");
            float kept = nw_dtype_to_f32((nw_dtype)type, one);
            want_rounded += !isnan(values[i]) && (kept < values[i] || kept > values[i]);
            want_infinite += isinf(kept) && !isinf(values[i]);
        }
        check(rounded == want_rounded && infinite == want_infinite, "convert", nw_dtype_name((nw_dtype)type));
    }
}

/* A weight that f16 cannot hold is refused, not made infinite. */
static void test_too_large(const temp_dir *dir)
{
    char             src[1024], text[4096];
    nw_unpack_result r;
    nw_error         err = {0};
    golden_dir("t5-v1.1", src);
    temp_path         copy = temp_dir_path(dir, "copy"), out = temp_dir_path(dir, "out");
    nw_unpack_options o = {.dir = copy.text};
    NW_CHECK(model_unpack(src, &o, NULL, &r, &err) == NW_OK);
    snprintf(text, sizeof text, "%s/model.safetensors", copy.text);
    tensor_files f;
    tensor_files_open(&f, copy.text);
    uint64_t at = nw_checkpoint_find(f.c, "decoder.block.1.layer.2.DenseReluDense.wo.weight")->offset;
    tensor_files_close(&f);
    float large = 70000.0f;
    int   fd = open(text, O_WRONLY);
    NW_CHECK(fd >= 0 && pwrite(fd, &large, sizeof large, (off_t)at + 40) == (ssize_t)sizeof large);
    close(fd);
    o = (nw_unpack_options){.dir = out.text, .type = NW_TYPE_F16};
    check(model_unpack(copy.text, &o, NULL, &r, &err) == NW_E_ARG, "too large", "is not refused");
    check(strstr(err.msg, "decoder.block.1.layer.2.DenseReluDense.wo.weight") != NULL, "too large", err.msg);
    check(temp_dir_count(dir->path) == 1, "too large", "something is left");
    o.type = NW_TYPE_BF16;
    check(model_unpack(copy.text, &o, NULL, &r, &err) == NW_OK, "too large", "bf16 has room for it");
    temp_dir_empty(dir->path);
}

/* ---- what fails ---- */

static void test_refused(const temp_dir *dir)
{
    char              src[1024];
    nw_unpack_result  r;
    nw_error          err = {0};
    temp_path         out = temp_dir_path(dir, "out");
    nw_unpack_options o = {.dir = out.text, .on_progress = stop_half_way};
    snprintf(src, sizeof src, "%s/numbers-t5", NW_TEST_DATA);
    check(model_unpack(src, &o, NULL, &r, &err) == NW_E_CANCELLED, "stopped", err.msg);
    check(temp_dir_count(dir->path) == 0, "stopped", "something is left");
    o = (nw_unpack_options){.dir = out.text, .budget_bytes = 8 << 20};
    check(model_unpack(src, &o, NULL, &r, &err) == NW_E_BUDGET && err.bytes_needed > o.budget_bytes, "budget", err.msg);
    o.budget_bytes = err.bytes_needed;
    check(model_unpack(src, &o, NULL, &r, &err) == NW_OK, "budget", err.msg);
    check(model_unpack(src, &o, NULL, &r, &err) == NW_E_IO && strstr(err.msg, "exists") != NULL, "exists", err.msg);
    o.dir = "";
    check(model_unpack(src, &o, NULL, &r, &err) == NW_E_ARG, "no directory", err.msg);
    temp_dir_empty(dir->path);
}

/* Any allocation and any read may fail: the target is not there then, and nothing of it beside it. */
static void test_faults(const temp_dir *dir)
{
    char src[1024];
    golden_dir("three-embeddings", src);
    fault_points points = check_faults("faults", 1, faulty_unpack, &(faulty_source){"faults", src, dir});
    check(points.allocations + points.reads > 50, "faults", "hardly any point was reached");
}

int main(void)
{
    temp_dir dir = temp_dir_make();
    test_conversions();
    test_goldens(&dir);
    test_types(&dir);
    test_too_large(&dir);
    test_refused(&dir);
    test_faults(&dir);
    temp_dir_remove(&dir);
    printf("%u failures\n", failures);
    return failures == 0 ? 0 : 1;
}

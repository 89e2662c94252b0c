/* The programs that make large checkpoints, run as programs and read back with the checkpoint reader: old weights are
 * where they belong, what must be zero is zero, the rest is drawn and finite, and all of it depends on the seed alone.
 * What the grown tensors must look like is stated here anew, from the arithmetic of a T5, not taken from grow.c. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/dtype.h"
#include "loader/checkpoint.h"
#include "program.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    char programs[3000]; /* the directory they are in */
    char dir[256];       /* for temporary files */
} fixture;

static fixture fx;

/* The programs are built beside the tests: <build>/tests/test_grow, <build>/benchmarks/narrows-grow. */
static bool find_programs(void)
{
    char    exe[2048];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (len <= 0)
        return false;
    exe[len] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(exe, '/');
        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    snprintf(fx.programs, sizeof fx.programs, "%s/benchmarks", exe);
    char path[3100];
    snprintf(path, sizeof path, "%s/narrows-grow", fx.programs);
    return access(path, X_OK) == 0;
}

/* Runs a program of ours with its output thrown away; its exit status, or -1 if a signal ended it. Words up to NULL. */
static int run_program(const char *program, ...)
{
    char        path[3100];
    const char *args[PROGRAM_ARGS_MAX];
    size_t      count = 0;
    va_list     words;
    snprintf(path, sizeof path, "%s/%s", fx.programs, program);
    args[count++] = path;
    va_start(words, program);
    do {
        assert_true(count < PROGRAM_ARGS_MAX);
        args[count] = va_arg(words, const char *);
    } while (args[count++] != NULL);
    va_end(words);

    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    int status = program_run(args, &quiet);
    posix_spawn_file_actions_destroy(&quiet);
    return status;
}

static const char *in_dir(const char *name, char buf[512])
{
    snprintf(buf, 512, "%s/%s", fx.dir, name);
    return buf;
}

/* A checkpoint that is open for comparing. */
typedef struct {
    nw_memory      mem;
    nw_io         *io;
    nw_checkpoint *checkpoint;
} model;

static void model_open(model *m, const char *path)
{
    nw_error err = {0};
    nw_memory_init(&m->mem, UINT64_MAX, NULL);
    nw_code rc = nw_io_open(&m->mem, &(nw_io_options){.choice = NW_IO_THREADS, .depth = 2}, &m->io, &err);
    if (rc == NW_OK)
        rc = nw_checkpoint_open(&m->mem, m->io, path, NULL, NULL, &m->checkpoint, &err);
    if (rc != NW_OK)
        fail_msg("%s", err.msg);
}

static void model_close(model *m)
{
    nw_checkpoint_close(m->checkpoint);
    nw_io_close(m->io);
    assert_int_equal(m->mem.live, 0);
}

static unsigned char *tensor_load(model *m, const nw_tensor *t)
{
    nw_error       err = {0};
    unsigned char *data = nw_memory_alloc(&m->mem, NW_TAG_INDEX, (size_t)t->bytes, 1);
    assert_non_null(data);
    if (nw_file_read(&m->mem, m->io, nw_checkpoint_file(m->checkpoint, t->file),
                     nw_checkpoint_file_path(m->checkpoint, t->file), t->offset, data, (size_t)t->bytes, NULL,
                     &err) != NW_OK)
        fail_msg("%s", err.msg);
    return data;
}

static void tensor_free(model *m, const nw_tensor *t, unsigned char *data)
{
    nw_memory_free(&m->mem, NW_TAG_INDEX, data, (size_t)t->bytes, 1);
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

/* What is known about the tensor of one name, apart from the values it keeps. */
typedef struct {
    bool  is_norm, is_embedding, makes_units, makes_stream;
    float factor; /* new value of a kept weight over the old one */
} expected;

static expected expect(const char *name, float norm_factor, bool scaled_output)
{
    expected e = {.factor = 1};
    e.is_norm = has_suffix(name, "layer_norm.weight");
    e.is_embedding = has_suffix(name, "shared.weight") || has_suffix(name, "embed_tokens.weight");
    /* hidden units and values of heads: zero when they are new */
    e.makes_units = has_suffix(name, ".v.weight") || has_suffix(name, ".wi_1.weight") || has_suffix(name, ".wi.weight");
    e.makes_stream = has_suffix(name, ".o.weight") || has_suffix(name, ".wo.weight");
    if (e.is_norm && !(scaled_output && strcmp(name, "decoder.final_layer_norm.weight") == 0))
        e.factor = norm_factor;
    return e;
}

/* Compares one grown tensor with the old one; `old` is NULL for a tensor of an appended block, of which only `old_rows`
 * and `old_cols`, the sizes of its like, are known. Returns how many weights were neither kept nor zero. */
static size_t check_tensor(const nw_tensor *t, const unsigned char *grown, const unsigned char *old, uint64_t old_rows,
                           uint64_t old_cols, expected e)
{
    size_t   size = nw_dtype_bytes(t->dtype), drawn = 0;
    uint64_t rows = t->dim_count == 2 ? t->dims[0] : 1, cols = t->dims[t->dim_count - 1];
    for (uint64_t row = 0; row < rows; row++) {
        for (uint64_t col = 0; col < cols; col++) {
            float value = nw_dtype_to_f32(t->dtype, grown + (row * cols + col) * size);
            bool  old_row = row < old_rows, old_col = col < old_cols;
            bool  zero = (e.is_embedding && !old_col) || (e.makes_units && old_col && (!old_row || old == NULL)) ||
                        (e.makes_stream && !old_row && old_col && old != NULL);
            if (old != NULL && old_row && old_col) {
                float kept = nw_dtype_to_f32(t->dtype, old + (row * old_cols + col) * size) * e.factor;
                if (kept != value)
                    fail_msg("%s[%u][%u] is %g, not %g", t->name, (unsigned)row, (unsigned)col, (double)value,
                             (double)kept);
            } else if (zero) {
                if (value != 0.0f)
                    fail_msg("%s[%u][%u] is %g, not zero", t->name, (unsigned)row, (unsigned)col, (double)value);
            } else {
                assert_true(isfinite(value));
                drawn += value != 0.0f ? 1 : 0;
            }
        }
    }
    return drawn;
}

/* "encoder.block.5.layer..." to the name in block `block`; false outside blocks or if it is in an older block. */
static bool name_in_block(const char *name, unsigned block, char *ret, size_t cap)
{
    unsigned own;
    int      digits_at = 0, rest_at = 0;
    if (sscanf(name, "%*7[a-z].block.%n%u%n", &digits_at, &own, &rest_at) != 1 || own <= block)
        return false;
    return (size_t)snprintf(ret, cap, "%.*s%u%s", digits_at, name, block, name + rest_at) < cap;
}

typedef struct {
    const char *src;
    unsigned    last_block; /* of both stacks of the source */
    float       norm_factor;
    bool        scaled_output;
    uint64_t    d_model, d_ff, inner; /* of the new model */
} growth;

/* Checks every tensor of `dst` against the source; the number of tensors must be `count`. */
static void check_growth(const growth *g, const char *dst, size_t count)
{
    model a, b;
    model_open(&a, g->src);
    model_open(&b, dst);
    assert_int_equal(nw_checkpoint_tensor_count(b.checkpoint), count);
    size_t drawn = 0;
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(b.checkpoint, i);
        const nw_tensor *o = nw_checkpoint_find(a.checkpoint, t->name);
        const nw_tensor *like = o;
        char             name[160];
        if (o == NULL) {
            assert_true(name_in_block(t->name, g->last_block, name, sizeof name));
            like = nw_checkpoint_find(a.checkpoint, name);
        }
        assert_non_null(like);
        assert_int_equal(t->dtype, like->dtype);
        assert_int_equal(t->dim_count, like->dim_count);
        uint64_t cols = t->dims[t->dim_count - 1];
        if (has_suffix(t->name, ".o.weight"))
            assert_int_equal(cols, g->inner);
        else if (has_suffix(t->name, ".wo.weight"))
            assert_int_equal(cols, g->d_ff);
        else if (!has_suffix(t->name, "_bias.weight"))
            assert_int_equal(cols, g->d_model);
        unsigned char *grown = tensor_load(&b, t), *old = o != NULL ? tensor_load(&a, o) : NULL;
        drawn += check_tensor(t, grown, old, like->dim_count == 2 ? like->dims[0] : 1, like->dims[like->dim_count - 1],
                              expect(t->name, g->norm_factor, g->scaled_output));
        tensor_free(&b, t, grown);
        if (o != NULL)
            tensor_free(&a, o, old);
    }
    for (size_t i = 0; i < nw_checkpoint_tensor_count(a.checkpoint); i++)
        assert_non_null(nw_checkpoint_find(b.checkpoint, nw_checkpoint_tensor(a.checkpoint, i)->name));
    assert_true(drawn > 1000);
    model_close(&a);
    model_close(&b);
}

static void read_text(const char *dir, const char *name, char *buf, size_t cap)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t len = fread(buf, 1, cap - 1, file);
    buf[len] = '\0';
    fclose(file);
}

/* The number behind "key": in a flat JSON text. */
static double json_number(const char *text, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    assert_non_null(at);
    return strtod(at + strlen(quoted), NULL);
}

static void test_bf16_all_ways(void **state)
{
    (void)state;
    char   dst[512], config[4096], old_piece[64], new_piece[64];
    growth g = {.src = NW_TEST_DATA "/numbers-t5",
                .last_block = 3,
                .norm_factor = 0.5f,
                .d_model = 512,
                .d_ff = 1024,
                .inner = 192};
    assert_int_equal(run_program("narrows-grow", g.src, in_dir("all", dst), "--d-model-factor", "4", "--d-ff", "1024",
                                 "--heads", "6", "--blocks", "6", NULL),
                     0);
    /* encoder blocks have 9 tensors, decoder blocks 14, block 0 of each one more */
    check_growth(&g, dst, 6 * 9 + 6 * 14 + 2 + 4);
    read_text(dst, "config.json", config, sizeof config);
    assert_true((float)json_number(config, "layer_norm_epsilon") == 1e-6f / 4);
    assert_true(json_number(config, "d_model") == 512 && json_number(config, "d_ff") == 1024);
    assert_true(json_number(config, "num_heads") == 6 && json_number(config, "num_layers") == 6);
    assert_true(json_number(config, "num_decoder_layers") == 6 && json_number(config, "d_kv") == 32);
    assert_non_null(strstr(config, "\"is_encoder_decoder\""));
    read_text(g.src, "spiece.model", old_piece, sizeof old_piece);
    read_text(dst, "spiece.model", new_piece, sizeof new_piece);
    assert_memory_equal(old_piece, new_piece, sizeof old_piece);
}

/* Scaled output: the decoder's final norm keeps its weights; f32. */
static void test_f32_tied(void **state)
{
    (void)state;
    char   dst[512];
    growth g = {.src = NW_TEST_DATA "/goldens/t5-v1.0-tied",
                .last_block = 1,
                .norm_factor = 0.25f,
                .scaled_output = true,
                .d_model = 1024,
                .d_ff = 256,
                .inner = 64};
    assert_int_equal(run_program("narrows-grow", g.src, in_dir("tied", dst), "--d-model-factor", "16", "--d-ff", "256",
                                 "--blocks", "3", NULL),
                     0);
    /* 8 and 13 tensors a block, two bias tables and one that is ignored, one embedding, two final norms */
    check_growth(&g, dst, 3 * 8 + 3 * 13 + 3 + 3);
}

static void test_f16(void **state)
{
    (void)state;
    char   dst[512];
    growth g = {.src = NW_TEST_DATA "/goldens/flan-f16",
                .last_block = 1,
                .norm_factor = 0.5f,
                .d_model = 256,
                .d_ff = 128,
                .inner = 80};
    assert_int_equal(
        run_program("narrows-grow", g.src, in_dir("half", dst), "--d-model-factor", "4", "--heads", "5", NULL), 0);
    check_growth(&g, dst, 2 * 9 + 2 * 14 + 2 + 4);
}

/* UMT5: appended blocks have a bias table too. */
static void test_bias_per_block(void **state)
{
    (void)state;
    char   dst[512];
    growth g = {.src = NW_TEST_DATA "/goldens/umt5",
                .last_block = 2,
                .norm_factor = 1,
                .d_model = 64,
                .d_ff = 128,
                .inner = 64};
    assert_int_equal(run_program("narrows-grow", g.src, in_dir("umt5", dst), "--blocks", "5", NULL), 0);
    check_growth(&g, dst, 5 * 10 + 5 * 15 + 4);
}

/* How many tensors of two checkpoints of the same names are not equal byte for byte. */
static size_t count_different(const char *path_a, const char *path_b)
{
    model  a, b;
    size_t different = 0;
    model_open(&a, path_a);
    model_open(&b, path_b);
    size_t count = nw_checkpoint_tensor_count(a.checkpoint);
    assert_int_equal(nw_checkpoint_tensor_count(b.checkpoint), count);
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *x = nw_checkpoint_tensor(a.checkpoint, i), *y = nw_checkpoint_tensor(b.checkpoint, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->bytes, y->bytes);
        unsigned char *p = tensor_load(&a, x), *q = tensor_load(&b, y);
        different += memcmp(p, q, (size_t)x->bytes) != 0 ? 1 : 0;
        tensor_free(&a, x, p);
        tensor_free(&b, y, q);
    }
    model_close(&a);
    model_close(&b);
    return different;
}

static void test_seed_decides(void **state)
{
    (void)state;
    const char *src = NW_TEST_DATA "/goldens/flan-bf16-shards";
    char        one[512], shards[512], other[512];
    assert_int_equal(
        run_program("narrows-grow", src, in_dir("one", one), "--target-size", "3M", "--max-shard-size", "none", NULL),
        0);
    assert_int_equal(run_program("narrows-grow", src, in_dir("shards", shards), "--target-size", "3M",
                                 "--max-shard-size", "400K", NULL),
                     0);
    assert_int_equal(
        run_program("narrows-grow", src, in_dir("other", other), "--target-size", "3M", "--seed", "7", NULL), 0);
    assert_int_equal(count_different(one, shards), 0);
    assert_true(count_different(one, other) > 40);

    model    m;
    uint64_t bytes = 0;
    model_open(&m, shards);
    assert_true(nw_checkpoint_file_count(m.checkpoint) > 3);
    for (size_t i = 0; i < nw_checkpoint_tensor_count(m.checkpoint); i++)
        bytes += nw_checkpoint_tensor(m.checkpoint, i)->bytes;
    model_close(&m);
    /* a step of d_ff is 6 blocks of 3 x 256 x 128 weights */
    assert_true(bytes <= 3 << 20 && bytes > (3 << 20) - 6 * 3 * 256 * 128 * 2);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *src = NW_TEST_DATA "/numbers-t5";
    char        dst[512], taken[512], inside[512];
    in_dir("refused", dst);
    assert_int_equal(run_program("narrows-grow", src, dst, "--d-ff", "256", NULL), 1);
    assert_int_equal(run_program("narrows-grow", src, dst, "--blocks", "3", NULL), 1);
    assert_int_equal(run_program("narrows-grow", src, dst, "--target-size", "1M", NULL), 1);
    assert_int_equal(run_program("narrows-grow", src, dst, "--d-model-factor", "8", NULL), 2);
    assert_int_equal(run_program("narrows-grow", src, NULL), 2);
    assert_int_equal(run_program("narrows-grow", NW_TEST_DATA "/goldens/byt5", dst, NULL), 1); /* d_model 60 */
    assert_int_equal(run_program("narrows-generate", "no-such-shape", dst, NULL), 1);
    assert_int_equal(run_program("narrows-generate", "t5-small", dst, "--dtype", "q8", NULL), 2);
    assert_int_not_equal(access(dst, F_OK), 0);
    assert_int_equal(mkdir(in_dir("taken", taken), 0755), 0);
    assert_int_equal(mkdir(in_dir("taken/inside", inside), 0755), 0);
    assert_int_equal(run_program("narrows-grow", src, taken, NULL), 1);
    assert_int_equal(rmdir(inside), 0);
    assert_int_equal(rmdir(taken), 0); /* nothing was put there */
}

/* Moments and bits of one generated tensor. */
typedef struct {
    double mean, sigma;
    size_t zeros, low_bits; /* weights that are zero; f32 with something in the lower 16 bits */
    size_t exponents;       /* how many different ones */
} facts;

static facts measure(model *m, const char *name, uint64_t first_row, uint64_t row_count)
{
    const nw_tensor *t = nw_checkpoint_find(m->checkpoint, name);
    assert_non_null(t);
    unsigned char *data = tensor_load(m, t);
    facts          f = {0};
    bool           seen[256] = {false};
    double         sum = 0, squares = 0;
    uint64_t       cols = t->dims[t->dim_count - 1], count = row_count * cols;
    for (uint64_t i = first_row * cols; i < first_row * cols + count; i++) {
        const unsigned char *p = data + i * nw_dtype_bytes(t->dtype);
        float                value = nw_dtype_to_f32(t->dtype, p);
        uint32_t             bits;
        memcpy(&bits, &value, sizeof bits);
        sum += (double)value;
        squares += (double)value * (double)value;
        f.zeros += value == 0.0f ? 1 : 0;
        f.low_bits += (bits & 0xffff) != 0 ? 1 : 0;
        f.exponents += seen[(bits >> 23) & 0xff] ? 0 : 1;
        seen[(bits >> 23) & 0xff] = true;
    }
    f.mean = sum / (double)count;
    f.sigma = sqrt(squares / (double)count - f.mean * f.mean);
    tensor_free(m, t, data);
    return f;
}

static void test_generate(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"bf16", "f16", "f32", "bf16-in-f32"};
    for (size_t i = 0; i < 4; i++) {
        char dst[512];
        assert_int_equal(run_program("narrows-generate", "--config", NW_TEST_DATA "/numbers-t5/config.json",
                                     in_dir(dtypes[i], dst), "--dtype", dtypes[i], "--tokenizer",
                                     NW_TEST_DATA "/numbers-t5", NULL),
                         0);
        model m;
        model_open(&m, dst);
        assert_int_equal(nw_checkpoint_tensor_count(m.checkpoint), 4 * 9 + 4 * 14 + 2 + 4);
        facts wi = measure(&m, "encoder.block.3.layer.1.DenseReluDense.wi_0.weight", 0, 512);
        assert_true(fabs(wi.mean) < 0.002 && fabs(wi.sigma * sqrt(128.0) - 1) < 0.01);
        assert_true(wi.zeros == 0 && wi.exponents >= 12 && wi.exponents < 40);
        /* full fractions: all but 1 in 2^16 have something in the lower half; coarse ones never */
        assert_true(i == 2 ? wi.low_bits > 512 * 128 * 99 / 100 : i == 1 || wi.low_bits == 0);
        facts norm = measure(&m, "decoder.final_layer_norm.weight", 0, 1);
        assert_true(fabs(norm.mean - 1) < 0.05 && norm.sigma > 0.05 && norm.sigma < 0.2);
        assert_int_equal(measure(&m, "lm_head.weight", 1, 1).zeros, 128); /* the end token's row */
        assert_int_equal(measure(&m, "lm_head.weight", 2, 766).zeros, 0);
        assert_int_equal(measure(&m, "shared.weight", 0, 768).zeros, 0);
        model_close(&m);
        char path[600];
        snprintf(path, sizeof path, "%s/spiece.model", dst);
        assert_int_equal(access(path, R_OK), 0);
    }
    assert_int_equal(run_program("narrows-generate", "--list", NULL), 0); /* checks the sums of all published shapes */
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

int main(void)
{
    if (!find_programs()) {
        puts("skipped: narrows-grow was not built");
        return 77;
    }
    const char *tmp = getenv("TMPDIR");
    snprintf(fx.dir, sizeof fx.dir, "%s/narrows-grow-XXXXXX", tmp != NULL && strlen(tmp) < 200 ? tmp : "/var/tmp");
    if (mkdtemp(fx.dir) == NULL) {
        perror(fx.dir);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_all_ways),  cmocka_unit_test(test_f32_tied),     cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bias_per_block), cmocka_unit_test(test_seed_decides), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_generate),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nftw(fx.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failed;
}

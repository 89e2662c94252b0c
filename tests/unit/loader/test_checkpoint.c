/* Opening checkpoints: every published form opens with the right table; every malformed, cut or hostile one gives a
 * one-line error that names the file; and no failure on the way leaks. */
#include "checkpoint_bench.h"
#include "temp_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX "model.safetensors.index.json"

/* Opens and expects an error whose line names what it should. */
static void expect_error(const char *path, nw_code code, const char *word)
{
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    bench_open(&b, UINT64_MAX, NULL);
    nw_code rc = bench_checkpoint(&b, path, &c, &err);
    if (rc != code || err.code != code || strstr(err.msg, word) == NULL || strchr(err.msg, '\n') != NULL)
        fail_msg("%s: wanted %d with '%s', got %d '%s'", path, (int)code, word, (int)rc, err.msg);
    assert_null(c);
    bench_close(&b);
}

/* Header and data of `data_bytes` zeros as a file. */
static temp_path put(const temp_dir *dir, const char *name, const char *header, size_t data_bytes)
{
    size_t         len = strlen(header), total = 8 + len + data_bytes;
    unsigned char *bytes = calloc(1, total);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)len >> (8 * i));
    memcpy(bytes + 8, header, len);
    temp_path path = temp_dir_write(dir, name, bytes, total);
    free(bytes);
    return path;
}

static temp_path put_text(const temp_dir *dir, const char *name, const char *text)
{
    return temp_dir_write(dir, name, text, strlen(text));
}

/* -- what opens -- */

static const size_t golden_tensors_min = 20;

/* What must hold for every checkpoint that opens. */
static void check_table(const nw_checkpoint *c)
{
    size_t   count = nw_checkpoint_tensor_count(c);
    uint64_t data = 0, files = 0;
    for (size_t i = 0; i < count; i++) {
        const nw_tensor *t = nw_checkpoint_tensor(c, i);
        assert_true(i == 0 || strcmp(nw_checkpoint_tensor(c, i - 1)->name, t->name) < 0);
        assert_ptr_equal(nw_checkpoint_find(c, t->name), t);
        assert_true(t->file < nw_checkpoint_file_count(c));
        assert_true(t->offset + t->bytes <= nw_checkpoint_file(c, t->file)->size);
        uint64_t elements = 1;
        for (uint32_t d = 0; d < t->dim_count; d++)
            elements *= t->dims[d];
        if (t->known)
            assert_int_equal(t->bytes, elements * nw_dtype_bytes(t->dtype));
        data += t->bytes;
    }
    for (size_t f = 0; f < nw_checkpoint_file_count(c); f++) {
        struct stat st;
        assert_int_equal(stat(nw_checkpoint_file_path(c, f), &st), 0);
        assert_int_equal((uint64_t)st.st_size, nw_checkpoint_file(c, f)->size);
        files += (uint64_t)st.st_size;
    }
    assert_true(data < files && files - data < 1 << 20);
    assert_null(nw_checkpoint_find(c, "no.such.tensor"));
    assert_null(nw_checkpoint_find(c, ""));
}

static void test_goldens(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t      files;
        const char *tensor;
        nw_dtype    dtype;
    } cases[] = {
        {"buckets", 1, "encoder.final_layer_norm.weight", NW_F32},
        {"byt5", 1, "encoder.block.3.layer.1.DenseReluDense.wi_0.weight", NW_F32},
        {"encoder-only", 1, "encoder.final_layer_norm.weight", NW_BF16},
        {"flan-bf16-shards", 3, "shared.weight", NW_BF16},
        {"flan-f16", 1, "shared.weight", NW_F16},
        {"gelu-exact", 1, "encoder.final_layer_norm.weight", NW_F32},
        {"long", 1, "encoder.final_layer_norm.weight", NW_BF16},
        {"madlad", 1, "decoder.embed_tokens.weight", NW_F32},
        {"mt5", 1, "lm_head.weight", NW_F32},
        {"odd-sizes", 1, "encoder.final_layer_norm.weight", NW_F32},
        {"t5-v1.0-tied", 1, "encoder.final_layer_norm.weight", NW_F32},
        {"t5-v1.1", 1, "lm_head.weight", NW_F32},
        {"three-embeddings", 1, "decoder.embed_tokens.weight", NW_F32},
        {"ul2", 1, "encoder.final_layer_norm.weight", NW_BF16},
        {"umt5", 1, "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight", NW_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int single = 0; single < 2; single++) {
            char path[600], dir[512];
            snprintf(dir, sizeof dir, "%s/goldens/%s", NW_TEST_DATA, cases[i].name);
            snprintf(path, sizeof path, "%s%s", dir, single ? "/golden.safetensors" : "");
            bench          b;
            nw_checkpoint *c;
            nw_error       err;
            bench_open(&b, UINT64_MAX, NULL);
            if (bench_checkpoint(&b, path, &c, &err) != NW_OK)
                fail_msg("%s: %s", path, err.msg);
            check_table(c);
            assert_string_equal(nw_checkpoint_dir(c), dir);
            assert_true(b.read_bytes > 0);
            assert_true(b.mem.peak < 1 << 20);
            if (single) {
                const nw_tensor *ids = nw_checkpoint_find(c, "input_ids");
                assert_non_null(ids);
                assert_false(ids->known);
                assert_string_equal(ids->dtype_name, "I32");
                assert_non_null(nw_checkpoint_find(c, "encoder_hidden.0"));
            } else {
                assert_int_equal(nw_checkpoint_file_count(c), cases[i].files);
                assert_true(nw_checkpoint_tensor_count(c) >= golden_tensors_min);
                const nw_tensor *t = nw_checkpoint_find(c, cases[i].tensor);
                if (t == NULL)
                    fail_msg("%s: no %s", cases[i].name, cases[i].tensor);
                if (!t->known || t->dtype != cases[i].dtype)
                    fail_msg("%s: %s", cases[i].name, t->dtype_name);
            }
            nw_checkpoint_close(c);
            bench_close(&b);
        }
    }
}

/* Offsets are those of the file: the bytes there are the tensor's. */
static void test_offsets(void **state)
{
    (void)state;
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    bench_open(&b, UINT64_MAX, NULL);
    assert_int_equal(bench_checkpoint(&b, NW_TEST_DATA "/goldens/flan-bf16-shards/" INDEX, &c, &err), NW_OK);
    const nw_tensor *t = nw_checkpoint_find(c, "encoder.final_layer_norm.weight");
    assert_non_null(t);
    unsigned char stored[2];
    assert_int_equal(t->dim_count, 1);
    for (uint64_t i = 0; i < t->dims[0]; i++) {
        assert_int_equal(nw_file_read(&b.mem, b.io, nw_checkpoint_file(c, t->file), nw_checkpoint_file_path(c, t->file),
                                      t->offset + 2 * i, stored, 2, NULL, &err),
                         NW_OK);
        float value = nw_dtype_to_f32(t->dtype, stored);
        assert_true(value > -8.0f && value < 8.0f && value != 0.0f); /* a norm's scale, not another tensor's bits */
    }
    nw_checkpoint_close(c);
    bench_close(&b);
}

static void test_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t      data, tensors;
    } cases[] = {
        {"{}", 0, 0},
        {" \n{} \t\r\n", 0, 0}, /* white space on both sides, as the reference accepts it */
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"a\":\"b\",\"format\":\"pt\"},\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,"
         "4]}}",
         4, 1},
        {"{\"x\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"F32\"}}", 4, 1},    /* rank 0, another order */
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0, 1}, /* empty */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[0,4]},"
         "\"c\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[4,6]}}",
         6, 3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
         "offsets\":[0,4]}}",
         7, 2},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, 1},
        {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1},
        {"{\"a\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[0,2]}}", 2, 1},
        {"{\"\xc3\xa9\\\"/..\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, 1},
    };
    temp_dir dir = temp_dir_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temp_path      path = put(&dir, "model.safetensors", cases[i].header, cases[i].data);
        bench          b;
        nw_checkpoint *c;
        nw_error       err;
        bench_open(&b, UINT64_MAX, NULL);
        if (bench_checkpoint(&b, i % 2 ? path.text : dir.path, &c, &err) != NW_OK)
            fail_msg("%s: %s", cases[i].header, err.msg);
        assert_int_equal(nw_checkpoint_tensor_count(c), cases[i].tensors);
        assert_string_equal(nw_checkpoint_dir(c), dir.path);
        nw_checkpoint_close(c);
        bench_close(&b);
    }
    temp_dir_remove(&dir);
}

/* -- what is refused -- */

#define T(name, dtype, shape, offsets)                                                                                 \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t      data;
    const char *word;
} refused_headers[] = {
    {"", 0, "cut short"},
    {"{", 0, "cut short"},
    {"[]", 0, "not a JSON object"},
    {"null", 0, "not a JSON object"},
    {"{}\x01", 0, "invalid JSON"},
    {"{\"\xff\":{}}", 0, "invalid"},
    {"\xef\xbb\xbf{}", 0, "invalid JSON"},
    {"{\"a\":1}", 0, "not an object"},
    {"{\"a\":[]}", 0, "not an object"},
    {"{\"a\":{}}", 0, "tensor 'a'"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__"},
    {"{\"__metadata__\":null}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "duplicate key 'a'"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate key 'a'"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("\\u0061", "F32", "[1]", "[4,8]") "}", 8, "duplicate key 'a'"},
    {"{" T("", "F32", "[1]", "[0,4]") "}", 4, "name of a tensor"},
    {"{" T("a\\u0000b", "F32", "[1]", "[0,4]") "}", 4, "NUL"},
    {"{" T("a\\nb", "F32", "[1]", "[0,4]") "}", 4, "name of a tensor"},
    {"{" T("a\\u009bb", "F32", "[1]", "[0,4]") "}", 4, "name of a tensor"},
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "dtype"},
    {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "dtype"},
    {"{" T("a", "", "[1]", "[0,4]") "}", 4, "dtype"},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "needs"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "needs"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "needs"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "member"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}", 4, "duplicate key"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "member"},
    {"{" T("a", "F32", "[[1]]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[null]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[01]", "[0,4]") "}", 4, "invalid JSON"},
    {"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4, "no size"},
    {"{" T("a", "F32", "[1]", "[0]") "}", 4, "needs"},
    {"{" T("a", "F32", "[1]", "[0,4,4]") "}", 4, "more than two"},
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "not within"},
    {"{" T("a", "F32", "[2]", "[0,8]") "}", 4, "not within"},
    {"{" T("a", "F32", "[1]", "[18446744073709551612,18446744073709551615]") "}", 4, "not within"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "shape and dtype"},
    {"{" T("a", "BF16", "[1]", "[0,4]") "}", 4, "shape and dtype"},
    {"{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "too large"},   /* bytes overflow */
    {"{" T("a", "F32", "[9223372036854775808,2]", "[0,0]") "}", 0, "too large"}, /* elements overflow */
    {"{" T("a", "F32", "[4294967296,4294967296,4294967296]", "[0,0]") "}", 0, "too large"},
    {"{" T("a", "F4", "[3]", "[0,2]") "}", 2, "whole byte"},
    {"{" T("a", "F6_E3M2", "[2]", "[0,2]") "}", 2, "whole byte"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "belong to no tensor"}, /* a polyglot's tail */
    {"{}", 1, "belong to no tensor"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "hole"}, /* before the first */
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, "hole"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "overlaps"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, "overlaps"},
    {"{" T("a", "F32", "[0]", "[2,2]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, "overlaps"},
};

static void test_headers_refused(void **state)
{
    (void)state;
    temp_dir dir = temp_dir_make();
    for (size_t i = 0; i < sizeof refused_headers / sizeof *refused_headers; i++) {
        temp_path path = put(&dir, "model.safetensors", refused_headers[i].header, refused_headers[i].data);
        expect_error(path.text, NW_E_FORMAT, refused_headers[i].word);
        expect_error(dir.path, NW_E_FORMAT, path.text); /* every message names the file */
    }
    temp_path path = put(&dir, "model.safetensors", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1);
    expect_error(path.text, NW_E_UNSUPPORTED, "8 dimensions");

    char long_name[1024], header[2048];
    for (size_t len = 512; len <= 513; len++) {
        memset(long_name, 'n', len);
        long_name[len] = '\0';
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", long_name);
        path = put(&dir, "model.safetensors", header, 1);
        if (len == 513)
            expect_error(path.text, NW_E_FORMAT, "name of a tensor");
    }
    temp_dir_remove(&dir);
}

/* The reference's own: ten tensors on one range. */
static void test_overlap_of_ten(void **state)
{
    (void)state;
    char   header[2048] = "{";
    size_t len = 1;
    for (int i = 0; i < 10; i++)
        len += (size_t)snprintf(header + len, sizeof header - len,
                                "%s\"w%d\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}",
                                i > 0 ? "," : "", i);
    snprintf(header + len, sizeof header - len, "}");
    temp_dir  dir = temp_dir_make();
    temp_path path = put(&dir, "model.safetensors", header, 16);
    expect_error(path.text, NW_E_FORMAT, "overlaps");
    temp_dir_remove(&dir);
}

static void test_files_refused(void **state)
{
    (void)state;
    temp_dir  dir = temp_dir_make();
    temp_path path = temp_dir_write(&dir, "model.safetensors", "", 0);
    expect_error(path.text, NW_E_FORMAT, path.text);
    static const unsigned char zeros[64] = {0};
    for (size_t len = 1; len < 8; len++) {
        temp_dir_write(&dir, "model.safetensors", zeros, len);
        expect_error(path.text, NW_E_FORMAT, "too short");
    }
    temp_dir_write(&dir, "model.safetensors", zeros, 8); /* a header of no bytes */
    expect_error(path.text, NW_E_FORMAT, "cut short");
    temp_dir_write(&dir, "model.safetensors", zeros, 64); /* ... and a tail */
    expect_error(path.text, NW_E_FORMAT, "cut short");

    static const uint64_t lengths[] = {3, 9, 100000000, 100000001, 0x7fffffffffffffff, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int k = 0; k < 8; k++)
            bytes[k] = (unsigned char)(lengths[i] >> (8 * k));
        temp_dir_write(&dir, "model.safetensors", bytes, sizeof bytes);
        expect_error(path.text, NW_E_FORMAT, "not a safetensors file");
    }
    /* NUL as padding, and a header cut at each byte, and data short of two bytes */
    static const char good[] = "{" T("a", "F32", "[1]", "[0,4]") "}";
    unsigned char     bytes[128] = {0};
    memcpy(bytes + 8, good, sizeof good - 1);
    bytes[0] = sizeof good; /* one more than the text: the NUL behind it */
    temp_dir_write(&dir, "model.safetensors", bytes, 8 + sizeof good + 4);
    expect_error(path.text, NW_E_FORMAT, "invalid JSON");
    bytes[0] = sizeof good - 1;
    for (size_t len = 8; len < 8 + sizeof good - 1 + 4; len++) {
        temp_dir_write(&dir, "model.safetensors", bytes, len);
        expect_error(path.text, NW_E_FORMAT, path.text);
    }
    temp_dir_write(&dir, "model.safetensors", "GGUF\3\0\0\0\1\0\0\0", 12);
    expect_error(path.text, NW_E_UNSUPPORTED, "GGUF");
    temp_dir_write(&dir, "model.safetensors", "PK\3\4\0\0\0\0\1\0\0\0", 12);
    expect_error(path.text, NW_E_FORMAT, "zip archive"); /* the first bytes decide, not the name */
    temp_dir_remove(&dir);
}

static void test_directories(void **state)
{
    (void)state;
    temp_dir dir = temp_dir_make();
    char     word[700];
    snprintf(word, sizeof word, "no model.safetensors or pytorch_model.bin, and no index of them, in '%s'", dir.path);
    expect_error(dir.path, NW_E_FORMAT, word);
    put_text(&dir, "config.json", "{}");
    expect_error(dir.path, NW_E_FORMAT, word);
    static const char *const others[] = {"flax_model.msgpack", "model.gguf", "tf_model.h5"};
    static const char *const heads[] = {"\x83\xa6params\x84", "GGUF\3    ", "\x89HDF\r\n\x1a\n"};
    static const char *const names[] = {"MessagePack", "GGUF", "HDF5"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        temp_path other = put_text(&dir, others[i], heads[i]);
        expect_error(dir.path, NW_E_UNSUPPORTED, others[i]);
        expect_error(other.text, NW_E_UNSUPPORTED, names[i]);
        assert_int_equal(unlink(other.text), 0);
    }
    char tar[600] = "sys_info";
    memcpy(tar + 257, "ustar", 5);
    temp_dir_write(&dir, "pytorch_model.bin", tar, sizeof tar);
    expect_error(dir.path, NW_E_UNSUPPORTED, "a tar archive, as torch.save wrote before");
    temp_dir_write(&dir, "pytorch_model.bin", "\x80\4\x95\1\0\0\0\0\0\0\0.", 12);
    expect_error(dir.path, NW_E_UNSUPPORTED, "a Python pickle, but not one of torch.save");
    temp_path bin = temp_dir_path(&dir, "pytorch_model.bin");
    assert_int_equal(unlink(bin.text), 0);
    temp_path loose = put_text(&dir, "model_v2.safetensors", "x");
    expect_error(dir.path, NW_E_FORMAT, "to open 'model_v2.safetensors', name that file");
    assert_int_equal(unlink(loose.text), 0);
    temp_path adapter = put_text(&dir, "adapter_config.json", "{}");
    expect_error(dir.path, NW_E_UNSUPPORTED, "LoRA adapter");
    assert_int_equal(unlink(adapter.text), 0);
    temp_path missing = temp_dir_path(&dir, "nowhere");
    expect_error(missing.text, NW_E_IO, missing.text);
    expect_error("/dev/zero", NW_E_FORMAT, "/dev/zero");

    /* a link into a directory of blobs, as the hub's cache has it; then one that leads nowhere */
    temp_path blob = put(&dir, "0123abcd", "{" T("a", "F32", "[1]", "[0,4]") "}", 4);
    temp_path link = temp_dir_path(&dir, "model.safetensors");
    assert_int_equal(symlink("0123abcd", link.text), 0);
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    bench_open(&b, UINT64_MAX, NULL);
    assert_int_equal(bench_checkpoint(&b, dir.path, &c, &err), NW_OK);
    nw_checkpoint_close(c);
    bench_close(&b);
    assert_int_equal(unlink(blob.text), 0);
    expect_error(dir.path, NW_E_IO, "model.safetensors");
    assert_int_equal(unlink(link.text), 0);
    assert_int_equal(mkdir(link.text, 0700), 0);
    expect_error(dir.path, NW_E_FORMAT, "a directory");
    temp_dir_remove(&dir);
}

/* -- shards -- */

#define MAP(entries) "{\"metadata\":{\"total_size\":1},\"weight_map\":{" entries "}}"

static void put_shards(const temp_dir *dir)
{
    put(dir, "s1.safetensors", "{" T("a", "F32", "[1]", "[0,4]") "," T("c", "F32", "[1]", "[4,8]") "}", 8);
    put(dir, "s2.safetensors", "{" T("b", "BF16", "[3]", "[0,6]") "}", 6);
    put(dir, "extra.safetensors", "{" T("z", "F32", "[1]", "[0,4]") "}", 4);
}

static void test_shards(void **state)
{
    (void)state;
    temp_dir dir = temp_dir_make();
    put_shards(&dir);
    put_text(&dir, INDEX, MAP("\"b\":\"s2.safetensors\",\"c\":\"s1.safetensors\",\"a\":\"s1.safetensors\""));
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    bench_open(&b, UINT64_MAX, NULL);
    assert_int_equal(bench_checkpoint(&b, dir.path, &c, &err), NW_OK);
    check_table(c);
    assert_int_equal(nw_checkpoint_file_count(c), 2);
    assert_int_equal(nw_checkpoint_tensor_count(c), 3);
    assert_string_equal(nw_checkpoint_tensor(c, 1)->name, "b");
    assert_non_null(strstr(nw_checkpoint_file_path(c, nw_checkpoint_tensor(c, 1)->file), "/s2.safetensors"));
    assert_int_equal(nw_checkpoint_find(c, "c")->offset - nw_checkpoint_find(c, "a")->offset, 4);
    nw_checkpoint_close(c);
    bench_close(&b);

    /* model.safetensors comes first, as in transformers */
    put(&dir, "model.safetensors", "{" T("only", "F32", "[1]", "[0,4]") "}", 4);
    bench_open(&b, UINT64_MAX, NULL);
    assert_int_equal(bench_checkpoint(&b, dir.path, &c, &err), NW_OK);
    assert_int_equal(nw_checkpoint_tensor_count(c), 1);
    nw_checkpoint_close(c);
    bench_close(&b);
    temp_dir_remove(&dir);
}

static void test_index_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
        nw_code     code;
    } cases[] = {
        {"{", "cut short", NW_E_FORMAT},
        {"[]", "not a JSON object", NW_E_FORMAT},
        {"{}", "no weight_map", NW_E_FORMAT},
        {MAP(""), "no weight_map", NW_E_FORMAT},
        {"{\"weight_map\":[]}", "not an object", NW_E_FORMAT},
        {"{\"weight_map\":\"s1.safetensors\"}", "not an object", NW_E_FORMAT},
        {"{\"weight_map\":{},\"weight_map\":{}}", "duplicate key", NW_E_FORMAT},
        {MAP("\"a\":1"), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":{}"), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\".\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"..\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"../s1.safetensors\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"/etc/passwd\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"x/s1.safetensors\""), "plain file name", NW_E_FORMAT},
        {MAP("\"a\":\"s1.safetensors\\u0000.txt\""), "NUL", NW_E_FORMAT},
        {MAP("\"a\":\"s1\\n.safetensors\""), "plain file name", NW_E_FORMAT},
        {MAP("\"\":\"s1.safetensors\""), "name of a tensor", NW_E_FORMAT},
        {MAP("\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\""), "duplicate key 'a'", NW_E_FORMAT},
        {MAP("\"a\":\"missing.safetensors\""), "missing.safetensors", NW_E_IO},
        {MAP("\"a\":\"s1.safetensors\""), "'c' is not in the index", NW_E_FORMAT},
        {MAP("\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\",\"b\":\"s2.safetensors\""),
         "'c' is in this file, and by the index in", NW_E_FORMAT},
        {MAP("\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"d\":\"s2.safetensors\""),
         "'d' is not in 's2.safetensors'", NW_E_FORMAT},
        {MAP("\"a\":\"" INDEX "\""), "not a safetensors file", NW_E_FORMAT},
    };
    temp_dir dir = temp_dir_make();
    put_shards(&dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(&dir, INDEX, cases[i].text);
        expect_error(dir.path, cases[i].code, cases[i].word);
    }
    temp_dir_remove(&dir);
}

/* -- size and splits -- */

/* A header of many tensors and exactly `header_bytes` bytes. */
static char *big_header(size_t tensors, size_t header_bytes)
{
    char *h = malloc(header_bytes + 256);
    assert_non_null(h);
    size_t len = 0;
    h[len++] = '{';
    for (size_t i = 0; i < tensors; i++) /* in falling order of offset, to be sorted */
        len += (size_t)snprintf(h + len, 256,
                                "%s\"t\\u00e9.%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                                i > 0 ? "," : "", i, tensors - 1 - i, tensors - i);
    h[len++] = '}';
    assert_true(len <= header_bytes);
    memset(h + len, ' ', header_bytes - len);
    h[header_bytes] = '\0';
    return h;
}

static void test_split_headers(void **state)
{
    (void)state;
    temp_dir dir = temp_dir_make();
    for (size_t shift = 0; shift < 70; shift++) { /* every part of an entry at the border of the first chunk */
        char *text = big_header(1500, 120000);
        char *header = malloc(120000 + 71);
        assert_non_null(header);
        memset(header, ' ', shift);
        memcpy(header + shift, text, 120001);
        temp_path      path = put(&dir, "model.safetensors", header, 1500);
        bench          b;
        nw_checkpoint *c;
        nw_error       err;
        bench_open(&b, UINT64_MAX, NULL);
        if (bench_checkpoint(&b, path.text, &c, &err) != NW_OK)
            fail_msg("shift %zu: %s", shift, err.msg);
        assert_int_equal(nw_checkpoint_tensor_count(c), 1500);
        const nw_tensor *t = nw_checkpoint_find(c, "t\xc3\xa9.700");
        assert_non_null(t);
        assert_int_equal(t->offset, 8 + 120000 + shift + 799);
        nw_checkpoint_close(c);
        bench_close(&b);
        free(header);
        free(text);
    }
    for (size_t bytes = 65520; bytes <= 65540; bytes++) { /* the header's end there */
        char          *header = big_header(5, bytes);
        temp_path      path = put(&dir, "model.safetensors", header, 5);
        bench          b;
        nw_checkpoint *c = bench_opened(&b, UINT64_MAX, path.text);
        assert_int_equal(nw_checkpoint_tensor_count(c), 5);
        nw_checkpoint_close(c);
        bench_close(&b);
        free(header);
    }
    temp_dir_remove(&dir);
}

/* A header of megabytes takes its table and no more; one that takes too much is refused, not run out of memory. */
static void test_memory(void **state)
{
    (void)state;
    temp_dir       dir = temp_dir_make();
    char          *header = big_header(40000, 4 << 20);
    temp_path      path = put(&dir, "model.safetensors", header, 40000);
    bench          b;
    nw_checkpoint *c;
    nw_error       err;
    bench_open(&b, UINT64_MAX, NULL);
    assert_int_equal(bench_checkpoint(&b, path.text, &c, &err), NW_OK);
    assert_int_equal(nw_checkpoint_tensor_count(c), 40000);
    assert_true(b.mem.peak < 16 << 20);
    nw_checkpoint_close(c);
    bench_close(&b);

    bench_open(&b, 2 << 20, NULL);
    assert_int_equal(bench_checkpoint(&b, path.text, &c, &err), NW_E_BUDGET);
    assert_true(b.mem.peak <= 2 << 20);
    bench_close(&b);
    memset(header, '[', 4 << 20); /* deep */
    put(&dir, "model.safetensors", header, 0);
    expect_error(path.text, NW_E_FORMAT, "not a JSON object");
    memset(header, 'a', 4 << 20); /* one long name */
    memcpy(header, "{\"", 2);
    put(&dir, "model.safetensors", header, 0);
    expect_error(path.text, NW_E_FORMAT, "too long");
    free(header);
    temp_dir_remove(&dir);
}

/* Seeded damage to a good file: it opens with a table that holds, or is refused with one line. */
static void test_damage(void **state)
{
    (void)state;
    static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"}," T("a.b", "F32", "[2,1]", "[0,8]") "," T(
        "c", "BF16", "[3]", "[8,14]") "," T("d", "U8", "[0]", "[14,14]") "}  ";
    static const char spice[] = "\"\\{}[]:,0189-.eu\0\xff\xc3 ";
    unsigned char     bytes[8 + sizeof good - 1 + 14];
    temp_dir          dir = temp_dir_make();
    uint64_t          random = 0x9e3779b97f4a7c15u;
    bench             b;
    size_t            opened = 0;
    bench_open(&b, UINT64_MAX, NULL);
    for (int i = 0; i < 3000; i++) {
        memset(bytes, 0, sizeof bytes);
        bytes[0] = sizeof good - 1;
        memcpy(bytes + 8, good, sizeof good - 1);
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (uint64_t k = 0, draws = random >> 33; k <= draws % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(random >> 33) % sizeof bytes;
            bytes[at] = (unsigned char)spice[(random >> 16) % (sizeof spice - 1)];
        }
        temp_path      path = temp_dir_write(&dir, "model.safetensors", bytes, sizeof bytes);
        nw_checkpoint *c;
        nw_error       err;
        nw_code        rc = bench_checkpoint(&b, path.text, &c, &err);
        if (rc == NW_OK) {
            opened++;
            check_table(c);
            nw_checkpoint_close(c);
        } else if ((rc != NW_E_FORMAT && rc != NW_E_UNSUPPORTED) || strstr(err.msg, path.text) == NULL) {
            fail_msg("%d: %d '%s'", i, (int)rc, err.msg);
        }
        assert_int_equal(b.mem.live, 0);
    }
    assert_true(opened > 50 && opened < 1500); /* both ends of the claim are tried */
    bench_close(&b);
    temp_dir_remove(&dir);
}

/* -- faults -- */

static void test_every_allocation(void **state)
{
    (void)state;
    static const char *const paths[] = {NW_TEST_DATA "/goldens/flan-bf16-shards", NW_TEST_DATA "/goldens/bin"};
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
        for (uint64_t at = 1;; at++) {
            assert_true(at < 2000);
            nw_memory_fault fault = {.fail_at = at};
            bench           b;
            nw_checkpoint  *c;
            nw_error        err;
            bench_open(&b, UINT64_MAX, &fault);
            nw_code rc = bench_checkpoint(&b, paths[p], &c, &err);
            if (!fault.fired) {
                assert_int_equal(rc, NW_OK);
                assert_true(at > (p == 0 ? 40 : 20));
                nw_checkpoint_close(c);
                bench_close(&b);
                break;
            }
            assert_int_equal(rc, NW_E_MEMORY);
            assert_int_equal(err.code, NW_E_MEMORY);
            assert_null(c);
            bench_close(&b);
        }
    }
}

static void test_every_read(void **state)
{
    (void)state;
    static const int         errnos[] = {EIO, NW_IO_EOF};
    static const char *const names[] = {"flan-bf16-shards", "bin-shards-f16"};
    for (size_t e = 0; e < 4; e++) {
        for (uint64_t at = 1;; at++) {
            assert_true(at < 400);
            char dir[600];
            snprintf(dir, sizeof dir, "%s/goldens/%s", NW_TEST_DATA, names[e / 2]);
            bench          b;
            nw_checkpoint *c;
            nw_error       err;
            bench_open(&b, UINT64_MAX, NULL);
            b.fake.fail_at = at;
            b.fake.fail_errno = errnos[e % 2];
            nw_code rc = bench_checkpoint(&b, dir, &c, &err);
            bool    fired = b.fake.fired;
            if (!fired) {
                assert_int_equal(rc, NW_OK);
                assert_true(at > 4); /* an index and three shards */
                nw_checkpoint_close(c);
            } else {
                assert_int_equal(rc, errnos[e % 2] == EIO ? NW_E_IO : NW_E_FORMAT);
                assert_non_null(strstr(err.msg, dir));
            }
            bench_close(&b);
            if (!fired)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),          cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_accepted),         cmocka_unit_test(test_headers_refused),
        cmocka_unit_test(test_overlap_of_ten),   cmocka_unit_test(test_files_refused),
        cmocka_unit_test(test_directories),      cmocka_unit_test(test_shards),
        cmocka_unit_test(test_index_refused),    cmocka_unit_test(test_split_headers),
        cmocka_unit_test(test_memory),           cmocka_unit_test(test_damage),
        cmocka_unit_test(test_every_allocation), cmocka_unit_test(test_every_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pickles: what torch writes becomes a table of tensors; what a pickle can do beyond that, it cannot do here. */
#define _GNU_SOURCE
#include "../../../loader/pickle.h"

#include "torch_bench.h"

#include <unistd.h>

#define TORCH_FLOAT "ctorch\nFloatStorage\n"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define ORDERED "ccollections\nOrderedDict\n"
#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE "(" TEXT("\7", "storage") TORCH_FLOAT TEXT("\1", "0") TEXT("\3", "cpu") "K\x06tQ" /* 6 elements */

/* The pickle `\x80\2 ... .` in an archive whose storage "0" has 24 bytes. */
static torch_bytes file_of(const char *middle, size_t len)
{
    torch_bytes pickle = {0};
    torch_put(&pickle, "\x80\2", 2);
    torch_put(&pickle, middle, len);
    torch_put(&pickle, ".", 1);
    torch_bytes file = archive_of(&pickle, 24, NULL);
    free(pickle.data);
    return file;
}

static void refused(const char *middle, size_t len, nw_code code, const char *word)
{
    torch_bytes file = file_of(middle, len);
    bench_refused(&file, code, word);
    free(file.data);
}
#define REFUSED(middle, code, word) refused("" middle, sizeof(middle) - 1, code, word)

/* Opens, and gives the tensor "a" (zeroed if there is none) and how many there are. */
static nw_tensor opens(const char *middle, size_t len, size_t *ret_count)
{
    torch_bytes      file = file_of(middle, len);
    temp_path        path = bench_write(&file);
    bench            b;
    nw_checkpoint   *c = bench_opened(&b, (uint64_t)64 << 20, path.text);
    const nw_tensor *a = nw_checkpoint_find(c, "a");
    nw_tensor        copy = a != NULL ? *a : (nw_tensor){0};
    *ret_count = nw_checkpoint_tensor_count(c);
    nw_checkpoint_close(c);
    bench_close(&b);
    free(file.data);
    return copy;
}
#define OPENS(middle, count) opens("" middle, sizeof(middle) - 1, count)

#define TENSOR(offset, size, stride) REBUILD "(" STORAGE offset size stride "\x89" ORDERED ")RtR"
#define ENTRY(value) "}" TEXT("\1", "a") value "s"

static void test_tensors(void **state)
{
    (void)state;
    size_t    count = 0;
    nw_tensor t = OPENS(ENTRY(TENSOR("K\1", "K\2K\2\x86", "K\2K\1\x86")), &count); /* a view */
    assert_int_equal(count, 1);
    assert_true(t.known && t.dtype == NW_F32 && t.dim_count == 2 && t.dims[0] == 2 && t.dims[1] == 2);
    assert_int_equal(t.bytes, 16);
    nw_tensor whole = OPENS(ENTRY(TENSOR("K\0", "K\6\x85", "K\1\x85")), &count);
    assert_int_equal(whole.bytes, 24);
    assert_int_equal(t.offset, whole.offset + 4);
    assert_int_equal(whole.offset % 64, 0);
    /* strides of dimensions of one element are free; a scalar; nothing at all, at the end of the storage */
    t = OPENS(ENTRY(TENSOR("K\0", "(K\1K\2K\1K\3t", "(K\x63K\3K\x63K\1t")), &count);
    assert_true(t.dim_count == 4 && t.bytes == 24);
    t = OPENS(ENTRY(TENSOR("K\5", ")", ")")), &count);
    assert_true(t.dim_count == 0 && t.bytes == 4);
    t = OPENS(ENTRY(TENSOR("K\6", "K\0K\3\x86", "K\7K\7\x86")), &count);
    assert_int_equal(t.bytes, 0);
    /* wrapped: a parameter, a tensor with attributes */
    t = OPENS(ENTRY("ctorch._utils\n_rebuild_parameter\n" TENSOR("K\0", "K\2\x85", "K\1\x85") "\x88" ORDERED ")R\x87R"),
              &count);
    assert_int_equal(t.bytes, 8);
    t = OPENS(ENTRY("ctorch._tensor\n_rebuild_from_type_v2\n(" REBUILD "ctorch\nTensor\n(" STORAGE
                    "K\0K\3\x85K\1\x85\x89" ORDERED ")RtNtR"),
              &count);
    assert_int_equal(t.bytes, 12);
}

static void test_plain_data(void **state)
{
    (void)state;
    size_t count = 0;
    OPENS("}", &count);
    assert_int_equal(count, 0);
    OPENS("}(" TEXT("\1", "b") "N" TEXT("\1", "c") "\x88" TEXT("\1", "d") "J\xff\xff\xff\xff" TEXT("\1", "e")
              TEXT("\1", "x") TEXT("\1", "f") "G\0\0\0\0\0\0\0\0"
                                              "\x8a\3\0\0\x80\x8a\0u",
          &count);
    assert_int_equal(count, 0);
    /* an OrderedDict with its _metadata */
    nw_tensor t =
        OPENS(ORDERED ")Rq\0(" TEXT("\1", "a") TENSOR("K\0", "K\2\x85", "K\1\x85") "u}" TEXT("\x09", "_metadata")
                  ORDERED ")R" TEXT("\1", "l") "}" TEXT("\1", "v") "K\1sssb",
              &count);
    assert_true(count == 1 && t.bytes == 8);
}

/* All types that torch has storages of: what cannot be run is listed as safetensors would call it. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *storage, *dtype;
        unsigned    bytes;
    } types[] = {{"Float", "F32", 4}, {"Half", "F16", 2}, {"BFloat16", "BF16", 2}, {"Double", "F64", 8},
                 {"Long", "I64", 8},  {"Int", "I32", 4},  {"Short", "I16", 2},     {"Char", "I8", 1},
                 {"Byte", "U8", 1},   {"Bool", "BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char         type[32];
        uint64_t     dim = 24 / types[i].bytes;
        torch_pickle p;
        snprintf(type, sizeof type, "%sStorage", types[i].storage);
        torch_pickle_begin(&p);
        pickle_whole(&p, "a", type, "0", &dim, 1, false);
        torch_pickle_end(&p);
        size_t    count = 0;
        nw_tensor t = opens((const char *)p.out.data + 2, p.out.len - 3, &count);
        assert_string_equal(t.dtype_name, types[i].dtype);
        assert_int_equal(t.known, i < 3);
        assert_int_equal(t.bytes, 24);
        free(p.out.data);
    }
    REFUSED(ENTRY(REBUILD "((" TEXT("\7", "storage") "ctorch\nQInt8Storage\n"), NW_E_UNSUPPORTED,
            "'torch QInt8Storage'");
}

static void test_impossible_tensors(void **state)
{
    (void)state;
    REFUSED(ENTRY(TENSOR("K\0", "K\2K\3\x86", "K\1K\2\x86")), NW_E_UNSUPPORTED, "tensor 'a': is not contiguous");
    REFUSED(ENTRY(TENSOR("K\0", "K\6\x85", "K\0\x85")), NW_E_UNSUPPORTED, "tensor 'a': is not contiguous");
    REFUSED(ENTRY(TENSOR("K\1", "K\6\x85", "K\1\x85")), NW_E_FORMAT, "tensor 'a': lies outside its storage");
    REFUSED(ENTRY(TENSOR("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "K\1\x85", "K\1\x85")), NW_E_FORMAT, "outside");
    REFUSED(ENTRY(TENSOR("K\0", "\x8a\x05\0\0\0\0\1\x8a\x05\0\0\0\0\1\x86", "\x8a\x05\0\0\0\0\1K\1\x86")), NW_E_FORMAT,
            "too large");
    REFUSED(ENTRY(TENSOR("K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t")), NW_E_UNSUPPORTED,
            "more than 8 dimensions");
    REFUSED(ENTRY(TENSOR("J\xff\xff\xff\xff", "K\1\x85", "K\1\x85")), NW_E_FORMAT, "impossible offset");
    REFUSED(ENTRY(TENSOR("K\0", "J\xff\xff\xff\xff\x85", "K\1\x85")), NW_E_FORMAT, "size is not one");
    REFUSED(ENTRY(TENSOR("K\0", "K\1\x85", ")")), NW_E_FORMAT, "do not match");
    REFUSED(ENTRY(TENSOR("K\0", "K\1", "K\1")), NW_E_FORMAT, "do not match");
    REFUSED(ENTRY(REBUILD "(" STORAGE "tR"), NW_E_FORMAT, "too few");
    REFUSED(ENTRY(REBUILD "(K\0K\0))\x89" ORDERED ")RtR"), NW_E_FORMAT, "without a storage");
    REFUSED("}" TEXT("\1", "\1") TENSOR("K\0", ")", ")") "s", NW_E_FORMAT, "cannot be the name");
    REFUSED("}" TEXT("\0", "") TENSOR("K\0", ")", ")") "s", NW_E_FORMAT, "cannot be the name");
    REFUSED("}K\1" TENSOR("K\0", ")", ")") "s", NW_E_FORMAT, "not a short string");
    REFUSED("}(" TEXT("\1", "a") TENSOR("K\0", ")", ")") TEXT("\1", "a") TENSOR("K\0", ")", ")") "u", NW_E_FORMAT,
            "'a' is there twice");
    REFUSED(ENTRY("(" TEXT("\7", "storage") TORCH_FLOAT TEXT("\1", "1") TEXT("\3", "cpu") "K\6tQ"), NW_E_FORMAT,
            "storage '1' is not in the archive");
    REFUSED(ENTRY("(" TEXT("\7", "storage") TORCH_FLOAT TEXT("\1", "0") TEXT("\3", "cpu") "K\7tQ"), NW_E_FORMAT,
            "has 24 bytes where its count and type make 28");
    REFUSED(ENTRY("(" TEXT("\7", "storage") TORCH_FLOAT TEXT("\4", "../0") TEXT("\3", "cpu") "K\6tQ"), NW_E_FORMAT,
            "not a name");
    REFUSED(ENTRY("(" TEXT("\7", "storage") TORCH_FLOAT TEXT("\1", "0")
                      TEXT("\3", "cpu") "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ftQ"),
            NW_E_FORMAT, "too large");
    REFUSED(ENTRY("(" TEXT("\7", "storage") ORDERED TEXT("\1", "0") TEXT("\3", "cpu") "K\6tQ"), NW_E_FORMAT,
            "type is not one");
    REFUSED(ENTRY("(" TEXT("\6", "module") TORCH_FLOAT "tQ"), NW_E_FORMAT, "not a storage");
    REFUSED(ENTRY("K\1Q"), NW_E_FORMAT, "not a storage");
    REFUSED("}(" TEXT("\1", "a")
                STORAGE TEXT("\1", "b") "(" TEXT("\7", "storage") "ctorch\nIntStorage\n" TEXT("\1", "0")
                    TEXT("\3", "cpu") "K\6tQu",
            NW_E_FORMAT, "has two types");
}

/* What is no state dict is called what it is. */
static void test_other_objects(void **state)
{
    (void)state;
    REFUSED("}" TEXT("\x0a", "state_dict") "}s", NW_E_UNSUPPORTED, "'state_dict' in it is a dict");
    REFUSED("}" TEXT("\1", "a") "]s", NW_E_UNSUPPORTED, "'a' in it is a collection");
    REFUSED("]", NW_E_FORMAT, "no dict of tensors");
    REFUSED(TENSOR("K\0", ")", ")"), NW_E_FORMAT, "no dict of tensors");
    REFUSED("N", NW_E_FORMAT, "no dict of tensors");
}

/* What would run something. Nothing must be there afterwards that it would have made. */
static void test_programs(void **state)
{
    (void)state;
    REFUSED("cos\nsystem\n" TEXT("\x0d", "touch /tmp/xx") "\x85R", NW_E_UNSUPPORTED, "'os system'");
    REFUSED("cposix\nsystem\n", NW_E_UNSUPPORTED, "'posix system'");
    REFUSED("c__builtin__\neval\n", NW_E_UNSUPPORTED, "'__builtin__ eval'");
    REFUSED("cbuiltins\ngetattr\n", NW_E_UNSUPPORTED, "'builtins getattr'");
    REFUSED("ctorch._utils\n_rebuild_tensor_v2.__globals__\n", NW_E_UNSUPPORTED, "__globals__");
    REFUSED("ctorch._utils\n_rebuild_sparse_tensor\n", NW_E_UNSUPPORTED, "_rebuild_sparse_tensor");
    REFUSED("(S'rm'\nios\nsystem\n", NW_E_UNSUPPORTED, "0x53 (STRING)");
    REFUSED("(ios\nsystem\n", NW_E_UNSUPPORTED, "0x69 (INST)");
    REFUSED(TEXT("\2", "os") TEXT("\6", "system") "\x93", NW_E_UNSUPPORTED, "0x93 (STACK_GLOBAL)");
    REFUSED(ORDERED ")\x81", NW_E_UNSUPPORTED, "0x81 (NEWOBJ)");
    REFUSED("(" ORDERED "o", NW_E_UNSUPPORTED, "0x6f (OBJ)");
    REFUSED("\x82\1", NW_E_UNSUPPORTED, "0x82 (EXT1)");
    REFUSED("P0\n", NW_E_UNSUPPORTED, "0x50 (PERSID)");
    REFUSED("\xff", NW_E_UNSUPPORTED, "0xff (no opcode of Python's)");
    REFUSED("\x80\4", NW_E_UNSUPPORTED, "protocol 4");
    REFUSED(TORCH_FLOAT ")R", NW_E_UNSUPPORTED, "calls 'torch FloatStorage'");
    REFUSED(TEXT("\1", "a") ")R", NW_E_FORMAT, "cannot be called");
    REFUSED(ORDERED "]R", NW_E_FORMAT, "cannot be called");
    REFUSED(ORDERED "]\x85R", NW_E_FORMAT, "OrderedDict made of");
    REFUSED("}}b", NW_E_FORMAT, "BUILD");
    REFUSED(TENSOR("K\0", ")", ")") "}b", NW_E_FORMAT, "BUILD");
    REFUSED(ORDERED ")RNb", NW_E_FORMAT, "BUILD");
    REFUSED("]K\1K\2s", NW_E_FORMAT, "not a dict");
    REFUSED(TENSOR("K\0", ")", ")") "(K\1K\2u", NW_E_FORMAT, "not a dict");
    REFUSED("}K\1a", NW_E_FORMAT, "not a list");
    REFUSED("}(K\1e", NW_E_FORMAT, "not a list");
    REFUSED("}(K\1u", NW_E_FORMAT, "not a dict"); /* an odd number */
    REFUSED("ctorch._tensor\n_rebuild_from_type_v2\n(" ORDERED "ctorch\nTensor\n)NtR", NW_E_FORMAT, "another type");
    REFUSED("ctorch._utils\n_rebuild_parameter\nN\x88N\x87R", NW_E_FORMAT, "without a tensor");
}

static void test_broken_machine(void **state)
{
    (void)state;
    REFUSED("", NW_E_FORMAT, "more or less than one value");
    REFUSED("}}", NW_E_FORMAT, "more or less than one value");
    REFUSED("}(", NW_E_FORMAT, "more or less than one value");
    REFUSED("}.", NW_E_FORMAT, "something behind its end");
    REFUSED("t", NW_E_FORMAT, "no mark");
    REFUSED("(K\1(\x86", NW_E_FORMAT, "stack is empty"); /* a mark cannot be popped past */
    REFUSED("\x85", NW_E_FORMAT, "stack is empty");
    REFUSED("R", NW_E_FORMAT, "stack is empty");
    REFUSED("Q", NW_E_FORMAT, "stack is empty");
    REFUSED("s", NW_E_FORMAT, "stack is empty");
    REFUSED("(u", NW_E_FORMAT, "stack is empty");
    REFUSED("b", NW_E_FORMAT, "stack is empty");
    REFUSED("Nb", NW_E_FORMAT, "stack is empty");
    REFUSED("q\0", NW_E_FORMAT, "stack is empty");
    REFUSED("h\0", NW_E_FORMAT, "never stored");
    REFUSED("Nq\0j\1\0\0\0", NW_E_FORMAT, "never stored");
    REFUSED("j\xff\xff\xff\xff", NW_E_FORMAT, "never stored");
    /* Entries are counted from 0: a number alone cannot ask for memory. */
    REFUSED("Nr\xff\xff\xff\xff", NW_E_FORMAT, "memo entry out of order");
    REFUSED("Nr\x3f\x42\x0f\0", NW_E_FORMAT, "memo entry out of order");
    REFUSED("Nq\0q\2", NW_E_FORMAT, "memo entry out of order");
    REFUSED("\x8a\xff", NW_E_FORMAT, "more than 8 bytes");
    REFUSED("\x8a\x09\1\1\1\1\1\1\1\1\1", NW_E_FORMAT, "more than 8 bytes");
    REFUSED("X\xff\xff\xff\xff", NW_E_FORMAT, "more than 64 KiB");
    REFUSED("X\1\0\1\0", NW_E_FORMAT, "more than 64 KiB");
    REFUSED("X\0\1\0\0", NW_E_FORMAT, "cut short");
    REFUSED("X\2\0\0\0\xc0\x80", NW_E_FORMAT, "not UTF-8");
    REFUSED("X\3\0\0\0\xed\xa0\x80", NW_E_FORMAT, "not UTF-8");
    REFUSED("X\4\0\0\0\xf4\x90\x80\x80", NW_E_FORMAT, "not UTF-8");
    REFUSED("X\3\0\0\0a\0b", NW_E_FORMAT, "NUL");
    REFUSED("c\n", NW_E_FORMAT, "cut short");
    REFUSED("c\1\n", NW_E_FORMAT, "control characters");
}

/* The same few bytes again and again, `count` times. */
static void refused_repeated(const char *start, const char *again, size_t again_len, size_t count, const char *word)
{
    torch_bytes b = {0};
    torch_put_text(&b, start);
    for (size_t i = 0; i < count; i++)
        torch_put(&b, again, again_len);
    refused((const char *)b.data, b.len, NW_E_FORMAT, word);
    free(b.data);
}

/* Each limit is reached in bounded memory (64 MiB in bench_refused) and time. */
static void test_limits(void **state)
{
    (void)state;
    refused_repeated("", "N", 1, 4097, "more than 4096 values");
    refused_repeated("", "(", 1, 257, "nested too deep");
    refused_repeated("N", "\x85", 1, 1000001, "too many items in tuples");
    refused_repeated("}", "NNs", 3, 262145, "too many items in dicts");
    refused_repeated("]", "Na", 2, 262145, "too many items in dicts");
    refused_repeated("]", "]a", 2, 262145, "too many");
    refused_repeated("Nq", "\0h\0\x86q", 5, 600000, "too many items in tuples"); /* each twice the last, if expanded */
    torch_bytes memo = {0};
    torch_put_text(&memo, "N");
    for (uint32_t i = 0; i <= 1000000; i++) {
        torch_put(&memo, "r", 1);
        torch_put(&memo, &i, 4); /* little-endian, as all hosts of this project are */
    }
    refused((const char *)memo.data, memo.len, NW_E_FORMAT, "more than a million memo entries");
    free(memo.data);
    char   text[5 + 512] = "X";
    size_t len = 512;
    text[2] = (char)(len >> 8);
    memset(text + 5, 'a', len);
    torch_bytes b = {0};
    torch_put_text(&b, "]");
    for (int i = 0; i < 33000; i++) {
        torch_put(&b, text, sizeof text);
        torch_put(&b, "a", 1);
    }
    refused((const char *)b.data, b.len, NW_E_FORMAT, "more than 16 MiB of strings");
    free(b.data);
    torch_pickle p = {0};
    torch_put(&p.out, "]", 1);
    for (int i = 0; i < 100001; i++) {
        torch_put(&p.out, "(", 1);
        torch_text_once(&p, "storage", &p.memo_storage);
        torch_global_once(&p, "torch\nFloatStorage\n", &p.memo_rebuild);
        torch_text_once(&p, "0", &p.memo_ordered);
        torch_text_once(&p, "cpu", &p.memo_cpu);
        torch_put(&p.out, "K\6tQa", 5);
    }
    refused((const char *)p.out.data, p.out.len, NW_E_FORMAT, "more than 100000 storages");
    free(p.out.data);
}

/* A pickle cut at each byte, in an archive that is whole. */
static void test_every_cut(void **state)
{
    (void)state;
    static const char whole[] =
        ORDERED ")Rq\0(" TEXT("\1", "a") TENSOR("K\1", "K\2K\2\x86", "K\2K\1\x86") "u}" TEXT("\1", "m") "\x8a\1\1sb";
    size_t count = 0;
    opens(whole, sizeof whole - 1, &count);
    assert_int_equal(count, 1);
    for (size_t len = 0; len < sizeof whole - 1; len++) {
        torch_bytes pickle = {0};
        torch_put(&pickle, "\x80\2", 2);
        torch_put(&pickle, whole, len);
        torch_bytes file = archive_of(&pickle, 24, NULL);
        bench_refused(&file, NW_E_FORMAT, "cut short");
        free(file.data);
        free(pickle.data);
    }
}

/* Seeded damage: opens with a table that holds, or is refused with one line. */
static void test_damage(void **state)
{
    (void)state;
    static const char whole[] =
        ORDERED ")Rq\0(" TEXT("\1", "a") TENSOR("K\1", "K\2K\2\x86", "K\2K\1\x86") "u}" TEXT("\1", "m") "\x8a\1\1sb";
    static const char spice[] = ".(NKJMXcq]})tuseabRQhr\x85\x86\x87\x88\x8a\0\1\2\7\xff";
    uint64_t          random = 0x9e3779b97f4a7c15u;
    size_t            opened = 0, tried = 0;
    for (; tried < 800; tried++) {
        char bytes[sizeof whole - 1];
        memcpy(bytes, whole, sizeof bytes);
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (uint64_t k = 0, draws = random >> 33; k <= draws % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[(size_t)(random >> 33) % sizeof bytes] = spice[(random >> 16) % (sizeof spice - 1)];
        }
        torch_bytes file = file_of(bytes, sizeof bytes);
        opened += bench_damaged(&file, file.len, 24, tried);
        free(file.data);
    }
    assert_true(opened > 10 && opened < tried / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_plain_data),
        cmocka_unit_test(test_types),          cmocka_unit_test(test_impossible_tensors),
        cmocka_unit_test(test_other_objects),  cmocka_unit_test(test_programs),
        cmocka_unit_test(test_broken_machine), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_every_cut),      cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, bench_make_dir, bench_remove_dir);
}

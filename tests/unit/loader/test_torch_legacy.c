/* The form that torch.save wrote before 1.6: five pickles, then the storages. */
#define _GNU_SOURCE
#include "torch_bench.h"

#define MAGIC "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"
#define PROTOCOL "\x80\2M\xe9\3."
/* {'protocol_version': 1001, 'little_endian': True, 'type_sizes': {'short': 2}}, as Python 3.9 writes it */
#define MACHINE                                                                                                        \
    "\x80\2}q\0(X\x10\0\0\0protocol_versionq\1M\xe9\3X\x0d\0\0\0little_endianq\2\x88X\x0a\0\0\0type_sizesq\3}q\4X"     \
    "\5\0\0\0shortq\5K\2su."
#define MACHINE_BIG "\x80\2}X\x0d\0\0\0little_endian\x89s."
#define KEYS                                                                                                           \
    "\x80\2]q\0(X\x05\0\0\0"                                                                                           \
    "22222q\1X\5\0\0\0"                                                                                                \
    "11111q\2e."

/* "a" [2, 3] of f32 in storage 11111, "b" [4] of bf16 and "b.tied", the same, in storage 22222. */
static torch_bytes object(bool legacy)
{
    static const uint64_t a[] = {2, 3}, b[] = {4};
    torch_pickle          p;
    torch_pickle_begin(&p);
    pickle_whole(&p, "a", "FloatStorage", "11111", a, 2, legacy);
    pickle_whole(&p, "b", "BFloat16Storage", "22222", b, 1, legacy);
    pickle_whole(&p, "b.tied", "BFloat16Storage", "22222", b, 1, legacy);
    torch_pickle_end(&p);
    return p.out;
}

static void put_storage(torch_bytes *file, uint64_t count, size_t bytes)
{
    static const unsigned char zeros[64];
    torch_put_le(file, count, 8);
    torch_put(file, zeros, bytes);
}

#define PUT(file, text) torch_put(file, text, sizeof(text) - 1)

/* All but the storages, whose keys are in another order than the object's. */
static torch_bytes head(void)
{
    torch_bytes file = {0}, o = object(true);
    PUT(&file, MAGIC PROTOCOL MACHINE);
    torch_put(&file, o.data, o.len);
    PUT(&file, KEYS);
    free(o.data);
    return file;
}

static torch_bytes whole(void)
{
    torch_bytes file = head();
    put_storage(&file, 4, 8);
    put_storage(&file, 6, 24);
    return file;
}

static void test_opens(void **state)
{
    (void)state;
    torch_bytes    file = whole();
    temp_path      path = bench_write(&file);
    bench          b;
    nw_checkpoint *c = bench_opened(&b, UINT64_MAX, path.text);
    assert_int_equal(nw_checkpoint_tensor_count(c), 3);
    const nw_tensor *a = nw_checkpoint_find(c, "a"), *t = nw_checkpoint_find(c, "b");
    const nw_tensor *tied = nw_checkpoint_find(c, "b.tied");
    assert_true(a->dtype == NW_F32 && a->bytes == 24 && a->offset == file.len - 24);
    assert_true(t->dtype == NW_BF16 && t->bytes == 8 && t->offset == file.len - 24 - 8 - 8);
    assert_true(tied->offset == t->offset && tied->bytes == t->bytes && tied->file == t->file);
    nw_checkpoint_close(c);
    bench_close(&b);
    free(file.data);
}

static void refused(torch_bytes *file, nw_code code, const char *word)
{
    bench_refused(file, code, word);
    free(file->data);
}

static void test_refuses(void **state)
{
    (void)state;
    torch_bytes file = whole();
    PUT(&file, "x");
    refused(&file, NW_E_FORMAT, "behind its last storage");
    file = head();
    put_storage(&file, 5, 10);
    refused(&file, NW_E_FORMAT, "another size than its tensors say");
    file = head();
    put_storage(&file, UINT64_MAX, 10);
    refused(&file, NW_E_FORMAT, "another size than its tensors say");

    torch_bytes o = object(true), current = object(false);
    file = (torch_bytes){0};
    PUT(&file, MAGIC PROTOCOL MACHINE_BIG);
    refused(&file, NW_E_UNSUPPORTED, "not little-endian");
    file = (torch_bytes){0};
    PUT(&file, MAGIC "\x80\2M\xea\3." MACHINE);
    refused(&file, NW_E_UNSUPPORTED, "before 1.6");
    file = (torch_bytes){0};
    PUT(&file, MAGIC PROTOCOL "\x80\2N.");
    refused(&file, NW_E_FORMAT, "not a dict");
    file = (torch_bytes){0};
    PUT(&file, MAGIC PROTOCOL MACHINE "\x80\2cos\nsystem\n");
    refused(&file, NW_E_UNSUPPORTED, "'os system'");
    file = (torch_bytes){0};
    PUT(&file, MAGIC PROTOCOL MACHINE);
    torch_put(&file, current.data, current.len);
    refused(&file, NW_E_FORMAT, "not a storage"); /* the newer form of persistent ids */

    static const struct {
        const char *keys;
        size_t      len;
        const char *word;
    } lists[] = {
#define LIST(text, word) {text, sizeof(text) - 1, word}
        LIST("\x80\2N.", "not a list"),
        LIST("\x80\2]K\1a.", "not a string"),
        LIST("\x80\2].", "is not in the file"),
        LIST("\x80\2]X\5\0\0\0"
             "33333a.",
             "belongs to no tensor"),
        LIST("\x80\2]X\5\0\0\0"
             "22222a.",
             "storage '11111' is not in the file"),
        LIST("\x80\2](X\5\0\0\0"
             "22222X\5\0\0\0"
             "22222e.",
             "is there twice"),
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        file = (torch_bytes){0};
        PUT(&file, MAGIC PROTOCOL MACHINE);
        torch_put(&file, o.data, o.len);
        torch_put(&file, lists[i].keys, lists[i].len);
        put_storage(&file, 4, 8);
        put_storage(&file, 4, 8);
        put_storage(&file, 6, 24);
        refused(&file, NW_E_FORMAT, lists[i].word);
    }
    /* a view of another storage: the sixth item of the persistent id is not None */
    unsigned char *none = memmem(o.data, o.len, "K\6Nt", 4);
    assert_non_null(none);
    none[2] = ')';
    file = (torch_bytes){0};
    PUT(&file, MAGIC PROTOCOL MACHINE);
    torch_put(&file, o.data, o.len);
    refused(&file, NW_E_UNSUPPORTED, "storage '11111' is a view of another");
    free(o.data);
    free(current.data);
}

static void test_every_cut(void **state)
{
    (void)state;
    torch_bytes file = whole();
    bench_every_cut(&file);
    free(file.data);
}

static void test_faults(void **state)
{
    (void)state;
    torch_bytes file = whole();
    bench_faults(&file, 3);
    free(file.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, bench_make_dir, bench_remove_dir);
}

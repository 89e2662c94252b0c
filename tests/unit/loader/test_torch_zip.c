/* PyTorch's zip archives: the ways in which one can disagree with itself, be cut, or be something else. */
#define _GNU_SOURCE
#include "torch_bench.h"

#include <unistd.h>

/* A state dict of "a" [2, 3] and "b" [4], each f32 in a storage of its own. */
static torch_bytes small_pickle(void)
{
    static const uint64_t a[] = {2, 3}, b[] = {4};
    torch_pickle          p;
    torch_pickle_begin(&p);
    pickle_whole(&p, "a", "FloatStorage", "0", a, 2, false);
    pickle_whole(&p, "b", "FloatStorage", "1", b, 1, false);
    torch_pickle_end(&p);
    return p.out;
}

enum { PICKLE, FORMAT_VERSION, ALIGNMENT, BYTEORDER, DATA_0, DATA_1, VERSION, COUNT };

static torch_entry entries[COUNT]; /* of the last small archive */
static torch_zip   last;

static torch_bytes small_archive(bool zip64)
{
    static const unsigned char data[24] = {1, 2, 3};
    torch_bytes                pickle = small_pickle();
    memory_zip                 m;
    memory_zip_open(&m, "archive");
    m.zip.zip64 = zip64;
    torch_zip_add(&m.zip, "data.pkl", pickle.data, pickle.len);
    torch_zip_facts(&m.zip);
    torch_zip_add(&m.zip, "data/0", data, 24);
    torch_zip_add(&m.zip, "data/1", data, 16);
    torch_zip_add(&m.zip, "version", "3\n", 2);
    torch_bytes file = memory_zip_close(&m);
    assert_int_equal(m.zip.count, COUNT);
    memcpy(entries, m.zip.entries, sizeof entries);
    last = m.zip;
    free(m.zip.entries);
    free(pickle.data);
    return file;
}

static void opens(const torch_bytes *file)
{
    temp_path      path = bench_write(file);
    bench          b;
    nw_checkpoint *c = bench_opened(&b, UINT64_MAX, path.text);
    assert_int_equal(nw_checkpoint_tensor_count(c), 2);
    const nw_tensor *a = nw_checkpoint_find(c, "a"), *t = nw_checkpoint_find(c, "b");
    assert_true(a != NULL && t != NULL);
    assert_int_equal(a->offset, entries[DATA_0].data);
    assert_int_equal(a->bytes, 24);
    assert_int_equal(t->offset, entries[DATA_1].data);
    assert_int_equal(t->bytes, 16);
    nw_checkpoint_close(c);
    bench_close(&b);
}

static void test_opens(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        torch_bytes file = small_archive(zip64 != 0);
        opens(&file);
        free(file.data);
    }
}

/* Writes `bytes` bytes of `value` at `at`, opens, and puts back what was there. */
static void spoiled(torch_bytes *file, uint64_t at, uint64_t value, size_t bytes, nw_code code, const char *word)
{
    unsigned char kept[8];
    NW_CHECK(at + bytes <= file->len && bytes <= sizeof kept);
    memcpy(kept, file->data + at, bytes);
    for (size_t i = 0; i < bytes; i++)
        file->data[at + i] = (unsigned char)(value >> (8 * i));
    assert_memory_not_equal(kept, file->data + at, bytes);
    bench_refused(file, code, word);
    memcpy(file->data + at, kept, bytes);
}

static void test_central_headers(void **state)
{
    (void)state;
    torch_bytes    file = small_archive(true);
    const uint64_t at = entries[DATA_0].central, other = entries[DATA_1].local;
    spoiled(&file, at, 0, 4, NW_E_FORMAT, "directory is cut short");
    spoiled(&file, at + 8, 0x0809, 2, NW_E_FORMAT, "encrypted");
    spoiled(&file, at + 8, 0x2808, 2, NW_E_FORMAT, "encrypted");
    spoiled(&file, at + 10, 8, 2, NW_E_UNSUPPORTED, "compressed");
    spoiled(&file, at + 20, 23, 4, NW_E_FORMAT, "two different sizes");
    spoiled(&file, at + 20, 0x1700000017, 8, NW_E_FORMAT, "has 23 bytes where its count and type make 24");
    spoiled(&file, at + 20, 0x7f0000007f, 8, NW_E_FORMAT, "overlaps another entry");
    spoiled(&file, at + 20, 0x7fffffff7fffffff, 8, NW_E_FORMAT, "larger than the file");
    spoiled(&file, at + 20, 0xffffffffffffffff, 8, NW_E_FORMAT, "larger than the file");
    spoiled(&file, at + 28, 13, 2, NW_E_FORMAT, NULL);
    spoiled(&file, at + 28, 0xffff, 2, NW_E_FORMAT, NULL);
    spoiled(&file, at + 28, 0, 2, NW_E_FORMAT, "empty");
    spoiled(&file, at + 30, 0xffff, 2, NW_E_FORMAT, NULL);
    spoiled(&file, at + 32, 1, 2, NW_E_FORMAT, NULL);
    spoiled(&file, at + 34, 1, 2, NW_E_FORMAT, "another disk");
    spoiled(&file, at + 42, other, 4, NW_E_FORMAT, "does not match the directory");
    spoiled(&file, at + 42, entries[DATA_0].local + 1, 4, NW_E_FORMAT, "does not match the directory");
    spoiled(&file, at + 42, 0x7fffffff, 4, NW_E_FORMAT, "lies outside the file");
    spoiled(&file, at + 42, 0xffffffff, 4, NW_E_FORMAT, "lies outside the file");
    spoiled(&file, at + 46, 'b', 1, NW_E_FORMAT, "not in the folder");
    spoiled(&file, at + 46 + 3, 0, 1, NW_E_FORMAT, "control characters");
    spoiled(&file, at + 46 + 3, '\n', 1, NW_E_FORMAT, "control characters");
    spoiled(&file, at + 46 + 13, '1', 1, NW_E_FORMAT, "does not match the directory");
    spoiled(&file, entries[PICKLE].central + 46 + 8, 'D', 1, NW_E_FORMAT, "does not match the directory");
    spoiled(&file, entries[PICKLE].central + 46 + 7, '_', 1, NW_E_FORMAT, "not in a folder");
    free(file.data);
}

static void test_local_headers(void **state)
{
    (void)state;
    static const char mismatch[] = "local header does not match the directory";
    torch_bytes       file = small_archive(true);
    const uint64_t    at = entries[DATA_0].local;
    spoiled(&file, at, 'X', 1, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 6, 0x0809, 2, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 6, 0x0800, 2, NW_E_FORMAT, mismatch); /* then its sizes count, which are 0 */
    spoiled(&file, at + 8, 8, 2, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 18, 25, 4, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 22, 25, 4, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 26, 15, 2, NW_E_FORMAT, mismatch);
    spoiled(&file, at + 28, 0xffff, 2, NW_E_FORMAT, "outside the file, or in its directory");
    spoiled(&file, at + 28, 0, 2, NW_E_FORMAT, "something between its entries");
    spoiled(&file, at + 28, 8, 2, NW_E_FORMAT, mismatch); /* an extra field that its length cuts */
    free(file.data);
}

static void test_names_of_local_headers(void **state)
{
    (void)state;
    torch_bytes file = small_archive(true);
    spoiled(&file, entries[DATA_0].local + 30, 'b', 1, NW_E_FORMAT, "does not match");
    spoiled(&file, entries[DATA_0].local + 30 + 13, '1', 1, NW_E_FORMAT, "does not match");
    spoiled(&file, entries[PICKLE].local + 30 + 8, 'D', 1, NW_E_FORMAT, "does not match");
    free(file.data);
}

static void test_ends(void **state)
{
    (void)state;
    torch_bytes file = small_archive(true);
    uint64_t    end = last.end, end64 = last.end64;
    spoiled(&file, end, 0, 4, NW_E_FORMAT, "behind its end");
    spoiled(&file, end + 10, COUNT - 1, 2, NW_E_FORMAT, "its two ends disagree");
    spoiled(&file, end + 16, 0, 4, NW_E_FORMAT, "its two ends disagree");
    spoiled(&file, end + 20, 1, 2, NW_E_FORMAT, "behind its end");
    spoiled(&file, end64, 0, 4, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 24, COUNT + 1, 8, NW_E_FORMAT, NULL); /* the counts differ */
    spoiled(&file, end64 + 40, UINT64_MAX, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 40, last.directory + 1, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 40, last.directory - 1, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 48, UINT64_MAX, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 48, last.central + 1, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 48, last.central - 1, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 48, 0, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 56 + 8, UINT64_MAX, 8, NW_E_FORMAT, NULL);
    spoiled(&file, end64 + 56 + 8, 0, 8, NW_E_FORMAT, NULL);
    /* both counts of ZIP64 */
    static const uint64_t counts[] = {0, 1, COUNT - 1, COUNT + 1, 100101, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (size_t k = 0; k < 16; k++)
            file.data[end64 + 24 + k] = (unsigned char)(counts[i] >> (8 * (k % 8)));
        bench_refused(&file, NW_E_FORMAT, NULL);
    }
    free(file.data);

    file = small_archive(false);
    end = last.end;
    spoiled(&file, end, 0, 4, NW_E_FORMAT, "its end is missing");
    spoiled(&file, end + 4, 1, 2, NW_E_FORMAT, NULL);
    spoiled(&file, end + 8, 0x00010001, 4, NW_E_FORMAT, "does not end where it should");
    spoiled(&file, end + 8, 0x00ff00ff, 4, NW_E_FORMAT, "cut short");
    spoiled(&file, end + 8, 0xffffffff, 4, NW_E_FORMAT, "cut short");
    spoiled(&file, end + 8, 0, 4, NW_E_FORMAT, "impossible number");
    spoiled(&file, end + 12, last.directory - 1, 4, NW_E_FORMAT, NULL);
    spoiled(&file, end + 16, last.central - 1, 4, NW_E_FORMAT, NULL);
    spoiled(&file, end + 16, 0xffffffff, 4, NW_E_FORMAT, NULL);
    free(file.data);
}

static void test_around(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        torch_bytes file = small_archive(zip64 != 0), more = {0};
        /* something before it that looks like an entry, so that the first bytes are a zip's */
        torch_put(&more, "PK\3\4", 4);
        torch_put(&more, file.data, file.len);
        bench_refused(&more, NW_E_FORMAT, NULL);
        more.len = 0;
        torch_put(&more, file.data, file.len);
        torch_put(&more, "PK", 2);
        bench_refused(&more, NW_E_FORMAT, "behind its end");
        /* a second archive behind it: two directories, two meanings */
        more.len = 0;
        torch_put(&more, file.data, file.len);
        torch_put(&more, file.data, file.len);
        bench_refused(&more, NW_E_FORMAT, NULL);
        free(more.data);
        free(file.data);
    }
}

/* An archive of these entries besides the pickle of "a" and "b". */
static torch_bytes archive_with(const char *const *names, const size_t *sizes, size_t count, const char *pickle_name)
{
    static const unsigned char data[1 << 10];
    torch_bytes                pickle = small_pickle();
    memory_zip                 m;
    memory_zip_open(&m, "archive");
    torch_zip_add(&m.zip, pickle_name, pickle.data, pickle.len);
    for (size_t i = 0; i < count; i++)
        torch_zip_add(&m.zip, names[i], data, sizes[i]);
    torch_bytes file = memory_zip_close(&m);
    free(m.zip.entries);
    free(pickle.data);
    return file;
}

static void test_entries(void **state)
{
    (void)state;
    static const char *const names[] = {"data/0", "data/1", "data/0", "data.pkl"};
    static const struct {
        size_t      sizes[4], count;
        const char *pickle, *word; /* NULL: opens */
    } cases[] = {
        {{24, 16}, 2, "data.pkl", NULL},
        {{24, 16, 24}, 3, "data.pkl", "'data/0' of the zip archive: it is there twice"},
        {{24, 16, 24, 10}, 4, "data.pkl", "it is there twice"},
        {{24}, 1, "data.pkl", "storage '1' is not in the archive"},
        {{24, 16}, 2, "constants.pkl", "no data.pkl"},
        {{24, 16}, 2, "sub/data.pkl", "no data.pkl"},
        {{24, 15}, 2, "data.pkl", "storage '1' has 15 bytes where its count and type make 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        torch_bytes file = archive_with(names, cases[i].sizes, cases[i].count, cases[i].pickle);
        if (cases[i].word != NULL) {
            bench_refused(&file, NW_E_FORMAT, cases[i].word);
        } else {
            bench          b;
            nw_checkpoint *c = bench_opened(&b, UINT64_MAX, bench_write(&file).text);
            assert_int_equal(nw_checkpoint_tensor_count(c), 2);
            nw_checkpoint_close(c);
            bench_close(&b);
        }
        free(file.data);
    }
}

static void test_byteorder(void **state)
{
    (void)state;
    torch_bytes file = small_archive(false);
    memcpy(file.data + entries[BYTEORDER].data, "BITTLE", 6);
    bench_refused(&file, NW_E_UNSUPPORTED, "byteorder is not little-endian");
    free(file.data);
    static const char *const names[] = {"byteorder", "data/0", "data/1"};
    static const size_t      sizes[] = {3, 24, 16};
    file = archive_with(names, sizes, 3, "data.pkl");
    bench_refused(&file, NW_E_UNSUPPORTED, "byteorder is not little-endian");
    free(file.data);
}

static void test_every_cut(void **state)
{
    (void)state;
    torch_bytes file = small_archive(true);
    bench_every_cut(&file);
    opens(&file);
    free(file.data);
}

/* Seeded damage to all that is not payload: opens with places inside the file, or is refused with one line. */
static void test_damage(void **state)
{
    (void)state;
    torch_bytes   good = small_archive(true), file = {0};
    uint64_t      random = 0x9e3779b97f4a7c15u;
    size_t        opened = 0;
    static size_t tries = 1000;
    torch_put(&file, good.data, good.len);
    for (size_t i = 0; i < tries; i++) {
        memcpy(file.data, good.data, good.len);
        for (int k = 0; k < 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t from = (random >> 60) < 11 ? last.central : 0; /* mostly the directory */
            file.data[from + (random >> 20) % (file.len - from)] ^= (unsigned char)(1u << (random >> 57 & 7));
        }
        opened += bench_damaged(&file, last.central, UINT64_MAX, i);
    }
    assert_true(opened > 10 && opened < tries / 2);
    free(file.data);
    free(good.data);
}

static void test_faults(void **state)
{
    (void)state;
    torch_bytes file = small_archive(true);
    bench_faults(&file, 4);
    free(file.data);
}

/* 600 storages of 100 KB: what is read beyond the pickle stays small, and so does the memory. */
static void test_cost(void **state)
{
    (void)state;
    enum { STORAGES = 600, ELEMENTS = 25600 };
    static float data[ELEMENTS];
    torch_pickle p;
    torch_pickle_begin(&p);
    for (unsigned i = 0; i < STORAGES; i++) {
        char           key[8], name[96];
        const uint64_t dim = ELEMENTS;
        snprintf(key, sizeof key, "%u", i);
        snprintf(name, sizeof name, "decoder.block.%u.layer.1.EncDecAttention.relative_attention_bias.weight", i);
        pickle_whole(&p, name, "FloatStorage", key, &dim, 1, false);
    }
    torch_pickle_end(&p);
    temp_path path = temp_dir_path(&bench_dir, "many.bin");
    torch_zip z;
    torch_zip_open(&z, fopen(path.text, "wb"), "many");
    assert_non_null(z.file);
    torch_zip_add(&z, "data.pkl", p.out.data, p.out.len);
    for (unsigned i = 0; i < STORAGES; i++) {
        char name[16];
        snprintf(name, sizeof name, "data/%u", i);
        torch_zip_add(&z, name, data, sizeof data);
    }
    torch_zip_close(&z);
    assert_int_equal(fclose(z.file), 0);
    free(z.entries);
    bench          b;
    nw_checkpoint *c = bench_opened(&b, (uint64_t)16 << 20, path.text);
    assert_int_equal(nw_checkpoint_tensor_count(c), STORAGES);
    print_message("read %llu bytes beyond a pickle of %zu; at most %llu bytes in memory\n",
                  (unsigned long long)(b.read_bytes - p.out.len), p.out.len, (unsigned long long)b.mem.peak);
    assert_true(b.read_bytes <= p.out.len + ((uint64_t)4 << 20));
    assert_true(b.mem.peak <= (uint64_t)4 << 20);
    nw_checkpoint_close(c);
    bench_close(&b);
    free(p.out.data);
}

/* Sizes and offsets beyond 32 bits, in a file that is mostly a hole. */
static void test_large(void **state)
{
    (void)state;
    static const uint64_t dims[] = {65536, 16640}, small[] = {4}; /* 4.06 GiB of f32 */
    uint64_t              large = dims[0] * dims[1] * 4;
    torch_pickle          p;
    torch_pickle_begin(&p);
    pickle_whole(&p, "a", "FloatStorage", "0", dims, 2, false);
    pickle_whole(&p, "b", "FloatStorage", "1", small, 1, false);
    torch_pickle_end(&p);
    temp_path path = temp_dir_path(&bench_dir, "large.bin");
    torch_zip z;
    torch_zip_open(&z, fopen(path.text, "wb"), "large");
    assert_non_null(z.file);
    torch_zip_add(&z, "data.pkl", p.out.data, p.out.len);
    torch_zip_begin(&z, "data/0", large);
    assert_int_equal(fseeko(z.file, (off_t)large, SEEK_CUR), 0);
    z.at += large;
    torch_zip_end(&z);
    torch_zip_add(&z, "data/1", dims, 16);
    torch_zip_close(&z);
    assert_int_equal(fclose(z.file), 0);
    bench          b;
    nw_checkpoint *c = bench_opened(&b, UINT64_MAX, path.text);
    assert_int_equal(nw_checkpoint_find(c, "a")->bytes, large);
    assert_int_equal(nw_checkpoint_find(c, "b")->offset, z.entries[2].data);
    assert_true(z.entries[2].data > UINT32_MAX);
    nw_checkpoint_close(c);
    bench_close(&b);
    free(z.entries);
    free(p.out.data);
    assert_int_equal(unlink(path.text), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens),         cmocka_unit_test(test_central_headers),
        cmocka_unit_test(test_local_headers), cmocka_unit_test(test_names_of_local_headers),
        cmocka_unit_test(test_ends),          cmocka_unit_test(test_around),
        cmocka_unit_test(test_entries),       cmocka_unit_test(test_byteorder),
        cmocka_unit_test(test_every_cut),     cmocka_unit_test(test_damage),
        cmocka_unit_test(test_faults),        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, bench_make_dir, bench_remove_dir);
}

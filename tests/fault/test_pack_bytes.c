/* A pack in which a byte is wrong, or which is cut short: opening and running it gives an error that names the file, or
 * exactly the answer of the whole pack (where the byte is padding, or of a tensor that is not used). Never another.
 *
 * Every byte of the manifest, the index and config.json is flipped; of the shards the first, a middle and the last
 * one of each strip, what lies behind it, and a sample of the headers.
 */
#include "answers.h"
#include "temp_dir.h"
#include "tensor_files.h"

#include <unistd.h>

#ifdef NW_SANITIZED
enum { BYTE_STRIDE = 7, STRIP_STRIDE = 5 };
#else
enum { BYTE_STRIDE = 1, STRIP_STRIDE = 1 };
#endif

static unsigned failures, runs, refused;

static void check(bool ok, const char *file, uint64_t at, const char *what)
{
    if (!ok && failures++ < 20)
        printf("FAILED %s at %llu: %s\n", file, (unsigned long long)at, what);
}

/* Opens, and generates. */
static nw_code answer(const subject *s, uint64_t *ret_hash, nw_error *err)
{
    nw_model     *model = NULL;
    nw_session   *session = NULL;
    nw_model_info info;
    size_t        tokens;
    nw_code       rc = nw_model_open(&(nw_model_options){.path = s->dir}, &model, err);
    if (rc == NW_OK) {
        nw_session_options o = {.budget_bytes = 64 << 20,
                                .max_input_tokens = s->longest,
                                .max_output_tokens = s->tokens,
                                .threads = 1,
                                .io = NW_READ_THREADS,
                                .force = true};
        nw_model_describe(model, &info);
        rc = nw_session_open(model, &o, &session, err);
    }
    if (rc == NW_OK)
        rc = answer_generate(session, s, 0, info.vocab_size, ret_hash, &tokens, err);
    nw_session_close(session);
    nw_model_close(model);
    return rc;
}

static void check_answer(const subject *s, uint64_t want, const char *file, uint64_t at)
{
    uint64_t hash = 0;
    nw_error err = {0};
    nw_code  rc = answer(s, &hash, &err);
    runs++;
    if (rc == NW_OK) {
        check(hash == want, file, at, "another answer");
        return;
    }
    refused++;
    check(rc == NW_E_IO || rc == NW_E_FORMAT || rc == NW_E_UNSUPPORTED, file, at, err.msg);
    check(hash == 0 && strchr(err.msg, '\n') == NULL && strstr(err.msg, s->dir) != NULL, file, at, err.msg);
}

static void flip(const char *path, uint64_t at, unsigned char bits)
{
    unsigned char byte;
    int           fd = open(path, O_RDWR);
    NW_CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= bits;
    NW_CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1 && close(fd) == 0);
}

/* The byte wrong, asked, and right again. */
static void try_byte(const subject *s, uint64_t want, const char *path, uint64_t at)
{
    unsigned char bits = (unsigned char)(1u << at % 8);
    flip(path, at, bits);
    check_answer(s, want, path, at);
    flip(path, at, bits);
}

/* The file cut (or grown) to `size`, asked, and as it was again. */
static void try_size(const subject *s, uint64_t want, const char *path, const void *bytes, size_t all, size_t size)
{
    NW_CHECK(truncate(path, (off_t)size) == 0);
    check_answer(s, want, path, size);
    FILE *f = fopen(path, "wb");
    NW_CHECK(f != NULL && fwrite(bytes, 1, all, f) == all && fclose(f) == 0);
}

static unsigned char *read_file(const char *path, size_t *ret_size)
{
    struct stat st;
    NW_CHECK(stat(path, &st) == 0);
    unsigned char *bytes = malloc((size_t)st.st_size + 1);
    FILE          *f = fopen(path, "rb");
    NW_CHECK(bytes != NULL && f != NULL && fread(bytes, 1, (size_t)st.st_size, f) == (size_t)st.st_size);
    fclose(f);
    *ret_size = (size_t)st.st_size;
    return bytes;
}

/* Every byte and every length of a small file. */
static void try_file(const subject *s, uint64_t want, const char *name)
{
    char   path[1200];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    unsigned char *bytes = read_file(path, &size);
    for (size_t i = 0; i < size; i += BYTE_STRIDE)
        try_byte(s, want, path, i);
    for (size_t i = 0; i < size; i += BYTE_STRIDE)
        try_size(s, want, path, bytes, size, i);
    try_size(s, want, path, bytes, size, size + 1);
    free(bytes);
}

static void try_shard_sizes(const subject *s, uint64_t want, const char *path)
{
    size_t         size;
    unsigned char *bytes = read_file(path, &size);
    const size_t   sizes[] = {0, 1, 8, 4095, 4096, 4097, size / 2, size - 4096, size - 1, size + 1, size + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        try_size(s, want, path, bytes, size, sizes[i]);
    free(bytes);
}

/* Where the bytes of the shards are that are tried. */
typedef struct {
    uint64_t at;
    uint32_t shard;
} place;

static size_t list_places(const nw_pack *k, place **ret_places)
{
    size_t count = 0, tiles = nw_pack_tile_count(k), room = 64 * nw_pack_shard_count(k);
    for (size_t t = 0; t < tiles; t++)
        room += 4 * (size_t)nw_pack_tile_at(k, t).strip_count;
    place *p = malloc(room * sizeof *p);
    NW_CHECK(p != NULL);
    for (uint32_t i = 0; i < nw_pack_shard_count(k); i++) {
        for (uint64_t at = 0; at < 56; at++)
            p[count++] = (place){at, i};
        for (uint64_t at = 56; at < 4096; at += 600)
            p[count++] = (place){at, i};
        p[count++] = (place){4095, i};
    }
    for (size_t t = 0; t < tiles; t++) {
        nw_pack_tile tile = nw_pack_tile_at(k, t);
        for (uint32_t i = 0; i < tile.strip_count; i++) {
            nw_pack_strip strip = nw_pack_strip_at(k, (size_t)tile.strip_first + i);
            uint64_t      at = tile.offset + strip.offset;
            p[count++] = (place){at, tile.shard};
            p[count++] = (place){at + strip.bytes / 2, tile.shard};
            p[count++] = (place){at + strip.bytes - 1, tile.shard};
            if (strip.bytes % 64 != 0)
                p[count++] = (place){at + strip.bytes, tile.shard};
        }
    }
    NW_CHECK(count <= room);
    *ret_places = p;
    return count;
}

static void try_shards(const subject *s, uint64_t want)
{
    tensor_files f;
    place       *places;
    tensor_files_open(&f, s->dir);
    const nw_pack *k = nw_checkpoint_pack(f.c);
    size_t         count = list_places(k, &places);
    for (size_t i = 0; i < count; i += STRIP_STRIDE)
        try_byte(s, want, nw_pack_shard_path(k, places[i].shard), places[i].at);
    for (size_t i = 0; i < nw_pack_shard_count(k); i++)
        try_shard_sizes(s, want, nw_pack_shard_path(k, i));
    tensor_files_close(&f);
    free(places);
}

/* A tokenizer that was damaged gives no ids, not other ones. */
static void try_tokenizer(const temp_dir *dir)
{
    static const char text[] = "translate English to German: nineteen";
    char              src[1024], path[1200];
    temp_path         packed = temp_dir_path(dir, "numbers");
    nw_pack_result    r;
    nw_error          err = {0};
    uint32_t          ids[64];
    size_t            count, size;
    golden_dir("numbers-t5", src);
    check(model_pack(src, &(nw_pack_options){.dir = packed.text, .threads = 2}, NULL, &r, &err) == NW_OK, "packing", 0,
          err.msg);
    snprintf(path, sizeof path, "%s/spiece.model", packed.text);
    free(read_file(path, &size));
    for (size_t at = 0; at < size; at += size / 40) {
        nw_model *model = NULL;
        flip(path, at, 0x20);
        nw_code rc = nw_model_open(&(nw_model_options){.path = packed.text}, &model, &err);
        check(rc == NW_OK, path, at, err.msg);
        rc = nw_model_encode_text(model, text, sizeof text - 1, ids, 64, &count, &err);
        check(rc == NW_E_IO && strstr(err.msg, path) != NULL, path, at, "is taken");
        nw_model_close(model);
        flip(path, at, 0x20);
    }
    temp_dir_empty(dir->path);
}

int main(void)
{
    static const nw_pack_options forms[] = {{.compress = NW_COMPRESS_PACKED, .shard_bytes_max = 100000, .threads = 2},
                                            {.compress = NW_COMPRESS_SLIM, .threads = 2},
                                            {.type = NW_TYPE_Q4, .threads = 2}};
    temp_dir                     dir = temp_dir_make();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char            src[1024];
        subject         s = {.name = "flan-bf16-shards", .tokens = 2};
        nw_pack_options o = forms[i];
        nw_pack_result  r;
        nw_error        err = {0};
        uint64_t        want = 0, again = 0;
        golden_dir(s.name, src);
        snprintf(s.dir, sizeof s.dir, "%s", temp_dir_path(&dir, "pack").text);
        subject_add(&s, 9, 256, 1);
        o.dir = s.dir;
        nw_code rc = model_pack(src, &o, NULL, &r, &err);
        check(rc == NW_OK, "packing", i, err.msg);
        rc = answer(&s, &want, &err);
        check(rc == NW_OK, "the pack itself", i, err.msg);
        if (i == 0) {
            try_file(&s, want, "manifest.json");
            try_file(&s, want, "tiles.idx");
            try_file(&s, want, "config.json");
        }
        try_shards(&s, want);
        check(answer(&s, &again, &err) == NW_OK && again == want, "the pack afterwards", i, err.msg);
        temp_dir_empty(dir.path);
    }
    try_tokenizer(&dir);
    temp_dir_remove(&dir);
    check(refused > runs / 2, "all", runs, "hardly anything was refused");
    printf("%u runs, %u refused, %u failed\n", runs, refused, failures);
    return failures == 0 ? 0 : 1;
}

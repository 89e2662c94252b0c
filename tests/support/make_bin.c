/* Writes a safetensors checkpoint as PyTorch shards, with the other files of its directory.
 *
 *   make_bin SRC DST [--shards N] [--dtype f32|bf16|f16] [--tie NAME=OTHER]
 *
 * Tensors stay in the order of the source's files. N = 1, the default: pytorch_model.bin. Otherwise
 * pytorch_model-0000x-of-0000N.bin with an index. A tied tensor takes the storage of the other, of one file. Never more
 * than a few MiB in memory. */
#include "loader/checkpoint.h"
#include "torch_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_ELEMENTS ((size_t)262144)

typedef struct {
    nw_memory         mem;
    nw_io            *io;
    nw_checkpoint    *checkpoint;
    const nw_tensor **tensors; /* in the order of files and offsets */
    size_t            count;
    const char       *dst;
    unsigned          shards;
    int               dtype; /* -1: as stored */
    const char       *tie;   /* "name=other", or NULL */
} maker;

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "make_bin: %s: %s\n", what, why);
    exit(1);
}

static nw_dtype dtype_of(const maker *m, const nw_tensor *t)
{
    return m->dtype >= 0 ? (nw_dtype)m->dtype : t->dtype;
}

static uint64_t elements(const nw_tensor *t)
{
    return t->bytes / nw_dtype_bytes(t->dtype);
}

static int compare_places(const void *a, const void *b)
{
    const nw_tensor *const *x = a, *const *y = b;
    if ((*x)->file != (*y)->file)
        return (*x)->file < (*y)->file ? -1 : 1;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static FILE *create(const maker *m, const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", m->dst, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        stop(path, "cannot be written");
    return f;
}

/* On the disk and out of the page cache, so that a benchmark does not find it there. */
static void finish(FILE *f, const char *name)
{
    if (fflush(f) != 0 || fsync(fileno(f)) != 0)
        stop(name, "cannot be written");
    posix_fadvise(fileno(f), 0, 0, POSIX_FADV_DONTNEED);
    if (fclose(f) != 0)
        stop(name, "cannot be written");
}

/* The tensor whose storage this one has: itself, unless they are tied. */
static size_t storage_of(const maker *m, size_t index)
{
    const char *name = m->tensors[index]->name;
    size_t      len = strlen(name);
    if (m->tie == NULL || strncmp(m->tie, name, len) != 0 || m->tie[len] != '=')
        return index;
    for (size_t i = 0; i < m->count; i++) {
        if (strcmp(m->tensors[i]->name, m->tie + len + 1) == 0 &&
            elements(m->tensors[i]) == elements(m->tensors[index]))
            return i;
    }
    stop(m->tie, "no such tensor of that size");
    return index;
}

static torch_bytes shard_pickle(const maker *m, size_t first, size_t end)
{
    static const char *const types[] = {
        [NW_F32] = "FloatStorage", [NW_BF16] = "BFloat16Storage", [NW_F16] = "HalfStorage"};
    torch_pickle p;
    torch_pickle_begin(&p);
    for (size_t i = first; i < end; i++) {
        const nw_tensor *t = m->tensors[i];
        char             key[24];
        uint64_t         strides[NW_TENSOR_DIMS_MAX];
        snprintf(key, sizeof key, "%zu", storage_of(m, i) - first);
        torch_strides(t->dims, t->dim_count, strides);
        torch_pickle_tensor(&p, &(torch_tensor){.name = t->name,
                                                .type = types[dtype_of(m, t)],
                                                .key = key,
                                                .numel = elements(t),
                                                .dims = t->dims,
                                                .strides = strides,
                                                .dim_count = t->dim_count});
    }
    torch_pickle_end(&p);
    return p.out;
}

/* The tensor's elements, converted, into the entry at hand. */
static void write_tensor(maker *m, torch_zip *z, const nw_tensor *t)
{
    static unsigned char from[PIECE_ELEMENTS * 4], to[PIECE_ELEMENTS * 4];
    nw_dtype             dtype = dtype_of(m, t);
    size_t               from_bytes = nw_dtype_bytes(t->dtype), to_bytes = nw_dtype_bytes(dtype);
    const char          *path = nw_checkpoint_file_path(m->checkpoint, t->file);
    for (uint64_t done = 0, all = elements(t); done < all; done += PIECE_ELEMENTS) {
        size_t   n = (size_t)nw_min_u64(PIECE_ELEMENTS, all - done);
        nw_error err = {0};
        if (nw_file_read(&m->mem, m->io, nw_checkpoint_file(m->checkpoint, t->file), path,
                         t->offset + done * from_bytes, from, n * from_bytes, NULL, &err) != NW_OK)
            stop(path, err.msg);
        if (dtype == t->dtype) {
            torch_zip_data(z, from, n * from_bytes);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            nw_dtype_from_f32(dtype, nw_dtype_to_f32(t->dtype, from + i * from_bytes), to + i * to_bytes);
        torch_zip_data(z, to, n * to_bytes);
    }
}

static void write_shard(maker *m, const char *name, size_t first, size_t end)
{
    char prefix[100];
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(name) - 4), name); /* without ".bin" */
    torch_zip   z;
    torch_bytes pickle = shard_pickle(m, first, end);
    torch_zip_open(&z, create(m, name), prefix);
    z.zip64 = true;
    torch_zip_add(&z, "data.pkl", pickle.data, pickle.len);
    torch_zip_facts(&z);
    for (size_t i = first; i < end; i++) {
        char entry[40];
        if (storage_of(m, i) != i)
            continue;
        snprintf(entry, sizeof entry, "data/%zu", i - first);
        torch_zip_begin(&z, entry, elements(m->tensors[i]) * nw_dtype_bytes(dtype_of(m, m->tensors[i])));
        write_tensor(m, &z, m->tensors[i]);
        torch_zip_end(&z);
    }
    torch_zip_add(&z, "version", "3\n", 2);
    torch_zip_close(&z);
    finish(z.file, name);
    free(z.entries);
    free(pickle.data);
}

static void write_shards(maker *m)
{
    uint64_t all = 0, done = 0;
    for (size_t i = 0; i < m->count; i++)
        all += m->tensors[i]->bytes;
    FILE  *index = m->shards > 1 ? create(m, "pytorch_model.bin.index.json") : NULL;
    size_t first = 0;
    if (index != NULL)
        fprintf(index, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {", (unsigned long long)all);
    for (unsigned shard = 0; shard < m->shards; shard++) {
        char   name[80] = "pytorch_model.bin";
        size_t end = first;
        while (end < m->count && (end == first || shard + 1 == m->shards || done < all / m->shards * (shard + 1)))
            done += m->tensors[end++]->bytes;
        if (index != NULL)
            snprintf(name, sizeof name, "pytorch_model-%05u-of-%05u.bin", shard + 1, m->shards);
        write_shard(m, name, first, end);
        for (size_t i = first; i < end && index != NULL; i++)
            fprintf(index, "%s\n  \"%s\": \"%s\"", i > 0 ? "," : "", m->tensors[i]->name, name);
        first = end;
    }
    if (index != NULL) {
        fprintf(index, "\n}}\n");
        finish(index, "the index");
    }
}

/* config.json, the tokenizer and the like: all but weights and their indexes. */
static void copy_others(const maker *m, const char *src)
{
    DIR                 *d = opendir(src);
    const struct dirent *entry;
    if (d == NULL)
        stop(src, "not a directory");
    while ((entry = readdir(d)) != NULL) {
        char        path[1200];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", src, entry->d_name);
        if (strstr(entry->d_name, "safetensors") != NULL || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        FILE *from = fopen(path, "rb"), *to = create(m, entry->d_name);
        char  piece[65536];
        if (from == NULL)
            stop(path, "cannot be read");
        for (size_t n; (n = fread(piece, 1, sizeof piece, from)) > 0;) {
            if (fwrite(piece, 1, n, to) != n)
                stop(entry->d_name, "cannot be written");
        }
        fclose(from);
        finish(to, entry->d_name);
    }
    closedir(d);
}

static void parse(maker *m, int argc, char **argv)
{
    static const char *const names[] = {[NW_F32] = "f32", [NW_BF16] = "bf16", [NW_F16] = "f16"};
    m->dst = argv[2];
    m->shards = 1;
    m->dtype = -1;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--shards") == 0)
            m->shards = (unsigned)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--tie") == 0)
            m->tie = argv[i + 1];
        for (int d = 0; d < NW_DTYPE_COUNT && strcmp(argv[i], "--dtype") == 0; d++)
            m->dtype = strcmp(argv[i + 1], names[d]) == 0 ? d : m->dtype;
    }
    if (m->shards == 0)
        stop("--shards", "at least 1");
}

int main(int argc, char **argv)
{
    static maker m;
    nw_error     err = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: make_bin SRC DST [--shards N] [--dtype f32|bf16|f16] [--tie NAME=OTHER]\n");
        return 2;
    }
    parse(&m, argc, argv);
    nw_memory_init(&m.mem, UINT64_MAX, NULL);
    if (nw_io_open(&m.mem, &(nw_io_options){.depth = 1}, &m.io, &err) != NW_OK ||
        nw_checkpoint_open(&m.mem, m.io, argv[1], NULL, NULL, &m.checkpoint, &err) != NW_OK)
        stop(argv[1], err.msg);
    if (mkdir(m.dst, 0777) != 0)
        stop(m.dst, "cannot be made, or is there");
    m.count = nw_checkpoint_tensor_count(m.checkpoint);
    m.tensors = calloc(m.count + 1, sizeof *m.tensors);
    NW_CHECK(m.tensors != NULL);
    for (size_t i = 0; i < m.count; i++) {
        m.tensors[i] = nw_checkpoint_tensor(m.checkpoint, i);
        if (!m.tensors[i]->known)
            stop(m.tensors[i]->name, "has a type that cannot be written");
    }
    qsort(m.tensors, m.count, sizeof *m.tensors, compare_places);
    write_shards(&m);
    copy_others(&m, argv[1]);
    free(m.tensors);
    nw_checkpoint_close(m.checkpoint);
    nw_io_close(m.io);
    return 0;
}

/* Writing a checkpoint as Hugging Face safetensors.
 *
 * Headers stand before data, so everything is declared first; the first byte of data (or the end) fixes which tensor
 * goes to which shard. From then on bytes pass through one buffer, in order, and are never looked at again. A header is
 * made by the same function that measures it.
 *
 * All files go to DST.tmp-XXXXXX beside DST. A shard is complete only with its last tensor, the index comes after the
 * last shard, and DST appears by one rename after everything is on the disk: whatever is left by a crash does not open.
 *
 * Direct writes of whole buffers keep the page cache out of it (it would be memory that nobody counted, in our cgroup);
 * the ragged end of a file is written padded and cut off. Where the file system refuses O_DIRECT, what was written is
 * flushed and dropped every 32 MiB.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include "loader/writer.h"

#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)1 << 20)
#define BLOCK_BYTES ((size_t)4096)
#define DROP_BYTES ((uint64_t)32 << 20)
#define SHARDS_MAX 99999 /* five digits in their names */
#define INDEX_NAME "model.safetensors.index.json"
#define GROUP_NONE 0
#define DATA_BYTES_MAX ((uint64_t)1 << 62)

typedef struct {
    const char *name;
    char        dtype_name[12];
    uint32_t    dim_count;
    uint64_t    dims[NW_TENSOR_DIMS_MAX];
    uint64_t    bytes;
    uint64_t    group; /* GROUP_NONE: alone */
    uint32_t    shard;
} declared;

typedef struct {
    const char *name, *kept;
} alias;

struct nw_writer {
    nw_memory *mem;
    char       dir[PATH_MAX];  /* DST, without slashes at its end */
    char       temp[PATH_MAX]; /* empty: not made, or renamed */
    int        temp_fd;
    uint64_t   shard_bytes_max; /* 0: one shard */
    bool       failed;
    nw_names   names;
    declared  *tensors;
    size_t     count, cap;
    uint64_t   group_last;
    alias     *aliases;
    size_t     alias_count, alias_cap;
    /* from the layout on */
    bool             laid_out;
    const declared **by_name;
    uint32_t         shard_count;
    uint64_t         bytes_total;
    size_t           next;      /* tensor being written */
    uint64_t         next_done; /* of its bytes */
    /* the shard being written */
    int            fd;
    bool           direct;
    unsigned char *buf; /* BUFFER_BYTES */
    size_t         buffered;
    uint64_t       written, dropped; /* of the file */
    uint32_t       shard;
};

/* -- paths -- */

static nw_code fail(nw_writer *w, nw_error *err, nw_code code, int os_errno, const char *what, const char *name)
{
    w->failed = true;
    return nw_fail(err, code, os_errno, "'%s': %s%s%s", w->dir, what, name[0] != '\0' ? " " : "", name);
}

/* "model.safetensors" or "model-00001-of-00003.safetensors". */
static void shard_name(const nw_writer *w, uint32_t shard, char ret_name[64])
{
    if (w->shard_count == 1)
        snprintf(ret_name, 64, "model.safetensors");
    else
        snprintf(ret_name, 64, "model-%05u-of-%05u.safetensors", shard + 1, w->shard_count);
}

/* Refuses a target that holds something. An empty directory is replaced by rename(2). */
static nw_code check_target(nw_writer *w, nw_error *err)
{
    struct stat st;
    if (lstat(w->dir, &st) != 0)
        return errno == ENOENT ? NW_OK : fail(w, err, NW_E_IO, errno, "cannot be looked at", "");
    if (!S_ISDIR(st.st_mode))
        return fail(w, err, NW_E_IO, EEXIST, "is no directory", "");
    DIR *d = opendir(w->dir);
    if (d == NULL)
        return fail(w, err, NW_E_IO, errno, "cannot be looked at", "");
    bool           empty = true;
    struct dirent *entry;
    while (empty && (entry = readdir(d)) != NULL)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(d);
    return empty ? NW_OK : fail(w, err, NW_E_IO, ENOTEMPTY, "exists", "");
}

/* mkdtemp would make a directory that only its owner may read; this one becomes the user's model. */
static nw_code make_temp(nw_writer *w, nw_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    for (int attempt = 0; attempt < 100; attempt++) {
        unsigned char random[6];
        char          suffix[7] = {0};
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            return fail(w, err, NW_E_IO, errno, "no random name for a temporary directory", "");
        for (size_t i = 0; i < sizeof random; i++)
            suffix[i] = letters[random[i] & 31];
        char path[sizeof w->temp + 16];
        int  len = snprintf(path, sizeof path, "%s.tmp-%s", w->dir, suffix);
        if (len < 0 || (size_t)len >= sizeof w->temp)
            return fail(w, err, NW_E_IO, ENAMETOOLONG, "cannot be made", "");
        if (mkdir(path, 0777) == 0) {
            memcpy(w->temp, path, (size_t)len + 1);
            w->temp_fd = open(w->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            return w->temp_fd >= 0 ? NW_OK : fail(w, err, NW_E_IO, errno, "cannot be made", "");
        }
        if (errno != EEXIST)
            return fail(w, err, NW_E_IO, errno, "a directory cannot be made beside it", "");
    }
    return fail(w, err, NW_E_IO, EEXIST, "a directory cannot be made beside it", "");
}

/* Makes renames and new names in a directory last. */
static bool sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = fsync(fd) == 0;
    close(fd);
    return ok;
}

static void remove_temp(nw_writer *w)
{
    DIR *d = w->temp[0] != '\0' ? opendir(w->temp) : NULL;
    if (d != NULL) {
        struct dirent *entry;
        while ((entry = readdir(d)) != NULL)
            unlinkat(dirfd(d), entry->d_name, 0); /* "." and ".." are refused */
        closedir(d);
    }
    if (w->temp[0] != '\0')
        rmdir(w->temp);
    w->temp[0] = '\0';
}

/* -- one file through the buffer -- */

/* Writes the buffer's first `bytes`, all of them. */
static nw_code buffer_write(nw_writer *w, size_t bytes, nw_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(w->fd, w->buf + done, bytes - done, (off_t)(w->written + done));
        if (put > 0) {
            done += (size_t)put;
            /* After a short write the rest may be unaligned. */
            if (done < bytes && done % BLOCK_BYTES != 0 && w->direct)
                done = (size_t)nw_round_down(done, BLOCK_BYTES);
        } else if (put < 0 && errno == EINVAL && w->direct) {
            w->direct = false;
            int flags = fcntl(w->fd, F_GETFL);
            if (flags < 0 || fcntl(w->fd, F_SETFL, flags & ~O_DIRECT) != 0)
                return fail(w, err, NW_E_IO, errno, "write", "");
        } else if (put == 0 || errno != EINTR) {
            return fail(w, err, NW_E_IO, put == 0 ? ENOSPC : errno, "write", "");
        }
    }
    return NW_OK;
}

/* Without O_DIRECT, gets what was written out of the page cache. */
static nw_code drop_written(nw_writer *w, nw_error *err)
{
    if (w->direct)
        return NW_OK;
    if (fdatasync(w->fd) != 0)
        return fail(w, err, NW_E_IO, errno, "write", "");
    (void)posix_fadvise(w->fd, (off_t)w->dropped, (off_t)(w->written - w->dropped), POSIX_FADV_DONTNEED);
    w->dropped = w->written;
    return NW_OK;
}

static nw_code file_put(nw_writer *w, const void *bytes, size_t len, nw_error *err)
{
    const unsigned char *p = bytes;
    while (len > 0) {
        size_t part = nw_min_size(len, BUFFER_BYTES - w->buffered);
        memcpy(w->buf + w->buffered, p, part);
        w->buffered += part;
        p += part;
        len -= part;
        if (w->buffered < BUFFER_BYTES)
            return NW_OK;
        nw_code rc = buffer_write(w, BUFFER_BYTES, err);
        if (rc != NW_OK)
            return rc;
        w->written += BUFFER_BYTES;
        w->buffered = 0;
        if (w->written - w->dropped >= DROP_BYTES && (rc = drop_written(w, err)) != NW_OK)
            return rc;
    }
    return NW_OK;
}

static nw_code file_begin(nw_writer *w, const char *name, nw_error *err)
{
    NW_CHECK(w->fd < 0);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    w->direct = true;
    w->fd = openat(w->temp_fd, name, flags | O_DIRECT, 0666);
    if (w->fd < 0 && errno == EINVAL) {
        w->direct = false;
        /* Some file systems make the file before they refuse the flag. */
        (void)unlinkat(w->temp_fd, name, 0);
        w->fd = openat(w->temp_fd, name, flags, 0666);
    }
    if (w->fd < 0)
        return fail(w, err, NW_E_IO, errno, "cannot make", name);
    w->written = w->dropped = 0;
    w->buffered = 0;
    return NW_OK;
}

/* Writes the rest, cuts the padding off, and waits for the disk. */
static nw_code file_end(nw_writer *w, nw_error *err)
{
    uint64_t size = w->written + w->buffered;
    size_t   padded = (size_t)nw_round_up(w->buffered, BLOCK_BYTES);
    memset(w->buf + w->buffered, 0, padded - w->buffered);
    nw_code rc = buffer_write(w, padded, err);
    if (rc != NW_OK)
        return rc;
    w->written += padded;
    if (ftruncate(w->fd, (off_t)size) != 0 || fsync(w->fd) != 0)
        return fail(w, err, NW_E_IO, errno, "write", "");
    rc = drop_written(w, err);
    int closed = close(w->fd);
    w->fd = -1;
    if (rc == NW_OK && closed != 0)
        rc = fail(w, err, NW_E_IO, errno, "write", "");
    return rc;
}

/* -- text, measured or written -- */

/* Where text goes: counted always, written to the file at hand unless measuring. */
typedef struct {
    nw_writer *w;
    bool       measuring;
    uint64_t   bytes;
    nw_code    rc;
    nw_error  *err;
} text_sink;

static void text_put(text_sink *t, const char *text, size_t len)
{
    t->bytes += len;
    if (!t->measuring && t->rc == NW_OK)
        t->rc = file_put(t->w, text, len, t->err);
}

static void text_say(text_sink *t, const char *text)
{
    text_put(t, text, strlen(text));
}

static void text_u64(text_sink *t, uint64_t value)
{
    char digits[24];
    text_put(t, digits, (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value));
}

/* A JSON string; names have no control characters, so only two need an escape. */
static void text_string(text_sink *t, const char *text)
{
    text_say(t, "\"");
    for (const char *p = text; *p != '\0';) {
        size_t plain = strcspn(p, "\"\\");
        text_put(t, p, plain);
        p += plain;
        if (*p != '\0') {
            text_say(t, "\\");
            text_put(t, p++, 1);
        }
    }
    text_say(t, "\"");
}

/* The header of the shard whose tensors are [first, end), padded with spaces so that the data is aligned to 8 bytes. */
static void text_header(text_sink *t, size_t first, size_t end)
{
    uint64_t offset = 0;
    text_say(t, "{\"__metadata__\":{\"format\":\"pt\"");
    for (size_t i = 0; i < t->w->alias_count; i++) {
        text_say(t, ",");
        text_string(t, t->w->aliases[i].name);
        text_say(t, ":");
        text_string(t, t->w->aliases[i].kept);
    }
    text_say(t, "}");
    for (size_t i = first; i < end; i++) {
        const declared *d = &t->w->tensors[i];
        text_say(t, ",");
        text_string(t, d->name);
        text_say(t, ":{\"dtype\":\"");
        text_say(t, d->dtype_name);
        text_say(t, "\",\"shape\":[");
        for (uint32_t k = 0; k < d->dim_count; k++) {
            text_say(t, k > 0 ? "," : "");
            text_u64(t, d->dims[k]);
        }
        text_say(t, "],\"data_offsets\":[");
        text_u64(t, offset);
        text_say(t, ",");
        offset += d->bytes;
        text_u64(t, offset);
        text_say(t, "]}");
    }
    text_say(t, "}");
    text_put(t, "       ", (size_t)(nw_round_up(t->bytes, 8) - t->bytes));
}

/* As transformers writes it: two spaces, keys sorted. */
static void text_index(text_sink *t)
{
    const nw_writer *w = t->w;
    char             name[64];
    text_say(t, "{\n  \"metadata\": {\n    \"total_size\": ");
    text_u64(t, w->bytes_total);
    text_say(t, "\n  },\n  \"weight_map\": {");
    for (size_t i = 0; i < w->count; i++) {
        text_say(t, i > 0 ? ",\n    " : "\n    ");
        text_string(t, w->by_name[i]->name);
        shard_name(w, w->by_name[i]->shard, name);
        text_say(t, ": ");
        text_string(t, name);
    }
    text_say(t, "\n  }\n}\n");
}

/* -- layout -- */

static int compare_names(const void *a, const void *b)
{
    const declared *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Bytes of the tensors from `first` on that go together; *ret_end is behind the last. */
static uint64_t unit_bytes(const nw_writer *w, size_t first, size_t *ret_end)
{
    const declared *d = w->tensors;
    uint64_t        bytes = d[first].bytes;
    size_t          end = first + 1;
    for (; d[first].group != GROUP_NONE && end < w->count && d[end].group == d[first].group; end++)
        bytes += d[end].bytes;
    if (bytes > w->shard_bytes_max) { /* too large to stay together */
        end = first + 1;
        bytes = d[first].bytes;
    }
    *ret_end = end;
    return bytes;
}

static void assign_shards(nw_writer *w)
{
    uint64_t used = 0;
    uint32_t shard = 0;
    for (size_t i = 0, end; i < w->count; i = end) {
        uint64_t bytes = unit_bytes(w, i, &end);
        uint64_t room = w->shard_bytes_max - nw_min_u64(used, w->shard_bytes_max);
        bool     fits = w->shard_bytes_max == 0 || bytes <= room;
        if (!fits && used > 0) {
            shard++;
            used = 0;
        }
        used += bytes;
        for (size_t k = i; k < end; k++)
            w->tensors[k].shard = shard;
    }
    w->shard_count = shard + 1;
}

/* All is declared: names are unique, shards are known, there is room. */
static nw_code lay_out(nw_writer *w, nw_error *err)
{
    if (w->count == 0)
        return fail(w, err, NW_E_ARG, 0, "no tensors to write", "");
    w->by_name = nw_memory_alloc(w->mem, NW_TAG_INDEX, w->count, sizeof *w->by_name);
    if (w->by_name == NULL) {
        w->failed = true;
        return nw_memory_fail(w->mem, err, w->count * sizeof *w->by_name, w->dir);
    }
    w->laid_out = true;
    for (size_t i = 0; i < w->count; i++)
        w->by_name[i] = &w->tensors[i];
    nw_sort(w->by_name, w->count, sizeof *w->by_name, compare_names);
    for (size_t i = 1; i < w->count; i++) {
        if (strcmp(w->by_name[i - 1]->name, w->by_name[i]->name) == 0)
            return fail(w, err, NW_E_ARG, 0, "declared twice:", w->by_name[i]->name);
    }
    assign_shards(w);
    if (w->shard_count > SHARDS_MAX)
        return fail(w, err, NW_E_ARG, 0, "more than 99999 shards", "");

    struct statvfs fs;
    text_sink      headers = {.w = w, .measuring = true};
    text_header(&headers, 0, w->count);
    text_sink metadata = {.w = w, .measuring = true}; /* every shard repeats it */
    text_header(&metadata, 0, 0);
    uint64_t needed = w->bytes_total + 2 * headers.bytes + w->shard_count * (metadata.bytes + 2 * BLOCK_BYTES);
    if (fstatvfs(w->temp_fd, &fs) == 0 && fs.f_bavail < needed / fs.f_frsize) {
        w->failed = true;
        return nw_fail(err, NW_E_IO, ENOSPC, "'%s': needs %llu bytes where %llu are free", w->dir,
                       (unsigned long long)needed, (unsigned long long)fs.f_bavail * fs.f_frsize);
    }
    return NW_OK;
}

/* Makes the file of the shard that begins with tensor `next`, up to its data. */
static nw_code shard_begin(nw_writer *w, nw_error *err)
{
    char   name[64];
    size_t end = w->next;
    w->shard = w->tensors[w->next].shard;
    while (end < w->count && w->tensors[end].shard == w->shard)
        end++;
    text_sink measure = {.w = w, .measuring = true};
    text_header(&measure, w->next, end);
    if (measure.bytes > NW_HEADER_BYTES_MAX)
        return fail(w, err, NW_E_ARG, 0, "a header of more than 100000000 bytes", "");

    shard_name(w, w->shard, name);
    nw_code rc = file_begin(w, name, err);
    if (rc != NW_OK)
        return rc;
    unsigned char len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (unsigned char)(measure.bytes >> (8 * i));
    text_sink sink = {.w = w, .err = err};
    sink.rc = file_put(w, len, sizeof len, err);
    text_header(&sink, w->next, end);
    NW_CHECK(sink.bytes == measure.bytes);
    return sink.rc;
}

/* Moves on over tensors that are complete, empty ones included: ends shards, begins the next. */
static nw_code advance(nw_writer *w, nw_error *err)
{
    nw_code rc = NW_OK;
    if (!w->laid_out)
        rc = lay_out(w, err);
    while (rc == NW_OK && w->next < w->count) {
        if (w->fd < 0 && (rc = shard_begin(w, err)) != NW_OK)
            break;
        if (w->next_done < w->tensors[w->next].bytes)
            break;
        w->next++;
        w->next_done = 0;
        if (w->next == w->count || w->tensors[w->next].shard != w->shard)
            rc = file_end(w, err);
    }
    return rc;
}

/* -- the interface -- */

nw_code nw_writer_open(nw_memory *mem, const char *dir, uint64_t shard_bytes_max, nw_writer **ret_writer, nw_error *err)
{
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    if (len == 0 || len >= PATH_MAX)
        return nw_fail(err, NW_E_ARG, 0, "'%.200s' cannot be the name of a directory", dir);
    nw_writer *w = nw_memory_alloc(mem, NW_TAG_INDEX, 1, sizeof *w);
    if (w == NULL)
        return nw_memory_fail(mem, err, sizeof *w, dir);
    w->mem = mem;
    w->names.mem = mem;
    w->fd = w->temp_fd = -1;
    w->shard_bytes_max = shard_bytes_max;
    memcpy(w->dir, dir, len);

    nw_code rc = check_target(w, err);
    if (rc == NW_OK) {
        w->buf = nw_memory_map(mem, NW_TAG_IO, BUFFER_BYTES, false);
        rc = w->buf != NULL ? make_temp(w, err) : nw_memory_fail(mem, err, BUFFER_BYTES, w->dir);
    }
    if (rc != NW_OK) {
        nw_writer_close(w);
        return rc;
    }
    *ret_writer = w;
    return NW_OK;
}

/* Adds a tensor whose type, shape and bytes are in `d`. */
static nw_code declare(nw_writer *w, const char *name, declared d, nw_error *err)
{
    NW_CHECK(!w->failed && !w->laid_out);
    uint64_t total = 0;
    d.group = w->group_last;
    if (!nw_tensor_name_ok(name, strlen(name)) || strcmp(name, "__metadata__") == 0)
        return fail(w, err, NW_E_ARG, 0, "this cannot be the name of a tensor:", name);
    if (!nw_add_u64(w->bytes_total, d.bytes, &total) || total > DATA_BYTES_MAX)
        return fail(w, err, NW_E_ARG, 0, "this tensor is too large:", name);

    declared *grown = nw_array_grow(w->mem, w->tensors, w->count, &w->cap, sizeof *grown);
    if (grown != NULL) {
        w->tensors = grown;
        d.name = nw_names_add(&w->names, name, strlen(name));
    }
    if (d.name == NULL) {
        w->failed = true;
        return nw_memory_fail(w->mem, err, sizeof d * (w->cap + 1), w->dir);
    }
    w->tensors[w->count++] = d;
    w->bytes_total = total;
    return NW_OK;
}

nw_code nw_writer_declare(nw_writer *writer, const char *name, nw_dtype dtype, const uint64_t *dims, uint32_t dim_count,
                          nw_error *err)
{
    static const char *const names[NW_DTYPE_COUNT] = {[NW_F32] = "F32", [NW_BF16] = "BF16", [NW_F16] = "F16"};
    NW_CHECK(dim_count == 1 || dim_count == 2);
    declared d = {.dim_count = dim_count, .bytes = nw_dtype_bytes(dtype)};
    bool     fits = true;
    snprintf(d.dtype_name, sizeof d.dtype_name, "%s", names[dtype]);
    for (uint32_t i = 0; i < dim_count && fits; i++) {
        d.dims[i] = dims[i];
        fits = nw_mul_u64(d.bytes, dims[i], &d.bytes);
    }
    if (!fits)
        return fail(writer, err, NW_E_ARG, 0, "this tensor is too large:", name);
    return declare(writer, name, d, err);
}

nw_code nw_writer_declare_like(nw_writer *writer, const char *name, const nw_tensor *like, nw_error *err)
{
    declared d = {.dim_count = like->dim_count, .bytes = like->bytes};
    memcpy(d.dtype_name, like->dtype_name, sizeof d.dtype_name);
    memcpy(d.dims, like->dims, sizeof d.dims);
    return declare(writer, name, d, err);
}

nw_code nw_writer_alias(nw_writer *writer, const char *name, const char *kept, nw_error *err)
{
    nw_writer *w = writer;
    NW_CHECK(!w->failed && !w->laid_out);
    alias *grown = nw_array_grow(w->mem, w->aliases, w->alias_count, &w->alias_cap, sizeof *grown);
    if (grown != NULL) {
        w->aliases = grown;
        alias a = {.name = nw_names_add(&w->names, name, strlen(name)),
                   .kept = nw_names_add(&w->names, kept, strlen(kept))};
        if (a.name != NULL && a.kept != NULL) {
            w->aliases[w->alias_count++] = a;
            return NW_OK;
        }
    }
    w->failed = true;
    return nw_memory_fail(w->mem, err, strlen(name) + strlen(kept), w->dir);
}

uint64_t nw_writer_declared_bytes(size_t tensor_count)
{
    /* The table doubles as it grows: the old and the new one stand side by side. */
    return sizeof(nw_writer) + BUFFER_BYTES + tensor_count * (3 * sizeof(declared) + sizeof(declared *) + 100);
}

uint32_t nw_writer_shard_count(const nw_writer *writer)
{
    return writer->shard_count;
}

nw_code nw_writer_group(nw_writer *writer, nw_error *err)
{
    (void)err;
    NW_CHECK(!writer->failed && !writer->laid_out);
    writer->group_last++;
    return NW_OK;
}

nw_code nw_writer_data(nw_writer *writer, const void *bytes, size_t len, nw_error *err)
{
    nw_writer           *w = writer;
    const unsigned char *p = bytes;
    NW_CHECK(!w->failed);
    nw_code rc = advance(w, err);
    while (len > 0 && rc == NW_OK) {
        NW_CHECK(w->next < w->count); /* no more than was declared */
        size_t part = (size_t)nw_min_u64(len, w->tensors[w->next].bytes - w->next_done);
        rc = file_put(w, p, part, err);
        if (rc != NW_OK)
            break;
        p += part;
        len -= part;
        w->next_done += part;
        rc = advance(w, err);
    }
    return rc;
}

nw_code nw_writer_file(nw_writer *writer, const char *name, const void *bytes, size_t len, nw_error *err)
{
    nw_writer *w = writer;
    NW_CHECK(!w->failed);
    if (!nw_tensor_name_ok(name, strlen(name)) || strlen(name) > NAME_MAX || strchr(name, '/') != NULL ||
        strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return fail(w, err, NW_E_ARG, 0, "this is not a plain file name:", name);
    int fd = openat(w->temp_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return fail(w, err, NW_E_IO, errno, "cannot make", name);
    int                  os_errno = 0;
    const unsigned char *p = bytes;
    for (size_t done = 0; done < len && os_errno == 0;) {
        ssize_t put = write(fd, p + done, len - done);
        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            os_errno = put == 0 ? ENOSPC : errno;
    }
    if (os_errno == 0 && fsync(fd) != 0)
        os_errno = errno;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd) != 0 && os_errno == 0)
        os_errno = errno;
    return os_errno == 0 ? NW_OK : fail(w, err, NW_E_IO, os_errno, "write", name);
}

/* The directory that DST stands in. */
static void parent_of(const char *dir, char ret_parent[PATH_MAX])
{
    const char *slash = strrchr(dir, '/');
    size_t      len = slash == NULL ? 0 : slash == dir ? 1 : (size_t)(slash - dir);
    memcpy(ret_parent, len > 0 ? dir : ".", len > 0 ? len : 1);
    ret_parent[len > 0 ? len : 1] = '\0';
}

nw_code nw_writer_finish(nw_writer *writer, nw_error *err)
{
    nw_writer *w = writer;
    NW_CHECK(!w->failed);
    nw_code rc = advance(w, err);
    if (rc != NW_OK)
        return rc;
    NW_CHECK(w->next == w->count); /* all data was written */
    if (w->shard_count > 1) {
        rc = file_begin(w, INDEX_NAME, err);
        if (rc != NW_OK)
            return rc;
        text_sink sink = {.w = w, .err = err};
        text_index(&sink);
        rc = sink.rc == NW_OK ? file_end(w, err) : sink.rc;
        if (rc != NW_OK)
            return rc;
    }
    if (fsync(w->temp_fd) != 0)
        return fail(w, err, NW_E_IO, errno, "write", "");
    if (rename(w->temp, w->dir) != 0)
        return fail(w, err, NW_E_IO, errno, "cannot be put in its place", "");
    w->temp[0] = '\0';
    char parent[PATH_MAX];
    parent_of(w->dir, parent);
    if (!sync_dir(parent))
        return fail(w, err, NW_E_IO, errno, "write", "");
    return NW_OK;
}

nw_writer *nw_writer_close(nw_writer *writer)
{
    nw_writer *w = writer;
    if (w == NULL)
        return NULL;
    if (w->fd >= 0)
        close(w->fd);
    remove_temp(w);
    if (w->temp_fd >= 0)
        close(w->temp_fd);
    if (w->buf != NULL)
        nw_memory_unmap(w->mem, NW_TAG_IO, w->buf, BUFFER_BYTES);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->by_name, w->count, sizeof *w->by_name);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->aliases, w->alias_cap, sizeof *w->aliases);
    nw_memory_free(w->mem, NW_TAG_INDEX, w->tensors, w->cap, sizeof *w->tensors);
    nw_names_free(&w->names);
    nw_memory_free(w->mem, NW_TAG_INDEX, w, 1, sizeof *w);
    return NULL;
}

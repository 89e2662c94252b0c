/* A safetensors header is JSON that may end in spaces, so room for it is left in front of the data, each tensor's entry
 * is written there when the tensor ends, and the rest becomes spaces. An .npy header is padded likewise. Nothing grows
 * with the number of tensors.
 *
 * Sources  safetensors: README of the format; .npy: numpy.lib.format, version 1.0. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "tensor_file.h"

#include "print.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DROP_BYTES ((uint64_t)8 << 20)
#define ENTRY_BYTES 256 /* of a header: a name, a type, three dimensions and two offsets of 20 digits */
#define HEADER_BYTES_MAX ((uint64_t)100000000)
#define HEADER_START "{\"__metadata__\":{\"format\":\"pt\"}"
enum { NPY_HEADER_BYTES = 128, ELEMENT_BYTES = 4 };

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

bool tensor_file_is_npy(const char *path)
{
    return ends_with(path, ".npy");
}

bool tensor_file_is_named(const char *path)
{
    return tensor_file_is_npy(path) || ends_with(path, ".safetensors");
}

void tensor_file_abandon(tensor_file *f)
{
    if (f->temp[0] == '\0')
        return;
    close(f->fd);
    unlink(f->temp);
    f->temp[0] = '\0';
}

static int fail(tensor_file *f)
{
    print_error("write '%s': %s", f->path, strerror(errno));
    tensor_file_abandon(f);
    return EXIT_IO;
}

static bool write_at(const tensor_file *f, const void *bytes, size_t len, uint64_t offset)
{
    const unsigned char *p = bytes;
    while (len > 0) {
        ssize_t put = pwrite(f->fd, p, len, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return false;
        p += put;
        offset += (uint64_t)put;
        len -= (size_t)put;
    }
    return true;
}

/* Beside the target, under a name that fits wherever the target's does. */
static bool make_temp(tensor_file *f)
{
    const char *slash = strrchr(f->path, '/');
    int         dir = slash != NULL ? (int)(slash - f->path) + 1 : 0;
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        snprintf(f->temp, sizeof f->temp, "%.*s.narrows-%d-%u", dir, f->path, (int)getpid(), attempt);
        f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (f->fd >= 0)
            return true;
        if (errno != EEXIST)
            break;
    }
    f->temp[0] = '\0';
    return false;
}

/* Takes the target's path. A link is followed, so that the file it leads to is what is replaced; what is no file is not
 * replaced. A name that no file can have is refused here, before the work is done. Returns -1 or the exit status. */
static int take_path(tensor_file *f, const char *path)
{
    struct stat st;
    if (strlen(path) >= sizeof f->path) {
        print_error("'%.100s...': the path is too long", path);
        return EXIT_USAGE;
    }
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) {
        print_error("write '%s': %s", path, strerror(errno));
        return EXIT_IO;
    }
    if (exists && !S_ISREG(st.st_mode)) {
        print_error("'%s' is there and is no regular file", path);
        return EXIT_IO;
    }
    if (!exists && lstat(path, &st) == 0) {
        print_error("'%s' is a link that leads nowhere", path);
        return EXIT_IO;
    }
    static_assert(sizeof f->path >= PATH_MAX, "realpath fills it");
    if (!exists || realpath(path, f->path) == NULL)
        memcpy(f->path, path, strlen(path) + 1);
    return -1;
}

int tensor_file_open(tensor_file *f, const char *path, size_t tensor_max)
{
    *f = (tensor_file){.fd = -1, .npy = tensor_file_is_npy(path)};
    if (!tensor_file_is_named(path)) {
        print_error("'%s': the name must end in .safetensors or .npy", path);
        return EXIT_USAGE;
    }
    int status = take_path(f, path);
    if (status != -1)
        return status;
    uint64_t room = (uint64_t)ENTRY_BYTES * (tensor_max + 1);
    f->header_bytes = f->npy ? NPY_HEADER_BYTES : 8 + (room + 7) / 8 * 8;
    if (f->header_bytes > HEADER_BYTES_MAX) {
        print_error("'%s': more tensors than one .safetensors file may hold", path);
        return EXIT_USAGE;
    }
    if (!make_temp(f))
        return fail(f);
    f->header_used = 8 + strlen(HEADER_START);
    if (!f->npy && !write_at(f, HEADER_START, strlen(HEADER_START), 8))
        return fail(f);
    return -1;
}

int tensor_file_begin(tensor_file *f, const char *name, tensor_type type, const uint64_t *inner, size_t inner_count)
{
    snprintf(f->name, sizeof f->name, "%s", name);
    f->type = type;
    f->inner_count = inner_count;
    for (size_t i = 0; i < inner_count; i++)
        f->inner[i] = inner[i];
    f->start = f->data_bytes;
    return -1;
}

int tensor_file_write(tensor_file *f, const void *elements, size_t count)
{
    size_t bytes = count * ELEMENT_BYTES;
    if (!write_at(f, elements, bytes, f->header_bytes + f->data_bytes))
        return fail(f);
    f->data_bytes += bytes;
    uint64_t end = f->header_bytes + f->data_bytes;
    if (end - f->dropped >= DROP_BYTES) {
        if (fdatasync(f->fd) != 0)
            return fail(f);
        (void)posix_fadvise(f->fd, (off_t)f->dropped, (off_t)(end - f->dropped), POSIX_FADV_DONTNEED);
        f->dropped = end;
    }
    return -1;
}

/* Rows of the tensor at hand. */
static uint64_t count_rows(const tensor_file *f)
{
    uint64_t row_bytes = ELEMENT_BYTES;
    for (size_t i = 0; i < f->inner_count; i++)
        row_bytes *= f->inner[i];
    return row_bytes > 0 ? (f->data_bytes - f->start) / row_bytes : 0;
}

/* ", 5, 768" of the inner dimensions. */
static void inner_text(const tensor_file *f, char ret_text[64])
{
    size_t at = 0;
    ret_text[0] = '\0';
    for (size_t i = 0; i < f->inner_count; i++)
        at += (size_t)snprintf(ret_text + at, 64 - at, ",%llu", (unsigned long long)f->inner[i]);
}

static bool write_npy_header(const tensor_file *f)
{
    char inner[64], header[NPY_HEADER_BYTES + 1];
    inner_text(f, inner);
    memcpy(header, "\x93NUMPY\1", 8); /* with the NUL: version 1.0 */
    header[8] = NPY_HEADER_BYTES - 10;
    header[9] = 0;
    /* A tuple of one has a comma behind it. */
    int len = snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%llu%s), }",
                       f->type == TENSOR_F32 ? "<f4" : "<i4", (unsigned long long)count_rows(f),
                       f->inner_count > 0 ? inner : ",");
    memset(header + 10 + len, ' ', sizeof header - 10 - (size_t)len);
    header[NPY_HEADER_BYTES - 1] = '\n';
    return write_at(f, header, NPY_HEADER_BYTES, 0);
}

int tensor_file_end(tensor_file *f)
{
    if (f->npy)
        return write_npy_header(f) ? -1 : fail(f);
    char inner[64], entry[ENTRY_BYTES + 1];
    inner_text(f, inner);
    int len =
        snprintf(entry, sizeof entry, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu%s],\"data_offsets\":[%llu,%llu]}",
                 f->name, f->type == TENSOR_F32 ? "F32" : "I32", (unsigned long long)count_rows(f), inner,
                 (unsigned long long)f->start, (unsigned long long)f->data_bytes);
    if (!write_at(f, entry, (size_t)len, f->header_used))
        return fail(f);
    f->header_used += (uint64_t)len;
    return -1;
}

/* Closes the JSON object and fills what is left of its room with spaces. */
static bool write_safetensors_end(const tensor_file *f)
{
    static const char spaces[] = "                                                                ";
    unsigned char     len[8];
    for (size_t i = 0; i < 8; i++)
        len[i] = (unsigned char)((f->header_bytes - 8) >> (8 * i));
    bool ok = write_at(f, len, sizeof len, 0) && write_at(f, "}", 1, f->header_used);
    for (uint64_t at = f->header_used + 1; ok && at < f->header_bytes;) {
        uint64_t left = f->header_bytes - at;
        size_t   part = left < sizeof spaces - 1 ? (size_t)left : sizeof spaces - 1;
        ok = write_at(f, spaces, part, at);
        at += part;
    }
    return ok;
}

/* Makes the new name last. */
static bool sync_dir(const tensor_file *f)
{
    char        dir[TENSOR_PATH_MAX];
    const char *slash = strrchr(f->path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - f->path) + 1 : 1, slash != NULL ? f->path : ".");
    int  fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

int tensor_file_finish(tensor_file *f)
{
    if (!f->npy && !write_safetensors_end(f))
        return fail(f);
    if (fsync(f->fd) != 0)
        return fail(f);
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (rename(f->temp, f->path) != 0)
        return fail(f);
    f->temp[0] = '\0';
    bool closed = close(f->fd) == 0;
    if (closed && sync_dir(f))
        return -1;
    print_error("write '%s': %s", f->path, strerror(errno));
    return EXIT_IO;
}

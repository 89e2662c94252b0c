/* Atomic output, past the page cache.
 *
 * Direct writes of whole buffers keep the page cache out of it (it would be memory that nobody counted, in our cgroup);
 * the ragged end of a file is written padded and cut off. Where the file system refuses O_DIRECT, what was written is
 * flushed and dropped every 32 MiB.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include "output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DROP_BYTES ((uint64_t)32 << 20)

/* -- the directory -- */

nw_code nw_output_fail(nw_output *out, nw_error *err, nw_code code, int os_errno, const char *what, const char *name)
{
    out->failed = true;
    return nw_fail(err, code, os_errno, "'%s': %s%s%s", out->dir, what, name[0] != '\0' ? " " : "", name);
}

/* Refuses a target that holds something. An empty directory is replaced by rename(2). */
static nw_code check_target(nw_output *o, nw_error *err)
{
    struct stat st;
    if (lstat(o->dir, &st) != 0)
        return errno == ENOENT ? NW_OK : nw_output_fail(o, err, NW_E_IO, errno, "cannot be looked at", "");
    if (!S_ISDIR(st.st_mode))
        return nw_output_fail(o, err, NW_E_IO, EEXIST, "is no directory", "");
    DIR *d = opendir(o->dir);
    if (d == NULL)
        return nw_output_fail(o, err, NW_E_IO, errno, "cannot be looked at", "");
    bool           empty = true;
    struct dirent *entry;
    while (empty && (entry = readdir(d)) != NULL)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(d);
    return empty ? NW_OK : nw_output_fail(o, err, NW_E_IO, ENOTEMPTY, "exists", "");
}

/* mkdtemp would make a directory that only its owner may read; this one becomes the user's model. */
static nw_code make_temp(nw_output *o, nw_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    for (int attempt = 0; attempt < 100; attempt++) {
        unsigned char random[6];
        char          suffix[7] = {0};
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            return nw_output_fail(o, err, NW_E_IO, errno, "no random name for a temporary directory", "");
        for (size_t i = 0; i < sizeof random; i++)
            suffix[i] = letters[random[i] & 31];
        char path[sizeof o->temp + 16];
        int  len = snprintf(path, sizeof path, "%s.tmp-%s", o->dir, suffix);
        if (len < 0 || (size_t)len >= sizeof o->temp)
            return nw_output_fail(o, err, NW_E_IO, ENAMETOOLONG, "cannot be made", "");
        if (mkdir(path, 0777) == 0) {
            memcpy(o->temp, path, (size_t)len + 1);
            o->temp_fd = open(o->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            return o->temp_fd >= 0 ? NW_OK : nw_output_fail(o, err, NW_E_IO, errno, "cannot be made", "");
        }
        if (errno != EEXIST)
            return nw_output_fail(o, err, NW_E_IO, errno, "a directory cannot be made beside it", "");
    }
    return nw_output_fail(o, err, NW_E_IO, EEXIST, "a directory cannot be made beside it", "");
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

static void remove_temp(nw_output *o)
{
    DIR *d = o->temp[0] != '\0' ? opendir(o->temp) : NULL;
    if (d != NULL) {
        struct dirent *entry;
        while ((entry = readdir(d)) != NULL)
            unlinkat(dirfd(d), entry->d_name, 0); /* "." and ".." are refused */
        closedir(d);
    }
    if (o->temp[0] != '\0')
        rmdir(o->temp);
    o->temp[0] = '\0';
}

/* -- one file through the buffer -- */

/* Writes the buffer's first `bytes`, all of them. */
static nw_code buffer_write(nw_output *o, size_t bytes, nw_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(o->fd, o->buf + done, bytes - done, (off_t)(o->written + done));
        if (put > 0) {
            done += (size_t)put;
            /* After a short write the rest may be unaligned. */
            if (done < bytes && done % NW_OUTPUT_BLOCK != 0 && o->direct)
                done = (size_t)nw_round_down(done, NW_OUTPUT_BLOCK);
        } else if (put < 0 && errno == EINVAL && o->direct) {
            o->direct = false;
            int flags = fcntl(o->fd, F_GETFL);
            if (flags < 0 || fcntl(o->fd, F_SETFL, flags & ~O_DIRECT) != 0)
                return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
        } else if (put == 0 || errno != EINTR) {
            return nw_output_fail(o, err, NW_E_IO, put == 0 ? ENOSPC : errno, "write", "");
        }
    }
    return NW_OK;
}

/* Without O_DIRECT, gets what was written out of the page cache. */
static nw_code drop_written(nw_output *o, nw_error *err)
{
    if (o->direct)
        return NW_OK;
    if (fdatasync(o->fd) != 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    (void)posix_fadvise(o->fd, (off_t)o->dropped, (off_t)(o->written - o->dropped), POSIX_FADV_DONTNEED);
    o->dropped = o->written;
    return NW_OK;
}

nw_code nw_output_put(nw_output *out, const void *bytes, size_t len, nw_error *err)
{
    nw_output           *o = out;
    const unsigned char *p = bytes;
    while (len > 0) {
        size_t part = nw_min_size(len, NW_OUTPUT_BUFFER_BYTES - o->buffered);
        memcpy(o->buf + o->buffered, p, part);
        o->buffered += part;
        p += part;
        len -= part;
        if (o->buffered < NW_OUTPUT_BUFFER_BYTES)
            return NW_OK;
        nw_code rc = buffer_write(o, NW_OUTPUT_BUFFER_BYTES, err);
        if (rc != NW_OK)
            return rc;
        o->written += NW_OUTPUT_BUFFER_BYTES;
        o->buffered = 0;
        if (o->written - o->dropped >= DROP_BYTES && (rc = drop_written(o, err)) != NW_OK)
            return rc;
    }
    return NW_OK;
}

/* Opens the file at hand for writing from its start, directly if the file system can. */
static nw_code file_open(nw_output *o, const char *name, int flags, const char *what, nw_error *err)
{
    NW_CHECK(o->fd < 0);
    flags |= O_WRONLY | O_CLOEXEC | O_NOFOLLOW;
    o->direct = true;
    o->fd = openat(o->temp_fd, name, flags | O_DIRECT, 0666);
    if (o->fd < 0 && errno == EINVAL) {
        o->direct = false;
        /* Some file systems make the file before they refuse the flag. */
        if ((flags & O_CREAT) != 0)
            (void)unlinkat(o->temp_fd, name, 0);
        o->fd = openat(o->temp_fd, name, flags, 0666);
    }
    if (o->fd < 0)
        return nw_output_fail(o, err, NW_E_IO, errno, what, name);
    o->written = o->dropped = 0;
    o->buffered = 0;
    return NW_OK;
}

nw_code nw_output_begin(nw_output *out, const char *name, nw_error *err)
{
    return file_open(out, name, O_CREAT | O_EXCL, "cannot make", err);
}

static nw_code file_close(nw_output *o, nw_error *err)
{
    nw_code rc = drop_written(o, err);
    int     closed = close(o->fd);
    o->fd = -1;
    if (rc == NW_OK && closed != 0)
        rc = nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    return rc;
}

/* Writes the rest, cuts the padding off, and waits for the disk. */
nw_code nw_output_end(nw_output *out, nw_error *err)
{
    nw_output *o = out;
    uint64_t   size = o->written + o->buffered;
    size_t     padded = (size_t)nw_round_up(o->buffered, NW_OUTPUT_BLOCK);
    memset(o->buf + o->buffered, 0, padded - o->buffered);
    nw_code rc = buffer_write(o, padded, err);
    if (rc != NW_OK)
        return rc;
    o->written += padded;
    if (ftruncate(o->fd, (off_t)size) != 0 || fsync(o->fd) != 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    return file_close(o, err);
}

nw_code nw_output_rewrite(nw_output *out, const char *name, const void *block, nw_error *err)
{
    nw_output *o = out;
    nw_code    rc = file_open(o, name, 0, "cannot write to", err);
    if (rc != NW_OK)
        return rc;
    memcpy(o->buf, block, NW_OUTPUT_BLOCK);
    rc = buffer_write(o, NW_OUTPUT_BLOCK, err);
    if (rc != NW_OK)
        return rc;
    if (fsync(o->fd) != 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    o->written = NW_OUTPUT_BLOCK;
    return file_close(o, err);
}

nw_code nw_output_rename(nw_output *out, const char *from, const char *to, nw_error *err)
{
    if (renameat(out->temp_fd, from, out->temp_fd, to) != 0)
        return nw_output_fail(out, err, NW_E_IO, errno, "cannot rename", from);
    return NW_OK;
}

static bool is_plain_name(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > NAME_MAX || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '/' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    }
    return true;
}

nw_code nw_output_small(nw_output *out, const char *name, const void *bytes, size_t len, nw_error *err)
{
    nw_output *o = out;
    NW_CHECK(!o->failed);
    if (!is_plain_name(name))
        return nw_output_fail(o, err, NW_E_ARG, 0, "this is not a plain file name:", name);
    int fd = openat(o->temp_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "cannot make", name);
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
    return os_errno == 0 ? NW_OK : nw_output_fail(o, err, NW_E_IO, os_errno, "write", name);
}

/* The directory that DST stands in. */
static void parent_of(const char *dir, char ret_parent[PATH_MAX])
{
    const char *slash = strrchr(dir, '/');
    size_t      len = slash == NULL ? 0 : slash == dir ? 1 : (size_t)(slash - dir);
    memcpy(ret_parent, len > 0 ? dir : ".", len > 0 ? len : 1);
    ret_parent[len > 0 ? len : 1] = '\0';
}

nw_code nw_output_open(nw_output *out, nw_memory *mem, const char *dir, nw_error *err)
{
    *out = (nw_output){.mem = mem, .fd = -1, .temp_fd = -1};
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    if (len == 0 || len >= sizeof out->dir) {
        out->failed = true;
        return nw_fail(err, NW_E_ARG, 0, "'%.200s' cannot be the name of a directory", dir);
    }
    memcpy(out->dir, dir, len);
    nw_code rc = check_target(out, err);
    if (rc != NW_OK)
        return rc;
    out->buf = nw_memory_map(mem, NW_TAG_IO, NW_OUTPUT_BUFFER_BYTES, false);
    if (out->buf == NULL) {
        out->failed = true;
        return nw_memory_fail(mem, err, NW_OUTPUT_BUFFER_BYTES, out->dir);
    }
    return make_temp(out, err);
}

nw_code nw_output_room(nw_output *out, uint64_t bytes, nw_error *err)
{
    struct statvfs fs;
    if (fstatvfs(out->temp_fd, &fs) == 0 && fs.f_bavail < bytes / fs.f_frsize) {
        out->failed = true;
        return nw_fail(err, NW_E_IO, ENOSPC, "'%s': needs %llu bytes where %llu are free", out->dir,
                       (unsigned long long)bytes, (unsigned long long)fs.f_bavail * fs.f_frsize);
    }
    return NW_OK;
}

nw_code nw_output_commit(nw_output *out, nw_error *err)
{
    nw_output *o = out;
    NW_CHECK(!o->failed && o->fd < 0);
    if (fsync(o->temp_fd) != 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    if (rename(o->temp, o->dir) != 0)
        return nw_output_fail(o, err, NW_E_IO, errno, "cannot be put in its place", "");
    o->temp[0] = '\0';
    char parent[PATH_MAX];
    parent_of(o->dir, parent);
    if (!sync_dir(parent))
        return nw_output_fail(o, err, NW_E_IO, errno, "write", "");
    return NW_OK;
}

void nw_output_close(nw_output *out)
{
    if (out->mem == NULL)
        return;
    if (out->fd >= 0)
        close(out->fd);
    remove_temp(out);
    if (out->temp_fd >= 0)
        close(out->temp_fd);
    if (out->buf != NULL)
        nw_memory_unmap(out->mem, NW_TAG_IO, out->buf, NW_OUTPUT_BUFFER_BYTES);
    *out = (nw_output){.fd = -1, .temp_fd = -1};
}

/* -- text -- */

void nw_text_put(nw_text *text, const char *bytes, size_t len)
{
    text->bytes += len;
    if (text->hash != NULL)
        XXH3_64bits_update(text->hash, bytes, len);
    if (text->out != NULL && text->rc == NW_OK)
        text->rc = nw_output_put(text->out, bytes, len, text->err);
}

void nw_text_say(nw_text *text, const char *words)
{
    nw_text_put(text, words, strlen(words));
}

void nw_text_u64(nw_text *text, uint64_t value)
{
    char digits[24];
    nw_text_put(text, digits, (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value));
}

void nw_text_hex(nw_text *text, uint64_t value)
{
    char digits[24];
    nw_text_put(text, digits, (size_t)snprintf(digits, sizeof digits, "%016llx", (unsigned long long)value));
}

/* Only two characters need an escape. */
void nw_text_string(nw_text *text, const char *string)
{
    nw_text_say(text, "\"");
    for (const char *p = string; *p != '\0';) {
        size_t plain = strcspn(p, "\"\\");
        nw_text_put(text, p, plain);
        p += plain;
        if (*p != '\0') {
            nw_text_say(text, "\\");
            nw_text_put(text, p++, 1);
        }
    }
    nw_text_say(text, "\"");
}

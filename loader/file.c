/* Files of a model: what may be opened, how it must be read, and whether it is still the same.
 *
 * Only regular files are read. They are opened without waiting (a FIFO would hang, a device may do anything) and
 * switched to O_DIRECT once they are known to be good, so that there is one descriptor and no race between check and
 * use. Direct reading is off where it would be a fiction: tmpfs and ramfs accept the flag, but their files are memory
 * anyway.
 */
#define _GNU_SOURCE
#include "loader/file.h"

#include "base/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define ALIGN_MIN 512u
#define ALIGN_UNKNOWN 4096u /* nearly every device takes it; checked by a read where the kernel does not say */
#define BUFFER_BYTES ((size_t)256 << 10)
#define LFS_BYTES_MAX 1024u /* git-lfs: a pointer file is smaller than this */
#define LFS_PREFIX "version https://git-lfs"
#define TMPFS_MAGIC_NR 0x01021994u
#define RAMFS_MAGIC_NR 0x858458f6u
#define HUGE_MAGIC_NR 0x958458f6u

/* The kernel's struct statx (include/uapi/linux/stat.h); glibc 2.36 has none of the two fields for direct I/O. */
typedef struct {
    uint32_t mask;
    uint32_t before[37]; /* to offset 152 */
    uint32_t dio_mem_align, dio_offset_align;
    uint64_t after[12];
} kernel_statx;
static_assert(offsetof(kernel_statx, dio_mem_align) == 0x98, "as in the kernel");
static_assert(sizeof(kernel_statx) == 0x100, "as in the kernel");
#define STATX_DIOALIGN_BIT 0x2000u

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)((uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
}

static const char *kind_name(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a pipe";
    if (S_ISSOCK(mode))
        return "a socket";
    if (S_ISCHR(mode) || S_ISBLK(mode))
        return "a device";
    return "not a regular file";
}

static bool ends_in_incomplete(const char *path)
{
    static const char suffix[] = ".incomplete";
    size_t            len = strlen(path);
    return len >= sizeof suffix - 1 && strcmp(path + len - (sizeof suffix - 1), suffix) == 0;
}

/* A download under way, or given up: hubs keep it under this name, and a snapshot's link may already point to it. */
static bool is_unfinished(const char *path)
{
    char resolved[PATH_MAX];
    return ends_in_incomplete(path) || (realpath(path, resolved) != NULL && ends_in_incomplete(resolved));
}

/* A checkout without its large files has small text files in their place. Larger files are not looked at: a buffered
 * read would pull read-ahead into the page cache. */
static bool is_lfs_pointer(int fd, uint64_t size)
{
    char head[sizeof LFS_PREFIX - 1];
    if (size > LFS_BYTES_MAX || pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head)
        return false;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return memcmp(head, LFS_PREFIX, sizeof head) == 0;
}

/* Opens and checks what the file is; the descriptor is still a buffered one. */
static nw_code open_regular(const char *path, int *ret_fd, struct stat *ret_stat, nw_error *err)
{
    /* Looked at before it is opened, because opening a device can have effects. It is the second look that counts. */
    if (stat(path, ret_stat) != 0)
        return nw_fail(err, NW_E_IO, errno, "cannot open '%s'", path);
    if (!S_ISREG(ret_stat->st_mode))
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' is %s, not a file", path, kind_name(ret_stat->st_mode));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return nw_fail(err, NW_E_IO, errno, "cannot open '%s'", path);

    nw_code rc = NW_OK;
    if (fstat(fd, ret_stat) != 0)
        rc = nw_fail(err, NW_E_IO, errno, "cannot look at '%s'", path);
    else if (!S_ISREG(ret_stat->st_mode))
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' is %s, not a file", path, kind_name(ret_stat->st_mode));
    else if (is_unfinished(path))
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' is an unfinished download (.incomplete)", path);
    else if (ret_stat->st_size <= 0)
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' is empty", path);
    else if (is_lfs_pointer(fd, (uint64_t)ret_stat->st_size))
        rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' is a git-lfs pointer, not the file itself: run 'git lfs pull'", path);
    if (rc != NW_OK) {
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return NW_OK;
}

bool nw_file_in_memory(int fd)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return false;
    uint32_t magic = (uint32_t)fs.f_type;
    return magic == TMPFS_MAGIC_NR || magic == RAMFS_MAGIC_NR || magic == HUGE_MAGIC_NR;
}

/* What direct reads of this file must be multiples of; 0: it has none, or more than our buffers are aligned to.
 * *ret_guessed: the kernel (before 6.1) or the file system does not say. */
static uint32_t statx_align(int fd, bool *ret_guessed)
{
    kernel_statx sx = {0};
    long         rc = syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN_BIT, &sx);
    *ret_guessed = rc != 0 || (sx.mask & STATX_DIOALIGN_BIT) == 0;
    if (*ret_guessed)
        return ALIGN_UNKNOWN;
    uint32_t align = sx.dio_mem_align > sx.dio_offset_align ? sx.dio_mem_align : sx.dio_offset_align;
    if (sx.dio_offset_align == 0 || (align & (align - 1)) != 0 || align > NW_ARENA_ALIGN_MAX)
        return 0;
    return align < ALIGN_MIN ? ALIGN_MIN : align;
}

/* Where the alignment is a guess, one read shows whether it will do. */
static bool direct_works(int fd)
{
    alignas(ALIGN_UNKNOWN) unsigned char probe[ALIGN_UNKNOWN];
    return pread(fd, probe, sizeof probe, 0) >= 0 || errno != EINVAL;
}

/* Switches the descriptor to direct reading if it can be had, else prepares it for buffered reads. */
nw_code nw_file_set_mode(nw_file *file, const char *path, nw_error *err)
{
    bool     guessed = false;
    uint32_t align = nw_file_in_memory(file->fd) ? 0 : statx_align(file->fd, &guessed);
    /* O_NONBLOCK goes in any case: io_uring takes it for "fail rather than wait for the disk". */
    if (align > 0 && fcntl(file->fd, F_SETFL, O_DIRECT) == 0) {
        if (!guessed || direct_works(file->fd)) {
            file->direct = true;
            file->align = align;
            return NW_OK;
        }
    }
    if (fcntl(file->fd, F_SETFL, 0) != 0)
        return nw_fail(err, NW_E_IO, errno, "cannot set up '%s' for reading", path);
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM); /* no read-ahead; refused, it costs page cache only */
    file->direct = false;
    file->align = ALIGN_UNKNOWN;
    return NW_OK;
}

nw_code nw_file_open(const char *path, nw_file *ret_file, nw_error *err)
{
    int         fd = -1;
    struct stat st;
    nw_code     rc = open_regular(path, &fd, &st, err);
    if (rc != NW_OK)
        return rc;
    nw_file file = {
        .fd = fd,
        .size = (uint64_t)st.st_size,
        .device = (uint64_t)st.st_dev,
        .inode = (uint64_t)st.st_ino,
        .mtime_ns = mtime_ns(&st),
    };
    rc = nw_file_set_mode(&file, path, err);
    if (rc != NW_OK) {
        close(fd);
        return rc;
    }
    *ret_file = file;
    return NW_OK;
}

void nw_file_close(nw_file *file)
{
    if (file->fd >= 0)
        close(file->fd); /* read only: nothing can be lost */
    file->fd = -1;
}

nw_code nw_file_unchanged(const nw_file *file, const char *path, nw_error *err)
{
    NW_CHECK(file->fd >= 0);
    struct stat st;
    if (fstat(file->fd, &st) != 0)
        return nw_fail(err, NW_E_IO, errno, "cannot look at '%s'", path);
    if ((uint64_t)st.st_size < file->size)
        return nw_fail(err, NW_E_IO, 0, "'%s' was cut short while it was in use: %lld of %llu bytes are left", path,
                       (long long)st.st_size, (unsigned long long)file->size);
    if ((uint64_t)st.st_size != file->size || mtime_ns(&st) != file->mtime_ns)
        return nw_fail(err, NW_E_IO, 0, "'%s' was changed while it was in use", path);
    if (stat(path, &st) != 0)
        return nw_fail(err, NW_E_IO, errno, "'%s' was removed while it was in use", path);
    if ((uint64_t)st.st_dev != file->device || (uint64_t)st.st_ino != file->inode)
        return nw_fail(err, NW_E_IO, 0, "'%s' was replaced while it was in use", path);
    return NW_OK;
}

nw_extent nw_file_extent(const nw_file *file, uint64_t offset, uint64_t bytes)
{
    NW_CHECK(file->align >= 1 && (file->align & (file->align - 1)) == 0);
    NW_CHECK(bytes >= 1);
    NW_CHECK(offset < file->size && bytes <= file->size - offset);
    uint64_t start = nw_round_down(offset, file->align);
    uint64_t end = nw_round_up(offset + bytes, file->align);
    return (nw_extent){
        .offset = start,
        .bytes = (size_t)(end - start),
        .bytes_needed = (size_t)(offset + bytes - start),
        .skip = (size_t)(offset - start),
        .bytes_counted = (size_t)(nw_min_u64(end, file->size) - start),
    };
}

void nw_file_drop(const nw_file *file, uint64_t offset, uint64_t bytes)
{
    NW_CHECK(file->fd >= 0);
    if (file->direct || bytes == 0) /* 0 bytes would mean "to the end" to the kernel */
        return;
    /* Only whole pages are dropped; one shared with a neighbour that is still needed costs a second read, no more. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = nw_round_down(offset, page);
    posix_fadvise(file->fd, (off_t)start, (off_t)(nw_round_up(offset + bytes, page) - start), POSIX_FADV_DONTNEED);
}

/* One aligned read of at most the buffer, copied out; *ret_taken says how many of `bytes` it was. */
static nw_code read_piece(nw_io *io, const nw_file *file, const char *path, uint64_t offset, unsigned char *to,
                          size_t bytes, unsigned char *buffer, size_t buffer_bytes, size_t *ret_taken,
                          uint64_t *read_bytes, nw_error *err)
{
    size_t    room = buffer_bytes - (size_t)(offset & (file->align - 1));
    size_t    take = nw_min_size(bytes, room);
    nw_extent extent = nw_file_extent(file, offset, take);
    NW_CHECK(extent.bytes <= buffer_bytes);
    nw_io_op op = {
        .kind = NW_IO_READ,
        .fd = file->fd,
        .offset = extent.offset,
        .buf = buffer,
        .bytes = extent.bytes,
        .bytes_needed = extent.bytes_needed,
    };
    nw_code rc = nw_io_run(io, &op, path, err);
    if (rc != NW_OK)
        return rc;
    memcpy(to, buffer + extent.skip, take);
    nw_file_drop(file, extent.offset, extent.bytes);
    if (read_bytes != NULL)
        *read_bytes += extent.bytes_counted;
    *ret_taken = take;
    return NW_OK;
}

nw_code nw_file_read(nw_memory *mem, nw_io *io, const nw_file *file, const char *path, uint64_t offset, void *ret_bytes,
                     size_t bytes, uint64_t *read_bytes, nw_error *err)
{
    NW_CHECK(file->fd >= 0);
    if (bytes == 0)
        return NW_OK;
    if (offset >= file->size || bytes > file->size - offset) {
        nw_code rc = nw_fail(err, NW_E_FORMAT, 0, "'%s' ends before what it should hold: %zu bytes at %llu, of %llu",
                             path, bytes, (unsigned long long)offset, (unsigned long long)file->size);
        if (err != NULL)
            err->offset = offset;
        return rc;
    }
    size_t         buffer_bytes = nw_min_size(nw_file_extent(file, offset, bytes).bytes, BUFFER_BYTES);
    unsigned char *buffer = nw_memory_map(mem, NW_TAG_IO, buffer_bytes, false);
    if (buffer == NULL)
        return nw_memory_fail(mem, err, buffer_bytes, path);
    nw_code rc = NW_OK;
    size_t  taken = 0;
    for (size_t done = 0; done < bytes && rc == NW_OK; done += taken)
        rc = read_piece(io, file, path, offset + done, (unsigned char *)ret_bytes + done, bytes - done, buffer,
                        buffer_bytes, &taken, read_bytes, err);
    nw_memory_unmap(mem, NW_TAG_IO, buffer, buffer_bytes);
    return rc;
}

nw_code nw_file_read_whole(nw_memory *mem, nw_tag tag, nw_io *io, const char *path, size_t max, char **ret_data,
                           size_t *ret_bytes, uint64_t *read_bytes, nw_error *err)
{
    nw_file file;
    nw_code rc = nw_file_open(path, &file, err);
    if (rc != NW_OK)
        return rc;
    if (file.size > max || file.size >= SIZE_MAX) {
        nw_file_close(&file);
        return nw_fail(err, NW_E_FORMAT, 0, "'%s' has %llu bytes, more than the %zu allowed", path,
                       (unsigned long long)file.size, max);
    }
    size_t bytes = (size_t)file.size;
    char  *data = nw_memory_alloc(mem, tag, 1, bytes + 1); /* zeroed, so the NUL is there */
    if (data == NULL)
        rc = nw_memory_fail(mem, err, bytes + 1, path);
    else
        rc = nw_file_read(mem, io, &file, path, 0, data, bytes, read_bytes, err);
    nw_file_close(&file);
    if (rc != NW_OK) {
        nw_memory_free(mem, tag, data, 1, bytes + 1);
        return rc;
    }
    *ret_data = data;
    *ret_bytes = bytes;
    return NW_OK;
}

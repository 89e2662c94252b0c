/* A scratch file: made without a name where the file system can, else unlinked at once. */
#define _GNU_SOURCE
#include "loader/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int open_unnamed(const char *dir)
{
    char path[4096];
    int  fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd;
    int len = snprintf(path, sizeof path, "%s/.narrows-scratch-XXXXXX", dir);
    if (len < 0 || (size_t)len >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static nw_code open_in(const char *dir, uint64_t bytes, nw_file *ret_file, nw_error *err)
{
    struct statvfs fs;
    nw_file        file = {.fd = open_unnamed(dir), .size = bytes};
    if (file.fd < 0)
        return nw_fail(err, NW_E_IO, errno, "scratch file in '%s'", dir);
    nw_code rc = NW_OK;
    if (nw_file_in_memory(file.fd))
        rc = nw_fail(err, NW_E_IO, 0, "scratch file in '%s': what is there is in memory", dir);
    else if (fstatvfs(file.fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        rc = nw_fail(err, NW_E_IO, ENOSPC, "scratch file of %llu bytes in '%s'", (unsigned long long)bytes, dir);
    else if (ftruncate(file.fd, (off_t)bytes) != 0)
        rc = nw_fail(err, NW_E_IO, errno, "scratch file of %llu bytes in '%s'", (unsigned long long)bytes, dir);
    if (rc == NW_OK)
        rc = nw_file_set_mode(&file, dir, err);
    if (rc == NW_OK)
        *ret_file = file;
    else
        close(file.fd);
    return rc;
}

nw_code nw_file_scratch(const char *dir, uint64_t bytes, nw_file *ret_file, char ret_dir[256], nw_error *err)
{
    const char *dirs[] = {getenv("TMPDIR"), "/var/tmp", "."};
    nw_code     rc = NW_E_IO;
    size_t      count = dir != NULL ? 1 : sizeof dirs / sizeof *dirs;
    if (dir != NULL && dir[0] == '\0')
        return nw_fail(err, NW_E_IO, ENOENT, "scratch file in ''");
    if (dir != NULL)
        dirs[0] = dir;
    for (size_t i = 0; i < count && rc != NW_OK; i++) {
        if (dirs[i] == NULL || dirs[i][0] == '\0')
            continue;
        rc = open_in(dirs[i], bytes, ret_file, err);
        if (rc == NW_OK)
            snprintf(ret_dir, 256, "%s", dirs[i]);
    }
    return rc;
}

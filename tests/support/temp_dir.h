/* A directory for the files of one test, under $TMPDIR or /var/tmp (a real disk, where /tmp may be memory). */
#ifndef NW_TEST_TEMP_DIR_H
#define NW_TEST_TEMP_DIR_H

#include "base/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char path[512];
} temp_dir;

typedef struct {
    char text[1024];
} temp_path;

static inline temp_dir temp_dir_make(void)
{
    temp_dir    dir;
    const char *root = getenv("TMPDIR");
    if (root == NULL || *root == '\0')
        root = "/var/tmp";
    int len = snprintf(dir.path, sizeof dir.path, "%s/narrows-test-XXXXXX", root);
    NW_CHECK(len > 0 && (size_t)len < sizeof dir.path);
    NW_CHECK(mkdtemp(dir.path) != NULL);
    return dir;
}

/* "<dir>/<name>" */
static inline temp_path temp_dir_path(const temp_dir *dir, const char *name)
{
    temp_path path;
    int       len = snprintf(path.text, sizeof path.text, "%s/%s", dir->path, name);
    NW_CHECK(len > 0 && (size_t)len < sizeof path.text);
    return path;
}

/* Makes, or replaces in place, a file with these bytes. */
static inline temp_path temp_dir_write(const temp_dir *dir, const char *name, const void *bytes, size_t count)
{
    temp_path path = temp_dir_path(dir, name);
    FILE     *file = fopen(path.text, "wb");
    NW_CHECK(file != NULL);
    NW_CHECK(fwrite(bytes, 1, count, file) == count);
    NW_CHECK(fclose(file) == 0);
    return path;
}

static inline void temp_dir_empty(const char *path)
{
    DIR *listing = opendir(path);
    NW_CHECK(listing != NULL);
    const struct dirent *entry;
    while ((entry = readdir(listing)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char        child[1024];
        struct stat st;
        int         len = snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        NW_CHECK(len > 0 && (size_t)len < sizeof child);
        NW_CHECK(lstat(child, &st) == 0);
        if (S_ISDIR(st.st_mode)) {
            temp_dir_empty(child);
            NW_CHECK(rmdir(child) == 0);
        } else {
            NW_CHECK(unlink(child) == 0);
        }
    }
    closedir(listing);
}

/* How many entries a directory has. */
static inline size_t temp_dir_count(const char *path)
{
    size_t count = 0;
    DIR   *listing = opendir(path);
    NW_CHECK(listing != NULL);
    const struct dirent *entry;
    while ((entry = readdir(listing)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(listing);
    return count;
}

/* Removes it and all that is in it. */
static inline void temp_dir_remove(const temp_dir *dir)
{
    temp_dir_empty(dir->path);
    NW_CHECK(rmdir(dir->path) == 0);
}

#endif

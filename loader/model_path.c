/* Finding a model by name in the local Hugging Face cache. Never touches the network.
 *
 * Source: huggingface_hub/constants.py (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, ~/.cache) and file_download.py
 * (repo_folder_name). The cache is a directory like any other, so what refs/main says is checked before it becomes part
 * of a path.
 */
#include "loader/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
#define HASH_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#define HASH_LEN_MAX 64

/* True for "owner/name", with the owner's length. "./x" and "../x" are paths. */
static bool is_model_name(const char *name, size_t *ret_owner_len)
{
    size_t      owner_len = strspn(name, NAME_CHARACTERS);
    const char *rest = name + owner_len;
    if (owner_len == 0 || rest[0] != '/')
        return false;
    rest++;
    if (rest[0] == '\0' || rest[strspn(rest, NAME_CHARACTERS)] != '\0')
        return false;
    bool dots = (owner_len == 1 && name[0] == '.') || (owner_len == 2 && name[0] == '.' && name[1] == '.');
    if (dots || strcmp(rest, ".") == 0 || strcmp(rest, "..") == 0)
        return false;
    *ret_owner_len = owner_len;
    return true;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The cache's directory of repositories; false if the environment names none, or one that is too long. */
static bool cache_dir(char *ret_dir, size_t cap)
{
    const char *hub = environment("HF_HUB_CACHE");
    const char *hf = environment("HF_HOME");
    const char *xdg = environment("XDG_CACHE_HOME");
    const char *home = environment("HOME");
    int         len = hub != NULL    ? snprintf(ret_dir, cap, "%s", hub)
                      : hf != NULL   ? snprintf(ret_dir, cap, "%s/hub", hf)
                      : xdg != NULL  ? snprintf(ret_dir, cap, "%s/huggingface/hub", xdg)
                      : home != NULL ? snprintf(ret_dir, cap, "%s/.cache/huggingface/hub", home)
                                     : -1;
    return len > 0 && (size_t)len < cap;
}

/* Reads a revision from refs/main: one word that is safe in a path. */
static bool read_hash(const char *path, char ret_hash[HASH_LEN_MAX + 1])
{
    char        text[HASH_LEN_MAX + 16];
    struct stat st;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not stop us */
    if (fd < 0)
        return false;
    ssize_t got = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof text - 1) : -1;
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    size_t len = strspn(text, HASH_CHARACTERS);
    if (len == 0 || len > HASH_LEN_MAX || len + strspn(text + len, " \r\n\t") != (size_t)got)
        return false;
    memcpy(ret_hash, text, len);
    ret_hash[len] = '\0';
    return true;
}

/* The snapshot of "owner/name" that refs/main names. */
static bool find_snapshot(const char *name, size_t owner_len, char *ret_path, size_t cap)
{
    char        hub[PATH_MAX], path[PATH_MAX], hash[HASH_LEN_MAX + 1];
    const char *model = name + owner_len + 1;
    struct stat st;
    if (!cache_dir(hub, sizeof hub))
        return false;
    int len = snprintf(path, sizeof path, "%s/models--%.*s--%s/refs/main", hub, (int)owner_len, name, model);
    if (len < 0 || (size_t)len >= sizeof path || !read_hash(path, hash))
        return false;
    len = snprintf(path, sizeof path, "%s/models--%.*s--%s/snapshots/%s", hub, (int)owner_len, name, model, hash);
    if (len < 0 || (size_t)len >= sizeof path || (size_t)len >= cap)
        return false;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return false;
    memcpy(ret_path, path, (size_t)len + 1);
    return true;
}

nw_code nw_model_path_find(const char *name, char *buf, size_t cap, nw_error *err)
{
    NW_CHECK(cap > 0);
    struct stat st;
    size_t      len = strlen(name);
    size_t      owner_len = 0;
    if (len == 0)
        return nw_fail(err, NW_E_ARG, 0, "the model's name is empty");
    if (lstat(name, &st) == 0) {
        if (len >= cap)
            return nw_fail(err, NW_E_ARG, 0, "the model's path is longer than %zu bytes", cap - 1);
        memcpy(buf, name, len + 1);
        return NW_OK;
    }
    if (errno != ENOENT && errno != ENOTDIR)
        return nw_fail(err, NW_E_ARG, errno, "model '%s'", name);
    if (!is_model_name(name, &owner_len))
        return nw_fail(err, NW_E_ARG, ENOENT, "model '%s'", name);
    if (find_snapshot(name, owner_len, buf, cap))
        return NW_OK;
    return nw_fail(
        err, NW_E_ARG, 0,
        "model '%s' is neither a path nor in the local Hugging Face cache; to fetch it: huggingface-cli download %s",
        name, name);
}

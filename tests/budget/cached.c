/* cached: how much of files is in the page cache, in bytes, summed up.
 *
 *   cached FILE ...
 *
 * Asks by mincore of a mapping that is never touched: mapping reads nothing. (fincore of util-linux does the same, but
 * is not everywhere, and its output differs between versions.)
 */
#define _DEFAULT_SOURCE /* mincore */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 30)

/* Adds a file's cached bytes; false: errno says why not. */
static bool add_cached(const char *path, uint64_t *bytes)
{
    static unsigned char pages[PIECE / 4096];
    struct stat          st;
    size_t               page = (size_t)sysconf(_SC_PAGESIZE);
    int                  fd = open(path, O_RDONLY | O_CLOEXEC);
    bool                 ok = fd >= 0 && fstat(fd, &st) == 0;
    uint64_t             size = ok ? (uint64_t)st.st_size : 0;
    for (uint64_t at = 0; at < size && ok; at += PIECE) {
        size_t len = size - at < PIECE ? (size_t)(size - at) : PIECE;
        void  *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)at);
        ok = map != MAP_FAILED && mincore(map, len, pages) == 0;
        for (size_t i = 0; i < (len + page - 1) / page && ok; i++)
            *bytes += (pages[i] & 1) * page;
        if (map != MAP_FAILED)
            munmap(map, len);
    }
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return ok;
}

int main(int argc, char **argv)
{
    uint64_t bytes = 0;
    if (argc < 2) {
        fputs("usage: cached FILE ...\n", stderr);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        if (!add_cached(argv[i], &bytes)) {
            fprintf(stderr, "cached: '%s': %s\n", argv[i], strerror(errno));
            return 1;
        }
    }
    printf("%llu\n", (unsigned long long)bytes);
    return 0;
}

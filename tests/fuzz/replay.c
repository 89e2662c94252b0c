/* Runs a fuzz target over files, in place of libFuzzer: `fuzz_<name> FILE-OR-DIRECTORY...`. Every input is in a block
 * of its own size, so that a sanitizer sees any read beyond it. Exit 0: all inputs ran (a target traps otherwise); 1: a
 * place could not be read, or there was no input at all. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static bool run_file(const char *path, size_t size)
{
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    FILE    *file = fopen(path, "rb");
    bool     good = bytes != NULL && file != NULL && fread(bytes, 1, size, file) == size;
    if (good)
        LLVMFuzzerTestOneInput(bytes, size);
    else
        fprintf(stderr, "replay: cannot read '%s'\n", path);
    if (file != NULL)
        fclose(file);
    free(bytes);
    return good;
}

static bool run_place(const char *path, size_t *inputs);

static bool run_dir(const char *path, size_t *inputs)
{
    struct dirent **entries = NULL;
    int             count = scandir(path, &entries, NULL, alphasort);
    bool            good = count >= 0;
    if (!good)
        fprintf(stderr, "replay: cannot read '%s': %s\n", path, strerror(errno));
    for (int i = 0; i < count; i++) {
        char child[4096];
        snprintf(child, sizeof child, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            good = run_place(child, inputs) && good;
        free(entries[i]);
    }
    free(entries);
    return good;
}

static bool run_place(const char *path, size_t *inputs)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "replay: cannot read '%s': %s\n", path, strerror(errno));
        return false;
    }
    if (S_ISDIR(st.st_mode))
        return run_dir(path, inputs);
    (*inputs)++;
    return run_file(path, (size_t)st.st_size);
}

int main(int argc, char **argv)
{
    size_t inputs = 0;
    bool   good = true;
    for (int i = 1; i < argc; i++)
        good = run_place(argv[i], &inputs) && good;
    if (inputs == 0)
        fprintf(stderr, "replay: no inputs\n");
    else
        printf("%zu inputs\n", inputs);
    return good && inputs > 0 ? 0 : 1;
}

/* Starting a program of ours from a test; by the emulator where this was built for another kind of machine. */
#ifndef NW_TEST_PROGRAM_H
#define NW_TEST_PROGRAM_H

#include "base/check.h"

#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { PROGRAM_ARGS_MAX = 32 };

/* Runs args[0], a path, with the arguments up to NULL, of which there are less than PROGRAM_ARGS_MAX; what it prints
 * goes where `files` says, NULL: where this process prints. Its exit status, or -1 if a signal ended it. */
static inline int program_run(const char *const *args, const posix_spawn_file_actions_t *files)
{
#ifdef NW_TEST_EMULATOR
    const char *all[PROGRAM_ARGS_MAX + 8] = {NW_TEST_EMULATOR};
#else
    const char *all[PROGRAM_ARGS_MAX + 8] = {NULL};
#endif
    size_t before = 0, count = 0;
    while (all[before] != NULL)
        before++;
    NW_CHECK(before <= 7);
    for (; args[count] != NULL; count++) {
        NW_CHECK(count < PROGRAM_ARGS_MAX);
        all[before + count] = args[count];
    }
    pid_t pid;
    int   status = -1;
    NW_CHECK(posix_spawnp(&pid, all[0], files, NULL, (char *const *)(const void *)all, environ) == 0);
    while (waitpid(pid, &status, 0) < 0)
        NW_CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif

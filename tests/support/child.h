/* Running a part of a test in a child process, for what cannot be undone: limits, affinity, settings of the process. */
#ifndef NW_TEST_CHILD_H
#define NW_TEST_CHILD_H

#include "base/check.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

/* 1: built with a sanitizer, whose malloc and mappings are not those of a release. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHILD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CHILD_SANITIZED 1
#endif
#endif
#ifndef CHILD_SANITIZED
#define CHILD_SANITIZED 0
#endif

/* Runs a function in a child; it returns 0, or the line at which something was wrong. */
static inline int in_child(int (*fn)(void *user), void *user)
{
    int   status = 0;
    pid_t child = fork();
    NW_CHECK(child >= 0);
    if (child == 0)
        _exit(fn(user) & 0xFF);
    while (waitpid(child, &status, 0) < 0)
        NW_CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The line modulo 251, and never 0. */
#define EXPECT(c)                                                                                                      \
    do {                                                                                                               \
        if (!(c))                                                                                                      \
            return __LINE__ % 251 + 1;                                                                                 \
    } while (0)

#endif

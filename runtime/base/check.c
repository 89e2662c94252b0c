/* The trap: one line for whoever reports the bug, then a core dump at the place where it happened. */
#include "base/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text)
{
    /* write(2), not stdio: the process may be in any state. A failure changes nothing. */
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

_Noreturn void nw_trap(const char *condition, const char *file, int line)
{
    char  digits[12];
    char *d = digits + sizeof digits - 1;
    *d = '\0';
    do {
        *--d = (char)('0' + line % 10);
        line /= 10;
    } while (line > 0 && d > digits);

    say("narrows: internal error: ");
    say(condition);
    say(" at ");
    say(file);
    say(":");
    say(d);
    say("\n");
    abort();
}

/* A handler may touch only lock-free atomics and async-signal-safe calls: nw_session_stop is one by contract, _exit by
 * POSIX. */
#include "interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "print.h"

static _Atomic(nw_session *) watched;
static atomic_bool           held, stopped;

static void handle(int number)
{
    nw_session *session = atomic_load(&watched);
    if (session == NULL && !atomic_load(&held))
        _exit(EXIT_INTERRUPTED);
    signal(number, SIG_DFL);
    atomic_store(&stopped, true);
    if (session != NULL)
        nw_session_stop(session);
}

void interrupt_setup(void)
{
    struct sigaction action = {.sa_handler = handle};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup asks for it to be ignored */
        sigaction(SIGHUP, &action, NULL);
}

void interrupt_hold(void)
{
    atomic_store(&held, true);
}

void interrupt_watch(nw_session *session)
{
    atomic_store(&watched, session);
    if (session != NULL && atomic_load(&stopped))
        nw_session_stop(session);
}

bool interrupted(void)
{
    return atomic_load(&stopped);
}

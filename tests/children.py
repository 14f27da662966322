"""Run a function in a child process with limits: what hangs or takes all memory fails alone."""

import os
import pickle
import resource
import signal
import traceback

MEMORY = 6 * 2**30
"""Bytes of address space that a child may add to what its parent has."""


def in_child(function, *, seconds=30):
    """How a call ends within so many seconds of processor time.

    Returns:
        ``("done", value)``, ``("raised", (type names, message, trace))`` or ``("died", signal)``.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            outcome = _limited(function, seconds)
        finally:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pickle.dumps(outcome))
            os._exit(0)  # no teardown of the parent's fixtures
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "died", signal.Signals(os.WTERMSIG(status)).name
    return pickle.loads(sent)


def _limited(function, seconds):
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20 * seconds)  # for what waits instead of working
    try:
        return "done", function()
    except BaseException as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        return "raised", (names, str(error), traceback.format_exc(limit=-3))

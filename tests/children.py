"""Run a function in forked processes with limits: what hangs or takes all memory fails alone."""

import os
import pickle
import resource
import signal
import socket
import traceback

import torch

MEMORY = 6 * 2**30
"""Bytes of address space that a child may add to what its parent has."""


def in_child(function, *, seconds=30):
    """How a call ends within so many seconds of processor time.

    Returns:
        ``("done", value)``, ``("raised", (type names, message, trace))`` or ``("died", signal)``.
    """
    return _outcome(*_forked(function, seconds, memory=MEMORY))


def launched(processes, function, *, seconds=60):
    """How a call ends in every process of a launch, first to last.

    The processes are started as torchrun starts them, with its variables in the environment, but as
    forks: the modules that are loaded need not be loaded again.

    Returns:
        Per process what :func:`in_child` returns.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    children = [_forked(function, seconds, environment=shared | rank) for rank in ranks]
    return [_outcome(*child) for child in children]


def values(outcomes, kind="done"):
    """The values of processes that are all done."""
    assert {ended for ended, _ in outcomes} == {kind}, outcomes
    return [value for _, value in outcomes]


def raised(outcomes):
    """Type names, messages and traces of processes that have all raised."""
    return values(outcomes, "raised")


def fork():
    """:func:`os.fork` after which the child may use PyTorch from several threads.

    A child's pool of threads has no threads. PyTorch replaces it when it is first asked for, and
    without a lock: two threads that ask together raise "Invalid thread pool!" or crash.
    """
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(torch.get_num_threads())  # asks for the pool, in the only thread
    return pid


def _forked(function, seconds, *, memory=None, environment=None):
    """Process id and pipe of a child that calls the function."""
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(reader)
        os.environ |= environment or {}
        try:
            outcome = _limited(function, seconds, memory)
        finally:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pickle.dumps(outcome))
            os._exit(0)  # no teardown of the parent's fixtures
    os.close(writer)
    return pid, reader


def _outcome(pid, reader):
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "died", signal.Signals(os.WTERMSIG(status)).name
    return pickle.loads(sent)


def _limited(function, seconds, memory):
    if memory is not None:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20 * seconds)  # for what waits instead of working, or for what has died
    try:
        return "done", function()
    except BaseException as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        return "raised", (names, str(error), traceback.format_exc(limit=-4))

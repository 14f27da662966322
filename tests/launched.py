"""Run a function in several processes at once, as torchrun starts them, without its start-up."""

import os
import pickle
import resource
import signal
import socket
import traceback


def launched(processes, function, *, seconds=60):
    """What every process of a launch returns, first to last.

    The processes are forks, so the modules that are loaded need not be loaded again.

    Args:
        processes: How many.
        function: Called without arguments in each, with torchrun's variables in the environment.
        seconds: Of processor time that each may use.

    Returns:
        Per process ``("done", value)``, ``("raised", (type name, message, trace))`` or
        ``("died", status)``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    children = []
    for rank in range(processes):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.environ |= shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                outcome = _limited(function, seconds)
            finally:
                with os.fdopen(writer, "wb") as pipe:
                    pipe.write(pickle.dumps(outcome))
                os._exit(0)  # no teardown of the parent's fixtures
        os.close(writer)
        children.append((pid, reader))
    outcomes = []
    for pid, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            sent = pipe.read()
        _, status = os.waitpid(pid, 0)
        outcomes.append(pickle.loads(sent) if sent else ("died", status))
    return outcomes


def values(outcomes):
    """The values of processes that are all done."""
    assert [kind for kind, _ in outcomes] == ["done"] * len(outcomes), outcomes
    return [value for _, value in outcomes]


def _limited(function, seconds):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10 * seconds)  # for what waits for a process that has died
    try:
        return "done", function()
    except BaseException as error:
        return "raised", (type(error).__name__, str(error), traceback.format_exc(limit=-4))

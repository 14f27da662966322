"""The disk is full at any write of a command: one line says so, and the same command continues."""

import errno
import os
import resource

import pytest

from tally import trial
from trials.disk import Recorder
from trials.tracing import recording

NEEDS_ROOM = ("write", "mkdir", "sync")
"""Events that a full disk refuses; it still renames and removes."""


def full_from(number, room=None):
    """From the event of a number on nothing more fits, or in a file no more than ``room`` bytes."""

    def before(now, what):
        if now == number and room is not None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        if now >= number and room is None and what.startswith(NEEDS_ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return before


def fault_of(command, full):
    """What is wrong with a command on a full disk, or with the next one when there is room."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    command.start()
    try:
        with recording(Recorder(command.out, full, snapshots=False)):
            failed = command.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    if failed is not None and not failed.startswith("exit 1: diffattn: "):
        return failed
    return command.run() or command.difference()


def cases(known):
    """Every event that needs room, refused; and every file, cut in the middle of its writing."""
    for number, event in enumerate(known.events):
        if event.startswith(NEEDS_ROOM):
            yield f"no room for {event}", full_from(number)
    sizes = {}
    for moment in known.moments:
        sizes |= {path: len(data) for path, data in moment.killed.items() if data}
    for number, event in enumerate(known.events):
        what, _, path = event.partition(" ")
        if what == "write" and sizes.get(path, 0) > 1:
            yield f"half the room for {event}", full_from(number, sizes[path] // 2)


SCHEDULED = [("train", 6), ("pack", 1), ("evaluate", 4), ("judge", 4), ("report", 1)]


@pytest.mark.parametrize(
    ("name", "step"),
    [("pack", 5), *(pytest.param(*of, marks=pytest.mark.scheduled) for of in SCHEDULED)],
)
def test_no_room_at_a_write(recorded, name, step):
    known = recorded(name)
    with trial(f"{name} with the disk full at every write in {step}", minimum=3) as tally:
        for what, full in list(cases(known))[::step]:
            tally.check(what, fault_of(known.command, full))

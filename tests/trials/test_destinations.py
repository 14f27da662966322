"""A place that results cannot go to is refused in one line, and what lies there stays."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cli.conftest import call
from tally import sample, trial
from trials.made_up_folders import evaluation, text_study

FILE, FOLDER = "a file", "a folder"


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


def a_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null


def a_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("dear reader")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


MAKE: dict[str, Callable[[Path], None]] = {
    "a device": a_device,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to nothing": lambda path: path.symlink_to("absent"),
    "a link to a missing folder": lambda path: path.symlink_to("absent/inner"),
    "a loop of links": loop,
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "a file": lambda path: path.write_text("dear reader"),
    "an empty file": lambda path: path.write_text(""),
    "a link to a file": lambda path: path.symlink_to(__file__),
    "a folder": a_full_folder,
    "a link to a folder": lambda path: path.symlink_to(".."),
}
"""What can lie at a path. No device of the system by its own name: root could lose it."""
if os.geteuid() != 0:
    del MAKE["a device"]  # only root may make one
INNER = ("", "/", "/.", "/page.html", "/new/page.html", "/../place/x", "/x/../..")
"""What may follow it."""
NAMES = {
    "a long name": "x" * 300,
    "a name too long to be written beside": "x" * 250,
    "a long name in new folders": "a/b/" + "x" * 300,
    "a long folder": "x" * 300 + "/a",
    "a long path": "/".join(["x" * 100] * 60),
    "letters of four bytes": "\U0001d11e" * 80,
}
"""Paths at which nothing can lie."""
RIGHT = {
    FILE: {
        *(f"an empty file{inner}" for inner in ("", "/", "/.")),
        *(f"{name}{inner}" for name in ("a folder", "a link to a folder")
          for inner in ("/page.html", "/new/page.html", "/../place/x")),
    },
    FOLDER: {
        f"{name}{inner}" for name in ("a folder", "a link to a folder")
        for inner in INNER if inner != "/x/../.."
    },
}  # fmt: skip
"""Where results can go."""


def commands(study: Path, asked: Path) -> dict[str, tuple[str, tuple[object, ...]]]:
    """What each command wants, and its words before the path."""
    return {
        "report": (FILE, ("report", study, "--out")),
        "report of an evaluation": (FILE, ("report", asked, "--out")),
        "judge --requests": (FILE, ("judge", asked, "--requests")),
        "compare --out": (FILE, ("compare", asked, "--format", "csv", "--out")),
        "compare --answers": (FILE, ("compare", asked, "--answers")),
        "judge": (FOLDER, ("judge", "--model", "m", "--")),
        "train": (FOLDER, ("train", "smoke", "--dry-run", "--out")),
        "train --resume": (FOLDER, ("train", "smoke", "--resume", "--out")),
        "pack": (FOLDER, ("pack", "/no/such/text", "--out")),
        "evaluate": (FOLDER, ("evaluate", "needle", "--model", "none", "--out")),
        "analyze": (FOLDER, ("analyze", "none", "--text", "a", "--out")),
        "reproduce": (FOLDER, ("reproduce", "--scale", "smoke", "--dry-run", "--out")),
        "reproduce recall": (FOLDER, ("reproduce", "recall", "--dry-run", "--out")),
        "bench": (FOLDER, ("bench", "ops", "--scale", "quick", "--out")),
    }


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Kind, identity and size of all entries."""
    facts = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_mode, stat.st_ino, stat.st_size) for path, stat in facts.items()}


def fault(arguments: tuple[object, ...], folder: Path) -> str | None:
    """What is wrong with how a command ended that was given a wrong place."""
    before = snapshot(folder)
    called = call(*arguments)
    if changed := sorted({path for path, _ in before.items() ^ snapshot(folder).items()}):
        return f"changed {changed[:3]}"
    lines = called.err.splitlines()
    if (called.code, called.out, len(lines)) != (2, "", 1):
        return f"exit {called.code}, {called.out!r}, {lines[-1:]}"
    is_clear = lines[0].startswith("diffattn: ") and (
        ": must be a f" in lines[0] or ": must be a new file or a" in lines[0]
    )
    return None if is_clear else lines[0]


def places(folder: Path) -> Iterator[tuple[str, str]]:
    """What is at a place, and its path."""
    for name, make in MAKE.items():
        place = folder / name.replace(" ", "-") / "place"
        place.parent.mkdir(parents=True)
        make(place)
        for inner in INNER:
            yield f"{name}{inner}", f"{place}{inner}"
    for name, text in NAMES.items():
        yield name, f"{folder}/{text}"


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), 53])
def test_wrong_destinations_are_refused_and_kept(tmp_path, step):
    study, asked = tmp_path / "study", tmp_path / "evaluation"
    text_study(study)
    evaluation(asked)
    cases = [
        (f"{command}: {what}", (*words, path))
        for what, path in places(tmp_path / "places")
        for command, (wanted, words) in commands(study, asked).items()
        if what not in RIGHT[wanted]
    ]
    with trial(f"wrong destinations{sample(step > 1)}", minimum=800 // step) as tally:
        for what, arguments in cases[::step]:
            tally.check(what, fault(arguments, tmp_path))

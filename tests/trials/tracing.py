"""Shows a recorder every change that this process makes below its folder.

Opening for writing, renaming, removing, making and removing folders, cutting, syncing: Python's
own audit events show most of them; syncs, and the writers that are not Python's, are seen through
their functions.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from trials.disk import Recorder

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_active: Recorder | None = None
_busy = False
_hooked = False


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Show every event in this process to a recorder."""
    global _active, _hooked
    if not _hooked:  # a hook stays for the life of the process
        _hooked = True
        sys.addaudithook(_hook)
        _wrap_writers()
    _active = recorder
    try:
        yield recorder
    finally:
        _active = None
    recorder.end()


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """False for what the recorder itself does."""
    global _busy
    if _busy:
        yield False
        return
    _busy = True
    try:
        yield True
    finally:
        _busy = False


def _hook(event: str, arguments: tuple) -> None:
    if _active is None or _busy or event not in _EVENTS:
        return
    with _alone():
        _EVENTS[event](_active, *arguments)


def _on_open(recorder: Recorder, path: object, mode: object, flags: int) -> None:
    if not isinstance(path, int) and flags & WRITING and (name := recorder.below(path)):
        recorder.written(name, emptied=bool(flags & os.O_TRUNC))


def _at(path: object, folder: int) -> object:
    return path if folder < 0 else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), str(path))


def _simple(what: str) -> Callable[..., None]:
    def on(recorder: Recorder, path: object, *arguments: object) -> None:
        folder = arguments[-1] if what != "cut" else -1
        assert isinstance(folder, int)
        if name := recorder.below(_at(path, folder)):
            if what == "cut":
                recorder.opened.add(name)
            recorder.event(what, name)

    return on


def _on_rename(recorder: Recorder, source: object, target: object, *folders: int) -> None:
    a, b = recorder.below(_at(source, folders[0])), recorder.below(_at(target, folders[1]))
    if b is not None:
        if a is None:
            recorder.opened.add(b)
        recorder.renamed(a or str(source), b)


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _on_open,
    "os.rename": _on_rename,
    "os.remove": _simple("remove"),
    "os.rmdir": _simple("rmdir"),
    "os.mkdir": _simple("mkdir"),
    "os.truncate": _simple("cut"),
}


def _wrap_writers() -> None:
    """Functions that write without Python's files, and syncs: no audit event shows them."""
    import safetensors.torch
    import torch
    from transformers import PreTrainedTokenizerFast

    def wrap(owner: object, name: str, path_of: Callable[..., object]) -> None:
        real = getattr(owner, name)

        def wrapped(*arguments: object, **named: object) -> object:
            if _active is not None and not _busy:
                with _alone():
                    if path := _active.below(path_of(*arguments, **named)):
                        _active.written(path)
            return real(*arguments, **named)

        setattr(owner, name, wrapped)

    wrap(safetensors.torch, "serialize_file", lambda tensors, path, *rest, **named: path)
    wrap(torch, "save", lambda thing, f, *rest, **named: f)
    wrap(
        PreTrainedTokenizerFast, "_save_pretrained",
        lambda self, save_directory, *rest, **named: os.path.join(save_directory, "tokenizer.json"),
    )  # fmt: skip
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _syncing(getattr(os, name)))


def _syncing(real: Callable[..., None]) -> Callable[..., None]:
    def sync(file: object) -> None:
        number = file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]
        done = None
        if _active is not None and not _busy:
            with _alone():
                if path := _active.below(number):
                    done = _active.synced(path)
        real(number)
        if done is not None:
            done()

    return sync

"""What a disk holds at every moment of a command: after a kill there, and after a loss of power.

Every change below a folder is an event: see :mod:`trials.tracing`.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEAD = 2**22 + 1
"""A number that no process has."""
State = dict[str, bytes | None]
"""Path below the folder to the content of a file; ``None`` for a folder."""


@dataclass(eq=False)
class _Node:
    """A file, or a folder with what it holds."""

    content: bytes | None = None
    synced: bytes = b""
    entries: "dict[str, _Node] | None" = None
    durable: "dict[str, _Node]" = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Just before an event, or in the middle of the write before it."""

    what: str
    killed: State
    """What a killed process leaves."""
    lost: dict[str, State]
    """What a loss of power leaves, by kind of loss; empty in the middle of a write.

    ``"zero length"`` and ``"half"``: every name is as it was last, files end where they were synced
    or half-way from there. ``"old content"``: names and contents are those of the last sync of
    folder and file. ``"removals only"``: the same, but what was removed since is gone.
    """


class Recorder:
    """Follows a folder event by event; what lies there already counts as synced.

    ``before`` is called with the number and the name of every event before it happens: to kill the
    process there, or to raise. ``snapshots`` says whether to keep what the disk holds then.
    """

    def __init__(
        self,
        root: Path,
        before: Callable[[int, str], None] = lambda number, what: None,
        *,
        snapshots: bool = True,
    ) -> None:
        self.root = str(root)
        self.before, self.snapshots = before, snapshots
        self.moments: list[Moment] = []
        self.events: list[str] = []
        self.tree = _Node(entries={})
        self.pending: Callable[[], None] = lambda: None
        self.opened: set[str] = set()
        self.continued: set[str] = set()
        """Files that were last opened as they were, not emptied."""
        self.unseen: list[str] = []
        """Files that changed although nobody was seen to write them: the trace has a gap."""
        if root.exists():
            self._merge(self.tree, root, "", {})
            _sync_all(self.tree)

    def event(self, what: str, path: str, after: Callable[[], None] = lambda: None) -> None:
        """Note what the disk holds, then what is about to be done."""
        if self.snapshots:
            self._observe(f"{what} {path}")
        self.events.append(f"{what} {path}")
        self.pending = after
        self.before(len(self.events) - 1, self.events[-1])

    def end(self) -> None:
        """Note what the disk holds at the end."""
        if self.snapshots:
            self._observe("end")

    def below(self, path: object) -> str | None:
        """Path below the folder, or ``None`` if it lies elsewhere."""
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return None
        text = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        if text == self.root:
            return "."
        return text.removeprefix(f"{self.root}/") if text.startswith(f"{self.root}/") else None

    def written(self, path: str, *, emptied: bool = True) -> None:
        self.opened.add(path)
        (self.continued.discard if emptied else self.continued.add)(path)
        self.event("write", path)

    def renamed(self, source: str, target: str) -> None:

        def after() -> None:
            if os.path.lexists(os.path.join(self.root, source)):
                return  # it failed
            folder, name = self._parent(source)
            node = folder.pop(name, None)
            into, other = self._parent(target)
            if node is not None:
                into[other] = node

        self.opened |= {
            target + p.removeprefix(source) for p in self.opened if p.startswith(source)
        }
        self.event(f"rename {source} to", target, after)

    def synced(self, path: str) -> Callable[[], None]:
        """A file or folder is synced: its content, or its names. To be called after it."""
        self.event("sync", path)

        def done() -> None:
            node = self._node(path)
            if node is None:
                return
            if node.entries is None:
                node.synced = node.content or b""
            else:
                node.durable = dict(node.entries)

        return done

    def _observe(self, what: str) -> None:
        """Bring the tree up to date; one moment for now and one for each torn write before it."""
        self.pending()
        self.pending = lambda: None
        changed: dict[str, bytes | None] = {}
        if os.path.isdir(self.root):
            self._merge(self.tree, Path(self.root), "", changed)
        else:
            self.tree.entries = {}
        self.unseen += [path for path in changed if path not in self.opened]
        now = _state(self.tree)
        for path, old in changed.items():
            new = now[path]
            assert new is not None
            for part, torn in _torn(old, new, whole=path not in self.continued):
                self.moments.append(Moment(f"{part} of {path}", now | {path: torn}, {}))
        lost = {
            "zero length": _state(self.tree, lambda node: _kept(node, 0.0)),
            "half": _state(self.tree, lambda node: _kept(node, 0.5)),
            "old content": _state(self.tree, lambda node: node.synced, lambda node: node.durable),
            "removals only": _state(self.tree, lambda node: node.synced, _not_removed),
        }
        self.moments.append(Moment(f"before {what}", now, lost))

    def _merge(
        self, node: _Node, folder: Path, prefix: str, changed: dict[str, bytes | None]
    ) -> None:
        assert node.entries is not None
        seen = set()
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            seen.add(entry.name)
            path, known = prefix + entry.name, node.entries.get(entry.name)
            if entry.is_dir(follow_symlinks=False):
                if known is None or known.entries is None:
                    known = node.entries[entry.name] = _Node(entries={})
                self._merge(known, Path(entry.path), f"{path}/", changed)
                continue
            content = Path(entry.path).read_bytes()
            if known is None or known.entries is not None:
                known = node.entries[entry.name] = _Node()
            if known.content != content:
                changed[path] = known.content
                known.content = content
        for name in set(node.entries) - seen:
            del node.entries[name]

    def _node(self, path: str) -> _Node | None:
        node: _Node | None = self.tree
        for part in () if path == "." else path.split("/"):
            node = None if node is None or node.entries is None else node.entries.get(part)
        return node

    def _parent(self, path: str) -> tuple[dict[str, _Node], str]:
        parent, _, name = path.rpartition("/")
        node = self._node(parent or ".")
        return ({} if node is None or node.entries is None else node.entries), name


def _sync_all(node: _Node) -> None:
    node.synced = node.content or b""
    if node.entries is not None:
        node.durable = dict(node.entries)
        for inner in node.entries.values():
            _sync_all(inner)


def _kept(node: _Node, share: float) -> bytes:
    """A file of which only a share of what was not synced has reached the disk."""
    content = node.content or b""
    sure = len(node.synced) if content.startswith(node.synced) else 0
    return content[: sure + int((len(content) - sure) * share)]


def _torn(old: bytes | None, new: bytes, *, whole: bool) -> Iterator[tuple[str, bytes]]:
    """What a file holds in the middle of a write, of the whole file or of what is new in it."""
    old = old or b""
    pairs = enumerate(zip(old, new, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
    if whole and start < len(old):
        start = 0
    if start == 0:
        yield "nothing", b""
    if len(new) - start > 1:
        yield "half", new[: start + (len(new) - start) // 2]


def _state(
    node: _Node,
    content: Callable[[_Node], bytes] = lambda node: node.content or b"",
    entries: Callable[[_Node], "dict[str, _Node]"] = lambda node: node.entries or {},
) -> State:
    state: State = {}
    for name, inner in entries(node).items():
        if inner.entries is None:
            state[name] = content(inner)
            continue
        state[name] = None
        below = _state(inner, content, entries)
        state |= {f"{name}/{path}": held for path, held in below.items()}
    return state


def _not_removed(node: _Node) -> "dict[str, _Node]":
    return {name: x for name, x in node.durable.items() if name in (node.entries or {})}


def restore(state: State, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    suffix = f".{os.getpid()}.tmp"
    for path, content in sorted(state.items()):
        if content is None:
            (root / path).mkdir()
            continue
        # The process that left a temporary file had another number than the next one.
        name = f"{path.removesuffix(suffix)}.{DEAD}.tmp" if path.endswith(suffix) else path
        (root / name).write_bytes(content)


def held(root: Path) -> State:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def damages(content: bytes, rng: random.Random, flips: int = 3) -> Iterator[tuple[str, bytes]]:
    """Names of damages besides a missing file, and what is left; ``flips`` bits at random."""
    yield "empty", b""
    yield "cut in half", content[: len(content) // 2]
    yield "without its last byte", content[:-1]
    for _ in range(flips):
        bit = rng.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(changed)


def digest(state: State) -> str:
    """Equal for equal states only."""
    content = hashlib.sha256()
    for path, data in sorted(state.items()):
        kind = b"d" if data is None else b"f" + hashlib.sha256(data).digest()
        content.update(path.encode() + b"\0" + kind)
    return content.hexdigest()

"""Values that a record should never hold, and every place in a record where one could stand."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from diffattn.files.io import log_facts
from record_files import change_record, write_rows
from record_files import write_record as write_sealed

MARK = "xmark"
"""In every hostile text, so that a page can be searched for it."""
CANARY = f"document.documentElement.dataset.{MARK}=1"
"""What a hostile text would run."""

MARKUP = (
    f"<script>{CANARY}</script>",
    f"</script><script>{CANARY}</script>",
    f"<!--<script>{MARK}</script>-->",
    f"--><{MARK}>",
    f'"><img src={MARK} onerror={CANARY}>',
    f"'><svg onload={CANARY}>",
    f'" autofocus onfocus="{CANARY}" {MARK}="',
    f"' onmouseover='{CANARY}' {MARK}='",
    f"</title></style></textarea></noscript><iframe srcdoc=<{MARK}>>",
    f"<base href=//{MARK}>",
    f'<a href="javascript:{CANARY}">{MARK}</a>',
    f"javascript:{CANARY}",
    f"{{{{ 191 * 193 }}}}{{% raw %}}{MARK}",
    f"%{{{MARK}}}<extra>%{{x:{MARK}}}</extra>",
    f"&lt;img src={MARK} onerror={CANARY}&gt;",
    f"$\\href{{javascript:{CANARY}}}{{{MARK}}}$",
    f"\u2028<{MARK}>\u2029",
    f"\ud83d<{MARK}>",
    f"\x00\x01\x1b[2J\x7f\x9b<{MARK}\x00>",
    f"red;background:url(//{MARK})",
)
"""Texts that would be parsed as something else than text, somewhere."""

OTHERS: tuple[Any, ...] = (
    *("", "../../secret", "a\0b", "\ud800", "x" * 20_000, "9" * 5_000, "nan"),
    *(None, True, False, 0, -1, 1, 2**63, -(10**400), 0.0, -0.5, 1e-320, 1e300, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *([], {}, [None], [[]], ["a", 1, None], [1e308, 1e308, -1e308], list(range(2_000))),
    {"items": 1, "keys": 2, "__class__": 3},
    {f"<{MARK}>": f"<{MARK}>"},
)

Path = tuple[str | int, ...]
"""Keys and indices from the top of a record to a place in it."""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: tuple[Any, ...] = (*MARKUP, *OTHERS, nested(200))


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a record but its top: leaves, and what holds them."""
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    for key, entry in inner.items() if isinstance(inner, dict) else ():
        yield (*path, key)
        yield from places(entry, (*path, key))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def changed(value: Any, path: Path, change: Callable[[Any, Any], None]) -> Any:
    """A copy in which a change was made to what holds a place, and to its key there."""
    copied = copy.deepcopy(value)
    change(at(copied, path[:-1]), path[-1])
    return copied


def replaced(value: Any, path: Path, new: Any) -> Any:
    return changed(value, path, lambda holder, key: holder.__setitem__(key, new))


def write_record(file: Any, value: Any) -> None:
    """Write a record as its writer does, so that only its values are wrong.

    What no writer takes is written as plain JSON: NaN, and rows that are no objects.
    """
    rows = file.suffix == ".jsonl"
    try:
        (write_rows if rows else write_sealed)(file, value)
    except (TypeError, ValueError):
        text = "".join(json.dumps(row) + "\n" for row in value) if rows else json.dumps(value)
        file.write_text(text, encoding="utf-8")
    if rows and (results := file.with_name("results.json")).exists():
        change_record(results, metrics=log_facts(file))


def shown(path: Path, value: Any) -> str:
    """A place and what stands there, in short."""
    text = repr(value) if not isinstance(value, list) else f"list of {len(value)}"
    return f"{'.'.join(map(str, path))} = {text[:60]}"

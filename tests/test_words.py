"""Names and argument docstrings say something: the short list of the house style, section 3."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tools")
BANNED = frozenset({
    "beaten", "found", "mine", "of", "one", "ours", "own", "said", "such", "theirs", "those",
    "told", "what",
})  # fmt: skip
"""Names that stand in for a noun: a reader has to guess which."""
FIELDS = {"text_results.py": {"what"}}
"""Keys of published records, which keep their names."""
FILLERS = frozenset({
    "a", "an", "and", "as", "at", "be", "for", "from", "in", "is", "it", "its", "of", "on", "or",
    "that", "the", "this", "to", "which", "with",
})  # fmt: skip
ARGUMENT = re.compile(r"^ {4,12}\*{0,2}(\w+): (.*(?:\n {12,}.*)*)", re.MULTILINE)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module binds: functions, classes, arguments and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def banned(source: str) -> list[str]:
    """Names on the list, with their lines."""
    return [
        f"line {line}: {name}"
        for line, name in bound_names(ast.parse(source))
        if name.strip("_").lower() in BANNED
    ]


def empty_arguments(source: str) -> list[str]:
    """Arguments whose description repeats their name, with the name of the function."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        _, mark, section = (ast.get_docstring(node, clean=False) or "").partition("Args:\n")
        section = re.split(r"\n\s*(?:Returns|Yields|Raises):", section)[0] if mark else ""
        for name, text in ARGUMENT.findall(section):
            words = set(re.findall(r"[\w`]+", text.lower()))
            stems = {word.rstrip("s") for word in name.lower().split("_")}
            if not {w for w in words - FILLERS if w.strip("`").rstrip("s") not in stems}:
                faults.append(f"{node.name}: {name}: {text.strip()}")
    return faults


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_arguments_say_something(path):
    source = path.read_text(encoding="utf-8")
    kept = FIELDS.get(path.name, set())
    assert [fault for fault in banned(source) if fault.split(": ")[1] not in kept] == []
    assert empty_arguments(source) == []


def test_the_rules_see_what_they_forbid():
    code = (
        "def _told(found, steps):\n    '''Sum.\n\n    Args:\n        steps: The steps.\n    '''\n"
    )
    assert banned(code) == ["line 1: _told", "line 1: found"]
    assert empty_arguments(code) == ["_told: steps: The steps."]

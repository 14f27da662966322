"""No modules import one another in a circle, at the top or inside functions."""

from pathlib import Path

import pytest

from import_graph import circles_of, import_graph

SOURCE = Path(__file__).parents[1] / "src" / "diffattn"


def test_no_import_circles():
    files = sorted(SOURCE.rglob("*.py"))
    sources = {p.relative_to(SOURCE).as_posix(): p.read_text(encoding="utf-8") for p in files}
    assert not circles_of(import_graph(sources))


def test_no_circles_of_folders():
    """Within a folder, the folders and files beside one another import in one direction."""
    files = sorted(SOURCE.rglob("*.py"))
    sources = {p.relative_to(SOURCE).as_posix(): p.read_text(encoding="utf-8") for p in files}
    graph = import_graph(sources)
    folders = {name.rsplit(".", level)[0] for name in graph for level in range(1, name.count("."))}
    for folder in folders:
        depth = folder.count(".") + 2
        children: dict[str, set[str]] = {}
        for name, imported in graph.items():
            inside = {other for other in imported if other.startswith(f"{folder}.")}
            if not name.startswith(f"{folder}."):
                continue
            child, *others = (".".join(entry.split(".")[:depth]) for entry in (name, *inside))
            children.setdefault(child, set()).update(set(others) - {child})
        for other in set().union(*children.values()) - children.keys():
            children[other] = set()
        assert not circles_of(children), folder


@pytest.mark.parametrize(
    ("source", "circle"),
    [
        ("from diffattn.a import x", {"a", "b", "b.c"}),
        ("def f():\n    from .. import a", {"a", "b", "b.c"}),
        ("if TYPE_CHECKING:\n    import diffattn.a", {"a", "b", "b.c"}),
        ("import_module('diffattn.a')", {"a", "b", "b.c"}),
        ("from diffattn import b", {"b", "b.c"}),
        ("from diffattn.d import x", None),
        ("import torch", None),
    ],
)
def test_the_circle_rule_itself(source, circle):
    sources = {
        "__init__.py": "",
        "a.py": "import diffattn.b",
        "b/__init__.py": "from diffattn.b import c",
        "b/c.py": source,
        "d.py": "",
    }
    expected = {frozenset(f"diffattn.{name}" for name in circle)} if circle else set()
    assert circles_of(import_graph(sources)) == expected

"""No modules import one another in a circle, at the top or inside functions."""

from pathlib import Path

import pytest

from import_graph import circles_of, import_graph

SOURCE = Path(__file__).parents[1] / "src" / "diffattn"
GRAPH = import_graph({
    path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(SOURCE.rglob("*.py"))
})  # fmt: skip


def test_no_import_circles():
    assert not circles_of(GRAPH)


def test_no_circles_of_folders():
    """Within a folder, the folders and files beside one another import in one direction."""
    folders = {name.rsplit(".", level)[0] for name in GRAPH for level in range(1, name.count("."))}
    for folder in folders:
        depth = folder.count(".") + 2
        children: dict[str, set[str]] = {}
        for name, imported in GRAPH.items():
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
        ("def f():\n    from .. import a", {"a", "b", "b.c"}),
        ("from diffattn import b", {"b", "b.c"}),
        ("from diffattn.d import x", None),
    ],
)
def test_the_circle_rule_itself(source, circle):
    sources = {"__init__.py": "", "a.py": "import diffattn.b", "d.py": "", "b/c.py": source}
    sources["b/__init__.py"] = "from diffattn.b import c"
    expected = {frozenset(f"diffattn.{name}" for name in circle)} if circle else set()
    assert circles_of(import_graph(sources)) == expected

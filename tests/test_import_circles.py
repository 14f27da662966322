"""No modules import one another in a circle, at the top or inside functions."""

from pathlib import Path

import pytest

from test_architecture import FILES, SOURCE, imports_of, public_home


def import_graph(sources):
    """Module names to the modules they import, also inside functions and for types alone.

    ``sources`` has file names from ``src/diffattn``. The packages above an imported module do not
    count: they are not what is asked for.
    """
    packages = {path: ["diffattn", *path.split("/")[:-1]] for path in sources}
    modules = {
        path: ".".join([*package, *([] if path.endswith("__init__.py") else [Path(path).stem])])
        for path, package in packages.items()
    }
    known = set(modules.values())

    def module_of(name):
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    return {
        modules[path]: {
            module_of(public_home(imported.name))
            for imported in imports_of(source, ".".join(packages[path]))
        }
        - {modules[path], ""}
        for path, source in sources.items()
    }


def circles_of(graph):
    """The sets of modules that all reach one another."""

    def reached_from(start):
        reached, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - reached
            reached |= new
            waiting += new
        return reached

    reached = {module: reached_from(module) for module in graph}
    circles = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
    }
    return {circle for circle in circles if circle}


def test_no_import_circles():
    sources = {path: (SOURCE / path).read_text(encoding="utf-8") for path in FILES}
    circles = circles_of(import_graph(sources))
    assert not circles


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

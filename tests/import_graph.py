"""What the package's files import from one another, read off their source."""

import ast
from pathlib import Path
from typing import NamedTuple

import networkx  # which torch brings

import diffattn


class Import(NamedTuple):
    """One imported module or name, and whether importing the file runs it."""

    name: str
    at_top: bool


def imports_of(source, package):
    """Every import of a file, also inside functions, and ``import_module`` of a literal name."""
    tree = ast.parse(source)
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.walk(node)
    }
    imports = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parts, node.module or ""]).strip(".") if node.level else node.module
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names = [first.value]
        imports += [Import(name, id(node) not in inside) for name in names]
    return imports


def public_home(name):
    """``diffattn.X`` to the module that defines the public name X."""
    parts = name.split(".")
    if len(parts) == 2 and parts[1] in diffattn._PUBLIC:
        return f"{diffattn._PUBLIC[parts[1]]}.{parts[1]}"
    return name


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
    parts = networkx.strongly_connected_components(networkx.DiGraph(graph))
    return {frozenset(part) for part in parts if len(part) > 1}

"""The sources of the model as statements: what each defines, and what it uses of others."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from diffattn.models.config.attention_types import ATTENTION

_PACKAGE = Path(__file__).parents[2]
_HERE = "diffattn.models.remote_code"
ROOT = "diffattn.models.modeling_diff_transformer"
_REPLACED = {"diffattn.ops.inputs.backends": f"{_HERE}.substitutes"}
"""Modules whose names are taken from another one."""
REPLACED_MEMBERS = {
    ("diffattn.models.config.attention_types", "AttentionType.layer_class"): f"{_HERE}.substitutes",
}
LEFT_OUT = (
    *(f"diffattn.ops.backends.{name}" for name in ("chunked", "custom_op", "decode_op")),
    *(f"diffattn.ops.backends.{name}" for name in ("flex", "hopper_op")),
    "diffattn.models.twins", f"{_HERE}.saving",
)  # fmt: skip
"""Modules without which the models work; entries of tables and base classes from there go too."""
LEFT_OUT_MEMBERS = (("diffattn.models.config.configuration_diff_transformer", "twin"),)
PACKAGE_ONLY = re.compile(r"^Auto(Config|ModelFor\w+)\.register\(")
"""Statements that make the package's own classes known to Hugging Face, which does that itself for
a class of a folder; but a head for classification looks for its decoder as ``AutoModel``."""

Symbol = tuple[str, str]
"""Module and name at its top level."""


@dataclass(eq=False)
class Statement:
    """One statement at the top level of a module, with the comments above it."""

    module: "Module"
    node: ast.stmt
    first_line: int
    names: tuple[str, ...]
    uses: set[Symbol] = field(default_factory=set)
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    """Start and end, in bytes of the module, and what comes there instead."""

    @cached_property
    def references(self) -> list[tuple[ast.AST, Symbol]]:
        """See :func:`references`; every module must have been read."""
        return list(references(self.node, self.module))


@dataclass(eq=False)
class Module:
    """One module of ours, read as text."""

    name: str
    source: bytes
    starts: list[int]
    """Byte at which each line begins."""
    aliases: dict[str, Symbol] = field(default_factory=dict)
    """Name in this module to what it stands for; an empty name is a whole module."""
    external: dict[str, str] = field(default_factory=dict)
    """Name to the import statement that binds it, of other packages."""
    statements: list[Statement] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """Last part of its name."""
        return self.name.rpartition(".")[2]

    def span(self, node: Any) -> tuple[int, int]:
        """Start and end of a node in bytes."""
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def defined(self) -> dict[str, Statement]:
        """Name to the statement that defines it."""
        return {name: statement for statement in self.statements for name in statement.names}


def read(name: str, modules: dict[str, Module]) -> None:
    """A module, after those that it needs."""
    if name in modules:
        return
    path = _PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    module = Module(name, source, starts)
    lines = source.decode().splitlines()
    for position, node in enumerate(ast.parse(source).body):
        if position == 0 and _is_text(node):
            continue
        if _is_import(node):
            for inner in ast.walk(node):
                _take_import(inner, module)
            continue
        if _is_text(node):  # says what the name above it is
            module.statements[-1].node.end_lineno = node.end_lineno
            module.statements[-1].node.end_col_offset = node.end_col_offset
            continue
        decorators = getattr(node, "decorator_list", [])
        first = decorators[0].lineno if decorators else node.lineno
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        module.statements.append(Statement(module, node, first, _bound(node)))
    for target, symbol in module.aliases.values():
        if _is_module(f"{target}.{symbol}"):
            read(f"{target}.{symbol}", modules)
        elif target not in LEFT_OUT:
            read(target, modules)
    if name == "diffattn.models.config.attention_types":
        for layer_module, _ in (row.layer for row in ATTENTION.values()):
            read(layer_module, modules)
    for (place, _), source_module in REPLACED_MEMBERS.items():
        if place == name:
            read(source_module, modules)
    modules[name] = module


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_import(node: ast.stmt) -> bool:
    inside = node.body if isinstance(node, ast.If) and not node.orelse else [node]
    return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in inside)


def _is_module(name: str) -> bool:
    return _PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py").is_file()


def _take_import(node: ast.AST, module: Module) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            module.external[bound] = ast.unparse(ast.Import([alias]))
    elif isinstance(node, ast.ImportFrom):
        target = str(node.module)
        for alias in node.names:
            bound = alias.asname or alias.name
            if not target.startswith("diffattn"):
                module.external[bound] = ast.unparse(ast.ImportFrom(target, [alias], 0))
                continue
            whole = f"{target}.{alias.name}"
            if whole in _REPLACED:
                module.aliases[bound] = (_REPLACED[whole].rpartition(".")[0], "substitutes")
            elif whole in LEFT_OUT:
                module.aliases[bound] = (whole, "")
            else:
                module.aliases[bound] = (_REPLACED.get(target, target), alias.name)


def _bound(node: ast.stmt) -> tuple[str, ...]:
    """Names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return (node.name,)
    return tuple(
        dict.fromkeys(
            inner.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        )
    )


def _resolved(name: str, module: Module) -> Symbol | None:
    """What a global name of a module stands for, if it is one of ours."""
    if any(name in statement.names for statement in module.statements):
        return module.name, name
    return module.aliases.get(name)


def references(
    node: ast.AST, module: Module, local: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.AST, Symbol]]:
    """Every use of a global name of ours, by node; names that a function binds are its own."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        symbol = None if node.value.id in local else module.aliases.get(node.value.id)
        if symbol is not None:
            target = ".".join(filter(None, symbol))
            if symbol[1] == "" or _is_module(target):
                yield node, (target, node.attr)
                return
    if isinstance(node, ast.Name) and node.id not in local:
        symbol = _resolved(node.id, module)
        if symbol is not None:
            yield node, symbol
    inner = local
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        named += [x for x in (arguments.vararg, arguments.kwarg) if x is not None]
        body = node.body if isinstance(node, ast.FunctionDef) else [node.body]
        stored = {name for statement in body for name in _all_bound(statement)}
        inner = local | stored | {x.arg for x in named}
        outside: list[Any] = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        outside += [x.annotation for x in named if x.annotation]
        outside += [*getattr(node, "decorator_list", []), getattr(node, "returns", None)]
        for child in filter(None, outside):
            yield from references(child, module, local)
        for child in body:
            yield from references(child, module, inner)
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        inner = local | {name for part in node.generators for name in _bound_in(part.target)}
    for child in ast.iter_child_nodes(node):
        yield from references(child, module, inner)


def _bound_in(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _all_bound(node: ast.AST) -> Iterator[str]:
    """Names bound in a function's body, imports and inner functions included."""
    if isinstance(node, ast.FunctionDef):
        yield node.name
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp | ast.Lambda):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _all_bound(child)

"""One self-contained file out of the sources of the model: it cannot differ from what runs here.

The sources are read as text and never changed in meaning: definitions that the models need are laid
one after another, imports of ours fall away, and a name that two modules use for different things
gets its module's name in front. What needs the whole package is replaced, see
:mod:`diffattn.models.remote_code.substitutes`, or left out.
"""

import ast
import builtins
import re
from functools import cache
from typing import Any

from diffattn import __version__
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.remote_code.auto_map import AUTO_MAP
from diffattn.models.remote_code.sources import (
    LEFT_OUT,
    LEFT_OUT_MEMBERS,
    PACKAGE_ONLY,
    REPLACED_MEMBERS,
    ROOT,
    Module,
    Statement,
    Symbol,
    read,
    references,
)

_HEADER = f'''\
"""DIFF Transformer family for Hugging Face: differential attention, in one file.

Made by diffattn {__version__} out of its own sources when the model beside this file was saved. Do
not edit: change the package and save again. The package has faster kernels and the same results to
rounding; where its models are imported, they are used and this file is not read.

Licence: Apache-2.0, http://www.apache.org/licenses/LICENSE-2.0
Papers: arXiv:2410.05258 (DIFF Transformer), arXiv:2501.17900 (Shared DIFF Transformer).
"""'''


@cache
def single_file() -> str:
    """The file's text: configuration, models and layers of every attention type.

    It needs torch and transformers (and what transformers itself brings), and follows from the
    sources of this package alone.
    """
    modules: dict[str, Module] = {}
    read(ROOT, modules)
    for module in modules.values():
        for statement in module.statements:
            _find_uses(statement, modules)
    kept = _needed(modules)
    names = _final_names(kept)
    external: dict[str, str] = {}
    pieces = []
    for module in modules.values():
        texts = [_text(s, names, external) for s in module.statements if s in kept]
        if texts:
            pieces += [f"# From {module.name}.", *texts]
    return "\n\n\n".join([f"{_HEADER}\n\n" + _imports(external), *pieces]) + "\n"


def _imports(lines: dict[str, str]) -> str:
    """Import statements by name they bind, one for each module."""
    whole = sorted(line for line in lines.values() if line.startswith("import "))
    parts: dict[str, list[str]] = {}
    for line in sorted(set(lines.values()) - set(whole)):
        origin, _, name = line.removeprefix("from ").partition(" import ")
        parts.setdefault(origin, []).append(name)
    return "\n".join(
        [*whole, *(f"from {origin} import {', '.join(names)}" for origin, names in parts.items())]
    )


def _find_uses(statement: Statement, modules: dict[str, Module]) -> None:
    """Decide what of a statement falls away, and note what the rest needs."""
    module = statement.module
    for node in ast.walk(statement.node):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            _shorten_docstring(node, statement)
        if isinstance(node, ast.ClassDef):
            _change_class(node, statement, modules)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and _is_left_out(value, module):
                    first, end = module.starts[key.lineno - 1], module.span(value)[1]
                    assert module.source[end : end + 2] == b",\n", "an entry has a line of its own"
                    statement.edits.append((first, end + 2, ""))
    for node, symbol in statement.references:
        if not _is_cut(module.span(node)[0], statement):
            statement.uses.add(symbol)


def _is_left_out(node: ast.AST, module: Module) -> bool:
    return any(target in LEFT_OUT for _, (target, _) in references(node, module))


def _is_cut(place: int, statement: Statement) -> bool:
    return any(start <= place < end for start, end, _ in statement.edits)


def _shorten_docstring(node: Any, statement: Statement) -> None:
    """Its first paragraph; the rest is in the package."""
    if not ast.get_docstring(node):
        return
    start, end = statement.module.span(node.body[0])
    text = statement.module.source[start:end].decode()
    first, blank, _ = text.partition("\n\n")
    if blank:
        statement.edits.append((start, end, f'{first}"""'))


def _change_class(node: ast.ClassDef, statement: Statement, modules: dict[str, Module]) -> None:
    module = statement.module
    for base, following in zip(node.bases, node.bases[1:], strict=False):
        if _is_left_out(base, module):
            statement.edits.append((module.span(base)[0], module.span(following)[0], ""))
    for member in node.body:
        if not isinstance(member, ast.FunctionDef):
            continue
        first = member.decorator_list[0].lineno if member.decorator_list else member.lineno
        whole = (module.starts[first - 1], module.span(member)[1])
        if (module.name, member.name) in LEFT_OUT_MEMBERS:
            statement.edits.append((*whole, ""))
        place = (module.name, f"{node.name}.{member.name}")
        if place in REPLACED_MEMBERS:
            other = modules[REPLACED_MEMBERS[place]]
            owner: Any = other.defined()[node.name].node
            (method,) = (x for x in owner.body if getattr(x, "name", "") == member.name)
            start, end = other.starts[method.lineno - 1], other.span(method)[1]
            statement.edits.append((*whole, other.source[start:end].decode()))


def _needed(modules: dict[str, Module]) -> list[Statement]:
    """The statements that the models need, by following what each uses."""
    waiting = [(ROOT, reference.rpartition(".")[2]) for reference in AUTO_MAP.values()]
    waiting += [row.layer for row in ATTENTION.values()]
    kept: list[Statement] = []
    for statement in modules[ROOT].statements:
        text = statement.module.source[slice(*statement.module.span(statement.node))].decode()
        if not statement.names and not PACKAGE_ONLY.match(text):
            kept.append(statement)
            waiting += statement.uses
    defined = {(m.name, n): s for m in modules.values() for n, s in m.defined().items()}
    while waiting:
        symbol = waiting.pop()
        if symbol not in defined:  # imported there from elsewhere
            symbol = modules[symbol[0]].aliases[symbol[1]]
            waiting.append(symbol)
        elif defined[symbol] not in kept:
            kept.append(defined[symbol])
            waiting += defined[symbol].uses
    return kept


def _final_names(kept: list[Statement]) -> dict[Symbol, str]:
    """The names in the file: their own where that is possible and means one thing."""
    symbols = [(s.module.name, name) for s in kept for name in s.names]
    taken = {*dir(builtins), *(name for s in kept for name in s.module.external)}
    qualified = set()
    for statement in kept:
        for node, symbol in statement.references:
            if isinstance(node, ast.Attribute) or getattr(node, "id", None) != symbol[1]:
                qualified.add(symbol)
    plain = [name for module, name in symbols if (module, name) not in qualified]
    final = {}
    for module, name in symbols:
        if (module, name) in qualified or name in taken or plain.count(name) > 1:
            private = "_" if name.startswith("_") else ""
            name_there = f"{private}{module.rpartition('.')[2]}_{name.lstrip('_')}"
        else:
            name_there = name
        final[module, name] = name_there
    used = {x.id for s in kept for x in ast.walk(s.node) if isinstance(x, ast.Name)}
    for (module, name), there in final.items():
        if there != name and (there in used or list(final.values()).count(there) > 1):
            raise AssertionError(f"{module}.{name}: {there} is taken")
    return final


def _text(statement: Statement, names: dict[Symbol, str], external: dict[str, str]) -> str:
    """A statement as it stands in the file; what it imports is added to ``external``."""
    module, node = statement.module, statement.node
    edits = list(statement.edits)
    for reference, symbol in statement.references:
        start, end = module.span(reference)
        if _is_cut(start, statement) or symbol not in names:
            continue
        edits.append((start, end, names[symbol]))
    for inner in ast.walk(node):
        name = inner.id if isinstance(inner, ast.Name) else ""
        if name in module.external and not _is_cut(module.span(inner)[0], statement):
            _add_import(name, module.external[name], external)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        start = module.source.index(node.name.encode(), module.span(node)[0])
        edits.append((start, start + len(node.name), names[module.name, node.name]))
    begin, end = module.starts[statement.first_line - 1], module.span(node)[1]
    text = module.source[begin:end]
    for start, stop, new in sorted(edits, reverse=True):
        text = text[: start - begin] + new.encode() + text[stop - begin :]
    result = re.sub(r"  # (fmt: skip|type: ignore\S*)$", "", text.decode(), flags=re.MULTILINE)
    return re.sub(r"\n(?: *\n){2,}", "\n\n", result)


def _add_import(name: str, line: str, external: dict[str, str]) -> None:
    if external.setdefault(name, line) != line:
        raise AssertionError(f"{name} is imported in two ways: {line}; {external[name]}")

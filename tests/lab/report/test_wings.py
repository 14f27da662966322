"""Wings of the report stand on page/ alone, and templates write every tag."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffattn.lab.report

REPORT = Path(diffattn.lab.report.__file__).parent
WINGS = {
    "study", "sections", "evaluation", "benchmarks",
    "claims", "viewer", "analysis",
}  # fmt: skip
FILES = sorted(path.relative_to(REPORT).as_posix() for path in REPORT.rglob("*.py"))


def imports_of(path):
    """Modules of the report that a file imports, from ``report/`` on."""
    names = []
    for node in ast.walk(ast.parse((REPORT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [
        name.removeprefix("diffattn.lab.report.")
        for name in names
        if "diffattn.lab.report." in name
    ]


@pytest.mark.parametrize("path", FILES)
def test_a_wing_imports_itself_and_what_all_pages_share(path):
    folder = path.split("/")[0] if "/" in path else ""
    allowed = {"": WINGS | {"page"}, "page": {"page"}}.get(folder, {folder, "page", "paper"})
    assert {name.split(".")[0] for name in imports_of(path)} <= allowed


def test_imports_form_no_circle():
    modules = {path.removesuffix(".py").replace("/", ".") for path in FILES}
    below = {}
    for path in FILES:
        names = imports_of(path)
        below[path.removesuffix(".py").replace("/", ".")] = {
            module for module in modules for name in names if f"{name}.".startswith(f"{module}.")
        }
    while leaves := [module for module, names in below.items() if not names]:
        below = {m: names - set(leaves) for m, names in below.items() if m not in leaves}
    assert not below


@pytest.mark.parametrize("path", FILES)
def test_python_writes_no_tags(path):
    """``<br>`` and ``<extra>`` are how plotly ends lines and hover texts."""
    for node in ast.walk(ast.parse((REPORT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            tags = set(re.findall(r"</?([a-z]\w*)[^<>]*>", node.value))
            assert tags <= {"br", "extra"}, node.value


def test_safe_html_is_made_in_one_place():
    """The plotly script; templates mark nothing as safe."""
    uses = {path: (REPORT / path).read_text(encoding="utf-8").count("Markup(") for path in FILES}
    assert {path: count for path, count in uses.items() if count} == {"page/render.py": 1}
    for template in (REPORT / "templates").glob("*.j2"):
        assert not re.search(r"\|\s*safe|autoescape", template.read_text(encoding="utf-8"))


def test_what_only_a_page_needs_is_loaded_for_a_page():
    code = "import sys, diffattn.lab.report.build; print({'jinja2', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

"""Templates write every tag, and a page loads its libraries alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffattn.lab.report

REPORT = Path(diffattn.lab.report.__file__).parent
FILES = sorted(path.relative_to(REPORT).as_posix() for path in REPORT.rglob("*.py"))


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

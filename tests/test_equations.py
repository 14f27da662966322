"""Each row of docs/reference/equations.md names code that exists, cites its source, has a test."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _rows():
    lines = (ROOT / "docs" / "reference" / "equations.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")][2:]
    for line in table:
        cells = [cell.strip() for cell in line.replace("\\|", "∣").strip("|").split(" | ")]
        source, _, function, file, test = (cell.strip("` ") for cell in cells)
        yield pytest.param(source, function, file, test, id=function)


@pytest.mark.parametrize(("source", "function", "file", "test"), list(_rows()))
def test_row(source, function, file, test):
    module_name, name = f"diffattn.{function}".rsplit(".", 1)
    module = import_module(module_name)
    implementation = getattr(module, name)
    assert Path(module.__file__) == ROOT / file
    sources = [
        line.strip()
        for line in implementation.__doc__.splitlines()
        if line.strip().startswith("Source:")
    ]
    assert any(source in line for line in sources), (
        f"{function} must name {source!r}, got {sources}"
    )
    assert name in (ROOT / test).read_text(encoding="utf-8")


def test_the_table_is_read():
    assert len(list(_rows())) > 10

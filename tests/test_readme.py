"""Documents name files that exist, and their tables are what records generate."""

import re
from pathlib import Path

import pytest

from tools.pages.bench_tables import replace_tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for path in sorted((ROOT / "docs").glob("**/*.md")) if "records" not in path.parts),
]
BENCHMARKS = (ROOT / "docs" / "findings" / "benchmarks.md").read_text(encoding="utf-8")


def test_it_is_read_in_a_minute():
    assert len(README.split()) <= 1_000


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_named_file_exists(page):
    text = page.read_text(encoding="utf-8")
    folders = "docs|examples|tests|src|published|benchmarks|tools"
    named = re.findall(rf"`((?:{folders})/[\w/.]+|CITATION\.cff|LICENSE)`", text)
    linked = re.findall(r"\]\((docs/[\w/.]+)\)", text)
    assert [name for name in [*named, *linked] if not (ROOT / name).exists()] == []


def test_benchmark_tables_are_what_their_records_generate():
    """After a new record: ``python -m tools.pages.bench_tables docs/findings/benchmarks.md``."""
    assert replace_tables(BENCHMARKS, ROOT) == BENCHMARKS

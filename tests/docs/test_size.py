"""Documents stay short, and long tables stay on the report page or in a record."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [path for path in sorted(DOCS.glob("**/*.md")) if "records" not in path.parts]
LONG_TABLES = {"equations.md"}
"""Tables that a test reads row by row."""


def count_words(*paths):
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def test_all_documents_are_an_afternoon():
    assert count_words(*PAGES) <= 24_000


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("docs/guides/*.md", 720), ("docs/protocols/*.md", 720), ("docs/log.md", 8_000)],
)
def test_a_page_is_short(pattern, words):
    counts = {path.name: count_words(path) for path in ROOT.glob(pattern)}
    assert {name: count for name, count in counts.items() if count > words} == {}


def test_the_changelog_of_a_version_is_short():
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert len(versions[1].split()) <= 600


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_tables_fit_the_page(page):
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if page.name not in LONG_TABLES:
        assert all(len(table.splitlines()) - 2 <= 12 for table in tables)

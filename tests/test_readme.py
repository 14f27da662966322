"""The README: files that it names exist, and tables here and in docs are what records generate."""

import re
from pathlib import Path

from diffattn.lab.report.benchmarks.tables import replace_tables
from diffattn.lab.report.build import markdown_results

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_the_example_stands_near_the_top():
    lines = README.splitlines()
    first = lines.index("```python")
    assert lines.index("```", first) <= 26


def test_it_is_read_in_a_minute():
    assert len(README.split()) <= 1_000


def test_every_named_file_exists():
    named = r"`((?:docs|examples|tests|src|published|benchmarks)/[\w/.]+|CITATION\.cff|LICENSE)`"
    for name in [*re.findall(named, README), *re.findall(r"\]\((docs/[\w/.]+)\)", README)]:
        assert (ROOT / name).exists(), name


def test_the_results_table_is_the_committed_study():
    """As ``diffattn report published/text --markdown`` prints it."""
    table = markdown_results(ROOT / "published" / "text")
    assert table in RESULTS
    types, controls = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()[2:]]
        for part in re.findall(r"^\|.*(?:\n\|.*)+", table, flags=re.MULTILINE)[:2]
    )
    assert len(types) == 4
    for name, _, loss, _, difference, interval, *_ in types:
        assert f"| {name} | {loss} | {difference} | {interval} |" in README
    shown = [
        f"| {name} | {loss} | {difference} | {interval} |" in README
        for name, _, loss, _, against, difference, interval, *_ in controls
        if against == types[0][0]
    ]
    assert sum(shown) >= 2  # without attention, and the best of them


def test_benchmark_tables_are_what_their_records_generate():
    """After a new record: ``python -m diffattn.lab.report.benchmarks.tables
    docs/benchmarks.md``."""
    assert replace_tables(BENCHMARKS, ROOT) == BENCHMARKS


def test_the_recall_table_is_what_its_records_generate():
    """After a new study: ``diffattn report published/recall --markdown``."""
    assert markdown_results(ROOT / "published" / "recall") in RESULTS

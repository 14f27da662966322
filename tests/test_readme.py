"""The README's Python runs as printed, and shows the values it promises."""

import re
from pathlib import Path

from diffattn.report.benchmarks.tables import replace_tables
from diffattn.report.recall.tables import recall_markdown

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_python_example(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    promised = [
        line.rsplit("  # ", 1)[1].strip()
        for line in block.splitlines()
        if line.startswith("print(")
    ]
    assert capsys.readouterr().out.splitlines() == promised


def test_the_example_stands_near_the_top():
    lines = README.splitlines()
    first = lines.index("```python")
    assert lines.index("```", first) <= 26


def test_every_named_file_exists():
    root = Path(__file__).parent.parent
    for name in re.findall(r"`((?:docs|tests|src)/[\w/.]+|CITATION\.cff|LICENSE)`", README):
        assert (root / name).exists(), name


def test_benchmark_tables_are_what_their_records_generate():
    """After a new record: ``python -m diffattn.report.benchmarks.tables README.md``."""
    assert replace_tables(README, Path(__file__).parent.parent) == README


def test_the_recall_table_is_what_its_records_generate():
    """After a new study: ``diffattn report published/recall --markdown``."""
    study = Path(__file__).parent.parent / "published" / "recall"
    assert recall_markdown(study) in README

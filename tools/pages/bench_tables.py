"""Tables of benchmarks in Markdown, from their records.

``PYTHONPATH=src python -m tools.pages.bench_tables FILE`` regenerates all tables of a Markdown file
between ``<!-- bench: RECORD KEY=VALUE... -->`` and ``<!-- /bench -->``. RECORD is a path from the
working directory. Keys are ``suite``, ``dtype``, ``mode`` and entries of the shape. Several values
are separated by commas.
"""

import re
import sys
from pathlib import Path

from diffattn.errors import ConfigError
from diffattn.files.io import write_text
from diffattn.lab.records.results import BenchResult
from diffattn.lab.report.benchmarks.tables import case_tables, run_text
from diffattn.lab.report.page.tables import table_markdown

_MARKED = re.compile(r"(<!-- bench: (\S+)((?: \w+=\S+)*) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


def markdown(result: BenchResult, chosen: dict[str, str] | None = None) -> str:
    """The tables of a record. ``chosen``: as in the marks above, keys -> comma-separated values."""
    cases = []
    for case in result.cases:
        facts = {"suite": case.suite, "dtype": case.dtype, "mode": case.mode, **case.shape}
        wanted = (chosen or {}).items()
        if all(str(facts.get(name)) in values.split(",") for name, values in wanted):
            cases.append(case)
    if not cases:
        raise ConfigError(f"bench table: the record must hold a case of {chosen}, got none.")
    runs = dict.fromkeys(case.run for case in cases)
    parts = [*map(table_markdown, case_tables(cases))]
    parts.append("\n".join(run_text(result, name) for name in runs) + "\n")
    return "\n".join(parts)


def replace_tables(text: str, root: Path) -> str:
    """``text`` with every marked table generated from its record under ``root``."""

    def table(match: re.Match[str]) -> str:
        head, name, options, _, end = match.groups()
        chosen = dict(part.split("=", 1) for part in options.split())
        return f"{head}{markdown(BenchResult.read(root / name), chosen)}{end}"

    return _MARKED.sub(table, text)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument).resolve()
        write_text(file, replace_tables(file.read_text(encoding="utf-8"), Path.cwd()))

"""Words for benchmark cases: titles, times, ratios, checks and verdicts. Plain text throughout."""

from collections.abc import Iterable

from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow, Spread
from diffattn.lab.report.page.runs import is_number
from diffattn.lab.report.page.wording import MISSING, number, span


def case_title(case: BenchCase) -> str:
    """Shape, dtype, what was timed, and the run."""
    return f"{shape_text(case)}, {case.dtype}, {mode_text(case)} on {case.device} ({case.run})"


def shape_text(case: BenchCase) -> str:
    """``"B1 H4 d64 N512"``."""
    return " ".join(
        f"{name}{' ' if len(name) > 1 else ''}{value}" for name, value in case.shape.items()
    )


def mode_text(case: BenchCase) -> str:
    """The pass that was timed, as in ``"forward + backward"``."""
    return case.mode.replace("_", " + ")


def fastest(case: BenchCase, role: str) -> BenchRow | None:
    """The fastest contender of a role that was timed."""
    timed = [row for row in case.rows if row.role == role and row.seconds]
    return min(timed, key=lambda row: row.seconds.median if row.seconds else 0.0, default=None)


def milliseconds(value: Spread | None) -> str:
    """Median and quartiles."""
    if value is None:
        return MISSING
    middle, low, high = (figure(1e3 * x) for x in (value.median, value.low, value.high))
    return f"{middle} ms ({low} to {high})"


def times(value: Spread | None, *, spread: bool = True) -> str:
    """A ratio as a factor, with its quartiles."""
    if value is None:
        return MISSING
    text = f"{number(value.median, 2)}×"
    return f"{text} ({span(value.low, value.high, 2)})" if spread else text


def check_text(row: BenchRow) -> str:
    """The contender's error against the reference, or why it did not run."""
    if row.status != "ok":
        return f"{row.status}: {row.reason}"
    check = row.check or {}
    error, budget = check.get("error"), check.get("budget")
    if not (is_number(error) and is_number(budget)):
        return MISSING
    return f"right ({error:.1e} of {budget:.1e}, {check.get('compared')})"


def targets_in_words(cases: Iterable[BenchCase]) -> str:
    """How many targets were met, and each that was missed."""
    verdicts = [(case, verdict) for case in cases for verdict in case.verdicts]
    if not verdicts:
        return "No target covers these shapes."
    missed = [(case, verdict) for case, verdict in verdicts if not verdict.passed]
    lines = [f"Targets: {len(verdicts) - len(missed)} of {len(verdicts)} met."]
    lines += [
        f"  {verdict}: {verdict.contender} {verdict.target} "
        f"({verdict.value:.3g}), {case_title(case)}"
        for case, verdict in missed
    ]
    return "\n".join(lines)


def verdict_text(case: BenchCase) -> str:
    """Every target of a case; misses are spelled out."""
    if not case.verdicts:
        return "no target"
    missed = [v for v in case.verdicts if not v.passed]
    if not missed:
        return "pass"
    return "; ".join(f"{v}: {v.contender}, {v.target}" for v in missed)


def run_text(result: BenchResult, name: str) -> str:
    """One line about a run: machine, versions, commit."""
    run = result.runs[name]
    machine = run.hardware.get("gpu") or run.hardware.get("processor")
    commit = "no commit" if run.commit is None else f"commit {run.commit[:12]}"
    changed = ", with uncommitted files" if run.dirty else ""
    threads = run.hardware.get("threads")
    return (
        f"{name}: {machine}, {threads} thread{'' if threads == 1 else 's'}, "
        f"torch {run.versions.get('torch')}, {run.created[:10]}, {commit}{changed}."
    )


def figure(value: float) -> str:
    """Three significant digits without an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return number(value, digits)

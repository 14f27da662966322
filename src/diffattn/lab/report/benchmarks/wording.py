"""Plain-text words for benchmark cases: titles, times, ratios and verdicts."""

from collections.abc import Iterable

from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow, Spread
from diffattn.lab.report.page.wording import MISSING, number, span


def case_title(case: BenchCase) -> str:
    """Shape, dtype, timed pass, device and run."""
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


def times(value: Spread | None, *, spread: bool = True) -> str:
    """A ratio as a factor, with its quartiles."""
    if value is None:
        return MISSING
    text = f"{number(value.median, 2)}×"
    return f"{text} ({span(value.low, value.high, 2)})" if spread else text


def targets_in_words(cases: Iterable[BenchCase]) -> list[str]:
    """Sentences: how many targets were met, and one for each missed target."""
    verdicts = [(case, verdict) for case in cases for verdict in case.verdicts]
    if not verdicts:
        return ["We set no target for these shapes."]
    missed = [(case, verdict) for case, verdict in verdicts if not verdict.passed]
    return [f"{len(verdicts) - len(missed)} of {len(verdicts)} targets met."] + [
        f"Missed by {verdict.contender} at {shape_text(case)}, {case.dtype}: {verdict.target} "
        f"is the {'goal' if verdict.goal else 'target'}, measured {verdict.value:.2f} ×."
        for case, verdict in missed
    ]


def verdict_text(case: BenchCase) -> str:
    """``"pass"``, ``"no target"``, or the missed targets of a case."""
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

"""Results on disk: BenchResult, one file of benchmark measurements with their provenance."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffattn.lab.records.fields import FileRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A value over the rounds of one measurement: median, quartiles and extremes."""

    median: float
    low: float
    high: float
    minimum: float
    maximum: float
    rounds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One contender on one case. A contender that failed its check has no times."""

    contender: str
    role: str
    """``"T"`` (PyTorch's softmax attention), ``"TC"`` (softmax by our technique), ``"DIFF"``."""
    backend: str | None
    """The backend that ran; ``None`` if none did."""
    status: str
    """``"ok"``, ``"failed"`` (wrong or crashed) or ``"not run"``."""
    reason: str | None = None
    """Why it failed or was not run. With status ``"ok"``: why its memory was not measured."""
    check: dict[str, Any] | None = None
    """Largest error against the float64 reference, its budget, and the tensors compared."""
    seconds: Spread | None = None
    """Time of one call; on a GPU the time on the device."""
    host_seconds: float | None = None
    """On a GPU: time until the CPU has queued a call, with an idle device."""
    ratio_t: Spread | None = None
    """Time divided by T's time in the same round."""
    ratio_tc: Spread | None = None
    """Time divided by that of softmax attention by the same technique in the same round."""
    ratio_two_calls: Spread | None = None
    """Time divided by that of the paper's two calls in the same round."""
    peak_bytes: int | None = None
    """Largest memory above the inputs, over forward and backward pass."""
    held_bytes: int | None = None
    """Memory held between forward and backward pass, with the output."""
    flops: int | None = None
    """Of the matrix products; attention counts causal pairs only."""
    flops_per_second: float | None = None
    share_of_peak: float | None = None
    """``flops_per_second`` divided by the rate of a plain matrix product in the same process."""
    tokens_per_second: float | None = None
    cache_bytes: int | None = None
    """In generation: bytes of the keys and values of all cached tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a contender meets a target on one case."""

    target: str
    """The target in words, for example ``"forward at most 1.05 × T"``."""
    contender: str
    value: float
    limit: float
    goal: bool = False
    """Whether the target is a goal that we do not promise to meet."""

    @property
    def passed(self) -> bool:
        """Whether the value is at most the limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        words = "pass" if self.passed else f"short by {self.value - self.limit:.3g}"
        return words + (" (goal)" if self.goal else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchCase:
    """Every contender on one shape, measured together."""

    suite: str
    run: str
    device: str
    dtype: str
    mode: str
    """``"forward"``, ``"backward"``, ``"forward_backward"``, ``"prefill"`` or ``"decode"``."""
    shape: dict[str, int | str]
    created: str
    matmul_flops_per_second: float | None
    """Best rate of a plain matrix product in this dtype, in the same process."""
    rows: list[BenchRow]
    verdicts: list[Verdict] = field(default_factory=list)

    def row(self, contender: str) -> BenchRow | None:
        """The row of one contender, or ``None``."""
        return next((row for row in self.rows if row.contender == contender), None)


def shape_text(shape: Mapping[str, Any]) -> str:
    """``"B1 H4 d64 N512"``."""
    return " ".join(f"{name}{' ' if len(name) > 1 else ''}{size}" for name, size in shape.items())


def case_key(case: Any) -> tuple[str, ...]:
    """Identifies the timed operation of a case, planned or measured."""
    shape = ",".join(f"{name}={value}" for name, value in sorted(case.shape.items()))
    return (case.suite, case.device, case.dtype, case.mode, shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRun:
    """Provenance of numbers. Runs of different code, machines or settings have different names."""

    name: str
    created: str
    commit: str | None
    dirty: bool | None
    source: str
    """Hash of the package's source files that can change a measurement."""
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BenchResult(FileRecord):
    """One file of benchmark cases and their runs. ``runs``: name of a run -> its provenance."""

    KIND = "benchmark"

    runs: dict[str, BenchRun] = field(default_factory=dict)
    cases: list[BenchCase] = field(default_factory=list)

    def find(self, key: tuple[str, ...], run: str) -> BenchCase | None:
        """The case that this run has measured already, or ``None``."""
        return next((case for case in self.cases if (case_key(case), case.run) == (key, run)), None)

    def put(self, case: BenchCase, run: BenchRun) -> "BenchResult":
        """A new result in which ``case`` replaces the case of the same key, of any run."""
        measured = {case_key(old): old for old in self.cases} | {case_key(case): case}
        cases = list(measured.values())
        used = {kept.run for kept in cases}
        runs = {name: old for name, old in self.runs.items() if name in used}
        return BenchResult(runs=runs | {run.name: runs.get(run.name, run)}, cases=cases)


def read_benchmarks(paths: Iterable[Path]) -> dict[Path, BenchResult]:
    """The records of files and of folders of files, in the order of their names.

    Records of ``bench host`` are of another kind: they are left out of a folder.
    """
    files: list[Path] = []
    for path in paths:
        within = sorted(x for x in path.glob("*.json") if not x.name.startswith("host_"))
        files += within if path.is_dir() else [path]
    return {file: BenchResult.read(file) for file in files}

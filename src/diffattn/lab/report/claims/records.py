"""The committed records that claims are read from; every one of them may be missing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.evaluations import Comparison, EvalResult, evaluation_marker
from diffattn.lab.records.fields import AtLeast, Probability
from diffattn.lab.records.results import BenchResult
from diffattn.lab.report.page.runs import TEXT_SCHEMA, read_checked

TEXT = "published/text"
ABLATIONS = "published/ablations"
RANK = "published/rank"
"""Studies of rows: as of text, with one learning rate."""
RECALL = "published/recall"
STABILITY = "published/stability"
SCALING = "published/scaling"
GRADIENT_FLOW = "published/gradient_flow"
EVALUATIONS = "published/evaluations"
"""Folders of ``diffattn evaluate``; models are called ``diff-seed0`` and the like."""
BENCHMARKS = "benchmarks/results"


class _Values(TypedDict):
    values: list[float]


class _Group(TypedDict):
    learning_rate: NotRequired[float]
    runs: list[str]
    validation_loss: _Values
    parts: dict[str, _Values]
    phase_steps: NotRequired[list[int | None] | None]


class _Variant(TypedDict):
    parameters: int
    at: dict[str, _Group]


class _Verdict(TypedDict):
    informative: bool
    sentence: str
    reasons: list[str]


class _Rates(TypedDict):
    variants: dict[str, Any]


class _Text(TypedDict):
    """``results.json`` of a study of text."""

    seeds: list[int]
    rates: _Rates
    variants: dict[str, _Variant]
    verdict: _Verdict


class _RecallType(TypedDict):
    runs: list[str]
    trials: int
    solved: int
    solved_steps: list[int | None]


class _RecallTest(TypedDict):
    types: list[str]
    fisher_exact: Probability
    log_rank: Probability
    sooner: str | None


class _RecallVerdict(TypedDict):
    verdict: str
    sentence: str
    pairs: NotRequired[list[dict[str, Any]]]


class _RecallTask(TypedDict):
    types: dict[str, _RecallType]
    tests: list[_RecallTest]
    num_steps: int
    can: NotRequired[_RecallVerdict]
    sooner: NotRequired[_RecallVerdict]


class _Recall(TypedDict):
    tasks: dict[str, _RecallTask]


class _StabilityRate(TypedDict):
    learning_rate: float
    median_gradient_norms: list[float | None]


class _StabilityType(TypedDict):
    rates: Annotated[list[_StabilityRate], AtLeast(1)]


class _StabilityDifference(TypedDict):
    type: str
    baseline: str
    metric: str
    learning_rate: float | None
    values: Annotated[list[float], AtLeast(1)]
    rates: NotRequired[Annotated[list[float], AtLeast(1)]]
    why: NotRequired[str]


class _Stability(TypedDict):
    types: dict[str, _StabilityType]
    attending: dict[str, list[float]] | None
    differences: list[_StabilityDifference]


class _GradientJudgement(TypedDict):
    id: str
    values: list[Annotated[float, AtLeast(0)]]
    why: str


class _GradientFlow(TypedDict):
    judgements: list[_GradientJudgement]


class _ScalingFit(TypedDict):
    points: int
    parameters: dict[str, Any]


class _ScalingPoint(TypedDict):
    loss: _Values
    """One per seed."""


class _ScalingType(TypedDict):
    points: Annotated[list[_ScalingPoint], AtLeast(1)]
    fit: _ScalingFit


class _ScalingEquivalent(TypedDict):
    type: str
    baseline: str
    point: int
    ratio: Annotated[float, AtLeast(0)] | None
    low: float | None
    high: float | None
    level: Probability | None
    refused: str | None


class _ScalingAxis(TypedDict):
    read_at: int
    types: dict[str, _ScalingType]
    equivalents: list[_ScalingEquivalent]


class _ScalingAxes(TypedDict):
    parameters: _ScalingAxis
    tokens: _ScalingAxis


class _ScalingSaid(TypedDict):
    informative: bool
    sentence: str


class _ScalingVerdicts(TypedDict):
    parameters: _ScalingSaid
    tokens: _ScalingSaid


class _ScalingVerdict(TypedDict):
    axes: _ScalingVerdicts


class _Scaling(TypedDict):
    axes: _ScalingAxes
    verdict: _ScalingVerdict


@dataclass(frozen=True, kw_only=True)
class ClaimRecords:
    """What has been measured; ``None`` or empty where nothing has."""

    text: Mapping[str, Any] | None = None
    """A study by ``matched_comparison``."""
    ablations: Mapping[str, Any] | None = None
    rank: Mapping[str, Any] | None = None
    recall: Mapping[str, Any] | None = None
    stability: Mapping[str, Any] | None = None
    scaling: Mapping[str, Any] | None = None
    gradient_flow: Mapping[str, Any] | None = None
    evaluations: tuple[EvalResult, ...] = ()
    floors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Protocol, and kind of model compared with the baseline, to why their scores tell nothing:
    neither is above guessing, or both have everything right."""
    benchmarks: tuple[BenchResult, ...] = ()


def records_of_kind(kind: str, folder: Path) -> Mapping[str, Any] | None:
    """What claims read of one study; ``None`` if it has not finished.

    Args:
        kind: A key of :data:`STUDIES`.
        folder: Study folder.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    return _READERS[kind](folder)


def read_evaluations(folder: Path) -> list[EvalResult]:
    """Every finished result of one evaluation folder.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    names = evaluation_marker(folder)
    paths = [folder / label / variant for label in names["models"] for variant in names["variants"]]
    return [EvalResult.read(path) for path in paths if (path / "result.json").exists()]


def read_floors(folder: Path, results: Iterable[EvalResult]) -> dict[tuple[str, str], str]:
    """What the comparison of an evaluation folder says tells nothing, over seeds.

    Args:
        folder: Evaluation folder.
        results: Of it.

    Raises:
        CheckpointError: ``comparison.json`` is damaged, of another kind or schema version.
    """
    if not (folder / "comparison.json").exists():
        return {}
    protocols = {result.variant: result.protocol for result in results}
    floors = {}
    for of in Comparison.read(folder).differences:
        word, _, why = of.verdict.partition(": ")
        if of.over == "seeds" and word == "uninformative" and of.variant in protocols:
            floors[protocols[of.variant], of.model.partition("-seed")[0]] = why
    return floors


def _read(folder: Path, kind: Any) -> dict[str, Any] | None:
    path = folder / "results.json"
    return read_checked(path, kind) if path.exists() else None


def _recall(folder: Path) -> dict[str, Any] | None:
    recall = _read(folder, _Recall)
    tasks = {} if recall is None else recall["tasks"]
    for task, entry in tasks.items():
        of_types = entry["types"].values()
        steps = {len(of_type["solved_steps"]) for of_type in of_types}
        counts = [(of_type["solved"], of_type["trials"]) for of_type in of_types]
        if len(steps) > 1 or 0 in steps or not all(0 <= a <= b and b > 0 for a, b in counts):
            raise CheckpointError(
                f"{folder / 'results.json'}: the types of {short(task)} must have as many trials, "
                f"one or more, got steps of {short(sorted(steps))} and solved {short(counts)}."
            )
    return recall


def _stability(folder: Path) -> dict[str, Any] | None:
    stability = _read(folder, _Stability)
    types = {} if stability is None else stability["types"]
    seeds = {
        len(at["median_gradient_norms"]) for of_type in types.values() for at in of_type["rates"]
    }
    if len(seeds) > 1:
        raise CheckpointError(
            f"{folder / 'results.json'}: types must have one gradient norm per seed, got "
            f"{short(sorted(seeds))}."
        )
    return stability


def _scaling(folder: Path) -> dict[str, Any] | None:
    scaling = _read(folder, _Scaling)
    for axis, of in ({} if scaling is None else scaling["axes"]).items():
        for row in of["equivalents"]:
            ends = [row["low"], row["high"]]
            if row["ratio"] == 0 or (ends != [None, None] and None in (*ends, row["level"])):
                raise CheckpointError(
                    f"{folder / 'results.json'}: a ratio over {axis} must be positive, with both "
                    f"ends of its interval or none, got {short([row['ratio'], *ends])}."
                )
    return scaling


def _text(folder: Path) -> dict[str, Any] | None:
    path = folder / "results.json"
    if not path.exists():
        return None
    text = read_checked(path, _Text, TEXT_SCHEMA)
    for name, entry in text["variants"].items():
        best = entry["at"].get("best")
        lists: list[list[Any]] = []
        if best is not None:
            lists = [best["runs"], best["validation_loss"]["values"]]
            lists += [part["values"] for part in best["parts"].values()]
        sizes = {len(values) for values in lists}
        # Controls may have the first seeds alone.
        if len(sizes) != 1 or not 1 <= min(sizes) <= len(text["seeds"]):
            raise CheckpointError(
                f"{path}: {short(name)} must hold, at its best rate, one run and value per "
                f"seed, got lists of {short([len(values) for values in lists])}."
            )
    return text


_READERS = {
    "text": _text,
    "ablations": _text,
    "rank": _text,
    "recall": _recall,
    "stability": _stability,
    "scaling": _scaling,
    "gradient-flow": lambda folder: _read(folder, _GradientFlow),
}
_PLACES = (TEXT, ABLATIONS, RANK, RECALL, STABILITY, SCALING, GRADIENT_FLOW)
STUDIES = dict(zip(_READERS, _PLACES, strict=True))
"""Kinds of studies to where their committed records lie."""

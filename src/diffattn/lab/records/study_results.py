"""``results.json`` of every kind of study: written by the study, read by reports and claims."""

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from diffattn.files.io import read_json
from diffattn.lab.records.fields import Probability
from diffattn.lab.records.run import require_schema
from diffattn.lab.records.text_results import (
    Mean,
    MeanInterval,
    Outcome,
    Results,
    SeedMean,
    TextResults,
)

AXES = ("parameters", "tokens")
"""Quantities over which a study of scaling fits its losses."""


class _RecallMember(TypedDict):
    like: NotRequired[str]
    learning_rate: float
    inside: NotRequired[bool | None]
    sweep: NotRequired[list[dict[str, Any]]]
    parameter_difference: int
    runs: list[str]
    trials: int
    solved: int
    solved_steps: list[int | None]
    median_step: float | None
    """Median of ``solved_steps``; ``None`` if half of the runs or more did not learn the task."""
    steps: list[int]
    test_accuracy: list[float]
    test_by_query: list[float]
    largest_write: float
    attention: NotRequired[dict[str, dict[str, SeedMean]]]
    """Map -> group of keys -> share of attention."""


class RecallDifference(SeedMean):
    """Difference in steps until a task is learned. Its ``mean`` holds the median over seeds."""

    variant: str
    baseline: str
    p: NotRequired[Probability]
    """P-value of the log-rank test; only types have it."""
    p_holm: NotRequired[Probability]


class Leak(TypedDict):
    """Whether a model without attention answers better than a guess."""

    limit: float
    highest: float
    leaks: bool


class _RecallTaskResult(TypedDict):
    num_steps: int
    ceilings: dict[str, float]
    types: dict[str, _RecallMember]
    controls: dict[str, _RecallMember]
    differences: list[RecallDifference]
    leak: Leak
    uninformative: str
    """Why the task says nothing about types; empty if it is informative."""


class RecallResults(Results):
    """A study of recall."""

    kind: Literal["recall"]
    tasks: dict[str, _RecallTaskResult]


class _PracticalMember(TypedDict):
    learning_rate: float
    parameter_difference: int
    runs: list[str]
    test_accuracy: Mean
    measures: dict[str, Mean]
    """Empty if a run diverged."""
    learned: int
    """Number of runs above the middle between a guess and a perfect answer, or a vote."""


class PracticalDifference(MeanInterval):
    """A model minus softmax attention in one measure, paired by seed."""

    type: str
    measure: str
    p_value: Probability | None
    p_holm: Probability | None


class _PracticalTask(TypedDict):
    guesses: dict[str, float]
    best: dict[str, float]
    """Measure -> best possible value, where that is not 0 or 1."""
    members: dict[str, _PracticalMember]
    differences: list[PracticalDifference]


class PracticalResults(Results):
    """A practical study."""

    kind: Literal["practical"]
    tasks: dict[str, _PracticalTask]


class _StabilityRate(TypedDict):
    learning_rate: float
    runs: list[str]
    diverged: list[bool]
    diverged_steps: list[int | None]
    median_gradient_norms: list[float | None]
    loss: Mean
    loss_spike_share: Mean
    gradient_spike_share: Mean
    clipped_share: Mean


class _StabilityType(TypedDict):
    rates: list[_StabilityRate]
    sensitivity: Mean


class StabilityDifference(Mean):
    """The paired difference of two models at one learning rate, or of their means over rates."""

    type: str
    baseline: str
    metric: str
    learning_rate: float | None
    rates: NotRequired[list[float]]
    p_value: Probability | None
    p_holm: Probability | None
    why: str
    """Why it says nothing about attention or about large rates; empty if it is informative."""


class StabilityResults(Results):
    """A study of stability."""

    kind: Literal["stability"]
    definition: dict[str, float]
    types: dict[str, _StabilityType]
    attending: dict[str, list[float]]
    differences: list[StabilityDifference]
    verdict: Outcome


class GradientRatio(SeedMean):
    """The size of a gradient or an update divided by that of another model."""

    arm: str
    type: str
    baseline: str
    phase: str
    measure: str
    matrix: str


class HeadSize(TypedDict):
    """The input of the head norm of one layer, and the gain of the norm."""

    arm: str
    type: str
    phase: str
    layer: int
    lambda_init: float
    head_rms: SeedMean
    to_factor: SeedMean
    norm_gain: SeedMean


class Judgement(TypedDict):
    """One claim (``says``), judged by a rule that was fixed before the first run."""

    id: str
    says: str
    bound: float
    phases: list[str]
    why: str
    values: list[float]
    mean: float | None
    low: float | None
    high: float | None
    level: float | None
    verdict: Literal["agrees", "disagrees", "inconclusive", "uninformative"]


class GradientFlowResults(Results):
    """A study of gradient flow."""

    kind: Literal["gradient-flow"]
    definition: dict[str, Any]
    ratios: list[GradientRatio]
    heads: list[HeadSize]
    losses: dict[str, list[float]]
    judgements: list[Judgement]
    verdict: Outcome


class ScalingPoint(TypedDict):
    """The runs of a model at one size and one number of tokens."""

    x: float
    parameters: int
    tokens: int
    runs: list[str]
    loss: SeedMean


class FitResult(TypedDict):
    """The power law of a model, or why there is none."""

    form: str
    points: int
    parameters: dict[str, MeanInterval]
    r2: float | None
    max_error: float | None
    refused: str | None


class Equivalent(TypedDict):
    """The point at which one model reaches the loss of another, or the reason why it is unknown."""

    type: str
    baseline: str
    x: float
    other_x: float | None
    loss: float | None
    ratio: float | None
    low: float | None
    high: float | None
    level: float | None
    extrapolated: bool
    refused: str | None
    point: NotRequired[int]
    """Index of the point at which it is read."""


class _ScalingType(TypedDict):
    points: list[ScalingPoint]
    fit: FitResult


class ScalingAxis(TypedDict):
    """All models along parameters or tokens. ``unbent``: models without an offset fit."""

    form: str
    unbent: list[str]
    read_at: int
    types: dict[str, _ScalingType]
    equivalents: list[Equivalent]


class ScalingVerdict(TypedDict):
    """The outcome of a study of scaling."""

    sentence: str
    axes: dict[str, Outcome]


class ScalingResults(Results):
    """A study of scaling."""

    kind: Literal["scaling"]
    extrapolate: bool
    axes: dict[str, ScalingAxis]
    verdict: ScalingVerdict


RESULTS: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(("text", "ablations", "rank"), (TextResults, 3)),
    "recall": (RecallResults, 2),
    "practical": (PracticalResults, 1),
    "stability": (StabilityResults, 1),
    "gradient-flow": (GradientFlowResults, 1),
    "scaling": (ScalingResults, 1),
}
"""Kind of study -> type of its results, and their schema version."""


def read_study_results(folder: Path) -> Any:
    """``results.json`` of a study, of the type in :data:`RESULTS`; ``None`` if it is unfinished."""
    path = Path(folder) / "results.json"
    if not path.exists():
        return None
    kind = read_json(Path(folder) / "study.json").get("kind", "text")
    value = read_json(path)
    require_schema(value, path, RESULTS[kind][1])
    return value

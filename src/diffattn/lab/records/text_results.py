"""Results of a study on text, and the fields that every kind of study shares."""

from typing import Any, Literal, NotRequired, TypedDict

from diffattn.lab.records.fields import Probability

At = Literal["best", "common"]
"""The learning rate: the rate chosen for a variant, or the rate common to all."""
COPIES = "bigram_copy"
"""Name of the best n-gram count model. Models with a higher loss say nothing about attention."""


class MeanInterval(TypedDict):
    """A mean and its interval. ``low`` and ``high`` are ``None`` for a single value."""

    mean: float
    low: float | None
    high: float | None
    level: float


class SeedMean(MeanInterval):
    """A mean over seeds, with its values."""

    values: list[float]


class Mean(SeedMean):
    """A mean over seeds, with its values and their number ``n``."""

    n: int


class Results(TypedDict):
    """Fields of every kind of study."""

    schema: int
    protocol: dict[str, str | int]
    """``name`` and ``version``."""
    scale: str
    statement: str
    complete: bool


class SweepResult(TypedDict):
    """The learning rates that a variant has tried. ``inside``: the best is not at the edge;
    ``copies``: the run at the best has begun to copy, else the choice is void."""

    best: float
    inside: bool
    copies: NotRequired[bool]
    tried: NotRequired[list[dict[str, Any]]]
    whole: NotRequired[list[dict[str, Any]]]
    """``run``, ``learning_rate`` and ``validation_loss`` of each run."""


class RatesResult(TypedDict):
    """The learning rates of a comparison."""

    common: float
    sweep_seed: int | None
    sweep_steps: int | None
    variants: dict[str, SweepResult]


class GroupResult(TypedDict):
    """The runs of a variant at one learning rate."""

    learning_rate: float
    runs: list[str]
    validation_loss: Mean
    parts: dict[str, Mean]
    phase_steps: list[int | None]


class VariantResult(TypedDict):
    """One model of a comparison."""

    role: str
    what: str
    attention_type: str
    match: str
    parameters: int
    train_flops_per_token: int
    attention_parameters: NotRequired[int]
    at: dict[At, GroupResult]


class TextDifference(Mean):
    """The paired difference of two variants in one metric."""

    variant: str
    baseline: str
    at: At
    metric: str
    runs: list[list[str]]


class Endpoint(Mean):
    """A primary measure of a type against the Transformer, and its test."""

    variant: str
    measure: Literal["loss", "tokens"]
    """Loss minus the Transformer's; or the share of tokens needed to reach its loss."""
    p: Probability | None
    p_holm: Probability | None


class AdjustedLead(TypedDict):
    """Loss minus the Transformer's, adjusted for the step at which copying begins."""

    variant: str
    mean: float
    low: float
    high: float


class Row(TypedDict):
    """A comparison of a study of ablations or ranks; ``differences`` has its numbers."""

    variant: str
    baseline: str
    at: At


class Outcome(TypedDict):
    """Whether a study is informative, and its verdict as a sentence."""

    informative: bool
    sentence: str
    margin: NotRequired[float]
    """Nats that attention must gain."""


class TextVerdict(Outcome):
    """The outcome of a comparison."""

    details: list[str]
    reasons: list[str]


class TextResults(Results):
    """A study on text. A comparison of types has endpoints and leads; other kinds have rows."""

    seeds: list[int]
    tokens: int
    rates: RatesResult
    variants: dict[str, VariantResult]
    differences: list[TextDifference]
    endpoints: NotRequired[list[Endpoint]]
    adjusted_leads: NotRequired[list[AdjustedLead]]
    rows: NotRequired[list[Row]]
    diverged: NotRequired[dict[str, list[int]]]
    """Variant -> number of diverged runs, number of all runs."""
    left_out_steps: NotRequired[dict[str, int]]
    count_models: NotRequired[dict[str, Any]]
    phase: NotRequired[dict[str, Any] | None]
    """``threshold``: the loss on repeated bigrams below which a run has passed the phase."""
    verdict: TextVerdict

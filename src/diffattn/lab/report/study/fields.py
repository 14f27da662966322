"""What the records of a study of models on text hold, as far as a page reads it."""

from typing import Any, Literal, NotRequired, TypedDict

from diffattn.lab.records.fields import Probability


class _Settings(TypedDict):
    model: dict[str, Any]
    train: dict[str, Any]


class StudyInfo(TypedDict):
    """``study.json``."""

    kind: NotRequired[str]
    """``"ablations"`` or ``"rank"``; without, the matched comparison."""
    variants: NotRequired[list[str]]
    seeds: list[int]
    fewer_seeds: NotRequired[int]
    """How many of them ablations and other matches have; default: all."""
    config: _Settings
    data: dict[str, Any]


class Costs(TypedDict):
    """``costs.json``: costs by name of the run."""

    runs: dict[str, dict[str, Any]]


class _Summary(TypedDict):
    """A mean with its interval; ends are null where there is one value only."""

    values: list[float]
    mean: float
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    level: float
    n: NotRequired[int]


class _Group(TypedDict):
    """Runs of one variant at one learning rate."""

    learning_rate: float
    runs: list[str]
    validation_loss: _Summary
    parts: NotRequired[dict[str, _Summary] | None]
    phase_steps: NotRequired[list[int | None] | None]


class _Variant(TypedDict):
    role: str
    what: NotRequired[str]
    parameters: NotRequired[int]
    train_flops_per_token: NotRequired[int]
    attention_parameters: NotRequired[int]
    """Of all layers."""
    at: dict[str, _Group]
    """By ``best`` and, where that rate is another, ``common``."""


class _Difference(_Summary):
    variant: str
    baseline: str
    at: Literal["best", "common"]
    metric: str
    runs: list[list[str]]


class Test(TypedDict):
    """A difference that a study's verdict rests on, a row of ablations for example; all are tested
    together."""

    variant: str
    baseline: str
    at: Literal["best", "common"]
    p: Probability | None
    p_holm: Probability | None
    shown: bool
    """Whether the adjusted p-value counts."""


class _Try(TypedDict):
    """A run of the sweep; without a loss if it diverged."""

    run: str
    learning_rate: float
    validation_loss: float | None


class _VariantRates(TypedDict):
    best: float
    inside: NotRequired[bool | None]
    tried: NotRequired[list[_Try]]
    whole: NotRequired[list[_Try]]
    """Runs of all steps at the best of the rates tried; of these the best was chosen."""


class _Rates(TypedDict):
    common: float
    sweep_seed: NotRequired[int | None]
    sweep_steps: NotRequired[int | None]
    variants: dict[str, _VariantRates]


class _Counted(TypedDict):
    loss: float
    parts: NotRequired[dict[str, float] | None]


class _CountModel(_Counted):
    curve: NotRequired[_Counted]
    """On the windows of the curves; older records have none."""


class _Phase(TypedDict):
    threshold: float
    what: str


class _Verdict(TypedDict):
    informative: bool
    sentence: str
    details: NotRequired[list[str]]
    reasons: NotRequired[list[str]]


class StudyResults(TypedDict):
    """``results.json``."""

    variants: dict[str, _Variant]
    differences: list[_Difference]
    rows: NotRequired[list[Test]]
    tests: NotRequired[list[Test]]
    diverged: NotRequired[dict[str, list[int]]]
    """Of a study of rows: variants that are left out, with how many of how many runs diverged."""
    left_out_steps: NotRequired[dict[str, int]]
    """Of runs whose guard left batches out: for how many steps."""
    statement: str
    protocol: NotRequired[dict[str, Any]]
    rates: NotRequired[_Rates | None]
    count_models: NotRequired[dict[str, _CountModel] | None]
    phase: NotRequired[_Phase | None]
    verdict: NotRequired[_Verdict | None]


class _MapsOfVariant(TypedDict):
    run: NotRequired[str]
    lam: NotRequired[float | list[float] | None]


class Maps(TypedDict):
    """``maps.json``: maps of one example by variant."""

    tokens: list[str]
    layers: dict[str, _MapsOfVariant]

"""The settings of a study of any kind, its runs in waves, and the records of finished runs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from diffattn.errors import check_known
from diffattn.files.io import read_jsonl
from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.catalog.recipes.plan import StudyPlan
from diffattn.lab.records.fields import require
from diffattn.lab.training.config import RecallConfig, RunConfig
from diffattn.lab.training.prepare import PreparedData
from diffattn.lab.training.settings import apply_settings
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import MATCHES, Twin

Results = Mapping[str, Mapping[str, Any]]
"""Name of a run -> content of its ``results.json``."""
EXTENSIONS = 3
"""How often a sweep may be extended by a factor of 2."""
Score = TypeVar("Score", float, tuple[int, int, float])
OnMessage = Callable[[str], None]
OnProgress = Callable[[str, dict[str, Any]], None]
"""Called with a run's name and an event: ``step`` and ``loss``, ``message``, ``done``,
``error``, or ``total``, the number of steps of all runs together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of a study."""

    config: RunConfig | RecallConfig
    facts: dict[str, Any]
    """Differences to the softmax base: parameters, training FLOPs per token."""
    records_divergence: bool = False
    """Whether a diverged run on text counts as finished, without a loss. Else it is an error."""

    @classmethod
    def from_twin(cls, config: RunConfig | RecallConfig, twin: Twin, **options: bool) -> Self:
        """The run of a twin."""
        names = ("parameter_difference", "flops_difference")
        return cls(config=config, facts={name: getattr(twin, name) for name in names}, **options)

    def train(
        self, data: PreparedData | None, folder: Path, **callbacks: Callable[..., None]
    ) -> None:
        """Train this run in this process."""
        from diffattn.lab.training.recall import train_recall
        from diffattn.lab.training.run import train, train_recorded

        if isinstance(self.config, RecallConfig):
            train_recall(self.config, folder, facts=self.facts, **callbacks)
            return
        assert data is not None, "a run on text reads tokens"
        run: Callable[..., Any] = train_recorded if self.records_divergence else train
        run(self.config, data, folder, facts=self.facts, **callbacks)


@dataclass(frozen=True, slots=True)
class Wave:
    """Runs that are trained together. Their results decide which runs the next wave has."""

    runs: Sequence[PlannedRun]
    title: str = ""
    total_steps: int | None = None
    """Steps of all runs of the study; ``None`` if this wave does not change the number."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The finished runs of a study."""

    folder: Path
    results: Results

    def rows(self, file: str) -> dict[str, list[dict[str, Any]]]:
        """Name of a run -> rows of its ``<file>.jsonl``: ``"metrics"`` or ``"gradients"``."""
        return {
            name: read_jsonl(self.folder / name / f"{file}.jsonl", recorded=results[file])
            for name, results in self.results.items()
        }


@dataclass(frozen=True, kw_only=True)
class Study:
    """The settings of a study of any kind."""

    shares_workers: ClassVar[bool] = False
    """Whether a worker process makes several runs, because starting it takes long."""
    always_workers: ClassVar[bool] = False
    """Whether even a single worker is a separate process."""
    kind: str
    scale: str
    base: RunConfig | None = None
    """The run on text that all others are made from; ``None`` if no run reads text."""
    seeds: tuple[int, ...]
    """Seeds of initial weights and data order."""
    match: str = "params"
    """The budget that the twins keep equal."""

    def __post_init__(self) -> None:
        where = type(self).__name__
        check_known("reproduce", "match", self.match, MATCHES)
        distinct = bool(self.seeds) and len(self.seeds) == len(set(self.seeds))
        require(where, distinct, "seeds must be distinct, one or more", list(self.seeds))

    @property
    def total_steps(self) -> int:
        """Largest number of steps of all runs together, as planned."""
        raise NotImplementedError

    def steps_of(self, run: str) -> int:
        """The largest number of steps of a run."""
        raise NotImplementedError

    def waves(self, results: Results) -> Iterator[Wave]:
        """All runs. The caller adds the results of each wave before it asks for the next wave."""
        raise NotImplementedError

    def keeps_weights(self, run: str) -> bool:
        """Whether a finished run keeps its weights."""
        return True

    @classmethod
    def planned(
        cls,
        plans: Mapping[str, Callable[[], StudyPlan]],
        scale: str,
        *,
        seeds: Sequence[int] | None = None,
        settings: Sequence[str] = (),
        **fields: Any,
    ) -> Self:
        """The study of a scale. ``settings`` such as ``"train.num_steps=500"`` change its base."""
        check_known("reproduce", "scale", scale, plans)
        plan = plans[scale]() | fields
        if seeds is not None:
            plan["seeds"] = tuple(seeds)
        if "run" in plan:
            plan["base"] = apply_settings(plan.pop("run").config(), settings)
        return cls(scale=scale, **plan)

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        apart = ("kind", "base", "tasks")
        values = {x.name: getattr(self, x.name) for x in fields(self) if x.name not in apart}
        plain: dict[str, Any] = json.loads(json.dumps(values, default=dict))
        return plain if self.base is None else plain | {"config": self.base.resolved()}


@dataclass(frozen=True, kw_only=True)
class FixedStudy(Study):
    """A study on text whose runs do not depend on results: it has one wave."""

    base: RunConfig
    """The softmax run; all other runs are made from it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_softmax(type(self).__name__, "base", self.base.model)
        self._check()
        self.planned_runs()  # a run that cannot be made is refused at once

    def _check(self) -> None:
        """Refuse settings that the study cannot measure."""

    def planned_runs(self) -> list[PlannedRun]:
        """Every run, seed by seed, so that an early stop leaves whole seeds."""
        raise NotImplementedError

    def waves(self, results: Results) -> Iterator[Wave]:
        """A single wave."""
        yield Wave(self.planned_runs())

    @property
    def total_steps(self) -> int:
        """Steps of all runs together."""
        return sum(self._planned_steps.values())

    @cached_property
    def _planned_steps(self) -> dict[str, int]:
        return {run.config.name: run.config.train.num_steps for run in self.planned_runs()}

    def steps_of(self, run: str) -> int:
        """The steps of a run; 0 if another study made it."""
        return self._planned_steps.get(run, 0)


def require_softmax(where: str, field: str, model: DiffTransformerConfig) -> None:
    """Refuse another base model; ``field`` is its name in the message."""
    must = f"{field} must be a softmax model, whose twins are compared"
    require(where, model.attention_type == BASELINE, must, model.attention_type)


def swept_rates(
    rates: Sequence[float],
    score: Callable[[float], Score | None],
    *,
    leading: int = 1,
    extensions: int = EXTENSIONS,
) -> tuple[dict[float, Score], list[float]]:
    """Replay a sweep, which is extended while a leading rate lies at its edge.

    Args:
        score: From a rate to the score of its runs, the less the better; ``None`` without runs.
        leading: How many of the best rates must lie inside the sweep.

    Returns:
        The scores so far, by rising rate; and the rates that must run before a rate is chosen.
    """
    rates = sorted(rates)
    for extension in range(extensions + 1):
        scores = {rate: value for rate in rates if (value := score(rate)) is not None}
        missing = [rate for rate in rates if rate not in scores]
        best = sorted(scores, key=lambda rate: scores[rate])[:leading]
        edge = next((rate for rate in best if rate in (rates[0], rates[-1])), None)
        if missing or edge is None or extension == extensions:
            break
        rates = sorted([*rates, 2 * edge if edge == rates[-1] else edge / 2])
    return scores, missing

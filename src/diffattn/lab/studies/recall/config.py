"""The runs of a recall study: a sweep of learning rates, trials at the best, and controls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from diffattn.lab.catalog.models import NEVER_ATTEND, RECALL_CONTROLS, TYPES, VARIANTS, rate_owner
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.records.fields import require
from diffattn.lab.studies.study import (
    EXTENSIONS,
    PlannedRun,
    Results,
    Study,
    Wave,
    require_softmax,
    swept_rates,
)
from diffattn.lab.training.config import RecallConfig
from diffattn.models.twins import Twin

Group = tuple[str, str]
"""A task's name, and the name of an attention type or a control."""
Score = tuple[int, int, float]
"""Number of unsolved runs, total steps, and summed validation loss of a rate's runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The learning rate of one task and model, chosen by a sweep if there is one."""

    rate: float
    tried: tuple[float, ...] = ()
    """All rates of the sweep, rising."""
    inside: bool | None = None
    """Whether a lower and a higher rate were tried; ``None`` without a sweep."""


@dataclass(frozen=True, kw_only=True)
class RecallStudyConfig(Study):
    """The runs of a recall or practical study. All models read the same sequences."""

    shares_workers: ClassVar[bool] = True
    kind: str = "recall"
    tasks: tuple[RecallConfig, ...]
    """The softmax run of every task."""
    learning_rates: tuple[float, ...]
    """Peak rates of the sweep. With a single rate there is no sweep."""
    extensions: int = EXTENSIONS
    sweep_seeds: tuple[int, ...] = (100,)
    seeds: tuple[int, ...] = (0, 1, 2)
    types: tuple[str, ...] = TYPES
    controls: tuple[str, ...] = RECALL_CONTROLS
    control_seeds: int = 1
    """How many seeds a model without a sweep gets."""
    member_rates: Mapping[str, float] | None = None
    """Without a sweep: model -> learning rate that another study chose. Others use the single rate
    of ``learning_rates``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where, shared = "RecallStudyConfig", sorted(set(self.seeds) & set(self.sweep_seeds))
        require(where, not shared, "seeds must not be those of the sweep", shared)
        for task in self.tasks:
            require_softmax(where, "tasks", task.model)
        for seed in self.seeds:
            replace(self.tasks[0].train, seed=seed, data_seed=seed)  # refuses a wrong seed at once

    @property
    def models(self) -> tuple[str, ...]:
        """Types and controls."""
        return (*self.types, *self.controls)

    @property
    def swept(self) -> tuple[str, ...]:
        """Models whose learning rate is swept and that get all seeds: all that attend, or all."""
        if self.kind == "practical":
            return self.models
        return (*self.types, *(name for name in self.controls if name not in NEVER_ATTEND))

    def choices(self, results: Results) -> dict[Group, Choice]:
        """The learning rate of every task and model that is swept.

        The best rate has the most solved runs. Ties go to the fewest total steps, where an unsolved
        run counts all steps, and then to the smallest summed validation loss.
        """
        if len(self.learning_rates) == 1:
            rates, (single,) = self.member_rates or {}, self.learning_rates
            return {group: Choice(rate=rates.get(group[1], single)) for group in self._swept_groups}
        choices = {}
        for group in self._swept_groups:
            scores, _ = self._replay(group, results)
            best = min(scores, key=lambda rate: scores[rate])
            inside = min(scores) < best < max(scores)
            choices[group] = Choice(rate=best, tried=tuple(scores), inside=inside)
        return choices

    def keeps_weights(self, run: str) -> bool:
        """Trials of the first seed do, as their maps are shown."""
        return "-lr" not in run and run.endswith(f"-seed{self.seeds[0]}")

    def missing_tries(self, results: Results) -> list[PlannedRun]:
        """The sweep's next runs; none when every rate is chosen."""
        if len(self.learning_rates) == 1:
            return []
        return self.sweep({group: self._replay(group, results)[1] for group in self._swept_groups})

    def waves(self, results: Results) -> Iterator[Wave]:
        """The sweep, wave by wave, then the trials at the chosen rates."""
        while missing := self.missing_tries(results):
            num_runs = self.num_runs(len(results) + len(missing))
            yield Wave(missing, "learning rates", num_runs * self.steps_of(""))
        rates = {group: choice.rate for group, choice in self.choices(results).items()}
        yield Wave(self.trials(rates), "trials")

    @property
    def _swept_groups(self) -> list[Group]:
        return [(task.task_name, name) for task in self.tasks for name in self.swept]

    def _replay(self, group: Group, results: Results) -> tuple[dict[float, Score], list[float]]:
        """The scores of a sweep so far, and the rates that it must still try."""
        (num_steps,) = (t.train.num_steps for t in self.tasks if t.task_name == group[0])

        def score(rate: float) -> Score | None:
            names = [swept_run(*group, rate, seed) for seed in self.sweep_seeds]
            if any(name not in results for name in names):
                return None
            runs = [results[name] for name in names]
            losses = [run["validation_loss"] for run in runs]
            return (
                sum(not run["solved"] for run in runs),
                sum(run["solved_step"] if run["solved"] else num_steps for run in runs),
                math.inf if None in losses else math.fsum(losses),  # None: it diverged
            )

        return swept_rates(self.learning_rates, score, extensions=self.extensions)

    def sweep(self, tried: Mapping[Group, Sequence[float]]) -> list[PlannedRun]:
        """The sweep's runs at the rates ``tried`` of every task and model."""
        return [
            self._run(task, name, seed, rate, swept_run(task.task_name, name, rate, seed))
            for seed in self.sweep_seeds
            for task in self.tasks
            for name in self.swept
            for rate in tried.get((task.task_name, name), ())
        ]

    def trials(self, rates: Mapping[Group, float]) -> list[PlannedRun]:
        """All trials, seed by seed."""
        groups = self.groups(rates)
        return [
            groups[task.task_name, name][i]
            for i in range(len(self.seeds))
            for task in self.tasks
            for name in self.models
            if i < len(self.seeds_of(name))
        ]

    def groups(self, rates: Mapping[Group, float]) -> dict[Group, list[PlannedRun]]:
        """The trials of every task and model, at the rates of the swept models."""
        groups = {}
        for task in self.tasks:
            for name in self.models:
                rate = rates[task.task_name, self.like(name)]
                groups[task.task_name, name] = [
                    self._run(task, name, seed, rate, f"{task.task_name}-{name}-seed{seed}")
                    for seed in self.seeds_of(name)
                ]
        return groups

    def num_runs(self, sweep: int | None = None) -> int:
        """Number of runs of all trials and of the sweep, which has no extensions by default."""
        if sweep is None:
            tries = len(self.learning_rates) * (len(self.learning_rates) > 1)
            sweep = len(self.tasks) * len(self.swept) * len(self.sweep_seeds) * tries
        return sweep + len(self.tasks) * sum(len(self.seeds_of(name)) for name in self.models)

    @property
    def total_steps(self) -> int:
        """Largest number of steps of all runs, if no sweep is extended."""
        return self.num_runs() * self.steps_of("")

    def steps_of(self, run: str) -> int:
        """The largest number of steps of any run. One that solves its task may end early."""
        return max(task.train.num_steps for task in self.tasks)

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        plain, controls = super().resolved(), {}
        if not self.member_rates:
            del plain["member_rates"]
        for name in self.controls:
            control = VARIANTS[name]
            sizes = {"heads": control.heads, "width": control.width}
            changes = {key: factor for key, factor in sizes.items() if factor != 1}
            controls[name] = {
                "attention_type": control.attention_type,
                "like": self.like(name),
                "match": control.match,
                "changes": dict(control.changes) | changes,
            }
        tasks = {task.task_name: task.resolved() for task in self.tasks}
        return plain | {"controls": controls, "tasks": tasks}

    def like(self, name: str) -> str:
        """Name of the model whose learning rate ``name`` uses: itself if it is swept."""
        return rate_owner(name, self.swept)

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """Seeds of the trials of a model."""
        return self.seeds if name in self.swept else self.seeds[: self.control_seeds]

    @cached_property
    def twins(self) -> dict[Group, Twin]:
        """Task and name of a model -> the model."""
        groups = [(task, name) for task in self.tasks for name in self.models]
        return {(t.task_name, x): VARIANTS[x].twin(t.model, self.match) for t, x in groups}

    def _run(self, task: RecallConfig, name: str, seed: int, rate: float, run: str) -> PlannedRun:
        twin = self.twins[task.task_name, name]
        train = task.train.at(rate, seed)
        return PlannedRun.from_twin(replace(task, name=run, model=twin.config, train=train), twin)


def swept_run(task: str, name: str, rate: float, seed: int) -> str:
    """Name of a run of the sweep."""
    return f"{task}-{name}-lr{rate:g}-seed{seed}"


recall_study = partial(RecallStudyConfig.planned, RECALL)

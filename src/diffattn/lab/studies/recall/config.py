"""The runs of a recall study: a sweep of learning rates, trials at the best, and controls."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from diffattn.lab.catalog.models import NEVER_ATTEND, RECALL_CONTROLS, TYPES, VARIANTS, rate_owner
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.records.fields import require
from diffattn.lab.studies.study import Member, Results, Study, Wave, require_softmax
from diffattn.lab.studies.sweep import EXTENSIONS, swept_rates
from diffattn.lab.training.recall_config import RecallConfig
from diffattn.models.config.known_names import check_known

Group = tuple[str, str]
"""A task, and an attention type or a control."""
Rates = Mapping[Group, float]
"""The learning rate chosen for every task and member that is swept."""
Score = tuple[float, float, float]
"""Unsolved runs, steps in total, and summed validation loss."""
PROTOCOL = 6
"""Version of the protocol: types are tested for when they learn a task, all else is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The learning rate of one task and member, chosen by a sweep."""

    rate: float
    """The best rate that was tried."""
    tried: tuple[float, ...] = ()
    """All rates, rising."""
    inside: bool | None = None
    """Whether a lower and a higher rate were tried; ``None`` without a sweep."""


@dataclass(frozen=True, kw_only=True)
class RecallStudyConfig(Study):
    """The runs of a recall study. All members read the same sequences at the same seed and step."""

    shares_workers: ClassVar[bool] = True
    kind: str = "recall"
    tasks: tuple[RecallConfig, ...]
    """The softmax run of every task; the others are its twins."""
    learning_rates: tuple[float, ...]
    """Peak rates of the sweep, rising; the final rate keeps its share of the peak. A single rate
    needs no sweep."""
    extensions: int = EXTENSIONS
    """How often a sweep whose best rate is at its edge is extended by a factor of 2."""
    sweep_seeds: tuple[int, ...] = (100,)
    """Seeds that the rate is chosen on, none of them a trial's."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trials."""
    types: tuple[str, ...] = TYPES
    controls: tuple[str, ...] = RECALL_CONTROLS
    control_seeds: int = 1
    """Trials' seeds that a member without a sweep gets, from the first."""
    member_rates: Mapping[str, float] | None = None
    """Member to its learning rate, as another study chose it, where it is not the single one of
    ``learning_rates``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where, shared = "RecallStudyConfig", sorted(set(self.seeds) & set(self.sweep_seeds))
        require(where, not shared, "seeds must not be those of the sweep", shared)
        for task in self.tasks:
            require_softmax(where, "tasks", task.model)
        for seed in self.seeds:
            replace(self.tasks[0].train, seed=seed, data_seed=seed)  # refuses a wrong one at once

    @classmethod
    def planned(
        cls,
        plans: Mapping[str, Callable[[], dict[str, Any]]],
        scale: str,
        *,
        seeds: Sequence[int] | None = None,
        **fields: Any,
    ) -> Self:
        """The study of a scale; its seeds are those of the plan unless others are given.

        Raises:
            ConfigError: An unknown scale, or seeds that are not distinct.
        """
        check_known("reproduce", "scale", scale, plans)
        changes = {} if seeds is None else {"seeds": tuple(seeds)}
        return cls(scale=scale, **{**plans[scale](), **changes, **fields})

    @property
    def members(self) -> tuple[str, ...]:
        """Types and controls."""
        return (*self.types, *self.controls)

    @property
    def swept(self) -> tuple[str, ...]:
        """Members that are swept, by one rule, and that get all seeds."""
        return (*self.types, *(name for name in self.controls if name not in NEVER_ATTEND))

    def choices(self, results: Results) -> dict[Group, Choice]:
        """The learning rate of every task and member that is swept.

        The best rate has the most solved sweep runs; among equals the fewest steps in total, where
        an unsolved run counts all of its steps; then the smallest summed validation loss. While the
        best rate is the lowest or highest of its sweep, half or twice that rate is tried next, at
        most ``extensions`` times.

        Args:
            results: Of all runs of the sweep.
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
        """Trials of the first seed keep them: their maps are shown."""
        return "-lr" not in run and run.endswith(f"-seed{self.seeds[0]}")

    def missing_tries(self, results: Results) -> list[Member]:
        """The sweep's next runs; none when every rate is chosen."""
        if len(self.learning_rates) == 1:
            return []
        return self.sweep({group: self._replay(group, results)[1] for group in self._swept_groups})

    def waves(self, results: Results) -> Iterator[Wave]:
        """The sweep, wave by wave, then the trials at the chosen rates."""
        while missing := self.missing_tries(results):
            num_runs = self.num_runs(len(results) + len(missing))
            yield Wave(missing, "learning rates", num_runs * self._most_steps)
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

        return swept_rates(self.learning_rates, score, tuple, extensions=self.extensions)

    def sweep(self, tried: Mapping[Group, Sequence[float]]) -> list[Member]:
        """The runs that a learning rate is chosen from.

        Args:
            tried: Rates to run, by task and member.
        """
        return [
            self._member(task, name, seed, rate, swept_run(task.task_name, name, rate, seed))
            for seed in self.sweep_seeds
            for task in self.tasks
            for name in self.swept
            for rate in tried.get((task.task_name, name), ())
        ]

    def trials(self, rates: Rates) -> list[Member]:
        """The runs that count, seed by seed, so that an early stop leaves whole groups."""
        groups = self.groups(rates)
        return [
            groups[task.task_name, name][i]
            for i in range(len(self.seeds))
            for task in self.tasks
            for name in self.members
            if i < len(self.seeds_of(name))
        ]

    def groups(self, rates: Rates) -> dict[Group, list[Member]]:
        """The trials of every task and type or control, in the order of their seeds."""
        return {
            (task.task_name, name): [
                self._member(
                    task,
                    name,
                    seed,
                    rates[task.task_name, self.like(name)],
                    f"{task.task_name}-{name}-seed{seed}",
                )
                for seed in self.seeds_of(name)
            ]
            for task in self.tasks
            for name in self.members
        }

    def num_runs(self, sweep: int | None = None) -> int:
        """Runs of sweep, trials and controls together.

        Args:
            sweep: Runs of the sweep. Default: as many as there are if none is extended.
        """
        if sweep is None:
            tries = len(self.learning_rates) * (len(self.learning_rates) > 1)
            sweep = len(self.tasks) * len(self.swept) * len(self.sweep_seeds) * tries
        return sweep + len(self.tasks) * sum(len(self.seeds_of(name)) for name in self.members)

    @property
    def total_steps(self) -> int:
        """Most steps of all runs, if no sweep is extended."""
        return self.num_runs() * self._most_steps

    def steps_by_run(self) -> Callable[[str], int]:
        """Most steps of every run."""
        steps = self._most_steps
        return lambda run: steps

    @property
    def _most_steps(self) -> int:
        """Of a run: one that solves its task ends early."""
        return max(task.train.num_steps for task in self.tasks)

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        chosen = {"member_rates": dict(self.member_rates)} if self.member_rates else {}
        return chosen | {
            "scale": self.scale,
            "types": list(self.types),
            "seeds": list(self.seeds),
            "sweep_seeds": list(self.sweep_seeds),
            "learning_rates": list(self.learning_rates),
            "extensions": self.extensions,
            "controls": {name: self._resolved_control(name) for name in self.controls},
            "control_seeds": self.control_seeds,
            "match": self.match,
            "tasks": {task.task_name: task.resolved() for task in self.tasks},
        }

    def like(self, name: str) -> str:
        """The member whose learning rate a member uses: itself if it is swept."""
        return rate_owner(name, self.swept)

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """Seeds of the trials of a member."""
        return self.seeds if name in self.swept else self.seeds[: self.control_seeds]

    def _resolved_control(self, name: str) -> dict[str, Any]:
        control = VARIANTS[name]
        heads = {"heads": control.heads, "width": control.width}
        changes = {key: factor for key, factor in heads.items() if factor != 1}
        return {
            "attention_type": control.attention_type,
            "like": self.like(name),
            "match": control.match,
            "changes": dict(control.changes) | changes,
        }

    def _member(self, task: RecallConfig, name: str, seed: int, rate: float, run: str) -> Member:
        twin = VARIANTS[name].twin(task.model, self.match)
        train = task.train.at(rate, seed)
        return Member.from_twin(replace(task, name=run, model=twin.config, train=train), twin)


def swept_run(task: str, name: str, rate: float, seed: int) -> str:
    """Name of a run of the sweep."""
    return f"{task}-{name}-lr{rate:g}-seed{seed}"


recall_study = partial(RecallStudyConfig.planned, RECALL)
"""Makes the study of a scale; see :mod:`diffattn.lab.catalog.recipes.recall`."""

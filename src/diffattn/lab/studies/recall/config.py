"""What a recall study runs: a sweep of learning rates, trials at the chosen ones, and controls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.report.page.wording import BLIND
from diffattn.lab.studies.variants import RECALL_CONTROLS, VARIANTS, rate_owner
from diffattn.lab.studies.workers import Member
from diffattn.lab.training.recall_config import RecallConfig
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

RecallMember = Member[RecallConfig]
Group = tuple[str, str]
"""A task, and an attention type or a control."""
Rates = Mapping[Group, float]
"""The learning rate chosen for every task and member that is swept."""
PROTOCOL = 5
"""Version of the protocol: V1's lead is held against V1 whose second map is added or uniform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallStudyConfig:
    """What is compared. All members read the same sequences at the same seed and step."""

    scale: str
    tasks: tuple[RecallConfig, ...]
    """The softmax run of every task; the others are its twins."""
    learning_rates: tuple[float, ...]
    """Peak rates of the sweep, rising; the final rate keeps its share of the peak. With a single
    one nothing is chosen, and no sweep is run."""
    extensions: int = 3
    """How often a sweep whose best rate is at its edge is extended by a factor of 2."""
    sweep_seeds: tuple[int, ...] = (100,)
    """Seeds that the rate is chosen on, none of them a trial's."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trials."""
    types: tuple[str, ...] = ATTENTION_TYPES
    controls: tuple[str, ...] = RECALL_CONTROLS
    control_seeds: int = 1
    """Seeds of the members that are not swept: so many of the trials', from the first."""
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""

    def __post_init__(self) -> None:
        check_known("RecallStudyConfig", "match", self.match, MATCHES)
        for name in self.controls:
            check_known("RecallStudyConfig", "control", name, RECALL_CONTROLS)
        for name in ("tasks", "learning_rates", "sweep_seeds", "seeds", "types"):
            values = getattr(self, name)
            values = [task.task_name for task in values] if name == "tasks" else list(values)
            if not values or len(set(values)) != len(values):
                raise ConfigError(
                    f"RecallStudyConfig: {name} must be distinct, one or more, got {values}."
                )
        if list(self.learning_rates) != sorted(self.learning_rates):
            raise ConfigError(
                f"RecallStudyConfig: learning_rates must rise, got {list(self.learning_rates)}."
            )
        shared = sorted(set(self.seeds) & set(self.sweep_seeds))
        if shared:
            raise ConfigError(
                f"RecallStudyConfig: seeds must not be those of the sweep, got {shared} in both."
            )
        for name, least in (("extensions", 0), ("control_seeds", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"RecallStudyConfig: {name} must be {least} or more, got {getattr(self, name)}."
                )
        for task in self.tasks:
            if task.model.attention_type != "softmax":
                raise ConfigError(
                    "RecallStudyConfig: tasks must hold softmax models, whose twins are compared, "
                    f"got {task.model.attention_type!r}."
                )
        for seed in (*self.seeds, *self.sweep_seeds):
            replace(self.tasks[0].train, seed=seed, data_seed=seed)  # a wrong one is wrong now

    @property
    def swept(self) -> tuple[str, ...]:
        """Members with a learning rate of their own and all seeds; the same rule for each."""
        return (*self.types, *(name for name in self.controls if name not in BLIND))

    def sweep(self, tried: Mapping[Group, Sequence[float]]) -> list[RecallMember]:
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

    def trials(self, rates: Rates) -> list[RecallMember]:
        """The runs that count, seed by seed, so that an early stop leaves whole groups."""
        groups = self.groups(rates)
        return [
            groups[task.task_name, name][i]
            for i in range(len(self.seeds))
            for task in self.tasks
            for name in (*self.types, *self.controls)
            if i < len(groups[task.task_name, name])
        ]

    def groups(self, rates: Rates) -> dict[Group, list[RecallMember]]:
        """The trials of every task and type or control, in the order of their seeds."""
        return {
            (task.task_name, name): [
                self._member(task, name, seed, rates[task.task_name, self.like(name)])
                for seed in self.seeds_of(name)
            ]
            for task in self.tasks
            for name in (*self.types, *self.controls)
        }

    def num_runs(self, sweep: int | None = None) -> int:
        """Runs of sweep, trials and controls together.

        Args:
            sweep: Runs of the sweep. Default: as many as there are if none is extended.
        """
        if sweep is None:
            tries = len(self.learning_rates) * (len(self.learning_rates) > 1)
            sweep = len(self.tasks) * len(self.swept) * len(self.sweep_seeds) * tries
        trials = sum(len(self.seeds_of(name)) for name in (*self.types, *self.controls))
        return sweep + len(self.tasks) * trials

    @property
    def most_steps(self) -> int:
        """Of a run: one that solves its task ends early."""
        return max(task.train.num_steps for task in self.tasks)

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
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
        return {
            "attention_type": control.attention_type,
            "like": self.like(name),
            "match": control.match,
            "changes": control.changes | {key: of for key, of in heads.items() if of != 1},
        }

    def _member(
        self, task: RecallConfig, name: str, seed: int, rate: float, run: str | None = None
    ) -> RecallMember:
        """One run of a type or a control; without ``run`` it is named as a trial."""
        twin = VARIANTS[name].twin(task.model, self.match)
        train = task.train.at(rate, seed)
        run = run or f"{task.task_name}-{name}-seed{seed}"
        return RecallMember.of(replace(task, name=run, model=twin.config, train=train), twin)


def swept_run(task: str, name: str, rate: float, seed: int) -> str:
    """Name of a run of the sweep."""
    return f"{task}-{name}-lr{rate:g}-seed{seed}"

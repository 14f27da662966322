"""What a recall study runs: a learning-rate sweep, then trials at the rate each type has earned."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.models.known_names import check_known
from diffattn.models.twins import MATCHES, Twin
from diffattn.studies.workers import Member
from diffattn.training.recall_config import RecallConfig

RecallMember = Member[RecallConfig]
Rates = Mapping[tuple[str, str], float]
"""Task and attention type to the learning rate chosen for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallStudyConfig:
    """What is compared. All types read the same sequences at the same seed and step."""

    scale: str
    tasks: tuple[RecallConfig, ...]
    """The softmax run of every task; the others are its twins."""
    learning_rates: tuple[float, ...]
    """Peak rates of the sweep; the final rate keeps its share of the peak."""
    sweep_seeds: tuple[int, ...] = (100,)
    """Seeds that the rate is chosen on, none of them a trial's."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trials."""
    types: tuple[str, ...] = ATTENTION_TYPES
    match: str = "params"
    """What the twins keep equal: ``"params"``, ``"heads"`` or ``"attention_flops"``."""

    def __post_init__(self) -> None:
        check_known("RecallStudyConfig", "match", self.match, MATCHES)
        for name in ("tasks", "learning_rates", "sweep_seeds", "seeds", "types"):
            values = getattr(self, name)
            values = [task.task_name for task in values] if name == "tasks" else list(values)
            if not values or len(set(values)) != len(values):
                raise ConfigError(
                    f"RecallStudyConfig: {name} must be distinct, one or more, got {values}."
                )
        shared = sorted(set(self.seeds) & set(self.sweep_seeds))
        if shared:
            raise ConfigError(
                f"RecallStudyConfig: seeds must not be those of the sweep, got {shared} in both."
            )
        for task in self.tasks:
            if task.model.attention_type != "softmax":
                raise ConfigError(
                    "RecallStudyConfig: tasks must hold softmax models, whose twins are compared, "
                    f"got {task.model.attention_type!r}."
                )
        for seed in (*self.seeds, *self.sweep_seeds):
            replace(self.tasks[0].train, seed=seed, data_seed=seed)  # a wrong one is wrong now

    def sweep(self) -> list[RecallMember]:
        """The runs that choose the learning rates."""
        twins = self._twins()
        return [
            _member(task, twins[task.task_name, name], seed, rate, f"-lr{rate:g}")
            for seed in self.sweep_seeds
            for rate in self.learning_rates
            for task in self.tasks
            for name in self.types
        ]

    def trials(self, rates: Rates) -> list[RecallMember]:
        """The runs that count, seed by seed, so that an early stop leaves whole groups."""
        twins = self._twins()
        return [
            _member(task, twins[task.task_name, name], seed, rates[task.task_name, name], "")
            for seed in self.seeds
            for task in self.tasks
            for name in self.types
        ]

    def num_runs(self) -> int:
        """Runs of sweep and trials together."""
        per_seed = len(self.tasks) * len(self.types)
        return per_seed * (len(self.sweep_seeds) * len(self.learning_rates) + len(self.seeds))

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "scale": self.scale,
            "types": list(self.types),
            "seeds": list(self.seeds),
            "sweep_seeds": list(self.sweep_seeds),
            "learning_rates": list(self.learning_rates),
            "match": self.match,
            "tasks": {task.task_name: task.resolved() for task in self.tasks},
        }

    def _twins(self) -> dict[tuple[str, str], Twin]:
        """The matched model of every task and type."""
        return {
            (task.task_name, name): task.model.twin(name, self.match)
            for task in self.tasks
            for name in self.types
        }


def _member(task: RecallConfig, twin: Twin, seed: int, rate: float, infix: str) -> RecallMember:
    floor = task.train.final_learning_rate / task.train.learning_rate
    train = replace(
        task.train,
        learning_rate=rate,
        final_learning_rate=rate * floor,
        seed=seed,
        data_seed=seed,
    )
    name = f"{task.task_name}-{twin.config.attention_type}{infix}-seed{seed}"
    return RecallMember.of(replace(task, name=name, model=twin.config, train=train), twin)


def choose_learning_rates(
    config: RecallStudyConfig, results: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], float]:
    """The rate of every task and type, by one rule.

    The rate with the most solved sweep runs; among equals the fewest steps in total (a run that
    is not solved counts all of its steps); then the smallest summed validation loss.

    Args:
        config: The study.
        results: Name of a sweep run to what its ``results.json`` holds.
    """
    scores: dict[tuple[str, str], dict[float, tuple[int, int, float]]] = {}
    for member in config.sweep():
        run = results[member.config.name]
        steps = run["solved_step"] if run["solved"] else member.config.train.num_steps
        key = (member.config.task_name, member.config.model.attention_type)
        rate = member.config.train.learning_rate
        unsolved, spent, loss = scores.setdefault(key, {}).get(rate, (0, 0, 0.0))
        scores[key][rate] = (
            unsolved + (not run["solved"]),
            spent + steps,
            loss + run["validation_loss"],
        )
    return {key: min(of_rate, key=of_rate.__getitem__) for key, of_rate in scores.items()}

"""A study as its driver sees it: settings, runs in waves, and the records of finished runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from diffattn.errors import ConfigError
from diffattn.files.io import read_jsonl
from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.prepare import PreparedData
from diffattn.lab.training.recall_config import RecallConfig
from diffattn.lab.training.stability import StabilityRun
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import Twin

Results = Mapping[str, Mapping[str, Any]]
"""Name of a run to its ``results.json``."""
OnMessage = Callable[[str], None]
OnProgress = Callable[[str, dict[str, Any]], None]
"""Called with a run's name and its event: ``step`` and ``loss``, ``message``, ``done`` or
``error``; or ``total``, the steps of all runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One run of a study."""

    config: RunConfig | RecallConfig
    facts: dict[str, Any]
    """Exact differences to the softmax base: parameters, training FLOPs per token."""
    records_divergence: bool = False
    """Whether a run on text whose numbers leave the range of floats ends with results, without a
    loss. Else it fails."""

    @classmethod
    def from_twin(
        cls, config: RunConfig | RecallConfig, twin: Twin, *, records_divergence: bool = False
    ) -> "Member":
        """The run of a twin."""
        names = ("parameter_difference", "flops_difference")
        facts = {name: getattr(twin, name) for name in names}
        return cls(config=config, facts=facts, records_divergence=records_divergence)

    def train(
        self, data: PreparedData | None, folder: Path, **callbacks: Callable[..., None]
    ) -> None:
        """Train this run in this process.

        Args:
            data: Tokens; ``None`` for a recall task.
            folder: Run directory.
            **callbacks: ``on_progress`` and ``on_message``.
        """
        from diffattn.lab.training.recall import train_recall
        from diffattn.lab.training.run import train
        from diffattn.lab.training.stability import train_recorded

        if isinstance(self.config, RecallConfig):
            train_recall(self.config, folder, facts=self.facts, **callbacks)
            return
        assert data is not None, "a run on text reads tokens"
        may_diverge = self.records_divergence or isinstance(self.config, StabilityRun)
        run: Callable[..., Any] = train_recorded if may_diverge else train
        run(self.config, data, folder, facts=self.facts, **callbacks)


@dataclass(frozen=True, slots=True)
class Wave:
    """Runs that are trained before the next wave is known."""

    members: Sequence[Member]
    title: str = ""
    total_steps: int | None = None
    """Steps of all runs of the study, where this wave changes their number."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The finished runs of a study."""

    folder: Path
    """Holds one folder per run."""
    results: Results

    def rows(self, file: str) -> dict[str, list[dict[str, Any]]]:
        """Name of every run to the rows of its ``<file>.jsonl``.

        Args:
            file: ``"metrics"`` or ``"gradients"``.

        Raises:
            CheckpointError: A file is missing or damaged.
        """
        return {
            name: read_jsonl(self.folder / name / f"{file}.jsonl", recorded=results[file])
            for name, results in self.results.items()
        }


class Study(Protocol):
    """The settings of a study, of any kind."""

    @property
    def kind(self) -> str:
        """As ``diffattn reproduce`` names it."""

    @property
    def scale(self) -> str:
        """Name of the recipe."""

    @property
    def base(self) -> RunConfig | None:
        """The run on text that all others are made from; ``None`` if no run reads text."""

    @property
    def shares_workers(self) -> bool:
        """Whether a worker makes several runs, as its start-up takes long beside a run."""

    @property
    def always_workers(self) -> bool:
        """Whether even a single worker is a process of its own, as runs may take hours."""

    @property
    def keeps_weights(self) -> bool:
        """Whether finished runs keep their weights."""

    @property
    def total_steps(self) -> int:
        """Most steps of all runs together, as planned."""

    def steps_by_run(self) -> Callable[[str], int]:
        """From the name of a run to its most steps."""

    def waves(self, results: Results) -> Iterator[Wave]:
        """All runs, wave by wave.

        Args:
            results: Holds the runs of every wave before the next one is asked for.
        """

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""


class FixedRuns:
    """A study on text whose runs are known before the first of them."""

    shares_workers: ClassVar[bool] = False
    always_workers: ClassVar[bool] = False
    keeps_weights: ClassVar[bool] = True

    def members(self) -> list[Member]:
        """Every run, seed by seed, so that an early stop leaves whole groups."""
        raise NotImplementedError

    def waves(self, results: Results) -> Iterator[Wave]:
        """One wave of all runs."""
        yield Wave(self.members())

    @property
    def total_steps(self) -> int:
        """Steps of all runs together."""
        return sum(member.config.train.num_steps for member in self.members())

    def steps_by_run(self) -> Callable[[str], int]:
        """From the name of a run to its steps; 0 for a run of another study."""
        steps = {m.config.name: m.config.train.num_steps for m in self.members()}
        return lambda run: steps.get(run, 0)


def require(where: str, *conditions: tuple[bool, str, Any]) -> None:
    """Refuse settings of a study.

    Args:
        where: Name of the settings' class.
        *conditions: Whether a condition holds, the condition in words, and the value given.

    Raises:
        ConfigError: A condition does not hold; the first is named.
    """
    for holds, condition, value in conditions:
        if not holds:
            raise ConfigError(f"{where}: {condition}, got {value!r}.")


def require_distinct(where: str, field: str, values: Sequence[Any], least: int = 1) -> None:
    """Refuse a list of settings that is too short or repeats a value.

    Raises:
        ConfigError: It is.
    """
    number = "one" if least == 1 else least
    holds = least <= len(values) == len(set(values))
    require(where, (holds, f"{field} must be distinct, {number} or more", list(values)))


def require_softmax(where: str, field: str, model: DiffTransformerConfig) -> None:
    """Refuse a base of twins that is no softmax model.

    Raises:
        ConfigError: It is of another attention type.
    """
    is_softmax = model.attention_type == BASELINE
    must = f"{field} must be a softmax model, whose twins are compared"
    require(where, (is_softmax, must, model.attention_type))

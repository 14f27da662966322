"""Train a study whose runs are known before the first of them, all on the same text."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from diffattn.studies.study_folder import begin_study, recorded_study, require_same_data
from diffattn.studies.workers import (
    Member,
    OnMessage,
    OnProgress,
    run_here,
    run_members,
    unfinished,
    worker_count,
)
from diffattn.training.config import RunConfig
from diffattn.training.prepare import prepare_data


class StudyOfMembers(Protocol):
    """A study's configuration, as far as training needs it."""

    @property
    def base(self) -> RunConfig:
        """The run that all others are made from; its data are everyone's."""

    def members(self) -> Sequence[Member[RunConfig]]:
        """Every run, in the order in which they are made."""

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""


def train_members(
    config: StudyOfMembers,
    kind: str,
    folder: Path,
    train: Callable[..., Any],
    *,
    workers: int | None,
    on_message: OnMessage,
    on_progress: OnProgress,
    facts: dict[str, Any] | None = None,
    short: bool = False,
) -> None:
    """Begin or continue a study, and train what is left of it. Its folder is locked by the caller.

    Args:
        config: The study.
        kind: Of the study, for ``study.json``.
        folder: Study folder.
        train: Trains one run in this process, where there is one worker.
        workers: One-thread processes side by side; with 1 the runs are made in this process.
            Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``.
        facts: More that ``study.json`` says.
        short: A worker makes one run after another; see :func:`run_members`.

    Raises:
        ConfigError: ``folder`` holds another configuration.
        CheckpointError: ``folder`` holds foreign or damaged files.
        DiffAttnError: A run failed.
    """
    from diffattn.training.trainer import require_enough

    workers = worker_count(workers)
    recorded = recorded_study(folder, config.resolved(), besides="data")
    data = prepare_data(config.base.data, folder / "data", on_message=on_message)
    require_enough(config.base, data)
    if recorded is None:
        of_data = {"source": config.base.data.source, **data.facts()}
        begin_study(folder, config.resolved(), {"kind": kind, "data": of_data, **(facts or {})})
    else:
        require_same_data(folder, recorded, data.facts())
    members = config.members()
    waiting = unfinished(members, folder / "runs")
    if waiting:
        on_message(f"training {len(waiting)} of {len(members)} models")
    if workers == 1:
        run_here(waiting, folder / "runs", partial(train, data=data), on_progress=on_progress)
    else:
        run_members(
            waiting, data.folder, folder / "runs",
            workers=workers, on_progress=on_progress, short=short,
        )  # fmt: skip

"""Reproduce a study whose runs are known before the first of them, all on the same text."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from diffattn.files.io import read_json, write_json
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.report.build import build_report
from diffattn.lab.studies.study_folder import (
    begin_study,
    recorded_costs,
    recorded_study,
    require_same_data,
)
from diffattn.lab.studies.workers import (
    Member,
    OnMessage,
    OnProgress,
    run_here,
    run_members,
    unfinished,
    worker_count,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.prepare import prepare_data


class StudyOfMembers(Protocol):
    """A study's configuration, as far as training needs it."""

    @property
    def base(self) -> RunConfig:
        """The run that all others are made from; its data are everyone's."""

    def members(self) -> Sequence[Member[RunConfig]]:
        """Every run, in the order in which they are made."""

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""


def reproduce_members(
    config: StudyOfMembers,
    kind: str,
    out: Path,
    train: Callable[..., Any],
    results: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    workers: int | None,
    on_message: OnMessage,
    on_progress: OnProgress,
    facts: dict[str, Any] | None = None,
    short: bool = False,
) -> Path:
    """Begin or continue a study: train what is left of it, sum it up and write its page.

    Args:
        config: The study.
        kind: Of the study, for ``study.json``.
        out: Study folder.
        train: Trains one run in this process, where there is one worker.
        results: From ``results.json`` of every run, by name, makes that of the study.
        workers: One-thread processes side by side; with 1 the runs are made in this process, which
            saves the start-up of one per run. Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``.
        facts: More that ``study.json`` says.
        short: A worker makes one run after another; see :func:`run_members`.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json``, ``data/`` and ``runs/``.

    Raises:
        ConfigError: ``out`` holds another configuration.
        CheckpointError: ``out`` holds foreign or damaged files.
        DiffAttnError: A run failed.
    """
    from diffattn.lab.training.trainer import require_enough

    members, runs = config.members(), out / "runs"
    with sole_writer(out):
        workers = worker_count(workers)
        recorded = recorded_study(out, config.resolved(), besides="data")
        data = prepare_data(
            config.base.data,
            out / "data",
            require=partial(require_enough, config.base),
            on_message=on_message,
        )
        if recorded is None:
            of_data = {"source": config.base.data.source, **data.facts()}
            begin_study(out, config.resolved(), {"kind": kind, "data": of_data, **(facts or {})})
        else:
            require_same_data(out, recorded, data.facts())
        waiting = unfinished(members, runs)
        if waiting:
            on_message(f"training {len(waiting)} of {len(members)} models")
        if workers == 1:
            run_here(waiting, runs, partial(train, data=data), on_progress=on_progress)
        else:
            run_members(
                waiting, data.folder, runs, workers=workers, on_progress=on_progress, short=short
            )
        names = [member.config.name for member in members]
        made = {name: read_json(runs / name / "results.json") for name in names}
        found = results(made)
        costs = recorded_costs(runs, names)
        write_json(out / "results.json", found)
        write_json(out / "costs.json", {"schema": 1, "runs": costs})
        return build_report(out)

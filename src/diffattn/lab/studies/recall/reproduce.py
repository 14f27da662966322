"""The recall study: which attention types learn to recall, and after how many steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json, write_json
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.report.build import build_report
from diffattn.lab.studies.recall.config import RecallMember, RecallStudyConfig
from diffattn.lab.studies.recall.summary import recall_results
from diffattn.lab.studies.recall.sweep import choices, wanted_runs
from diffattn.lab.studies.study_folder import begin_study, recorded_study
from diffattn.lab.studies.workers import (
    OnMessage,
    OnProgress,
    run_here,
    run_members,
    unfinished,
    worker_count,
)
from diffattn.models.config.known_names import check_known


def reproduce_recall(
    scale: str = "laptop",
    *,
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    match: str = "params",
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train four attention types and controls on recall tasks, and count which are solved.

    A sweep chooses each type's learning rate by one rule, on seeds of its own; the trials at that
    rate count. The same call again continues what was interrupted.

    Args:
        scale: ``"smoke"``, ``"laptop"`` or ``"study"``; see
        :mod:`diffattn.lab.catalog.recipes.recall`.
        out: Study folder. Default: ``runs/recall-<scale>``.
        seeds: Seeds of the trials: initial weights and sequences. Default: the scale's.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.
        workers: One-thread processes side by side; with 1 the runs are made in this process, which
            saves the start-up of one per run. Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``; and ``total``,
            the most steps of all runs, where a sweep goes on.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json`` and ``runs/``.

    Raises:
        ConfigError: An unknown scale, or ``out`` holds another configuration.
        CheckpointError: ``out`` holds foreign or damaged files.
        DiffAttnError: A run failed.
    """
    config = recall_study(scale, seeds=seeds, match=match)
    workers = worker_count(workers)
    folder = Path(out) if out is not None else Path("runs") / f"recall-{scale}"
    with sole_writer(folder):
        resolved = config.resolved()
        if recorded_study(folder, resolved) is None:
            begin_study(folder, resolved, {"kind": "recall"})
        _run_study(config, folder, workers, on_message, on_progress)
        return build_report(folder)


def _run_study(
    config: RecallStudyConfig,
    folder: Path,
    workers: int,
    on_message: OnMessage,
    on_progress: OnProgress,
) -> None:
    """Train what is left, and write ``results.json`` and ``costs.json``."""
    from diffattn.lab.training.recall import train_recall

    def train(members: Sequence[RecallMember], what: str) -> dict[str, Any]:
        waiting = unfinished(members, folder / "runs")
        if waiting:
            on_message(f"{what}: training {len(waiting)} of {len(members)} models")
        if workers == 1:
            run_here(waiting, folder / "runs", train_recall, on_progress=on_progress)
        else:
            run_members(
                waiting, None, folder / "runs", workers=workers, on_progress=on_progress, short=True
            )
        names = [member.config.name for member in members]
        return {name: read_json(folder / "runs" / name / "results.json") for name in names}

    results: dict[str, Any] = {}
    while wanted := wanted_runs(config, results):
        runs = config.num_runs(len(results) + len(wanted))
        on_progress(wanted[0].config.name, {"total": runs * config.most_steps})
        results |= train(wanted, "learning rates")
    rates = {group: choice.rate for group, choice in choices(config, results).items()}
    results |= train(config.trials(rates), "trials")
    costs = {name: read_json(folder / "runs" / name / "costs.json") for name in results}
    write_json(folder / "results.json", recall_results(config, results))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})


def recall_study(
    scale: str, *, seeds: Sequence[int] | None = None, match: str = "params"
) -> RecallStudyConfig:
    """The resolved configuration of :func:`reproduce_recall`.

    Raises:
        ConfigError: An unknown scale, or seeds that are not distinct.
    """
    from diffattn.lab.catalog.recipes.recall import RECALL

    check_known("reproduce", "scale", scale, RECALL)
    settings = RECALL[scale]()
    if seeds is not None:
        settings["seeds"] = tuple(seeds)
    return RecallStudyConfig(scale=scale, match=match, **settings)

"""The gradient-flow study: gradients and updates of matched models as they begin to train."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.models.known_names import check_known
from diffattn.records.io import read_json, read_jsonl, write_json
from diffattn.records.lock import sole_writer
from diffattn.report.build import build_report
from diffattn.studies.fixed_members import train_members
from diffattn.studies.gradient_flow.config import GradientFlowConfig
from diffattn.studies.gradient_flow.summary import gradient_flow_results
from diffattn.studies.workers import OnMessage, OnProgress
from diffattn.training.settings import apply_settings


def reproduce_gradient_flow(
    scale: str = "laptop",
    *,
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Measure gradients and AdamW updates of W_Q, W_K, W_V and W_O, and what head norms read.

    What counts as alike stands in :mod:`diffattn.studies.gradient_flow.verdict`, written before the
    first run. The same call again continues what was interrupted.

    Args:
        scale: ``"smoke"``, ``"laptop"`` or ``"study"``; see :mod:`diffattn.recipes.gradient_flow`.
        out: Study folder. Default: ``runs/gradient-flow-<scale>``.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.
        workers: One-thread processes side by side; with 1 the runs are made in this process.
            Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json``, ``data/`` and ``runs/``, without weights.

    Raises:
        ConfigError: An unknown scale or setting, or ``out`` holds another configuration.
        CheckpointError: ``out`` holds foreign or damaged files.
        DiffAttnError: A run failed.
    """
    from diffattn.training.trainer import train

    config = gradient_flow_study(scale, seeds=seeds, settings=settings, match=match)
    folder = Path(out) if out is not None else Path("runs") / f"gradient-flow-{scale}"

    def tell(name: str, event: dict[str, Any]) -> None:
        if "done" in event:  # nobody asks for the weights of a model that has barely begun
            shutil.rmtree(folder / "runs" / name / "model", ignore_errors=True)
        on_progress(name, event)

    with sole_writer(folder):
        train_members(
            config, "gradient-flow", folder, train, workers=workers,
            on_message=on_message, on_progress=tell, short=True,
        )  # fmt: skip
        _summarise(config, folder)
        return build_report(folder)


def gradient_flow_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> GradientFlowConfig:
    """The resolved configuration of :func:`reproduce_gradient_flow`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.recipes.gradient_flow import GRADIENT_FLOW

    check_known("reproduce", "scale", scale, GRADIENT_FLOW)
    plan = GRADIENT_FLOW[scale]()
    return GradientFlowConfig(
        scale=scale,
        base=apply_settings(plan.run.config(), settings),
        arms=plan.arms,
        phases=plan.phases,
        seeds=plan.seeds if seeds is None else tuple(seeds),
        match=match,
    )


def _summarise(config: GradientFlowConfig, folder: Path) -> None:
    """Write ``results.json`` and ``costs.json`` of a finished study."""
    runs = {member.config.name: folder / "runs" / member.config.name for member in config.members()}
    for run in runs.values():  # of a run whose end nobody saw
        shutil.rmtree(run / "model", ignore_errors=True)
    results = {name: read_json(run / "results.json") for name, run in runs.items()}
    rows = {
        name: read_jsonl(run / "gradients.jsonl", recorded=results[name]["gradients"])
        for name, run in runs.items()
    }
    costs = {name: read_json(run / "costs.json") for name, run in runs.items()}
    write_json(folder / "results.json", gradient_flow_results(config, results, rows))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})

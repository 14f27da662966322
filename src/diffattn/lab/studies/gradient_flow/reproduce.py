"""The gradient-flow study: gradients and updates of matched models as they begin to train."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.files.io import read_jsonl
from diffattn.lab.studies.fixed_members import reproduce_members
from diffattn.lab.studies.gradient_flow.config import GradientFlowConfig
from diffattn.lab.studies.gradient_flow.summary import gradient_flow_results
from diffattn.lab.studies.workers import OnMessage, OnProgress
from diffattn.lab.training.settings import apply_settings
from diffattn.models.config.known_names import check_known


def reproduce_gradient_flow(
    config: GradientFlowConfig,
    out: Path,
    *,
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Measure gradients and AdamW updates of W_Q, W_K, W_V and W_O, and what head norms read.

    What counts as alike stands in :mod:`diffattn.lab.studies.gradient_flow.verdict`, written
    before the
    first run. No weights are kept. The same call again continues what was interrupted.

    Arguments, what is returned and what is raised are those of
    :func:`diffattn.lab.studies.fixed_members.reproduce_members`.
    """
    from diffattn.lab.training.trainer import train

    def drop_weights(run: str) -> None:  # nobody asks for those of a model that has barely begun
        shutil.rmtree(out / "runs" / run / "model", ignore_errors=True)

    def tell(run: str, event: dict[str, Any]) -> None:
        if "done" in event:
            drop_weights(run)
        on_progress(run, event)

    def results(made: dict[str, Any]) -> dict[str, Any]:
        rows = {}
        for run, recorded in made.items():
            drop_weights(run)  # of a run whose end nobody saw
            path = out / "runs" / run / "gradients.jsonl"
            rows[run] = read_jsonl(path, recorded=recorded["gradients"])
        return gradient_flow_results(config, made, rows)

    return reproduce_members(
        config, "gradient-flow", out, train, results,
        workers=workers, on_message=on_message, on_progress=tell, short=True,
    )  # fmt: skip


def gradient_flow_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> GradientFlowConfig:
    """The resolved configuration of :func:`reproduce_gradient_flow`.

    Args:
        scale: ``"smoke"``, ``"laptop"`` or ``"study"``; see
        :mod:`diffattn.lab.catalog.recipes.gradient_flow`.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW

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

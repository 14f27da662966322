"""The scaling study: losses of matched models over sizes and over tokens, and their fits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.studies.fixed_members import reproduce_members
from diffattn.lab.studies.scaling.config import ScalingStudyConfig
from diffattn.lab.studies.scaling.summary import scaling_results
from diffattn.lab.studies.workers import OnMessage, OnProgress
from diffattn.lab.training.settings import apply_settings
from diffattn.models.config.known_names import check_known


def reproduce_scaling(
    config: ScalingStudyConfig,
    out: Path,
    *,
    extrapolate: bool = False,
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train matched models of several sizes and for several budgets; fit their losses.

    Where each type has the loss for which softmax attention needs more parameters or tokens is read
    from the fits. The same call again continues what was interrupted.

    Arguments, what is returned and what is raised are those of
    :func:`diffattn.lab.studies.fixed_members.reproduce_members`; with ``extrapolate`` equivalents
    are
    read beyond the points of the fits too. That is no part of what the folder is of, so a finished
    study can be read again.
    """
    from diffattn.lab.training.trainer import train

    def results(made: dict[str, Any]) -> dict[str, Any]:
        losses = {run: recorded["validation_loss"] for run, recorded in made.items()}
        return scaling_results(config, losses, extrapolate=extrapolate)

    return reproduce_members(
        config, "scaling", out, train, results,
        workers=workers, on_message=on_message, on_progress=on_progress,
        facts={"runs": [member.config.name for member in config.members()]},
    )  # fmt: skip


def scaling_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> ScalingStudyConfig:
    """The resolved configuration of :func:`reproduce_scaling`.

    Args:
        scale: ``"smoke"`` or ``"laptop"``; see :mod:`diffattn.lab.catalog.recipes.scaling`.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``; those of model and training are of the
            base, from which sizes and budgets follow.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES

    check_known("reproduce", "scale", scale, SCALING_STUDIES)
    plan = SCALING_STUDIES[scale]()
    return ScalingStudyConfig(
        scale=scale,
        base=apply_settings(plan.run.config(), settings),
        widths=plan.widths,
        budgets=plan.budgets,
        seeds=plan.seeds if seeds is None else tuple(seeds),
        types=plan.types,
        match=match,
    )

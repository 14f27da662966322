"""The scaling study: losses of matched models over sizes and over tokens, and their fits."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.models.known_names import check_known
from diffattn.records.io import read_json, write_json
from diffattn.records.lock import sole_writer
from diffattn.report.build import build_report
from diffattn.studies.fixed_members import train_members
from diffattn.studies.scaling.config import ScalingStudyConfig
from diffattn.studies.scaling.summary import scaling_results
from diffattn.studies.workers import OnMessage, OnProgress
from diffattn.training.settings import apply_settings


def reproduce_scaling(
    scale: str = "laptop",
    *,
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    workers: int | None = None,
    extrapolate: bool = False,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train matched models of several sizes and for several budgets; fit their losses.

    Where each type has the loss for which softmax attention needs more parameters or tokens is read
    from the fits. The same call again continues what was interrupted.

    Args:
        scale: ``"smoke"`` or ``"laptop"``; see :mod:`diffattn.recipes.scaling`.
        out: Study folder. Default: ``runs/scaling-<scale>``.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``; those of model and training are of the
            base, from which sizes and budgets follow.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.
        workers: One-thread processes side by side; with 1 the runs are made in this process, which
            saves the start-up of one per run. Default: CPU cores, at most 2; 1 on a GPU.
        extrapolate: Read equivalents beyond the points of the fits too; no part of what the folder
            is of, so a finished study can be read again.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json``, ``data/`` and ``runs/``.

    Raises:
        ConfigError: An unknown scale or setting, or ``out`` holds another configuration.
        CheckpointError: ``out`` holds foreign or damaged files.
        DiffAttnError: A run failed.
    """
    from diffattn.training.trainer import train

    config = scaling_study(scale, seeds=seeds, settings=settings, match=match)
    folder = Path(out) if out is not None else Path("runs") / f"scaling-{scale}"
    with sole_writer(folder):
        names = [member.config.name for member in config.members()]
        train_members(
            config, "scaling", folder, train, workers=workers,
            on_message=on_message, on_progress=on_progress,
            facts={"runs": names},
        )  # fmt: skip
        _summarise(config, folder, extrapolate)
        return build_report(folder)


def scaling_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> ScalingStudyConfig:
    """The resolved configuration of :func:`reproduce_scaling`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.recipes.scaling import SCALING_STUDIES

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


def _summarise(config: ScalingStudyConfig, folder: Path, extrapolate: bool) -> None:
    """Write ``results.json`` and ``costs.json`` of a finished study."""
    runs = {member.config.name: folder / "runs" / member.config.name for member in config.members()}
    losses = {
        name: read_json(run / "results.json")["validation_loss"] for name, run in runs.items()
    }
    costs = {name: read_json(run / "costs.json") for name, run in runs.items()}
    write_json(folder / "results.json", scaling_results(config, losses, extrapolate=extrapolate))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})

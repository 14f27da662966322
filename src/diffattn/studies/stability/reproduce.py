"""The stability study: loss and gradient spikes of matched models over learning rates."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.models.known_names import check_known
from diffattn.records.io import read_json, read_jsonl, write_json
from diffattn.records.lock import sole_writer
from diffattn.report.build import build_report
from diffattn.studies.fixed_members import train_members
from diffattn.studies.stability.config import StabilityStudyConfig
from diffattn.studies.stability.summary import stability_results
from diffattn.studies.workers import OnMessage, OnProgress
from diffattn.training.settings import apply_settings


def reproduce_stability(
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
    """Train matched models at learning rates up to far too large ones; count what goes wrong.

    What counts as a spike stands in :mod:`diffattn.stats.spikes`. A run that diverges is a result.
    The same call again continues what was interrupted.

    Args:
        scale: ``"smoke"``, ``"laptop"`` or ``"study"``; see :mod:`diffattn.recipes.stability`.
        out: Study folder. Default: ``runs/stability-<scale>``.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.
        workers: One-thread processes side by side; with 1 the runs are made in this process, which
            saves the start-up of one per run. Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json``, ``data/`` and ``runs/``.

    Raises:
        ConfigError: An unknown scale or setting, or ``out`` holds another configuration.
        CheckpointError: ``out`` holds foreign or damaged files.
        DiffAttnError: A run failed otherwise than by divergence.
    """
    from diffattn.training.stability import train_stability

    config = stability_study(scale, seeds=seeds, settings=settings, match=match)
    folder = Path(out) if out is not None else Path("runs") / f"stability-{scale}"
    with sole_writer(folder):
        train_members(
            config, "stability", folder, train_stability, workers=workers,
            on_message=on_message, on_progress=on_progress,
        )  # fmt: skip
        _summarise(config, folder)
        return build_report(folder)


def stability_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> StabilityStudyConfig:
    """The resolved configuration of :func:`reproduce_stability`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.recipes.stability import STABILITY

    check_known("reproduce", "scale", scale, STABILITY)
    plan = STABILITY[scale]()
    return StabilityStudyConfig(
        scale=scale,
        base=apply_settings(plan.run.config(), settings),
        learning_rates=plan.learning_rates,
        seeds=plan.seeds if seeds is None else tuple(seeds),
        match=match,
    )


def _summarise(config: StabilityStudyConfig, folder: Path) -> None:
    """Write ``results.json`` and ``costs.json`` of a finished study."""
    runs = {member.config.name: folder / "runs" / member.config.name for member in config.members()}
    results = {name: read_json(run / "results.json") for name, run in runs.items()}
    rows = {
        name: read_jsonl(run / "metrics.jsonl", recorded=results[name]["metrics"])
        for name, run in runs.items()
    }
    costs = {
        name: read_json(run / "costs.json")
        for name, run in runs.items()
        if (run / "costs.json").exists()  # a run that diverged before its first checkpoint has none
    }
    write_json(folder / "results.json", stability_results(config, results, rows))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})

"""The stability study: loss and gradient spikes of matched models over learning rates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.files.io import read_jsonl
from diffattn.lab.studies.fixed_members import reproduce_members
from diffattn.lab.studies.stability.config import StabilityStudyConfig
from diffattn.lab.studies.stability.summary import stability_results
from diffattn.lab.studies.workers import OnMessage, OnProgress
from diffattn.lab.training.settings import apply_settings
from diffattn.models.config.known_names import check_known


def reproduce_stability(
    config: StabilityStudyConfig,
    out: Path,
    *,
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train matched models at learning rates up to far too large ones; count what goes wrong.

    What counts as a spike stands in :mod:`diffattn.lab.stats.spikes`. A run that diverges is a
    result.
    The same call again continues what was interrupted.

    Arguments, what is returned and what is raised are those of
    :func:`diffattn.lab.studies.fixed_members.reproduce_members`.
    """
    from diffattn.lab.training.stability import train_recorded

    def results(made: dict[str, Any]) -> dict[str, Any]:
        rows = {
            run: read_jsonl(out / "runs" / run / "metrics.jsonl", recorded=recorded["metrics"])
            for run, recorded in made.items()
        }
        return stability_results(config, made, rows)

    return reproduce_members(
        config, "stability", out, train_recorded, results,
        workers=workers, on_message=on_message, on_progress=on_progress,
    )  # fmt: skip


def stability_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> StabilityStudyConfig:
    """The resolved configuration of :func:`reproduce_stability`.

    Args:
        scale: ``"smoke"``, ``"laptop"`` or ``"study"``; see
        :mod:`diffattn.lab.catalog.recipes.stability`.
        seeds: Seeds of initial weights and data order. Default: the scale's.
        settings: Changes such as ``"data.source=my_texts"``. Another ``train.learning_rate`` than
            the scale's changes all rates by as much.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    from diffattn.lab.catalog.recipes.stability import STABILITY

    check_known("reproduce", "scale", scale, STABILITY)
    plan = STABILITY[scale]()
    base = apply_settings(plan.run.config(), settings)
    times = base.train.learning_rate / plan.run.train.learning_rate
    return StabilityStudyConfig(
        scale=scale,
        base=base,
        learning_rates=tuple(times * rate for rate in plan.learning_rates),
        seeds=plan.seeds if seeds is None else tuple(seeds),
        match=match,
    )

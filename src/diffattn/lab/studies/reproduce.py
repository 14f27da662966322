"""Reproduce a study: the kinds of studies, and the one function that runs each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.catalog.models import MEMBERS
from diffattn.lab.catalog.recipes.catalog import default_folder
from diffattn.lab.studies.gradient_flow.config import gradient_flow_study
from diffattn.lab.studies.gradient_flow.summary import gradient_flow_results
from diffattn.lab.studies.practical.config import practical_study
from diffattn.lab.studies.practical.summary import practical_results
from diffattn.lab.studies.recall.config import recall_study
from diffattn.lab.studies.recall.summary import judge_recall
from diffattn.lab.studies.run import run_study
from diffattn.lab.studies.scaling.config import scaling_study
from diffattn.lab.studies.scaling.summary import scaling_results
from diffattn.lab.studies.stability.config import stability_study
from diffattn.lab.studies.stability.summary import stability_results
from diffattn.lab.studies.study import OnMessage, OnProgress, Runs, Study
from diffattn.lab.studies.text.scales import comparison
from diffattn.lab.studies.text.summary import judge_comparison
from diffattn.lab.training.prepare import PreparedData
from diffattn.models.config.known_names import check_known


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of study: how its settings and its results are made."""

    make: Callable[..., Study]
    """Makes the settings from a scale and the options below."""
    judge: Callable[[Any, Runs, PreparedData | None, OnMessage], Any]
    """Makes the content of ``results.json`` from finished runs."""
    options: tuple[str, ...] = ("seeds", "settings", "match")
    """Names of the arguments of :func:`reproduce` that the kind takes."""


KINDS: dict[str, Kind] = {
    **{name: Kind(partial(comparison, kind=name), judge_comparison) for name in MEMBERS},
    "recall": Kind(recall_study, judge_recall, options=("seeds", "match")),
    "practical": Kind(
        practical_study,
        lambda study, runs, *_: practical_results(study, runs.results),
        options=("seeds", "match"),
    ),
    "stability": Kind(
        stability_study,
        lambda study, runs, *_: stability_results(study, runs.results, runs.rows("metrics")),
    ),
    "gradient-flow": Kind(
        gradient_flow_study,
        lambda study, runs, *_: gradient_flow_results(study, runs.results, runs.rows("gradients")),
    ),
    "scaling": Kind(
        scaling_study,
        lambda study, runs, *_: scaling_results(
            study, {name: result["validation_loss"] for name, result in runs.results.items()}
        ),
        options=("seeds", "settings", "match", "extrapolate"),
    ),
}
"""Name of a kind -> the kind."""


def reproduce(
    scale: str = "laptop",
    *,
    kind: str = "text",
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    extrapolate: bool = False,
    reuse: Sequence[str | Path] = (),
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train the models of a study on the same data, and compare them.

    The same call again continues an interrupted study.

    Args:
        scale: ``"smoke"`` (a minute), ``"laptop"`` (about ten minutes, scaling an hour) or
            ``"study"`` (hours to a day, not for scaling). Text, ablations and rank also have
            ``"workstation"`` and ``"lease"`` (one GPU; a lease is a quarter of an hour at a time).
        kind: ``"text"`` for softmax, DIFF V1, DIFF V2, Shared DIFF and controls; ``"ablations"``
            for Table 6 and more; ``"rank"`` for Shared DIFF's rank and λ_init; ``"recall"``,
            ``"practical"``, ``"stability"``, ``"gradient-flow"`` or ``"scaling"``.
        out: Study folder. Default: ``runs/<kind>-<scale>``; for text ``runs/<scale>``.
        seeds: Seeds of initial weights and data order. Default: the scale's seeds.
        settings: Changes such as ``"train.num_steps=500"`` or ``"data.source=my_texts"``; recall
            and practical take none.
        match: The budget that the models keep equal; see :func:`diffattn.models.twins.twin`.
        extrapolate: Only for scaling: also read equivalents beyond the points of the fits.
        reuse: Folders of other studies on text, whose finished runs with the same settings, seed
            and tokens are copied and not trained again.
        workers: One-thread processes side by side. Default: one per GPU, else per core, at most 2.
        on_message: Called with one line per stage.
        on_progress: Called with a run's name and an event, see
            :data:`diffattn.lab.studies.study.OnProgress`.

    Returns:
        The path of ``report.html``. Beside it lie ``study.json``, ``results.json``, ``costs.json``
        and ``runs/``. All kinds but recall and practical have ``data/``; text, ablations and rank
        have ``counts.json`` and ``maps.json``; recall may have ``maps.json``.

    Raises:
        ConfigError: An unknown kind, scale or setting, or a folder or device that does not fit.
        CheckpointError: ``out`` or a run to be copied holds foreign or damaged files.
        DiffAttnError: A run failed; or all runs are made, but one that must not diverge did.
    """
    study = make_study(
        kind, scale, seeds=seeds, settings=settings, match=match, extrapolate=extrapolate
    )
    return run_study(
        study,
        Path(out) if out is not None else default_folder(kind, scale),
        judge,
        reuse=[Path(folder) for folder in reuse],
        workers=workers,
        on_message=on_message,
        on_progress=on_progress,
    )


def make_study(
    kind: str,
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    extrapolate: bool = False,
) -> Study:
    """The settings of a study. Arguments are those of :func:`reproduce`."""
    check_known("reproduce", "kind", kind, KINDS)
    options = {"seeds": seeds, "settings": settings, "match": match, "extrapolate": extrapolate}
    for name in ("settings", "extrapolate"):
        if options[name] and name not in KINDS[kind].options:
            raise ConfigError(f"reproduce {kind}: {name} must be left out, got {options[name]!r}.")
    taken = {name: options[name] for name in KINDS[kind].options}
    return KINDS[kind].make(scale, **taken)


def judge(study: Study, runs: Runs, data: PreparedData | None, on_message: OnMessage) -> Any:
    """Make the content of ``results.json`` for a study of any kind."""
    return KINDS[study.kind].judge(study, runs, data, on_message)

"""Read the folder of a study of models on text: what is there, and in words what is not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import FLOOR, TYPES, gets_every_seed
from diffattn.lab.records.study_results import read_study_results
from diffattn.lab.report.page.runs import (
    BASELINE,
    Study,
    StudyRun,
    is_number,
    read_runs,
    read_versioned,
    run_gaps,
)
from diffattn.lab.report.page.wording import listing

ROW_KINDS = {"ablations": "ablations", "rank": "rank and λ_init of Shared DIFF"}
"""Kinds of study that test rows together, besides the matched comparison, in words."""


@dataclass(frozen=True, kw_only=True)
class TextStudy(Study):
    """A study of models on text. Its ``runs`` are those at each variant's chosen learning rate."""

    variants: tuple[str, ...]
    """Names of the models compared, in the order shown."""
    variant_of: dict[str, str]
    """Name of a run to that of its variant."""
    common_runs: tuple[StudyRun, ...] = ()
    """Those at the common learning rate, where it is not the best."""
    sweep_runs: tuple[StudyRun, ...] = ()
    """Those that chose the learning rates."""

    @property
    def types(self) -> list[str]:
        """The variants: what the tables that all kinds of study share have a row for."""
        return list(self.variants)

    @property
    def all_runs(self) -> tuple[StudyRun, ...]:
        """Every run, those that count first."""
        return (*self.runs, *self.common_runs, *self.sweep_runs)

    def runs_of(self, attention_type: str) -> list[StudyRun]:
        """Runs of one variant at its chosen rate, in seed order."""
        return [run for run in self.runs if self.variant_of[run.name] == attention_type]


def read_study(folder: Path) -> TextStudy:
    """Read everything a report shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Returns:
        The study; what is missing stands in ``gaps``.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind or of
            another schema version.
    """
    folder = Path(folder)
    info = read_versioned(folder / "study.json")
    shared_costs: dict[str, Any] = {}
    if (folder / "costs.json").exists():
        shared_costs = read_versioned(folder / "costs.json")["runs"]
    runs = read_runs(folder, shared_costs)
    results, maps = read_study_results(folder), None
    if (folder / "maps.json").exists():
        maps = read_versioned(folder / "maps.json")
    study = assembled(info, runs, results, folder / "study.json", maps=maps)
    return _with_gaps(study, [run for run in runs if run not in study.all_runs])


def assembled(
    info: dict[str, Any],
    runs: Sequence[StudyRun],
    results: dict[str, Any] | None,
    path: Path,
    **more: Any,
) -> TextStudy:
    """A study of runs that are told apart by their names; those of no variant are left out.

    Args:
        info: ``study.json``.
        runs: In any order.
        results: ``results.json``.
        path: Where ``info`` comes from, for messages.
        **more: Other fields of :class:`TextStudy`.

    Raises:
        CheckpointError: ``info`` names no variants.
    """
    counted = results["variants"] if results else ()
    variants = tuple(dict.fromkeys([*info.get("variants", ()), *counted]))
    if not variants:
        raise CheckpointError(f"{path}: must hold variants, the names of the models, got none.")
    places = {run.name: place for run in runs if (place := _place(run.name, variants, info))}
    made: dict[str, list[StudyRun]] = {"best": [], "common": [], "sweep": []}
    ordered = sorted(
        (run for run in runs if run.name in places),
        key=lambda run: (variants.index(places[run.name][0]), run.record.seed, run.name),
    )
    for run in ordered:
        made[places[run.name][1]].append(run)
    return TextStudy(
        info=info,
        runs=tuple(made["best"]),
        common_runs=tuple(made["common"]),
        sweep_runs=tuple(made["sweep"]),
        results=results,
        variants=variants,
        variant_of={name: variant for name, (variant, _) in places.items()},
        **more,
    )


def has_loss(run: StudyRun) -> bool:
    """Whether a run finished with a finite validation loss."""
    return is_number(run.result("validation_loss"))


def _place(name: str, variants: Iterable[str], info: dict[str, Any]) -> tuple[str, str] | None:
    """Variant of a run and what it was made for; ``None`` for a run of another study."""
    for variant in variants:
        if not name.startswith(f"{variant}-"):
            continue
        rest = name[len(variant) + 1 :]
        if rest in (f"seed{seed}" for seed in info["seeds"]):
            return variant, "best"
        if rest in (f"common-seed{seed}" for seed in info["seeds"]):
            return variant, "common"
        if re.fullmatch(r"lr.+-(sweep|whole)\d+", rest):
            return variant, "sweep"
    return None


def _with_gaps(study: TextStudy, foreign: list[StudyRun]) -> TextStudy:
    """The study with a sentence for everything that is missing or contradictory."""
    gaps = [f"Run {run.name} is in the folder but not part of this study." for run in foreign]
    gaps += _run_gaps(study) + _file_gaps(study)
    return replace(study, gaps=tuple(gaps))


def _run_gaps(study: TextStudy) -> list[str]:
    """Runs that are missing, unfinished or without a loss."""
    gaps = []
    for variant, stem, seeds in _missing(study):
        which = f"{'seed' if len(seeds) == 1 else 'seeds'} {listing(seeds)}"
        rate = "" if stem == variant else " at the common learning rate"
        gaps.append(f"No run of {variant}{rate} with {which} was found.")
    for run in study.all_runs:
        gaps += run_gaps(run)
        tried = run in study.sweep_runs and run.result("diverged_step") is not None
        if run.results is not None and not has_loss(run) and not tried:
            gaps.append(f"Run {run.name} finished without a finite validation loss.")
    return gaps


def _missing(study: TextStudy) -> list[tuple[str, str, list[int]]]:
    """Variant, how its runs begin and which seeds have none: at its own learning rate, and at the
    common one where the runs show that it is another."""
    here = {run.name for run in study.all_runs}
    common = _learning_rate(study, BASELINE)
    absent = []
    for variant in study.variants:
        every: list[int] = study.info["seeds"]
        wanted = (
            every
            if gets_every_seed(variant)
            else every[: study.info.get("fewer_seeds", len(every))]
        )
        stems = [variant]
        chosen = _learning_rate(study, variant)
        at_common_too = () if study.info.get("own_rates") else (*TYPES, FLOOR)
        if variant in at_common_too and None not in (chosen, common) and chosen != common:
            stems.append(f"{variant}-common")
        for stem in stems:
            seeds = [seed for seed in wanted if f"{stem}-seed{seed}" not in here]
            if seeds:
                absent.append((variant, stem, seeds))
    return absent


def _learning_rate(study: TextStudy, variant: str) -> float | None:
    """Of a variant's runs that count; ``None`` where there is none."""
    for run in study.runs_of(variant):
        train = run.record.config.get("train")
        rate: Any = train.get("learning_rate") if isinstance(train, dict) else None
        if is_number(rate):
            return float(rate)
    return None


def _file_gaps(study: TextStudy) -> list[str]:
    """Name the missing study files."""
    gaps = []
    if study.maps is None:
        gaps.append("maps.json is missing: no attention maps are shown.")
    if study.results is None:
        return [
            *gaps,
            "results.json is missing: the study has not finished. Means and intervals are "
            "computed here from the finished runs; no difference is adjusted for the number of "
            "comparisons yet.",
        ]
    if not study.results.get("complete", True):
        gaps.append("results.json says that the study is not complete.")
    return gaps

"""Read the folder of a study of models on text: what is there, and in words what is not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json
from diffattn.lab.records.fields import checked
from diffattn.lab.records.run import require_schema
from diffattn.lab.report.page.runs import (
    BASELINE,
    TEXT_SCHEMA,
    Study,
    StudyRun,
    is_number,
    read_checked,
    read_runs,
    run_gaps,
)
from diffattn.lab.report.page.wording import (
    NO_ATTENTION,
    TYPE_NAMES,
    WITH_EVERY_SEED,
    brief_names,
    listing,
    plural,
)
from diffattn.lab.report.study.fields import Costs, Maps, StudyInfo, StudyResults

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
    info = read_checked(folder / "study.json", StudyInfo)
    shared_costs: dict[str, Any] = {}
    if (folder / "costs.json").exists():
        shared_costs = read_checked(folder / "costs.json", Costs)["runs"]
    runs = read_runs(folder, shared_costs)
    results = maps = None
    if (folder / "results.json").exists():
        path = folder / "results.json"
        results = checked_results(read_json(path), path)
    if (folder / "maps.json").exists():
        maps = read_checked(folder / "maps.json", Maps)
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
        results: From :func:`checked_results`.
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


def checked_results(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """``results.json`` with its fields checked.

    Raises:
        CheckpointError: It is of another kind or schema version, or does not name the run, or the
            pair of runs, of every value.
    """
    require_schema(value, path, TEXT_SCHEMA)
    results: dict[str, Any] = dict(checked(StudyResults, value, str(path)))
    for name, entry in results["variants"].items():
        for group in entry["at"].values():
            for values in (group["validation_loss"]["values"], group.get("phase_steps")):
                if values is not None:
                    _require_one_run_per_value(path, name, group, values)
    for entry in results["differences"]:
        _require_one_run_per_value(path, entry["variant"], entry, entry["values"])
        if any(len(pair) != 2 for pair in entry["runs"]):
            raise CheckpointError(
                f"{path}: differences of {entry['variant']} must pair two runs, got other numbers."
            )
    return results


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


def _require_one_run_per_value(
    path: Path, name: str, entry: dict[str, Any], values: list[Any]
) -> None:
    if len(entry["runs"]) != len(values):
        raise CheckpointError(
            f"{path}: {name} must name one run per value, got {len(entry['runs'])} runs and "
            f"{len(values)} values."
        )


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
    found = []
    for variant in study.variants:
        every: list[int] = study.info["seeds"]
        wanted = (
            every
            if variant in WITH_EVERY_SEED
            else every[: study.info.get("fewer_seeds", len(every))]
        )
        stems = [variant]
        own = _learning_rate(study, variant)
        if variant in (*TYPE_NAMES, NO_ATTENTION) and None not in (own, common) and own != common:
            stems.append(f"{variant}-common")
        for stem in stems:
            seeds = [seed for seed in wanted if f"{stem}-seed{seed}" not in here]
            if seeds:
                found.append((variant, stem, seeds))
    return found


def _learning_rate(study: TextStudy, variant: str) -> float | None:
    """Of a variant's runs that count; ``None`` where there is none."""
    for run in study.runs_of(variant):
        train = run.record.config.get("train")
        rate: Any = train.get("learning_rate") if isinstance(train, dict) else None
        if is_number(rate):
            return float(rate)
    return None


def _file_gaps(study: TextStudy) -> list[str]:
    """Missing study files, and summaries that contradict the runs they name."""
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
    measured = {run.name: run.result("validation_loss") for run in study.all_runs if has_loss(run)}
    recorded = _recorded_losses(study.results)
    for name, value in recorded:
        if name in measured and abs(measured[name] - value) > 1e-9:
            gaps.append(
                f"results.json gives {value} for {name}, but the run's own file "
                f"gives {measured[name]}."
            )
    known = {run.name for run in study.all_runs}
    known |= {f"{stem}-seed{seed}" for _, stem, seeds in _missing(study) for seed in seeds}
    absent = [name for name, _ in recorded if name not in known]
    if absent:
        gaps.append(
            f"results.json names {plural(len(absent), 'run')} that the folder does not hold: "
            f"{listing(brief_names(absent))}."
        )
    return gaps


def _recorded_losses(results: dict[str, Any]) -> list[tuple[str, float]]:
    """Run and validation loss of everything that ``results.json`` names, the sweep included."""
    recorded: list[tuple[str, float]] = []
    for entry in results["variants"].values():
        for group in entry["at"].values():
            recorded += zip(group["runs"], group["validation_loss"]["values"], strict=True)
    for rates in (results.get("rates") or {"variants": {}})["variants"].values():
        for entry in (*rates.get("tried", ()), *rates.get("whole", ())):
            if entry["validation_loss"] is not None:
                recorded.append((entry["run"], entry["validation_loss"]))
    return recorded

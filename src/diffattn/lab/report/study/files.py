"""Read the folder of a study of models on text; sentences name what is missing."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import gets_every_seed
from diffattn.lab.report.page.runs import Study, StudyRun, is_number, read_study_of_runs

ROW_KINDS = {"ablations": "ablations", "rank": "rank and λ_init of Shared DIFF"}
"""Kinds of study on text that report rows -> their names in words."""


@dataclass(frozen=True, kw_only=True)
class TextStudy(Study):
    """A study of models on text, with its runs at all learning rates."""

    variants: tuple[str, ...]
    """Names of the models compared, in the order shown."""

    @property
    def types(self) -> list[str]:
        """The variants: each has a row in the tables that all kinds of study share."""
        return list(self.variants)

    def runs_of(self, attention_type: str) -> list[StudyRun]:
        """Runs of one variant at its chosen rate, in seed order."""
        return [x for x in self.runs if x.name == f"{attention_type}-seed{x.record.seed}"]


def read_study(folder: Path) -> TextStudy:
    """Read everything that a report shows. ``gaps`` names what is missing.

    Raises:
        CheckpointError: ``study.json`` is missing or names no variants, or a file is damaged, of
            another kind or of another schema version.
    """
    study = read_study_of_runs(folder, _run_names)
    variants = _variants(study.info, study.results)
    if not variants:
        path = folder / "study.json"
        raise CheckpointError(f"{path}: must hold variants, the names of the models, got none.")
    lost = [
        f"Run {run.name} finished without a finite validation loss."
        for run in study.runs
        if run.results is not None
        and not is_number(run.result("validation_loss"))
        and not ("-lr" in run.name and run.result("diverged_step") is not None)
    ]
    if study.maps is None:
        lost.append("maps.json is missing: no attention maps are shown.")
    return TextStudy(**vars(study) | {"variants": variants, "gaps": (*study.gaps, *lost)})


def _variants(info: dict[str, Any], results: dict[str, Any] | None) -> tuple[str, ...]:
    counted = results["variants"] if results else ()
    return tuple(dict.fromkeys([*info.get("variants", ()), *counted]))


def _run_names(
    info: dict[str, Any], names: Collection[str], results: dict[str, Any] | None
) -> list[str]:
    """Names of runs at chosen rates; then of others in the results, at common rates, of sweeps."""
    seeds, variants = info["seeds"], _variants(info, results)
    fewer = info.get("fewer_seeds", len(seeds))
    wanted = [
        f"{variant}-seed{seed}"
        for variant in variants
        for seed in (seeds if gets_every_seed(variant) else seeds[:fewer])
    ]
    begin, of_seed = ("|".join(re.escape(str(x)) for x in each) for each in (variants, seeds))
    fits = re.compile(rf"({begin})-((common-)?seed({of_seed})|lr.+-(sweep|whole)\d+)")
    groups = [
        at for x in (results or {"variants": {}})["variants"].values() for at in x["at"].values()
    ]
    counted = [run for group in groups for run in group["runs"]]
    return list(dict.fromkeys([*wanted, *filter(fits.fullmatch, [*counted, *sorted(names)])]))

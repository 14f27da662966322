"""A study of models on text in memory: its records, and the numbers that tables and charts show."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import BASELINE, FLOOR, NEVER_ATTEND, VARIANTS, gets_every_seed
from diffattn.lab.report.page.phase import explain_gap
from diffattn.lab.report.page.run_tables import median_cost
from diffattn.lab.report.page.runs import Study, StudyRun, read_study_of_runs
from diffattn.lab.report.page.wording import count, is_number, number, verdict
from diffattn.lab.stats.paired import paired_difference

ROW_KINDS = {"ablations": "ablations", "rank": "rank and λ_init of Shared DIFF"}
"""Kinds of study on text that report rows -> their names in words."""
LOSS = "validation_loss"
COMPARED = ("baseline", "type")
"""Roles of the models in the main table."""
NOT_COMPARED = "not compared"
RATES = {"best": "chosen", "common": "common"}
"""Key of a learning rate in the records -> word in tables."""
PARTS = {
    "repeated_bigram": "Repeated pair",
    "repeated_token": "Repeated token",
    "first_occurrence": "First occurrence",
}
PART_MEANINGS = {
    "repeated_bigram": "The token and the one before it stood side by side earlier in the window.",
    "repeated_token": "The token stood in the window before, but not after this predecessor.",
    "first_occurrence": "The token is new in the window.",
}
COUNT_MODELS = {"unigram": "Unigram", "bigram": "Bigram", "bigram_copy": "Bigram + copy"}
"""Models that count the training tokens and learn nothing else."""


@dataclass(frozen=True, kw_only=True)
class TextStudy(Study):
    """A study of models on text, with its runs at all learning rates."""

    variants: tuple[str, ...]

    @property
    def types(self) -> list[str]:
        """The variants: each has a row in the tables that all kinds of study share."""
        return list(self.variants)

    def runs_of(self, model: str) -> list[StudyRun]:
        """Runs of one variant at its chosen rate, in seed order."""
        return [x for x in self.runs if x.name == f"{model}-seed{x.record.seed}"]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Variant -> its record, in the order shown; empty before the study has finished."""
        recorded = self.recorded.get("variants", {})
        return {name: recorded[name] for name in self.variants if name in recorded}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a study of ablations or ranks; else empty."""
        return self.recorded.get("rows") or []

    @property
    def drawn(self) -> list[str]:
        """The variants whose curves are drawn: up to four, else types, baseline, no attention."""
        if len(self.variants) <= 4:
            return list(self.variants)
        return [name for name in self.variants if self.role_of(name) in COMPARED or name == FLOOR]

    def role_of(self, name: str) -> str:
        """The role of a variant, whether or not the study has finished."""
        row = VARIANTS.get(name)
        return str(self.entries.get(name, {"role": row.role if row else "ablation"})["role"])

    def differences(self, metric: str = LOSS) -> Iterator[dict[str, Any]]:
        """All paired differences in one metric: the validation loss, or the loss on a part."""
        return (x for x in self.recorded.get("differences", ()) if x["metric"] == metric)

    def difference(
        self, variant: str, baseline: str, at: str = "best", metric: str = LOSS
    ) -> dict[str, Any] | None:
        """One recorded difference, negated if the record has the pair the other way round."""
        for entry in self.differences(metric):
            if entry["at"] != at or {entry["variant"], entry["baseline"]} != {variant, baseline}:
                continue
            if entry["variant"] == variant:
                return entry
            low, high = (None if end is None else -end for end in (entry["high"], entry["low"]))
            return entry | {
                "variant": variant,
                "baseline": baseline,
                "runs": [(b, a) for a, b in entry["runs"]],
                "values": [-value for value in entry["values"]],
                "mean": -entry["mean"],
                "low": low,
                "high": high,
            }
        return None

    def baseline_of(self, variant: str) -> str | None:
        """The baseline of a variant's first recorded difference, or ``None``."""
        return next((x["baseline"] for x in self.differences() if x["variant"] == variant), None)

    def in_words(self, entry: Mapping[str, Any]) -> str:
        """A difference in words, or why the pair is not compared."""
        # Models without attention never copy: the induction phase does not exclude them.
        every, pair = self.entries, (entry["variant"], entry["baseline"])
        is_timed = every.keys() >= set(pair) and set(pair).isdisjoint(NEVER_ATTEND)
        if is_timed and (reason := explain_gap(every, *pair, entry["at"])):
            return f"{NOT_COMPARED}: {reason}"
        return verdict(entry)


def groups_of(variant: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A variant's groups of runs: at its chosen rate, and at the common rate if it has some."""
    return [variant["at"][at] for at in RATES if at in variant["at"]]


def at_equal_time(study: TextStudy, name: str) -> dict[str, Any] | None:
    """Loss minus the Transformer's at equal time, by seed; ``None`` without costs.

    Both are losses during training, on the same windows. The time is the median of the
    Transformer's whole runs. A slower model has not finished its schedule at that time. Its
    learning rate is still high, so a shorter schedule would end lower.
    """
    sides = [_whole_runs(study, side) for side in (name, BASELINE)]
    seconds = [median_cost(side, "seconds") for side in sides]
    curves, others = ([np.transpose(run.series(LOSS)) for run in side] for side in sides)
    if seconds[0] is None or seconds[1] is None or not all(map(len, [*curves, *others])):
        return None
    share = min(1.0, seconds[1] / seconds[0])
    losses = [float(np.interp(share * steps[-1], steps, values)) for steps, values in curves]
    return paired_difference(losses, [values[-1] for _, values in others[: len(curves)]]).recorded()


def train_losses(study: TextStudy, name: str) -> list[float]:
    """Mean training loss of the last five rows of the log, by seed; empty without them."""
    logs = [run.series("train_loss") for run in _whole_runs(study, name)]
    return [fmean(loss for _, loss in log[-5:]) for log in logs] if all(logs) else []


def _whole_runs(study: TextStudy, name: str) -> list[StudyRun]:
    """The runs of a variant at its chosen rate, in the order of seeds; empty if one is missing."""
    runs, variant = {run.name: run for run in study.runs}, study.entries.get(name)
    names = variant["at"]["best"]["runs"] if variant else []
    return [runs[run] for run in names] if runs.keys() >= set(names) else []


def training_budget(info: dict[str, Any]) -> str:
    """Steps and tokens of a run, and how often it read the text."""
    train, text = info["config"]["train"], info.get("data", {}).get("train_tokens")
    steps, batch = train["num_steps"], train["batch_tokens"]
    passes = steps * batch / text if text else 0
    times = f", {number(passes, 1)} times the text" if passes > 1 else ""
    return f"{count(steps)} steps of {count(batch)} tokens ({count(steps * batch)} tokens{times})"


def read_study(folder: Path) -> TextStudy:
    """Read everything that a report shows. ``gaps`` names what is missing."""
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
    recorded = results["variants"].values() if results else ()
    counted = [run for x in recorded for group in x["at"].values() for run in group["runs"]]
    return list(dict.fromkeys([*wanted, *filter(fits.fullmatch, [*counted, *sorted(names)])]))

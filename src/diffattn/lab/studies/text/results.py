"""From the records of finished runs to the numbers of a comparison, and its tests.

Two measures per type are tested, fixed on 28 November 2026: the final loss, and the share of the
tokens with which a type reaches the Transformer's last loss during training. Their p-values are
adjusted together. All other differences are reported without a test.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, sqrt
from statistics import fmean
from typing import Any, cast

from diffattn.lab.catalog.models import (
    BASELINE,
    FLOOR,
    RANK,
    SIDE_EFFECTS,
    VARIANTS,
    WIDE_NORM,
    WIDER_FLOOR,
    own_side_effects,
)
from diffattn.lab.records.text_results import (
    AdjustedLead,
    At,
    Endpoint,
    GroupResult,
    RatesResult,
    Row,
    SweepResult,
    TextDifference,
    TextResults,
    VariantResult,
)
from diffattn.lab.report.page.phase import explain_gap
from diffattn.lab.stats.intervals import mean_of_seeds, t_quantile
from diffattn.lab.stats.paired import holm, paired_t_test
from diffattn.lab.studies.study import Results
from diffattn.lab.studies.text.comparison import (
    ComparisonConfig,
    Sweep,
    Tries,
    best_rates,
    trial_name,
    try_name,
)
from diffattn.models.twins import attention_parameters, flops_per_token, parameter_count

LEVEL = 0.05
"""Significance level of adjusted p-values."""
Curve = Sequence[tuple[int, float]]
"""Pairs of a step and a loss, one for each evaluation of a run."""
LOSS = "validation_loss"


def comparison_results(
    config: ComparisonConfig,
    sweeps: Mapping[str, Sweep],
    runs: Results,
    phases: Mapping[str, int | None],
    curves: Mapping[str, Curve],
    starts: Mapping[str, float | None],
) -> TextResults:
    """Losses of every variant, whole and by part, and paired differences.

    Args:
        phases: Name of a trial -> first evaluation at which it copies (:func:`phase_step`).
        curves: Name of a trial -> validation losses.
        starts: Name of a trial -> step at which it begins to copy, interpolated.
    """
    rates = best_rates(config, sweeps)
    trials = _Trials(config, rates, runs, phases)
    diverged = trials.diverged()
    variants = {name: trials.variant(name) for name in config.variants if name not in diverged}
    differences = list(trials.differences(variants))
    if config.kind == "text":
        compared: dict[str, Any] = {
            "endpoints": type_endpoints(variants, differences, curves),
            "adjusted_leads": adjusted_leads(variants, starts),
        }
    else:
        compared = {"rows": _compared_rows(differences, variants, diverged)}
    left_out = {name: n for name in trials.trials if (n := runs[name].get("left_out_steps"))}
    results = {
        "schema": 3,
        "protocol": {"name": "matched_comparison", "version": 4},
        "scale": config.scale,
        "seeds": list(config.seeds),
        "tokens": config.base.train.num_steps * config.base.train.batch_tokens,
        "rates": _rates(config, sweeps, rates[BASELINE], phases),
        "variants": variants,
        "differences": differences,
        **compared,
        **({"diverged": diverged} if diverged else {}),
        **({"left_out_steps": left_out} if left_out else {}),
        "complete": True,
    }
    return cast(TextResults, results)


def _compared_rows(
    differences: Sequence[TextDifference],
    variants: Mapping[str, VariantResult],
    diverged: Collection[str],
) -> list[Row]:
    """The pairs that a study of ablations or ranks reports: each type or ablation and its baseline.

    Also V2 and softmax with 1.5 times the heads; V1 or Shared DIFF and softmax with head norm, at
    softmax's rate. Other differences are in the record, but in no row."""
    models, baselines = [*variants, *diverged], {}
    for name in models:
        variant = VARIANTS[name]
        is_type = variant.role == "type"
        is_alone = name in (BASELINE, FLOOR) or (RANK in models and is_type)
        also = variant.also if is_type else ()
        baselines[name] = () if is_alone else (variant.compared_with, *also)
    rows: list[Row] = []
    for entry in differences:
        name, other = entry["variant"], entry["baseline"]
        # Softmax with head norm runs at softmax attention's rate, so the type's run there is used.
        is_common = other == WIDE_NORM and "common" in variants[name]["at"]
        at: At = "common" if is_common else "best"
        if other in baselines[name] and (entry["metric"], entry["at"]) == (LOSS, at):
            rows.append({"variant": name, "baseline": other, "at": at})
    return rows + [
        {"variant": name, "baseline": other, "at": "best"}
        for name in models
        for other in baselines[name]
        if {name, other} & set(diverged) and other in models
    ]


def _rates(
    config: ComparisonConfig,
    sweeps: Mapping[str, Sweep],
    common: float,
    phases: Mapping[str, int | None],
) -> RatesResult:
    def tries(name: str, tried: Tries, stage: str) -> list[Any]:
        runs = [(try_name(name, x, config.sweep_seed, stage), x, loss) for x, loss in tried]
        return [{"run": r, "learning_rate": x, "validation_loss": loss} for r, x, loss in runs]

    variants: dict[str, SweepResult] = {}
    for name, sweep in sweeps.items():
        variants[name] = {"best": sweep.best, "inside": sweep.inside}
        variants[name]["tried"] = tries(name, sweep.tried, "sweep")
        if config.own_rates:  # of the study for leases, whose rule this is
            best = try_name(name, sweep.best, config.sweep_seed)
            variants[name]["copies"] = phases.get(best) is not None
        if sweep.whole:  # full-length runs at the best swept rates
            variants[name]["whole"] = tries(name, sweep.whole, "whole")
    return {
        "common": common,
        "sweep_seed": config.sweep_seed if sweeps else None,
        "sweep_steps": config.sweep_steps if sweeps else None,
        "variants": variants,
    }


@dataclass(frozen=True)
class _Trials:
    """The final runs, by variant and rate: its ``"best"``, or the Transformer's, ``"common"``."""

    config: ComparisonConfig
    rates: Mapping[str, float]
    runs: Results
    phases: Mapping[str, int | None]

    @cached_property
    def trials(self) -> list[str]:
        return [run.config.name for run in self.config.trials(self.rates)]

    def names(self, variant: str, at: At) -> list[str]:
        """Names of a variant's runs, in the order of seeds."""
        seeds = self.config.seeds_of(variant)
        return [trial_name(variant, seed, common=at == "common") for seed in seeds]

    def diverged(self) -> dict[str, list[int]]:
        """Variant with a diverged run -> number of diverged runs, number of all runs."""
        diverged = {}
        for variant in self.config.variants:
            names = [*self.names(variant, "best"), *self.names(variant, "common")]
            losses = [self.runs[run][LOSS] for run in names if run in self.trials]
            if None in losses:
                diverged[variant] = [losses.count(None), len(losses)]
        return diverged

    def values(self, names: Sequence[str], metric: str) -> list[float]:
        runs = [self.runs[run] for run in names]
        return [x[LOSS] if metric == LOSS else x["validation_parts"][metric]["loss"] for x in runs]

    def variant(self, name: str) -> VariantResult:
        config, variant, model = self.config, VARIANTS[name], self.config.twins[name].config
        sequence = config.base.train.seq_len
        facts = {
            "role": variant.role,
            "what": variant.summary,
            "attention_type": variant.attention_type,
            "match": variant.match or config.match,
            "parameters": parameter_count(model),
            "train_flops_per_token": flops_per_token(model, sequence, training=True),
        }
        if config.kind != "text":
            facts["attention_parameters"] = model.num_hidden_layers * attention_parameters(model)
        groups = {"best": self.group(name, "best", self.rates[name])}
        if trial_name(name, config.seeds[0], common=True) in self.trials:
            groups["common"] = self.group(name, "common", self.rates[BASELINE])
        return cast(VariantResult, facts | {"at": groups})

    def group(self, variant: str, at: At, rate: float) -> GroupResult:
        names = self.names(variant, at)
        parts = self.runs[names[0]]["validation_parts"]
        return {
            "learning_rate": rate,
            "runs": names,
            "validation_loss": mean_of_seeds(self.values(names, LOSS)),
            "parts": {part: mean_of_seeds(self.values(names, part)) for part in parts},
            "phase_steps": [self.phases[run] for run in names],
        }

    def differences(self, variants: Mapping[str, VariantResult]) -> Iterator[TextDifference]:
        """Every variant minus its baselines, and every type minus the controls.

        A difference is also taken at the common rate if both sides have runs there. Ablations of a
        type are compared with it at its chosen rate only. Losses of parts are compared with softmax
        attention; at the chosen rates also with no attention, and in a study on text with
        ``compared_with``.
        """
        for name in variants:
            if name == BASELINE:
                continue
            variant, groups = VARIANTS[name], variants[name]["at"]
            against = [variant.compared_with, *variant.also]
            if variant.role == "type":
                against += [FLOOR, WIDER_FLOOR, *SIDE_EFFECTS, *own_side_effects(name)]
            with_parts = {FLOOR, variant.compared_with if self.config.kind == "text" else FLOOR}
            at_common = groups["best"]["learning_rate"] == self.rates[BASELINE]
            for baseline in (other for other in against if other in variants):
                ats: list[At] = ["best"]
                if baseline not in own_side_effects(name):
                    ats = list(groups)
                    if at_common and "common" in variants[baseline]["at"]:
                        ats.append("common")
                for at in ats:
                    metrics = [LOSS]
                    if baseline == BASELINE or (at == "best" and baseline in with_parts):
                        metrics += groups["best"]["parts"]
                    for metric in metrics:
                        yield self.difference(variants, name, baseline, at, metric)

    def difference(
        self, variants: Mapping[str, VariantResult], name: str, baseline: str, at: At, metric: str
    ) -> TextDifference:
        """The paired difference over shared seeds; at its best rate for a side without ``at``."""
        ats: list[At] = [at if at in variants[x]["at"] else "best" for x in (name, baseline)]
        pairs = list(zip(self.names(name, ats[0]), self.names(baseline, ats[1]), strict=False))
        values, others = (self.values(side, metric) for side in zip(*pairs, strict=True))
        facts: dict[str, Any] = {"variant": name, "baseline": baseline, "at": at, "metric": metric}
        facts["runs"] = [list(pair) for pair in pairs]
        difference = mean_of_seeds([a - b for a, b in zip(values, others, strict=True)])
        return cast(TextDifference, facts | difference)


def type_endpoints(
    variants: Mapping[str, VariantResult],
    differences: Iterable[TextDifference],
    curves: Mapping[str, Curve],
) -> list[Endpoint]:
    """Test every type against the Transformer by both measures, at its chosen rate.

    If either does not copy though some variant does, its p-value counts as 1 in Holm's adjustment.
    """
    rows = [
        (entry["variant"], "loss", entry["values"])
        for entry in differences
        if VARIANTS[entry["variant"]].role == "type"
        and (entry["baseline"], entry["at"], entry["metric"]) == (BASELINE, "best", LOSS)
    ]
    rows += [
        (name, "tokens", [share - 1 for share in shares])  # tested against a share of 1
        for name, _, _ in rows
        if (shares := _token_shares(variants, name, curves))
    ]
    tests = [((name, measure), paired_t_test(values)) for name, measure, values in rows]
    p_values = {key: p for key, p in tests if p is not None}
    counted = [
        1.0 if explain_gap(variants, name, BASELINE) else p for (name, _), p in p_values.items()
    ]
    adjusted = dict(zip(p_values, holm(counted), strict=True))
    entries: list[Any] = [
        {
            "variant": name,
            "measure": measure,
            **mean_of_seeds(values if measure == "loss" else [value + 1 for value in values]),
            "p": p_values.get((name, measure)),
            "p_holm": adjusted.get((name, measure)),
        }
        for name, measure, values in rows
    ]
    return entries


def adjusted_leads(
    variants: Mapping[str, VariantResult], starts: Mapping[str, float | None]
) -> list[AdjustedLead]:
    """Losses minus the Transformer's (below 0: ahead), as if both began to copy at the same step.

    Least squares over a variant's and the Transformer's runs at chosen rates: a constant for each
    and one slope of the final loss over the step at which a run begins to copy, in ``starts``.
    Where these steps do not overlap the line is drawn on beyond them. A variant is left out if a
    run of either does not copy, or with too few runs. Exact sums: no processor changes a digit.
    """
    leads: list[AdjustedLead] = []
    for name in [x for x in variants if x != BASELINE and BASELINE in variants]:
        groups = [variants[side]["at"]["best"] for side in (name, BASELINE)]
        begins: list[Any] = [[starts.get(run) for run in group["runs"]] for group in groups]
        sizes = [len(group) for group in begins]
        if None in itertools.chain(*begins) or sum(sizes) < 4:
            continue
        x, later = _within(begins)
        y, higher = _within([group["validation_loss"]["values"] for group in groups])
        if not (squares := fsum(a * a for a in x)):  # each side begins at once
            continue
        slope = fsum(a * b for a, b in zip(x, y, strict=True)) / squares
        left = fsum((b - slope * a) * (b - slope * a) for a, b in zip(x, y, strict=True))
        variance = left / (sum(sizes) - 3) * (1 / sizes[0] + 1 / sizes[1] + later * later / squares)
        mean, half = higher - slope * later, t_quantile(0.975, sum(sizes) - 3) * sqrt(variance)
        leads.append({"variant": name, "mean": mean, "low": mean - half, "high": mean + half})
    return leads


def _within(groups: list[list[float]]) -> tuple[list[float], float]:
    """All values, each minus its group's mean; and the first mean minus the second."""
    first, second = fmean(groups[0]), fmean(groups[1])
    return [x - first for x in groups[0]] + [x - second for x in groups[1]], first - second


def loss_curve(rows: Iterable[dict[str, Any]], part: str | None = None) -> Curve:
    """The validation losses of a run, or those of a part such as ``"repeated_bigram"``."""
    key = part or "validation_loss"
    losses = [(row["step"], row | row.get("validation_parts", {})) for row in rows]
    return [(step, of_step[key]) for step, of_step in losses if key in of_step]


def phase_step(curve: Curve, threshold: float) -> int | None:
    """The step at which a run begins to copy: the first of two evaluations in a row whose loss on
    repeated bigrams is below ``threshold``. Two, so that one lucky evaluation does not count."""
    pairs = itertools.pairwise(curve)
    return next((int(i) for (i, loss), (_, later) in pairs if max(loss, later) < threshold), None)


def crossing(curve: Curve, loss: float) -> float | None:
    """Step at which a curve first falls to a loss, linearly interpolated, or ``None``."""
    if curve and curve[0][1] <= loss:
        return float(curve[0][0])
    for (step, above), (later, below) in itertools.pairwise(curve):
        if below <= loss:
            return step + (later - step) * (above - loss) / (above - below)
    return None


def _token_shares(
    variants: Mapping[str, VariantResult], name: str, curves: Mapping[str, Curve]
) -> list[float]:
    """Share of its tokens at which each seed falls to the Transformer's last loss. If it never
    does, 1 over the share of the Transformer's tokens at which that falls to its last loss.

    Both are losses during training: the final loss is that of other windows, the whole split.
    """
    sides = (variants[side]["at"]["best"]["runs"] for side in (name, BASELINE))
    pairs = [[curves.get(run) for run in pair] for pair in zip(*sides, strict=False)]
    shares = []
    for curve, others in pairs:
        if not curve or not others:
            return []
        step, back = crossing(curve, others[-1][1]), crossing(others, curve[-1][1])
        shares.append(others[-1][0] / (back or 1) if step is None else step / curve[-1][0])
    return shares

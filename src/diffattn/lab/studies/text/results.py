"""From the records of finished runs to the numbers of a comparison."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    At,
    GroupResult,
    RatesResult,
    Row,
    SweepResult,
    TextDifference,
    TextResults,
    Try,
    VariantResult,
)
from diffattn.lab.stats.intervals import mean_of_seeds
from diffattn.lab.studies.study import Results
from diffattn.lab.studies.text.comparison import (
    ComparisonConfig,
    Sweep,
    Tries,
    best_rates,
    sweep_name,
    trial_name,
    whole_name,
)
from diffattn.lab.studies.text.endpoints import Curve, adjusted_leads, type_endpoints
from diffattn.models.twins import attention_parameters, flops_per_token, parameter_count

SOFTMAX_CONTROLS = (FLOOR, WIDER_FLOOR, *SIDE_EFFECTS)
"""Controls that all types are compared with. If a control leads softmax attention too, a type's
lead need not come from its second map."""
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
        sweeps: Swept variant -> its sweep; empty without a sweep.
        phases: Name of a trial -> step of the evaluation at which it has passed the induction
            phase, or ``None``.
        curves: Name of a trial -> validation losses.
        starts: Name of a trial -> interpolated step at which it begins to copy.
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
    left_out = {name: n for name in trials.models if (n := runs[name].get("left_out_steps"))}
    results = {
        "schema": 3,
        "protocol": {"name": "matched_comparison", "version": 3},
        "scale": config.scale,
        "seeds": list(config.seeds),
        "tokens": config.base.train.num_steps * config.base.train.batch_tokens,
        "rates": _rates(config, sweeps, rates[BASELINE]),
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
    """The pairs that a study of ablations or ranks reports: each type and ablation, its baseline.

    V2 is also compared with softmax with 1.5 times the heads. V1 and Shared DIFF are also compared
    with head-normed softmax at its rate. Each rank is compared with rank 8, rank 8 with V1, and a
    constant λ_init with the schedule. Other differences are in the record, but in no row."""
    members, baselines = [*variants, *diverged], {}
    for name in members:
        variant = VARIANTS[name]
        is_type = variant.role == "type"
        baselines[name] = (variant.compared_with, *(variant.also if is_type else ()))
        if name in (BASELINE, FLOOR) or (RANK in members and is_type):
            baselines[name] = ()
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
        for name in members
        for other in baselines[name]
        if {name, other} & set(diverged) and other in members
    ]


def _rates(config: ComparisonConfig, sweeps: Mapping[str, Sweep], common: float) -> RatesResult:
    def tries(name: str, losses: Tries, run_name: Callable[[str, float, int], str]) -> list[Try]:
        runs = [(run_name(name, rate, config.sweep_seed), rate, loss) for rate, loss in losses]
        return [{"run": r, "learning_rate": x, "validation_loss": loss} for r, x, loss in runs]

    variants: dict[str, SweepResult] = {}
    for name, sweep in sweeps.items():
        variants[name] = {"best": sweep.best, "inside": sweep.inside}
        variants[name]["tried"] = tries(name, sweep.tried, sweep_name)
        if sweep.whole:
            variants[name]["whole"] = tries(name, sweep.whole, whole_name)
    return {
        "common": common,
        "sweep_seed": config.sweep_seed if sweeps else None,
        "sweep_steps": config.sweep_steps if sweeps else None,
        "variants": variants,
    }


class _Trials:
    def __init__(
        self,
        config: ComparisonConfig,
        rates: Mapping[str, float],
        runs: Results,
        phases: Mapping[str, int | None],
    ) -> None:
        self.config = config
        self.rates = rates
        self.runs = runs
        self.phases = phases
        self.models = {m.config.name: m.config.model for m in config.trials(rates)}

    def names(self, variant: str, at: At) -> list[str]:
        """Names of a variant's runs, in the order of seeds, so that two variants can be paired."""
        seeds = self.config.seeds_of(variant)
        return [trial_name(variant, seed, common=at == "common") for seed in seeds]

    def diverged(self) -> dict[str, list[int]]:
        """Variant with a diverged run -> number of diverged runs, number of all runs."""
        diverged = {}
        for variant in self.config.variants:
            names = [*self.names(variant, "best"), *self.names(variant, "common")]
            losses = [self.runs[run][LOSS] for run in names if run in self.models]
            if None in losses:
                diverged[variant] = [losses.count(None), len(losses)]
        return diverged

    def values(self, names: Sequence[str], metric: str) -> list[float]:
        """The loss of each run, over all tokens or over the part that ``metric`` names."""
        if metric == LOSS:
            return [float(self.runs[run][LOSS]) for run in names]
        return [float(self.runs[run]["validation_parts"][metric]["loss"]) for run in names]

    def variant(self, name: str) -> VariantResult:
        config, variant = self.config, VARIANTS[name]
        model = self.models[trial_name(name, config.seeds[0])]
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
            layers = model.num_hidden_layers
            facts["attention_parameters"] = layers * attention_parameters(model)
        groups = {"best": self.group(name, "best", self.rates[name])}
        if trial_name(name, config.seeds[0], common=True) in self.models:
            groups["common"] = self.group(name, "common", self.rates[BASELINE])
        return cast(VariantResult, facts | {"at": groups})

    def group(self, variant: str, at: At, rate: float) -> GroupResult:
        names = self.names(variant, at)
        parts = self.runs[names[0]]["validation_parts"]
        return {
            "learning_rate": rate,
            "runs": names,
            "validation_loss": mean_of_seeds([self.runs[run][LOSS] for run in names]),
            "parts": {part: mean_of_seeds(self.values(names, part)) for part in parts},
            "phase_steps": [self.phases[run] for run in names],
        }

    def differences(self, variants: Mapping[str, VariantResult]) -> Iterator[TextDifference]:
        """Every variant minus its baselines, and every type minus the controls.

        A difference is also taken at the common rate if both sides have runs there. Ablations of a
        type are compared with it at the type's chosen rate only. Losses of parts of the tokens are
        compared with softmax attention. At the chosen rates they are also compared with no
        attention and, in a comparison of types, with the baseline.
        """
        for name in variants:
            if name == BASELINE:
                continue
            variant, groups = VARIANTS[name], variants[name]["at"]
            against = [variant.compared_with, *variant.also]
            if variant.role == "type":
                against += [*SOFTMAX_CONTROLS, *own_side_effects(name)]
            with_parts = {FLOOR} | (
                {variant.compared_with} if self.config.kind == "text" else set()
            )
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
        """The paired difference over shared seeds. A side without ``at`` takes its best rate."""
        sides = (
            self.names(side, at if at in variants[side]["at"] else "best")
            for side in (name, baseline)
        )
        pairs = list(zip(*sides, strict=False))
        values, others = (self.values(side, metric) for side in zip(*pairs, strict=True))
        entry: Any = {
            "variant": name,
            "baseline": baseline,
            "at": at,
            "metric": metric,
            "runs": [list(pair) for pair in pairs],
            **mean_of_seeds([a - b for a, b in zip(values, others, strict=True)]),
        }
        return entry

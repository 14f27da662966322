"""From the records of finished runs to the comparison's results: pure functions."""

from collections.abc import Iterator, Mapping
from typing import Any

from diffattn.lab.catalog.models import (
    BASELINE,
    FLOOR,
    SIDE_EFFECTS,
    VARIANTS,
    WIDER_FLOOR,
    own_side_effects,
)
from diffattn.lab.stats.intervals import Interval, mean_interval
from diffattn.lab.stats.paired import paired_difference
from diffattn.lab.studies.study import Member, Results
from diffattn.lab.studies.text.comparison import (
    ComparisonConfig,
    Sweep,
    best_rates,
    sweep_name,
    trial_name,
    whole_name,
)
from diffattn.lab.studies.text.rows import compared_rows, compared_types
from diffattn.models.accounting import (
    attention_parameters,
    flops_per_token,
    parameter_count,
)

SOFTMAX_CONTROLS = (FLOOR, WIDER_FLOOR, *SIDE_EFFECTS)
"""What a type is compared with besides softmax: a lead over softmax that these have, too, is none
of the second map."""


def comparison_results(
    config: ComparisonConfig,
    sweeps: Mapping[str, Sweep],
    runs: Results,
    phases: Mapping[str, int | None],
) -> dict[str, Any]:
    """Losses of every variant, whole and by part, and paired differences.

    Args:
        config: The comparison.
        sweeps: Swept variant to its sweep; empty if there was none.
        runs: All runs of the sweep and of the trials.
        phases: Name of a trial to the step at which it passed the induction phase.
    """
    rates = best_rates(config, sweeps)
    trials = {member.config.name: member for member in config.trials(rates)}
    diverged = _diverged(config, trials, runs)
    variants = {
        name: _variant(config, name, rates, trials, runs, phases)
        for name in config.variants
        if name not in diverged
    }
    differences = list(_differences(config, variants, runs, rates[BASELINE]))
    if config.kind == "text":
        tests = {"tests": compared_types(differences, variants)}
    else:
        tests = {"rows": compared_rows(differences, variants, diverged)}
    lost = {"diverged": diverged} if diverged else {}
    left_out = {name: n for name in trials if (n := runs[name].get("left_out_steps"))}
    if left_out:
        lost["left_out_steps"] = left_out
    return {
        "schema": 2,
        "protocol": {"name": "matched_comparison", "version": 2},
        "scale": config.scale,
        "seeds": list(config.seeds),
        "tokens": config.base.train.num_steps * config.base.train.batch_tokens,
        "rates": _rates(config, sweeps, rates, runs),
        "variants": variants,
        "differences": differences,
        **tests,
        **lost,
        "complete": True,
    }


def _diverged(
    config: ComparisonConfig, trials: Mapping[str, Any], runs: Results
) -> dict[str, list[int]]:
    """Variants of which a run ended without a loss: how many did, and how many there are."""
    found = {}
    for name in config.variants:
        names = [run for at in ("best", "common") for run in _runs_of(config, name, at)]
        losses = [runs[run]["validation_loss"] for run in names if run in trials]
        if None in losses:
            found[name] = [losses.count(None), len(losses)]
    return found


def _rates(
    config: ComparisonConfig, sweeps: Mapping[str, Sweep], rates: Mapping[str, float], runs: Results
) -> dict[str, Any]:
    member = next(iter(config.sweep_members(config.learning_rates[:1])), None)
    variants = {}
    for name, sweep in sweeps.items():
        tries = {
            key: [
                {
                    "run": run_name(name, rate, config.sweep_seed),
                    "learning_rate": rate,
                    "validation_loss": loss,
                }
                for rate, loss in losses
            ]
            for key, losses, run_name in (
                ("tried", sweep.tried, sweep_name),
                ("whole", sweep.whole, whole_name),
            )
            if losses
        }
        variants[name] = {"best": sweep.best, "inside": sweep.inside, **tries}
    return {
        "common": rates[BASELINE],
        "sweep_seed": config.sweep_seed if sweeps else None,
        "sweep_steps": member.config.train.num_steps if member and sweeps else None,
        "variants": variants,
    }


def _variant(
    config: ComparisonConfig,
    name: str,
    rates: Mapping[str, float],
    trials: Mapping[str, Member],
    runs: Results,
    phases: Mapping[str, int | None],
) -> dict[str, Any]:
    variant = VARIANTS[name]
    model = trials[trial_name(name, config.seeds[0])].config.model
    facts = {
        "role": variant.role,
        "what": variant.summary,
        "attention_type": variant.attention_type,
        "match": variant.match or config.match,
        "parameters": parameter_count(model),
        "train_flops_per_token": flops_per_token(model, config.base.train.seq_len, training=True),
    }
    if config.kind != "text":
        facts["attention_parameters"] = model.num_hidden_layers * attention_parameters(model)
    at = {"best": rates[name]}
    if trial_name(name, config.seeds[0], common=True) in trials:
        at["common"] = rates[BASELINE]
    groups = {}
    for key, rate in at.items():
        names = _runs_of(config, name, key)
        groups[key] = {
            "learning_rate": rate,
            "runs": names,
            "validation_loss": _mean([runs[run]["validation_loss"] for run in names]),
            "parts": {
                part: _mean([runs[run]["validation_parts"][part]["loss"] for run in names])
                for part in runs[names[0]]["validation_parts"]
            },
            "phase_steps": [phases[run] for run in names],
        }
    return facts | {"at": groups}


def _differences(
    config: ComparisonConfig, variants: Mapping[str, Any], runs: Results, common: float
) -> Iterator[dict[str, Any]]:
    """Every variant minus what it is compared with, and every type minus the controls.

    At the common rate too where one side has runs of their own at it, and the other side's are: not
    of a type and itself without its difference, which has runs at the type's chosen rate alone.
    Of a part of the tokens to softmax attention, and at the chosen rates to no attention and what a
    comparison of types compares with.
    """
    for name in config.variants:
        if name == BASELINE or name not in variants:
            continue
        against = [VARIANTS[name].compared_with, *VARIANTS[name].also]
        if VARIANTS[name].role == "type":
            against += (*SOFTMAX_CONTROLS, *own_side_effects(name))
        with_parts = {FLOOR}
        if config.kind == "text":
            with_parts.add(VARIANTS[name].compared_with)
        for baseline in against:
            if baseline not in variants:
                continue
            own = baseline in own_side_effects(name)
            ats = ["best"] if own else list(variants[name]["at"])
            if (
                not own
                and variants[name]["at"]["best"]["learning_rate"] == common
                and "common" in variants[baseline]["at"]
            ):
                ats.append("common")
            for at in ats:
                metrics = ["validation_loss"]
                if baseline == BASELINE or (at == "best" and baseline in with_parts):
                    metrics += variants[name]["at"]["best"]["parts"]
                for metric in metrics:
                    yield _difference(config, variants, runs, name, baseline, at, metric)


def _difference(
    config: ComparisonConfig,
    variants: Mapping[str, Any],
    runs: Results,
    name: str,
    baseline: str,
    at: str,
    metric: str,
) -> dict[str, Any]:
    """Seed by seed, where both have it. At the common rate both sides are at it."""
    sides = (
        _runs_of(config, of, at if at in variants[of]["at"] else "best") for of in (name, baseline)
    )
    pairs = list(zip(*sides, strict=False))

    def value(run: str) -> float:
        if metric == "validation_loss":
            return float(runs[run]["validation_loss"])
        return float(runs[run]["validation_parts"][metric]["loss"])

    values, others = ([value(pair[side]) for pair in pairs] for side in (0, 1))
    return {
        "variant": name,
        "baseline": baseline,
        "at": at,
        "metric": metric,
        "runs": [list(pair) for pair in pairs],
        "values": [a - b for a, b in zip(values, others, strict=True)],
        **_ends(paired_difference(values, others)),
    }


def _runs_of(config: ComparisonConfig, name: str, at: str) -> list[str]:
    """Seeds are in one order everywhere, so that those of two variants pair from the first on."""
    return [trial_name(name, seed, common=at == "common") for seed in config.seeds_of(name)]


def _mean(values: list[float]) -> dict[str, Any]:
    return {"values": values, **_ends(mean_interval(values))}


def _ends(interval: Interval) -> dict[str, Any]:
    return interval.recorded() | {"n": interval.n}

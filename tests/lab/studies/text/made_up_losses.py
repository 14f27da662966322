"""Results of a comparison of types from made-up losses, and the verdict that they lead to."""

from dataclasses import replace

from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.studies.text.comparison import Sweep, best_rates, comparison, try_name
from diffattn.lab.studies.text.results import comparison_results
from diffattn.lab.studies.text.verdict import verdict

LOSSES = {  # by seed
    "softmax": [3.0, 3.1, 3.2],
    "diff": [2.9, 3.0, 3.09],
    "diff_v2": [3.01, 3.09, 3.2],
    "shared_diff": [3.3, 3.4, 3.51],
    "none": [4.0, 4.1, 4.19],
    "softmax_half": [3.0, 3.1, 3.21],
    "softmax_minus_mean": [2.9, 3.01, 3.09],
}
CURVE = 0.05
"""What the windows of evaluations during training add to the loss of the whole split."""
PARTS = {"repeated_bigram": 0.5, "first_occurrence": 1.5}  # times the loss of the whole


def study(seeds=3, losses=LOSSES, sweeps=None, late=(), at_common=0.5, **changes):
    """Results and verdict of made-up runs; those named in ``late`` never pass the phase.

    Names of runs, of variants, or of variants at the common rate, as ``"diff-common"``.
    """
    changes = {"seeds": tuple(range(seeds)), "variants": tuple(losses), "fewer_seeds": 3} | changes
    config = replace(comparison("study"), **changes)
    sweeps = sweeps or {}
    runs, phases, curves, starts = {}, {}, {}, {}
    for planned in config.trials(best_rates(config, sweeps)):
        run = planned.config.name
        group, seed = run.split("-seed")
        name = group.removesuffix("-common")
        loss = losses[name][int(seed)] + (at_common if "common" in run else 0.0)
        parts = {part: {"tokens": 10, "loss": factor * loss} for part, factor in PARTS.items()}
        runs[run] = {"validation_loss": loss, "validation_parts": parts}
        phases[run] = None if {run, group, name} & set(late) else 500
        curves[run] = [(0, 7.0), (4_000, loss + CURVE)]
        starts[run] = None if phases[run] is None else 500.0 + 10 * int(seed)
    for name, sweep in sweeps.items():
        for rate, loss in sweep.tried:
            runs[try_name(name, rate, config.sweep_seed)] = {"validation_loss": loss}
        for rate, loss in sweep.whole:
            runs[try_name(name, rate, config.sweep_seed, "whole")] = {"validation_loss": loss}
    results = comparison_results(config, sweeps, runs, phases, curves, starts)
    return results | {"verdict": verdict(results, {})}


def common_rates(**losses):
    """V1 and Shared DIFF at a rate of their own, and at the common one."""
    tried = ((5e-4, 9.0), (1e-3, 3.0), (2e-3, 2.0), (4e-3, 9.0))
    own = ((5e-4, 9.0), (1e-3, 2.0), (2e-3, 3.0), (4e-3, 9.0))
    sweeps = dict.fromkeys(SWEPT, Sweep(tried=tried))
    sweeps |= dict.fromkeys(("diff", "shared_diff"), Sweep(tried=own))
    return {"sweeps": sweeps, "losses": LOSSES | losses}

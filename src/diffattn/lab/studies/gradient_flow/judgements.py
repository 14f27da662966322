"""The rules by which the claims of Appendix G are judged, fixed before the first run.

The appendix says: up to a constant factor, gradients of differential attention are as large as
those of softmax attention with h heads of 2d; the head norm's Jacobian is Θ(1), as ‖x‖/√(2d) ≈
1 − λ_init early in training (x: a head's output before its norm); so AdamW's updates are as large.

- *Level.* Per seed, the largest factor (1 or more) between the two models' gradients over W_Q,
  W_K, W_V, W_O and the judged phases. A phase is the geometric mean over layers and its steps.
  Beyond :data:`LEVEL` it is not "the same magnitude".
- *Drift.* Per seed, the largest change of that ratio over the four matrices. The change is
  between the least and greatest depth, width and λ_init (0.5, 0.8), at the first step; and from the
  first step to the last judged phase. Beyond :data:`DRIFT` it is no constant.
- *Null.* The level of two softmax models of different seeds. *Level* judges a phase only if the
  upper end of this interval lies below :data:`LEVEL`: else seeds alone differ as much.
- *Instrument.* Softmax attention times ½ must show gradients of W_V and W_O within
  :data:`HALF` of softmax attention's at the first step, or nothing is judged.
- *Updates.* AdamW moves every weight by about the learning rate. If the updates of the halved
  control are equal too, they are uninformative about gradients. The reduction of the loss per unit
  of learning rate, to first order, is not equal by construction. It is judged like *level*.
- *Large values.* Level and the norm's gain are judged again for values that start with size 1, as
  they do in a model as wide as the papers'.
- *Norm.* Per seed, the largest factor over layers between ‖x‖/√(2d) and 1 − λ_init, and between the
  norm's gain (1 − λ_init) w √(2d)/‖x‖ and 1, at the first step. Beyond :data:`LEVEL` it is not "≈".

*Agrees* if the 95 % interval over at least three seeds lies below the bound, *disagrees* if above,
*inconclusive* otherwise. *Uninformative* if it could not be judged; ``why`` says the reason.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

from diffattn.lab.catalog.models import BASELINE, WIDE, WITHOUT_NORM
from diffattn.lab.records.study_results import GradientFlowResults, Judgement
from diffattn.lab.report.sections.gradient_flow import BASE
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.studies.gradient_flow.runs import (
    HALVED,
    LARGE_LAMBDA,
    LARGE_VALUES,
    MATRICES,
    NULL,
    SLOPE,
    SMALL_LAMBDA,
    GradientFlowConfig,
    Pair,
    Rows,
    Sizes,
    factor,
    largest,
    run_name,
)
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.study import Results

LEVEL = 2.0
"""Largest factor between magnitudes that count as the same."""
DRIFT = 1.5
"""Largest change, as a factor, of a ratio that counts as constant."""
HALF = (0.4, 0.6)
"""Factor of gradients that counts as one half."""
_TO_WIDE = ("diff", WIDE)


class _Judge:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.config = sizes.config
        self.start, *_ = self.config.phases
        self.phases = self._quiet_phases(BASE)

    def judgements(self) -> Iterator[Judgement]:
        says = "DIFF V1's gradients have the size of softmax attention's (h heads of 2d)"
        yield self._level("level", says, _TO_WIDE)
        says = "DIFF V1's gradients have the size of its twin's (2h heads of d)"
        yield self._level("level-twin", says, ("diff", BASELINE))
        says = "V1's without head norm and factor have it (h heads of 2d)"
        yield self._level("level-no-norm", says, (WITHOUT_NORM, WIDE))
        says = "V1's have it where values are as large as at the papers' width"
        yield self._level("level-large-values", says, _TO_WIDE, arm=LARGE_VALUES)
        yield from self._drifts()
        halved, why = self._largest_ratio((HALVED, BASELINE), "update"), ""
        if halved is not None and math.exp(fmean(halved)) < LEVEL:
            why = "so are those of the control whose gradients are halved"
        says = "AdamW's updates have the same size"
        yield self._level("updates", says, _TO_WIDE, "update", why=why)
        yield self._level("slope", "An update takes as much off the loss", _TO_WIDE, SLOPE)
        yield self._norm("head-rms", "‖x‖/√(2d) is 1 − λ_init at the start", "to_factor")
        yield self._norm("norm-gain", "The head norm's Jacobian is Θ(1) at the start", "norm_gain")
        says = "Its Jacobian is Θ(1) where values are as large as at the papers' width"
        yield self._norm("norm-gain-large-values", says, "norm_gain", LARGE_VALUES)

    def _level(
        self,
        key: str,
        says: str,
        pair: Pair,
        measure: str = "gradient",
        arm: str = BASE,
        why: str = "",
    ) -> Judgement:
        logs = self._largest_ratio(pair, measure, arm)
        return self._judged(key, says, logs, self._quiet_phases(arm), why=why)

    def _norm(self, key: str, says: str, measure: str, arm: str = BASE) -> Judgement:
        at_start = self.sizes.head_logs(arm, "diff", self.start)[measure]
        logs = [max(map(abs, of_seed)) for of_seed in at_start]
        return self._judged(key, says, logs, [self.start])

    def _quiet_phases(self, arm: str) -> list[str]:
        """The phases in which seeds alone change gradients by less than :data:`LEVEL`."""
        quiet = []
        for phase in self.config.phases if len(self.config.seeds) > 1 else ():
            logs = self._log_ratios(arm, NULL, phase)
            high = None if (null := largest(logs)) is None else mean_interval(null).high
            if high is not None and high < math.log(LEVEL):
                quiet.append(phase)
        return quiet

    def _largest_ratio(self, pair: Pair, measure: str, arm: str = BASE) -> list[float] | None:
        """Per seed the largest |log ratio| of a pair over the judged phases and the matrices."""
        matrices = ("all",) if measure == SLOPE else MATRICES
        phases, ratio = self._quiet_phases(arm), self.sizes.ratio
        return largest([ratio(arm, pair, p, measure, m) for p in phases for m in matrices])

    def _log_ratios(self, arm: str, name: str, phase: str) -> list[list[float] | None]:
        """Per matrix and seed: gradients over those of softmax attention with h heads of 2d."""
        return [self.sizes.ratio(arm, (name, WIDE), phase, "gradient", m) for m in MATRICES]

    def _drifts(self) -> Iterator[Judgement]:
        arms, start = self.config.arms, self.start
        depths, widths = (
            [arm for arm in arms if arm.startswith(prefix)] for prefix in ("depth-", "width-")
        )
        for key, over, first, last in (
            ("depth", "depth", (depths[0], "diff"), (depths[-1], "diff")),
            ("width", "width", (widths[0], "diff"), (widths[-1], "diff")),
            ("lambda-init", "λ_init", (BASE, SMALL_LAMBDA), (BASE, LARGE_LAMBDA)),
        ):
            logs = self._change((*first, start), (*last, start))
            says = f"The ratio is the same over {over}"
            yield self._judged(f"drift-{key}", says, logs, [start], bound=DRIFT)
        later = [phase for phase in self.phases if phase != start]
        logs = self._change((BASE, "diff", start), (BASE, "diff", later[-1])) if later else None
        why = "" if later else "no later phase is judged"
        says = "The ratio is the same over training"
        yield self._judged("drift-time", says, logs, self.phases, bound=DRIFT, why=why)

    def _change(self, a: tuple[str, str, str], b: tuple[str, str, str]) -> list[float] | None:
        """Per seed the largest |change| of the log ratio between two triples: arm, model, phase."""
        sides = zip(self._log_ratios(*a), self._log_ratios(*b), strict=True)
        changes = [
            None if x is None or y is None else [p - q for p, q in zip(x, y, strict=True)]
            for x, y in sides
        ]
        return largest(changes)

    @cached_property
    def _fault(self) -> str:
        """The reason why no claim can be judged; empty if there is none."""
        for matrix in ("v", "o"):
            logs = self.sizes.ratio(BASE, (HALVED, BASELINE), self.start, "gradient", matrix)
            if logs is None or not HALF[0] <= math.exp(fmean(logs)) <= HALF[1]:
                return "the control with halved gradients does not show half of them"
        if len(self.config.seeds) < 2:
            return "one seed, so no two seeds to compare"
        return "" if self.phases else "two seeds of the same model differ by as much in every phase"

    def _judged(
        self,
        key: str,
        says: str,
        logs: list[float] | None,
        phases: list[str],
        *,
        bound: float = LEVEL,
        why: str = "",
    ) -> Judgement:
        why = self._fault or why
        factors: Any = {"values": []} | dict.fromkeys(("mean", "low", "high", "level"))
        if logs is None:
            why = why or "a size is not known"
        else:
            factors = factor(logs)
        verdict = judge_factors(factors["values"], factors["low"], factors["high"], bound)
        judgement: Any = {
            "id": key,
            "says": says,
            "bound": bound,
            "phases": phases,
            "why": why,
            **factors,
            "verdict": "uninformative" if why else verdict,
        }
        return judgement


def judge_factors(
    values: Sequence[float], low: float | None, high: float | None, bound: float
) -> Literal["agrees", "disagrees", "inconclusive"]:
    """Judge factors of 1 or more, one per seed. The claim says that they are below a bound."""
    if len(values) < 3 or low is None or high is None:
        return "inconclusive"
    return "agrees" if high < bound else "disagrees" if low > bound else "inconclusive"


def _describe(judgements: Sequence[Judgement]) -> str:
    parts = []
    for row in judgements:
        numbers = row["why"]
        if row["mean"] is not None:
            ends = "" if row["low"] is None else f", {row['low']:.2f} to {row['high']:.2f}"
            numbers = f"factor {row['mean']:.2f}{ends}, bound {row['bound']:g}"
            numbers += f"; {row['why']}" if row["why"] else ""
        parts.append(f"{row['says']}: {row['verdict']} ({numbers})")
    return ". ".join(parts) + "."


def gradient_flow_results(
    config: GradientFlowConfig, results: Results, rows: Rows
) -> GradientFlowResults:
    """Ratios of gradients and updates, sizes of heads, and the judgements."""
    sizes = Sizes(config, results, rows)
    judgements = list(_Judge(sizes).judgements())
    informative = any(row["verdict"] in ("agrees", "disagrees") for row in judgements)
    return {
        "schema": 1,
        "kind": "gradient-flow",
        "protocol": {"name": "gradient_flow_study", "version": 1},
        "scale": config.scale,
        "definition": {"level": LEVEL, "drift": DRIFT, "half": list(HALF)},
        "ratios": list(sizes.ratios()),
        "heads": list(sizes.heads()),
        "losses": {
            name: [results[run_name(BASE, name, seed)]["validation_loss"] for seed in config.seeds]
            for name in config.types(BASE)
        },
        "judgements": judgements,
        "verdict": {"informative": informative, "sentence": _describe(judgements)},
        "statement": _statement(config),
        "complete": True,
    }


def _statement(config: GradientFlowConfig) -> str:
    size = heads_below(run.config.model for run in config.planned_runs())
    return (
        f"{size}What would refute the claims was fixed before the first run. All models of a "
        "setting read the same tokens at the same seed and step, with one learning rate. The "
        "models are some thousand times smaller than the papers', and values of a narrow model are "
        "small at the start: one setting starts them at the size that they have at the papers' "
        f"width. That hyperparameters carry over is not tested here. {spread(len(config.seeds))}"
    )

"""The runs of a gradient-flow study, and sizes of gradients, updates and heads, as logarithms."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

from diffattn.lab.catalog.models import BASELINE, TYPES, VARIANTS, WIDE, WITHOUT_NORM
from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW
from diffattn.lab.records.fields import require
from diffattn.lab.records.study_results import GradientRatio, HeadSize
from diffattn.lab.records.text_results import SeedMean
from diffattn.lab.report.sections.gradient_flow import BASE
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.studies.study import FixedStudy, PlannedRun, Results
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

LARGE_VALUES = "large-values"
"""The arm whose values have size 1 at the start."""
HALVED = "softmax_half"
"""The control whose gradients are half of softmax attention's by construction."""
SMALL_LAMBDA, LARGE_LAMBDA = "diff_lambda_05", "diff_lambda_08"
OF_BASE = (BASELINE, WIDE, *TYPES[1:], WITHOUT_NORM, SMALL_LAMBDA, LARGE_LAMBDA, HALVED)
OF_ARMS = (BASELINE, WIDE, "diff")


@dataclass(frozen=True, kw_only=True)
class GradientFlowConfig(FixedStudy):
    """The runs of a gradient-flow study; ``base`` is the softmax run with 2h heads of width d."""

    shares_workers: ClassVar[bool] = True
    kind: str = "gradient-flow"
    arms: Mapping[str, Mapping[str, Any]]
    """Name -> changed settings of the softmax model. The first is :data:`BASE`, with no change."""
    phases: Mapping[str, tuple[int, ...]]
    """Name -> steps, counted from 1, that are averaged. The first phase is the start."""

    def _check(self) -> None:
        where, rate = "GradientFlowConfig", self.base.train.final_learning_rate
        must = "train.final_learning_rate must be above 0, as updates are measured per unit of it"
        require(where, rate > 0, must, rate)
        must = "guard must be left at its defaults, as no measured step may be left out"
        require(where, not self.base.guard.intervenes, must, self.base.guard)

    @property
    def steps(self) -> tuple[int, ...]:
        """All steps that are measured, phase by phase."""
        return tuple(step for phase in self.phases.values() for step in phase)

    def keeps_weights(self, run: str) -> bool:
        """No run keeps its weights: gradients are measured during training."""
        return False

    def types(self, arm: str) -> tuple[str, ...]:
        """Names of the variants that an arm compares."""
        return OF_BASE if arm == BASE else OF_ARMS

    def planned_runs(self) -> list[PlannedRun]:
        """The runs, seed by seed."""
        planned = []
        for seed in self.seeds:
            train = self.base.train.at(self.base.train.learning_rate, seed)
            base = replace(self.base, train=train, gradient_steps=self.steps)
            for arm, changes in self.arms.items():
                model = DiffTransformerConfig(**(base.model.settings() | dict(changes)))
                for name in self.types(arm):
                    twin = VARIANTS[name].twin(model, self.match)
                    run = replace(base, name=run_name(arm, name, seed), model=twin.config)
                    planned.append(PlannedRun.from_twin(run, twin))
        return planned

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values."""
        return super().resolved() | {"types": list(OF_BASE), "types_of_arms": list(OF_ARMS)}


def run_name(arm: str, model: str, seed: int) -> str:
    """Name of a run, unique within its study."""
    return f"{arm}-{model}-seed{seed}"


gradient_flow_study = partial(GradientFlowConfig.planned, GRADIENT_FLOW)


MATRICES = ("q", "k", "v", "o")
"""Matrices of attention, which are judged."""
SHOWN = (*MATRICES, "ffn")
NULL = "other seed"
"""Stands in place of a type for the baseline's run with the next seed."""
PARTS = {"q1": "q", "q2": "q", "k1": "k", "k2": "k"}
"""One map's part of a matrix -> the baseline's matrix that it is compared with."""
SLOPE = "slope"
"""Measure: fall of the loss per unit of learning rate, summed over attention's matrices."""
MEASURES = ("gradient", "update")
WITH_NORM = ("diff", "shared_diff", SMALL_LAMBDA, LARGE_LAMBDA)
Pair = tuple[str, str]
PAIRS: tuple[Pair, ...] = (
    *((name, WIDE) for name in OF_BASE if name not in (WIDE, HALVED)),
    *((name, BASELINE) for name in ("diff", "diff_v2", "shared_diff", WITHOUT_NORM, HALVED)),
)
"""Models and their baselines: the appendix's, of half the heads, twice as wide; and the twin."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a run -> rows of its ``gradients.jsonl``."""


class Sizes:
    """Logarithms of the sizes of gradients, updates and heads of all runs."""

    def __init__(self, config: GradientFlowConfig, results: Results, rows: Rows) -> None:
        self.config, self.results, self.rows = config, results, rows
        self._sizes = {
            name: {phase: self._log_sizes(name, phase) for phase in config.phases} for name in rows
        }

    def _layers(self, run: str, phase: str) -> list[Any]:
        by_step = {row["step"]: row["layers"] for row in self.rows[run]}
        return [by_step[step] for step in self.config.phases[phase]]

    def _log_sizes(self, run: str, phase: str) -> dict[Pair, float]:
        """Measure and matrix -> mean log size over layers and steps. Slopes are summed before."""
        layers = [layer for step in self._layers(run, phase) for layer in step]
        sizes = {}
        for matrix in (*SHOWN, *PARTS):
            for measure in MEASURES if matrix in layers[0] else ():
                values = [layer[matrix][measure] for layer in layers]
                if min(values) > 0:
                    sizes[measure, matrix] = fmean(map(math.log, values))
        slope = sum(layer[matrix]["slope"] for layer in layers for matrix in MATRICES)
        if slope > 0:  # momentum may lead uphill: then there is no logarithm
            sizes[SLOPE, "all"] = math.log(slope)
        return sizes

    def ratio(
        self, arm: str, pair: Pair, phase: str, measure: str, matrix: str
    ) -> list[float] | None:
        """One log ratio per seed, or ``None``. The type NULL is the baseline with another seed."""
        (name, baseline), seeds = pair, self.config.seeds
        logs = []
        for seed, next_seed in zip(seeds, [*seeds[1:], seeds[0]], strict=True):
            side = (baseline, next_seed) if name == NULL else (name, seed)
            a = self._sizes[run_name(arm, *side)][phase].get((measure, matrix))
            of_baseline = self._sizes[run_name(arm, baseline, seed)][phase]
            b = of_baseline.get((measure, PARTS.get(matrix, matrix)))
            if a is None or b is None:
                return None
            logs.append(a - b)
        return logs

    def ratios(self) -> Iterator[GradientRatio]:
        """Every ratio that is known."""
        has_null = len(self.config.seeds) > 1
        for arm in self.config.arms:
            pairs = [pair for pair in PAIRS if set(pair) <= set(self.config.types(arm))]
            for pair in [*pairs, (NULL, WIDE)] if has_null else pairs:
                matrices = (*SHOWN, *(PARTS if pair[0] == "diff" else ()))
                keys = product(MEASURES, matrices)
                for phase, key in product(self.config.phases, [*keys, (SLOPE, "all")]):
                    logs = self.ratio(arm, pair, phase, *key)
                    if logs is not None:
                        yield {
                            "arm": arm,
                            "type": pair[0],
                            "baseline": pair[1],
                            "phase": phase,
                            "measure": key[0],
                            "matrix": key[1],
                            **factor(logs),
                        }

    def heads(self) -> Iterator[HeadSize]:
        """Per layer: ‖x‖/√(2d), its ratio to 1 − λ_init, and the gain of the head norm."""
        with_norm = [
            (arm, name)
            for arm in self.config.arms
            for name in self.config.types(arm)
            if name in WITH_NORM
        ]
        for (arm, name), phase in product(with_norm, self.config.phases):
            first = self.results[run_name(arm, name, self.config.seeds[0])]
            logs = self.head_logs(arm, name, phase)
            for layer, lambda_init in enumerate(first["lambda_init"]):
                factors: Any = {
                    measure: factor([of_seed[layer] for of_seed in of_seeds])
                    for measure, of_seeds in logs.items()
                }
                entry = {"arm": arm, "type": name, "phase": phase, "layer": layer}
                yield entry | {"lambda_init": lambda_init} | factors

    def head_logs(self, arm: str, name: str, phase: str) -> dict[str, list[list[float]]]:
        """Measure -> logarithms ``[seed][layer]``, as means over the phase's steps."""
        logs: dict[str, list[list[float]]] = {"head_rms": [], "to_factor": [], "norm_gain": []}
        for seed in self.config.seeds:
            run = run_name(arm, name, seed)
            steps = self._layers(run, phase)
            rms, gain = (
                [fmean(math.log(layers[i][key]) for layers in steps) for i in range(len(steps[0]))]
                for key in ("head_rms", "norm_gain")
            )
            logs["head_rms"].append(rms)
            logs["norm_gain"].append(gain)
            inits = self.results[run]["lambda_init"]
            logs["to_factor"].append([x - math.log(1 - y) for x, y in zip(rms, inits, strict=True)])
        return logs


def factor(logs: Sequence[float]) -> SeedMean:
    """Turn logarithms into factors: one per seed, their geometric mean and its interval."""
    interval = mean_interval(logs)
    low, high = (None if x is None else math.exp(x) for x in (interval.low, interval.high))
    return {
        "values": [math.exp(x) for x in logs],
        "mean": math.exp(interval.mean),
        "low": low,
        "high": high,
        "level": interval.level,
    }


def largest(ratios: Sequence[Sequence[float] | None]) -> list[float] | None:
    """Per seed the largest absolute logarithm; ``None`` if a ratio is not known."""
    known = [logs for logs in ratios if logs is not None]
    if not known or len(known) < len(ratios):
        return None
    return [max(map(abs, of_seed)) for of_seed in zip(*known, strict=True)]

"""Sizes of gradients, updates and heads in a gradient-flow study, as logarithms."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import BASELINE, WIDE, WITHOUT_NORM
from diffattn.lab.records.study_results import GradientRatio, HeadSize
from diffattn.lab.records.text_results import SeedMean
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.studies.gradient_flow.config import (
    HALVED,
    LARGE_LAMBDA,
    OF_BASE,
    SMALL_LAMBDA,
    GradientFlowConfig,
    run_name,
)
from diffattn.lab.studies.study import Results

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
"""Models and their baselines. Softmax attention with half the heads, twice as wide, is the
appendix's baseline. Softmax attention with all heads is the twin."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a run -> rows of its ``gradients.jsonl``."""


class Sizes:
    """Logarithms of the sizes of gradients, updates and heads of all runs."""

    def __init__(self, config: GradientFlowConfig, results: Results, rows: Rows) -> None:
        self.config = config
        self.results = results
        self.rows = rows
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
        for index, seed in enumerate(seeds):
            next_seed = seeds[(index + 1) % len(seeds)]
            is_null = name == NULL
            run = run_name(arm, baseline, next_seed) if is_null else run_name(arm, name, seed)
            a = self._sizes[run][phase].get((measure, matrix))
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
                keys = [(measure, matrix) for measure in MEASURES for matrix in matrices]
                for phase in self.config.phases:
                    for measure, matrix in [*keys, (SLOPE, "all")]:
                        logs = self.ratio(arm, pair, phase, measure, matrix)
                        if logs is not None:
                            yield {
                                "arm": arm,
                                "type": pair[0],
                                "baseline": pair[1],
                                "phase": phase,
                                "measure": measure,
                                "matrix": matrix,
                                **factor(logs),
                            }

    def heads(self) -> Iterator[HeadSize]:
        """Per layer: ‖x‖/√(2d), its ratio to 1 − λ_init, and the gain of the head norm."""
        for arm in self.config.arms:
            for name in (n for n in self.config.types(arm) if n in WITH_NORM):
                first = self.results[run_name(arm, name, self.config.seeds[0])]
                for phase in self.config.phases:
                    logs = self.head_logs(arm, name, phase)
                    for layer, lambda_init in enumerate(first["lambda_init"]):
                        rms, to_factor, gain = (
                            factor([of_seed[layer] for of_seed in of_seeds])
                            for of_seeds in logs.values()
                        )
                        yield {
                            "arm": arm,
                            "type": name,
                            "phase": phase,
                            "layer": layer,
                            "lambda_init": lambda_init,
                            "head_rms": rms,
                            "to_factor": to_factor,
                            "norm_gain": gain,
                        }

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

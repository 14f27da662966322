"""From finished runs to the gradient-flow study's results."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import BASELINE, WIDE, WITHOUT_NORM
from diffattn.lab.report.sections.gradient_flow_tables import BASE, NULL
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.studies.gradient_flow.config import (
    HALVED,
    LARGE_LAMBDA,
    LARGE_VALUES,
    OF_BASE,
    SMALL_LAMBDA,
    GradientFlowConfig,
    run_name,
)
from diffattn.lab.studies.gradient_flow.verdict import DRIFT, HALF, LEVEL, judged, sentence
from diffattn.lab.studies.limits import heads_below, spread

MATRICES = ("q", "k", "v", "o")
"""Those of attention; judged."""
SHOWN = (*MATRICES, "ffn")
PARTS = {"q1": "q", "q2": "q", "k1": "k", "k2": "k"}
"""A map's own part of a matrix to the matrix that the baseline has in its place."""
SLOPE = "slope"
"""Of all matrices of attention together."""
MEASURES = ("gradient", "update")
WITH_NORM = ("diff", "shared_diff", SMALL_LAMBDA, LARGE_LAMBDA)
_AT_START = (
    "drift-depth", "drift-width", "drift-lambda-init", "head-rms", "norm-gain",
    "norm-gain-large-values",
)  # fmt: skip
"""Judgements of the first step alone."""
PAIRS = (
    *((name, WIDE) for name in OF_BASE if name not in (WIDE, HALVED)),
    *((name, BASELINE) for name in ("diff", "diff_v2", "shared_diff", WITHOUT_NORM, HALVED)),
)
"""Models and what they are compared with: softmax attention with half the heads, twice as wide,
which the appendix means, and the twin with all heads."""

Sizes = Mapping[str, Mapping[str, Mapping[tuple[str, str], float]]]
"""Run, phase, measure and matrix to the logarithm of a size."""


def gradient_flow_results(
    config: GradientFlowConfig,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Ratios of gradients and updates, what head norms read, and the judgements.

    Args:
        config: The study.
        results: Name of every run to what its ``results.json`` holds.
        rows: Name of every run to its ``gradients.jsonl``.
    """
    sizes = {name: _sizes(config, of_run) for name, of_run in rows.items()}
    ratios = _ratios(config, sizes)
    judgements = _judgements(config, sizes, results, rows)
    informative = any(row["verdict"] in ("agrees", "disagrees") for row in judgements)
    return {
        "schema": 1,
        "kind": "gradient-flow",
        "protocol": {"name": "gradient_flow_study", "version": 1},
        "scale": config.scale,
        "definition": {"level": LEVEL, "drift": DRIFT, "half": list(HALF)},
        "ratios": ratios,
        "heads": _heads(config, results, rows),
        "losses": {
            name: [results[run_name(BASE, name, seed)]["validation_loss"] for seed in config.seeds]
            for name in config.types(BASE)
        },
        "judgements": judgements,
        "verdict": {"informative": informative, "sentence": sentence(judgements)},
        "statement": statement(config),
        "complete": True,
    }


def _sizes(
    config: GradientFlowConfig, rows: Sequence[Mapping[str, Any]]
) -> dict[str, dict[tuple[str, str], float]]:
    """Geometric means over layers and the steps of a phase; slopes are added up before."""
    by_step = {row["step"]: row["layers"] for row in rows}
    sizes: dict[str, dict[tuple[str, str], float]] = {}
    for phase, steps in config.phases.items():
        layers = [layer for step in steps for layer in by_step[step]]
        of_phase: dict[tuple[str, str], float] = {}
        for matrix in (*SHOWN, *PARTS):
            if matrix in layers[0]:
                for measure in MEASURES:
                    values = [layer[matrix][measure] for layer in layers]
                    if min(values) > 0:
                        of_phase[measure, matrix] = fmean(map(math.log, values))
        slope = sum(layer[matrix]["slope"] for layer in layers for matrix in MATRICES)
        if slope > 0:  # where momentum leads uphill there is nothing to compare
            of_phase[SLOPE, "all"] = math.log(slope)
        sizes[phase] = of_phase
    return sizes


def _logs(
    config: GradientFlowConfig, sizes: Sizes, arm: str, pair: tuple[str, str], phase: str,
    measure: str, matrix: str,
) -> list[float] | None:  # fmt: skip
    """Logarithms of a ratio, one per seed; ``None`` where one is not known."""
    name, baseline = pair
    found = []
    for index, seed in enumerate(config.seeds):
        other = config.seeds[(index + 1) % len(config.seeds)]
        of = run_name(arm, baseline, other) if name == NULL else run_name(arm, name, seed)
        a = sizes[of][phase].get((measure, matrix))
        b = sizes[run_name(arm, baseline, seed)][phase].get((measure, PARTS.get(matrix, matrix)))
        if a is None or b is None:
            return None
        found.append(a - b)
    return found


def _pairs(config: GradientFlowConfig, arm: str) -> list[tuple[str, str]]:
    pairs = [pair for pair in PAIRS if set(pair) <= set(config.types(arm))]
    return [*pairs, (NULL, WIDE)] if len(config.seeds) > 1 else pairs


def _ratios(config: GradientFlowConfig, sizes: Sizes) -> list[dict[str, Any]]:
    found = []
    for arm in config.arms:
        for pair in _pairs(config, arm):
            for phase in config.phases:
                parts = PARTS if pair[0] == "diff" else ()
                wanted = [(m, matrix) for m in MEASURES for matrix in (*SHOWN, *parts)]
                for measure, matrix in [*wanted, (SLOPE, "all")]:
                    logs = _logs(config, sizes, arm, pair, phase, measure, matrix)
                    if logs is not None:
                        found.append(
                            {
                                "arm": arm, "type": pair[0], "baseline": pair[1], "phase": phase,
                                "measure": measure, "matrix": matrix, **_factor(logs),
                            }
                        )  # fmt: skip
    return found


def _factor(logs: Sequence[float]) -> dict[str, Any]:
    """Factors from logarithms: every seed's, their geometric mean and its interval."""
    interval = mean_interval(logs)
    low, high = (None if x is None else math.exp(x) for x in (interval.low, interval.high))
    return {
        "values": [math.exp(x) for x in logs],
        "mean": math.exp(interval.mean),
        "low": low,
        "high": high,
        "level": interval.level,
    }


def _heads(
    config: GradientFlowConfig,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[dict[str, Any]]:
    """‖x‖/√(2d) of every layer, that over 1 − λ_init, and the norm's gain."""
    found = []
    for arm in config.arms:
        for name in (n for n in config.types(arm) if n in WITH_NORM):
            for phase in config.phases:
                logs = _head_logs(config, results, rows, arm, name, phase)
                for layer in range(len(logs["head_rms"][0])):
                    init = results[run_name(arm, name, config.seeds[0])]["lambda_init"][layer]
                    entry = {
                        "arm": arm, "type": name, "phase": phase, "layer": layer,
                        "lambda_init": init,
                    }  # fmt: skip
                    for key, of_seeds in logs.items():
                        entry[key] = _factor([of_seed[layer] for of_seed in of_seeds])
                    found.append(entry)
    return found


def _head_logs(
    config: GradientFlowConfig,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    arm: str,
    name: str,
    phase: str,
) -> dict[str, list[list[float]]]:
    """Measure to logarithms, seed by seed and layer by layer; means over the phase's steps."""
    logs: dict[str, list[list[float]]] = {"head_rms": [], "to_factor": [], "norm_gain": []}
    for seed in config.seeds:
        run = run_name(arm, name, seed)
        by_step = {row["step"]: row["layers"] for row in rows[run]}
        steps = [by_step[step] for step in config.phases[phase]]
        rms, gain = (
            [fmean(math.log(layers[i][key]) for layers in steps) for i in range(len(steps[0]))]
            for key in ("head_rms", "norm_gain")
        )
        logs["head_rms"].append(rms)
        logs["norm_gain"].append(gain)
        init = results[run]["lambda_init"]
        logs["to_factor"].append([x - math.log(1 - y) for x, y in zip(rms, init, strict=True)])
    return logs


def _judgements(
    config: GradientFlowConfig,
    sizes: Sizes,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[dict[str, Any]]:
    """By the rules of :mod:`diffattn.lab.studies.gradient_flow.verdict`."""
    start = next(iter(config.phases))
    phases = _quiet(config, sizes, BASE)
    later = [phase for phase in phases if phase != start]
    why = _faults(config, sizes, start, phases)

    def worst(
        pair: tuple[str, str], measure: str, matrices: Sequence[str], arm: str = BASE
    ) -> list[float] | None:
        quiet = _quiet(config, sizes, arm)
        logs = [_logs(config, sizes, arm, pair, p, measure, m) for p in quiet for m in matrices]
        return _largest(logs)

    def drift(a: tuple[str, str, str], b: tuple[str, str, str]) -> list[float] | None:
        sides = [
            [_logs(config, sizes, arm, (name, WIDE), phase, "gradient", m) for m in MATRICES]
            for arm, name, phase in (a, b)
        ]
        changes = [
            None if x is None or y is None else [p - q for p, q in zip(x, y, strict=True)]
            for x, y in zip(*sides, strict=True)
        ]
        return _largest(changes)

    main, twin = ("diff", WIDE), ("diff", BASELINE)
    depths, widths = (
        [arm for arm in config.arms if arm.startswith(prefix)] for prefix in ("depth-", "width-")
    )
    halved = worst((HALVED, BASELINE), "update", MATRICES)
    alike = halved is not None and math.exp(fmean(halved)) < LEVEL
    by_construction = "so are those of the control whose gradients are halved" if alike else ""
    rows_of = [
        ("level", "DIFF V1's gradients have the size of softmax attention's (h heads of 2d)",
         worst(main, "gradient", MATRICES), LEVEL, ""),
        ("level-twin", "DIFF V1's gradients have the size of its twin's (2h heads of d)",
         worst(twin, "gradient", MATRICES), LEVEL, ""),
        ("level-no-norm", "V1's without head norm and factor have it (h heads of 2d)",
         worst((WITHOUT_NORM, WIDE), "gradient", MATRICES), LEVEL, ""),
        ("level-large-values", "V1's have it where values are as large as at the papers' width",
         worst(main, "gradient", MATRICES, LARGE_VALUES), LEVEL, ""),
        ("drift-depth", "The ratio is the same over depth",
         drift((depths[0], "diff", start), (depths[-1], "diff", start)), DRIFT, ""),
        ("drift-width", "The ratio is the same over width",
         drift((widths[0], "diff", start), (widths[-1], "diff", start)), DRIFT, ""),
        ("drift-lambda-init", "The ratio is the same over λ_init",
         drift((BASE, SMALL_LAMBDA, start), (BASE, LARGE_LAMBDA, start)), DRIFT, ""),
        ("drift-time", "The ratio is the same over training",
         drift((BASE, "diff", start), (BASE, "diff", later[-1])) if later else None, DRIFT,
         "" if later else "no later phase is judged"),
        ("updates", "AdamW's updates have the same size",
         worst(main, "update", MATRICES), LEVEL, by_construction),
        ("slope", "An update takes as much off the loss",
         worst(main, SLOPE, ("all",)), LEVEL, ""),
    ]  # fmt: skip
    for key, says, measure, arm in (
        ("head-rms", "‖x‖/√(2d) is 1 − λ_init at the start", "to_factor", BASE),
        ("norm-gain", "The head norm's Jacobian is Θ(1) at the start", "norm_gain", BASE),
        (
            "norm-gain-large-values",
            "Its Jacobian is Θ(1) where values are as large as at the papers' width",
            "norm_gain",
            LARGE_VALUES,
        ),
    ):
        at_start = _head_logs(config, results, rows, arm, "diff", start)[measure]
        factors = [max(abs(x) for x in of_seed) for of_seed in at_start]
        rows_of.append((key, says, factors, LEVEL, ""))
    read_at = {"level-large-values": _quiet(config, sizes, LARGE_VALUES)}
    read_at |= {key: [start] for key in _AT_START}
    return [
        _judgement(key, says, logs, bound, why or own, read_at.get(key, phases))
        for key, says, logs, bound, own in rows_of
    ]


def _judgement(
    key: str, says: str, logs: list[float] | None, bound: float, why: str, phases: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"id": key, "says": says, "bound": bound, "phases": phases, "why": why}
    if logs is None:
        empty: dict[str, Any] = {
            "values": [],
            "mean": None,
            "low": None,
            "high": None,
            "level": None,
        }
        reason = why or "a size is not known"
        return found | empty | {"verdict": "uninformative", "why": reason}
    factor = _factor(logs)
    verdict = judged(factor["values"], factor["low"], factor["high"], bound)
    return found | factor | {"verdict": "uninformative" if why else verdict}


def _largest(of_matrices: Sequence[Sequence[float] | None]) -> list[float] | None:
    """Per seed the largest logarithm, either way."""
    known = [logs for logs in of_matrices if logs is not None]
    if not known or len(known) < len(of_matrices):
        return None
    return [max(abs(x) for x in of_seed) for of_seed in zip(*known, strict=True)]


def _quiet(config: GradientFlowConfig, sizes: Sizes, arm: str) -> list[str]:
    """The phases in which two softmax models of different seeds are alike."""
    found = []
    for phase in config.phases if len(config.seeds) > 1 else ():
        null = [_logs(config, sizes, arm, (NULL, WIDE), phase, "gradient", m) for m in MATRICES]
        logs = _largest(null)
        high = None if logs is None else mean_interval(logs).high
        if high is not None and high < math.log(LEVEL):
            found.append(phase)
    return found


def _faults(config: GradientFlowConfig, sizes: Sizes, start: str, phases: Sequence[str]) -> str:
    """Why nothing can be judged; empty if it can."""
    for matrix in ("v", "o"):
        logs = _logs(config, sizes, BASE, (HALVED, BASELINE), start, "gradient", matrix)
        if logs is None or not HALF[0] <= math.exp(fmean(logs)) <= HALF[1]:
            return "the control with halved gradients does not show half of them"
    if len(config.seeds) < 2:
        return "one seed, so no two seeds to compare"
    return "" if phases else "two seeds of the same model differ by as much in every phase"


def statement(config: GradientFlowConfig) -> str:
    """What this study can and cannot show, in plain words."""
    size = heads_below(member.config.model for member in config.members())
    return (
        f"{size}What would refute the claims was fixed before the first run. All models of a "
        "setting read the same tokens at the same seed and step, with one learning rate. The "
        "models are some thousand times smaller than the papers', and values of a narrow model are "
        "small at the start: one setting starts them at the size that they have at the papers' "
        "width. That hyperparameters carry over is not "
        f"tested here. {spread(len(config.seeds))}"
    )

"""Compare a layer with the published formula, and name the mistakes that explain its output."""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.lab.layer_check.calling import (
    LAMBDA_NAME,
    LAYER,
    ULPS,
    UserLayer,
    call_causally,
    read_weights,
)
from diffattn.lab.layer_check.formula import (
    FACTS,
    PLANTED,
    TEXTS,
    Formula,
    LayerWeights,
    Mistake,
    Pairs,
    Positions,
    attend,
)
from diffattn.layers.parts import LAMBDA_STD
from diffattn.ops.inputs.formulas import lambda_init

_MOST_TOGETHER = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReport:
    """The verdict on one layer."""

    made: str
    attention_type: str
    num_heads: int
    head_dim: int
    value_dim: int
    layout: str
    """Order of rows, positions and mask, each of which may be chosen freely; or ``"unknown"``."""
    explained: bool
    """Whether the formula with ``mistakes`` gives the layer's output."""
    difference: float
    """Largest difference from the published formula, divided by the layer's largest output."""
    remaining: float
    """The same from the nearest formula with mistakes."""
    mistakes: dict[str, str]

    @property
    def right(self) -> bool:
        """Whether the layer computes the published formula and has the published initial values."""
        return self.explained and not self.mistakes


def check_layer(user: UserLayer) -> LayerReport:
    """Compare a layer with the published formula on the same random weights.

    Up to three known mistakes are built into the formula until it gives the layer's output.
    """
    mistakes = _facts_of_start(user, read_weights(user.layer))
    layer = _draw_anew(user.layer)
    weights = read_weights(layer)
    hidden = weights.matrices["q"].shape[1]
    x = torch.randn(2, 9, hidden, generator=torch.Generator().manual_seed(1))
    actual, mask = call_causally(layer, x, weights.head_dim)
    mistakes |= _facts_of_gradient(layer, actual)
    actual, x = actual.detach().double(), x.double()
    starts = _starts(user, weights)
    remaining, formula, planted = _explain(weights, actual, x, starts, mask is None)
    published = _layouts(weights, starts[0][0])
    explained = remaining < 1 and remaining <= _rounding(weights, formula, x)
    layout = "unknown"
    if explained:
        mistakes = planted | mistakes
        pairs = {
            "adjacent": "maps of head i in rows 2i and 2i + 1",
            "split": "maps of head i in rows i and i + H",
            "repeated": "",
        }[formula.query_pairs]
        rotary = "no positions" if formula.positions == "none" else f"rotary {formula.positions}"
        layout = f"{pairs}, {rotary}" + (f", mask: {mask}" if mask not in (None, "none") else "")
    elif mask is None:
        mistakes["not_causal"] = "A token's output depends on later tokens."
    return LayerReport(
        made=user.made, attention_type=weights.attention_type, num_heads=weights.num_heads,
        head_dim=weights.head_dim, value_dim=weights.value_dim, explained=explained, layout=layout,
        difference=min(_difference(actual, attend(weights, known, x)) for known in published),
        remaining=remaining, mistakes=mistakes,
    )  # fmt: skip


def _draw_anew(layer: nn.Module) -> nn.Module:
    """Copy the layer with random parameters: no zeros or ones, which would hide a step."""
    layer, generator = deepcopy(layer), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "lambda_init" in name:
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            is_vector = bool(LAMBDA_NAME.search(name.lower())) and "proj" not in name
            if parameter.numel() == 1 or (parameter.ndim == 1 and not is_vector):
                parameter.copy_(0.5 + 0.1 * drawn)
            else:
                parameter.copy_(drawn * parameter.shape[-1] ** (-0.25 if is_vector else -0.5))
    return layer


def _starts(user: UserLayer, weights: LayerWeights) -> list[tuple[float, dict[str, str]]]:
    """The values of λ_init to try, each with the mistake that it is; the published one first."""
    if weights.attention_type == "diff_v2":
        return [(0.0, {})]
    value = getattr(user.layer, "lambda_init", None)
    number = float(value) if isinstance(value, float | Tensor) else None
    right = lambda_init(LAYER)
    if {"layer", "lambda_init"} & set(user.given):
        others = {lambda_init(LAYER + 1), lambda_init(LAYER - 1), 0.8, number or 0.8} - {right}
        name, published = "lambda_init_depth", {right}
        values = [right, *sorted(others)]
    else:
        name, published = "lambda_init_constant", {lambda_init(layer) for layer in range(48)}
        values = [0.8, 0.5, lambda_init(0)] if number is None else [number]
    text = FACTS[name]
    return [
        (v, {} if v in published else {name: text.format(value=v, index=LAYER, right=right)})
        for v in values
    ]


def _layouts(weights: LayerWeights, start: float) -> Iterator[Formula]:
    """The published formula in every order of rows and with every rotary layout that is right."""
    v2 = weights.attention_type == "diff_v2"
    base = Formula(lambda_init=start, norm_over="nothing" if v2 else "head", factor=not v2)
    rows: list[tuple[Pairs, Pairs, Pairs]] = [("adjacent",) * 3, ("split", "adjacent", "adjacent")]
    if not v2:
        rows = [("adjacent",) * 3, ("split", "split", "adjacent"), ("split",) * 3]
    rotary: tuple[Positions, ...] = ("none", "halves", "interleaved")
    for positions, (queries, keys, values) in product(rotary, rows):
        pairs: Any = {"query_pairs": queries, "key_pairs": keys}
        yield replace(base, positions=positions, value_halves=values, **pairs)


def _explain(
    weights: LayerWeights,
    actual: Tensor,
    x: Tensor,
    starts: list[tuple[float, dict[str, str]]],
    leaks: bool,
) -> tuple[float, Formula, dict[str, str]]:
    """Difference, formula, mistakes: the formula with the fewest that fits, or else the nearest."""
    known = [
        mistake
        for mistake in PLANTED
        if weights.attention_type in mistake.attention_types and (leaks or not mistake.leaks)
    ]
    best = (math.inf, next(_layouts(weights, starts[0][0])), dict[str, str]())
    for total in range(_MOST_TOGETHER + 1):
        for start, mistaken_start in starts:
            together = total - len(mistaken_start)
            for planted in combinations(known, together) if together >= 0 else ():
                if leaks and not any(mistake.leaks for mistake in planted):
                    continue
                for formula in _planted(weights, planted, start):
                    difference = _difference(actual, attend(weights, formula, x))
                    if difference < best[0]:
                        texts = {mistake.name: TEXTS[mistake.name] for mistake in planted}
                        best = (difference, formula, texts | mistaken_start)
        if best[0] < 1 and best[0] <= _rounding(weights, best[1], x):
            break
    return best


def _planted(
    weights: LayerWeights, planted: tuple[Mistake, ...], start: float
) -> Iterator[Formula]:
    """Every layout of the formula with these mistakes; none if two mistakes change one step."""
    changes = dict(step for mistake in planted for step in mistake.changes.items())
    if len(changes) < sum(len(mistake.changes) for mistake in planted):
        return
    yield from dict.fromkeys(replace(layout, **changes) for layout in _layouts(weights, start))


def _difference(actual: Tensor, formula: Tensor) -> float:
    """Largest difference divided by the largest output; infinite if it is NaN."""
    difference = float((actual - formula).abs().max() / actual.abs().max())
    return math.inf if math.isnan(difference) else difference


def _rounding(weights: LayerWeights, formula: Formula, x: Tensor) -> float:
    """How far float32 arithmetic, and an eps of the norm from 0 to 1e-5, can move the output."""
    generator = torch.Generator().manual_seed(2)

    def nudge(tensor: Tensor) -> Tensor:
        steps = 2 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) - 1
        return tensor * (1 + ULPS * torch.finfo(torch.float32).eps * steps)

    exact = attend(weights, formula, x)
    nudged = replace(
        weights, matrices={role: nudge(tensor) for role, tensor in weights.matrices.items()}
    )
    moved = _difference(exact, attend(nudged, formula, nudge(x)))
    return 2 * (moved + _difference(exact, attend(weights, replace(formula, eps=0.0), x)))


def _facts_of_start(user: UserLayer, weights: LayerWeights) -> dict[str, str]:
    vectors = weights.lambdas
    queries, hidden = weights.matrices["q"].shape
    if not vectors:  # V2
        return {}
    std = float(torch.stack(vectors).std())
    facts = {
        "zero_vectors": not any(vector.any() for vector in vectors),
        "wide_start": std > 2 * LAMBDA_STD,
        "lambda_by_head": vectors[0].ndim > 1,
        "narrow_values": weights.value_dim == weights.head_dim,
        "heads_not_halved": queries == 2 * hidden and "width" not in user.given,
    }
    return {name: FACTS[name].format(value=std) for name, holds in facts.items() if holds}


def _facts_of_gradient(layer: nn.Module, out: Tensor) -> dict[str, str]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    named = layer.named_parameters()
    learned = [p for name, p in named if LAMBDA_NAME.search(name.lower()) and p.requires_grad]
    if out.requires_grad and learned:
        gradients = torch.autograd.grad(out, learned, weights, allow_unused=True)
        if any(gradient is not None and gradient.any() for gradient in gradients):
            return {}
    return {"detached_lambda": FACTS["detached_lambda"]}

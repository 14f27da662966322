"""Measure the rounding of a whole model by runs whose weights are moved by one rounding."""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from diffattn.lab.testing.budget import largest

NUM_RUNS = 6


def measured_errors(
    run: Callable[[nn.Module], Mapping[str, Tensor]],
    model: nn.Module,
    exact: Mapping[str, Tensor],
    *,
    ulps: float = 1.0,
    num_runs: int = NUM_RUNS,
    size: Callable[[Tensor], float] = largest,
) -> dict[str, float]:
    """How far rounding moves the results of a model, where nothing short derives it.

    The worst error of several runs of the reference whose weights are first moved by up to one
    unit in the last place, and that unit of the result. One run may be accurate by luck or by its
    machine's kernels; weights known to one rounding move the result on every machine.

    Args:
        run: Results of a model by name, in its dtype.
        model: The reference in the dtype to judge. It is not changed.
        exact: Results of the same weights in float64.
        ulps: Units by which the weights are moved.
        size: Of a tensor. Default: its largest absolute value.

    Returns:
        E for :func:`diffattn.lab.testing.budget.compare`, by name.
    """
    eps = ulps * max(torch.finfo(x.dtype).eps for x in model.parameters())
    worst = dict.fromkeys(exact, 0.0)
    for seed in range(num_runs):
        results = run(nudged(model, seed=seed, ulps=ulps))
        for name, want in exact.items():
            error = size(results[name].double() - want)
            worst[name] = error if not error <= worst[name] else worst[name]  # keeps NaN
    return {name: error + eps * size(exact[name]) for name, error in worst.items()}


@torch.no_grad()
def nudged(model: nn.Module, *, seed: int, ulps: float = 1.0) -> nn.Module:
    """A copy whose every weight is off by a random part of ``ulps`` units in the last place."""
    model = deepcopy(model)
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for weight in model.parameters():
        uniform = torch.rand(weight.shape, generator=generator, dtype=torch.float64, device=device)
        steps = 2 * uniform - 1
        eps = ulps * torch.finfo(weight.dtype).eps
        weight.copy_(weight.double() * (1 + eps * steps))
    return model

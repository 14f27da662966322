"""Measure the rounding error of a whole model: run it with weights moved by one rounding."""

from collections.abc import Callable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from diffattn.lab.testing.budget import largest

NUM_RUNS = 6  # with different random changes of the weights


def measured_errors(
    run: Callable[[nn.Module], Mapping[str, Tensor]],
    model: nn.Module,
    exact: Mapping[str, Tensor],
    *,
    ulps: float = 1.0,
    num_runs: int = NUM_RUNS,
    size: Callable[[Tensor], float] = largest,
) -> dict[str, float]:
    """Measure how far rounding moves the results of a model whose bound is too long to derive.

    The estimate is the largest error of several runs of the reference, plus one rounding of the
    result. Each run first moves every weight by up to ``ulps`` units in the last place. A single
    run with the exact weights may be accurate by luck, or because of one machine's kernels.

    Args:
        run: Runs a model and returns its results by name, in its dtype.
        model: The reference in the dtype to judge. It is not changed.
        exact: Results of the same weights in float64, by name.
        ulps: Largest change of a weight, in units in the last place.
        size: Reduces a tensor to its size. Default: its largest absolute value.

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
    """Copy a model and multiply each weight by 1 + u · ulps · eps, with u uniform in [-1, 1)."""
    model = deepcopy(model)
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for weight in model.parameters():
        uniform = torch.rand(weight.shape, generator=generator, dtype=torch.float64, device=device)
        steps = 2 * uniform - 1
        eps = ulps * torch.finfo(weight.dtype).eps
        weight.copy_(weight.double() * (1 + eps * steps))
    return model

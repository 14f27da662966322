"""Compare a timed model with its eager form in float64, on two of its layers."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.testing.budget import compare
from diffattn.testing.nudging import measured_errors

_LAYERS = 2
_NUDGED_RUNS = 2


def check_model(
    make: Callable[..., nn.Module],
    config: DiffTransformerConfig,
    implementation: str,
    whose: str,
    ids: Tensor,
    dtype: torch.dtype,
    gradients: bool,
) -> dict[str, Any]:
    r"""Logits, and the gradient of the embedding, against the eager model in float64.

    .. math:: \|x - x_{64}\| \le 2\,(\|x_\mathrm{eager} - x_{64}\| + \epsilon \|x_{64}\|)

    The rule of ``diffattn.testing``: what rounding can do is measured on the eager model in the
    timed dtype, with weights moved by one unit in the last place. Norms are compared, which
    gather thousands of roundings, so that two such runs are as good as many.

    Args:
        make: Builds the model from a configuration and ``implementation``.
        config: Of the timed model; the check uses its first two layers.
        implementation: ``attn_implementation`` that is timed.
        whose: ``"diffattn"`` or ``"transformers"``.
        ids: int64 ``[1, N]``, the timed length.
        dtype: The timed dtype.
        gradients: Compare the gradient too.

    Returns:
        As :func:`diffattn.benchmark.checking.check_diff`.
    """
    config = deepcopy(config)
    config.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    eager = deepcopy(config)
    eager.attention_backend = "reference"
    is_ours = whose == "diffattn" and config.attention_op == "diff_attention"
    eager_form = "diffattn" if is_ours else "eager"

    def build(config: DiffTransformerConfig, form: str) -> nn.Module:
        return make(config, implementation=form).to(ids.device, dtype)

    run = partial(_run, ids=ids, gradients=gradients)
    actual = run(build(config, implementation))
    exact = run(build(eager, eager_form).double())
    off = measured_errors(run, build(eager, eager_form), exact, num_runs=_NUDGED_RUNS, size=_norm)
    worst: dict[str, Any] = {"passed": True, "worst": "logits", "error": 0.0, "budget": 0.0}
    most = -1.0
    for name, want in exact.items():
        result = compare(actual[name], want, off[name], size=_norm)
        if result.share > most:
            most = result.share
            worst = {"passed": result.problem is None, "worst": name}
            worst |= {"error": result.error / _norm(want), "budget": result.budget / _norm(want)}
    worst["compared"] = f"{config.num_hidden_layers} layers, {ids.shape[1]} tokens, in norm"
    return worst


def _run(model: nn.Module, ids: Tensor, gradients: bool) -> dict[str, Tensor]:
    with torch.set_grad_enabled(gradients):
        out = model(input_ids=ids, labels=ids, use_cache=False)
    values = {"logits": out.logits.detach()}
    if gradients:
        embedding: Any = model.get_input_embeddings().weight  # type: ignore[operator]
        (grad,) = torch.autograd.grad(out.loss, (embedding,))
        values["gradient of the embedding"] = grad
    return values


def _norm(x: Tensor) -> float:
    return float(x.double().norm())

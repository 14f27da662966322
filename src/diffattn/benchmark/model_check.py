"""Compare a timed model with its eager form in float64, on two of its layers."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

_LAYERS = 2


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

    Whole models round in thousands of places, so the yardstick is the eager model in the timed
    dtype, and norms are compared: single values may be lucky.

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

    def run(config: DiffTransformerConfig, form: str, dtype: torch.dtype) -> dict[str, Tensor]:
        model = make(config, implementation=form).to(ids.device, timed.dtype).to(dtype)
        return _run(model, ids, gradients)

    timed = torch.empty(0, dtype=dtype)  # weights are rounded to the timed dtype in every run
    got = run(config, implementation, dtype)
    rounded = run(eager, eager_form, dtype)
    exact = run(eager, eager_form, torch.float64)
    eps = torch.finfo(dtype).eps
    worst: dict[str, Any] = {"passed": True, "worst": "logits", "error": 0.0, "budget": 0.0}
    nearest = -1.0
    for name, want in exact.items():
        size = _norm(want)
        error = _norm(got[name] - want) / size
        budget = 2 * (_norm(rounded[name] - want) / size + eps)
        passed = error <= budget  # NaN fails
        share = error / budget if passed else float("inf")
        if share > nearest or not share <= nearest:
            nearest = share
            worst = {"passed": passed, "worst": name, "error": error, "budget": budget}
    worst["compared"] = f"{config.num_hidden_layers} layers, {ids.shape[1]} tokens, in norm"
    return worst


def _run(model: nn.Module, ids: Tensor, gradients: bool) -> dict[str, Tensor]:
    with torch.set_grad_enabled(gradients):
        out = model(input_ids=ids, labels=ids, use_cache=False)
    found = {"logits": out.logits.detach().double()}
    if gradients:
        embedding: Any = model.get_input_embeddings().weight  # type: ignore[operator]
        (grad,) = torch.autograd.grad(out.loss, (embedding,))
        found["gradient of the embedding"] = grad.double()
    return found


def _norm(x: Tensor) -> float:
    return float(x.double().norm())

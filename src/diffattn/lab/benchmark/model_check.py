"""Compare a timed model with its eager form in float64, on two of its layers.

In 16 bits the rounding of a whole fresh model hides that its λ is 0, or all its scores are: the
same implementation is compared in float32 too, where it is not.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from diffattn.lab.testing.budget import compare
from diffattn.lab.testing.nudging import measured_errors
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

CHECKED_LAYERS = 2
"""Layers that are checked of a model that has more."""
_NUDGED_RUNS = 2


def check_model(
    make: Callable[..., nn.Module],
    config: DiffTransformerConfig,
    implementation: str,
    whose: str,
    ids: Tensor,
    dtype: torch.dtype,
    gradients: bool = False,
    *,
    cached: bool = False,
) -> dict[str, Any]:
    r"""Logits, and the gradient of the embedding, against the eager model in float64.

    .. math:: \|x - x_{64}\| \le 2\,(\|x_\mathrm{eager} - x_{64}\| + \epsilon \|x_{64}\|)

    Rounding is measured on two eager models whose weights are moved by one unit in the last place.

    Args:
        make: Builds the model from a configuration and ``implementation``.
        config, implementation, dtype: Of the timed model, of which two layers are checked.
        whose: ``"diffattn"`` or ``"transformers"``.
        ids: int64 ``[1, N]``, the timed length.
        gradients: Compare the gradient too.
        cached: Compare only the last token's logits, read with a cache of all before.

    Returns:
        As :func:`diffattn.lab.benchmark.checking.Exact.check`, of the dtype with the largest share.
    """
    dtypes = [dtype] if dtype.itemsize > 2 else [dtype, torch.float32]
    actual = expected = partial(_run, ids=ids, gradients=gradients)
    if cached:
        actual, expected = partial(_step, ids=ids), partial(_last, ids=ids)
    config = deepcopy(config)
    config.num_hidden_layers = min(CHECKED_LAYERS, config.num_hidden_layers)
    eager = deepcopy(config)
    eager.attention_backend = "reference"
    has_op = (whose, config.attention_op) == ("diffattn", "diff_attention")
    eager_form = "diffattn" if has_op else "eager"

    def build(config: DiffTransformerConfig, form: str, dtype: torch.dtype) -> nn.Module:
        with ids.device:  # weights are drawn where they are used
            model = make(config, implementation=form)
        return model.to(ids.device, dtype)

    worst: dict[str, Any] = {}
    most = -1.0
    for each in dtypes:
        results = actual(build(config, implementation, each))
        exact = expected(build(eager, eager_form, each).double())
        reference = build(eager, eager_form, each)
        off = measured_errors(expected, reference, exact, num_runs=_NUDGED_RUNS, size=_norm)
        for name, want in exact.items():
            result = compare(results[name], want, off[name], size=_norm)
            if result.share > most:
                most, size = result.share, _norm(want)
                worst = {"passed": result.problem is None, "worst": name}
                worst |= {"error": result.error / size, "budget": result.budget / size}
    words = f"{config.num_hidden_layers} layers, {ids.shape[1]} tokens, in norm"
    names = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return worst | {"compared": words + (f", in {names}" if len(dtypes) > 1 else "")}


def _run(model: nn.Module, ids: Tensor, gradients: bool) -> dict[str, Tensor]:
    with torch.set_grad_enabled(gradients):
        out = model(input_ids=ids, labels=ids, use_cache=False)
    values = {"logits": out.logits.detach()}
    if gradients:
        embedding: Any = model.get_input_embeddings().weight  # type: ignore[operator]
        (grad,) = torch.autograd.grad(out.loss, (embedding,))
        values["gradient of the embedding"] = grad
    return values


@torch.no_grad()
def _step(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """By a cache: all but the last token, then that one."""
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :-1], past_key_values=cache, logits_to_keep=1)
    logits = model(input_ids=ids[:, -1:], past_key_values=cache, logits_to_keep=1).logits
    return {"logits of the last token": logits}


@torch.no_grad()
def _last(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    return {"logits of the last token": logits}


def _norm(x: Tensor) -> float:
    return float(x.double().norm())

"""Compare a timed model, cut to two layers, with its eager form in float64.

In 16 bits, rounding in a whole new model is so large that it would hide a λ or scores of 0. So the
same implementation is also compared in float32, where rounding is small.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from diffattn.lab.testing.budget import compare, measured_errors
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

CHECKED_LAYERS = 2


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
    r"""Compare logits, and the gradient of the embedding, with the eager model in float64.

    .. math:: \|x - x_{64}\| \le 2\,(\|x_\mathrm{eager} - x_{64}\| + \epsilon \|x_{64}\|)

    The eager error is the larger of two runs whose weights are moved by up to one rounding. With
    ``cached`` only the last token's logits are compared, computed with a cache. The result is that
    of :meth:`diffattn.lab.benchmark.checking.Exact.check`, for the largest share of a budget.
    """
    dtypes = [dtype] if dtype.itemsize > 2 else [dtype, torch.float32]
    actual = expected = partial(_run, ids=ids, gradients=gradients)
    if cached:
        actual, expected = (partial(_last, ids=ids, cached=cached) for cached in (True, False))
    config = deepcopy(config)
    config.num_hidden_layers = min(CHECKED_LAYERS, config.num_hidden_layers)
    eager = deepcopy(config)
    eager.attention_backend = "reference"
    has_op = (whose, config.attention.op) == ("diffattn", "diff_attention")
    eager_form = "diffattn" if has_op else "eager"

    def build(config: DiffTransformerConfig, form: str, dtype: torch.dtype) -> nn.Module:
        with ids.device:  # draw the weights on this device
            model = make(config, implementation=form)
        return model.to(ids.device, dtype)

    worst: dict[str, Any] = {}
    most = -1.0
    for each in dtypes:
        results = actual(build(config, implementation, each))
        exact = expected(build(eager, eager_form, each).double())
        reference = build(eager, eager_form, each)
        off = measured_errors(expected, reference, exact, num_runs=2, size=_norm)
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
def _last(model: nn.Module, ids: Tensor, cached: bool) -> dict[str, Tensor]:
    options: dict[str, Any] = {"use_cache": False}
    if cached:
        options = {"past_key_values": DynamicCache(config=model.config)}
        model(input_ids=ids[:, :-1], logits_to_keep=1, **options)
        ids = ids[:, -1:]
    return {"logits of the last token": model(input_ids=ids, logits_to_keep=1, **options).logits}


def _norm(x: Tensor) -> float:
    return float(x.double().norm())

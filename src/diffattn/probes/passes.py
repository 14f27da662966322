"""Forward passes that do not change a model and need no more memory than training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.errors import ShapeError
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.packed_rows import window_inputs


@contextmanager
def evaluating(model: nn.Module, *hooks: Any) -> Iterator[None]:
    """A context in evaluation mode. Afterwards the mode is restored and ``hooks`` are removed."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()


def watch_attention(attention: nn.Module, watch: Callable[..., Tensor]) -> Any:
    """Let a layer call ``watch(attend, q, k, v, *lam)`` instead of ``attend``; returns the hook."""

    def hook(module: nn.Module, inputs: Any, options: dict[str, Any]) -> Any:
        return inputs, {**options, "attend": partial(watch, options["attend"])}

    return attention.register_forward_pre_hook(hook, with_kwargs=True)


def run_windows(
    model: DiffTransformerForCausalLM, input_ids: Tensor, position_ids: Tensor | None = None
) -> None:
    """Run a model on windows ``[B, T]`` for its hooks only; see :func:`window_inputs`."""
    inputs = {
        name: x.to(model.device) for name, x in window_inputs(input_ids, position_ids).items()
    }
    # Logits of one token: those of all tokens would be larger than any tensor of training.
    model(**inputs, use_cache=False, logits_to_keep=1)


def pieces(
    input_ids: Tensor, position_ids: Tensor | None, at_once: int | None
) -> Iterator[tuple[float, Tensor, Tensor | None]]:
    """Split windows ``[B, T]`` into pieces of ``at_once`` windows, by default one piece.

    Yields for each piece its share of all windows, in (0, 1], ``input_ids`` and ``position_ids``.
    """
    size = at_once or len(input_ids)
    for start in range(0, len(input_ids), size):
        ids = input_ids[start : start + size]
        positions = None if position_ids is None else position_ids[start : start + size]
        yield len(ids) / len(input_ids), ids, positions


def require_one_row(where: str, input_ids: Tensor) -> None:
    """Raise a ShapeError unless ``input_ids`` is one row of one token or more."""
    if input_ids.ndim != 2 or len(input_ids) != 1 or not input_ids.numel():
        raise ShapeError(f"{where}: input_ids must be [1, T], got {list(input_ids.shape)}.")


def root_mean_square(x: Tensor) -> float:
    """Root mean square over all entries, computed in float32."""
    return float(x.float().square().mean().sqrt())


@torch.no_grad()
def window_losses(
    model: DiffTransformerForCausalLM, input_ids: Tensor, position_ids: Tensor | None = None
) -> np.ndarray:
    r"""Losses ``[B, T - 1]`` of tokens given their window: :math:`-\log p(x_t \mid x_{<t})`.

    They are float64, in nats, for tokens 1 to T - 1, from one forward pass under the present
    autocast; softmaxes are float32. ``position_ids`` begin again at 0 with each document, to keep
    documents apart. The loss of a document's first token, at position 0, has no meaning.
    """
    inputs = window_inputs(input_ids, position_ids)
    if model.loss_chunk_tokens is not None:
        inputs["labels"] = inputs["input_ids"]
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    with evaluating(model):
        output = model(**inputs, use_cache=False, skip_logits=True)
    losses = output.token_losses
    if losses is None:
        # Shift and pad the ids: cutting off the logits' last position would copy the logits.
        following = F.pad(input_ids.to(model.device)[:, 1:], (0, 1)).flatten()
        losses = F.cross_entropy(output.logits.float().flatten(0, 1), following, reduction="none")
    return losses.view_as(input_ids)[:, :-1].cpu().double().numpy()

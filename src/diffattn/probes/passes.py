"""Forward passes that do not change a model, and checks of what they give."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.errors import ConfigError, DiffAttnError, ShapeError
from diffattn.layers.saved_names import saved_name
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


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


def window_inputs(input_ids: Tensor, position_ids: Tensor | None = None) -> dict[str, Tensor]:
    """Arguments by which a model reads windows, int64 ``[B, T]``: as a batch, or as one packed row.

    Positions ``[B, T]``, 0 at the first token of a window or document, give a row ``[1, B * T]``
    in which no document attends to another one. ``cu_seq_lens_q``, int32 ``[num_docs + 1]``, has
    the borders. Without positions a window is one document.
    """
    if position_ids is None:
        return {"input_ids": input_ids}
    positions = position_ids.reshape(1, -1)
    starts = (positions[0] == 0).nonzero().flatten()
    borders = torch.cat([starts, starts.new_tensor([positions.shape[1]])]).to(torch.int32)
    row = {"input_ids": input_ids.reshape(1, -1), "position_ids": positions}
    return row | {"cu_seq_lens_q": borders}


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
    if model.loss_chunk_tokens is not None or model.device.type == "cuda":  # no logits are kept
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


def unwrapped(network: Any) -> Any:
    """The model inside a wrapper of ``torch.compile`` or PEFT.

    Its class decides how attention is read. A wrapper has the model's attributes but not its
    class, so a wrapped DiffTransformer would be read as a softmax model. Adapters within the
    layers, such as LoRA, stay there. Virtual tokens, which the inner model lacks, are refused.
    """
    while (is_compiled := hasattr(network, "_orig_mod")) or hasattr(network, "get_base_model"):
        adapter = getattr(network, "active_peft_config", None)
        if getattr(adapter, "is_prompt_learning", False):
            raise ConfigError(
                "maps: an adapter must act within the layers, got tokens before every text "
                f"({type(adapter).__name__})."
            )
        network = network._orig_mod if is_compiled else network.get_base_model()
    is_expected = isinstance(network, DiffTransformerForCausalLM)
    if network.config.model_type == DiffTransformerConfig.model_type and not is_expected:
        raise ConfigError(
            f"maps: a model of type {network.config.model_type!r} must be a "
            f"DiffTransformerForCausalLM, got {type(network).__name__}."
        )
    return network


def require_finite_logits(
    where: str, logits: Tensor, network: nn.Module, *, used: Tensor | None = None
) -> None:
    """Raise if a row of logits ``[..., vocab_size]`` has a NaN, a +inf, or no finite entry.

    Some entries may be −inf: some models suppress tokens this way. ``used`` is bool ``[...]``, True
    at rows to check, for example not at padding.
    """
    peaks = logits.detach().amax(-1)  # NaN if an entry is
    if used is not None:
        peaks = peaks[used.to(peaks.device)]
    _require(where, "logits", peaks, network)


def require_finite_maps(where: str, maps: Tensor, network: nn.Module) -> None:
    """Raise if attention maps ``[..., keys]`` hold a NaN or an infinity, for example of λ."""
    # Attention weights are about 1 or less, so a sum is not finite only if an entry is not.
    _require(where, "attention maps", maps.detach().sum(-1), network)


def require_same_logits(must: str, logits: Tensor, expected: Tensor, network: Any) -> None:
    """Raise a ConfigError if logits differ from the expected ones by more than rounding."""
    config = network.config.get_text_config()
    # Assumption: each layer adds about one rounding error of a sum over the hidden size.
    budget = torch.finfo(network.dtype).eps * config.num_hidden_layers * config.hidden_size**0.5
    size = float(expected[expected.isfinite()].abs().max()) or 1.0
    either = expected.isfinite() | logits.isfinite()
    error = float((logits - expected)[either].abs().max()) / size
    if not error <= budget:
        raise ConfigError(f"{must}, got logits that differ by {error:.1e}.")


def _require(where: str, quantity: str, rows: Tensor, network: nn.Module) -> None:
    """Raise unless ``rows``, one number per row of the quantity, are all finite."""
    broken = rows[~rows.isfinite()]
    if not len(broken):
        return
    weights = dict(network.named_parameters())
    dtypes = sorted({str(x.dtype).removeprefix("torch.") for x in weights.values()})
    at_fault = (saved_name(name) for name, x in weights.items() if not x.isfinite().all())
    name = next(at_fault, None)
    reason = f"weight {name} holds NaN or infinity"
    if name is None:
        reason = f"all weights are finite; computed in {' and '.join(dtypes)}"
    raise DiffAttnError(
        f"{where}: {quantity} must be finite, got {float(broken[0])} in {len(broken)} of "
        f"{rows.numel()} rows ({reason})."
    )

"""Run a model whose attention logits are quantised to a few bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import eager_mask

from diffattn.errors import ConfigError, check_known
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.ops.inputs.numbers import is_whole
from diffattn.probes.attention_rows import (
    OTHER_ATTENTION,
    attention_implementation,
    registered_attention,
)
from diffattn.probes.passes import require_finite_logits, require_same_logits

UNQUANTIZED_BITS = 16
GRANULARITIES: dict[str, tuple[int, ...]] = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "row": (3,)}
"""Granularity -> axes of ``[B, heads, T, S]`` over which one scale is shared."""


def quantize_logits(
    logits: Tensor, visible: Tensor, bits: int, *, granularity: str = "tensor"
) -> Tensor:
    r"""Attention logits rounded to ``bits`` bits by their largest absolute value.

    .. math:: s = \max|X| / (2^{b - 1} - 1), \quad X_q = s\,\mathrm{clip}(\mathrm{round}(X / s))

    Source: arXiv:2410.05258v2, Fig. 8.

    Args:
        logits: ``[B, heads, T, S]``, float. Both maps of differential attention are heads.
        visible: bool, broadcastable to ``logits``, True at entries that are not masked. Only these
            count in the maximum, and only these are changed.
        bits: 2 to 16; 16 changes nothing.
        granularity: Entries that share a scale: ``"tensor"`` (all), ``"head"`` (one head, over the
            whole batch) or ``"row"`` (one query of one head).

    Returns:
        Shape and dtype of ``logits``; computed in float32, or float64.
    """
    _require_known(bits, granularity)
    if bits == UNQUANTIZED_BITS:
        return logits
    shown = at_least_float32(logits).masked_fill(~visible, 0)
    levels = 2 ** (bits - 1) - 1
    scale = shown.abs().amax(GRANULARITIES[granularity], keepdim=True) / levels
    # All logits 0: nothing to round, and no division by 0.
    steps = (shown / scale.masked_fill(scale == 0, 1)).round().clamp(-levels, levels)
    return torch.where(visible, (steps * scale).to(logits.dtype), logits)


@contextmanager
def quantized_logits(network: Any, bits: int, *, granularity: str = "tensor") -> Iterator[None]:
    """A context in which every attention layer rounds its logits before the softmax.

    Scales are computed in each forward pass and layer, so a result depends on the other rows of the
    batch. Under ``"tensor"`` both maps share a scale. Works with caches, padding and any mask.
    ``network`` must pass :func:`require_quantizable`.
    """
    _require_known(bits, granularity)
    name = f"diffattn_logits_{bits}_bits_per_{granularity}"

    def attention(module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return _attend(module, *args, bits=bits, granularity=granularity, **options)

    def refuse_others(module: nn.Module, *ignored: Any) -> None:
        chosen = network.config._attn_implementation
        if chosen != name:
            raise ConfigError(
                "quantized logits: the attention function must not be changed inside this context, "
                f"got {chosen!r}."
            )

    with registered_attention(network, name, attention, eager_mask):
        hook = network.base_model.register_forward_pre_hook(refuse_others)
        try:
            yield
        finally:
            hook.remove()


@torch.no_grad()
def require_quantizable(network: Any) -> None:
    """Raise unless a model's attention is plain softmax attention through transformers' interface.

    A short input is run with the model's eager attention and with our function at 16 bits. Every
    layer must call our function, and the logits must agree within rounding.
    """
    config = network.config.get_text_config()
    called: set[int] = set()

    def attention(module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        called.add(id(module))
        if other := [name for name in OTHER_ATTENTION if options.get(name) is not None]:
            raise ConfigError(
                f"quantized logits: attention of {config.model_type!r} must be plain softmax "
                f"attention, got {', '.join(other)}."
            )
        return _attend(module, *args, bits=UNQUANTIZED_BITS, granularity="tensor", **options)

    ids = torch.arange(min(8, config.vocab_size), device=network.device)[None]
    with registered_attention(network, "diffattn_logits_unchanged", attention, eager_mask):
        logits = network(input_ids=ids, use_cache=False).logits
    if len(called) != config.num_hidden_layers:
        raise ConfigError(
            f"quantized logits: every layer of {config.model_type!r} must call the attention "
            f"interface of transformers, got {len(called)} of {config.num_hidden_layers}."
        )
    with attention_implementation(network, "eager"):
        expected = network(input_ids=ids, use_cache=False).logits
    for given in (expected, logits):
        require_finite_logits(str(config.model_type), given, network)
    must = f"attention of {config.model_type!r} must be softmax(QK^T scale + mask) V"
    require_same_logits(f"quantized logits: {must}", logits, expected, network)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    bits: int,
    granularity: str,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention as in transformers, with quantised logits."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = query @ key.transpose(2, 3) * scale  # [B, heads, T, S]
    mask = logits.new_zeros(()) if attention_mask is None else attention_mask[..., : key.shape[2]]
    visible = mask > torch.finfo(mask.dtype).min
    logits = quantize_logits(logits, visible, bits, granularity=granularity) + mask
    weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _require_known(bits: int, granularity: str) -> None:
    if not is_whole(bits) or not 2 <= bits <= UNQUANTIZED_BITS:
        raise ConfigError(f"quantized logits: bits must be from 2 to 16, got {bits!r}.")
    check_known("quantized logits", "granularity", granularity, GRANULARITIES)

"""Read the inputs of attention and the output of every block, one sequence at a time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import flash_attention_mask

from diffattn.errors import ConfigError
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.masking import at_least_float32, num_heads_of, paired
from diffattn.probes.activations import diffllama_lambda
from diffattn.probes.attention_rows import OTHER_ATTENTION, registered_attention
from diffattn.probes.passes import (
    require_finite_logits,
    require_one_row,
    require_same_logits,
    unwrapped,
    watch_attention,
)

BLOCK_ENTRIES = 2**22
"""Number of one layer's attention logits, over heads and maps, in memory at a time."""
_NAME = "diffattn_layer_reader"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Inputs of one layer's attention for ``T`` tokens of one sequence, after RoPE."""

    q: Tensor
    """``[T, H, maps, D]``; two maps for differential attention, else one map."""
    k: Tensor
    """``[T, Hkv, maps, D]``, or ``[T, Hkv, 1, D]`` if both maps share keys."""
    v: Tensor
    """``[T, Hkv, Dv]``."""
    lam: Tensor | None
    """λ ``[T, H]``, float32 or wider; ``None`` with one map."""
    scale: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitRows:
    """Attention logits of neighbouring queries of one layer."""

    start: int
    logits: Tensor
    """``[H, maps, R, S]``, scaled; float32 or float64. The last of R queries sees all S keys."""
    visible: Tensor
    """bool ``[R, S]``, True where key j <= query i. Ignore the logits of other pairs."""


@torch.no_grad()
def read_layers(
    network: Any,
    input_ids: Tensor,
    on_attention: Callable[[int, AttentionInputs], None],
    on_hidden: Callable[[int, Tensor], None] = lambda layer, x: None,
) -> Tensor:
    """Run one sequence, and pass each layer's activations to the two callbacks; returns logits.

    Both get the layer, counted from 0. ``on_hidden`` gets the residual stream after it,
    ``[T, hidden_size]``.

    In our models a hook reads the inputs of the operator. Other models run with our attention
    function in transformers' interface. DiffLlama calls it once for each half of its values. The
    two calls become one differential attention, whose maps of head i are heads i and i + H.

    ``network`` is in evaluation mode, and :func:`require_readable` accepts it. ``input_ids`` is
    int64 ``[1, T]``.
    """
    require_one_row("read_layers", input_ids)
    network = unwrapped(network)

    def pass_hidden(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        on_hidden(layer, (output[0] if isinstance(output, tuple) else output)[0])

    is_ours = isinstance(network, DiffTransformerForCausalLM)
    with ExitStack() as hooks:
        for layer, block in enumerate(_blocks(network)):
            hooks.callback(block.register_forward_hook(partial(pass_hidden, layer)).remove)
            if is_ours:
                watch = partial(_watch_attention, layer, on_attention)
                hooks.callback(watch_attention(block.self_attn, watch).remove)
        if not is_ours:
            attention = _Interface(network, on_attention)
            # A mask would have T × T entries; the function for flash attention makes none.
            hooks.enter_context(
                registered_attention(network, _NAME, attention, flash_attention_mask)
            )
        output = network(input_ids=input_ids.to(network.device), use_cache=False, logits_to_keep=1)
    require_finite_logits(str(network.config.model_type), output.logits, network)
    return output.logits


@torch.no_grad()
def require_readable(network: Any, num_tokens: int) -> None:
    """Raise if a model's attention maps cannot be computed from the inputs of its layers.

    A short input is run once normally and once by :func:`read_layers`. Every layer must pass its
    attention inputs, and the logits must agree within rounding. No sliding window may be shorter
    than ``num_tokens``.
    """
    network = unwrapped(network)
    config = network.config.get_text_config()
    kind = _kind(network)
    if isinstance(network, DiffTransformerForCausalLM):
        hidden = [x for x in config.attention_by_layer if x.needs_maps or not x.attention_units]
        if hidden:
            raise ConfigError(
                f"analysis: {kind} must have attention maps A1 − λ A2 that act as they are, got "
                f"{hidden[0].control}."
            )
    for name in ("sliding_window", "attention_chunk_size"):
        _require_whole(kind, getattr(config, name, None), num_tokens)
    called: set[int] = set()
    ids = torch.arange(min(8, config.vocab_size), device=network.device)[None]
    expected = network(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    require_finite_logits(kind, expected, network)
    logits = read_layers(network, ids, lambda layer, inputs: called.add(layer))
    if len(called) != config.num_hidden_layers:
        raise ConfigError(
            f"analysis: every layer of {kind} must hand over its queries and keys, got "
            f"{len(called)} of {config.num_hidden_layers}."
        )
    must = f"analysis: attention of {kind} must be softmax(QK^T scale) V over all tokens before"
    require_same_logits(must, logits, expected, network)


def logit_rows(inputs: AttentionInputs, entries: int = BLOCK_ENTRIES) -> Iterator[LogitRows]:
    r"""Logits :math:`s\,q_i \cdot k_j` of one layer, as many rows at a time as ``entries`` allows.

    The largest tensor has at most ``max(entries, H * maps * T)`` numbers: at least one row of every
    head. Logits are computed in float32 (float64 for float64 queries).
    """
    num_tokens, num_heads, maps, _ = inputs.q.shape
    queries = at_least_float32(inputs.q) * inputs.scale
    keys = at_least_float32(inputs.k).repeat_interleave(num_heads // inputs.k.shape[1], dim=1)
    keys = keys.permute(1, 2, 3, 0)  # [H, maps or 1, D, T]
    places = torch.arange(num_tokens, device=queries.device)
    rows = max(1, entries // (num_heads * maps * num_tokens))
    for start in range(0, num_tokens, rows):
        stop = min(start + rows, num_tokens)
        logits = queries[start:stop].permute(1, 2, 0, 3) @ keys[..., :stop]
        visible = places[:stop] <= places[start:stop, None]
        yield LogitRows(start=start, logits=logits, visible=visible)


def _watch_attention(
    layer: int,
    on_attention: Callable[[int, AttentionInputs], None],
    operator: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *lam: Tensor,
) -> Tensor:
    one_map = q.ndim == 4
    given = AttentionInputs(
        q=q[0, :, :, None] if one_map else paired(q)[0],
        k=k[0, :, :, None] if k.ndim == 4 else k[0],
        v=v[0],
        lam=None if one_map else lam[0].expand(*q.shape[:2], num_heads_of(q))[0],
        scale=q.shape[-1] ** -0.5,
    )
    on_attention(layer, given)
    return operator(q, k, v, *lam)


class _Interface:
    """An attention function for transformers' interface that passes its inputs to a callback."""

    def __init__(self, network: Any, on_attention: Callable[[int, AttentionInputs], None]) -> None:
        self.kind = _kind(network)
        self.is_diffllama = network.config.model_type == "diffllama"
        self.on_attention = on_attention
        self.layers: dict[int, int] = {}
        self.half: Tensor | None = None

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Causal softmax attention of tensors ``[B, heads, T, D]``."""
        other = [name for name in OTHER_ATTENTION if options.get(name) is not None]
        if other or attention_mask is not None or not getattr(module, "is_causal", True):
            reason = ", ".join(other) or "a mask of its own"
            raise ConfigError(
                f"analysis: attention of {self.kind} must be plain causal softmax, got {reason}."
            )
        _require_whole(self.kind, options.get("sliding_window"), query.shape[2])
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        layer = self.layers.setdefault(id(module), len(self.layers))
        if not self.is_diffllama:
            q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
            given = AttentionInputs(q=q[:, :, None], k=k[:, :, None], v=v, lam=None, scale=scale)
            self.on_attention(layer, given)
        elif self.half is None:  # the first of two calls: the left halves of the values
            self.half = value
        else:  # heads i and i + H are the two maps of head i, which get the same values
            values, self.half = torch.cat([self.half, value], dim=-1)[0], None
            q, k = (torch.stack(x[0].chunk(2), dim=2).transpose(0, 1) for x in (query, key))
            v = values.chunk(2)[0].transpose(0, 1)
            lam = diffllama_lambda(module).expand(q.shape[:2])
            self.on_attention(layer, AttentionInputs(q=q, k=k, v=v, lam=lam, scale=scale))
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        return out.transpose(1, 2).contiguous(), None


def _blocks(network: Any) -> list[Any]:
    """The decoder blocks: the first module list with as many entries as there are layers."""
    number = network.config.get_text_config().num_hidden_layers
    for module in network.get_decoder().modules():  # not the blocks of an image encoder
        if isinstance(module, nn.ModuleList) and len(module) == number:
            return list(module)
    raise ConfigError(f"analysis: {_kind(network)} must have a list of {number} blocks, got none.")


def _require_whole(kind: str, window: int | None, num_tokens: int) -> None:
    if window is not None and window < num_tokens:
        raise ConfigError(
            f"analysis: {kind} must attend to all tokens before, got a sliding window of {window} "
            f"in a text of {num_tokens}."
        )


def _kind(network: Any) -> str:
    config = network.config
    return repr(getattr(config, "attention_type", None) or str(config.model_type))

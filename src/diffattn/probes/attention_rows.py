"""Attention maps of a few query rows over a long context, and their sums over spans of keys."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffattn.errors import ConfigError
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.probes.activations import diffllama_lambda
from diffattn.probes.passes import (
    require_finite_logits,
    require_finite_maps,
    require_one_row,
    unwrapped,
)

OTHER_ATTENTION = ("softcap", "s_aux", "sinks", "position_bias")
"""Options of attention that is not plain softmax(QK^T scale + mask) V."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRows:
    """Attention of some queries in one layer; ``H`` heads, ``T`` queries, ``S`` keys."""

    maps: Tensor
    """``[H, maps, T, S]``: the softmax map, or A1 and A2."""
    signed: Tensor
    """``[H, T, S]``: A1 − λ A2, whose rows sum to 1 − λ; the map itself for softmax attention."""


@torch.no_grad()
def attention_rows(network: Any, input_ids: Tensor, past_key_values: Any = None) -> list[LayerRows]:
    r"""The attention of the last tokens of a sequence, one entry per layer.

    .. math:: A = A_1 - \lambda A_2

    The caller first reads all earlier tokens into a cache. Then memory grows with rows times keys,
    not with the square of the length. Our models return both maps themselves. DiffLlama returns one
    softmax map per query head: the first half of its heads are A1, the second half A2, and λ is its
    layer's. Other models return their softmax map. A kernel that returns no maps is replaced by
    ``"eager"`` meanwhile.

    Source: arXiv:2410.05258v2, Eq. (1); transformers, ``modeling_diffllama.py``.

    Args:
        network: A Hugging Face causal language model, in evaluation mode.
        input_ids: int64 ``[1, T]``, the tokens that are queries.
        past_key_values: Cache of all earlier tokens; it is extended. Default: no earlier tokens.
    """
    require_one_row("attention_rows", input_ids)
    network = unwrapped(network)
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    returns_both_maps = isinstance(network, DiffTransformerForCausalLM)
    options: dict[str, Any] = {"output_attention_maps": True} if returns_both_maps else {}
    # With few rows even "eager", which returns maps, is cheap.
    has_maps = network.config._attn_implementation in ("diffattn", "eager")
    with nullcontext() if has_maps else attention_implementation(network, "eager"):
        output = network(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=past_key_values is not None,
            output_attentions=True,
            logits_to_keep=1,
            **options,
        )
    name = type(network).__name__
    _require_all_keys(name, output.attentions, (input_ids.shape[1], seen + input_ids.shape[1]))
    signed = [at_least_float32(x[0]) for x in output.attentions]
    if returns_both_maps:
        both = [at_least_float32(x[0]) for x in output.attention_maps]
        rows = [LayerRows(maps=x, signed=y) for x, y in zip(both, signed, strict=True)]
    elif network.config.model_type == "diffllama":
        rows = []
        for weights, layer in zip(signed, network.model.layers, strict=True):
            maps = torch.stack(weights.chunk(2), dim=1)  # [H, 2, T, S]
            lam = diffllama_lambda(layer.self_attn)
            rows.append(LayerRows(maps=maps, signed=maps[:, 0] - lam * maps[:, 1]))
    else:
        rows = [LayerRows(maps=x[:, None], signed=x) for x in signed]
    for layer in rows:  # a NaN in λ shows in the signed map only
        require_finite_maps(name, layer.maps, network)
        require_finite_maps(name, layer.signed, network)
    require_finite_logits(name, output.logits, network)
    return rows


def _require_all_keys(name: str, attentions: Any, shape: tuple[int, int]) -> None:
    if not attentions or any(x is None for x in attentions):
        raise ConfigError(f"attention_rows: {name} must return attention maps, got none.")
    for x in attentions:
        if x.shape[-2:] != shape:
            raise ConfigError(
                f"attention_rows: maps of {name} must be {list(shape)} (queries, keys), "
                f"got {list(x.shape[-2:])}. Sliding windows are not supported."
            )


@contextmanager
def attention_implementation(network: Any, name: str) -> Iterator[None]:
    """A context in which a model runs with another attention implementation, like ``"eager"``."""
    before = network.config._attn_implementation
    try:
        network.set_attn_implementation(name)
    except (ValueError, ImportError) as error:
        kind = type(network).__name__
        raise ConfigError(f"{kind}: attention {name!r} cannot be used: {error}.") from error
    try:
        yield
    finally:
        network.set_attn_implementation(before)


@contextmanager
def registered_attention(
    network: Any, name: str, attention: Callable[..., Any], mask: Callable[..., Any]
) -> Iterator[None]:
    """A context in which a model runs with another attention function, called ``name``.

    ``attention`` has the signature of transformers' interface, and ``mask`` makes its masks. Masks
    stay registered, so ``mask`` should hold no data.
    """
    # Set as an item, which can be deleted: ``register`` cannot be undone, and the function with
    # all data that it holds would stay in memory. For masks ``register`` is the only way.
    ALL_ATTENTION_FUNCTIONS[name] = attention
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask)
    try:
        with attention_implementation(network, name):
            yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]


def segment_sums(
    layers: Sequence[LayerRows], spans: Sequence[tuple[int, int]]
) -> dict[str, Tensor]:
    r"""Sums over spans of keys of the last query's attention.

    .. math:: S_k(l, h) = \sum_{j \in k} w(a_j),\quad a = A_1 - \lambda A_2

    Source: arXiv:2410.05258v2, Figure 1 and Table 3.

    Args:
        layers: Result of :func:`attention_rows`.
        spans: First key of each span and the key after its last; spans may overlap.

    Returns:
        float64 ``[layers, H, spans]`` on the CPU per kind of weight w: ``"signed"`` a,
        ``"clipped"`` max(a, 0), ``"absolute"`` abs(a), ``"map_1"`` and, for differential models,
        ``"map_2"``: the softmax maps themselves.
    """
    sums_of: dict[str, list[Tensor]] = {}
    for layer in layers:
        signed = layer.signed[:, -1].double()  # [H, S]
        weights = {"signed": signed, "clipped": signed.clamp(min=0), "absolute": signed.abs()}
        for i, softmax_map in enumerate(layer.maps[:, :, -1].double().unbind(1)):
            weights[f"map_{i + 1}"] = softmax_map
        for name, weight in weights.items():
            sums = torch.stack([weight[:, a:b].sum(-1) for a, b in spans], dim=-1)
            sums_of.setdefault(name, []).append(sums.cpu())
    return {name: torch.stack(sums) for name, sums in sums_of.items()}


def segment_shares(sums: Tensor, whole: int) -> dict[str, list[float]]:
    """One share per span over all layers and heads, in two normalisations.

    Source: arXiv:2410.05258v2, Figure 1 (whose five segments sum to 1).

    Args:
        sums: ``[layers, H, spans]``.
        whole: Number of leading spans that together cover each key once; their shares sum to 1.

    Returns:
        ``"global"``: the mean over layers and heads, divided by its sum over the leading spans.
        ``"row"``: each layer and head divided by its sum over the leading spans, then the mean.
    """
    mean, totals = sums.mean((0, 1)), sums[..., :whole].sum(-1, keepdim=True)
    total = mean[:whole].sum()
    if not total or not totals.all():  # for example where λ is exactly 1
        raise ConfigError("segment_shares: attention must not sum to 0, got a row or mean of 0.")
    return {"global": (mean / total).tolist(), "row": (sums / totals).mean((0, 1)).tolist()}

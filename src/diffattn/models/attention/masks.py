"""Hugging Face's masks and positions as options of our operator."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_causal_mask

from diffattn.errors import ConfigError

_BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Arguments of flash kernels that they read in place of positions where all are given."""


class KeyMask(NamedTuple):
    """Masking options of the operator for one forward pass of the model."""

    key_padding_mask: Tensor | None = None
    kv_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None
    """Borders of the documents of all rows, laid end to end if there are several."""
    scores: Tensor | None = None
    """``[B or 1, 1, T, S]``: True where a key is seen, or numbers to add to the scores. It includes
    causality; the operator has no such option."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of the operator."""
        options = self._asdict()
        del options["scores"]
        return options


def key_mask(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
    cu_seqlens: Tensor | None = None,
) -> KeyMask:
    """Translate Hugging Face's mask, cache and positions into options of the operator.

    Args:
        attention_mask: ``[B, keys]``, non-zero where a token is real; ``[B or 1, 1, T, keys]``,
            bool or to be added to the scores; or ``None``.
        position_ids: ``[B or 1, T]`` of the caller; restarts mark documents of packed rows.
        past_key_values: Cache before this pass, or ``None``.
        inputs_embeds: ``[B, T, hidden_size]``.
        cu_seqlens: int32 ``[num_docs + 1]`` of a packed row, or ``None``.

    Raises:
        ConfigError: A mask of another shape or dtype, or ``cu_seqlens`` for several rows.
    """
    batch, num_queries = inputs_embeds.shape[:2]
    num_keys, kv_lengths = num_queries, None
    if past_key_values is not None:
        num_keys, _ = past_key_values.get_mask_sizes(num_queries, 0)
        seen = past_key_values.get_seq_length()
        if past_key_values.is_compileable:  # preallocated: the tail is not written yet
            seen = torch.as_tensor(seen, device=inputs_embeds.device, dtype=torch.int32)
            kv_lengths = (seen + num_queries).expand(batch)
    if cu_seqlens is not None and batch != 1:
        raise ConfigError(
            "DiffTransformer: cu_seq_lens_q describes one packed row, so it needs B = 1, got "
            f"B = {batch}. Mark documents by position_ids that restart."
        )
    if attention_mask is None:
        if cu_seqlens is None and past_key_values is None and position_ids is not None:
            cu_seqlens = _document_borders(position_ids, batch)
        return KeyMask(kv_lengths=kv_lengths, cu_seqlens=cu_seqlens)
    if attention_mask.ndim == 4:
        _check_score_mask(attention_mask, batch, num_queries, num_keys)
        return KeyMask(scores=attention_mask.to(inputs_embeds.device))
    if attention_mask.ndim != 2:
        raise ConfigError(
            "DiffTransformer: attention_mask must be [B, keys] or [B, 1, T, keys], "
            f"got {list(attention_mask.shape)}."
        )
    missing = num_keys - attention_mask.shape[1]
    if missing < 0 or (missing and kv_lengths is None):
        raise ConfigError(
            f"DiffTransformer: attention_mask must cover all {num_keys} keys, cached and new, "
            f"got {attention_mask.shape[1]}."
        )
    # Worth a look once a pass, where the mask lies: without padding flash kernels run, which take
    # no mask, and no layer copies keys and values. On a GPU the look waits for the device, as that
    # of transformers' own masks does; a mask on the host, or none, costs nothing.
    if _may_look(attention_mask) and bool(attention_mask.all()):
        return KeyMask(kv_lengths=kv_lengths, cu_seqlens=cu_seqlens)
    padding = attention_mask.to(inputs_embeds.device, torch.bool)
    padding = nn.functional.pad(padding, (0, missing), value=True)  # kv_lengths hides the tail
    return KeyMask(padding, kv_lengths, cu_seqlens)


def kernel_mask(
    config: PreTrainedConfig,
    attention_mask: Tensor | None,
    position_ids: Tensor,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
    kwargs: Mapping[str, Any],
) -> Any:
    """The mask that Hugging Face makes for its kernel, which may be ``None`` or no tensor.

    Flash kernels get none that tells documents apart. Unless they are given all borders, they read
    restarts off ``position_ids`` instead, but transformers does so for one row alone and would mix
    the documents of several; and a document begins for it wherever the least position stands.
    Arguments are as for :func:`key_mask`; ``kwargs`` may hold the borders.

    Raises:
        ConfigError: Several packed rows for a kernel without a mask, or a row whose documents begin
            at other than the least position. Compiled code cannot look.
    """
    mask = create_causal_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        position_ids=position_ids,
    )
    if mask is None and attention_mask is None and past_key_values is None:
        _check_restarts(config._attn_implementation, position_ids, inputs_embeds.shape[0], kwargs)
    return mask


def padded_to_cache(attention_mask: Tensor | None, cache: Cache | None) -> Tensor | None:
    """A mask ``[B, keys]`` that does not grow in a preallocated cache: ``[B, its length]``.

    A compiled step would be compiled anew for every length.
    """
    if attention_mask is None or cache is None or not cache.is_compileable:
        return attention_mask
    length, _ = cache.get_mask_sizes(1, 0)
    missing = length - attention_mask.shape[1]
    return nn.functional.pad(attention_mask, (0, missing), value=1)


def positions(
    inputs_embeds: Tensor, past_key_values: Cache | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Positions of new tokens, int64 ``[1, T]``, from the cache's length or each document's start.

    ``cu_seqlens`` is int32 ``[num_docs + 1]`` of a packed row, or ``None``.
    """
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    index = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)
    if cu_seqlens is not None:
        borders = cu_seqlens.to(index)
        index = index - borders[torch.bucketize(index, borders[1:], right=True)]
    return (index + seen).unsqueeze(0)


def _may_look(x: Tensor) -> bool:
    """Whether the values of a tensor can be seen: not in a graph that is being made."""
    if torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _check_score_mask(mask: Tensor, batch: int, num_queries: int, num_keys: int) -> None:
    right = mask.shape[0] in (1, batch) and mask.shape[1:] == (1, num_queries, num_keys)
    if not right or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ConfigError(
            "DiffTransformer: an attention_mask of four axes must be bool or floating "
            f"[{batch} or 1, 1, {num_queries}, {num_keys}], got {mask.dtype} {list(mask.shape)}."
        )


def _check_restarts(
    implementation: str, position_ids: Tensor, batch: int, kwargs: Mapping[str, Any]
) -> None:
    """Refuse documents that a kernel without a mask would not keep apart."""
    if not _may_look(position_ids) or not bool((restarts := _restarts(position_ids)).any()):
        return
    if batch > 1:
        raise ConfigError(
            f"DiffTransformer: attn_implementation {implementation!r} keeps packed documents apart "
            f"in one row alone, so it needs B = 1, got B = {batch}. Lay the rows end to end, or "
            "use 'diffattn'."
        )
    # Engines with a cache of their own know their sequences: by borders, or without such masks.
    knows_borders = all(kwargs.get(name) is not None for name in _BORDERS)
    if knows_borders or implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        return
    starts = position_ids[0, nn.functional.pad(restarts[0], (1, 0), value=True)]
    least, most = (int(x) for x in starts.aminmax())
    if least != most:
        raise ConfigError(
            f"DiffTransformer: attn_implementation {implementation!r} tells packed documents apart "
            f"by the least of all position_ids, so each must begin there, got {least} and {most}. "
            "Count each from 0, or use 'diffattn'."
        )


def _restarts(position_ids: Tensor) -> Tensor:
    """bool ``[B, T - 1]``: where a token does not follow the one before it."""
    return position_ids[:, 1:] - position_ids[:, :-1] != 1


def _document_borders(position_ids: Tensor, batch: int) -> Tensor | None:
    """Borders of the documents of all rows, or ``None`` if no position is seen to restart."""
    starts = _restarts(position_ids)
    may_look = _may_look(starts)  # waits for the device once a pass
    if may_look and not starts.any():
        return None
    starts = nn.functional.pad(starts, (1, 1), value=True)[:, :-1].expand(batch, -1).flatten()
    if may_look:
        borders = starts.nonzero().flatten()
    else:  # a border per token: those that start nothing are empty documents at the end
        index = torch.arange(starts.numel(), device=starts.device)
        borders = index.masked_fill(~starts, starts.numel()).sort().values
    return nn.functional.pad(borders, (0, 1), value=starts.numel()).to(torch.int32)

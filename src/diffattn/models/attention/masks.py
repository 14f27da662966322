"""Translate Hugging Face's masks and positions into options of our operator."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

from diffattn.errors import ConfigError, short


class KeyMask(NamedTuple):
    """Masking options of the operator for one forward pass of the model, and ``scores``."""

    key_padding_mask: Tensor | None = None
    kv_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None
    """Borders of the documents, int32 ``[num_docs + 1]``; the rows of a batch are concatenated."""
    scores: Tensor | None = None
    """``[B or 1, 1, T, S]``: True where a key is seen, or numbers to add to the scores. It hides
    future keys itself. The operator has no such option."""


def key_mask(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
    cu_seqlens: Tensor | None = None,
) -> KeyMask:
    """Translate Hugging Face's mask, cache and positions into options of the operator.

    Arguments are those of the model's ``forward``. Documents that begin where ``position_ids``
    restart at 0 are kept apart only without a mask, cache and ``cu_seqlens``.
    """
    batch, num_queries = inputs_embeds.shape[:2]
    num_keys, kv_lengths = num_queries, None
    if past_key_values is not None:
        num_keys, _ = past_key_values.get_mask_sizes(num_queries, 0)
        seen = past_key_values.get_seq_length()
        if past_key_values.is_compileable:  # preallocated: its end is not written yet
            seen = torch.as_tensor(seen, device=inputs_embeds.device, dtype=torch.int32)
            kv_lengths = (seen + num_queries).expand(batch)
    if cu_seqlens is not None and batch != 1:
        raise ConfigError(
            "DiffTransformer: cu_seq_lens_q describes one packed row, so it needs B = 1, got "
            f"B = {batch}. Mark documents by position_ids that restart."
        )
    if attention_mask is None:
        if cu_seqlens is None and past_key_values is None and position_ids is not None:
            cu_seqlens = _borders(_starts(position_ids), batch)
        return KeyMask(kv_lengths=kv_lengths, cu_seqlens=cu_seqlens)
    if attention_mask.ndim == 4:
        shape, dtype = list(attention_mask.shape), attention_mask.dtype
        fits = shape[0] in (1, batch) and shape[1:] == [1, num_queries, num_keys]
        if not fits or not (dtype == torch.bool or dtype.is_floating_point):
            raise ConfigError(
                "DiffTransformer: an attention_mask of four axes must be bool or floating "
                f"[{batch} or 1, 1, {num_queries}, {num_keys}], got {dtype} {shape}."
            )
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
    padding, starts = _read(attention_mask, past_key_values)
    if starts is not None and cu_seqlens is None:
        cu_seqlens = _borders(starts.to(inputs_embeds.device), batch)
    if padding is not None:  # kv_lengths hides the unwritten end of a preallocated cache
        padding = nn.functional.pad(padding.to(inputs_embeds.device), (0, missing), value=True)
    return KeyMask(padding, kv_lengths, cu_seqlens)


def _read(mask: Tensor, past_key_values: Cache | None) -> tuple[Tensor | None, Tensor | None]:
    """Read a mask ``[B, keys]``: which keys are real (bool; ``None`` if all are known to be), and
    where documents begin (bool ``[B, T]``; ``None`` if the mask numbers no documents)."""
    if not _can_read(mask):
        if past_key_values is None and not torch.compiler.is_exporting():
            must = "DiffTransformer: in compiled code an attention_mask must be 0 or 1."
            torch._assert_async((mask <= 1).all(), must)
        return mask.bool(), None
    # Reading the mask once per pass pays: without padding flash kernels can run, and no layer
    # copies keys and values. On a GPU reading waits for the device, as in transformers' own masks.
    # A mask on the host, or no mask, costs nothing.
    least, most = _extremes(mask)
    if not {least, most} <= {0, 1}:
        return None, _numbered(mask, past_key_values)
    return (None if least == 1 else mask.bool()), None


def kernel_mask(
    config: PreTrainedConfig,
    attention_mask: Tensor | None,
    position_ids: Tensor,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
) -> tuple[Any, Tensor]:
    """The mask that Hugging Face makes for its kernel, and positions int64 ``[B or 1, T]``.

    The mask may be ``None`` or not a tensor. Masks for flash kernels do not separate documents:
    without given borders, transformers reads borders off the positions, for one row only. It takes
    every jump and repetition as a border. So the returned positions are counted from the cache's
    length or each document's start. They are not used for rotation.
    """
    given, starts = attention_mask, _starts(position_ids)
    on_cpu = given is not None and given.ndim == 2 and given.device.type == "cpu"
    if given is not None and on_cpu and _can_read(given) and not set(_extremes(given)) <= {0, 1}:
        starts, attention_mask = _numbered(given, past_key_values).to(starts.device), None
    index = torch.arange(starts.shape[1], device=starts.device)[None]
    if past_key_values is None:
        index = index - index.where(starts, 0).cummax(-1).values
    else:
        index = index + past_key_values.get_seq_length()
    mask = create_causal_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        position_ids=index,
    )
    rows = inputs_embeds.shape[0]
    alone = mask is None and attention_mask is None and past_key_values is None and rows > 1
    if alone and _can_read(index) and bool((index.diff() != 1).any()):
        raise ConfigError(
            f"DiffTransformer: attn_implementation {config._attn_implementation!r} keeps packed "
            f"documents apart in one row alone, so it needs B = 1, got B = {rows}. Lay the rows "
            "end to end, or use 'diffattn'."
        )
    return mask, index


def positions(
    inputs_embeds: Tensor, past_key_values: Cache | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Positions of new tokens, int64 ``[1, T]``, counted from the cache's length, and from 0 in
    each document of a packed row."""
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    index = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)
    if cu_seqlens is not None:
        borders = cu_seqlens.to(index)
        index = index - borders[torch.bucketize(index, borders[1:], right=True)]
    return (index + seen).unsqueeze(0)


def _can_read(x: Tensor) -> bool:
    """Whether values can be read: not while code is compiled or a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _extremes(attention_mask: Tensor) -> tuple[float, float]:
    """Smallest and largest number of a mask; 1 and 1 if it is empty."""
    if attention_mask.numel() == 0:
        return 1, 1
    least, most = torch.stack(attention_mask.aminmax()).tolist()
    return least, most


def _numbered(attention_mask: Tensor, past_key_values: Cache | None) -> Tensor:
    """bool ``[B, T]``: where a document begins in a mask of numbers; padding, 0, counts as one."""
    whole = (attention_mask >= 0).all() and (attention_mask % 1 == 0).all()
    if past_key_values is not None or not whole:
        least, most = _extremes(attention_mask)
        raise ConfigError(
            "DiffTransformer: an attention_mask of two axes must be 0 and 1, or number documents "
            f"from 1 without a cache, got {least:g} to {most:g}."
        )
    starts = nn.functional.pad(attention_mask.diff() != 0, (1, 0), value=True)
    for row, begins in zip(attention_mask, starts, strict=True):
        numbers = row[begins & (row != 0)]
        if len(numbers.unique()) < len(numbers):
            raise ConfigError(
                "DiffTransformer: an attention_mask that numbers documents must hold each in one "
                f"piece, got the numbers {short(numbers.tolist())}."
            )
    return starts


def _starts(position_ids: Tensor) -> Tensor:
    """bool ``[B or 1, T]``, True where a document begins: at the first token or at position 0.

    A 0 right after a 0 begins another document only if all positions of the row count up by 1 or
    restart at 0. In rows whose positions jump or repeat, it counts as a repetition.
    """
    before, after = position_ids[:, :-1], position_ids[:, 1:]
    again, follows = after == 0, after - before == 1
    counts = (again | follows).all(-1, keepdim=True) & follows.any(-1, keepdim=True)
    return nn.functional.pad(again & ((before != 0) | counts), (1, 0), value=True)


def _borders(starts: Tensor, batch: int) -> Tensor | None:
    """Borders of the documents of all rows, or ``None`` if each row is known to be one document."""
    can_read = _can_read(starts)  # reading waits for the device, once per pass
    if can_read and not starts[:, 1:].any():
        return None
    starts = starts.expand(batch, -1).flatten()
    if can_read:
        borders = starts.nonzero().flatten()
    else:  # one border per token; those that begin no document become empty documents at the end
        index = torch.arange(starts.numel(), device=starts.device)
        borders = index.masked_fill(~starts, starts.numel()).sort().values
    return nn.functional.pad(borders, (0, 1), value=starts.numel()).to(torch.int32)

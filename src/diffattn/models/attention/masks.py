"""Check the inputs of a forward pass; translate masks and positions into our operator's options.

Shapes are always checked, values only in eager code on a CPU.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

from diffattn.errors import ConfigError, ShapeError
from diffattn.models.chunked_loss import IGNORED


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
    """Options of the operator from arguments of the model's ``forward``.

    Documents that begin where ``position_ids`` restart at 0 are kept apart only without a mask,
    cache and ``cu_seqlens``.
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
    if _all_real(attention_mask, past_key_values):
        return KeyMask(None, kv_lengths, cu_seqlens)
    # kv_lengths hides the unwritten end of a preallocated cache
    real = attention_mask.bool().to(inputs_embeds.device)
    return KeyMask(nn.functional.pad(real, (0, missing), value=True), kv_lengths, cu_seqlens)


def _all_real(mask: Tensor, past_key_values: Cache | None) -> bool:
    """Whether a mask ``[B, keys]``, which must be 0 and 1, is known to be 1 everywhere."""
    must = "DiffTransformer: an attention_mask of two axes must be 0 and 1"
    if not _can_read(mask):
        if past_key_values is None and not torch.compiler.is_exporting():
            torch._assert_async((mask <= 1).all(), f"{must} in compiled code.")
        return False
    # Reading the mask once per pass pays: without padding flash kernels can run, and no layer
    # copies keys and values. On a GPU reading waits for the device, as in transformers' own masks.
    # A mask on the host, or no mask, costs nothing.
    least, most = torch.stack(mask.aminmax()).tolist() if mask.numel() else (1, 1)
    if not {least, most} <= {0, 1}:
        raise ConfigError(
            f"{must}, got {least:g} to {most:g}. Mark documents by position_ids that restart."
        )
    return least == 1


def kernel_mask(
    config: PreTrainedConfig,
    attention_mask: Tensor | None,
    position_ids: Tensor,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
) -> tuple[Any, Tensor]:
    """The mask that Hugging Face makes for its kernel, and positions int64 ``[B or 1, T]``.

    Masks for flash kernels do not separate documents: transformers reads borders off the positions,
    for one row only. It takes every jump and repetition as a border. So the returned positions are
    counted from the cache's length or each document's start. They are not used for rotation.
    """
    starts = _starts(position_ids)
    on_host = attention_mask is not None and attention_mask.device.type == "cpu"
    if attention_mask is not None and on_host and attention_mask.ndim == 2 and _can_read(starts):
        _all_real(attention_mask, past_key_values)
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


def checked_ids(name: str, ids: Tensor | None, *, below: int, ignored: bool = False) -> Any:
    """Token ids ``[B, T]`` in [0, ``below``), or ``ignored`` ones, as int64; ``None`` stays."""
    if ids is None:
        return None
    if ids.ndim != 2 or not _is_integer(ids):
        refuse(name, "an integer tensor [B, T]", ids)
    ids = ids.long()
    _check_range(name, ids, below, IGNORED if ignored else None)
    return ids


def checked_positions(positions: Tensor | None, batch: int, num_tokens: int) -> Tensor | None:
    """Positions ``[batch or 1, num_tokens]`` as int64; on the CPU negative ones are refused."""
    if positions is None:
        return None
    fits = positions.ndim == 2 and positions.shape[1] == num_tokens
    if not fits or positions.shape[0] not in (1, batch) or not _is_integer(positions):
        refuse("position_ids", f"an integer tensor [{batch} or 1, {num_tokens}]", positions)
    positions = positions.long()
    _check_range("position_ids", positions, None)
    return positions


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _check_range(name: str, x: Tensor, below: int | None, besides: int | None = None) -> None:
    """Check the values where reading them waits for no device and breaks no compiled graph."""
    if type(x) is not Tensor or x.device.type != "cpu":  # fake tensors have no values
        return
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    try:
        values = x if besides is None else x[x != besides]
        least, most = (int(y) for y in values.aminmax()) if values.numel() else (0, 0)
    except RuntimeError:  # under vmap, where an ordinary-looking tensor has no values
        return
    if least < 0 or (below is not None and most >= below):
        span = "0 or more" if below is None else f"from 0 to {below - 1}"
        got = least if least < 0 else most
        raise ShapeError(f"DiffTransformer: {name} must be {span}, got {got}.")


def refuse(name: str, must: str, x: Tensor) -> None:
    """Raise the error for a tensor of a wrong shape or dtype."""
    got = f"{list(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
    raise ShapeError(f"DiffTransformer: {name} must be {must}, got {got}.")

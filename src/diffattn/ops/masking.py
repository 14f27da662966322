"""Which keys and heads a query may see: one definition for every attention function."""

import torch
from torch import Tensor


def visible_keys(
    num_queries: int,
    num_keys: int,
    *,
    device: torch.device,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor | None:
    """Boolean mask, True where query i may see key j; ``None`` if every query sees every key.

    With L the row's key length (``kv_lengths``, else ``num_keys``) query i stands at position
    ``i + L - T``, so that the last query is the last key (bottom-right alignment).

    Source: the project's definition of the options of ``diff_attention``.

    Args:
        num_queries: T.
        num_keys: S.
        device: Where the mask is made.
        causal: Hide keys after the query's position.
        window: Keep only the last ``window`` keys up to the query's position, in tokens.
        key_padding_mask: bool ``[B, S]``, True where a key is real.
        kv_lengths: int32 ``[B]``, L.
        cu_seqlens: int32 ``[num_docs + 1]``, document borders in a packed row; needs T = S.
        rows: int64 ``[R]``, the queries asked for. Default: all T.

    Returns:
        bool ``[B or 1, T or R, S]``, or ``None``; the query axis is 1 if all queries see the same.
    """
    keys = torch.arange(num_keys, device=device)  # [S]
    queries = torch.arange(num_queries, device=device) if rows is None else rows.to(device)
    conditions = []
    length: int | Tensor = num_keys
    if kv_lengths is not None:
        length = kv_lengths.to(device)[:, None, None]  # [B, 1, 1]
        conditions.append(keys < length)
    if causal or window is not None:
        distance = queries[:, None] + (length - num_queries) - keys  # [B or none, T, S]
        # One query at the end of the keys sees all of them: no mask keeps decoding fast.
        if kv_lengths is not None or num_queries > 1:
            conditions.append(distance >= 0)
        if window is not None:
            conditions.append(distance < window)
    if key_padding_mask is not None:
        conditions.append(key_padding_mask[:, None, :])
    if cu_seqlens is not None:
        document = torch.bucketize(keys, cu_seqlens.to(keys.dtype)[1:], right=True)  # [S]
        conditions.append(document[queries][:, None] == document)
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = mask & condition
    return mask if mask.ndim == 3 else mask[None]


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over keys in at least float32; a query that sees no key gets a row of zeros."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if visible is None:
        return logits.softmax(-1, dtype=dtype)
    sees_none = ~visible.any(-1, keepdim=True)
    # A row of -inf alone gives NaN on the way forth and back, which anomaly detection reports:
    # let such a row see all keys, then clear it.
    logits = logits.masked_fill(~(visible | sees_none), -torch.inf)
    return logits.softmax(-1, dtype=dtype).masked_fill(sees_none, 0.0)


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[B, S, Hkv, ...]`` to ``[B, S, H, ...]``: query head i meets head ``i // (H // Hkv)``."""
    group = num_heads // x.shape[2]
    return x if group == 1 else x.repeat_interleave(group, dim=2)

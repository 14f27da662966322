"""Limits of a forward pass, by the memory that is left."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from diffattn.models.memory import available_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PassLimits:
    """Limits of one forward pass: memory stays flat however much is asked."""

    chunk_tokens: int = 2_048
    """Tokens of one row: longer ones run in chunks."""
    chunk_logits: int = 2**26
    """Logits of a chunk, of branches, or of windows that run together."""
    batch_tokens: int = 16_384
    """Tokens of rows that run together, padding included."""
    batch_logits: int = 2**27
    """Logits of rows that run together and keep them all."""
    cache_bytes: int = 512 * 1024 * 1024
    """Keys and values of one batch; a prefix counts once per row, since attention reads it so."""
    copied_tokens: int = 8_192
    """Rows times tokens of their prefix from which on copies of it cost more than a mask."""


STANDARD_LIMITS = PassLimits()
_SHARE_OF_FREE = 4
"""A quarter of the memory that is left: attention and logits need theirs."""
_LEAST_BYTES = 2**24
_MOST_STEPS = 8
"""Rows of 128 keep a GPU busy; beyond, a pass only grows longer."""


def limits_on(device: torch.device) -> PassLimits:
    """Limits for a device with the model on it: more on a GPU with free memory, less with little.

    Sizes go by powers of two, so that a little more or less memory in use changes no batch, and so
    no rounding; a CPU gains nothing from larger batches and keeps the standard ones.
    """
    standard = STANDARD_LIMITS
    if device.type not in ("cuda", "cpu"):
        return standard
    free = available_bytes() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])
    if free is None:
        return standard
    share = max(_LEAST_BYTES, free // _SHARE_OF_FREE)
    most = standard.cache_bytes * (_MOST_STEPS if device.type == "cuda" else 1)
    allowed = min(most, 1 << (share.bit_length() - 1))  # the power of two below the share
    factor = allowed / standard.cache_bytes
    return PassLimits(
        cache_bytes=allowed,
        batch_tokens=int(standard.batch_tokens * max(1.0, factor)),
        batch_logits=int(standard.batch_logits * min(1.0, factor)),
        chunk_logits=int(standard.chunk_logits * min(1.0, factor)),
    )


def batches(order: Iterable[int], fit: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Positions in order, as many together as ``fit``, and one at least."""
    batch: list[int] = []
    for i in order:
        if batch and not fit([*batch, i]):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch

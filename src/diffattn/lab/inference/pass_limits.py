"""Limits of a forward pass, chosen by the free memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from diffattn.models.memory import available_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PassLimits:
    """Limits of one forward pass. They bound memory, however long or many the texts are."""

    chunk_tokens: int = 2_048
    """Most tokens of one row in a pass; longer rows run in chunks."""
    chunk_logits: int = 2**26
    """Most logits of a chunk, of the branches of a tree, or of sliding windows in one pass."""
    batch_tokens: int = 16_384
    """Most tokens of rows in one pass, padding included."""
    batch_logits: int = 2**27
    """Most logits of rows in one pass if the logits of all tokens are kept."""
    cache_bytes: int = 512 * 1024 * 1024
    """Most bytes of keys and values in one pass. A prefix counts once per row that reads it."""
    copied_tokens: int = 8_192
    """From this number of copied prefix tokens (rows x prefix) on, one masked tree is cheaper."""


STANDARD_LIMITS = PassLimits()


def limits_on(device: torch.device) -> PassLimits:
    """Limits for a device that already holds the model, by its free memory.

    A GPU with much free memory gets larger limits; with little, every device gets smaller ones.
    Sizes are powers of two, so that small changes of free memory change no batch and no rounding.
    """
    standard = STANDARD_LIMITS
    if device.type not in ("cuda", "cpu"):
        return standard
    free = available_bytes() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])
    if free is None:
        return standard
    share = max(2**24, free // 4)  # attention and logits need the rest
    # 128 rows keep a GPU busy; more gain nothing.
    most = standard.cache_bytes * (8 if device.type == "cuda" else 1)
    allowed = min(most, 1 << (share.bit_length() - 1))  # the power of two below the share
    factor = allowed / standard.cache_bytes
    return PassLimits(
        cache_bytes=allowed,
        batch_tokens=int(standard.batch_tokens * max(1.0, factor)),
        batch_logits=int(standard.batch_logits * min(1.0, factor)),
        chunk_logits=int(standard.chunk_logits * min(1.0, factor)),
    )


def batches(order: Iterable[int], fit: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Batches of the indices in ``order``, each as long as ``fit`` allows, at least one index."""
    batch: list[int] = []
    for i in order:
        if batch and not fit([*batch, i]):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch

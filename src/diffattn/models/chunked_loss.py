"""Cross-entropy of a language-model head whose logits are never whole in memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORED = -100
"""The label that counts in no loss, as in torch and everywhere in Hugging Face."""


def chunked_token_losses(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, chunk_tokens: int
) -> Tensor:
    r"""The loss of every token, :math:`-\log \mathrm{softmax}(\mathrm{head}(h_t))_{y_t}`.

    The logits of one chunk exist at a time; the backward pass computes them again. That costs one
    more product with the head. torch's own ``linear_cross_entropy`` saves that product, but gives
    a bfloat16 loss for bfloat16 inputs and is not in torch 2.11.

    Args:
        hidden: ``[N, hidden_size]``, what the head reads.
        head: From ``[n, hidden_size]`` to logits ``[n, vocab_size]``.
        targets: int64 ``[N]``; :data:`IGNORED` where there is no loss.
        chunk_tokens: Most tokens of a chunk.

    Returns:
        ``[N]`` in nats, 0 for ignored tokens; float32, or float64 for float64 logits.
    """

    def losses(part: Tensor, labels: Tensor) -> Tensor:
        logits = head(part)
        if logits.dtype != torch.float64:
            logits = logits.float()
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")

    parts = zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    return torch.cat([checkpoint(losses, *part, use_reentrant=False) for part in parts])


def next_token_losses(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    labels: Tensor,
    chunk_tokens: int,
    shift_labels: Tensor | None = None,
) -> Tensor:
    """Losses ``[B, T]`` of each token's successor; see :func:`chunked_token_losses`.

    They are 0 before an ignored label, and at the last position of ``labels``.

    Args:
        hidden: ``[B, T, hidden_size]``.
        head: Makes logits.
        labels: int64 ``[B, T]``, unshifted.
        chunk_tokens: Most tokens of a chunk.
        shift_labels: int64 ``[B, T]``, each token's successor, in place of ``labels``, whose parts
            lack the successor of their last token.
    """
    following = shift_labels
    if following is None:
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    following = following.to(hidden.device)
    losses = chunked_token_losses(hidden.flatten(0, 1), head, following.flatten(), chunk_tokens)
    return losses.view_as(following)

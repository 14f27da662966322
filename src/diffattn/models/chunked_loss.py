"""Cross-entropy of a language-model head, computed in chunks of tokens to save memory."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from diffattn.errors import BackendError
from diffattn.ops.inputs.masking import at_least_float32, in_own_dtype
from diffattn.ops.inputs.operators import is_plain

IGNORED = -100
"""The label of tokens without a loss, as in torch and Hugging Face."""
MOST_LOGITS = 2**29
"""Default number of logits in a chunk on a GPU, about 3 GB. Each chunk adds one rounding to the
head's gradient, so chunks are large."""


def chunked_token_losses(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, chunk_tokens: int
) -> Tensor:
    r"""The loss of every token, :math:`-\log \mathrm{softmax}(\mathrm{head}(h_t))_{y_t}`.

    Only one chunk's logits are in memory. The backward pass computes them again. Inputs are
    ``[N, hidden_size]``, targets and losses ``[N]``. Losses are in nats, 0 for targets
    :data:`IGNORED`, in float32, or float64 for float64 logits.
    """

    def losses(part: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_float32(head(part))
        return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")

    parts = zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    return torch.cat([checkpoint(losses, *part, use_reentrant=False) for part in parts])


def mean_loss(
    hidden: Tensor,
    head: nn.Module,
    labels: Tensor,
    chunk_tokens: int | None,
    num_items_in_batch: Tensor | int | None = None,
    shift_labels: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """The mean loss as transformers defines it, and the loss at each position ``[B, T]``, in nats.

    The loss at a position is that of predicting the next token. It is detached, and 0 where the
    next label is ignored and, without ``shift_labels`` (the next tokens, used instead of
    ``labels``), at the last position. ``chunk_tokens`` is ``None`` for a head that
    :func:`takes_gradients_at_once`: then a chunk has at most :data:`MOST_LOGITS` logits.
    ``num_items_in_batch`` divides the sum of losses; by default it is the number of counted labels.
    """
    if shift_labels is None:
        shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    following = shift_labels.to(hidden.device)
    if num_items_in_batch is None:
        num_items_in_batch = (following != IGNORED).sum()
    if isinstance(num_items_in_batch, Tensor):  # with layers on several devices, that of the labels
        num_items_in_batch = num_items_in_batch.to(hidden.device)
    if chunk_tokens is not None:
        flat_losses = chunked_token_losses(
            hidden.flatten(0, 1), head, following.flatten(), chunk_tokens
        )
        losses = flat_losses.view_as(following)
        return losses.sum() / num_items_in_batch, losses.detach()
    weight, kind = cast(Tensor, head.weight), hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden, weight = (x.to(torch.get_autocast_dtype(kind)) for x in (hidden, weight))
    chunk_tokens = max(1, MOST_LOGITS // len(weight))
    flat = hidden.flatten(0, 1), weight, following.flatten()
    with in_own_dtype(hidden.device):
        loss, losses = _MeanLoss.apply(
            *flat, num_items_in_batch, chunk_tokens, torch.is_grad_enabled()
        )
    return loss, losses.view_as(following)


def takes_gradients_at_once(head: nn.Module, hidden: Tensor) -> bool:
    """Whether gradients can be computed together with the loss: the head is a plain linear layer on
    a GPU without bias, hooks, replaced ``forward``, sharding or compilation."""
    if torch.compiler.is_compiling() or type(head) is not nn.Linear or head.bias is not None:
        return False
    watched = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks
    if watched or head._backward_pre_hooks or "forward" in vars(head):
        return False
    kinds = (torch.float32, torch.bfloat16)
    fits = head.weight.dtype in kinds and head.weight.device == hidden.device
    same = hidden.dtype == head.weight.dtype or torch.is_autocast_enabled(hidden.device.type)
    return fits and same and _is_gpu(hidden) and is_plain(hidden, head.weight)


def _is_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


class _MeanLoss(torch.autograd.Function):
    """The mean loss and the losses of all tokens. The forward pass also computes the gradients of
    the mean: no product with the head is computed twice, and no logits are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        count: Tensor | int,
        chunk_tokens: int,
        differentiable: bool,
    ) -> tuple[Tensor, Tensor]:
        asked = [differentiable and x for x in ctx.needs_input_grad[:2]]
        of_hidden, of_weight = (
            torch.zeros_like(x) if is_asked else None
            for x, is_asked in zip((hidden, weight), asked, strict=True)
        )
        counts = targets != IGNORED
        at, shares = targets.clamp(min=0)[:, None], (counts / count)[:, None]
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), chunk_tokens):
            part = slice(start, start + chunk_tokens)
            logits = F.linear(hidden[part], weight)
            logs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
            of_targets = logs.gather(1, at[part])
            losses[part] = -of_targets[:, 0]
            if not any(asked):
                continue
            slopes = torch.exp(logs, out=logits)
            # Subtract 1 before rounding: near 1 a 16-bit probability has few digits.
            slopes.scatter_(1, at[part], of_targets.expm1_().to(slopes.dtype))
            if of_hidden is not None:
                of_hidden[part] = (slopes @ weight) * shares[part]
            if of_weight is not None:
                of_weight.addmm_(slopes.T, (hidden[part] * shares[part]).to(hidden.dtype))
        losses = losses.masked_fill(~counts, 0.0)
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.mark_non_differentiable(losses)
        return losses.sum() / count, losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *others: Any) -> Any:
        if torch.is_grad_enabled():  # second derivatives would be missing silently
            raise BackendError("DiffTransformer: second derivatives need skip_logits=False.")
        gradients = (
            None if x is None else torch.mul(x, grad.reshape(1), out=torch.empty_like(x))
            for x in ctx.saved_tensors
        )  # the product is computed in float32 and rounded once
        return *gradients, None, None, None, None

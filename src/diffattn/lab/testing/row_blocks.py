"""The float64 reference by blocks of query rows, so that the attention maps fit in memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.ops.backends import reference
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads

BLOCK_SCORES = 2**24
"""Most scores of one block. They take 128 MiB in float64; a comparison holds about 20 copies."""


def row_blocks(inputs: DiffAttentionInputs, scores: int = BLOCK_SCORES) -> Iterator[Tensor]:
    """Yield the indices of the query rows in blocks, int64 ``[R]``, on the device of the inputs.

    ``scores`` is the largest number of entries of one block, over both maps, all heads and all
    batch rows. A block has at least one row, even if that row exceeds the limit.
    """
    batch, num_queries, num_heads = inputs.q.shape[:3]
    per_row = 2 * batch * num_heads * inputs.k.shape[1]
    rows = torch.arange(num_queries, device=inputs.q.device)
    yield from rows.split(max(1, scores // max(1, per_row)))


def reference_by_rows(
    inputs: DiffAttentionInputs, weights: Tensor | None, *, scores: int = BLOCK_SCORES
) -> dict[str, Tensor]:
    """Compute the output of the reference in float64, and its gradients if weights are given.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        inputs: Arguments of the call, of any dtype.
        weights: ``[B, T, H, Dv]``, gradient of the output; ``None``: no gradients.
        scores: As in :func:`row_blocks`.

    Returns:
        ``output``; with weights also ``gradient of NAME`` for each leaf of the inputs. float64.
    """
    exact = inputs.map_tensors(Tensor.double)
    options = dict(exact.options)
    scale = options.pop("scale", exact.q.shape[-1] ** -0.5)
    mask = AttentionMask(**options)
    leaves = {name: x for name, x in exact.tensors().items() if x.requires_grad}
    with_gradients = weights is not None and bool(leaves)
    gradients = {name: torch.zeros_like(x) for name, x in leaves.items()} if with_gradients else {}
    outputs = []
    for rows in row_blocks(exact, scores):
        with torch.set_grad_enabled(with_gradients):
            _, _, signed = reference.maps(
                exact.q, exact.k, exact.lam, scale=scale, mask=mask, rows=rows
            )
            values = repeat_heads(exact.v, exact.q.shape[2]).transpose(1, 2)  # [B, H, S, Dv]
            out = torch.matmul(signed, values).transpose(1, 2)  # [B, R, H, Dv]
        outputs.append(out.detach())
        if with_gradients:
            assert weights is not None
            parts = torch.autograd.grad(out, list(leaves.values()), weights[:, rows].to(out))
            for total, part in zip(gradients.values(), parts, strict=True):
                total += part
    results = {"output": torch.cat(outputs, dim=1)}
    return results | {f"gradient of {name}": x for name, x in gradients.items()}

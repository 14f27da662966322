"""The lookback ratio: how much of a generated token's attention is on the context."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.probes.attention_rows import attention_rows

MAPS = ("a1", "difference", "absolute")
_ROWS = 16
"""Number of tokens whose rows of the maps are in memory together."""


def lookback_ratios(
    model: LanguageModel, prompt: Sequence[int], written: Sequence[int], num_context: int
) -> dict[str, list[list[float | None]]]:
    r"""Lookback ratio of every layer and head, averaged over the steps that wrote a token.

    .. math:: r = \frac{\bar a_\mathrm{context}}{|\bar a_\mathrm{context}| + |\bar a_\mathrm{new}|}

    The mean weights are over the keys of context and of new tokens, so a uniform map has r = 1/2.
    Map ``"a1"`` is A1, ``"absolute"`` is |A1 − λA2|, and ``"difference"`` is A1 − λA2 with its
    sign. The source has no absolute values; with signed weights its r has a pole, ours is in
    [−1, 1]. For softmax attention all three maps are equal. The first ``num_context`` tokens of the
    prompt are context; the rest of the prompt (the answer's cue) counts as new.

    Source: arXiv:2407.07071, section 2.

    Returns:
        Name in ``MAPS`` to ratios ``[layers][heads]``; ``None`` for a head with a step whose mean
        weights are both 0.
    """
    before = model.read(prompt[:-1])
    cache, seen = before.rows(1), before.length
    tokens = [prompt[-1], *written[:-1]]
    steps: list[Tensor] = []
    for start in range(0, len(tokens), _ROWS):
        ids = torch.tensor([tokens[start : start + _ROWS]], device=model.device)
        layers = attention_rows(model.network, ids, cache)
        counts = torch.arange(1, ids.shape[1] + 1, device=model.device) + seen - num_context
        seen += ids.shape[1]
        kinds = ((layer.maps[:, 0], layer.signed, layer.signed.abs()) for layer in layers)
        means = [torch.stack([_means(x, num_context, counts) for x in maps]) for maps in kinds]
        steps.append(torch.stack(means))
    weights = torch.cat(steps, dim=-1).double()  # [layers, maps, 2, H, steps]
    ratios = (weights[:, :, 0] / weights.abs().sum(2)).mean(-1)  # [layers, maps, H]
    return {
        name: [[round(x, 6) if x == x else None for x in heads] for heads in ratios[:, i].tolist()]
        for i, name in enumerate(MAPS)
    }


def _means(rows: Tensor, num_context: int, num_new: Tensor) -> Tensor:
    """Mean weights ``[2, H, T]`` over context keys and over new keys, from rows ``[H, T, S]``."""
    context = rows[..., :num_context].mean(-1)
    return torch.stack([context, rows[..., num_context:].sum(-1) / num_new])

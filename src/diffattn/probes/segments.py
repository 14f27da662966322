"""Attention summed over segments of the keys, layer by layer and head by head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffattn.errors import ConfigError
from diffattn.probes.attention_rows import LayerRows


def segment_sums(
    layers: Sequence[LayerRows], spans: Sequence[tuple[int, int]], *, row: int = -1
) -> dict[str, Tensor]:
    r"""Sums over spans of keys of one query's attention.

    .. math:: S_k(l, h) = \sum_{j \in k} w(a_j),\quad a = A_1 - \lambda A_2

    Source: arXiv:2410.05258v2, Figure 1 and Table 3.

    Args:
        layers: Of :func:`diffattn.probes.attention_rows.attention_rows`.
        spans: First key and the one after the last; they may overlap.
        row: Which query. Default: the last.

    Returns:
        float64 ``[layers, H, spans]`` on the CPU per kind of weight w: ``"signed"`` a,
        ``"clipped"`` max(a, 0), ``"absolute"`` |a|, ``"map_1"`` and, for differential models,
        ``"map_2"``: the softmax maps themselves.
    """
    sums_of: dict[str, list[Tensor]] = {}
    for layer in layers:
        signed = layer.signed[:, row].double()  # [H, S]
        weights = {"signed": signed, "clipped": signed.clamp(min=0), "absolute": signed.abs()}
        for i, softmax_map in enumerate(layer.maps[:, :, row].double().unbind(1)):
            weights[f"map_{i + 1}"] = softmax_map
        for name, weight in weights.items():
            sums = torch.stack([weight[:, a:b].sum(-1) for a, b in spans], dim=-1)
            sums_of.setdefault(name, []).append(sums.cpu())
    return {name: torch.stack(sums) for name, sums in sums_of.items()}


def segment_shares(sums: Tensor, whole: int) -> dict[str, list[float]]:
    """One share per span over all layers and heads, in two normalisations.

    Source: arXiv:2410.05258v2, Figure 1 (whose five segments sum to 1).

    Args:
        sums: ``[layers, H, spans]``.
        whole: So many leading spans cover the keys once: their shares sum to 1.

    Returns:
        ``"global"``: the mean over layers and heads, divided by the sum of its leading spans;
        ``"row"``: every layer and head divided by its own sum, then the mean.

    Raises:
        ConfigError: A row sums to 0, for example where λ is exactly 1.
    """
    mean, totals = sums.mean((0, 1)), sums[..., :whole].sum(-1, keepdim=True)
    total = mean[:whole].sum()
    if not total or not totals.all():
        raise ConfigError("segment_shares: attention must not sum to 0, got a row or mean of 0.")
    return {"global": (mean / total).tolist(), "row": (sums / totals).mean((0, 1)).tolist()}

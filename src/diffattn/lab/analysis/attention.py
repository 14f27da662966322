r"""Attention statistics of the heads of one layer, summed over blocks of rows and over texts.

Let a text have T tokens, :math:`i` a query, :math:`j \le i` the keys it sees, :math:`n_i = i + 1`
their number. :math:`A_1, A_2` are the softmax maps, :math:`A = A_1 - \lambda A_2` the signed map
(:math:`A = A_1` for softmax attention), and :math:`|A|` the absolute map. The first query sees
only itself in any model. So all statistics of maps are over the queries :math:`i \ge 1` of all
texts. The Context RMS and CKA are over all queries.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from diffattn.probes.layer_reader import AttentionInputs, LogitRows

NOISE = 1e-6
"""A sum of squares of a centred map below this share of the uncentred sum is rounding error."""


class MapGram:
    r"""Products of the maps of all pairs of heads, summed over rows.

    Cosine of heads g and h: :math:`\sum_{ij} A^g_{ij} A^h_{ij} / (\lVert A^g \rVert \lVert A^h
    \rVert)` over the visible keys j of the queries i. Causal maps are alike because early queries
    see few keys. So we also give the correlation: the cosine after each row's mean over visible
    keys is subtracted. It is undefined for a uniform map.
    """

    def __init__(self, num_heads: int) -> None:
        self.products = torch.zeros(num_heads, num_heads, dtype=torch.float64)
        self.means = torch.zeros(num_heads, num_heads, dtype=torch.float64)

    def add(self, maps: Tensor, visible_keys: Tensor) -> None:
        """Add rows of maps ``[H, R, S]``, 0 at hidden keys; ``visible_keys`` is ``[R]``."""
        flat = maps.flatten(1)
        self.products += (flat @ flat.T).double().cpu()
        sums = maps.sum(-1).double()  # [H, R]
        self.means += ((sums / visible_keys.double()) @ sums.T).cpu()

    def mean_cosine(self) -> float | None:
        """Mean over pairs of different heads; ``None`` with one head or without rows."""
        return _mean_normalised(self.products)

    def mean_correlation(self) -> float | None:
        """``None`` also if the map of any head is uniform."""
        centred = self.products - self.means
        uniform = centred.diagonal() <= NOISE * self.products.diagonal()
        return None if bool(uniform.any()) else _mean_normalised(centred)


class HeadCka:
    r"""Linear CKA of the features of all pairs of heads, by an estimator without bias.

    The features of head h are its output of attention, :math:`X_h \in \mathbb{R}^{n \times D_v}`,
    before head norm and projection. With :math:`K = X_g X_g^\top, L = X_h X_h^\top`,
    :math:`\tilde K` being K with a zero diagonal,

    .. math:: \mathrm{HSIC}_1(K, L) = \frac{1}{n (n - 3)} \Bigl[\mathrm{tr}(\tilde K \tilde L)
        + \frac{1^\top \tilde K 1\, 1^\top \tilde L 1}{(n - 1)(n - 2)}
        - \frac{2}{n - 2} 1^\top \tilde K \tilde L 1\Bigr]

    is summed over texts of four tokens or more. CKA is :math:`\mathrm{HSIC}_1(K, L) /
    \sqrt{\mathrm{HSIC}_1(K, K)\,\mathrm{HSIC}_1(L, L)}` of the sums: 1 for features that agree
    up to rotation and factor, around 0 for independent features. No n by n matrix is held.

    Source: arXiv:2010.15327, Eq. (2) and (3); arXiv:1905.00414 for linear CKA.
    """

    def __init__(self, num_heads: int) -> None:
        self.hsic = torch.zeros(num_heads, num_heads, dtype=torch.float64)

    def add(self, features: Tensor) -> None:
        """Add the features ``[H, n, Dv]`` of one text. Texts below four tokens are skipped."""
        num_heads, n, _ = features.shape
        if n < 4:
            return
        x = features.double()
        diagonal = x.square().sum(-1)  # [H, n]
        row_sums = (x @ x.sum(1)[..., None])[..., 0] - diagonal  # rows of K without its diagonal
        totals = row_sums.sum(-1)
        traces = torch.stack(
            # [H, Dv, Dv] at a time: head g with all others
            [(x[g].T @ x).square().sum((-1, -2)) for g in range(num_heads)]
        )
        traces = traces - diagonal @ diagonal.T
        together = totals[:, None] * totals / ((n - 1) * (n - 2))
        mixed = 2 / (n - 2) * (row_sums @ row_sums.T)
        self.hsic += ((traces + together - mixed) / (n * (n - 3))).cpu()

    def mean(self) -> float | None:
        """Mean CKA over pairs of different heads; ``None`` with one head, or too few tokens."""
        return _mean_normalised(self.hsic)


def _mean_normalised(products: Tensor) -> float | None:
    """Mean of x_gh / sqrt(x_gg x_hh) over g < h."""
    size = products.diagonal()
    if len(size) < 2 or not bool((size > 0).all()):
        return None
    normalised = products / (size[:, None] * size).sqrt()
    above = torch.ones_like(normalised, dtype=torch.bool).triu(1)
    return float(normalised[above].mean())


DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""First distance i − j of each range of distances, in tokens; the last range has no end."""
KINDS = ("signed", "absolute", "map_1", "map_2")


def uniform_masses(lengths: list[int]) -> Any:
    r"""Masses of the uniform map, which gives every visible key :math:`1 / n_i`."""
    first, masses, queries = 0.0, torch.zeros(len(DISTANCES), dtype=torch.float64), 0
    ends = torch.tensor([*DISTANCES[1:], 2**62])
    begins = torch.tensor(DISTANCES)
    for length in lengths:
        i = torch.arange(1, length, dtype=torch.float64)[:, None]
        # Keys 1 to i are at distances i - 1 to 0.
        counts = (torch.minimum(ends, i) - begins).clamp(min=0)
        masses += (counts / (i + 1)).sum(0)
        first += float((1 / (i + 1)).sum())
        queries += length - 1
    return {"first": first / max(queries, 1), "by_distance": (masses / max(queries, 1)).tolist()}


class LayerAttention:
    """Sums over texts for every head of one layer; memory does not grow with the texts.

    Source: arXiv:2410.05258v2, Eq. (1).
    """

    def __init__(self, num_heads: int, maps: int) -> None:
        self.maps = maps
        self.kinds = KINDS if maps == 2 else ("map_1",)
        self.queries = 0
        self.tokens = 0
        self.sums: dict[str, Tensor] = {}
        self.num_heads = num_heads
        self.grams = {kind: MapGram(num_heads) for kind in self.kinds if kind != "absolute"}
        self.cka = HeadCka(num_heads)

    def block(self, entries: int) -> int:
        """Number of logits to hold at a time, so that no tensor exceeds ``entries`` elements."""
        maps = self.num_heads * self.maps
        return entries * maps // max(maps, len(DISTANCES))

    def add(self, inputs: AttentionInputs, rows_of_text: Iterable[LogitRows]) -> None:
        """Add one text. The logits of its query rows are overwritten."""
        values = inputs.v if inputs.v.dtype == torch.float64 else inputs.v.float()
        values = values.repeat_interleave(self.num_heads // values.shape[1], dim=1)
        values = values.transpose(0, 1)  # [H, T, Dv]
        contexts = [self._add_rows(inputs, rows, values) for rows in rows_of_text]
        context = torch.cat(contexts, dim=1)  # [H, T, Dv]
        self.tokens += context.shape[1]
        self._sum("context", context.double().square().mean(-1).sum(-1))
        self._sum("value", values.double().square().mean(-1).sum(-1))
        self.cka.add(context)

    def _add_rows(self, inputs: AttentionInputs, rows: LogitRows, values: Tensor) -> Tensor:
        """The output of attention of some rows, ``[H, R, Dv]``, which are added."""
        logits = rows.logits.masked_fill_(~rows.visible, -torch.inf)
        both = logits.softmax(-1)  # [H, maps, R, S]
        num_rows, num_keys = rows.visible.shape
        stop = rows.start + num_rows
        maps = {"map_1": both[:, 0]}
        lam = None
        if inputs.lam is not None:
            lam = inputs.lam[rows.start : stop].T[..., None].to(both.dtype)  # [H, R, 1]
            maps["map_2"] = both[:, 1]
            maps["signed"] = both[:, 0] - lam * both[:, 1]
        context = maps.get("signed", both[:, 0]) @ values[:, :num_keys]
        skip = 1 if rows.start == 0 else 0
        if num_rows == skip:
            return context
        places = torch.arange(num_keys, device=both.device)
        queries = torch.arange(rows.start + skip, stop, device=both.device)[:, None]
        visible_keys = (queries[:, 0] + 1).to(both.dtype)  # n_i, [R]
        self.queries += len(queries)
        buckets = _one_hot(queries - places, both.dtype)  # [R * S, D]
        buckets *= (places != 0).repeat(len(queries))[:, None]
        maps = {name: x[:, skip:] for name, x in maps.items()}
        if lam is not None:
            lam = lam[:, skip:]
            maps["absolute"] = maps["signed"].abs()
        for name, x in maps.items():
            self._add_masses(name, x, buckets)
        for name, gram in self.grams.items():
            gram.add(maps[name], visible_keys)
        self._add_entropies(maps, visible_keys)
        if lam is not None:
            self._add_cancelled(maps["map_1"], maps["map_2"], lam, visible_keys, buckets)
        return context

    def _add_masses(self, name: str, x: Tensor, buckets: Tensor) -> None:
        self._sum(f"{name} first", x[..., 0].double().sum(-1))
        self._sum(f"{name} by distance", (x.flatten(1) @ buckets).double())
        self._sum(f"{name} mass", x.sum(-1).double().sum(-1))

    def _add_entropies(self, maps: dict[str, Tensor], visible_keys: Tensor) -> None:
        maps = dict(maps)
        if "absolute" in maps:
            mass = maps["absolute"].sum(-1, keepdim=True)
            empty = mass == 0  # A1 equals A2 and λ is 1
            maps["absolute"] = maps["absolute"] / mass.masked_fill(empty, 1)
            self._sum("absolute rows", (~empty).double().sum((-1, -2)))
        for name in maps.keys() & {"map_1", "map_2", "absolute"}:
            entropy = torch.special.entr(maps[name]).sum(-1) / visible_keys.log()
            self._sum(f"{name} entropy", entropy.double().sum(-1))

    def _add_cancelled(
        self, map_1: Tensor, map_2: Tensor, lam: Tensor, visible_keys: Tensor, buckets: Tensor
    ) -> None:
        lam = lam.clamp(min=0)  # a map that is added cancels nothing
        self._add_masses("cancelled", torch.minimum(map_1, lam * map_2), buckets)
        even = torch.minimum(map_1, lam / visible_keys[:, None])  # 0 at hidden keys, as A1 is
        self._sum("cancelled by uniform", even.sum(-1).double().sum(-1))
        self._sum("dot", (map_1 * map_2).sum((-1, -2), dtype=torch.float64))
        for name, x in (("1", map_1), ("2", map_2)):
            self._sum(f"square {name}", x.square().sum((-1, -2), dtype=torch.float64))
        self._sum("evenness", (1 / visible_keys).double().sum().expand(self.num_heads))

    def _sum(self, name: str, values: Tensor) -> None:
        values = values.cpu()
        self.sums[name] = self.sums[name] + values if name in self.sums else values.clone()

    def result(self) -> dict[str, Any]:
        r"""Statistics of the layer.

        ``heads`` holds lists of one number per head; means are over queries :math:`i \ge 1`:

        - ``sink``, ``self``, ``previous``: :math:`A_{i0}`; :math:`A_{ii}`; :math:`A_{i,i-1}`
          for keys other than the first. With two maps, prefixes ``absolute_``, ``map_1_`` and
          ``map_2_`` name the same for :math:`|A|`, :math:`A_1` and :math:`A_2`.
        - ``sink_share``: :math:`\sum_i |A_{i0}| / \sum_{ij} |A_{ij}|`.
        - ``negative_mass``: :math:`\sum_j \max(-A_{ij}, 0)`; ``absolute_mass``: :math:`\sum_j
          |A_{ij}|`.
        - ``entropy``: :math:`-\sum_j p_j \log p_j / \log n_i` with
          :math:`p_j = |A_{ij}| / \sum_j |A_{ij}|`; ``entropy_1`` and ``entropy_2``: the same for
          :math:`A_1, A_2`. A uniform map has entropy 1.
        - ``context_rms``: :math:`\sqrt{\mathrm{mean}(c^2)}`, :math:`c_i = \sum_j A_{ij} v_j`,
          before head norm and projection; ``value_rms``: the RMS of the head's values.
        - ``cosine``: :math:`\sum A_1 A_2 / \sqrt{\sum A_1^2 \sum A_2^2}` over all pairs;
          ``correlation``: the cosine of :math:`A_1 - 1/n_i` and :math:`A_2 - 1/n_i`, ``None``
          if either map is uniform.
        - ``cancelled``: :math:`\sum_j \min(A_{1,ij}, \max(\lambda, 0) A_{2,ij})`, the share of A1's
          mass that the second map cancels; ``cancelled_by_uniform``: the share that a uniform
          second map, :math:`A_{2,ij} = 1/n_i`, would cancel.

        With one map, all that needs a second map is missing. ``by_distance`` holds mean masses over
        heads and queries, per kind of map: ``first`` of the first key, ``ranges`` of the others by
        :data:`DISTANCES`. ``cancelled_share`` is the cancelled share of A1's mass there.

        Undefined values are ``None``; without queries there are no map statistics.

        Source: arXiv:2410.05258v2, Eq. (1); DIFF V2 note (January 2026), Context RMS.
        """
        heads: dict[str, list[float | None]] = {}
        by_distance: dict[str, Any] = {}
        heads["context_rms"] = _numbers((self.sums["context"] / self.tokens).sqrt())
        heads["value_rms"] = _numbers((self.sums["value"] / self.tokens).sqrt())
        if self.queries:
            self._read_maps(heads, by_distance)
        return {
            "heads": heads,
            "by_distance": by_distance,
            "map_cosine": {kind: gram.mean_cosine() for kind, gram in self.grams.items()},
            "map_correlation": {kind: gram.mean_correlation() for kind, gram in self.grams.items()},
            "cka": self.cka.mean(),
            "queries": self.queries,
        }

    def _read_maps(self, heads: dict[str, list[float | None]], by_distance: dict[str, Any]) -> None:
        s, n = self.sums, self.queries
        acting, whole = ("signed", "absolute") if self.maps == 2 else ("map_1", "map_1")
        for kind in self.kinds:
            prefix = "" if kind == acting else f"{kind}_"
            ranges = s[f"{kind} by distance"] / n
            heads[f"{prefix}sink"] = _numbers(s[f"{kind} first"] / n)
            heads[f"{prefix}self"] = _numbers(ranges[:, 0])
            heads[f"{prefix}previous"] = _numbers(ranges[:, 1])
            by_distance[kind] = self._mean_by_distance(kind)
        heads["sink_share"] = _numbers(s[f"{whole} first"] / s[f"{whole} mass"])
        heads["entropy_1"] = _numbers(s["map_1 entropy"] / n)
        if self.maps == 2:
            self._read_two_maps(heads, by_distance)
        else:
            heads["entropy"] = heads["entropy_1"]

    def _read_two_maps(
        self, heads: dict[str, list[float | None]], by_distance: dict[str, Any]
    ) -> None:
        s, n = self.sums, self.queries
        heads["entropy_2"] = _numbers(s["map_2 entropy"] / n)
        heads["entropy"] = _numbers(s["absolute entropy"] / s["absolute rows"])
        heads["absolute_mass"] = _numbers(s["absolute mass"] / n)
        heads["negative_mass"] = _numbers((s["absolute mass"] - s["signed mass"]) / (2 * n))
        heads["cancelled"] = _numbers(s["cancelled mass"] / n)
        heads["cancelled_by_uniform"] = _numbers(s["cancelled by uniform"] / n)
        heads["cosine"] = _numbers(s["dot"] / (s["square 1"] * s["square 2"]).sqrt())
        around = [s[name] - s["evenness"] for name in ("dot", "square 1", "square 2")]
        even = (around[1] <= NOISE * s["square 1"]) | (around[2] <= NOISE * s["square 2"])
        spread = (around[1] * around[2]).masked_fill(even, torch.nan).sqrt()
        heads["correlation"] = _numbers(around[0] / spread)
        cancelled, whole = self._mean_by_distance("cancelled"), by_distance["map_1"]
        by_distance["cancelled_share"] = {
            "first": _ratio(cancelled["first"], whole["first"]),
            "ranges": list(map(_ratio, cancelled["ranges"], whole["ranges"])),
        }

    def _mean_by_distance(self, kind: str) -> dict[str, Any]:
        first = self.sums[f"{kind} first"].mean() / self.queries
        ranges = self.sums[f"{kind} by distance"].mean(0) / self.queries
        return {"first": float(first), "ranges": ranges.tolist()}


def _one_hot(distances: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot range of every pair, ``[R * S, len(DISTANCES)]``; all 0 for hidden keys."""
    begins = torch.tensor(DISTANCES, device=distances.device)
    ranges = torch.searchsorted(begins, distances.flatten().clamp(min=0), right=True) - 1
    rows = torch.zeros(distances.numel(), len(DISTANCES), dtype=dtype, device=distances.device)
    return rows.scatter_(1, ranges[:, None], 1).mul_((distances.flatten() >= 0)[:, None])


def _numbers(x: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in x.tolist()]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

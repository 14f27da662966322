r"""Redundancy of the heads of a layer: cosine of their maps, and CKA of their outputs.

Two heads with equal maps may read different values. CKA tells whether their outputs are equal up to
a rotation and a factor.
"""

import torch
from torch import Tensor

NOISE = 1e-6
"""A sum of squares of a centred map below this share of the uncentred sum is rounding error."""


class MapGram:
    r"""Products of the maps of all pairs of heads, summed over rows.

    Cosine of heads g and h: :math:`\sum_{ij} A^g_{ij} A^h_{ij} / (\lVert A^g \rVert \lVert A^h
    \rVert)` over the visible keys j of the queries i that :meth:`add` got. Causal maps are alike
    because early queries see few keys. So we also give the correlation: the cosine after each
    row's mean over visible keys is subtracted. It is undefined for a uniform map.
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
        """Mean correlation over pairs of heads; ``None`` also if the map of any head is uniform."""
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
    up to rotation and factor, around 0 for independent features. The biased estimator would give
    :math:`D_v / (D_v + n)` for independent features. No n by n matrix is held.

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

"""Intervals of a mean of shares, also where several come from one text."""

from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.stats.bootstrap import bootstrap_mean
from diffattn.stats.intervals import Interval
from diffattn.stats.proportions import wilson_interval


def share_interval(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | None = None,
    *,
    level: float = 0.95,
) -> Interval:
    """Mean of values from 0 to 1 and the interval that fits them.

    Independent zeros and ones are a proportion: Wilson's interval. Shares in between, or several
    values per cluster, get the bootstrap over clusters; but where every value is 0, or every value
    is 1, resampling would show no spread at all, and Wilson's interval over clusters is given.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209; B. Efron, Ann. Stat. 7 (1979), 1.

    Args:
        values: ``[n]``, from 0 to 1, n >= 1.
        clusters: Name of each value's cluster. Default: every value is its own.
        level: Coverage, in (0, 1). Default 0.95.

    Returns:
        The interval; ``n`` counts clusters.

    Raises:
        ConfigError: A value lies outside [0, 1], there is none, or the lengths differ.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise ConfigError("share_interval: values must be one or more from 0 to 1, got others.")
    names = [str(i) for i in range(len(x))] if clusters is None else list(clusters)
    num_clusters = len(set(names))
    alone = len(names) == len(x) == num_clusters
    if x.min() == x.max() and x[0] in (0.0, 1.0) and len(names) == len(x):
        return wilson_interval(int(x[0]) * num_clusters, num_clusters, level)
    if alone and set(np.unique(x)) <= {0.0, 1.0}:
        return wilson_interval(int(x.sum()), num_clusters, level)
    return bootstrap_mean(x, names, level=level)

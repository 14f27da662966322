"""Differences between runs that share a seed."""

from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.stats.intervals import Interval, mean_interval


def paired_difference(
    values: Sequence[float] | np.ndarray,
    baseline: Sequence[float] | np.ndarray,
    level: float = 0.95,
) -> Interval:
    r"""Student-t interval of the mean difference of paired values.

    .. math:: \bar d \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s_d / \sqrt{n}, \quad d_i = x_i - b_i

    Pairing removes what both runs of a seed share, such as the order of the data, so that it
    does not hide the difference.

    Args:
        values: ``[n]``, finite, n >= 1.
        baseline: ``[n]``; position i is the run with the same seed as position i of ``values``.
        level: Coverage, in (0, 1). Default 0.95.

    Returns:
        The interval of ``values - baseline``; for n = 1 its ends are ``None``.

    Raises:
        ConfigError: The lengths differ, a value is not finite, or ``level`` is outside (0, 1).
    """
    x = np.asarray(values, dtype=np.float64)
    b = np.asarray(baseline, dtype=np.float64)
    if x.shape != b.shape:
        raise ConfigError(
            f"paired_difference: values and baseline must have one length, "
            f"got {list(x.shape)} and {list(b.shape)}."
        )
    for name, array in (("values", x), ("baseline", b)):
        # Checked before subtracting: inf - inf would warn and name neither side.
        if not np.isfinite(array).all():
            raise ConfigError(f"paired_difference: {name} must be finite, got {array.tolist()}.")
    return mean_interval(x - b, level)

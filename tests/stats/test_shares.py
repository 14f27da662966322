"""Which interval a mean of shares gets."""

import pytest

from diffattn.errors import ConfigError
from diffattn.stats.bootstrap import bootstrap_mean
from diffattn.stats.proportions import wilson_interval
from diffattn.stats.shares import share_interval


def test_independent_zeros_and_ones():
    assert share_interval([0, 1, 1, 0, 1]) == wilson_interval(3, 5)
    assert share_interval([0, 1, 1], ["a", "b", "c"]) == wilson_interval(2, 3)


def test_shares_and_clusters():
    assert share_interval([0.5, 1, 0]) == bootstrap_mean([0.5, 1, 0])
    names = ["a", "a", "b", "c"]
    assert share_interval([0, 1, 1, 0], names) == bootstrap_mean([0, 1, 1, 0], names)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_alike_still_has_a_width(value):
    found = share_interval([value] * 6, ["a", "a", "b", "b", "c", "c"])
    assert found == wilson_interval(int(3 * value), 3)
    assert found.high - found.low > 0.4


@pytest.mark.parametrize(
    ("values", "names"), [([], None), ([1.5], None), ([float("nan")], None), ([0.5, 1], ["a"])]
)
def test_what_is_no_share(values, names):
    with pytest.raises(ConfigError):
        share_interval(values, names)

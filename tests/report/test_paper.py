"""The published curves give the numbers that the papers print beside them."""

import pytest

from diffattn.evaluation.icl.many_shot import ManyShot
from diffattn.report.paper import many_shot_curves, order_margins

# Transformer and DIFF over the dashed range, the printed gap, and the gap over all numbers.
EXPECTED = {
    "trec": (69.90, 87.88, 18.0, 17.5),
    "trec_fine": (60.96, 82.60, 21.6, 19.1),
    "banking77": (65.22, 75.63, 10.4, 10.2),
    "clinic150": (74.00, 79.22, 5.2, 6.1),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_dashed_lines_of_figure_6_follow_from_its_points(name):
    curve = many_shot_curves()[name]
    transformer, diff, gap, gap_over_all = EXPECTED[name]
    stable = curve.means(curve.stable_from)
    assert [round(x, 2) for x in stable] == [transformer, diff]
    # Within one unit of the last printed digit: the paper rounds 17.97 up and 5.22 down.
    assert stable[1] - stable[0] == pytest.approx(gap, abs=0.05)
    assert curve.printed_gap == gap
    everywhere = curve.means()
    assert everywhere[1] - everywhere[0] == pytest.approx(gap_over_all, abs=0.05)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_protocol_asks_what_the_figure_shows(name):
    curve, protocol = many_shot_curves()[name], ManyShot(dataset=name)
    assert list(protocol.grid) == curve.shots
    assert len(curve.shots) == len(curve.transformer) == len(curve.diff)


def test_margins_of_figures_7_and_11():
    assert order_margins() == {
        "trec": (19.0, 4.0), "trec_fine": (24.0, 9.0), "banking77": (13.0, 9.0),
        "clinic150": (12.0, 6.0),
    }  # fmt: skip
    assert order_margins("alternating") == {"trec": (56.7, 13.4)}

"""The published curves give the numbers that the papers print beside them."""

from statistics import fmean

import pytest

from diffattn.lab.evaluation.icl.data import ICL_DATASETS
from diffattn.lab.evaluation.icl.label_protocols import ManyShot
from diffattn.lab.report.paper import many_shot_curves

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
    start = curve.shots.index(ICL_DATASETS[name].stable_from)
    stable = [fmean(values[start:]) for values in (curve.transformer, curve.diff)]
    assert [round(x, 2) for x in stable] == [transformer, diff]
    # Within one unit of the last printed digit: the paper rounds 17.97 up and 5.22 down.
    assert stable[1] - stable[0] == pytest.approx(gap, abs=0.05)
    assert fmean(curve.diff) - fmean(curve.transformer) == pytest.approx(gap_over_all, abs=0.05)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_protocol_asks_what_the_figure_shows(name):
    curve, protocol = many_shot_curves()[name], ManyShot(dataset=name)
    assert list(protocol.grid) == curve.shots
    assert len(curve.shots) == len(curve.transformer) == len(curve.diff)

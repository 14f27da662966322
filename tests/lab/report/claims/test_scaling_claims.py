"""Claims about parameters and tokens, from made-up fits."""

import pytest

from diffattn.lab.report.claims.from_studies import scaling_ratio
from diffattn.lab.report.claims.records import ClaimRecords


def scaling(ratio=0.8, against=0.9, *, informative=True, seeds=5, refused=None):
    """Shares of DIFF V1 at the middle of three points, with ends a tenth below and above."""

    def row(baseline, share, refused=None):
        low, high = (None, None) if share is None else (share / 1.1, share * 1.1)
        ends = {"ratio": share, "low": low, "high": high, "level": 0.95}
        return {"type": "diff", "baseline": baseline, "point": 1, "refused": refused} | ends

    rows = [row("softmax", ratio, refused), row("softmax", 0.1) | {"point": 0}]
    names = ["softmax", "diff"]
    if against is not None:
        rows.append(row("softmax_minus_mean", against))
        names.append("softmax_minus_mean")
    points = [{"loss": {"values": [3.0] * seeds}}] * 3
    of = {"read_at": 1, "types": {name: {"points": points} for name in names}}
    message = {"informative": informative, "sentence": "Made up."}
    axes = {axis: of | {"equivalents": rows} for axis in ("parameters", "tokens")}
    study = {"axes": axes, "verdict": {"axes": dict.fromkeys(axes, message)}}
    return ClaimRecords(studies={"scaling": study})


def test_parameters_and_tokens_at_equal_loss():
    results = scaling_ratio(scaling(), "parameters", "diff")
    assert (results.effect, results.n, results.unit) == (0.8, 3, "sizes of 5 seeds")
    assert (results.low, results.high) == pytest.approx((0.8 / 1.1, 0.8 * 1.1))
    assert scaling_ratio(scaling(seeds=2), "tokens", "diff").unit == "budgets of 2 seeds"
    assert scaling_ratio(scaling(), "tokens", "shared_diff") is None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (scaling(), ""),
        (scaling(informative=False), "Made up."),
        (scaling(against=None), "the record holds no control"),
        (scaling(1.25, against=None), ""),  # nothing is saved
        (scaling(against=0.95), "not shown to do better than controls: Softmax − 0.7 mean value"),
        (scaling(None, refused="diff has no fit"), "diff has no fit"),
    ],
)  # fmt: skip
def test_reservations_about_fits(record, why):
    assert scaling_ratio(record, "parameters", "diff").uninformative == why

"""Claims about parameters and tokens, from made-up fits."""

import math

import pytest
from scipy.special import stdtr

from diffattn.lab.report.claims.from_studies import scaling_ratio
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.claims.verdicts import CLAIMS, judged_claims
from lab.report.scaling_claims import scaling

BY_ID = {claim.id: claim for claim in CLAIMS}


def only(claim, records):
    (judged,) = judged_claims(records, [claim])
    return judged


def test_parameters_and_tokens_at_equal_loss():
    records = ClaimRecords(scaling=scaling())
    results = scaling_ratio("parameters", "diff")(records)
    assert (results.effect, results.n, results.unit) == (0.8, 3, "sizes of 5 seeds")
    assert results.uninformative == ""
    # Student's t with 12 degrees of freedom, of which 2.179 is the 97.5 % point.
    t = math.log(1 / 0.8) / (math.log(1.1) / 2.1788)
    assert results.p == pytest.approx(2 * stdtr(12, -t), rel=1e-3)
    assert scaling_ratio("tokens", "diff")(records).unit == "budgets of 5 seeds"
    assert scaling_ratio("tokens", "shared_diff")(records) is None
    assert only(BY_ID["size"], records).verdict == "agrees"
    assert only(BY_ID["size"], ClaimRecords(scaling=scaling(1.25))).verdict == "disagrees"
    assert only(BY_ID["tokens"], ClaimRecords(scaling=scaling(0.95))).verdict == "inconclusive"
    few = only(BY_ID["size"], ClaimRecords(scaling=scaling(seeds=2)))
    assert (few.verdict, few.why) == ("inconclusive", "2 of the 3 seeds that it takes")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (scaling(informative=False), "Made up."),
        (scaling(against=None), "the record holds no control"),
        (scaling(against=0.95), "not shown to do better than controls: Softmax − 0.7 mean value"),
        (scaling(ratio=None, refused="diff has no fit"), "diff has no fit"),
    ],
)  # fmt: skip
def test_scaling_that_says_nothing(record, why):
    results = only(BY_ID["size"], ClaimRecords(scaling=record))
    assert (results.verdict, results.why) == ("uninformative", why)

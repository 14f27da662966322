"""Targets: which case they speak of, whom they judge, and that a miss is a miss."""

from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.measure import judge
from diffattn.lab.records.results import BenchRow, Spread


def spread(x):
    return Spread(median=x, low=x, high=x, minimum=x, maximum=x, rounds=3)


def row(role, name, seconds, **more):
    ratios = {key: spread(value) for key, value in more.items() if key.startswith("ratio")}
    rest = {key: value for key, value in more.items() if not key.startswith("ratio")}
    return BenchRow(
        contender=name, role=role, backend=name, status="ok", seconds=spread(seconds),
        **ratios, **rest,
    )  # fmt: skip


ROWS = [
    row("T", "sdpa", 1.0, ratio_t=1.0, peak_bytes=100),
    row("TC", "softmax_chunked", 0.9, ratio_t=0.9),
    row("DIFF", "composed", 0.8, ratio_t=0.8, peak_bytes=150),
    row("DIFF", "chunked", 0.95, ratio_t=0.95, ratio_tc=1.2),
    BenchRow(contender="flex", role="DIFF", backend=None, status="failed"),
]


def verdicts_of(mode="forward_backward", dtype="float32", suite="ops", rows=ROWS, **shape):
    shape = {"N": 1_024} | shape
    case = Case(suite=suite, device="cpu", dtype=dtype, mode=mode, shape=shape)
    return {(v.contender, v.target): v for v in judge(case, rows)}


def test_the_fastest_is_judged_and_against_tc_the_fastest_that_has_one():
    verdicts = verdicts_of()
    assert {key: str(v) for key, v in verdicts.items()} == {
        ("composed", "forward + backward at most 1.05 × T"): "pass",
        ("chunked", "forward + backward at most 1.1 × TC"): "short by 0.1",
        ("composed", "peak memory at most 1.1 × T"): "short by 0.4",
    }


def test_targets_speak_of_their_own_cases_only():
    assert verdicts_of(N=256) == {}
    assert verdicts_of(rows=[]) == {}  # where nothing was measured
    assert verdicts_of(attention="v2") == {}
    assert [v.limit for v in verdicts_of(dtype="bfloat16").values()] == [0.70, 1.15, 1.30]
    assert verdicts_of(mode="forward", dtype="bfloat16") == {}
    decode = verdicts_of(suite="decode", mode="decode", N=1, S=4_096)
    assert [v.limit for v in decode.values()] == [1.10]
    assert verdicts_of(suite="decode", mode="decode", N=1, S=1_024) == {}


def test_each_of_our_models_is_judged_but_not_theirs():
    rows = [row("DIFF", name, 1.0, ratio_t=1.03) for name in ("diff", "diff_v2", "diffllama")]
    verdicts = verdicts_of(suite="models", rows=rows, size="laptop")
    assert [name for name, _ in verdicts] == ["diff", "diff_v2"]
    assert not any(v.passed for v in verdicts.values())

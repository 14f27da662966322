"""Records of made-up numbers, in the schemas that the report reads."""

import pytest

from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow, BenchRun, Spread, Verdict
from lab.report.made_up_study import write_study


@pytest.fixture(scope="module", autouse=True)
def _short_chart_library():
    """In place of plotly's 5 MB, which take a second to pack and to unpack; trials have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plotly.offline.get_plotlyjs", lambda: "/* charts */")
        yield


@pytest.fixture
def make_study(tmp_path):
    """Writes a made-up study into a folder of the given name."""
    return lambda name="study", **options: write_study(tmp_path / name, **options)


def spread_of(median):
    """Quartiles 5 % and extremes 10 % to either side."""
    low, high, minimum, maximum = (median * x for x in (0.95, 1.05, 0.9, 1.1))
    return Spread(median=median, low=low, high=high, minimum=minimum, maximum=maximum, rounds=5)


def bench_row(role, name, seconds, over_t, **more):
    """A contender that ran."""
    return BenchRow(
        contender=name, role=role, backend=more.pop("backend", name), status="ok",
        check={"worst": "output", "error": 1e-7, "budget": 5e-7, "compared": "everything"},
        seconds=spread_of(seconds), ratio_t=spread_of(over_t), flops=10**9,
        flops_per_second=1e9 / seconds, share_of_peak=0.4, **more,
    )  # fmt: skip


def bench_case(suite, shape, rows, **more):
    """One case of a made-up run."""
    values = {"device": "cpu", "dtype": "float32", "mode": "forward"} | more
    return BenchCase(
        suite=suite, run="cpu-00c0ffee", shape=shape, created="2001-02-03T04:05:06+00:00",
        matmul_flops_per_second=1e11, rows=rows, **values,
    )  # fmt: skip


@pytest.fixture
def bench_result():
    """A record of two lengths, a decode shape and a model; every number is made up."""
    cases = []
    for length in (512, 1_024):
        rows = [
            bench_row("T", "sdpa", 0.01, 1.0, backend="sdpa (flash)", peak_bytes=2**20),
            bench_row("TC", "softmax_chunked", 0.009, 0.9, backend="chunked"),
            bench_row("DIFF", "chunked", 0.0096, 0.96, ratio_tc=spread_of(1.07),
                      peak_bytes=3 * 2**19),
            BenchRow(contender="reference", role="DIFF", backend=None, status="not run",
                     reason="its maps would take about 5.0 GiB, the limit is 4"),
            BenchRow(contender="<flex>", role="DIFF", backend=None, status="failed",
                     reason="output: error 1.00e+00"),
        ]  # fmt: skip
        limit = Verdict(target="forward at most 1.05 × T", contender="chunked", value=0.96,
                        limit=1.05 if length == 512 else 0.9)  # fmt: skip
        shape = {"B": 1, "H": 4, "d": 64, "N": length}
        cases.append(bench_case("ops", shape, rows, verdicts=[limit]))
    rows = [bench_row("T", "sdpa", 0.001, 1.0), bench_row("DIFF", "reference", 0.002, 2.0)]
    shape = {"B": 1, "H": 4, "d": 64, "N": 1, "S": 4_096}
    cases.append(bench_case("decode", shape, rows, mode="decode"))
    rows = [
        bench_row("T", "softmax_sdpa", 0.5, 1.0, backend="sdpa", tokens_per_second=8_192.0),
        bench_row("TC", "softmax", 0.5, 1.0, backend="chunked", tokens_per_second=8_192.0),
        bench_row("DIFF", "diff", 0.512, 1.024, backend="chunked", tokens_per_second=8_000.0),
    ]
    shape = {"size": "3b", "B": 2, "N": 2_048, "layers": 28}
    cases.append(bench_case("models", shape, rows, device="cuda"))
    run = BenchRun(
        name="cpu-00c0ffee", created="2001-02-03T04:05:06+00:00", commit="c0ffee" * 7, dirty=True,
        source="0123456789abcdef", versions={"torch": "0.0 (made up)", "triton": None},
        hardware={"processor": "Made-up <processor>", "threads": 1}, settings={"rounds": 3},
    )  # fmt: skip
    return BenchResult(runs={run.name: run}, cases=cases)

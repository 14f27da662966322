"""Generation of whole models: what is timed, its cache, and a check that notices a wrong one."""

import pytest
import torch

from diffattn.lab.benchmark import generation, models
from diffattn.lab.benchmark.config import BenchConfig
from diffattn.lab.benchmark.contender_names import contender_names
from diffattn.lab.benchmark.generation import contenders, plan, smallest_bytes
from diffattn.lab.benchmark.model_check import check_model
from diffattn.lab.benchmark.models import ModelSize
from diffattn.lab.benchmark.session import run_bench
from diffattn.lab.report.benchmarks.tables import markdown


@pytest.fixture
def cases(monkeypatch):
    size = ModelSize(
        hidden_size=32, num_layers=3, num_heads=2, head_dim=8, vocab_size=61, batch=2,
        lengths=(24,),
    )  # fmt: skip
    monkeypatch.setitem(models.SIZES, "laptop", size)
    return plan(BenchConfig(suite="generation", scale="quick", lengths=(24,)))


def test_every_model_reads_and_goes_on(cases):
    prefill, decode = cases
    assert (prefill.mode, prefill.shape["N"]) == ("prefill", 24)
    assert (decode.mode, decode.shape["N"], decode.shape["S"]) == ("decode", 1, 24)
    for case, tokens in ((prefill, 24), (decode, 1)):
        found = {c.name: c for c in contenders(case)}
        assert list(found) == list(contender_names("generation"))
        for contender in found.values():
            checked = contender.check(False)
            assert checked["passed"], (contender.name, checked)
            assert checked["compared"] == "2 layers, 25 tokens, in norm"
            with torch.no_grad():
                first, again = contender.forward(), contender.forward()
            assert first.shape == (1, 1, 61)
            assert torch.equal(first, again), contender.name  # the cache is as it was
            assert contender.tokens == tokens
        # Keys and values of 24 tokens: 3 layers, 2 heads of twice 8, float32.
        assert found["diff"].cache_bytes == found["softmax"].cache_bytes == 24 * 3 * 2 * 32 * 4
        assert 2 * smallest_bytes(case) == found["diff"].cache_bytes


def test_folding_changes_the_work_and_not_the_result(cases):
    shared, folded = (
        c for c in contenders(cases[1], ("shared_diff", "shared_diff_folded")) if c.role == "DIFF"
    )
    with torch.no_grad():
        torch.testing.assert_close(shared.forward(), folded.forward(), rtol=1e-4, atol=1e-5)


def test_a_wrong_cache_fails_its_check(cases):
    config = models.model_config(cases[0], "diff")

    def make(config, *, implementation):
        model = generation.make(config, implementation=implementation, name="diff")
        if config.attention_backend != "reference":
            forward = model.forward

            def forgets(input_ids, past_key_values=None, **options):
                if past_key_values is not None and input_ids.shape[1] == 1:
                    past_key_values.layers[0].values *= 1.01
                return forward(input_ids=input_ids, past_key_values=past_key_values, **options)

            model.forward = forgets
        return model

    ids = torch.arange(25)[None]
    found = check_model(make, config, "diffattn", "diffattn", ids, torch.float32, cached=True)
    assert not found["passed"]


def test_a_record_and_its_table(cases, tmp_path):
    config = BenchConfig(
        suite="generation", scale="quick", lengths=(24,), only=("diff",), rounds=1, seconds=0
    )
    result, measured = run_bench(config, tmp_path / "cpu.json", on_message=lambda line: None)
    assert [case.mode for case in measured] == ["prefill", "decode"]
    lines = markdown(result).splitlines()
    assert len(lines) == 2 + 2 + 2
    assert "| laptop | 1 | 24 | float32 | prefill |" in lines[2]
    assert "tokens/s)" in lines[3]

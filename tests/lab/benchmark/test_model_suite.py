"""Whole models in training and generation: sizes, what is timed, and a check of wrong ones."""

import itertools
from dataclasses import replace

import pytest
import torch

from diffattn.lab.benchmark import models
from diffattn.lab.benchmark.config import BenchConfig, contender_names
from diffattn.lab.benchmark.models import (
    SIZES,
    ModelSize,
    check_model,
    contenders,
    model_config,
    smallest_bytes,
)
from diffattn.lab.benchmark.session import plan, run_bench
from diffattn.ops.inputs import backends
from tools.pages.bench_tables import markdown

GENERATION = BenchConfig(suite="generation", scale="quick", lengths=(24,))


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.setitem(models.SIZES, "laptop", ModelSize(32, 3, 2, 8, 61, 2, (24,)))
    return plan(GENERATION)


@pytest.fixture
def case(cases):
    return plan(BenchConfig(suite="models", scale="quick"))[1]


def test_every_model_runs_is_right_and_says_what_ran(case):
    found = {c.name: c for c in contenders(case)}
    assert list(found) == list(contender_names("models"))
    for contender in found.values():
        checked = contender.check(True)
        assert checked["passed"], (contender.name, checked)
        assert checked["compared"] == "2 layers, 24 tokens, in norm"
        contender.backward(contender.forward())
        assert contender.tokens == 48
        assert contender.flops > 0
    assert found["diff"].backend in backends.names("diff_attention")
    assert found["softmax_sdpa"].backend == found["llama"].backend == "sdpa"
    assert found["diffllama"].technique == found["llama"].technique
    assert [c.name for c in contenders(case, ("diff",))] == ["softmax_sdpa", "diff"]


def test_on_a_gpu_a_model_is_checked_once_at_its_shortest_length(monkeypatch):
    """At every depth and length and in both modes the one result is given."""
    monkeypatch.setattr(models, "_CHECKED", {})
    monkeypatch.setattr(BenchConfig, "__post_init__", lambda self: None)
    checked = []

    def check(ids, dtype, gradients):
        checked.append((tuple(ids.shape), dtype, gradients))
        return {"passed": True}

    cases = plan(BenchConfig(suite="models", scale="cut", device="cuda"))
    assert len(cases) == 16
    for case, name in itertools.product(cases, ("softmax", "diff")):
        config = SIZES[case.shape["size"]].config()
        ids = torch.zeros(1, case.shape["N"], dtype=torch.int64)
        asked = models._once_on_gpu(case, name, config, check, ids)
        assert asked(case.mode == "forward_backward") == {"passed": True}
    # 3B at two layers of 2 and of 6, 13B at one of 1 and two of 3.
    assert checked == [((1, 2_048), torch.bfloat16, True)] * 6


def spoiled(change, kind="diff"):
    """What makes the models of a check, with a change of those that are not the reference."""

    def make(config, *, implementation):
        model = models.build(config, implementation=implementation, name=kind)
        if config.attention_backend != "reference":
            change(model)
        return model

    return make


@pytest.mark.parametrize("gradients", [False, True])
def test_a_wrong_model_fails_its_check(case, gradients):
    make, ids = spoiled(lambda model: model.lm_head.weight.data.mul_(1.001)), torch.arange(24)[None]
    config = model_config(case, "diff")
    result = check_model(make, config, "diffattn", "diffattn", ids, torch.float32, gradients)
    assert not result["passed"]
    assert result["error"] > result["budget"]


@pytest.mark.parametrize("kind", ["diff", "diff_v2", "softmax"])
def test_in_16_bits_a_model_that_does_not_attend_fails(kind):
    """Rounding in bfloat16 alone would hide that every map is uniform."""
    (_, case) = plan(BenchConfig(suite="models", scale="quick"))
    config, ids = model_config(case, kind), torch.arange(64)[None]

    def flatten_maps(model):
        for name, weight in model.named_parameters():
            if "q_proj" in name:
                weight.data.zero_()

    for change in (lambda model: None, flatten_maps):
        make = spoiled(change, kind)
        result = check_model(make, config, "diffattn", "diffattn", ids, torch.bfloat16)
        assert result["passed"] is (change is not flatten_maps), result
        assert result["compared"] == "2 layers, 64 tokens, in norm, in bfloat16 and float32"


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
    config = model_config(cases[0], "diff")

    def make(config, *, implementation):
        model = models.build(config, implementation=implementation, name="diff", trains=False)
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
    config = replace(GENERATION, only=("diff",), rounds=1, seconds=0)
    result, measured = run_bench(config, tmp_path / "cpu.json", on_message=lambda line: None)
    assert [case.mode for case in measured] == ["prefill", "decode"]
    lines = markdown(result).splitlines()
    assert len(lines) == 2 + 2 + 2
    assert "| laptop | 1 | 24 | float32 | prefill |" in lines[2]
    assert "tokens/s)" in lines[3]

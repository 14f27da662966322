"""Whole models: matched sizes, the form that runs, and a check that notices a wrong one."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.benchmark import models
from diffattn.lab.benchmark.config import BenchConfig
from diffattn.lab.benchmark.contender_names import contender_names
from diffattn.lab.benchmark.model_check import check_model
from diffattn.lab.benchmark.models import SIZES, ModelSize, contenders, model_config, plan
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.models.accounting import parameter_count
from diffattn.ops.inputs import backends


@pytest.fixture
def case(monkeypatch):
    size = ModelSize(
        hidden_size=32, num_layers=3, num_heads=2, head_dim=8, vocab_size=61, batch=2,
        lengths=(24,),
    )  # fmt: skip
    monkeypatch.setitem(models.SIZES, "laptop", size)
    (_, case) = plan(BenchConfig(suite="models", scale="quick"))
    return case


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


def test_on_a_gpu_a_model_is_checked_once_at_its_shortest_length(monkeypatch):
    """At every depth and length and in both modes the one result is given."""
    monkeypatch.setattr(models, "_CHECKED", {})
    checked = []

    def check(ids, dtype, gradients):
        checked.append((tuple(ids.shape), dtype, gradients))
        return {"passed": True, "compared": len(checked)}

    monkeypatch.setattr(BenchConfig, "__post_init__", lambda self: None)
    cases = plan(BenchConfig(suite="models", scale="cut", device="cuda"))
    results = {}
    for case in cases:
        for name in ("softmax", "diff"):
            config = SIZES[case.shape["size"]].config()
            ids = torch.zeros(1, case.shape["N"], dtype=torch.int64)
            asked = models._once_on_gpu(case, name, config, check, ids)
            result = asked(case.mode == "forward_backward")
            results.setdefault((case.shape["size"], name), set()).add(result["compared"])
    assert len(cases) == 16
    # 3B at two layers of 2 and of 6, 13B at one of 1 and two of 3.
    assert checked == [((1, 2_048), torch.bfloat16, True)] * 6
    assert all(len(of) == 1 for of in results.values())
    assert results["3b-2-layers", "diff"] == results["3b-6-layers", "diff"]
    assert results["13.1b-1-layers", "diff"] != results["13.1b-3-layers", "diff"]
    on_cpu = replace(cases[-1], device="cpu")
    assert models._once_on_gpu(on_cpu, "diff", config, check, ids)(False)["compared"] == 7
    assert checked[-1] == ((1, 4_096), torch.bfloat16, False)


def test_models_are_matched(case):
    counts = [parameter_count(model_config(case, kind)) for kind in ("softmax", "diff", "diff_v2")]
    assert max(counts) - min(counts) < 0.02 * min(counts)


def test_only_keeps_t(case):
    assert [c.name for c in contenders(case, ("diff",))] == ["softmax_sdpa", "diff"]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_wrong_model_fails_its_check(case, gradients):
    config = model_config(case, "diff")

    def make(config, *, implementation):
        model = models.build(
            config, implementation=implementation, whose="diffattn", attention_type="diff"
        )
        if config.attention_backend != "reference":
            model.lm_head.weight.data.mul_(1.001)
        return model

    ids = torch.arange(24)[None]
    result = check_model(make, config, "diffattn", "diffattn", ids, torch.float32, gradients)
    assert not result["passed"]
    assert result["error"] > result["budget"]


@pytest.mark.parametrize("kind", ["diff", "diff_v2", "softmax"])
def test_in_16_bits_a_model_that_does_not_attend_fails(kind):
    """Rounding in bfloat16 alone would hide that every map is uniform."""
    (_, case) = plan(BenchConfig(suite="models", scale="quick"))
    config = model_config(case, kind)

    def make(config, *, implementation):
        model = models.build(
            config, implementation=implementation, whose="diffattn", attention_type=kind
        )
        if config.attention_backend != "reference" and wrong:
            for name, weight in model.named_parameters():
                if "q_proj" in name:
                    weight.data.zero_()
        return model

    ids = torch.arange(64)[None]
    for wrong in (False, True):
        result = check_model(make, config, "diffattn", "diffattn", ids, torch.bfloat16)
        assert result["passed"] is not wrong, result
        assert result["compared"] == "2 layers, 64 tokens, in norm, in bfloat16 and float32"


def test_the_laptop_is_that_of_the_recipe():
    ours, theirs = SIZES["laptop"].config().twin("softmax").config, recipe("laptop").model
    for field in ("hidden_size", "num_hidden_layers", "num_heads", "head_dim", "vocab_size",
                  "intermediate_size", "max_position_embeddings"):  # fmt: skip
        assert getattr(ours, field) == getattr(theirs, field), field


def test_sizes_of_the_paper_keep_their_widths_and_state_their_layers():
    config = SIZES["13.1b"].config()
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (5_120, 10, 128)
    assert SIZES["3b"].num_layers == 28

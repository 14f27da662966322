"""``diffattn check --layer`` names every planted mistake of a fresh copy, and passes right ones."""

import re

import handwritten
import pytest
import torch
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from diffattn import DiffAttention
from diffattn.errors import ConfigError
from diffattn.lab.layer_check import compare
from diffattn.lab.layer_check.calling import HIDDEN, load_layer, read_weights
from diffattn.lab.layer_check.compare import check_layer
from diffattn.lab.layer_check.formula import FACTS, PLANTED, Formula, attend

OF_GROUPS, OF_V2 = ("repeated_keys",), ("no_sigmoid", "pairs_of_other_keys", "norm_in_v2")
OF_A_CLASS = {
    "zero_vectors": "ZeroVectors",
    "narrow_values": "Narrow",
    "lambda_by_head": "ListOfHeads",
}


def checked(name):
    return check_layer(load_layer(f"handwritten:{name}"))


@pytest.fixture
def plant(monkeypatch):
    """The report on a hand-written layer with a mistake."""

    def planted(base, mistake):
        cls = type("Planted", (getattr(handwritten, base),), {"mistake": mistake})
        monkeypatch.setattr(handwritten, "Planted", cls, raising=False)
        return checked("Planted")

    return planted


@pytest.mark.parametrize("mistake", [m.name for m in PLANTED] + ["detached_lambda"])
def test_a_planted_mistake_is_found_alone(mistake, plant):
    base = "Second" if mistake in OF_V2 else "Grouped" if mistake in OF_GROUPS else "Copy"
    report = plant(base, mistake)
    expected = {mistake, *({"detached_lambda"} if mistake == "lambda_vectors_unused" else ())}
    assert set(report.mistakes) == expected
    assert report.explained
    assert not report.right


@pytest.mark.parametrize("mistake", ["lambda_init_depth", "lambda_init_constant"])
def test_a_wrong_lambda_init_is_found(mistake, plant):
    (text,) = plant("Copy", mistake).mistakes.values()
    assert text.startswith("λ_init is 0.")


@pytest.mark.parametrize(("mistake", "name"), OF_A_CLASS.items())
def test_a_mistake_of_shapes_or_starts_is_found(mistake, name):
    assert set(checked(name).mistakes) == {mistake}


def test_every_known_mistake_is_tested():
    tested = {"lambda_init_depth", "lambda_init_constant", "detached_lambda", "wide_start"}
    assert tested | {"heads_not_halved"} | set(OF_A_CLASS) == set(FACTS)


def test_several_mistakes_are_found_together(plant):
    report = plant("Tutorial", "not_causal")
    assert set(report.mistakes) == {
        "not_causal", "wide_start", "heads_not_halved", "lambda_by_head"
    }  # fmt: skip
    report = plant("Copy", "norm_over_tokens and norm_centred")
    assert set(report.mistakes) == {"norm_over_tokens", "norm_centred"}


@pytest.mark.scheduled
def test_three_mistakes_of_the_output_are_found_together():
    expected = {"not_causal", "norm_after_output", "norm_centred", "narrow_values"}
    assert set(checked("NormBehindOutput").mistakes) == expected


@pytest.mark.parametrize(
    "name",
    ["Copy", "Grouped", "Second", "Original", "TwoProjections", "Fused", "factory", "instance"],
)
def test_a_right_layer_passes(name):
    report = checked(name)
    assert report.right
    assert report.difference < 1e-3
    positions = "rotary interleaved" if name == "Original" else "no positions"
    assert positions in report.layout
    assert ("mask: True where seen" in report.layout) == (name == "Original")


def test_the_layer_of_transformers_passes(monkeypatch):
    """Its heads, keys and halves of values lie apart, and its mask is required."""
    config = DiffLlamaConfig(
        hidden_size=64, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=3
    )
    config._attn_implementation = "eager"
    layer = DiffLlamaAttention(config, 2)
    monkeypatch.setattr(handwritten, "diffllama", layer, raising=False)
    report = checked("diffllama")
    assert report.right
    assert report.layout.startswith("maps of head i in rows i and i + H, rotary halves")


@pytest.mark.parametrize("name", ["DiffAttention", "DiffAttentionV2"])
def test_our_layers_pass(name):
    assert check_layer(load_layer(f"diffattn:{name}")).right


def test_the_formula_without_a_mistake_is_our_layer():
    layer = DiffAttention(HIDDEN, 4, 8, num_kv_heads=2, layer_idx=3).double()
    x = torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    out = attend(read_weights(layer), Formula(lambda_init=layer.lambda_init), x)
    torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-12)


def test_a_step_that_no_formula_has_is_not_explained(monkeypatch):
    monkeypatch.setattr(compare, "_MOST_TOGETHER", 1)  # three take minutes
    report = checked("Unknown")
    assert not report.explained
    assert not report.right
    assert report.remaining > 0.01


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("handwritten", "--layer: must be MODULE:NAME, got 'handwritten'."),
        ("no_module:Copy", "--layer: cannot import no_module: ModuleNotFoundError: No module"),
        (
            "handwritten:Copi",
            "--layer: handwritten has no class or function 'Copi'. Did you mean 'Copy'?",
        ),
        ("handwritten:needs_configuration", "--layer: needs_configuration needs 'config', whose"),
        ("handwritten:fails", "--layer: fails(dim=64) raises RuntimeError: no such."),
        ("handwritten:OtherShape", "OtherShape: with 4 heads of width 8 k must have 2 x Hkv x 8"),
        ("handwritten:OtherArgument", "OtherArgument.forward: needs 'memory', whose name"),
        ("handwritten:NoNames", "NoNames: must have projections named q_proj"),
        ("handwritten:NumberForLambda", "NumberForLambda: must have projections named q_proj"),
    ],
)
def test_what_cannot_be_compared_is_one_line(name, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        check_layer(load_layer(name))
    assert "\n" not in str(caught.value)

"""Llama, Qwen2 (biases) and Qwen3 (norms on queries and keys) as ours, of every type."""

import itertools
import shutil

import pytest
import torch

from diffattn.errors import CheckpointError
from diffattn.lab.training.initial import initial_config, initial_model, initial_weights
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.layouts import STARTS
from model_folders import edit_config

FAMILIES = ("llama", "qwen2", "qwen3")
NEW = {
    "llama": (),
    "qwen2": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
    "qwen3": ("q_norm.weight", "k_norm.weight"),
}
OPTION = {"qwen2": "qkv_bias", "qwen3": "qk_norm"}
PLAIN = {"head_norm": False}
every_family = pytest.mark.parametrize("family", FAMILIES)


PUSHED = (  # every family, with what differs most in each
    ("llama", "diff_v2", 2, torch.float32, False),
    ("qwen2", "diff_v2", 2, torch.float32, False),
    ("qwen3", "diff_v2", 2, torch.bfloat16, True),
)
CASES = [
    pytest.param(*case, marks=[] if case in PUSHED else [pytest.mark.scheduled])
    for case in itertools.product(
        FAMILIES, ("diffattn", "diff_v2"), (4, 2), (torch.float32, torch.bfloat16), (False, True)
    )
]


@pytest.mark.parametrize(("family", "target", "kv_heads", "dtype", "tied"), CASES)
def test_it_has_the_logits_and_tokens_of_its_source(
    family, target, kv_heads, dtype, tied, source, converted, network, ids, assert_only_rounding
):
    given = source(family, kv_heads=kv_heads, dtype=dtype, tie_word_embeddings=tied)
    result, reference = network(converted(given, target)), network(given)
    assert result.config.attention_type == ("softmax" if target == "diffattn" else target)
    for name, option in OPTION.items():
        assert getattr(result.config, option) is (name == family)
    with torch.no_grad():
        logits = reference(ids).logits
    assert logits.dtype == dtype
    assert_only_rounding([logits], result, lambda m: [m(ids).logits.detach()])
    if dtype == torch.float32:  # in bfloat16 two tokens may be equally likely
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        assert torch.equal(result.generate(ids, **options), reference.generate(ids, **options))


def halves(x, heads=4):
    """The two maps' rows of a projection or of its bias."""
    return x.unflatten(0, (heads, 2, -1)).unbind(1)


@pytest.mark.parametrize(
    "family", ["llama", pytest.param("qwen2", marks=pytest.mark.scheduled), "qwen3"]
)
def test_training_goes_on_where_it_stood_and_parts_the_maps(
    family, source, start, network, trained_step, ids
):
    """The loss is that of the softmax model; every parameter has a gradient, and those of the two
    queries, weights and biases, are opposite in sign: the first step moves them apart."""
    with torch.no_grad():
        before = network(source(family))(ids, labels=ids).loss.item()
    folder = start(family)
    model = initial_model(
        initial_config(folder), initial_weights(folder, initial_config(folder))
    )  # as ``diffattn train --init-from START --same-model`` does
    loss, gradients = trained_step(model, ids)
    assert loss == pytest.approx(before, rel=1e-6)
    for name in ("lambda_proj.weight", "lambda_proj.bias", *NEW[family]):
        assert all(x.abs().max() > 1e-5 for x in gradients[name]), name
    for name in [name for name in gradients if name.startswith("q_proj")]:
        for first, second in map(halves, gradients[name]):
            assert first.abs().max() > 1e-5
            assert (second + first / 2).abs().max() < 1e-4 * first.abs().max(), name
        for layer in model.model.layers:
            first, second = halves(layer.self_attn.get_parameter(name).detach())
            assert (first - second).abs().median().item() == pytest.approx(2e-3, rel=0.05)
    assert trained_step(model, ids)[0] < loss


@pytest.mark.scheduled
@every_family
@pytest.mark.parametrize("target", ["diff", "shared_diff"])
def test_v1_and_shared_keep_the_output_without_their_head_norm(
    family, target, source, start, network, trained_step, ids, assert_only_rounding
):
    result = network(start(family, target, **PLAIN))
    with torch.no_grad():
        logits = network(source(family))(ids).logits
    assert_only_rounding([logits], result, lambda m: [m(ids).logits.detach()], ulps=4.0)
    _, gradients = trained_step(result, ids)
    late = {"q_up", "k_up"}  # of updates that are 0 until the first step
    still = {name for name, x in gradients.items() if not all(y.any() for y in x)}
    assert still == (late if target == "shared_diff" else set())


@pytest.mark.scheduled
@every_family
def test_a_head_norm_starts_from_the_size_of_the_values(
    family, source, start, network, ids, tmp_path
):
    """Larger values, biases included, read by smaller weights give the same start."""
    other = network(source(family))
    with torch.no_grad():
        for layer in other.model.layers:
            for parameter in layer.self_attn.v_proj.parameters():
                parameter *= 8
            layer.self_attn.o_proj.weight /= 8
    other.save_pretrained(tmp_path / "other")
    convert(str(tmp_path / "other"), "diff", tmp_path / "out")
    logits, same = (network(x)(ids).logits for x in (tmp_path / "out", start(family, "diff")))
    assert (logits - same).abs().max() < 1e-3 * same.abs().max()


@pytest.mark.scheduled
@every_family
@pytest.mark.parametrize("target", STARTS)
def test_caches_and_kernels_agree(family, target, start, network, ids, implementation):
    """What a cache holds has its bias, its norm and its position already."""
    model = network(start(family, target))
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, **options), expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), expected)
    with torch.no_grad():
        logits = model(ids).logits
    for name in ("sdpa", "eager"):
        with implementation(model, name):
            with torch.no_grad():
                torch.testing.assert_close(model(ids).logits, logits, rtol=1e-4, atol=1e-4)
            assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.scheduled
@every_family
def test_scaled_rope_is_kept(family, source, converted):
    """As these families are told to read longer contexts: else the logits would differ."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    rope["original_max_position_embeddings"] = 8
    given = source.__wrapped__(family, max_position_embeddings=32, rope_parameters=rope)
    converted(given, "diff_v2")


SLIDING = "layer_types must be full_attention, or .*, got 'sliding_attention'"
WINDOWED = {"sliding_window": 16, "max_position_embeddings": 64}
MIXED = WINDOWED | {"use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("family", "settings"), [("mistral", WINDOWED), ("qwen2", MIXED), ("qwen3", MIXED)]
)
def test_windows_are_refused_unless_no_layer_has_one(family, settings, source, converted, tmp_path):
    windowed = source(family, **settings)
    with pytest.raises(CheckpointError, match="--set max_position_embeddings=16"):
        convert(str(windowed), "diff_v2", tmp_path / "out")
    assert converted(windowed, "diff_v2", changes={"max_position_embeddings": 16}).exists()
    if family != "mistral":
        whole = source(family, **settings | {"max_window_layers": 2})
        assert converted(whole, "diff_v2").exists()


@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2", {"model_type": "qwen2_moe"}, "model_type must be one of .*, got 'qwen2_moe'"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act must be 'silu', as in a DIFF Tr.*'gelu'"),
        ("llama", {"attention_bias": True}, "attention_bias must be False, as in a DIFF Tr.*"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be False, as in a DIFF Transformer, got True"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, SLIDING),
        (
            "qwen2",
            {"model_type": "llama"},
            r"must hold only tensors of .* Llama family, got .*\.bias",
        ),
        ("qwen3", {"model_type": "qwen2"}, r"must hold .*\.bias as \[\d+\], got none"),
    ],
)
def test_other_members_and_settings_are_refused_by_name(family, changes, message, source, tmp_path):
    given = shutil.copytree(source(family), tmp_path / "given")
    edit_config(given, **changes)
    with pytest.raises(CheckpointError, match=message):
        convert(str(given), "diff_v2", tmp_path / "out")
    assert [x.name for x in tmp_path.iterdir()] == ["given"]

"""Motif, whose models with SwiGLU layers convert.

The formula of ``conftest.Original`` holds: pairs are adjacent, the head norm has a scale. Motif
rotates halves and counts layers from -1 for λ_init.
"""

import json

import pytest
import torch

from diffattn.errors import CheckpointError
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.our_model import load_attention_layer
from diffattn.ops.inputs.formulas import rotary_embedding
from model_folders import edit_config

pytestmark = pytest.mark.scheduled

HIDDEN = 48


@pytest.fixture(params=[1, 2], ids=["pairs", "grouped"])
def motif(original, request):
    """A Motif whose feed-forward layers are SwiGLU, in its names, with its formula."""
    reference = original(kv_heads=2, ratio=request.param)
    reference.rotation, reference.depth = "halves", -1
    reference.state = {n.replace("out_proj", "o_proj"): x for n, x in reference.state.items()}
    reference.out = "o_proj"
    return reference


def config_of(model, **changes):
    if model.ratio > 1:
        changes = {"num_attention_heads": 6, "num_noise_heads": 2} | changes
    return {
        "model_type": "Motif", "vocab_size": 61, "hidden_size": HIDDEN, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6,
        "hidden_act": "silu", "rms_norm_eps": model.eps, "attn_rms_norm_eps": 1e-5,
        "rope_theta": model.theta, "max_position_embeddings": 64, "tie_word_embeddings": False,
    } | changes  # fmt: skip


def save(model, folder, **changes):
    model.save(folder)
    (folder / "config.json").write_text(json.dumps(config_of(model, **changes)))
    return folder


def test_a_motif_with_swiglu_converts(motif, converted, network, ids, assert_close, tmp_path):
    result = network(converted(save(motif, tmp_path / "motif"), "diffattn"))
    ratio = None if motif.ratio == 1 else motif.ratio
    assert (result.config.num_heads, result.config.group_ratio) == (4, ratio)
    assert result.config.lambda_init[0] == pytest.approx(-0.0099, abs=1e-4)
    assert result.config.lambda_init[1] == pytest.approx(0.2)
    with torch.no_grad():
        assert_close(result.double()(ids).logits, motif.logits(ids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "poly_norm"}, "hidden_act must be 'silu', got 'poly_norm'.*alone load"),
        ({"num_noise_heads": 5}, r"num_noise_heads must divide num_attention_heads = \d and be"),
        ({"num_noise_heads": True}, "and be fewer, got True"),
        ({"num_noise_heads": 2, "k_ratio": 3}, "k_ratio must be 1, as in a DIFF Transformer, got"),
        (
            {"num_attention_heads": 6, "num_noise_heads": 2, "num_key_value_heads": 6},
            "num_key_value_heads / 2 must divide num_noise_heads = 2, got 3",
        ),
        ({"use_bias": True}, "use_bias must be False"),
        ({"num_attention_heads": 7}, r"num_attention_heads( =)? (must be even, got )?7"),
        *(
            (wrong, next(iter(wrong)))
            for wrong in (
                {"rope_scaling": 3},
                {"num_key_value_heads": 3},
                {"pad_token_id": 61},
                {"num_hidden_layers": None},  # left out
            )
        ),
    ],
)
def test_wrong_and_unsupported_settings_of_a_motif_are_named(changes, message, motif, tmp_path):
    folder = save(motif, tmp_path / "motif")
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        convert(str(folder), "diffattn", tmp_path / "out")


@pytest.mark.parametrize("index", [0, 1])
def test_an_attention_layer_loads_whatever_the_activation(index, motif, assert_close, tmp_path):
    changes = {"hidden_act": "poly_norm"}
    if motif.ratio == 1:  # Motif-2.6B says no width
        changes["head_dim"] = None
    folder = str(save(motif, tmp_path / "motif", **changes))
    layer = load_attention_layer(folder, index).double()
    x = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(5)).double()
    weights = {name: tensor.double() for name, tensor in motif.state.items()}
    exact = motif.attention(x, weights, f"model.layers.{index}.self_attn.", index - 1)
    cos, sin = rotary_embedding(torch.arange(9), 6, theta=motif.theta)
    with torch.no_grad():
        assert_close(layer(x, (cos.double(), sin.double())), exact)


def test_a_layer_that_the_folder_lacks_is_named(motif, tmp_path):
    with pytest.raises(CheckpointError, match="layer must be below 2, got 2"):
        load_attention_layer(str(save(motif, tmp_path / "whole")), 2)
    del motif.state["model.layers.1.self_attn.q_proj.weight"]
    folder = save(motif, tmp_path / "without")
    with pytest.raises(CheckpointError, match=r"must hold .*layers\.1.*q_proj.weight as .* none"):
        load_attention_layer(str(folder), 1)

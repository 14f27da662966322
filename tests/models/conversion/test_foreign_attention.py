"""Motif and Phi-4-mini-flash: their attention layers, and whole models as far as ours can be them.

The formula of ``conftest.Original`` holds for both: pairs are adjacent, the head norm has a scale;
Motif rotates halves and counts layers from -1 for λ_init, Phi has biases and no positions.
"""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from diffattn.errors import CheckpointError
from diffattn.models.conversion.attention_layers import load_attention_layer
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.settings_of import settings_of
from diffattn.models.conversion.source import open_source
from diffattn.ops.inputs.rotary import rotary_embedding

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
    "changes",
    [
        {"rope_theta": "far"},
        {"rope_scaling": 3},
        {"hidden_size": "48"},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"pad_token_id": 61},
        {"num_hidden_layers": None},
        {"attn_rms_norm_eps": []},
    ],
    ids=str,
)
def test_wrong_settings_of_a_motif_are_named(motif, changes, tmp_path):
    (field,) = changes
    folder = save(motif, tmp_path / "motif", **changes)
    if changes[field] is None:
        settings = config_of(motif)
        del settings[field]
        (folder / "config.json").write_text(json.dumps(settings))
    for load in (lambda: load_attention_layer(str(folder), 0), lambda: read(str(folder))):
        with pytest.raises(CheckpointError, match=field):
            load()


def read(folder):
    with open_source(folder) as source:
        return settings_of(source, {})


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
    ],
)
def test_unsupported_parts_of_motif_are_named(changes, message, motif, tmp_path):
    folder = save(motif, tmp_path / "motif", **changes)
    with pytest.raises(CheckpointError, match=message):
        convert(str(folder), "diffattn", tmp_path / "out")


@pytest.mark.parametrize("index", [0, 1])
def test_a_layer_of_motif_alone(index, motif, assert_close, tmp_path):
    """Motif's own feed-forward activation is no hindrance for that."""
    config = config_of(motif, hidden_act="poly_norm")
    if motif.ratio == 1:  # Motif-2.6B says no width
        del config["head_dim"]
    folder = motif.save(tmp_path / "motif")
    (folder / "config.json").write_text(json.dumps(config))
    layer = load_attention_layer(str(folder), index).double()
    x = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(5)).double()
    at = f"model.layers.{index}.self_attn."
    w = {n: t.double() for n, t in motif.state.items()}
    exact = motif.attention(x, w, at, index - 1)
    cos, sin = rotary_embedding(torch.arange(9), 6, theta=motif.theta)
    with torch.no_grad():
        assert_close(layer(x, (cos.double(), sin.double())), exact)


@pytest.fixture
def phi(original, tmp_path):
    """``phi()``: folder with layers 1 (window of 4) and 5 (whole context) of eight, and weights."""
    reference = original(kv_heads=2)
    reference.turn = lambda x: x
    generator = torch.Generator().manual_seed(8)
    state, layers = {}, {}
    for index, source in ((1, 0), (5, 1)):
        old, new = f"model.layers.{source}.self_attn.", f"model.layers.{index}.attn."
        inner = {n.removeprefix(old): x for n, x in reference.state.items() if n.startswith(old)}
        biases = {
            f"{n}_proj.bias": torch.randn(inner[f"{n}_proj.weight"].shape[0], generator=generator)
            for n in "qkv"
        }
        biases["out_proj.bias"] = torch.randn(HIDDEN, generator=generator)
        layers[index] = inner | biases
        for kind in ("weight", "bias"):
            fused = [layers[index][f"{n}_proj.{kind}"] for n in "qkv"]
            state[f"{new}Wqkv.{kind}"] = torch.cat(fused)
            state[f"{new}out_proj.{kind}"] = layers[index][f"out_proj.{kind}"]
        inside = {n: x for n, x in inner.items() if n.startswith(("lambda", "subln"))}
        state |= {f"{new}inner_cross_attn.{n}": x for n, x in inside.items()}
    folder = tmp_path / "phi"
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    config = {
        "model_type": "phi4flash", "hidden_size": HIDDEN, "num_attention_heads": 8,
        "num_key_value_heads": 4, "num_hidden_layers": 8, "mb_per_layer": 2, "sliding_window": 4,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder, reference, layers


def test_a_layer_of_phi_alone(phi, assert_close):
    """Biases are a constant channel: the formula without them, on inputs with a 1 appended."""
    folder, formula, layers = phi
    x = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(5)).double()
    w = {n: t.double() for n, t in layers[5].items()}
    for n in "qkv":
        w[f"{n}_proj.weight"] = torch.cat((w[f"{n}_proj.weight"], w[f"{n}_proj.bias"][:, None]), 1)
    with_constant = torch.cat((x, torch.ones(2, 9, 1, dtype=torch.float64)), -1)
    exact = formula.attention(with_constant, w, "", 5) + w["out_proj.bias"]
    with torch.no_grad():
        assert_close(load_attention_layer(str(folder), 5).double()(x), exact)


def test_its_lower_layers_see_a_window(phi):
    folder, *_ = phi
    layer = load_attention_layer(str(folder), 1)
    x = torch.randn(1, 9, HIDDEN, generator=torch.Generator().manual_seed(5))
    other = x.clone()
    other[:, 4] += 1
    with torch.no_grad():
        moved = (layer(x) - layer(other)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False] * 4 + [True] * 4 + [False]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (2, "got a state-space layer in layer 2"),
        (7, "got cross-attention in layer 7"),
        (9, "layer must be below 8, got 9"),
        (3, r"layer 3 must hold lambda_q1 as \[6\], got none"),
    ],
)
def test_other_layers_are_refused(phi, index, message):
    with pytest.raises(CheckpointError, match=message):
        load_attention_layer(str(phi[0]), index)


def test_the_whole_of_phi_is_refused(phi, tmp_path):
    message = "state-space layers, gated memory units, LayerNorm and biases, and no positions"
    with pytest.raises(CheckpointError, match=message):
        convert(str(phi[0]), "diffattn", tmp_path / "out")


def test_a_layer_of_a_model_that_converts_whole_is_refused(diffllama):
    call = partial(load_attention_layer, str(diffllama()), 0)
    with pytest.raises(CheckpointError, match="Convert the whole model instead"):
        call()

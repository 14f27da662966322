"""Our V1 against transformers' own DiffLlama: another author's implementation, the same function.

DiffLlama counts 2h heads where we count h, and pairs head i with head i + h. Its head norm has no
weight and uses the blocks' eps; its λ_init schedule counts from 0 as ours.
"""

import shutil

import pytest
import torch
from safetensors.torch import save_file
from transformers import DiffLlamaForCausalLM

from diffattn.errors import CheckpointError, ConfigError
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.our_model import read_model
from diffattn.models.conversion.source import open_source

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@pytest.fixture(scope="module", params=[4, 2, 1], ids=["mha", "gqa", "mqa"])
def folders(request, diffllama, converted):
    """DiffLlama, and our model with its weights."""
    folder = diffllama(2 * request.param, num_hidden_layers=3)
    return folder, converted(folder, "diffattn")


@pytest.fixture
def reference(folders, network):
    return network(folders[0])


@pytest.fixture
def converted_model(folders, network):
    """Its λ differs clearly from the start."""
    model = network(folders[1])
    for layer in model.model.layers:
        assert abs(layer.self_attn.lam().item() - layer.self_attn.lambda_init) > 0.1
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_are_equal_to_rounding(
    reference, converted_model, ids, implementation, assert_only_rounding
):
    reference.set_attn_implementation(implementation)
    with torch.no_grad():
        logits = reference(ids).logits
    assert_only_rounding([logits], converted_model, lambda m: [m(ids).logits.detach()])


def test_gradients_are_equal_to_rounding(reference, converted_model, ids, assert_only_rounding):
    def gradients(model):
        """Of the embedding, which all layers feed, and of λ in all layers together."""
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        attention = [layer.self_attn for layer in model.model.layers]
        lambdas = [getattr(layer, name).grad for layer in attention for name in LAMBDAS]
        return model.model.embed_tokens.weight.grad, torch.stack(lambdas)

    assert_only_rounding(gradients(reference), converted_model, gradients)


def relative_error(actual, exact):
    return float((actual - exact).abs().max() / exact.abs().max())


def test_a_wrong_pairing_is_seen(reference, converted_model, ids):
    """The comparison can fail: without the permutation the logits are far apart."""
    for our_layer, layer in zip(converted_model.model.layers, reference.model.layers, strict=True):
        our_layer.self_attn.q_proj.weight = layer.self_attn.q_proj.weight
    with torch.no_grad():
        assert relative_error(converted_model(ids).logits, reference(ids).logits) > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"kv_heads": 4},
        pytest.param({"kv_heads": 8}, marks=pytest.mark.scheduled),
        pytest.param(
            {"dtype": torch.bfloat16, "tie_word_embeddings": True}, marks=pytest.mark.scheduled
        ),
    ],
    ids=str,
)
def test_there_and_back_is_bitwise_identical(diffllama, converted, weights_of, options):
    """Its λ has the dtype of its weights, ours float32: the same number in both."""
    reference = diffllama(**options)
    result = converted(reference, "diffattn")
    before, after = weights_of(reference), weights_of(converted(result, "diffllama"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), name
    projection = weights_of(result)["model.layers.0.self_attn.q_proj.weight"]
    assert projection.dtype == options.get("dtype", torch.float32)


def test_weights_under_the_names_in_memory_are_read(make_config, build, converted, tmp_path):
    """As distributed checkpoints hold them; ``from_pretrained`` takes both."""
    model = build(make_config("diff", num_hidden_layers=1, head_norm_affine=False))
    model.save_pretrained(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "given")
    state = {k: x for k, x in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, tmp_path / "given" / "model.safetensors")
    (tmp_path / "given" / "manifest.json").unlink(missing_ok=True)
    with (
        open_source(str(tmp_path / "given")) as given,
        open_source(str(tmp_path / "saved")) as saved,
    ):
        assert state.keys() != saved.tensors.keys() == given.tensors.keys()
    reference = converted(tmp_path / "given", "diffllama")
    assert DiffLlamaForCausalLM.from_pretrained(reference).config.head_dim == 8
    name = "model.layers.0.self_attn.lambda_q1"
    save_file(state | {name: torch.zeros(8)}, tmp_path / "given" / "model.safetensors")
    with open_source(str(tmp_path / "given")) as both:
        message = r"got model\.layers\.0\.self_attn\.lambda_bias\.lambda_q1"
        with pytest.raises(CheckpointError, match=message):
            read_model(both, {})


@pytest.mark.scheduled
def test_the_scale_of_the_head_norm_is_folded(make_config, build, converted, network, tmp_path):
    """DiffLlama has none, and no factor of the embedding either."""
    build(make_config("diff", embedding_multiplier=3.0)).save_pretrained(tmp_path / "ours")
    reference = network(converted(tmp_path / "ours", "diffllama"))  # which compares the logits
    assert type(reference).__name__ == "DiffLlamaForCausalLM"
    assert not reference.config.tie_word_embeddings


@pytest.mark.scheduled
def test_shared_diff_is_folded_into_v1(make_config, build, converted, tmp_path):
    build(make_config("shared_diff")).save_pretrained(tmp_path / "shared")
    for target in ("diff", "diffllama"):
        converted(tmp_path / "shared", target)  # which compares the logits


V2 = {"attention_type": "diff_v2"}


@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("diffllama", V2, "attention_type of a model for diffllama must be 'diff'"),
        ("diffllama", {"head_norm": False}, "head_norm of a model for .* must be True, got False"),
        ("diffllama", {"lambda_init": 0.5}, r"lambda_init of .* must be None, got 0\.5"),
        ("diffllama", {"head_norm_eps": 1e-3}, r"head_norm_eps of .* must be 1e-05"),
        ("original", {"hidden_size": 40}, "hidden_size of a model for original must be 64, got 40"),
        ("original", V2 | {"lambda_bias": True}, "lambda_bias of a model for original"),
        ("original", {"attention_type": "softmax"}, "attention_type of .* must be 'diff'"),
        ("original", {"embedding_multiplier": 2.0}, "embedding_multiplier of .* must be 1.0"),
        # Without the refusal the tensors of an option would be left out.
        *(
            (target, {"hidden_size": 64, option: True} | kind, rf"{option} of .* must be False")
            for target, kind in (("diffllama", {}), ("original", {}), ("original", V2))
            for option in ("qkv_bias", "qk_norm")
        ),
    ],
)
def test_settings_that_a_layout_lacks_are_refused(
    target, changes, message, make_config, build, tmp_path
):
    config = {"attention_type": "diff", "hidden_size": 64 if target == "original" else 24} | changes
    build(make_config(**config)).save_pretrained(tmp_path / "ours")
    with pytest.raises(ConfigError, match=message):
        convert(str(tmp_path / "ours"), target, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ours"]

"""Softmax models as differential ones: the same output at first, and no trap for training."""

import pytest
import torch
from transformers import GenerationConfig, MistralForCausalLM

from diffattn.errors import CheckpointError, ConfigError
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.layouts import STARTS
from diffattn.models.conversion.our_model import read_model
from diffattn.models.conversion.pretrained import started
from diffattn.models.conversion.settings_of import settings_of
from diffattn.models.conversion.source import opened

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
PLAIN = {"head_norm": False}


@pytest.fixture(scope="module")
def given(llama):
    """Folder of a Llama under GQA."""
    return llama()


@pytest.fixture(scope="module")
def starts(given, converted):
    """``starts(type, **changes)``: the folder it becomes, made once."""
    made = {}

    def start(kind, **changes):
        key = (kind, *changes.items())
        if key not in made:
            made[key] = converted(given, kind, changes=changes)
        return made[key]

    return start


def test_it_ends_where_its_llama_does(llama, converted, network):
    """Several ends of a sequence may stand in this file alone."""
    given = llama()
    ends = GenerationConfig(eos_token_id=[3, 5], temperature=0.6, do_sample=True)
    ends.save_pretrained(given)
    result = network(converted(given, "diff_v2"))
    assert result.generation_config.eos_token_id == [3, 5]
    assert result.generation_config.temperature == 0.6


def trained_step(model, ids, lr=1e-2):
    """Gradients of one step of AdamW, by name."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    model(ids, labels=ids).loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    optimizer.zero_grad()
    return gradients


@pytest.mark.scheduled
@pytest.mark.parametrize("kind", ["diff", "shared_diff"])
def test_v1_and_shared_train_from_their_start(kind, starts, network, ids):
    """Without norm λ moves at once; with it, equal maps hide λ until the first step is done."""
    plain, normed = network(starts(kind, **PLAIN)), network(starts(kind))

    def lambdas(gradients):
        return torch.stack([g for name, g in gradients.items() if name.endswith(LAMBDAS)])

    assert lambdas(trained_step(plain, ids)).abs().max() > 1e-4
    hidden = lambdas(trained_step(normed, ids)).abs().max()
    shown = lambdas(trained_step(normed, ids)).abs().max()
    assert hidden < 1e-3 * shown


@pytest.mark.scheduled
def test_a_head_norm_cannot_keep_the_output(given, tmp_path):
    done = convert(str(given), "diff", tmp_path / "out")
    assert not done.preserved
    assert done.verification.difference > 1e3 * done.verification.rounding


@pytest.mark.scheduled
def test_the_control_without_a_second_map_starts_alike(given, starts, network, ids):
    result, reference = network(starts("diff_v2_gate")), network(given)
    exact = reference(ids).logits
    assert (result(ids).logits - exact).abs().max() < 1e-5 * exact.abs().max()
    shape = reference.model.layers[0].self_attn.q_proj.weight.shape
    assert result.model.layers[0].self_attn.q_proj.weight.shape == shape


@pytest.mark.scheduled
def test_dropout_is_left_out_with_a_warning(llama, converted):
    with pytest.warns(UserWarning, match=r"attention_dropout = 0\.1 is left out"):
        converted(llama(attention_dropout=0.1), "diff_v2")


@pytest.mark.scheduled
def test_ours_becomes_v2_too(make_config, build, converted, network, ids, tmp_path):
    config = make_config("softmax", embedding_multiplier=2.0, rope_parameters={
        "rope_type": "linear", "rope_theta": 100.0, "factor": 2.0,
    })  # fmt: skip
    build(config).save_pretrained(tmp_path / "softmax")
    result = network(converted(tmp_path / "softmax", "diff_v2"))
    exact = network(tmp_path / "softmax")(ids).logits
    assert (result(ids).logits - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("kind", STARTS)
def test_a_backend_of_softmax_alone_is_not_kept(kind, make_config, build, tmp_path):
    build(make_config("softmax", attention_backend="sdpa")).save_pretrained(tmp_path)
    with opened(str(tmp_path)) as source:
        given = read_model(source, {})
        assert given.config.attention_backend == "sdpa"
        assert started(given, kind, {}).config.attention_backend == "auto"
        given.config.attention_backend = "reference"
        assert started(given, kind, {}).config.attention_backend == "reference"


@pytest.mark.parametrize("longest", [32, 256])
def test_dynamic_rope_keeps_the_longest_context(llama, tmp_path, longest):
    """Longer texts than those that are compared turn by it."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    given = str(llama(max_position_embeddings=64, rope_parameters=rope))
    with opened(given) as source, pytest.raises(ConfigError, match=f"must stay 64, .*{longest}"):
        settings_of(source, {"max_position_embeddings": longest})
    with opened(given) as source:
        assert settings_of(source, {"max_position_embeddings": 64})["max_position_embeddings"] == 64


@pytest.mark.parametrize("kind", ["dynamic", "default"])
def test_rope_that_stretches_neither_comes_nor_goes(kind, llama, tmp_path):
    ropes = {
        "default": {"rope_type": "default", "rope_theta": 10_000.0},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    }
    given = ropes.pop(kind)
    with opened(str(llama(max_position_embeddings=64, rope_parameters=given))) as source:
        with pytest.raises(ConfigError, match="'dynamic' turns longer texts otherwise"):
            settings_of(source, {"rope_parameters": ropes.popitem()[1]})
        kept = settings_of(source, {"rope_parameters": given})["rope_parameters"]
        assert kept["rope_type"] == kind


@pytest.mark.scheduled
def test_a_window_narrower_than_the_context_is_refused(llama, converted, tmp_path):
    given = llama(model=MistralForCausalLM, sliding_window=32, max_position_embeddings=64)
    with pytest.raises(CheckpointError, match="--set max_position_embeddings=32"):
        convert(str(given), "diff_v2", tmp_path / "out")
    assert converted(given, "diff_v2", changes={"max_position_embeddings": 32}).exists()


@pytest.mark.scheduled
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', as in a DIFF Transformer, got 'gelu'"),
        ({"attention_bias": True}, "attention_bias must be False, .* no biases on its output"),
        ({"mlp_bias": True}, "mlp_bias must be False, .* no biases on its feed-forward"),
    ],
)
def test_other_settings_are_refused_by_name(changes, message, llama, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        convert(str(llama(**changes)), "diff_v2", tmp_path / "out")


@pytest.mark.scheduled
def test_only_a_softmax_model_starts_another(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path / "v1")
    with pytest.raises(ConfigError, match=r"--to must be one of diffllama, original for .*'diff'"):
        convert(str(tmp_path / "v1"), "diff_v2", tmp_path / "out")
    with pytest.raises(ConfigError, match="head_norm must be left out unless a softmax model"):
        convert(str(tmp_path / "v1"), "diffllama", tmp_path / "out", changes=PLAIN)


@pytest.mark.scheduled
def test_lambda_init_must_keep_away_from_1(given, tmp_path):
    with pytest.raises(ConfigError, match="lambda_init must keep away from 1, got 1"):
        convert(str(given), "diff", tmp_path / "out", changes=PLAIN | {"lambda_init": 1.0})

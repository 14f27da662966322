"""Softmax models as differential ones: the same output at first, and no trap for training."""

import pytest
import torch
from transformers import GenerationConfig

from diffattn.errors import ConfigError
from diffattn.models.conversion.convert import convert
from diffattn.models.conversion.our_model import read_model
from diffattn.models.conversion.pretrained import start_from_softmax
from diffattn.models.conversion.settings_of import settings_of
from diffattn.models.conversion.source import open_source

PLAIN = {"head_norm": False}


def test_it_ends_where_its_llama_does(llama, converted, network):
    """Several ends of a sequence may stand in this file alone."""
    given = llama()
    ends = GenerationConfig(eos_token_id=[3, 5], temperature=0.6, do_sample=True)
    ends.save_pretrained(given)
    result = network(converted(given, "diff_v2"))
    assert result.generation_config.eos_token_id == [3, 5]
    assert result.generation_config.temperature == 0.6


@pytest.mark.scheduled
@pytest.mark.parametrize("kind", ["diff", "shared_diff"])
def test_v1_and_shared_train_from_their_start(kind, start, network, trained_step, ids):
    """Without norm λ moves at once; with it, equal maps hide λ until the first step is done."""
    plain, normed = network(start("llama", kind, **PLAIN)), network(start("llama", kind))

    def largest_gradient(model):
        _, gradients = trained_step(model, ids)
        lambdas = [x for name, layers in gradients.items() if "lambda_" in name for x in layers]
        return torch.stack(lambdas).abs().max()

    assert largest_gradient(plain) > 1e-4
    hidden, shown = largest_gradient(normed), largest_gradient(normed)
    assert hidden < 1e-3 * shown


@pytest.mark.scheduled
def test_a_head_norm_cannot_keep_the_output(source, tmp_path):
    done = convert(str(source("llama")), "diff", tmp_path / "out")
    assert not done.preserved
    assert done.verification.difference > 1e3 * done.verification.rounding


@pytest.mark.scheduled
@pytest.mark.parametrize("kind", ["gated_head", "gated_element"])
def test_gated_attention_starts_alike(kind, source, start, network, ids):
    result, reference = network(start("llama", kind)), network(source("llama"))
    exact = reference(ids).logits
    assert (result(ids).logits - exact).abs().max() < 1e-5 * exact.abs().max()
    shape = reference.model.layers[0].self_attn.q_proj.weight.shape
    assert result.model.layers[0].self_attn.q_proj.weight.shape == shape


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_dex_keeps_every_logit_and_learns_at_once(
    family, source, start, network, trained_step, ids
):
    result, reference = network(start(family, "dex")), network(source(family))
    exact = reference(ids).logits
    assert (result(ids).logits - exact).abs().max() < 1e-5 * exact.abs().max()
    _, gradients = trained_step(result, ids)
    assert min(x.abs().max() for x in gradients["dex_proj.weight"]) > 1e-4
    _, gradients = trained_step(result, ids)  # λ acts once its matrix is not 0
    assert min(x.abs().max() for x in gradients["lambda_bias.lambda_q1"]) > 0


@pytest.mark.scheduled
def test_dropout_is_left_out_with_a_warning(llama, converted):
    with pytest.warns(UserWarning, match=r"attention_dropout = 0\.1 is left out"):
        converted(llama(attention_dropout=0.1), "diff_v2")


@pytest.mark.scheduled
def test_our_softmax_model_becomes_v2(make_config, build, converted, network, ids, tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    config = make_config("softmax", embedding_multiplier=2.0, rope_parameters=rope)
    build(config).save_pretrained(tmp_path / "softmax")
    result = network(converted(tmp_path / "softmax", "diff_v2"))
    exact = network(tmp_path / "softmax")(ids).logits
    assert (result(ids).logits - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("kind", ["diff_v2", "diff", "shared_diff"])
def test_a_backend_of_softmax_alone_is_not_kept(kind, make_config, build, tmp_path):
    build(make_config("softmax", attention_backend="sdpa")).save_pretrained(tmp_path)
    with open_source(str(tmp_path)) as source:
        given = read_model(source, {})
        assert given.config.attention_backend == "sdpa"
        assert start_from_softmax(given, kind, {}).config.attention_backend == "auto"
        given.config.attention_backend = "reference"
        assert start_from_softmax(given, kind, {}).config.attention_backend == "reference"


ROPES = {
    kind: {"rope_type": kind, "rope_theta": 10_000.0}
    | ({"factor": 4.0} if kind == "dynamic" else {})
    for kind in ("default", "dynamic")
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_that_stretches_neither_comes_nor_goes(kind, llama):
    """Texts longer than those that are compared turn by it, and by the longest context."""
    given = llama(max_position_embeddings=64, rope_parameters=ROPES[kind])
    other = next(rope for name, rope in ROPES.items() if name != kind)
    with open_source(str(given)) as source:
        with pytest.raises(ConfigError, match="'dynamic' sets the frequencies of longer texts"):
            settings_of(source, {"rope_parameters": other})
        same = {"rope_parameters": ROPES[kind], "max_position_embeddings": 64}
        assert settings_of(source, same)["rope_parameters"]["rope_type"] == kind
        for longest in (32, 256) if kind == "dynamic" else ():
            with pytest.raises(ConfigError, match=f"must stay 64, .*{longest}"):
                settings_of(source, {"max_position_embeddings": longest})


@pytest.mark.scheduled
def test_only_a_softmax_model_starts_another(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path / "v1")
    with pytest.raises(ConfigError, match=r"--to must be one of diffllama, original for .*'diff'"):
        convert(str(tmp_path / "v1"), "diff_v2", tmp_path / "out")
    with pytest.raises(ConfigError, match="head_norm must be left out unless a softmax model"):
        convert(str(tmp_path / "v1"), "diffllama", tmp_path / "out", changes=PLAIN)


def test_dex_starts_without_head_norm(source, tmp_path):
    with pytest.raises(ConfigError, match="head_norm of a converted DEX model must be off"):
        convert(str(source("llama")), "dex", tmp_path / "out", changes={"head_norm": True})


@pytest.mark.scheduled
def test_lambda_init_must_keep_away_from_1(source, tmp_path):
    changes = PLAIN | {"lambda_init": 1.0}
    with pytest.raises(ConfigError, match=r"must differ from 1 by .* or more, got 1"):
        convert(str(source("llama")), "diff", tmp_path / "out", changes=changes)

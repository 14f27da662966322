"""Controls are whole models: they are counted, saved, cached and run on every implementation."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.config.attention_types import CONTROL_TYPES
from diffattn.ops.inputs import backends
from diffattn.probes.activations import layer_lambdas


@pytest.fixture(params=CONTROL_TYPES)
def model(request, make_config, build):
    return build(make_config(request.param))


@pytest.mark.sampled(one_of=2)
@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cached_decoding_equals_the_full_pass(model, ids, cache):
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids, cache_implementation=cache, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))


@pytest.mark.sampled(one_of=2)
@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_faces_kernels_agree_or_are_refused(model, ids, implementation):
    expected = model(input_ids=ids).logits
    model.set_attn_implementation(implementation)
    if model.config.attention.needs_maps:
        with pytest.raises(ConfigError, match="needs attn_implementation 'diffattn', got"):
            model(input_ids=ids)
        return
    torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter(model, ids):
    model(input_ids=ids, labels=ids).loss.backward()
    weights = model.named_parameters()
    unread = {name for name, x in weights if x.grad is None or not x.grad.any()}
    if model.config.attention_type == "none":  # nobody reads what is normalised for attention
        assert unread == {f"model.layers.{i}.input_layernorm.weight" for i in range(2)}
    else:
        assert not unread


def test_a_normalised_map_runs_on_the_eager_definition_alone(make_config):
    config = make_config("shared_diff_map_norm")
    shape = {"device": "cuda", "dtype": torch.bfloat16, "batch": 2, "num_tokens": 64}
    assert chosen_backend(config, **shape, elsewhere=True) == "reference"
    with pytest.raises(ConfigError, match=r"must be in \{auto, reference\}, got 'chunked'"):
        make_config("shared_diff_map_norm", attention_backend="chunked")


def test_auto_is_told_of_documents_and_groups(make_config, monkeypatch):
    """``hopper`` takes neither borders of documents nor groups."""
    monkeypatch.setattr(backends, "resolve", lambda op, name, inputs: inputs)
    shape = {"device": "cuda", "dtype": torch.bfloat16, "batch": 2, "num_tokens": 64}
    packed = chosen_backend(make_config("grouped_diff"), **shape, apart=True, elsewhere=True)
    assert (packed.batch, packed.num_queries, packed.num_keys) == (1, 128, 128)
    assert (packed.at_most_causal, packed.in_groups) == (False, True)
    plain = chosen_backend(make_config("diff"), **shape, elsewhere=True)
    assert (plain.batch, plain.at_most_causal, plain.in_groups) == (2, True, False)


def test_the_probe_of_lambda_reads_it_as_it_acts(make_config, build, ids):
    model = build(make_config("diff_v2_raw_lambda"))
    for block in model.model.layers:
        block.self_attn.lambda_proj.weight.data.zero_()
    assert layer_lambdas(model, ids) == [0.0, 0.0]


def test_pairs_across_groups_are_not_split_over_devices(make_config):
    plan = make_config("diff_v2_across").base_model_tp_plan
    assert plan
    assert not any("self_attn" in name for name in plan)
    assert any("self_attn" in name for name in make_config("diff_v2").base_model_tp_plan)


@torch.no_grad()
def test_without_attention_tokens_never_meet(make_config, build, ids):
    model = build(make_config("none"))
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % 61
    expected, logits = model(input_ids=ids).logits, model(input_ids=changed).logits
    assert torch.equal(logits[:, 1:], expected[:, 1:])
    assert not torch.equal(logits[:, 0], expected[:, 0])

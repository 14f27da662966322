"""Maps on request: the differential one as ``attentions``, the raw ones as ``attention_maps``."""

import pytest
import torch

from diffattn.errors import ConfigError

WITH_MAPS = ["diffattn", "eager"]


@pytest.fixture
def lambdas(model, ids):
    """λ of each layer ``[B, H, T]``, of the tokens that the layer reads."""
    values = []
    for layer in model.model.layers:

        def read(module, inputs, x, attention=layer.self_attn):
            (lam,) = attention.lambdas(x) or (torch.zeros(()),)
            values.append(lam.expand(2, 11, attention.num_heads).transpose(1, 2))

        layer.input_layernorm.register_forward_hook(read)
    with torch.no_grad():
        model(ids)
    return list(values)


@pytest.mark.parametrize("name", WITH_MAPS)
def test_attentions_are_the_differential_maps(model, ids, implementation, lambdas, name):
    with implementation(model, name), torch.no_grad():
        out = model(ids, output_attentions=True, output_attention_maps=True)
    assert len(out.attentions) == len(out.attention_maps) == len(lambdas) == 2
    # Sums of 11 float32 numbers of absolute sum 1 + |λ|, each off by at most four roundings
    # (exponential, division, product with λ, difference), as is each entry.
    epsilon = torch.finfo(torch.float32).eps
    layers = enumerate(zip(out.attentions, out.attention_maps, lambdas, strict=True))
    for layer_idx, (signed, raw, lam) in layers:
        config = model.config.of_layer(layer_idx)
        num_maps = config.attention.query_maps
        assert signed.shape == (2, config.num_heads, 11, 11)
        assert raw.shape == (2, config.num_heads, num_maps, 11, 11)
        budget = 4 * 11 * epsilon * (1 + lam.abs())
        assert raw[..., -1, :].max() > 0.3  # else a swapped head or map would not show in this file
        assert ((raw.sum(-1) - 1).abs() <= 4 * 11 * epsilon).all()
        expected = raw[:, :, 0] - (lam[..., None] * raw[:, :, 1] if num_maps == 2 else 0)
        assert ((signed - expected).abs() <= budget[..., None]).all()
        hidden = torch.ones(11, 11, dtype=torch.bool).triu(1)
        assert (raw[..., hidden] == 0).all()
        assert (signed[..., hidden] == 0).all()


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("name", WITH_MAPS)
def test_maps_and_logits_beside_them_are_those_of_the_reference(
    model, ids, implementation, assert_only_rounding, name
):
    """Eager goes through the maps that it returns, and multiplies their difference with V."""

    @torch.no_grad()
    def compute(m):
        out = m(ids, output_attentions=True, output_attention_maps=True)
        return [out.logits, *out.attentions, *out.attention_maps]

    with implementation(model, name):
        logits, *maps = compute(model)
        assert_only_rounding([logits, *maps], model, compute)
        plain = model(ids)
    assert plain.attentions is None
    assert plain.attention_maps is None
    if name == "diffattn":
        assert torch.equal(plain.logits, logits)


@pytest.mark.parametrize("option", ["output_attentions", "output_attention_maps"])
def test_kernels_without_maps_refuse(make_config, build, ids, implementation, option):
    model = build(make_config("diff"))
    message = "attention maps need attn_implementation 'diffattn' or 'eager', got 'sdpa'"
    with implementation(model, "sdpa"), pytest.raises(ConfigError, match=message):
        model(ids, **{option: True})
    with torch.no_grad():
        assert len(model(ids, output_attentions=True).attentions) == 2  # and works again


def test_maps_while_generating(model, ids):
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    options |= {"output_attentions": True, "return_dict_in_generate": True}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    shapes = [step[0].shape for step in out.attentions]
    heads = model.config.of_layer(0).num_heads
    assert shapes == [(2, heads, 11, 11), (2, heads, 1, 12), (2, heads, 1, 13)]


def test_padding_is_invisible_in_the_maps(model, ids, padding_mask, implementation):
    for name in WITH_MAPS:
        with implementation(model, name), torch.no_grad():
            out = model(ids, attention_mask=padding_mask, output_attention_maps=True)
        for raw in out.attention_maps:
            assert (raw[0, :, :, 4:, :4] == 0).all()
            assert (raw[1, :, :, 10, :4] > 0).all()


def test_gradients_can_be_read_at_the_maps(model, ids, implementation):
    """In eager, where the output goes through them."""
    kept = {}
    with implementation(model, "eager"):
        out = model(ids, output_attentions=True, output_attention_maps=True)
        for name in ("attentions", "attention_maps"):
            kept[name] = getattr(out, name)
            for maps in kept[name]:
                maps.retain_grad()
        out.logits.square().sum().backward()
    for name, layers in kept.items():
        for maps in layers:
            assert maps.grad.shape == maps.shape, name
            assert (maps.grad[..., 5, :6] != 0).any(), name
    for signed, raw in zip(kept["attentions"], kept["attention_maps"], strict=True):
        # A1 enters the difference as it is.
        torch.testing.assert_close(raw.grad[:, :, 0], signed.grad)

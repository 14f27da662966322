"""The quantiser's properties, and a model that runs with it: caches, padding, both maps."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.attention.cached_attention import Attend
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.probes.quantized_logits import (
    GRANULARITIES,
    quantize_logits,
    quantized_logits,
    require_quantizable,
)

CAUSAL = torch.ones(5, 9, dtype=torch.bool).tril(4)


@pytest.fixture(params=[*ATTENTION_TYPES, "llama", "diffllama"])
def network(request, make_model):
    return make_model(request.param).eval()


def random_logits(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 30 * torch.randn(2, 4, 5, 9, generator=generator) ** 3


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("bits", [8, 4])
def test_the_error_is_half_a_step_at_most(bits, granularity):
    """And the result has no more than 2^bits - 1 values per scale, the largest one exact."""
    logits = random_logits()
    actual = quantize_logits(logits, CAUSAL, bits, granularity=granularity)
    shown = logits.masked_fill(~CAUSAL, 0).double()
    largest = shown.abs().amax(GRANULARITIES[granularity], keepdim=True)
    step = largest / (2 ** (bits - 1) - 1)
    error = (actual.double() - logits.double()).abs()[..., CAUSAL]
    # Dividing, multiplying and the scale itself are rounded in float32.
    allowed = step / 2 + 4 * torch.finfo(torch.float32).eps * largest
    assert bool((error <= allowed.expand_as(logits)[..., CAUSAL]).all())
    assert float(error.max()) > 0
    assert float((actual[..., CAUSAL].abs().max() - largest.max()).abs()) <= 4e-7 * largest.max()
    levels = actual.double().masked_fill(~CAUSAL, 0) / step
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_masked_entries_never_count(granularity):
    logits = random_logits()
    expected = quantize_logits(logits, CAUSAL, 4, granularity=granularity)
    for hidden in (1e30, -1e30, 0.0):
        changed = logits.masked_fill(~CAUSAL, hidden)
        actual = quantize_logits(changed, CAUSAL, 4, granularity=granularity)
        assert torch.equal(actual[..., CAUSAL], expected[..., CAUSAL])
        assert torch.equal(actual[..., ~CAUSAL], changed[..., ~CAUSAL])


def test_nothing_to_round():
    zeros = torch.zeros(1, 1, 5, 9)
    assert torch.equal(quantize_logits(zeros, CAUSAL, 4), zeros)
    logits = random_logits()
    assert quantize_logits(logits, CAUSAL, 16) is logits
    assert torch.equal(quantize_logits(logits, torch.zeros_like(CAUSAL), 4), logits)
    half = logits.bfloat16()
    assert quantize_logits(half, CAUSAL, 8).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("bits", "granularity", "message"),
    [(1, "tensor", "bits must be"), (17, "tensor", "bits must be"), (4, "column", "must be in")],
)
def test_wrong_settings(bits, granularity, message):
    with pytest.raises(ConfigError, match=message):
        quantize_logits(random_logits(), CAUSAL, bits, granularity=granularity)


@torch.no_grad()
def test_16_bits_equal_eager_attention(network):
    """Bit for bit, and within, the model changes; afterwards it is what it was."""
    ids = torch.arange(3, 23)[None]
    before = network.config._attn_implementation
    require_quantizable(network)
    assert network.config._attn_implementation == before
    unquantized = network(ids).logits
    network.set_attn_implementation("eager")
    eager = network(ids).logits
    network.set_attn_implementation(before)
    with quantized_logits(network, 16):
        assert torch.equal(network(ids).logits, eager)
    with quantized_logits(network, 4):
        assert float((network(ids).logits - eager).abs().max()) > 0.01
    assert network.config._attn_implementation == before
    assert torch.equal(network(ids).logits, unquantized)


@torch.no_grad()
@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("bits", [16, 4])
def test_caches_and_padding(network, bits):
    """With a scale per row, whose visible keys are the same, neither changes a thing."""
    ids = torch.randint(1, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    with quantized_logits(network, bits, granularity="row"):
        expected = network(ids).logits
        out = network(ids[:, :7], use_cache=True)
        parts = [out.logits]
        for i in range(7, 12):
            out = network(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
            parts.append(out.logits)
        cached = torch.cat(parts, dim=1)
        batch = torch.zeros(2, 15, dtype=torch.long)
        batch[0, 3:] = ids[0]
        batch[1] = torch.arange(1, 16)
        mask = torch.ones_like(batch)
        mask[0, :3] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        padded = network(batch, attention_mask=mask, position_ids=positions).logits[:1, 3:]
    # A logit at the border of two levels may round either way: a step of 4 bits is coarse, so
    # this holds only because no logit of these weights lies that near.
    torch.testing.assert_close(cached, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(padded, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["diff", "diff_v2", "shared_diff"])
def test_both_maps_are_quantised_before_their_softmax(make_model, kind):
    """Against the definition, with one scale for both maps of a layer."""
    network = make_model(kind).eval().double()
    heads, kv_heads = network.config.num_heads, network.config.num_kv_heads
    block = network.model.layers[0]
    generator = torch.Generator().manual_seed(3)
    shared_keys = kind == "diff_v2"
    width = 8 if shared_keys else 16
    q = 2 * torch.randn(1, 9, heads, 2, 8, generator=generator, dtype=torch.float64)
    k = 2 * torch.randn(1, 9, kv_heads, 2, 8, generator=generator, dtype=torch.float64)
    k = k[:, :, :, 0] if shared_keys else k
    v = torch.randn(1, 9, kv_heads, width, generator=generator, dtype=torch.float64)
    lam = torch.tensor(0.4, dtype=torch.float64)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, 9, 9, dtype=torch.float64).masked_fill(
        ~causal, torch.finfo(torch.float64).min
    )
    with quantized_logits(network, 4):
        actual = Attend(block, mask, None, None, {})(q, k, v, lam)
    keys = k[:, :, :, None].expand(-1, -1, -1, 2, -1) if shared_keys else k
    keys, values = (x.repeat_interleave(heads // kv_heads, dim=2) for x in (keys, v))
    logits = torch.einsum("bthmd,bshmd->bhmts", q, keys) * 8**-0.5
    step = logits[..., causal].abs().max() / 7
    maps = ((logits / step).round() * step).masked_fill(~causal, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", maps[:, :, 0] - lam * maps[:, :, 1], values)
    # The softmaxes of eager attention are in float32.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_another_attention_function_is_refused(make_model):
    network = make_model("diff").eval()
    ids = torch.arange(5)[None]
    with quantized_logits(network, 4):
        network.set_attn_implementation("eager")
        with pytest.raises(ConfigError, match=r"not be changed inside this context, got 'eager'"):
            network(ids)
    network.set_attn_implementation("eager")
    network(ids)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bloom", "every layer of 'bloom' .* got 0 of 3"),
        ("gemma2", "attention of 'gemma2' .* got softcap"),
    ],
)
def test_models_that_do_not_are_named(make_model, kind, message):
    network = make_model(kind).eval()
    before = network.config._attn_implementation
    with pytest.raises(ConfigError, match=message):
        require_quantizable(network)
    assert network.config._attn_implementation == before

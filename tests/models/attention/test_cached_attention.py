"""Caches: decoding in steps equals one pass, and caches hold what the configuration says."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from diffattn.errors import ConfigError
from diffattn.models.attention.kernels import in_kernel_layout
from diffattn.models.attention.masks import KeyMask, key_mask
from diffattn.ops.inputs.masking import AttentionMask

CHUNKS = {"single": [1] * 11, "prefill": [8, 1, 1, 1], "chunks": [3, 5, 1, 2]}
IMPLEMENTATIONS = ["diffattn", "sdpa", "eager"]
RUNS = [
    *(pytest.param("diffattn", chunks, id=f"diffattn-{name}") for name, chunks in CHUNKS.items()),
    *(pytest.param(name, CHUNKS["chunks"], id=f"{name}-chunks") for name in ("sdpa", "eager")),
]


def make_cache(kind, config, length=16):
    if kind == "dynamic":
        return DynamicCache(config=config)
    return StaticCache(config=config, max_cache_len=length)


@torch.no_grad()
def in_steps(model, ids, cache, chunks, **inputs):
    logits, start = [], 0
    for size in chunks:
        stop = start + size
        step = {name: value[:, :stop] for name, value in inputs.items()}
        if "position_ids" in step:
            step["position_ids"] = step["position_ids"][:, start:]
        logits.append(model(ids[:, start:stop], past_key_values=cache, **step).logits)
        start = stop
    assert int(cache.get_seq_length()) == ids.shape[1]
    return torch.cat(logits, dim=1)


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize(("name", "chunks"), RUNS)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_steps_equal_the_full_pass(
    model, ids, implementation, assert_only_rounding, logits_of, kind, name, chunks
):
    with implementation(model, name):
        stepwise = in_steps(model, ids, make_cache(kind, model.config), chunks)
    assert_only_rounding([stepwise], model, logits_of(input_ids=ids))


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_steps_under_left_padding_equal_the_unpadded_row(
    model, ids, padding_mask, assert_only_rounding, logits_of, kind, chunks
):
    places = (padding_mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"attention_mask": padding_mask, "position_ids": places}
    stepwise = in_steps(model, ids, make_cache(kind, model.config), chunks, **inputs)
    assert_only_rounding([stepwise[:1, 4:]], model, logits_of(input_ids=ids[:1, 4:]))
    assert_only_rounding([stepwise[1:]], model, logits_of(input_ids=ids[1:]))


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_shapes_in_caches_are_those_of_the_configuration(model, ids, implementation, kind, name):
    """V1 and Shared: both maps' keys side by side, 2D wide, as V is; others: heads of D."""
    config, cache = model.config, make_cache(kind, model.config)
    with implementation(model, name), torch.no_grad():
        model(ids, past_key_values=cache)
    length = 11 if kind == "dynamic" else 16
    for layer_idx, layer in enumerate(cache.layers):
        of_layer = config.of_layer(layer_idx)
        wide = of_layer.attention.value_width == 2
        num_heads, width = of_layer.cached_kv_shape
        assert (num_heads, width) == (of_layer.num_kv_heads, 16 if wide else 8)
        assert layer.keys.shape == (2, num_heads, length, width)
        assert layer.values.shape == (2, num_heads, length, width)


def test_layers_on_several_devices_get_no_early_cache(make_config, build):
    model = build(make_config())
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    assert model._get_static_cache_init_shape() is None


@torch.no_grad()
def test_a_prefix_made_by_the_configurations_numbers_works(model, ids, assert_only_rounding):
    """As peft makes it: a dynamic cache that starts in the layout of kernels."""
    config = model.config
    cache, first = make_cache("dynamic", config), make_cache("dynamic", config)
    model(ids[:, :4], past_key_values=first)
    for layer_idx, layer in enumerate(first.layers):
        k, v = layer.keys, layer.values
        if config.attention_by_layer[layer_idx].key_maps == 2:
            k = k.transpose(1, 2).unflatten(-1, (2, -1))
            k, v = in_kernel_layout(k, v.transpose(1, 2))
        else:
            times = config.num_key_value_heads // k.shape[1]
            k, v = (x.repeat(1, times, 1, 1) for x in (k, v))
        assert k.shape == v.shape == (2, config.num_key_value_heads, 4, config.head_dim)
        cache.update(k, v, layer_idx)
    stepwise = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(4, 11)]
    assert_only_rounding(
        [torch.cat(stepwise, dim=1)], model, lambda m: [m(ids).logits.detach()[:, 4:]]
    )


def test_a_learned_prefix_gets_a_gradient_everywhere(attention_type, make_config, build, ids):
    model = build(make_config(attention_type))
    config = model.config
    cache, learned = make_cache("dynamic", config), []
    for layer_idx in range(2):
        shape = (2, config.num_key_value_heads, 3, config.head_dim)
        pair = [torch.randn(shape, requires_grad=True) for _ in "kv"]
        learned += pair
        cache.update(*pair, layer_idx)
    model(ids, past_key_values=cache).logits.square().sum().backward()
    for prefix in learned:
        assert (prefix.grad.abs().amax((0, -1)) > 0).all()  # of every head and token


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 11, 11), r"must be \[B, keys\] or \[B, 1, T, keys\], got \[2, 11, 11\]"),
        (torch.ones(2, 4, 11, 11), r"\[2 or 1, 1, 11, 11\], got torch.float32 \[2, 4, 11, 11\]"),
        (torch.ones(2, 1, 11, 12), r"got torch.float32 \[2, 1, 11, 12\]"),
        (torch.ones(2, 1, 11, 11, dtype=torch.int64), "must be bool or floating .*got torch.int64"),
    ],
    ids=["three axes", "heads", "length", "integers"],
)
def test_other_masks_are_refused(make_config, build, ids, mask, message):
    with pytest.raises(ConfigError, match=message):
        build(make_config())(ids, attention_mask=mask)


def test_a_named_backend_takes_no_mask_of_four_axes(make_config, build, ids):
    model = build(make_config(attention_backend="chunked"))
    with pytest.raises(ConfigError, match="needs attention_backend 'auto', got 'chunked'"):
        model(ids, attention_mask=torch.ones(2, 1, 11, 11, dtype=torch.bool))


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("kind", [None, "dynamic", "static"])
def test_any_mask_of_four_axes_equals_the_eager_definition(model, ids, implementation, kind):
    """In float64, where the two differ by rounding alone; also rows that see nothing."""
    model, length = model.double(), 16 if kind == "static" else 11
    mask = torch.rand(2, 1, 11, length, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 11:] = False
    mask[1, 0, 3] = False
    results = []
    for name in ("eager", "diffattn"):
        cache = None if kind is None else make_cache(kind, model.config)
        with implementation(model, name), torch.no_grad():
            results.append(model(ids, attention_mask=mask, past_key_values=cache).logits)
    assert results[0].isfinite().all()
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-11)
    with torch.no_grad():
        assert (model(ids).logits - results[0]).abs().max() > 0.1


@pytest.mark.parametrize("length", [5, 10, 12])
def test_a_mask_of_another_length_is_refused(make_config, build, ids, length):
    model = build(make_config("diff"))
    with torch.no_grad():
        cache = model(ids[:, :6]).past_key_values
    with pytest.raises(ConfigError, match=f"must cover all 11 keys, cached and new, got {length}"):
        model(ids[:, 6:], past_key_values=cache, attention_mask=torch.ones(2, length))


class OnGpu(torch.Tensor):
    """As far as one can tell; a look at its values ends the capture of a graph."""

    is_cuda = True

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        looks = function in (torch.Tensor.__bool__, torch.Tensor.nonzero, torch.Tensor.item)
        assert not (looks and torch.cuda.is_current_stream_capturing()), function
        return super().__torch_function__(function, types, args, kwargs)


class TestKeyMask:
    """The translation of Hugging Face's mask, cache and positions into the operator's options."""

    embeds = torch.zeros(2, 3, 4)

    def test_a_mask_on_the_host_is_looked_at_there(self):
        """No device is waited for: here one that has no values to look at."""
        embeds = self.embeds.to("meta")
        assert key_mask(torch.ones(2, 3), None, None, embeds) == KeyMask()
        result = key_mask(torch.tensor([[0, 1, 1], [1, 1, 1]]), None, None, embeds)
        assert result.key_padding_mask.is_meta

    def test_a_graph_that_is_being_captured_keeps_its_mask(self, monkeypatch):
        """A look at the values would end the capture."""

        for capturing in (False, True):
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda x=capturing: x)
            mask = torch.ones(2, 3, dtype=torch.bool).as_subclass(OnGpu)
            result = key_mask(mask, None, None, self.embeds)
            assert (result.key_padding_mask is not None) is capturing

    @pytest.mark.parametrize(
        "position_ids", [[[0, 1, 0, 0, 1]], [[0, 1, 2, 0, 1], [4, 5, 6, 7, 8]]]
    )
    def test_a_graph_that_is_being_captured_keeps_its_documents(self, position_ids, monkeypatch):
        embeds = torch.zeros(len(position_ids), 5, 4)
        num_tokens = 5 * len(position_ids)
        visible = []
        for capturing in (False, True):
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda x=capturing: x)
            ids = torch.tensor(position_ids).as_subclass(OnGpu)
            borders = key_mask(None, ids, None, embeds).cu_seqlens.as_subclass(torch.Tensor)
            mask = AttentionMask(cu_seqlens=borders)
            visible.append(mask.visible_keys(num_tokens, num_tokens, device=borders.device))
        assert len(borders) == num_tokens + 1
        assert torch.equal(*visible)
